//! The parts of a relay between a client library and its server, within this process: finding the
//! frames of a protocol, and passing them on.

use std::io;

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, copy, split},
    net::UnixStream,
};

use super::Stream;

/// Passes everything on until either end fails, or `look` refuses what the server sends. A client
/// that ends makes the server end too, with this message, if there is one.
pub(in crate::backends) async fn pass(
    client: UnixStream,
    server: Stream,
    goodbye: Option<&[u8]>,
    look: impl FnMut(&[u8], &mut Vec<u8>) -> bool,
) -> io::Result<()> {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = split(server);
    let asking = async {
        copy(&mut from_client, &mut to_server).await?;
        let Some(goodbye) = goodbye else {
            return Ok(());
        };
        to_server.write_all(goodbye).await?;
        to_server.shutdown().await
    };
    tokio::select! {
        asked = asking => asked,
        answered = pass_answers(&mut from_server, &mut to_client, look) => answered,
    }
}

/// Passes a server's answers on until it ends. `look` gets all bytes as they arrive, and puts those
/// to pass on into the buffer; if it returns false, the connection is over: the client library
/// would store a message of any length.
pub(in crate::backends) async fn pass_answers(
    server: &mut (impl AsyncRead + Unpin),
    client: &mut (impl AsyncWrite + Unpin),
    mut look: impl FnMut(&[u8], &mut Vec<u8>) -> bool,
) -> io::Result<()> {
    let (mut read, mut answers) = (vec![0; 8192], Vec::new());
    loop {
        let length = server.read(&mut read).await?;
        if length == 0 {
            return Ok(());
        }
        answers.clear();
        if !look(&read[..length], &mut answers) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        client.write_all(&answers).await?;
    }
}

/// Reads a whole frame with its header, which has at most `longest` bytes behind it.
pub(in crate::backends) async fn whole_frame<const HEADER: usize>(
    from: &mut (impl AsyncRead + Unpin),
    length: fn([u8; HEADER]) -> usize,
    longest: usize,
) -> io::Result<Vec<u8>> {
    let mut header = [0; HEADER];
    from.read_exact(&mut header).await?;
    let length = length(header);
    if length > longest {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut frame = header.to_vec();
    frame.resize(HEADER + length, 0);
    from.read_exact(&mut frame[HEADER..]).await?;
    Ok(frame)
}

/// Finds the frames in a stream of bytes, however it is split. Stores no more than a header.
#[derive(Debug, Default)]
pub(in crate::backends) struct Frames<const HEADER: usize> {
    /// The bytes of a header that has not arrived whole yet.
    begun: Vec<u8>,
    /// How many bytes of the present frame have not arrived yet.
    left: usize,
}

/// A part of a frame.
#[derive(Debug)]
pub(in crate::backends) enum Part<'a, const HEADER: usize> {
    Header([u8; HEADER]),
    Body(&'a [u8]),
}

impl<const HEADER: usize> Frames<HEADER> {
    /// Returns how many bytes of the present frame have not arrived yet.
    pub(in crate::backends) fn left(&self) -> usize {
        self.left
    }

    #[cfg(test)]
    pub(in crate::backends) fn is_empty(&self) -> bool {
        self.left == 0 && self.begun.is_empty()
    }

    /// Takes the next part from the start of `bytes`, and a frame's length from its header. Returns
    /// `None` if there is no part yet.
    pub(in crate::backends) fn next<'a>(
        &mut self,
        bytes: &mut &'a [u8],
        length: fn([u8; HEADER]) -> usize,
    ) -> Option<Part<'a, HEADER>> {
        let whole = if self.left == 0 {
            HEADER - self.begun.len()
        } else {
            self.left
        };
        let (part, rest) = bytes.split_at(bytes.len().min(whole));
        *bytes = rest;
        if self.left > 0 {
            self.left -= part.len();
            return (!part.is_empty()).then_some(Part::Body(part));
        }
        self.begun.extend_from_slice(part);
        let header = self.begun.as_slice().try_into().ok()?;
        self.begun.clear();
        self.left = length(header);
        Some(Part::Header(header))
    }
}
