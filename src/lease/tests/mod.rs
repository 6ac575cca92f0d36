//! The core against the in-memory store, under a clock that only moves when everybody waits.

#![allow(clippy::disallowed_methods)] // tokio's paused clock is the fake one

mod one;
mod together;

use std::{cell::RefCell, collections::VecDeque, future::pending, rc::Rc, time::Duration};

use async_trait::async_trait;
use tokio::time::Instant;

use super::*;
use crate::{
    backends::memory::{Memory, Store},
    lock::{
        Attempt, Backend, Busy, Capabilities, Check, Effect, Entry, Error, Examine, Extension, Finding, Grants, Holding, Init, Kind,
        LockState, Mode, Namespace, Once, Pace, Parting, Purpose, Release, Renewal, Request, Result, Role, Rule, Scope, ServerTime, Stage,
        Terms, Wake,
    },
};

struct PausedClock(Instant);

#[async_trait(?Send)]
impl Clock for PausedClock {
    fn now(&self) -> BootTime {
        BootTime::from_boot(Duration::from_secs(1000) + self.0.elapsed())
    }

    async fn sleep_until(&self, when: BootTime) {
        tokio::time::sleep(when.since(self.now())).await;
    }
}

/// What happens to one call on its way to the store or back.
#[derive(Clone, Copy)]
enum Fault {
    /// It never gets there.
    Refused,
    /// It is done, and the answer lost.
    AnswerLost,
    /// It is done, and the answer never comes.
    AnswerHangs,
    /// It is done at once, and the answer is late by so much.
    AnswerLate(Duration),
    /// Nothing comes back, nothing is done.
    Hangs,
    /// An error that asking again can't mend.
    Denied,
}

/// A memory backend with faults to come, one for each acquire, renew and release.
struct Faulty {
    inner: Memory,
    faults: Rc<RefCell<VecDeque<Option<Fault>>>>,
    calls: Rc<RefCell<Vec<&'static str>>>,
    /// How long its grants have to settle.
    settle: Duration,
    /// How many times a lock that nobody has is busy in passing.
    passing: u32,
    /// Something happened to the hold.
    hint: Rc<tokio::sync::Notify>,
}

impl Faulty {
    async fn meet<T>(&mut self, name: &'static str, call: impl AsyncFnOnce(&mut Memory) -> Result<T>) -> Result<T> {
        self.calls.borrow_mut().push(name);
        let fault = self.faults.borrow_mut().pop_front().flatten();
        let lost = || Error::new(Kind::Unavailable, "connection reset");
        match fault {
            None => call(&mut self.inner).await,
            Some(Fault::Refused) => Err(lost()),
            Some(Fault::Denied) => Err(Error::new(Kind::Denied, "no rights")),
            Some(Fault::Hangs) => pending().await,
            Some(Fault::AnswerLost) => {
                call(&mut self.inner).await?;
                Err(lost().effect(Effect::Unknown))
            }
            Some(Fault::AnswerHangs) => {
                call(&mut self.inner).await?;
                pending().await
            }
            Some(Fault::AnswerLate(by)) => {
                let answer = call(&mut self.inner).await;
                tokio::time::sleep(by).await;
                answer
            }
        }
    }
}

#[async_trait(?Send)]
impl Examine for Faulty {
    fn checks(&self) -> Vec<Check> {
        self.inner.checks()
    }

    async fn examine(&mut self) -> Result<Vec<Finding>> {
        self.inner.examine().await
    }

    async fn clocks(&mut self) -> Result<Vec<ServerTime>> {
        self.inner.clocks().await
    }

    fn grants(&self, role: Role) -> Grants {
        self.inner.grants(role)
    }
}

#[async_trait(?Send)]
impl Backend for Faulty {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }
    fn describe(&self) -> String {
        self.inner.describe()
    }
    fn fingerprint(&self) -> u64 {
        self.inner.fingerprint()
    }
    async fn try_acquire(&mut self, request: &Request) -> Result<Attempt> {
        if self.passing > 0 {
            self.passing -= 1;
            return Ok(Attempt::Busy(Busy { passing: true, ..Busy::default() }));
        }
        let mut attempt = self.meet("acquire", async |inner: &mut Memory| inner.try_acquire(request).await).await?;
        if let Attempt::Granted(grant) = &mut attempt {
            grant.settle = self.settle;
        }
        Ok(attempt)
    }
    async fn watch(&mut self, _: &Key, _: &Token) {
        self.hint.notified().await;
    }
    async fn wait(&mut self, request: &Request, at_most: Duration) -> Result<Wake> {
        let at_most = if self.passing > 0 { Duration::from_millis(5) } else { at_most };
        self.inner.wait(request, at_most).await
    }
    async fn abandon(&mut self, request: &Request) -> Result<()> {
        self.calls.borrow_mut().push("abandon");
        self.inner.abandon(request).await
    }
    async fn renew(&mut self, key: &Key, token: &Token, extension: Extension) -> Result<Renewal> {
        self.meet("renew", async |inner: &mut Memory| inner.renew(key, token, extension).await).await
    }
    async fn verify(&mut self, key: &Key, token: &Token) -> Result<Holding> {
        self.inner.verify(key, token).await
    }
    async fn release(&mut self, key: &Key, token: &Token, parting: &Parting) -> Result<Release> {
        self.meet("release", async |inner: &mut Memory| inner.release(key, token, parting).await).await
    }
    async fn inspect(&mut self, key: &Key) -> Result<LockState> {
        self.inner.inspect(key).await
    }
    async fn list(&mut self, start: &str) -> Result<Vec<LockState>> {
        self.inner.list(start).await
    }
    async fn init(&mut self) -> Result<Init> {
        self.inner.init().await
    }
}

/// A store, a clock and what the tests do with them.
struct World {
    store: Store,
    clock: PausedClock,
}

const LIMITS: Limits = Limits { answer: Duration::from_secs(5) };

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn key() -> Key {
    Key::new("job").unwrap()
}

/// Equal but for what tokio's timers, which count milliseconds, add.
#[track_caller]
fn assert_about(took: Duration, meant: Duration) {
    assert!(meant <= took && took <= meant + Duration::from_millis(2), "{took:?} instead of {meant:?}");
}

fn request() -> Request {
    Request::new(key(), Ttl::new(secs(60)).unwrap())
}

fn budget() -> Budget {
    Budget::new(request().ttl, None, Pace::USUAL).unwrap()
}

impl World {
    fn new() -> Self {
        Self { store: Store::default(), clock: PausedClock(Instant::now()) }
    }

    fn client(&self, faults: &[Option<Fault>]) -> Faulty {
        Faulty {
            inner: Memory::new(self.store.clone(), Namespace::default()),
            faults: Rc::new(RefCell::new(faults.iter().copied().collect())),
            calls: Rc::default(),
            settle: Duration::ZERO,
            passing: 0,
            hint: Rc::default(),
        }
    }

    async fn acquire(&self, backend: &mut Faulty, patience: Patience) -> Result<Outcome<()>> {
        acquire(backend, &self.clock, request(), patience, LIMITS, pending(), |_: &Busy| ()).await
    }

    async fn taken(&self, backend: &mut Faulty) -> Lease {
        match self.acquire(backend, Patience::Try).await.unwrap() {
            Outcome::Granted(lease) => lease,
            other => panic!("{other:?}"),
        }
    }

    async fn state(&self) -> LockState {
        self.client(&[]).inspect(&key()).await.unwrap()
    }

    async fn is_free(&self) -> bool {
        self.state().await.holders.is_empty()
    }
}
