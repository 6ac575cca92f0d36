//! The longest answer: no server makes dlock large.
//!
//! The limits are far above what dlock asks for, and keep its memory below 64 MiB, with all copies
//! of an answer.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, ReadBuf};

/// The longest message, in bytes.
pub(in crate::backends) const MESSAGE: usize = 8 << 20;
/// The largest number of values in a message.
const VALUES: usize = 250_000;

/// The size of an answer of several rows.
#[derive(Debug, Default)]
pub(in crate::backends) struct AnswerSize {
    rows: usize,
    bytes: usize,
}

impl AnswerSize {
    /// Counts one more row. Returns false if the answer is too long.
    pub(in crate::backends) fn add(&mut self, values: &[Option<Vec<u8>>]) -> bool {
        self.rows += 1 + values.len();
        self.bytes += values.iter().flatten().map(Vec::len).sum::<usize>();
        self.rows <= VALUES && self.bytes <= 2 * MESSAGE
    }
}

/// A stream that fails once one message is too long, in bytes or in lines: each value of a message
/// has a line at least.
pub(in crate::backends) struct Bounded<'a, S: ?Sized> {
    stream: &'a mut S,
    bytes: usize,
    lines: usize,
}

impl<'a, S: ?Sized> Bounded<'a, S> {
    /// Wraps a stream for the next message.
    pub(in crate::backends) fn new(stream: &'a mut S) -> Self {
        Self {
            stream,
            bytes: 0,
            lines: 0,
        }
    }

    /// Whether the message was too long.
    pub(in crate::backends) fn is_over(&self) -> bool {
        self.bytes > MESSAGE || self.lines > VALUES
    }
}

impl<S: AsyncRead + Unpin + ?Sized> AsyncRead for Bounded<'_, S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let read = Pin::new(&mut *self.stream).poll_read(context, into);
        let new = &into.filled()[before..];
        self.bytes += new.len();
        self.lines += new
            .iter()
            .map(|byte| usize::from(*byte == b'\n'))
            .sum::<usize>();
        if self.is_over() {
            Poll::Ready(Err(io::ErrorKind::InvalidData.into()))
        } else {
            read
        }
    }
}
