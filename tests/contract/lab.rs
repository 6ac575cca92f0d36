//! The tools of the cases: clients on one store, requests, and checks of answers.

use std::{sync::LazyLock, time::Duration};

use dlock::lock::{
    Attempt, Backend, Busy, Capabilities, Entry, Fence, Grant, Key, LockState, Metadata, Progress,
    Release, Renewal, Request, Result, Scope, Ttl, Wake,
};

pub use crate::support::stretched;
use crate::{
    support::processor_share,
    targets::{Kind, Target},
};

/// A lease that outlasts every case.
pub const LONG: Duration = Duration::from_secs(60);
/// How late a store may notice the end of a lease.
pub const SLACK: Duration = Duration::from_millis(150);

/// Returns the shortest lease, for cases about its end. It must outlast the requests that a case
/// makes during it, and is therefore twice as long if other programs used the processors when the
/// cases started.
pub fn short() -> Duration {
    static LENGTH: LazyLock<Duration> =
        LazyLock::new(|| Duration::from_secs(if processor_share() < 0.75 { 2 } else { 1 }));
    *LENGTH
}

/// Far less than the interval at which a waiter polls, on a busy machine too.
pub fn soon() -> Duration {
    stretched(Duration::from_millis(800))
}

/// The delay of a request that other requests must overtake, on a busy machine too.
pub fn overtaking_delay() -> Duration {
    stretched(Duration::from_millis(400))
}

/// One store and the clients that a case opens on it.
pub struct Lab {
    pub kind: Kind,
    pub target: Target,
}

impl Lab {
    pub fn new(kind: Kind) -> Self {
        Self {
            kind,
            target: Target::new(kind),
        }
    }

    /// Returns one more client, which stands for another process.
    pub async fn client(&self) -> Client {
        self.client_in("dlock").await
    }

    /// Lets time pass; returns at once where the test controls the clock.
    pub async fn pass(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    /// Waits until a short lease has ended.
    pub async fn outlast(&self, lease: Duration) {
        self.pass(lease + SLACK + self.kind.late()).await;
    }

    /// Returns another TTL to renew with; `None` where a hold can't change its TTL.
    pub async fn other_ttl(&self, length: Duration) -> Option<Duration> {
        self.client()
            .await
            .capabilities()
            .adjustable_ttl
            .then_some(length)
    }

    /// Returns how long a request for the lock that arrives after its release may keep the lock,
    /// although it is never granted.
    pub fn late_claim(&self) -> Duration {
        if self.kind.is_tair() {
            dlock::backends::tair::CLAIMED
        } else {
            Duration::ZERO
        }
    }

    /// Returns a request for a hold that expires after its TTL on this store, whatever its process
    /// does.
    pub fn expiring(&self, key: &Key, lease: Duration) -> Request {
        Request {
            detached: self.kind.lasts_with_its_process(),
            ..request(key, lease)
        }
    }
}

pub fn key(name: &str) -> Key {
    Key::new(name).unwrap_or_else(|error| panic!("{name:?}: {error}"))
}

pub fn ttl(length: Duration) -> Ttl {
    Ttl::new(length).expect("a TTL")
}

/// Returns a request with a new token for an exclusive hold, without waiting.
pub fn request(key: &Key, lease: Duration) -> Request {
    Request::new(key.clone(), ttl(lease))
}

/// Returns a request with a new token that queues while the lock is busy.
pub fn waiting(key: &Key, lease: Duration) -> Request {
    Request {
        waiting: true,
        ..request(key, lease)
    }
}

/// Returns a request for a hold nested in that of `outer`.
pub fn nested(outer: &Request) -> Request {
    Request {
        token: outer.token.nested(),
        entry: Entry::Reenter,
        ..outer.clone()
    }
}

pub fn runner(host: &str) -> Metadata {
    Metadata {
        host: Some(host.into()),
        user: Some("ana".into()),
        pid: Some(4711),
        command: Some("report.sh".into()),
        description: Some("v2.3 \"rollout\" \u{2600}".into()),
        ..Metadata::default()
    }
}

/// Asks again, as the core does, if the store gave up within its short time limit: no majority of
/// Redlock's servers answered, or the transactions in front of this one took longer than a
/// statement of MySQL waits for a row. The whole machine may have stalled.
pub async fn unless_stalled<T>(mut ask: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    let stalled = |text: &str| {
        text.contains("no answer in time")
            || text.contains("locked by another client's transaction")
    };
    for _ in 0..20 {
        match ask().await {
            Err(error) if error.is_transient() && stalled(&error.to_string()) => {}
            answer => return answer,
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    ask().await
}

/// One client. The methods panic on an unexpected answer, which fails the case.
pub struct Client(pub Box<dyn Backend>);

impl Client {
    pub fn capabilities(&self) -> Capabilities {
        self.0.identity().capabilities.clone()
    }

    pub async fn attempt(&mut self, request: &Request) -> Attempt {
        for _ in 0..20 {
            let began = std::time::Instant::now();
            match unless_stalled(async || self.0.try_acquire(request).await).await {
                // A session ends after a lease without a request, and the machine may stall for a
                // short one between two of this attempt's.
                Err(error) if error.is_transient() && began.elapsed() >= request.ttl.get() => {}
                // Two cases of this process connected in the same instant, which two dlock
                // processes can't.
                Err(error)
                    if error
                        .to_string()
                        .contains("the connection's socket is not to be found") => {}
                answer => return answer.unwrap_or_else(|error| panic!("acquire: {error:?}")),
            }
        }
        panic!("acquire: the connection could not be identified")
    }

    /// Takes a lock that must be free. Repeats the request, as the core does, while the lock is
    /// busy only in passing.
    pub async fn take(&mut self, request: &Request) -> Grant {
        let until = tokio::time::Instant::now() + stretched(Duration::from_millis(100));
        let mut attempt = self.attempt(request).await;
        while let Attempt::Busy(Busy {
            transient: true, ..
        }) = attempt
        {
            let left = until.saturating_duration_since(tokio::time::Instant::now());
            if left.is_zero() {
                break;
            }
            self.wait(request, left).await;
            attempt = self.attempt(request).await;
            self.leave_queue(request).await;
        }
        match attempt {
            Attempt::Granted(grant) => grant,
            other => panic!("{} should have been free: {other:?}", request.key),
        }
    }

    /// Requests a lock that must be busy, and returns the answer.
    pub async fn refused(&mut self, request: &Request) -> Busy {
        match self.attempt(request).await {
            Attempt::Busy(busy) => busy,
            other => panic!("{} should have been busy: {other:?}", request.key),
        }
    }

    /// Takes a long hold of a lock that must be free, and returns the request.
    pub async fn hold(&mut self, key: &Key) -> Request {
        let request = request(key, LONG);
        self.take(&request).await;
        request
    }

    pub async fn renew(&mut self, of: &Request, lease: Option<Duration>) -> Renewal {
        let answer = unless_stalled(async || {
            self.0
                .renew(&of.key, &of.token, lease.map(ttl).into())
                .await
        })
        .await;
        answer.unwrap_or_else(|error| panic!("renew: {error:?}"))
    }

    /// Renews a hold that must exist, and returns its fence.
    pub async fn renewed(&mut self, of: &Request, lease: Option<Duration>) -> Fence {
        match self.renew(of, lease).await {
            Renewal::Renewed { fence, .. } => fence,
            other => panic!("{} should have been renewed: {other:?}", of.key),
        }
    }

    pub async fn release(&mut self, of: &Request, scope: Scope) -> Release {
        let answer =
            unless_stalled(async || self.0.release(&of.key, &of.token, &scope.into()).await).await;
        answer.unwrap_or_else(|error| panic!("release: {error:?}"))
    }

    /// Releases a hold that must be the only one.
    pub async fn free(&mut self, of: &Request) {
        assert_eq!(
            self.release(of, Scope::Hold).await,
            Release::Released,
            "{}",
            of.key
        );
    }

    pub async fn wait(&mut self, of: &Request, at_most: Duration) -> Wake {
        self.0
            .wait(of, at_most)
            .await
            .unwrap_or_else(|error| panic!("wait: {error:?}"))
    }

    pub async fn leave_queue(&mut self, of: &Request) {
        self.0
            .leave_queue(of)
            .await
            .unwrap_or_else(|error| panic!("leave_queue: {error:?}"));
    }

    pub async fn inspect(&mut self, key: &Key) -> LockState {
        let answer = unless_stalled(async || self.0.inspect(key).await).await;
        answer.unwrap_or_else(|error| panic!("inspect: {error:?}"))
    }

    /// Returns the remaining lease of a lock that must have one holder.
    pub async fn left(&mut self, key: &Key) -> Duration {
        let state = self.inspect(key).await;
        assert_eq!(state.holders.len(), 1, "{state:?}");
        state.holders[0].expires_in.expect("an expiry")
    }

    /// Returns the listed keys.
    pub async fn keys(&mut self, start: &str) -> Vec<String> {
        let found = unless_stalled(async || self.0.list(start, &Progress::default()).await).await;
        let found = found.unwrap_or_else(|error| panic!("list: {error:?}"));
        found
            .into_iter()
            .map(|state| state.key.to_string())
            .collect()
    }

    /// Waits for the lock as the core does: requests, sleeps until woken, requests again.
    pub async fn wait_for(&mut self, request: &Request, poll_interval: Duration) -> Grant {
        loop {
            match self.attempt(request).await {
                Attempt::Granted(grant) => {
                    self.leave_queue(request).await;
                    return grant;
                }
                Attempt::Busy(_) => {
                    self.wait(request, poll_interval).await;
                }
                other => panic!("{}: {other:?}", request.key),
            }
        }
    }
}
