//! A connection to one member: opening it, and the transport below gRPC.
//!
//! The connection never reconnects and has no time limits.

use std::{
    future::{Future, pending},
    os::fd::OwnedFd,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use hyper::{
    body::Incoming,
    client::conn::http2::{self, SendRequest},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    task::AbortHandle,
};
use tokio_util::io::InspectReader;
use tonic::{
    body::Body,
    client::Grpc,
    codegen::{Service, http},
};

use super::{
    failure::{self, LostRequest},
    options::{EtcdOptions, TLS, authority},
};
use crate::{
    backends::net::{self, Stream, longest::MESSAGE, socket},
    lock::{Error, Kind, Result},
};

/// The longest accepted answer. A queue of ten thousand takes a megabyte.
const LONGEST_ANSWER: usize = 2 * MESSAGE;

/// How long a member may send nothing at all before another member, if there is one, gets the
/// request.
const SILENCE: Duration = Duration::from_millis(250);

#[allow(clippy::disallowed_methods)] // a silent member must not keep the others from answering
pub(super) async fn silence() {
    tokio::time::sleep(SILENCE).await;
}

/// An open connection. Its streams end with it.
pub(super) struct EtcdConnection {
    pub grpc: Grpc<Channel>,
    /// Whether any answer has arrived.
    pub greeted: bool,
    /// Whether the member has sent anything: its HTTP/2 settings come before any answer.
    received: Arc<AtomicBool>,
    socket: OwnedFd,
    driver: AbortHandle,
}

impl Drop for EtcdConnection {
    /// hyper's task keeps the connection open as long as a stream exists. Without this, a watch
    /// would stay on a silent member that dlock left, and never report anything.
    fn drop(&mut self) {
        self.driver.abort();
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }
}

impl EtcdConnection {
    /// Connects to `endpoint`, which is one of the endpoints in `options`.
    pub(super) async fn open(options: &EtcdOptions, endpoint: &(String, u16)) -> Result<Self> {
        let stream = Self::connect(options, endpoint).await?;
        let socket = net::socket_of(&stream)?;
        let received = Arc::new(AtomicBool::new(false));
        let scheme = if options.tls.is_some() {
            "https"
        } else {
            "http"
        };
        let origin = format!("{scheme}://{}", authority(endpoint));
        let origin = origin.parse().map_err(|error| {
            Error::new(Kind::Config, "the host's name can't be one").source(error)
        })?;
        let (requests, driver) = drive(stream, Arc::clone(&received)).await?;
        let grpc =
            Grpc::with_origin(Channel(requests), origin).max_decoding_message_size(LONGEST_ANSWER);
        Ok(Self {
            grpc,
            greeted: false,
            received,
            socket,
            driver,
        })
    }

    async fn connect(options: &EtcdOptions, (host, port): &(String, u16)) -> Result<Stream> {
        net::open(host, *port, options.tls.as_ref(), &TLS).await
    }

    /// Returns why a server ended the connection right after the TLS handshake. The server rejects
    /// our certificate only then, and our first bytes hid that alert. Returns `None` without such
    /// an alert.
    pub(super) async fn why_ended(
        options: &EtcdOptions,
        endpoint: &(String, u16),
    ) -> Option<Error> {
        options.tls.as_ref()?;
        let mut stream = Self::connect(options, endpoint).await.ok()?;
        stream.write_all(PREFACE).await.ok()?;
        let error = stream.read(&mut [0]).await.err();
        let error = error.map(|error| TLS.failure(error));
        error.filter(|error| !error.is_transient())
    }

    /// Completes once the member had time to send something and sent nothing. Never completes if
    /// the member has sent anything.
    pub(super) fn silent(&self) -> impl Future<Output = ()> + use<> {
        let received = Arc::clone(&self.received);
        async move {
            silence().await;
            if received.load(Ordering::Relaxed) {
                pending::<()>().await;
            }
        }
    }

    /// Returns whether the member has not closed its end yet, as far as this host knows.
    pub(super) fn is_open(&self) -> bool {
        socket::is_open(&self.socket) && !self.driver.is_finished()
    }
}

/// The first bytes of an HTTP/2 client, with empty settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

async fn drive(
    stream: Stream,
    received: Arc<AtomicBool>,
) -> Result<(SendRequest<Body>, AbortHandle)> {
    let note = move |bytes: &[u8]| {
        if !bytes.is_empty() {
            received.store(true, Ordering::Relaxed);
        }
    };
    let stream = TokioIo::new(InspectReader::new(stream, note));
    let handshake = http2::handshake(TokioExecutor::new(), stream);
    let (requests, connection) = handshake.await.map_err(failure::no_http2)?;
    // A request in progress gets its own error.
    let driver = tokio::spawn(async { drop(connection.await) });
    Ok((requests, driver.abort_handle()))
}

/// The service that sends requests on the connection.
#[derive(Clone)]
pub(super) struct Channel(SendRequest<Body>);

impl Service<http::Request<Body>> for Channel {
    type Response = http::Response<Incoming>;
    type Error = LostRequest;
    type Future =
        Pin<Box<dyn Future<Output = std::result::Result<Self::Response, LostRequest>> + Send>>;

    fn poll_ready(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<std::result::Result<(), LostRequest>> {
        self.0.poll_ready(context).map_err(|source| LostRequest {
            sent: false,
            source,
        })
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let answer = self.0.try_send_request(request);
        Box::pin(async {
            answer.await.map_err(|mut failed| {
                // hyper returns the message if it was never sent.
                let sent = failed.take_message().is_none();
                LostRequest {
                    sent,
                    source: failed.into_error(),
                }
            })
        })
    }
}
