//! A relay between sqlx and the server's socket, within this process.
//!
//! sqlx speaks the protocol, except for these parts, which the relay adds:
//! - sqlx takes no stream and hides the one it opens: the guardian needs the socket, so that a
//!   session lock outlives a killed dlock.
//! - sqlx trusts the public authorities in addition to the one that a user names: the relay speaks
//!   TLS, with that authority alone.
//! - sqlx treats a notification as an error of the server: the relay takes notifications out and
//!   reports them.
//! - sqlx hides the number of the server's process, by which dlock ends a session that does not
//!   answer, and the database's encoding.
//! - sqlx stores a message of any length: the relay ends a session whose server announces a very
//!   long one.
//! - sqlx drops a session without the message that ends it, which the server would log: the relay
//!   sends that message.
//!
//! Everything else passes through unchanged. sqlx connects to a socket without a place in the file
//! system, with a random name, which serves one client of this process and is closed then.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI32, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy, split},
    net::{UnixListener, UnixStream},
    sync::Notify,
    task::JoinHandle,
};

use super::{dial::Stream, options::PORT};
use crate::{
    backends::{net::longest::MESSAGE, sql::loopback},
    lock::random,
};

/// The message that ends a session.
const TERMINATE: [u8; 5] = [b'X', 0, 0, 0, 4];
/// The message of a notification, which answers no request.
const NOTIFICATION: u8 = b'A';
/// The message with the number of the server's process, at the end of the login.
const PROCESS: u8 = b'K';
/// The message with a setting's value.
const SETTING: u8 = b'S';
/// The number of bytes that are kept of a message.
const KEPT: usize = 64;

/// The server's unsolicited messages.
#[derive(Default)]
pub(super) struct Unasked {
    /// Notified by each notification of the server.
    pub notified: Notify,
    /// The server's process.
    pub pid: AtomicI32,
    /// The database's encoding lacks some characters.
    pub narrow: AtomicBool,
    ended: AtomicBool,
    end: Notify,
}

impl Unasked {
    /// Ready when the session is over.
    pub(super) async fn ended(&self) {
        let end = self.end.notified();
        if !self.is_over() {
            end.await;
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        self.end.notify_waiters();
    }
}

/// The address to which sqlx connects.
pub(super) struct PostgresRelay {
    name: String,
    listener: UnixListener,
}

impl PostgresRelay {
    pub(super) fn bind() -> io::Result<Self> {
        let name = format!("dlock-{:016x}{:016x}", random(), random());
        // As PostgreSQL's clients name a socket in a folder.
        let listener = loopback::listen(&format!("{name}/.s.PGSQL.{PORT}"))?;
        Ok(Self { name, listener })
    }

    /// Returns the folder of the socket, for [`PORT`].
    pub(super) fn folder(&self) -> String {
        format!("\0{}", self.name)
    }

    /// Passes messages between one client and the server, until either ends.
    pub(super) fn start(self, server: Box<dyn Stream>, unasked: Arc<Unasked>) -> Passing {
        let task = tokio::spawn(async move {
            if let Ok(client) = loopback::accept(self.listener).await {
                // Either end may have failed: the session is over.
                let _ = pass(client, server, &unasked).await;
            }
            unasked.end();
        });
        Passing {
            task,
            break_off: true,
        }
    }
}

/// The task that passes messages on. It ends once sqlx has ended, or is aborted when this value is
/// dropped.
pub(super) struct Passing {
    task: JoinHandle<()>,
    /// Whether to drop messages that were not passed on yet, including the one that ends the
    /// session.
    pub break_off: bool,
}

impl Drop for Passing {
    fn drop(&mut self) {
        if self.break_off {
            self.task.abort();
        }
    }
}

async fn pass(client: UnixStream, server: Box<dyn Stream>, unasked: &Unasked) -> io::Result<()> {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = split(server);
    let asking = async {
        copy(&mut from_client, &mut to_server).await?;
        to_server.write_all(&TERMINATE).await?;
        to_server.shutdown().await
    };
    let answering = async {
        let mut messages = Messages::default();
        let (mut read, mut answers) = (vec![0; 8192], Vec::new());
        loop {
            let length = from_server.read(&mut read).await?;
            if length == 0 {
                return Ok(());
            }
            answers.clear();
            let notified = messages.read(&read[..length], &mut answers);
            if messages.left > MESSAGE {
                // sqlx would store all of it.
                return Err(io::ErrorKind::InvalidData.into());
            }
            if notified {
                unasked.notified.notify_one();
            }
            if let Some(pid) = messages.process.take() {
                unasked.pid.store(pid, Ordering::SeqCst);
            }
            if messages.narrow {
                unasked.narrow.store(true, Ordering::SeqCst);
            }
            to_client.write_all(&answers).await?;
        }
    };
    tokio::select! {
        asked = asking => asked,
        answered = answering => answered,
    }
}

/// A parser of the server's messages: a letter, a length that includes its own four bytes, and the
/// rest.
#[derive(Debug, Default)]
struct Messages {
    /// The first bytes of a message whose length has not arrived yet.
    begun: Vec<u8>,
    /// The letter of the present message, and how many of its bytes have not arrived yet.
    kind: u8,
    left: usize,
    /// The first bytes of the present message, if the relay uses them.
    said: Vec<u8>,
    /// The server's process, once the server has named it.
    process: Option<i32>,
    /// The database's encoding lacks some characters.
    narrow: bool,
}

impl Messages {
    /// Parses more bytes, and appends all but notifications to `out`. Returns true if there was a
    /// notification.
    fn read(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) -> bool {
        let mut notified = false;
        while !bytes.is_empty() {
            if self.left == 0 {
                let (begin, rest) = bytes.split_at(bytes.len().min(5 - self.begun.len()));
                self.begun.extend_from_slice(begin);
                bytes = rest;
                let &[kind, a, b, c, d] = &self.begun[..] else {
                    return notified;
                };
                // No server sends a length below four; sqlx reports it.
                self.left = (u32::from_be_bytes([a, b, c, d]) as usize).saturating_sub(4);
                self.kind = kind;
                notified |= kind == NOTIFICATION;
                if kind != NOTIFICATION {
                    out.extend_from_slice(&self.begun);
                }
                self.begun.clear();
                self.said.clear();
            }
            let (part, rest) = bytes.split_at(bytes.len().min(self.left));
            if self.kind != NOTIFICATION {
                out.extend_from_slice(part);
            }
            self.left -= part.len();
            bytes = rest;
            if matches!(self.kind, PROCESS | SETTING) {
                self.said
                    .extend_from_slice(&part[..part.len().min(KEPT - self.said.len())]);
            }
            if self.left == 0 {
                self.is_said();
            }
        }
        notified
    }

    /// Handles a complete message.
    fn is_said(&mut self) {
        match (self.kind, self.said.first_chunk()) {
            (PROCESS, Some(pid)) => self.process = Some(i32::from_be_bytes(*pid)),
            (SETTING, _) => {
                let encoding = self
                    .said
                    .strip_prefix(b"server_encoding\0")
                    .and_then(|rest| rest.split(|byte| *byte == 0).next());
                // SQL_ASCII takes any bytes.
                self.narrow |=
                    encoding.is_some_and(|encoding| !matches!(encoding, b"UTF8" | b"SQL_ASCII"));
            }
            _ => {}
        }
        self.said.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::damage;

    fn message(kind: u8, length: usize) -> Vec<u8> {
        let count = u32::try_from(length + 4).expect("short").to_be_bytes();
        [&[kind][..], &count, &vec![kind; length]].concat()
    }

    #[test]
    fn a_database_with_a_limited_encoding_is_recognized() {
        for (encoding, narrow) in [
            ("UTF8", false),
            ("SQL_ASCII", false),
            ("LATIN1", true),
            ("EUC_JP", true),
        ] {
            let said = format!("server_encoding\0{encoding}\0");
            let mut bytes = vec![SETTING];
            bytes.extend(u32::try_from(said.len() + 4).expect("short").to_be_bytes());
            bytes.extend(said.as_bytes());
            let (mut messages, mut out) = (Messages::default(), Vec::new());
            for part in bytes.chunks(7) {
                messages.read(part, &mut out);
            }
            assert_eq!((messages.narrow, out), (narrow, bytes), "{encoding}");
        }
    }

    /// Whatever a server sends goes on to sqlx, less what are notifications by their letters; and
    /// no length is believed.
    #[test]
    fn damaged_messages_are_passed_on_and_not_stored() {
        let setting = [&[SETTING, 0, 0, 0, 25][..], b"server_encoding\0UTF8\0"].concat();
        let sent = [
            setting,
            vec![PROCESS, 0, 0, 0, 12, 0, 0, 0, 7, 0, 0, 0, 9],
            message(b'Z', 1),
            message(NOTIFICATION, 30),
        ]
        .concat();
        let mut whole = 0;
        damage::each(|dice| {
            let damaged = damage::bytes(&sent, dice);
            let (mut messages, mut out) = (Messages::default(), Vec::new());
            for part in damaged.chunks(1 + dice.below(30)) {
                messages.read(part, &mut out);
                assert!(messages.said.len() <= KEPT && messages.begun.len() < 5);
            }
            assert!(out.len() <= damaged.len());
            whole += u64::from(messages.process == Some(7));
        });
        assert!(whole > damage::TRIES / 20, "only {whole} told the process");
    }

    proptest! {
        #[test]
        fn notifications_are_removed_however_they_are_split(
            all in prop::collection::vec((prop_oneof![Just(b'A'), Just(b'D'), Just(b'K'), Just(b'Z')], 0_usize..20), 0..12),
            cuts in prop::collection::vec(1_usize..9, 1..40),
        ) {
            let bytes = |(kind, length): &(u8, usize)| message(*kind, *length);
            let sent: Vec<u8> = all.iter().flat_map(bytes).collect();
            let expected: Vec<u8> = all.iter().filter(|(kind, _)| *kind != NOTIFICATION).flat_map(bytes).collect();
            let (mut messages, mut out, mut notified, mut rest) = (Messages::default(), Vec::new(), false, &sent[..]);
            for cut in cuts.iter().cycle() {
                let (part, after) = rest.split_at(rest.len().min(*cut));
                notified |= messages.read(part, &mut out);
                rest = after;
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(out, expected);
            let named = all.iter().any(|(kind, length)| *kind == PROCESS && *length >= 4);
            prop_assert_eq!(messages.process, named.then_some(i32::from_be_bytes([PROCESS; 4])));
            prop_assert_eq!(notified, all.iter().any(|(kind, _)| *kind == NOTIFICATION));
        }
    }
}
