//! A relay between the client library and the servers, within this process.
//!
//! The library implements the protocol, except for some needs that the relay between it and the
//! network meets:
//! - It neither tells a session's password nor resumes a session by one. The relay reads the
//!   greeting, or puts a session into it.
//! - It ends a session with the client, or keeps it, as chosen when the client was made. Here a
//!   session ends only on request.
//! - It keeps a server that answers pings but no requests. The relay cuts the connection, and the
//!   library continues its session by way of another server.
//! - Its TLS brings a second cryptographic library. The relay uses the one that dlock has already.
//!
//! The relay passes everything else through unchanged.
//!
//! The relay listens on the loopback address, and serves only a client of this very process. That
//! client proves itself by a random number, which the client library takes for a login, and which
//! goes no further than the relay.

use std::{
    io,
    net::Ipv4Addr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWriteExt as _, copy, sink, split},
    net::{TcpListener, TcpStream},
    sync::Notify,
    task::{JoinHandle, JoinSet},
};

use super::options::{TLS, ZooKeeperOptions};
use crate::{
    backends::net::{
        self, Stream, leave,
        longest::MESSAGE,
        pump::{Frames, pass_answers, whole_frame},
    },
    lock::{Error, Kind, Result, StoreSession, random},
};

/// A relay, which ends when this value is dropped.
pub(super) struct ZkRelay {
    port: u16,
    shared: Arc<RelayShared>,
    task: JoinHandle<()>,
}

struct RelayShared {
    options: Arc<ZooKeeperOptions>,
    /// The proof that a client must give.
    secret: [u8; 16],
    /// The session for a greeting that asks for a new one.
    resume: Option<StoreSession>,
    /// The session that the servers granted.
    granted: Mutex<Option<StoreSession>>,
    /// The last reason why no server could be reached.
    failed: Mutex<Option<Error>>,
    /// Signals that the current connection must be left.
    cut: Notify,
    /// Whether the session ends once the client has sent everything.
    ending: AtomicBool,
    /// The server was told of the end, and has closed the connection.
    ended: Notify,
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ZkRelay {
    pub(super) async fn start(
        options: &Arc<ZooKeeperOptions>,
        resume: Option<StoreSession>,
    ) -> Result<Self> {
        let fail = |error| {
            Error::new(
                Kind::Unavailable,
                "no relay to the server can be set up on this host",
            )
            .source(error)
        };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .map_err(fail)?;
        let port = listener.local_addr().map_err(fail)?.port();
        let mut secret = [0; 16];
        secret[..8].copy_from_slice(&random().to_ne_bytes());
        secret[8..].copy_from_slice(&random().to_ne_bytes());
        let shared = RelayShared {
            options: Arc::clone(options),
            secret,
            resume,
            granted: Mutex::default(),
            failed: Mutex::default(),
            cut: Notify::new(),
            ending: AtomicBool::new(false),
            ended: Notify::new(),
        };
        let shared = Arc::new(shared);
        let task = tokio::spawn(Arc::clone(&shared).run(listener));
        Ok(Self { port, shared, task })
    }

    /// Returns the addresses for the client library: one per server and one more, since it tries
    /// each address once and gets another server each time. With a single server, an unanswered
    /// greeting may be lost.
    pub(super) fn addresses(&self) -> String {
        vec![format!("127.0.0.1:{}", self.port); self.shared.options.hosts.len() + 1].join(",")
    }

    /// Returns the scheme and the proof of the login with which the client library begins.
    pub(super) fn login(&self) -> (&'static str, &[u8]) {
        (SCHEME, &self.shared.secret)
    }

    /// Returns the session that was granted last.
    pub(super) fn session(&self) -> Option<StoreSession> {
        *lock(&self.shared.granted)
    }

    /// Leaves the server for another one.
    pub(super) fn cut(&self) {
        self.shared.cut.notify_waiters();
    }

    /// Makes the session end with the client's connection.
    pub(super) fn end_session(&self) {
        self.shared.ending.store(true, Ordering::Relaxed);
    }

    /// Completes once the session has ended.
    pub(super) async fn ended(&self) {
        self.shared.ended.notified().await;
    }

    /// Returns, once, why no server could be reached.
    pub(super) fn failure(&self) -> Option<Error> {
        lock(&self.shared.failed).take()
    }
}

impl Drop for ZkRelay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl RelayShared {
    async fn run(self: Arc<Self>, listener: TcpListener) {
        let mut next = usize::try_from(random() % 1024).unwrap_or_default();
        // The connections end with this task.
        let mut connections = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            next += 1;
            connections.spawn(Arc::clone(&self).serve_one(stream, next));
            while connections.try_join_next().is_some() {}
        }
    }

    async fn serve_one(self: Arc<Self>, mut client: TcpStream, nth: usize) {
        let _ = client.set_nodelay(true);
        let opening = async {
            let (hello, login) = (frame(&mut client).await?, frame(&mut client).await?);
            io::Result::Ok((hello, login))
        };
        // A stranger's connection is dropped without an answer.
        let Ok((hello, login)) = opening.await else {
            return;
        };
        let Some(xid) = self.proof_in(&login) else {
            return;
        };
        let failed = Arc::clone(&self);
        if let Err(error) = self.serve(&mut client, hello, xid, nth).await {
            *lock(&failed.failed) = Some(error);
        }
    }

    /// Returns the number of the request that contains the proof, if there is one.
    fn proof_in(&self, login: &[u8]) -> Option<[u8; 4]> {
        let int = |value: usize| u32::try_from(value).unwrap_or_default().to_be_bytes();
        let xid = login.get(4..8)?.try_into().ok()?;
        let body = [
            &int(100)[..],
            &int(0),
            &int(SCHEME.len()),
            SCHEME.as_bytes(),
            &int(16),
            &self.secret,
        ]
        .concat();
        (login.get(8..)? == body).then_some(xid)
    }

    /// Passes all data between the client and one server, another one each time. Reads the greeting
    /// on the way.
    async fn serve(
        self: Arc<Self>,
        client: &mut TcpStream,
        mut hello: Vec<u8>,
        xid: [u8; 4],
        nth: usize,
    ) -> Result<()> {
        self.put_session(&mut hello);
        let Some((answer, server, host)) = self.greet(hello, nth).await? else {
            return Ok(());
        };
        if let Some(session) = session_in(&answer, ANSWER) {
            *lock(&self.granted) = Some(session);
        }
        // The answer to the proof follows: its number, no change, no error.
        let proven = [&16_u32.to_be_bytes()[..], &xid, &[0; 8 + 4]].concat();
        if client.write_all(&[answer, proven].concat()).await.is_ok() {
            self.pass_on(client, server, host).await;
        }
        Ok(())
    }

    /// Returns the first server that answers the greeting, from this number on, and its answer. A
    /// silent server does not keep the next one from being asked. Returns `None` if all servers
    /// ended the connection.
    async fn greet(self: &Arc<Self>, hello: Vec<u8>, nth: usize) -> Result<Option<Greeted>> {
        let hosts = self.options.hosts.len();
        let mut failed = (hosts == 0).then(|| Error::new(Kind::Config, "the URL names no server"));
        let (mut greeting, mut asked, mut refused) = (JoinSet::new(), 0, false);
        let new = session_in(&hello, HELLO).is_some_and(|session| session.id == 0);
        loop {
            if asked < hosts {
                let (relay, hello) = (Arc::clone(self), hello.clone());
                let host = (nth + asked) % hosts;
                greeting.spawn(async move { relay.greet_one(host, &hello).await });
                asked += 1;
            }
            let greeted = tokio::select! {
                greeted = greeting.join_next() => greeted,
                () = silence(), if asked < hosts => continue,
            };
            match greeted {
                Some(Ok(Ok(server))) => {
                    if new {
                        tokio::spawn(end_unused(greeting));
                    }
                    return Ok(Some(server));
                }
                Some(Ok(Err(Ungreeted::Error(error)))) => failed = Some(error),
                Some(Ok(Err(Ungreeted::Closed)) | Err(_)) => refused = true,
                None => return failed.filter(|_| !refused).map_or(Ok(None), Err),
            }
        }
    }

    /// Connects to one server and sends the greeting.
    async fn greet_one(&self, nth: usize, hello: &[u8]) -> std::result::Result<Greeted, Ungreeted> {
        let (host, port) = &self.options.hosts[nth];
        let server = net::open(host, *port, self.options.tls.as_ref(), &TLS).await;
        let mut server = server.map_err(Ungreeted::Error)?;
        let greeting = async {
            server.write_all(hello).await?;
            server.flush().await?;
            frame(&mut server).await
        };
        let answer: io::Result<Vec<u8>> = greeting.await;
        answer.map(|answer| (answer, server, nth)).map_err(|_| {
            leave(host, *port);
            Ungreeted::Closed
        })
    }

    async fn pass_on(&self, client: &mut TcpStream, server: Stream, host: usize) {
        let (mut from_client, mut to_client) = client.split();
        let (mut from_server, mut to_server) = split(server);
        let ending = || self.ending.load(Ordering::Relaxed);
        {
            let up = copy(&mut from_client, &mut to_server);
            let down = async {
                let mut frames = Frames::default();
                let look = |mut bytes: &[u8], out: &mut Vec<u8>| {
                    out.extend_from_slice(bytes);
                    while frames.next(&mut bytes, length).is_some() {
                        if frames.left() > MESSAGE {
                            return false;
                        }
                    }
                    true
                };
                let _ = pass_answers(&mut from_server, &mut to_client, look).await;
                let _ = to_client.shutdown().await;
            };
            tokio::pin!(up);
            tokio::select! {
                biased;
                () = self.cut.notified() => {
                    let (host, port) = &self.options.hosts[host];
                    return leave(host, *port);
                }
                _ = &mut up => {}
                // The client may be gone already, while its last data is still on its way.
                () = down => if ending() { let _ = up.await; },
            }
        }
        if ending()
            && to_server.write_all(&END_OF_SESSION).await.is_ok()
            && to_server.flush().await.is_ok()
        {
            let _ = copy(&mut from_server, &mut sink()).await;
            self.ended.notify_one();
        }
    }

    fn put_session(&self, hello: &mut [u8]) {
        if let (Some(session), Some(0)) = (
            self.resume,
            session_in(hello, HELLO).map(|session| session.id),
        ) {
            hello[HELLO..HELLO + 8].copy_from_slice(&session.id.to_be_bytes());
            hello[HELLO + 12..HELLO + 28].copy_from_slice(&session.password);
        }
    }
}

/// A server's answer to the greeting, the connection, and the number of the host.
type Greeted = (Vec<u8>, Stream, usize);

/// Why a server did not answer the greeting.
enum Ungreeted {
    /// The server could not be reached.
    Error(Error),
    /// The server ended the connection.
    Closed,
}

/// How long a server may leave a greeting unanswered before the next server is asked too.
const SILENCE: Duration = Duration::from_millis(300);

#[allow(clippy::disallowed_methods)] // a silent server must not keep the others from answering
async fn silence() {
    tokio::time::sleep(SILENCE).await;
}

/// Ends the sessions that slower servers grant after another server was chosen. They have no nodes.
async fn end_unused(mut greeting: JoinSet<std::result::Result<Greeted, Ungreeted>>) {
    while let Some(greeted) = greeting.join_next().await {
        if let Ok(Ok((_, mut server, _))) = greeted {
            let ended = async {
                server.write_all(&END_OF_SESSION).await?;
                server.flush().await?;
                copy(&mut server, &mut sink()).await
            };
            let _: io::Result<u64> = ended.await;
        }
    }
}

/// A request to end the session: its length, its number (no answer is awaited), and its kind.
const END_OF_SESSION: [u8; 12] = [0, 0, 0, 8, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xf5];

/// The scheme of the proof's login, which no server knows.
const SCHEME: &str = "dlock-relay";

/// The offset in a frame of the session's id, its password's length and its password: after the
/// frame's length, the protocol's version, the last change seen and the timeout. In the answer they
/// follow the version and the timeout.
const HELLO: usize = 4 + 4 + 8 + 4;
const ANSWER: usize = 4 + 4 + 4;

fn session_in(frame: &[u8], at: usize) -> Option<StoreSession> {
    let id = i64::from_be_bytes(frame.get(at..at + 8)?.try_into().ok()?);
    let length = i32::from_be_bytes(frame.get(at + 8..at + 12)?.try_into().ok()?);
    let password = frame.get(at + 12..at + 28)?.try_into().ok()?;
    (length == 16).then_some(StoreSession { id, password })
}

/// Reads a whole frame, with its length before it. Greetings are short.
async fn frame(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    whole_frame(from, length, 1024).await
}

fn length(header: [u8; 4]) -> usize {
    u32::from_be_bytes(header) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::damage;

    fn shared(resume: Option<StoreSession>) -> RelayShared {
        RelayShared {
            options: Arc::new(ZooKeeperOptions::new(Vec::new())),
            secret: *b"a random number!",
            resume,
            granted: Mutex::default(),
            failed: Mutex::default(),
            cut: Notify::new(),
            ending: AtomicBool::new(false),
            ended: Notify::new(),
        }
    }

    #[test]
    fn only_a_complete_proof_is_accepted() {
        let proof = [
            &51_u32.to_be_bytes()[..],
            &7_u32.to_be_bytes(),
            &100_u32.to_be_bytes(),
            &[0; 4],
            &11_u32.to_be_bytes(),
        ]
        .concat();
        let proof = [
            &proof[..],
            b"dlock-relay",
            &16_u32.to_be_bytes(),
            b"a random number!",
        ]
        .concat();
        assert_eq!(shared(None).proof_in(&proof), Some(7_u32.to_be_bytes()));
        for at in 8..proof.len() {
            let mut other = proof.clone();
            other[at] ^= 1;
            assert_eq!(shared(None).proof_in(&other), None);
            assert_eq!(shared(None).proof_in(&proof[..at]), None);
        }
    }

    /// Any first data is a greeting that goes on, a frame that is refused, or a greeting without a
    /// session.
    #[tokio::test]
    async fn damaged_greetings_are_refused_or_passed_on() {
        let session = StoreSession {
            id: 0,
            password: [0; 16],
        };
        let hello = [
            &45_u32.to_be_bytes()[..],
            &[0; 4 + 8],
            &6000_u32.to_be_bytes(),
            &[0; 8],
            &16_u32.to_be_bytes(),
            &[0; 17],
        ]
        .concat();
        let relay = shared(Some(StoreSession {
            id: 7,
            password: *b"sixteen bytes ok",
        }));
        let (mut found, first) = (0, damage::first_seed());
        for seed in (0..damage::TRIES).map(|nth| first.wrapping_add(nth)) {
            let damaged = damage::bytes(&hello, &mut damage::Dice(seed));
            let Ok(mut answer) = frame(&mut &damaged[..]).await else {
                continue;
            };
            found += u64::from(session_in(&answer, HELLO) == Some(session));
            let length = answer.len();
            relay.put_session(&mut answer);
            let _ = (session_in(&answer, ANSWER), relay.proof_in(&answer));
            assert_eq!(answer.len(), length, "DLOCK_TEST_SEED={seed}");
        }
        assert!(found > damage::TRIES / 50, "only {found} had their session");
    }

    #[test]
    fn a_session_is_found_and_inserted_in_the_handshake() {
        let session = StoreSession {
            id: 7,
            password: *b"sixteen bytes ok",
        };
        let relay = shared(Some(session));
        // Length 45, version, last change, timeout, no session, its password, not read only.
        let mut hello = [
            &45_u32.to_be_bytes()[..],
            &[0; 4 + 8],
            &6000_u32.to_be_bytes(),
            &[0; 8],
            &16_u32.to_be_bytes(),
            &[0; 17],
        ]
        .concat();
        relay.put_session(&mut hello);
        assert_eq!(session_in(&hello, HELLO), Some(session));
        let before = hello.clone();
        shared(Some(StoreSession { id: 8, ..session })).put_session(&mut hello);
        assert_eq!(
            hello, before,
            "one that goes on with a session of its own is left alone"
        );
    }
}
