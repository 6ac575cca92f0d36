//! What cases are written with: clients on one store, requests, and answers that must be so or so.

use std::time::Duration;

use dlock::lock::{
    Attempt, Backend, Busy, Capabilities, Entry, Fence, Grant, Key, LockState, Metadata, Release, Renewal, Request, Scope, Ttl, Wake,
};

pub use crate::support::stretched;
use crate::targets::{Kind, Server, Target, etcd, mariadb, postgres, redis, redlock, tair, zookeeper};

/// The shortest lease there is: what cases about its end are run with.
pub const SHORT: Duration = Duration::from_secs(1);
/// A lease that outlasts every case.
pub const LONG: Duration = Duration::from_secs(60);
/// How late a store may be to see that a lease is over.
pub const SLACK: Duration = Duration::from_millis(150);
/// Far less than the time after which a waiter looks by itself, on a busy machine too.
pub fn soon() -> Duration {
    stretched(Duration::from_millis(800))
}

/// How much later a request arrives that others are to get in before, on a busy machine too.
pub fn overtaken() -> Duration {
    stretched(Duration::from_millis(400))
}

/// One store and the clients that a case opens on it.
pub struct Lab {
    pub kind: Kind,
    pub target: Box<dyn Target>,
}

impl Lab {
    pub fn new(kind: Kind) -> Self {
        Self { kind, target: kind.make() }
    }

    /// One more client, as another process would be.
    pub async fn client(&self) -> Client {
        self.client_in("dlock").await
    }

    pub async fn client_in(&self, namespace: &str) -> Client {
        Client(self.target.open(namespace).await)
    }

    /// Lets time pass; at once where the clock is ours.
    pub async fn pass(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    /// Lets a short lease end.
    pub async fn outlast(&self, lease: Duration) {
        self.pass(lease + SLACK + self.kind.late()).await;
    }

    /// Another TTL to renew with, where one can be asked for; that of the hold otherwise.
    pub async fn other_ttl(&self, length: Duration) -> Option<Duration> {
        self.client().await.capabilities().adjustable_ttl.then_some(length)
    }

    /// The server of a case that needs one.
    pub fn server(&self) -> &dyn Server {
        self.target.server().expect("a case for stores with a server")
    }

    /// The database of a case that runs on MariaDB only.
    pub fn mariadb(&self) -> &mariadb::Target {
        self.target.mariadb().expect("a case for MariaDB")
    }

    /// The database of a case that runs on PostgreSQL only.
    pub fn postgres(&self) -> &postgres::Target {
        self.target.postgres().expect("a case for PostgreSQL")
    }

    /// The server of a case that runs on Redis only.
    pub fn redis(&self) -> &redis::Target {
        self.target.redis().expect("a case for Redis")
    }

    /// The server of a case that runs on Tair only.
    pub fn tair(&self) -> &tair::Target {
        self.target.tair().expect("a case for Tair")
    }

    /// The servers of a case that runs on Redlock only.
    pub fn redlock(&self) -> &redlock::Target {
        self.target.redlock().expect("a case for Redlock")
    }

    /// The etcd of a case that runs on etcd only.
    pub fn etcd(&self) -> &etcd::Target {
        self.target.etcd().expect("a case for etcd")
    }

    /// The servers of a case that runs on ZooKeeper only.
    pub fn zookeeper(&self) -> &zookeeper::Target {
        self.target.zookeeper().expect("a case for ZooKeeper")
    }

    /// A request for a hold that ends with its TTL on this store, whatever its process does.
    pub fn expiring(&self, key: &Key, lease: Duration) -> Request {
        Request { detached: self.kind.lasts_with_its_process(), ..request(key, lease) }
    }
}

pub fn key(name: &str) -> Key {
    Key::new(name).unwrap_or_else(|error| panic!("{name:?}: {error}"))
}

pub fn ttl(length: Duration) -> Ttl {
    Ttl::new(length).expect("a TTL")
}

/// A request with a new token for an exclusive hold, without waiting.
pub fn request(key: &Key, lease: Duration) -> Request {
    Request::new(key.clone(), ttl(lease))
}

/// The same, standing in the queue while the lock is busy.
pub fn waiting(key: &Key, lease: Duration) -> Request {
    Request { waiting: true, ..request(key, lease) }
}

/// A hold nested in that of `outer`.
pub fn nested(outer: &Request) -> Request {
    Request { token: outer.token.nested(), entry: Entry::Reenter, ..outer.clone() }
}

pub fn who(host: &str) -> Metadata {
    Metadata {
        host: Some(host.into()),
        user: Some("ana".into()),
        pid: Some(4711),
        command: Some("report.sh".into()),
        description: Some("v2.3 \"rollout\" \u{2600}".into()),
        ..Metadata::default()
    }
}

/// One client; a helper's failure is the case's.
pub struct Client(pub Box<dyn Backend>);

impl Client {
    pub fn capabilities(&self) -> Capabilities {
        self.0.identity().capabilities.clone()
    }

    pub async fn attempt(&mut self, request: &Request) -> Attempt {
        for _ in 0..20 {
            match self.0.try_acquire(request).await {
                // Two cases of this process have connected in the same instant, as no two dlocks can.
                Err(error) if error.to_string().contains("the connection's socket is not to be found") => {}
                answer => return answer.unwrap_or_else(|error| panic!("acquire: {error:?}")),
            }
        }
        panic!("acquire: no connection was told from the others")
    }

    /// Takes what must be free; asks again, as the core does, while it is busy only in passing.
    pub async fn take(&mut self, request: &Request) -> Grant {
        let until = tokio::time::Instant::now() + Duration::from_millis(100);
        let mut attempt = self.attempt(request).await;
        while let Attempt::Busy(Busy { transient: true, .. }) = attempt {
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

    /// Meets a lock that must be held.
    pub async fn refused(&mut self, request: &Request) -> Busy {
        match self.attempt(request).await {
            Attempt::Busy(busy) => busy,
            other => panic!("{} should have been busy: {other:?}", request.key),
        }
    }

    /// Takes a long hold of what must be free, and says what it is released with.
    pub async fn hold(&mut self, key: &Key) -> Request {
        let request = request(key, LONG);
        self.take(&request).await;
        request
    }

    pub async fn renew(&mut self, of: &Request, lease: Option<Duration>) -> Renewal {
        self.0.renew(&of.key, &of.token, lease.map(ttl).into()).await.unwrap_or_else(|error| panic!("renew: {error:?}"))
    }

    /// Renews what must be held, and returns its fence.
    pub async fn renewed(&mut self, of: &Request, lease: Option<Duration>) -> Fence {
        match self.renew(of, lease).await {
            Renewal::Renewed { fence, .. } => fence,
            other => panic!("{} should have been renewed: {other:?}", of.key),
        }
    }

    pub async fn release(&mut self, of: &Request, scope: Scope) -> Release {
        self.0.release(&of.key, &of.token, &scope.into()).await.unwrap_or_else(|error| panic!("release: {error:?}"))
    }

    /// Gives back what must be held once.
    pub async fn free(&mut self, of: &Request) {
        assert_eq!(self.release(of, Scope::Hold).await, Release::Released, "{}", of.key);
    }

    pub async fn wait(&mut self, of: &Request, at_most: Duration) -> Wake {
        self.0.wait(of, at_most).await.unwrap_or_else(|error| panic!("wait: {error:?}"))
    }

    pub async fn leave_queue(&mut self, of: &Request) {
        self.0.leave_queue(of).await.unwrap_or_else(|error| panic!("leave_queue: {error:?}"));
    }

    pub async fn inspect(&mut self, key: &Key) -> LockState {
        self.0.inspect(key).await.unwrap_or_else(|error| panic!("inspect: {error:?}"))
    }

    /// What is left of the lease of a lock that must be held.
    pub async fn left(&mut self, key: &Key) -> Duration {
        let state = self.inspect(key).await;
        assert_eq!(state.holders.len(), 1, "{state:?}");
        state.holders[0].expires_in.expect("a lease that ends")
    }

    /// The keys of a listing.
    pub async fn keys(&mut self, start: &str) -> Vec<String> {
        let found = self.0.list(start).await.unwrap_or_else(|error| panic!("list: {error:?}"));
        found.into_iter().map(|state| state.key.to_string()).collect()
    }

    /// Waits for its turn as the core does: asks, sleeps until woken, asks again.
    pub async fn wait_for(&mut self, request: &Request, looks_by_itself_after: Duration) -> Grant {
        loop {
            match self.attempt(request).await {
                Attempt::Granted(grant) => {
                    self.leave_queue(request).await;
                    return grant;
                }
                Attempt::Busy(_) => {
                    self.wait(request, looks_by_itself_after).await;
                }
                other => panic!("{}: {other:?}", request.key),
            }
        }
    }
}
