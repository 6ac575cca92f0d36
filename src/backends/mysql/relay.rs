//! A relay between sqlx and the server's socket, within this process.
//!
//! sqlx speaks the protocol, except for these parts, which the relay adds:
//! - sqlx takes no stream and hides the one it opens: the guardian needs the socket, so that a
//!   session lock outlives a killed dlock.
//! - sqlx connects to one address of a name after the other, and waits for the resolver: the relay
//!   connects as to all other stores.
//! - sqlx trusts the public authorities in addition to the one that a user names: the relay speaks
//!   TLS, with that authority alone.
//! - sqlx stores an answer of any length: the relay ends a session whose server sends a very long
//!   one.
//!
//! For TLS, the relay changes three parts of the login:
//! - The relay removes the offer of TLS from the server's greeting.
//! - The relay first sends the start of sqlx's answer by itself, which requests TLS, and increments
//!   the answer's number.
//! - sqlx would encrypt a whole password, since its connection is in clear. The relay asks sqlx for
//!   the plain password instead: the connection to the server is encrypted by then, and verified as
//!   the user asked.
//!
//! Everything else passes through unchanged. sqlx connects to a socket without a place in the file
//! system, with a random name, which serves one client of this process and is closed then.

use std::{io, os::fd::OwnedFd};

use tokio::{
    io::{AsyncRead, AsyncWriteExt as _},
    net::UnixStream,
    sync::oneshot,
    task::JoinSet,
};

use super::{failure, options::TLS};
use crate::{
    backends::{
        net::{
            self, Stream,
            longest::MESSAGE,
            pump::{self, Frames},
            tls::Handshake,
        },
        sql::{Loopback, SqlOptions, SqlServer, TlsMode},
    },
    lock::{Effect, Error, Result},
};

/// The flag of a server, or a client, that can speak TLS.
const CAN_TLS: u16 = 0x0800;
/// The length of the first part of a client's answer, which by itself requests TLS.
const ASKING: usize = 32;
/// The first byte of a packet that accepts the login or a statement, and of one that refuses it.
const OK: u8 = 0;
const REFUSED: u8 = 0xff;
/// The first byte of a packet that ends the rows of a result.
const END: u8 = 0xfe;
/// The packet with which the server asks for the whole password.
const WHOLE_PASSWORD: [u8; 2] = [1, 4];
/// The packet that asks a client for the plain password.
const ASK_FOR_IT: &[u8] = b"\xfemysql_clear_password\0";
/// A login method that always wants the whole password.
const SHA256: &[u8] = b"\xfesha256_password\0";
/// A packet of this length is continued by the next one.
const CONTINUED: usize = 0xff_ff_ff;
/// The most columns of a result: the largest number that one byte can have.
const COLUMNS: u8 = 250;
/// The longest description of a column.
const COLUMN: usize = 16 << 10;

/// A running relay. It ends with sqlx, with the server, or when this value is dropped.
pub(super) struct MysqlRelay {
    /// The address to which sqlx connects.
    pub path: String,
    /// Whether the connection to the server is encrypted.
    pub encrypts: bool,
    _task: JoinSet<()>,
    failed: oneshot::Receiver<Error>,
}

impl MysqlRelay {
    /// Connects to the server, and waits for sqlx in a task. Returns a duplicate of the server's
    /// socket too.
    pub(super) async fn start(options: &SqlOptions) -> Result<(Self, OwnedFd)> {
        let handshake = options.handshake(false, &TLS)?;
        let mut server = match &options.server {
            SqlServer::Unix { path, .. } => net::connect_unix(path).await?,
            SqlServer::Tcp { host, port } => net::connect(host, *port).await?,
        };
        let socket = net::socket_of(&server)?;
        let mut greeting = read(&mut server).await.map_err(unreachable)?;
        let offered = greeting.payload().first() == Some(&REFUSED)
            || handshake.is_some() && greeting.take_tls_away();
        if handshake.is_some() && !offered && options.tls != TlsMode::Prefer {
            return Err(TLS.no_tls());
        }
        let handshake = handshake.filter(|_| offered);
        let encrypts = handshake.is_some();
        let loopback = Loopback::listen("")?;
        let path = loopback.path.clone();
        let (tell, failed) = oneshot::channel();
        let mut task = JoinSet::new();
        task.spawn(async move {
            let Ok(mut client) = loopback.accept().await else {
                return;
            };
            match log_in(&mut client, server, greeting, handshake).await {
                Ok(Some(server)) => {
                    // Either end may have failed: the session is over.
                    let _ = pass(client, server).await;
                }
                Ok(None) => {}
                // The error arrives before sqlx sees the end of its connection.
                Err(error) => drop(tell.send(error)),
            }
        });
        Ok((
            Self {
                path,
                encrypts,
                _task: task,
                failed,
            },
            socket,
        ))
    }

    /// Returns the relay's own reason why sqlx could not log in.
    pub(super) fn failure(&mut self) -> Option<Error> {
        self.failed.try_recv().ok()
    }
}

/// Passes everything on until either end fails, or the server sends too much.
async fn pass(client: UnixStream, server: Stream) -> io::Result<()> {
    let mut answers = Answers::default();
    let look = |bytes: &[u8], out: &mut Vec<u8>| {
        out.extend_from_slice(bytes);
        answers.read(bytes)
    };
    pump::pass(client, server, None, look).await
}

/// A parser of the server's answers: packets with a header of four bytes, which make up messages.
#[derive(Debug, Default)]
struct Answers {
    frames: Frames<4>,
    /// Whether the next packet continues the present one.
    continued: bool,
    /// The first byte of the present message, and its length so far.
    first: Option<u8>,
    length: usize,
    part: Part,
}

/// The part of an answer that comes next.
#[derive(Debug, Default)]
enum Part {
    /// The first message of a result.
    #[default]
    Result,
    /// The descriptions of so many columns.
    Columns(u8),
    Rows,
}

impl Answers {
    /// Parses more bytes. Returns false if the server sends a longer message, or more columns, than
    /// any answer to dlock has.
    fn read(&mut self, mut bytes: &[u8]) -> bool {
        while let Some(part) = self.frames.next(&mut bytes, length) {
            match part {
                pump::Part::Header(_) => {
                    self.continued = self.frames.left() == CONTINUED;
                    self.length += self.frames.left();
                }
                pump::Part::Body(part) => self.first = self.first.or(part.first().copied()),
            }
            let most = if matches!(self.part, Part::Columns(_)) {
                COLUMN
            } else {
                MESSAGE
            };
            let is_whole = self.frames.left() == 0 && !self.continued;
            if self.length > most || is_whole && !self.next_part() {
                return false;
            }
        }
        true
    }

    /// Handles a complete message.
    fn next_part(&mut self) -> bool {
        self.length = 0;
        self.part = match (&self.part, self.first.take()) {
            (Part::Result, None | Some(OK | REFUSED))
            | (Part::Columns(2..), Some(REFUSED))
            | (Part::Rows, Some(END | REFUSED)) => Part::Result,
            (Part::Result, Some(columns)) if columns > COLUMNS => return false,
            (Part::Result, Some(columns)) => Part::Columns(columns),
            (Part::Columns(left @ 2..), _) => Part::Columns(left - 1),
            (Part::Columns(_) | Part::Rows, _) => Part::Rows,
        };
        true
    }
}

/// Passes the login through, and encrypts the connection before it. Returns `None` if sqlx or the
/// server ended it, which sqlx reports itself.
async fn log_in(
    client: &mut UnixStream,
    mut server: Stream,
    greeting: Packet,
    handshake: Option<Handshake>,
) -> Result<Option<Stream>> {
    if client.write_all(&greeting.0).await.is_err() {
        return Ok(None);
    }
    let Ok(mut answer) = read(client).await else {
        return Ok(None);
    };
    let encrypts = handshake.is_some();
    if let Some(handshake) = handshake {
        let asking = answer
            .asking_for_tls()
            .ok_or_else(|| failure::unreadable().effect(Effect::NotApplied))?;
        send(&mut server, &asking).await?;
        server = net::encrypt(server, handshake).await?;
    }
    loop {
        send(&mut server, &answer).await?;
        loop {
            let mut packet = read(&mut server).await.map_err(unreachable)?;
            if encrypts {
                packet.ask_for_the_password_as_it_is();
            }
            if client.write_all(&packet.0).await.is_err() {
                return Ok(None);
            }
            match packet.payload() {
                [OK, ..] => return Ok(Some(server)),
                // sqlx has the refusal.
                [REFUSED, ..] => return Ok(None),
                // The server accepted the password, and continues.
                [1, 3] => {}
                _ => break,
            }
        }
        let Ok(reply) = read(client).await else {
            return Ok(None);
        };
        answer = reply;
    }
}

async fn send(server: &mut Stream, packet: &Packet) -> Result<()> {
    server.write_all(&packet.0).await.map_err(unreachable)?;
    server.flush().await.map_err(unreachable)
}

/// Returns the error of a connection without a login. A server that refuses dlock's certificate
/// says so only after the handshake.
fn unreachable(error: io::Error) -> Error {
    TLS.failure(error)
}

/// A packet with its header: three bytes of length, and its number within the exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Packet(Vec<u8>);

impl Packet {
    fn payload(&self) -> &[u8] {
        &self.0[4..]
    }

    fn put(&mut self, payload: &[u8]) {
        let length = u32::try_from(payload.len())
            .unwrap_or_default()
            .to_le_bytes();
        self.0.truncate(4);
        self.0[..3].copy_from_slice(&length[..3]);
        self.0.extend_from_slice(payload);
    }

    /// Removes the offer of TLS from a greeting: a version, the server's version up to a zero, the
    /// session's number, eight bytes of a nonce, a zero, and the lower half of the flags. Returns
    /// false if the server offers no TLS.
    fn take_tls_away(&mut self) -> bool {
        let Some(end) = self.payload().iter().skip(1).position(|byte| *byte == 0) else {
            return false;
        };
        let at = 4 + 1 + end + 1 + 4 + 8 + 1;
        let Some(&[low, high]) = self.0.get(at..at + 2) else {
            return false;
        };
        let can = u16::from_le_bytes([low, high]);
        self.0[at..at + 2].copy_from_slice(&(can & !CAN_TLS).to_le_bytes());
        can & CAN_TLS != 0
    }

    /// Returns the packet that requests TLS before a client's answer, and increments the answer's
    /// number.
    fn asking_for_tls(&mut self) -> Option<Self> {
        let flags = u16::from_le_bytes(*self.payload().first_chunk()?) | CAN_TLS;
        self.0[4..6].copy_from_slice(&flags.to_le_bytes());
        let mut asking = Self(self.0[..4].to_vec());
        asking.put(self.payload().get(..ASKING)?);
        self.0[3] = self.0[3].wrapping_add(1);
        Some(asking)
    }

    /// See [`WHOLE_PASSWORD`].
    fn ask_for_the_password_as_it_is(&mut self) {
        if self.payload() == WHOLE_PASSWORD || self.payload().starts_with(SHA256) {
            self.put(ASK_FOR_IT);
        }
    }
}

/// Reads the next packet. A login has no long packets.
async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Packet> {
    let packet = pump::whole_frame(stream, length, 0xffff).await;
    packet.map(Packet)
}

/// Returns the length in a packet's header.
fn length([a, b, c, _]: [u8; 4]) -> usize {
    u32::from_le_bytes([a, b, c, 0]) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::damage;

    fn packet(number: u8, payload: &[u8]) -> Packet {
        let mut packet = Packet(vec![0, 0, 0, number]);
        packet.put(payload);
        packet
    }

    /// Two results, a statement without rows and an error, as a server answers a batch.
    fn answer() -> Vec<u8> {
        let result = [
            packet(1, &[2]),
            packet(2, b"\x03def"),
            packet(3, b"\x03def"),
            packet(4, b"\xfbxx"),
            packet(5, b"\0"),
            packet(6, b"\xfe\0\0"),
        ];
        let all = [
            &result[..],
            &[packet(7, &[OK, 0, 0])],
            &result,
            &[packet(8, b"\xff\x10\x04#42000")],
        ]
        .concat();
        all.into_iter().flat_map(|packet| packet.0).collect()
    }

    #[test]
    fn an_answer_passes_in_any_pieces() {
        let answer = answer();
        for size in 1..12 {
            let mut answers = Answers::default();
            assert!(answer.chunks(size).all(|part| answers.read(part)));
            assert!(
                matches!(answers.part, Part::Result) && answers.frames.is_empty(),
                "{answers:?}"
            );
        }
    }

    #[test]
    fn no_answer_is_long() {
        let long = [0xff, 0xff, 0xff, 0];
        let column = [packet(1, &[1]).0, vec![1, 0x80, 0, 2, 3]].concat();
        let many = packet(1, b"\xfe\0\0\0\0\0\x01\0\0").0;
        for begin in [
            &long[..],
            &[packet(1, &[1]).0, packet(2, b"\x03def").0, long.to_vec()].concat(),
            &column,
            &many,
        ] {
            assert!(!Answers::default().read(begin), "{begin:?}");
        }
        // A message in several packets.
        let mut answers = Answers {
            part: Part::Rows,
            ..Answers::default()
        };
        let first = [&[0xff, 0xff, 0xff, 0][..], &vec![b'x'; 0xff_ff_ff]].concat();
        assert!(first.chunks(8192).any(|part| !answers.read(part)));
    }

    #[test]
    fn damaged_answers_are_not_stored() {
        let sent = answer();
        damage::each(|dice| {
            let mut answers = Answers::default();
            for part in damage::bytes(&sent, dice).chunks(1 + dice.below(30)) {
                if !answers.read(part) {
                    break;
                }
            }
        });
    }

    #[test]
    fn a_greeting_loses_only_its_tls_offer() {
        let greeting = |low: u8, high: u8| {
            packet(
                0,
                &[
                    b"\x0a9.7.4\0\x07\0\0\0nonce678\0".as_slice(),
                    &[low, high],
                    b"rest",
                ]
                .concat(),
            )
        };
        let mut with = greeting(0xff, 0xff);
        assert!(with.take_tls_away());
        assert_eq!(with, greeting(0xff, 0xf7));
        assert!(!with.take_tls_away());
        assert!(!packet(0, b"\x0a9.7").take_tls_away());
    }

    /// Damaged bytes are a packet or an error, and a changed packet stays a packet.
    #[tokio::test]
    async fn damaged_packets_are_refused_or_passed_on() {
        let greeting = packet(0, b"\x0a11.4.2\0\x07\0\0\0nonce678\0\xff\xffrest").0;
        let answer = packet(1, &[&[1; ASKING][..], b"root\0"].concat()).0;
        let asks = packet(2, b"\xfesha256_password\0nonce").0;
        let mut seed = damage::first_seed();
        let mut read_whole = 0;
        for _ in 0..damage::TRIES {
            seed = seed.wrapping_add(1);
            let mut dice = damage::Dice(seed);
            let damaged = damage::bytes([&greeting, &answer, &asks][dice.below(3)], &mut dice);
            let Ok(mut packet) = read(&mut &damaged[..]).await else {
                continue;
            };
            read_whole += 1;
            let is_whole = |packet: &Packet| {
                usize::from(u16::from_le_bytes([packet.0[0], packet.0[1]]))
                    == packet.payload().len()
            };
            packet.take_tls_away();
            packet.ask_for_the_password_as_it_is();
            let asking = packet.asking_for_tls();
            assert!(
                is_whole(&packet) && asking.is_none_or(|asking| is_whole(&asking)),
                "DLOCK_TEST_SEED={seed}"
            );
        }
        assert!(
            read_whole > damage::TRIES / 20,
            "only {read_whole} could be read at all"
        );
    }

    #[test]
    fn the_tls_request_starts_like_the_login_answer() {
        let mut answer = packet(1, &[&[1; ASKING][..], b"root\0"].concat());
        let asking = answer.asking_for_tls().expect("a begin");
        let flags = [&[1, 1 | 0x08][..], &[1; ASKING - 2]].concat();
        assert_eq!(asking, packet(1, &flags));
        assert_eq!(answer, packet(2, &[&flags, b"root\0".as_slice()].concat()));
        assert!(packet(1, b"short").asking_for_tls().is_none());
    }

    #[test]
    fn a_full_authentication_becomes_a_cleartext_password_request() {
        for wants in [&WHOLE_PASSWORD[..], b"\xfesha256_password\0nonce"] {
            let mut asked = packet(4, wants);
            asked.ask_for_the_password_as_it_is();
            assert_eq!(asked, packet(4, ASK_FOR_IT));
        }
        let mut other = packet(4, b"\xfemysql_native_password\0nonce");
        other.ask_for_the_password_as_it_is();
        assert_eq!(other, packet(4, b"\xfemysql_native_password\0nonce"));
    }
}
