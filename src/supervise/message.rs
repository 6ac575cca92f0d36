//! The messages between dlock and its guardian: one JSON value in each datagram.
//!
//! Both ends are the same process image, so the format carries no version.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    time::Duration,
};

use rustix::{
    io::Errno,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, recv, recvmsg, send, sendmsg,
    },
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{CannotStart, Deadlines, Ended, ProcessEnd, Unkillable};
use crate::lock::BootTime;

/// The longest datagram: the kernel's default socket buffer holds it with room to spare.
const MAX: usize = 128 * 1024;
/// The most descriptors in one datagram.
const MAX_DESCRIPTORS: usize = 64;

/// An order from dlock to the guardian. Each order is sent with its number, which the guardian
/// acknowledges.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// Execute the command, unless `start_by` has passed.
    Start {
        start_by: BootTime,
        deadlines: Deadlines,
        environment: Vec<(String, String)>,
    },
    /// A renewal was confirmed.
    Extend(Deadlines),
    /// Another process has the lock.
    Lost,
    /// Stop the tree: TERM, this grace, KILL.
    Stop(Duration),
    /// Forward a signal to the command.
    Forward(i32),
    /// Acknowledge, to show that the guardian is alive.
    Ping,
    /// dlock stops itself because the command is stopped (`true`), or was continued (`false`).
    Pause(bool),
}

/// A report from the guardian to dlock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    /// The command ended before any signal that was to stop it, and processes that it started have
    /// not.
    Outlived(ProcessEnd),
    Leftover(Vec<i32>),
    DeadlineTerm,
    Unkillable(i32, Unkillable),
    Gone(i32),
    Ended(Ended),
    TimeUp,
}

/// Returns the datagram of a message.
pub fn encode(message: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(message).expect("a message is text and numbers")
}

/// Returns the message in a datagram; `None` if the datagram is malformed.
pub fn decode<T: DeserializeOwned>(datagram: &[u8]) -> Option<T> {
    serde_json::from_slice(datagram).ok()
}

/// The result of a non-blocking receive.
pub enum Received {
    /// A message, and the descriptors that came with it.
    Datagram(Vec<u8>, Vec<OwnedFd>),
    Nothing,
    /// The other end is closed: its process ended.
    Closed,
}

/// Returns the next datagram, without waiting.
pub fn receive(socket: &OwnedFd) -> Received {
    let mut ended = false;
    loop {
        // The kernel reports the length first, so that a short message needs only a short buffer.
        let mut nothing: [u8; 0] = [];
        let length = match recv(
            socket,
            &mut nothing[..],
            RecvFlags::PEEK | RecvFlags::TRUNC | RecvFlags::DONTWAIT,
        ) {
            // The kernel looks for a datagram first and for the end second. One that came between
            // the two is still there.
            Ok((_, 0)) if !std::mem::replace(&mut ended, true) => continue,
            Ok((_, 0)) => return Received::Closed,
            Ok((_, length)) => length,
            // The peer closed without reading all datagrams. The kernel reports that once, before
            // the peer's remaining datagrams.
            Err(Errno::INTR | Errno::CONNRESET) => continue,
            Err(Errno::AGAIN) => return Received::Nothing,
            Err(_) => return Received::Closed,
        };
        let mut datagram = vec![0; length];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        match recvmsg(
            socket,
            &mut [IoSliceMut::new(&mut datagram)],
            &mut ancillary,
            flags,
        ) {
            Ok(_) => {}
            // The peer closed just now: the datagram from the peek is still there.
            Err(Errno::INTR | Errno::CONNRESET) => continue,
            Err(_) => return Received::Closed,
        }
        let mut descriptors = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(passed) = message {
                descriptors.extend(passed);
            }
        }
        return Received::Datagram(datagram, descriptors);
    }
}

/// Sends a datagram without waiting, with duplicates of at most [`MAX_DESCRIPTORS`] `descriptors`.
///
/// # Errors
/// `InvalidInput` if the datagram is too long; else the kernel's error (the peer is gone, or hasn't
/// read for long).
pub fn transmit(socket: &OwnedFd, datagram: &[u8], descriptors: &[OwnedFd]) -> io::Result<()> {
    if datagram.len() > MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the command's environment is too long",
        ));
    }
    loop {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let sent = if descriptors.is_empty() {
            send(socket, datagram, flags)
        } else {
            let passed: Vec<BorrowedFd<'_>> = descriptors.iter().map(OwnedFd::as_fd).collect();
            let mut space =
                [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            if !ancillary.push(SendAncillaryMessage::ScmRights(&passed)) {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "too many connections to hand over",
                ));
            }
            sendmsg(socket, &[IoSlice::new(datagram)], &mut ancillary, flags)
        };
        match sent {
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervise::{StopReason, Usage};

    fn at(ms: u64) -> BootTime {
        BootTime::from_boot(Duration::from_millis(ms))
    }

    #[test]
    fn every_order_survives_a_round_trip() {
        let deadlines = Deadlines {
            term_at: at(1_001),
            kill_at: at(2_002),
        };
        let environment = vec![
            ("DLOCK_KEY".into(), "\"\u{1f512}\\=\n".into()),
            ("EMPTY".into(), String::new()),
        ];
        for order in [
            Order::Start {
                start_by: at(7),
                deadlines,
                environment,
            },
            Order::Extend(deadlines),
            Order::Extend(Deadlines {
                term_at: at(0).plus(Duration::MAX),
                kill_at: at(0),
            }),
            Order::Lost,
            Order::Stop(Duration::MAX),
            Order::Forward(15),
            Order::Ping,
            Order::Pause(true),
            Order::Pause(false),
        ] {
            assert_eq!(decode(&encode(&(42, &order))), Some((42, order)));
        }
    }

    /// The peer closes without having read the last order.
    #[test]
    fn the_last_message_before_a_close_is_received() {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        let (leave, leaving) = std::sync::mpsc::channel::<OwnedFd>();
        let leaver = std::thread::spawn(move || leaving.into_iter().for_each(drop));
        for nth in 0..5_000_u32 {
            let (ours, theirs) = socketpair(
                AddressFamily::UNIX,
                SocketType::SEQPACKET,
                SocketFlags::CLOEXEC,
                None,
            )
            .unwrap();
            transmit(&ours, b"unread", &[]).unwrap();
            transmit(&theirs, b"last", &[]).unwrap();
            leave.send(theirs).unwrap();
            (0..nth % 4096).for_each(|_| std::hint::spin_loop());
            let heard = receive(&ours);
            assert!(
                matches!(&heard, Received::Datagram(said, _) if said == b"last"),
                "try {nth}"
            );
        }
        drop(leave);
        leaver.join().unwrap();
    }

    /// The peer sends and closes while this end is looking.
    #[test]
    fn a_message_just_before_a_close_is_received() {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        let (leave, leaving) = std::sync::mpsc::channel::<OwnedFd>();
        let leaver = std::thread::spawn(move || {
            for end in leaving {
                transmit(&end, b"last", &[]).unwrap();
            }
        });
        // The kernel's own window is narrow: about one in ten thousand tries meets it.
        for nth in 0..100_000_u32 {
            let (ours, theirs) = socketpair(
                AddressFamily::UNIX,
                SocketType::SEQPACKET,
                SocketFlags::CLOEXEC,
                None,
            )
            .unwrap();
            leave.send(theirs).unwrap();
            let heard = loop {
                match receive(&ours) {
                    Received::Nothing => {}
                    heard => break heard,
                }
            };
            assert!(
                matches!(&heard, Received::Datagram(said, _) if said == b"last"),
                "try {nth}"
            );
            while matches!(receive(&ours), Received::Nothing) {}
        }
        drop(leave);
        leaver.join().unwrap();
    }

    #[test]
    fn every_report_survives_a_round_trip() {
        let ended = |outcome, stopped: Option<StopReason>| {
            Report::Ended(Ended {
                outcome,
                by_itself: stopped.is_none(),
                stopped,
                leftover_left: true,
                usage: Some(Usage {
                    cpu_ms: 7,
                    max_rss_bytes: u64::MAX,
                }),
            })
        };
        let mut all = vec![
            Report::Ack(u64::MAX),
            Report::Started {
                pid: 7,
                joined: true,
            },
            Report::CannotStart(CannotStart::TooLate),
            Report::CannotStart(CannotStart::NotFound),
            Report::CannotStart(CannotStart::NotExecutable(13)),
            Report::CannotStart(CannotStart::System(11)),
            Report::Stopped(20),
            Report::Continued,
            Report::Outlived(ProcessEnd::Exited(0)),
            Report::Leftover(vec![1, 2, 3]),
            Report::DeadlineTerm,
            Report::TimeUp,
            Report::Gone(0),
            ended(None, None),
            ended(Some(ProcessEnd::Exited(255)), Some(StopReason::Deadline)),
            ended(Some(ProcessEnd::Signalled(9)), Some(StopReason::Orphaned)),
        ];
        all.extend(
            [
                StopReason::Lost,
                StopReason::Stop,
                StopReason::Leftover,
                StopReason::Guardian,
                StopReason::TimeUp,
            ]
            .map(|why| ended(None, Some(why))),
        );
        let reasons = [
            Unkillable::NotPermitted,
            Unkillable::Uninterruptible,
            Unkillable::Unknown,
        ];
        all.extend(reasons.map(|why| Report::Unkillable(9, why)));
        for report in all {
            assert_eq!(decode(&encode(&report)), Some(report));
        }
    }

    #[test]
    fn a_short_datagram_is_refused() {
        let deadlines = Deadlines {
            term_at: at(1),
            kill_at: at(2),
        };
        let whole = encode(&(
            1,
            Order::Start {
                start_by: at(7),
                deadlines,
                environment: vec![("A".into(), "B".into())],
            },
        ));
        for length in 0..whole.len() {
            assert_eq!(decode::<(u64, Order)>(&whole[..length]), None, "{length}");
        }
    }
}
