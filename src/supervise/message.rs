//! What dlock and its guardian say to each other, one datagram each.
//!
//! A hand-made binary form: both ends are the same program, so no version is needed, and the guardian
//! touches little memory to read it.

use std::{
    ffi::{OsStr, OsString},
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::ffi::{OsStrExt, OsStringExt},
    },
    time::Duration,
};

use rustix::{
    io::Errno,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, recvmsg, send,
        sendmsg,
    },
};

use super::{CannotStart, Deadlines, Ended, Outcome, Unkillable, Why};
use crate::lock::BootTime;

/// The longest datagram: the kernel's default socket buffer holds it with room to spare.
const MAX: usize = 128 * 1024;
/// The most descriptors beside one datagram.
const MAX_DESCRIPTORS: usize = 64;

/// What dlock tells the guardian.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Execute the command, unless it is later than `start_by`.
    Start { start_by: BootTime, deadlines: Deadlines, environment: Vec<(OsString, OsString)> },
    /// A renewal was confirmed.
    Extend(Deadlines),
    /// The lock is somebody else's.
    Lost,
    /// Stop the tree: TERM, this grace, KILL.
    Stop(Duration),
    /// Pass a signal on.
    Forward(i32),
    /// Say that you are there.
    Ping,
}

/// What the guardian tells dlock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// All orders up to this number were carried out.
    Ack(u64),
    /// The command runs; whether it joined dlock's process group.
    Started {
        pid: i32,
        joined: bool,
    },
    CannotStart(CannotStart),
    Stopped(i32),
    Continued,
    Leftover(Vec<i32>),
    DeadlineTerm,
    Unkillable(i32, Unkillable),
    Ended(Ended),
    TimeUp,
}

impl Order {
    /// The datagram that carries this order under its number.
    pub fn encode(&self, number: u64) -> Vec<u8> {
        let mut to = Writer::default();
        to.u64(number);
        match self {
            Self::Start { start_by, deadlines, environment } => {
                to.u8(1).time(*start_by).deadlines(deadlines).u64(environment.len() as u64);
                for (name, value) in environment {
                    to.bytes(name).bytes(value);
                }
            }
            Self::Extend(deadlines) => drop(to.u8(2).deadlines(deadlines)),
            Self::Lost => drop(to.u8(3)),
            Self::Stop(grace) => drop(to.u8(4).time(BootTime::from_boot(*grace))),
            Self::Forward(signal) => drop(to.u8(5).i32(*signal)),
            Self::Ping => drop(to.u8(6)),
        }
        to.0
    }

    /// The order in a datagram and its number; `None` for what we never send.
    pub fn decode(datagram: &[u8]) -> Option<(u64, Self)> {
        let mut from = Reader(datagram);
        let number = from.u64()?;
        let order = match from.u8()? {
            1 => Self::Start {
                start_by: from.time()?,
                deadlines: from.deadlines()?,
                environment: (0..from.u64()?).map(|_| Some((from.bytes()?, from.bytes()?))).collect::<Option<_>>()?,
            },
            2 => Self::Extend(from.deadlines()?),
            3 => Self::Lost,
            4 => Self::Stop(from.time()?.since_boot()),
            5 => Self::Forward(from.i32()?),
            6 => Self::Ping,
            _ => return None,
        };
        Some((number, order))
    }
}

impl Report {
    /// The datagram that carries this report.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Writer::default();
        match self {
            Self::Ack(number) => drop(to.u8(1).u64(*number)),
            Self::Started { pid, joined } => drop(to.u8(2).i32(*pid).u8(u8::from(*joined))),
            Self::CannotStart(why) => {
                let (kind, errno) = match why {
                    CannotStart::TooLate => (0, 0),
                    CannotStart::NotFound => (1, 0),
                    CannotStart::NotExecutable(errno) => (2, *errno),
                    CannotStart::System(errno) => (3, *errno),
                };
                to.u8(3).u8(kind).i32(errno);
            }
            Self::Stopped(signal) => drop(to.u8(4).i32(*signal)),
            Self::Continued => drop(to.u8(5)),
            Self::Leftover(pids) => {
                to.u8(6).u64(pids.len() as u64);
                for pid in pids {
                    to.i32(*pid);
                }
            }
            Self::DeadlineTerm => drop(to.u8(7)),
            Self::Unkillable(pid, why) => drop(to.u8(8).i32(*pid).u8(*why as u8)),
            Self::Ended(Ended { outcome, stopped, leftover_left }) => {
                let (kind, value) = match outcome {
                    None => (0, 0),
                    Some(Outcome::Exited(status)) => (1, i32::from(*status)),
                    Some(Outcome::Signalled(signal)) => (2, *signal),
                };
                to.u8(9).u8(kind).i32(value).u8(stopped.map_or(u8::MAX, |why| why as u8)).u8(u8::from(*leftover_left));
            }
            Self::TimeUp => drop(to.u8(10)),
        }
        to.0
    }

    /// The report in a datagram; `None` for what we never send.
    pub fn decode(datagram: &[u8]) -> Option<Self> {
        let mut from = Reader(datagram);
        Some(match from.u8()? {
            1 => Self::Ack(from.u64()?),
            2 => Self::Started { pid: from.i32()?, joined: from.u8()? != 0 },
            3 => Self::CannotStart(match (from.u8()?, from.i32()?) {
                (0, _) => CannotStart::TooLate,
                (1, _) => CannotStart::NotFound,
                (2, errno) => CannotStart::NotExecutable(errno),
                (3, errno) => CannotStart::System(errno),
                _ => return None,
            }),
            4 => Self::Stopped(from.i32()?),
            5 => Self::Continued,
            6 => Self::Leftover((0..from.u64()?).map(|_| from.i32()).collect::<Option<_>>()?),
            7 => Self::DeadlineTerm,
            8 => Self::Unkillable(
                from.i32()?,
                match from.u8()? {
                    0 => Unkillable::NotPermitted,
                    1 => Unkillable::Uninterruptible,
                    _ => Unkillable::Unknown,
                },
            ),
            9 => Self::Ended(Ended {
                outcome: match (from.u8()?, from.i32()?) {
                    (1, status) => Some(Outcome::Exited(u8::try_from(status).ok()?)),
                    (2, signal) => Some(Outcome::Signalled(signal)),
                    _ => None,
                },
                stopped: match from.u8()? {
                    0 => Some(Why::Deadline),
                    1 => Some(Why::Lost),
                    2 => Some(Why::Stop),
                    3 => Some(Why::Leftover),
                    4 => Some(Why::Guardian),
                    5 => Some(Why::Orphaned),
                    6 => Some(Why::TimeUp),
                    _ => None,
                },
                leftover_left: from.u8()? != 0,
            }),
            10 => Self::TimeUp,
            _ => return None,
        })
    }
}

/// What came out of a look into the socket.
pub enum Received {
    /// A message, and the descriptors that came with it.
    Datagram(Vec<u8>, Vec<OwnedFd>),
    Nothing,
    /// The other end is closed: its process ended.
    Closed,
}

/// The next datagram, without waiting.
pub fn receive(socket: &OwnedFd) -> Received {
    loop {
        // The kernel tells the length first, so that the usual short message costs a short buffer.
        let mut nothing: [u8; 0] = [];
        let length = match recv(socket, &mut nothing[..], RecvFlags::PEEK | RecvFlags::TRUNC | RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return Received::Closed,
            Ok((_, length)) => length,
            // The other end closed without having read all of ours: said once, before what it had still to say.
            Err(Errno::INTR | Errno::CONNRESET) => continue,
            Err(Errno::AGAIN) => return Received::Nothing,
            Err(_) => return Received::Closed,
        };
        let mut datagram = vec![0; length];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        if recvmsg(socket, &mut [IoSliceMut::new(&mut datagram)], &mut beside, flags).is_err() {
            return Received::Closed;
        }
        let mut descriptors = Vec::new();
        for message in beside.drain() {
            if let RecvAncillaryMessage::ScmRights(passed) = message {
                descriptors.extend(passed);
            }
        }
        return Received::Datagram(datagram, descriptors);
    }
}

/// Sends a datagram without waiting, and duplicates of `descriptors` with it: [`MAX_DESCRIPTORS`] at most.
///
/// # Errors
/// `InvalidInput` if it is too long; else as the kernel says (the other end is gone, or hasn't read for long).
pub fn transmit(socket: &OwnedFd, datagram: &[u8], descriptors: &[OwnedFd]) -> io::Result<()> {
    if datagram.len() > MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the command's environment is too long"));
    }
    loop {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let sent = if descriptors.is_empty() {
            send(socket, datagram, flags)
        } else {
            let passed: Vec<BorrowedFd<'_>> = descriptors.iter().map(OwnedFd::as_fd).collect();
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
            let mut beside = SendAncillaryBuffer::new(&mut space);
            if !beside.push(SendAncillaryMessage::ScmRights(&passed)) {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many connections to hand over"));
            }
            sendmsg(socket, &[IoSlice::new(datagram)], &mut beside, flags)
        };
        match sent {
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => return Ok(()),
        }
    }
}

#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn u8(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }

    fn i32(&mut self, value: i32) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn time(&mut self, at: BootTime) -> &mut Self {
        let since = at.since_boot();
        self.u64(since.as_secs()).u64(u64::from(since.subsec_nanos()))
    }

    fn deadlines(&mut self, deadlines: &Deadlines) -> &mut Self {
        self.time(deadlines.term_at).time(deadlines.kill_at)
    }

    fn bytes(&mut self, text: &OsStr) -> &mut Self {
        self.u64(text.len() as u64).0.extend(text.as_bytes());
        self
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn i32(&mut self) -> Option<i32> {
        self.take().map(i32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn time(&mut self) -> Option<BootTime> {
        let (seconds, nanos) = (self.u64()?, u32::try_from(self.u64()?).ok()?);
        (nanos < 1_000_000_000).then(|| BootTime::from_boot(Duration::new(seconds, nanos)))
    }

    fn deadlines(&mut self) -> Option<Deadlines> {
        Some(Deadlines { term_at: self.time()?, kill_at: self.time()? })
    }

    fn bytes(&mut self) -> Option<OsString> {
        let length = usize::try_from(self.u64()?).ok()?;
        let (head, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(OsString::from_vec(head.to_vec()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> BootTime {
        BootTime::from_boot(Duration::from_millis(ms))
    }

    #[test]
    fn every_order_comes_back_as_it_was() {
        let deadlines = Deadlines { term_at: at(1_001), kill_at: at(2_002) };
        let odd = OsString::from_vec(vec![0xff, b'=', b'\n']);
        let environment = vec![("DLOCK_KEY".into(), odd), ("EMPTY".into(), OsString::new())];
        for order in [
            Order::Start { start_by: at(7), deadlines, environment },
            Order::Extend(deadlines),
            Order::Extend(Deadlines { term_at: at(0).plus(Duration::MAX), kill_at: at(0) }),
            Order::Lost,
            Order::Stop(Duration::MAX),
            Order::Forward(15),
            Order::Ping,
        ] {
            assert_eq!(Order::decode(&order.encode(42)), Some((42, order)));
        }
    }

    #[test]
    fn every_report_comes_back_as_it_was() {
        let ended = |outcome, stopped| Report::Ended(Ended { outcome, stopped, leftover_left: true });
        let mut all = vec![
            Report::Ack(u64::MAX),
            Report::Started { pid: 7, joined: true },
            Report::CannotStart(CannotStart::TooLate),
            Report::CannotStart(CannotStart::NotFound),
            Report::CannotStart(CannotStart::NotExecutable(13)),
            Report::CannotStart(CannotStart::System(11)),
            Report::Stopped(20),
            Report::Continued,
            Report::Leftover(vec![1, 2, 3]),
            Report::DeadlineTerm,
            Report::TimeUp,
            ended(None, None),
            ended(Some(Outcome::Exited(255)), Some(Why::Deadline)),
            ended(Some(Outcome::Signalled(9)), Some(Why::Orphaned)),
        ];
        all.extend([Why::Lost, Why::Stop, Why::Leftover, Why::Guardian, Why::TimeUp].map(|why| ended(None, Some(why))));
        let reasons = [Unkillable::NotPermitted, Unkillable::Uninterruptible, Unkillable::Unknown];
        all.extend(reasons.map(|why| Report::Unkillable(9, why)));
        for report in all {
            assert_eq!(Report::decode(&report.encode()), Some(report));
        }
    }

    #[test]
    fn a_short_datagram_is_refused_not_guessed_at() {
        let whole = Order::Start {
            start_by: at(7),
            deadlines: Deadlines { term_at: at(1), kill_at: at(2) },
            environment: vec![("A".into(), "B".into())],
        }
        .encode(1);
        for length in 0..whole.len() {
            assert_eq!(Order::decode(&whole[..length]), None, "{length}");
        }
    }
}
