//! Connecting to a server.

use std::{error, io, net::IpAddr};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use tokio::net::TcpStream;

use super::addresses::{self, HEAD_START};
use crate::lock::{Effect, Error, Kind, Result};

/// Connects to the host's first address that answers. The one that worked last is tried first.
pub(super) async fn dial(host: &str, port: u16) -> Result<TcpStream> {
    let addresses = addresses::of(host, port).await?;
    let (address, stream) = first(host, port, addresses).await.map_err(unreachable)?;
    addresses::worked(host, port, address);
    // Requests are a few small packets: Nagle's algorithm would cost 40 ms. A failure here only
    // costs time.
    let _ = stream.set_nodelay(true);
    Ok(stream)
}

/// Connects to each address a little later than to the one before, and at once after a failure.
/// Returns the first connection.
async fn first(host: &str, port: u16, addresses: Vec<IpAddr>) -> io::Result<(IpAddr, TcpStream)> {
    let mut rest = addresses.into_iter();
    let mut connecting = FuturesUnordered::new();
    let mut failed = None;
    loop {
        match rest.next() {
            Some(address) => connecting.push(connect(host, port, address)),
            None if connecting.is_empty() => {
                return Err(failed.unwrap_or_else(|| io::ErrorKind::AddrNotAvailable.into()));
            }
            None => {}
        }
        tokio::select! {
            biased;
            Some(connected) = connecting.next() => match connected {
                Ok(connection) => return Ok(connection),
                Err(error) => failed = Some(error),
            },
            () = addresses::rest(HEAD_START), if rest.len() > 0 => {}
        }
    }
}

async fn connect(host: &str, port: u16, address: IpAddr) -> io::Result<(IpAddr, TcpStream)> {
    let mut attempt = Attempt {
        host,
        port,
        address,
        worked: false,
    };
    let stream = TcpStream::connect((address, port)).await?;
    attempt.worked = true;
    Ok((address, stream))
}

/// An attempt at one address. If it fails, or is dropped before its end, the next call tries the
/// other addresses first.
struct Attempt<'a> {
    host: &'a str,
    port: u16,
    address: IpAddr,
    worked: bool,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if !self.worked {
            addresses::failed(self.host, self.port, self.address);
        }
    }
}

/// Returns the error that there is no connection: nothing was sent.
pub(in crate::backends) fn unreachable(error: io::Error) -> Error {
    let plain = |message: &str| Error::new(Kind::Unavailable, message);
    let failure = match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            plain("nothing listens there").hint("check that the server is running, and the port")
        }
        io::ErrorKind::NotFound => {
            plain("there is no such socket").hint("is the server running, and is the path right?")
        }
        io::ErrorKind::PermissionDenied => {
            Error::new(Kind::Denied, "this user may not open the server's socket")
        }
        io::ErrorKind::TimedOut => plain("the server did not answer"),
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionAborted
        | io::ErrorKind::BrokenPipe => plain("the server closed the connection before it was open"),
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
            plain("the server's network can't be reached")
        }
        _ => plain("can't connect to the server"),
    };
    failure.source(error)
}

/// Returns the error that the connection broke while a request was under way: it may have been
/// applied.
pub(in crate::backends) fn broken(error: impl error::Error + Send + Sync + 'static) -> Error {
    Error::new(Kind::Unavailable, "the connection to the server broke")
        .effect(Effect::Unknown)
        .source(error)
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)] // real time passes on the network
mod tests {
    use std::{
        net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
        os::fd::OwnedFd,
        time::{Duration, Instant},
    };

    use rustix::net::{AddressFamily, SocketType, bind, connect, listen, socket};

    use super::*;

    const SECOND: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

    /// Occupies an address whose connections are never accepted, as behind a firewall.
    fn silent(address: SocketAddr) -> Vec<OwnedFd> {
        let family = if address.is_ipv4() {
            AddressFamily::INET
        } else {
            AddressFamily::INET6
        };
        let server = socket(family, SocketType::STREAM, None).unwrap();
        bind(&server, &address).unwrap();
        listen(&server, 0).unwrap();
        let mut kept = vec![server];
        for _ in 0..4 {
            let client = socket(family, SocketType::STREAM, None).unwrap();
            rustix::io::ioctl_fionbio(&client, true).unwrap();
            let _ = connect(&client, &address);
            kept.push(client);
        }
        kept
    }

    fn server() -> (TcpListener, u16) {
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = server.local_addr().unwrap().port();
        (server, port)
    }

    #[tokio::test]
    async fn a_silent_address_costs_a_quarter_of_a_second_once() {
        let (_server, port) = server();
        let _silent = silent((SECOND, port).into());
        let both = vec![SECOND, Ipv4Addr::LOCALHOST.into()];
        let began = Instant::now();
        let (address, _) = first("silent first", port, both.clone()).await.unwrap();
        assert_eq!(address, both[1]);
        assert!(
            (HEAD_START..HEAD_START * 4).contains(&began.elapsed()),
            "{:?}",
            began.elapsed()
        );
    }

    #[tokio::test]
    async fn a_closed_address_costs_nothing_and_all_closed_is_an_error() {
        let (server, port) = server();
        let both = vec![SECOND, Ipv4Addr::LOCALHOST.into()];
        let began = Instant::now();
        assert_eq!(
            first("closed first", port, both.clone()).await.unwrap().0,
            both[1]
        );
        assert!(began.elapsed() < HEAD_START, "{:?}", began.elapsed());
        drop(server);
        assert_eq!(
            first("closed", port, both).await.unwrap_err().kind(),
            io::ErrorKind::ConnectionRefused
        );
        assert!(first("none", port, Vec::new()).await.is_err());
    }

    #[tokio::test]
    async fn the_address_that_worked_is_first_until_it_is_left() {
        let (v4, port) = server();
        let Ok(_v6) = TcpListener::bind((Ipv6Addr::LOCALHOST, port)) else {
            return;
        };
        let peer = async || {
            dial("localhost", port)
                .await
                .unwrap()
                .peer_addr()
                .unwrap()
                .is_ipv4()
        };
        assert!(peer().await);
        addresses::leave("localhost", port);
        assert!(!peer().await && !peer().await);
        addresses::leave("localhost", port);
        assert!(peer().await);
        drop(v4);
        assert!(!peer().await);
    }

    /// A short renewal may be dropped before the second address has its turn.
    #[tokio::test]
    async fn a_dropped_attempt_leaves_its_address() {
        let (_server, port) = server();
        let _silent = silent((Ipv6Addr::LOCALHOST, port).into());
        addresses::worked("localhost", port, Ipv6Addr::LOCALHOST.into());
        let began = Instant::now();
        assert!(
            tokio::time::timeout(Duration::from_millis(50), dial("localhost", port))
                .await
                .is_err()
        );
        assert!(
            dial("localhost", port).await.is_ok() && began.elapsed() < HEAD_START,
            "{:?}",
            began.elapsed()
        );
    }

    #[tokio::test]
    async fn an_unknown_name_says_so() {
        let error = dial("no.such.host.invalid", 1).await.unwrap_err();
        assert_eq!(
            (error.kind, error.origin),
            (Kind::Unavailable, crate::lock::Origin::Resolver),
            "{error:?}"
        );
        assert!(error.message.contains("name"), "{error}");
    }
}
