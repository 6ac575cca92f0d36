//! A relay between sqlx and a server: for a host name, and for a certificate authority that the user names.
//!
//! sqlx connects to one address of a name after the other, and waits for the resolver. So this module connects as to all other stores,
//! and passes everything through.
//!
//! sqlx always trusts the public authorities in addition to a named one. For a named one, this module speaks TLS to the server too, and
//! sqlx connects in clear to a socket within this process. Then the relay changes three parts of the protocol:
//! - The relay removes the offer of TLS from the server's greeting.
//! - The relay first sends the start of sqlx's answer by itself, which requests TLS, and increments the answer's number.
//! - sqlx would encrypt a whole password, since its connection is in clear. The relay asks sqlx for the plain password
//!   instead: the connection to the server is encrypted and the server verified by then.
//!
//! After the login everything passes through unchanged. sqlx connects to a socket without a place in the file system, with a
//! random name, which serves one client of this process and is closed then.

use std::{
    io,
    net::IpAddr,
    os::fd::{AsFd as _, OwnedFd},
};

use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, copy, split},
    net::{TcpStream, UnixStream},
    sync::oneshot,
    task::JoinHandle,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::failure;
use crate::{
    backends::{
        net,
        sql::{SqlOptions, SqlServer, TlsMode, loopback, tls},
    },
    lock::{Effect, Error, Kind, Result, random},
};

/// The flag of a server, or a client, that can speak TLS.
const CAN_TLS: u16 = 0x0800;
/// The length of the first part of a client's answer, which by itself requests TLS.
const ASKING: usize = 32;
/// The first byte of a packet that accepts the login, and of one that refuses it.
const OK: u8 = 0;
const REFUSED: u8 = 0xff;
/// The packet with which the server asks for the whole password.
const WHOLE_PASSWORD: [u8; 2] = [1, 4];
/// The packet that asks a client for the plain password.
const ASK_FOR_IT: &[u8] = b"\xfemysql_clear_password\0";
/// A login method that always wants the whole password.
const SHA256: &[u8] = b"\xfesha256_password\0";

/// A running relay. It ends with sqlx, with the server, or when this value is dropped.
pub(super) struct MysqlRelay {
    /// The address to which sqlx connects.
    pub path: String,
    /// A duplicate of the server's socket.
    pub socket: OwnedFd,
    task: JoinHandle<()>,
    failed: oneshot::Receiver<Error>,
}

impl MysqlRelay {
    /// Whether sqlx can't connect as `options` say, so that they need the relay.
    pub(super) fn is_needed(options: &SqlOptions) -> bool {
        matches!(&options.server, SqlServer::Tcp { host, .. } if host.parse::<IpAddr>().is_err()) || Self::encrypts(options)
    }

    /// Whether the relay speaks TLS, instead of sqlx.
    pub(super) fn encrypts(options: &SqlOptions) -> bool {
        options.files.ca_file.is_some() && matches!(options.tls, TlsMode::VerifyCa | TlsMode::VerifyFull)
    }

    /// Connects to the server, and waits for sqlx in a task.
    pub(super) async fn start(options: &SqlOptions) -> Result<Self> {
        let SqlServer::Tcp { host, port } = &options.server else {
            return Err(Error::new(Kind::Internal, "TLS over a Unix socket"));
        };
        let tls = if Self::encrypts(options) { Some(tls::connector(options, host)?) } else { None };
        let server = net::dial(host, *port).await?;
        let socket = server.as_fd().try_clone_to_owned().map_err(failure::unreachable)?;
        let path = format!("\0dlock-{:016x}{:016x}", random(), random());
        let listener = loopback::listen(&path[1..]).map_err(failure::unreachable)?;
        let (tell, failed) = oneshot::channel();
        let task = tokio::spawn(async move {
            let Ok(mut client) = loopback::accept(listener).await else { return };
            let Some((connector, name)) = tls else { return pass(client, server).await };
            match log_in(&mut client, server, &connector, name).await {
                Ok(Some(server)) => pass(client, server).await,
                Ok(None) => {}
                // The error arrives before sqlx sees the end of its connection.
                Err(error) => drop(tell.send(error)),
            }
        });
        Ok(Self { path, socket, task, failed })
    }

    /// Returns the relay's own reason why sqlx could not log in.
    pub(super) fn failure(&mut self) -> Option<Error> {
        self.failed.try_recv().ok()
    }
}

impl Drop for MysqlRelay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Passes everything on until either end fails: then the session is over.
async fn pass(client: UnixStream, server: impl AsyncRead + AsyncWrite) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = split(server);
    let _ = tokio::select! {
        asked = copy(&mut from_client, &mut to_server) => asked,
        answered = copy(&mut from_server, &mut to_client) => answered,
    };
}

/// Encrypts the connection and passes the login through. Returns `None` if sqlx or the server ended it, which sqlx reports itself.
async fn log_in(
    client: &mut UnixStream,
    mut server: TcpStream,
    connector: &TlsConnector,
    name: ServerName<'static>,
) -> Result<Option<TlsStream<TcpStream>>> {
    // Requests are one small packet each: waiting to fill it would cost 40 ms. A failure only costs time.
    let _ = server.set_nodelay(true);
    let mut greeting = read(&mut server).await.map_err(failure::unreachable)?;
    if greeting.payload().first() != Some(&REFUSED) && !greeting.take_tls_away() {
        return Err(failure::no_tls());
    }
    if client.write_all(&greeting.0).await.is_err() {
        return Ok(None);
    }
    let Ok(mut answer) = read(client).await else { return Ok(None) };
    let asking = answer.asking_for_tls().ok_or_else(|| failure::unreadable().effect(Effect::NotApplied))?;
    server.write_all(&asking.0).await.map_err(failure::unreachable)?;
    let mut server = connector.connect(name, server).await.map_err(failure::unreachable)?;
    loop {
        send(&mut server, &answer).await.map_err(failure::unreachable)?;
        loop {
            let mut packet = read(&mut server).await.map_err(failure::unreachable)?;
            packet.ask_for_the_password_as_it_is();
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
        let Ok(reply) = read(client).await else { return Ok(None) };
        answer = reply;
    }
}

async fn send(server: &mut TlsStream<TcpStream>, packet: &Packet) -> io::Result<()> {
    server.write_all(&packet.0).await?;
    server.flush().await
}

/// A packet with its header: three bytes of length, and its number within the exchange.
#[derive(Debug, PartialEq, Eq)]
struct Packet(Vec<u8>);

impl Packet {
    fn payload(&self) -> &[u8] {
        &self.0[4..]
    }

    fn put(&mut self, payload: &[u8]) {
        let length = u32::try_from(payload.len()).unwrap_or_default().to_le_bytes();
        self.0.truncate(4);
        self.0[..3].copy_from_slice(&length[..3]);
        self.0.extend_from_slice(payload);
    }

    /// Removes the offer of TLS from a greeting: a version, the server's version up to a zero, the session's number, eight bytes of a
    /// nonce, a zero, and the lower half of the flags. Returns false if the server offers no TLS.
    fn take_tls_away(&mut self) -> bool {
        let Some(end) = self.payload().iter().skip(1).position(|byte| *byte == 0) else { return false };
        let at = 4 + 1 + end + 1 + 4 + 8 + 1;
        let Some(&[low, high]) = self.0.get(at..at + 2) else { return false };
        let can = u16::from_le_bytes([low, high]);
        self.0[at..at + 2].copy_from_slice(&(can & !CAN_TLS).to_le_bytes());
        can & CAN_TLS != 0
    }

    /// Returns the packet that requests TLS before a client's answer, and increments the answer's number.
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
async fn read(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> io::Result<Packet> {
    let mut packet = vec![0; 4];
    stream.read_exact(&mut packet).await?;
    let length = usize::from(u16::from_le_bytes([packet[0], packet[1]]));
    if packet[2] != 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "is it a MySQL server?"));
    }
    packet.resize(4 + length, 0);
    stream.read_exact(&mut packet[4..]).await?;
    Ok(Packet(packet))
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

    #[test]
    fn a_greeting_loses_only_its_tls_offer() {
        let greeting = |low: u8, high: u8| packet(0, &[b"\x0a9.7.4\0\x07\0\0\0nonce678\0".as_slice(), &[low, high], b"rest"].concat());
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
            let Ok(mut packet) = read(&mut &damaged[..]).await else { continue };
            read_whole += 1;
            let is_whole = |packet: &Packet| usize::from(u16::from_le_bytes([packet.0[0], packet.0[1]])) == packet.payload().len();
            packet.take_tls_away();
            packet.ask_for_the_password_as_it_is();
            let asking = packet.asking_for_tls();
            assert!(is_whole(&packet) && asking.is_none_or(|asking| is_whole(&asking)), "DLOCK_TEST_SEED={seed}");
        }
        assert!(read_whole > damage::TRIES / 20, "only {read_whole} could be read at all");
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
