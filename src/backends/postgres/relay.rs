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

use tokio::{net::UnixStream, sync::Notify, task::JoinSet};

use crate::backends::{
    net::{
        Stream,
        longest::MESSAGE,
        pump::{self, Frames, Part},
    },
    sql::Loopback,
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

/// Passes messages between sqlx and the server, until either ends. Aborted when the answer is
/// dropped; then messages that were not passed on yet, including the one that ends the session, are
/// dropped too.
pub(super) fn start(client: Loopback, server: Stream, unasked: Arc<Unasked>) -> JoinSet<()> {
    let mut passing = JoinSet::new();
    passing.spawn(async move {
        if let Ok(client) = client.accept().await {
            // Either end may have failed: the session is over.
            let _ = pass(client, server, &unasked).await;
        }
        unasked.end();
    });
    passing
}

async fn pass(client: UnixStream, server: Stream, unasked: &Unasked) -> io::Result<()> {
    let mut messages = Messages::default();
    let look = |bytes: &[u8], out: &mut Vec<u8>| {
        let notified = messages.read(bytes, out);
        if messages.frames.left() > MESSAGE {
            return false;
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
        true
    };
    pump::pass(client, server, Some(&TERMINATE), look).await
}

/// A parser of the server's messages: a letter, a length that includes its own four bytes, and the
/// rest.
#[derive(Debug, Default)]
struct Messages {
    frames: Frames<5>,
    /// The letter of the present message.
    kind: u8,
    /// The first bytes of the present message, if the relay uses them.
    said: Vec<u8>,
    /// The server's process, once the server has named it.
    process: Option<i32>,
    /// The database's encoding lacks some characters.
    narrow: bool,
}

/// Returns the length in a message's header. No server sends one below four; sqlx reports it.
fn length([_, a, b, c, d]: [u8; 5]) -> usize {
    (u32::from_be_bytes([a, b, c, d]) as usize).saturating_sub(4)
}

impl Messages {
    /// Parses more bytes, and appends all but notifications to `out`. Returns true if there was a
    /// notification.
    fn read(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) -> bool {
        let mut notified = false;
        while let Some(part) = self.frames.next(&mut bytes, length) {
            let part = match &part {
                Part::Header(header) => {
                    self.kind = header[0];
                    notified |= self.kind == NOTIFICATION;
                    &header[..]
                }
                Part::Body(part) => {
                    if matches!(self.kind, PROCESS | SETTING) {
                        let kept = part.len().min(KEPT - self.said.len());
                        self.said.extend_from_slice(&part[..kept]);
                    }
                    part
                }
            };
            if self.kind != NOTIFICATION {
                out.extend_from_slice(part);
            }
            if self.frames.left() == 0 {
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
                assert!(messages.said.len() <= KEPT);
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
