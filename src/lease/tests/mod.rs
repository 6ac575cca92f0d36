//! The core against the in-memory store, under a clock that only moves when every task waits.

#![allow(clippy::disallowed_methods)] // tokio's paused clock is the fake one

mod breaking;
mod drain;
mod long_answers;
mod one;
mod policies;
mod renewals;
mod together;
mod waits;
mod wrong_server;

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    future::pending,
    rc::Rc,
    time::Duration,
};

use async_trait::async_trait;
use tokio::time::Instant;

use super::*;
use crate::{
    backends::memory::{Memory, MemoryStore},
    lock::{
        Admin, Amendment, Attempt, Backend, Busy, Effect, Entry, Error, Fence, Finding, Grant,
        History, Identity, Intent, Kind, LockState, Mode, Namespace, Once, Origin, Pace, Progress,
        Release, ReleaseInfo, Renewal, Request, Result, Rule, RunPolicy, RunState, Scope,
        ServerTime, Wake, Which,
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

/// The fate of one call on its way to the store or back.
#[derive(Clone, Copy)]
enum CallFault {
    /// The call never reaches the store.
    Refused,
    /// The call is done, and its answer is lost.
    AnswerLost,
    /// The call is done, and its answer never comes.
    AnswerHangs,
    /// The call is done at once, and its answer is this late.
    AnswerLate(Duration),
    /// The call is not done, and no answer comes.
    Hangs,
    /// An error that asking again can't fix.
    Denied,
    /// A replica answers, which takes no writes.
    WrongServer,
    /// The server's name has no address.
    NoAddress,
}

/// A memory backend with planned faults, one for each acquire, renew and release.
struct Faulty {
    inner: Memory,
    faults: Rc<RefCell<VecDeque<Option<CallFault>>>>,
    /// The planned faults of attempts to leave the queue.
    leaving: Rc<RefCell<VecDeque<Option<CallFault>>>>,
    calls: Rc<RefCell<Vec<&'static str>>>,
    /// The planned faults of connects.
    connecting: VecDeque<Option<CallFault>>,
    /// Whether a connection is open.
    connected: Rc<Cell<bool>>,
    /// The answers to attempts, of which the last is given from then on. Without any, the store
    /// answers.
    planned: VecDeque<Attempt>,
    /// How long each wait was to last.
    waits: Rc<RefCell<Vec<Duration>>>,
    /// The drain delay of the grants.
    drain_delay: Duration,
    /// How many times a free lock reports busy for a moment.
    transient: u32,
    other_servers: bool,
    /// Whether ending the session ends a hold that can't be released.
    cuts: bool,
    /// Signals that the hold may have changed.
    hint: Rc<tokio::sync::Notify>,
}

impl Faulty {
    async fn meet<T>(
        &mut self,
        name: &'static str,
        call: impl AsyncFnOnce(&mut Memory) -> Result<T>,
    ) -> Result<T> {
        self.calls.borrow_mut().push(name);
        let faults = if name == "leave" {
            &self.leaving
        } else {
            &self.faults
        };
        let fault = faults.borrow_mut().pop_front().flatten();
        let lost = || Error::new(Kind::Unavailable, "connection reset");
        match fault {
            None => call(&mut self.inner).await,
            Some(CallFault::Refused) => Err(lost()),
            Some(CallFault::Denied) => Err(Error::new(Kind::Denied, "no rights")),
            Some(CallFault::WrongServer) => {
                Err(Error::new(Kind::Config, "a replica").origin(Origin::WrongServer))
            }
            Some(CallFault::NoAddress) => {
                Err(Error::new(Kind::Unavailable, "no address").origin(Origin::Resolver))
            }
            Some(CallFault::Hangs) => pending().await,
            Some(CallFault::AnswerLost) => {
                call(&mut self.inner).await?;
                Err(lost().effect(Effect::Unknown))
            }
            Some(CallFault::AnswerHangs) => {
                call(&mut self.inner).await?;
                pending().await
            }
            Some(CallFault::AnswerLate(by)) => {
                let answer = call(&mut self.inner).await;
                tokio::time::sleep(by).await;
                answer
            }
        }
    }
}

#[async_trait(?Send)]
impl Admin for Faulty {
    async fn examine(&mut self) -> Result<Vec<Finding>> {
        self.inner.examine().await
    }

    async fn clocks(&mut self) -> Result<Vec<ServerTime>> {
        self.inner.clocks().await
    }
}

#[async_trait(?Send)]
impl Backend for Faulty {
    fn identity(&self) -> Identity {
        Identity {
            has_other_servers: self.other_servers,
            ..self.inner.identity()
        }
    }
    async fn connect(&mut self, _: &Request) -> Result<()> {
        match self.connecting.pop_front().flatten() {
            None => self.connected.set(true),
            Some(CallFault::Hangs) => pending().await,
            Some(_) => return Err(Error::new(Kind::Unavailable, "too many connections")),
        }
        Ok(())
    }
    fn disconnect(&mut self) {
        self.connected.set(false);
    }
    async fn try_acquire(&mut self, request: &Request) -> Result<Attempt> {
        if self.transient > 0 {
            self.transient -= 1;
            return Ok(Attempt::Busy(Busy {
                transient: true,
                ..Busy::default()
            }));
        }
        let planned = if self.planned.len() > 1 {
            self.planned.pop_front()
        } else {
            self.planned.front().cloned()
        };
        let answer = async |inner: &mut Memory| match planned {
            Some(attempt) => Ok(attempt),
            None => inner.try_acquire(request).await,
        };
        let mut attempt = self.meet("acquire", answer).await?;
        if let Attempt::Granted(grant) = &mut attempt {
            grant.drain_delay = self.drain_delay;
        }
        Ok(attempt)
    }
    async fn wait(&mut self, request: &Request, at_most: Duration) -> Result<Wake> {
        self.waits.borrow_mut().push(at_most);
        if !self.planned.is_empty() {
            tokio::time::sleep(at_most).await;
            return Ok(Wake::TimedOut);
        }
        let at_most = if self.transient > 0 {
            Duration::from_millis(5)
        } else {
            at_most
        };
        self.inner.wait(request, at_most).await
    }
    async fn leave_queue(&mut self, request: &Request) -> Result<()> {
        self.meet("leave", async |inner: &mut Memory| {
            inner.leave_queue(request).await
        })
        .await
    }
    async fn renew(&mut self, key: &Key, token: &Token, intent: Intent) -> Result<Renewal> {
        self.meet("renew", async |inner: &mut Memory| {
            inner.renew(key, token, intent).await
        })
        .await
    }
    async fn release(&mut self, key: &Key, token: &Token, info: &ReleaseInfo) -> Result<Release> {
        self.meet("release", async |inner: &mut Memory| {
            inner.release(key, token, info).await
        })
        .await
    }
    async fn amend(&mut self, key: &Key, change: Amendment<'_>) -> Result<bool> {
        self.inner.amend(key, change).await
    }
    async fn inspect(&mut self, key: &Key) -> Result<LockState> {
        self.inner.inspect(key).await
    }
    async fn list(&mut self, start: &str, progress: &Progress) -> Result<Vec<LockState>> {
        self.inner.list(start, progress).await
    }
    async fn known(&mut self, start: &str, which: Which, progress: &Progress) -> Result<Vec<Key>> {
        self.inner.known(start, which, progress).await
    }

    async fn history(&mut self, key: &Key) -> Result<History> {
        self.inner.history(key).await
    }
    async fn watch(&mut self, _: &Key, _: &Token) {
        self.hint.notified().await;
    }
    async fn cut(&mut self, _: &Key, _: &Token) -> bool {
        self.calls.borrow_mut().push("cut");
        self.cuts
    }
}

/// A store and a clock, with helpers for the tests.
struct LeaseWorld {
    store: MemoryStore,
    clock: PausedClock,
}

const LIMITS: Limits<'static> = Limits::of(Duration::from_secs(5));

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn key() -> Key {
    Key::new("job").unwrap()
}

/// Whether two times are equal, apart from the milliseconds that tokio's timers add.
#[track_caller]
fn assert_about(took: Duration, meant: Duration) {
    assert!(
        meant <= took && took <= meant + Duration::from_millis(2),
        "{took:?} instead of {meant:?}"
    );
}

fn request() -> Request {
    Request::new(key(), Ttl::new(secs(60)).unwrap())
}

fn grant(fence: u64) -> Grant {
    let ttl = Ttl::new(secs(2)).unwrap();
    Grant {
        fence: Fence(fence),
        ttl,
        holds: 1,
        drain_delay: Duration::ZERO,
        session: None,
        permit: None,
    }
}

fn budget() -> Budget {
    Budget::new(request().ttl, None, Pace::USUAL).unwrap()
}

impl LeaseWorld {
    fn new() -> Self {
        Self {
            store: MemoryStore::default(),
            clock: PausedClock(Instant::now()),
        }
    }

    fn client(&self, faults: &[Option<CallFault>]) -> Faulty {
        Faulty {
            inner: Memory::new(self.store.clone(), Namespace::default()),
            faults: Rc::new(RefCell::new(faults.iter().copied().collect())),
            leaving: Rc::default(),
            calls: Rc::default(),
            connecting: VecDeque::new(),
            connected: Rc::default(),
            planned: VecDeque::new(),
            waits: Rc::default(),
            drain_delay: Duration::ZERO,
            transient: 0,
            other_servers: false,
            cuts: false,
            hint: Rc::default(),
        }
    }

    async fn acquire(&self, backend: &mut Faulty, patience: WaitPolicy) -> Result<Outcome<()>> {
        acquire(
            backend,
            &self.clock,
            request(),
            patience,
            LIMITS,
            pending(),
            |_: &Busy| (),
        )
        .await
    }

    async fn taken(&self, backend: &mut Faulty) -> Lease {
        match self.acquire(backend, WaitPolicy::Try).await.unwrap() {
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
