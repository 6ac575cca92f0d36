//! Readers of the scripts' replies about a hold.

use std::time::Duration;

use ::redis::Value;

use super::{
    failure, reply, starts,
    state::{LockSnapshot, foreign, read_shares},
};
use crate::lock::{Attempt, Break, Busy, Fence, Grant, Mode, Renewal, Request, Result, Ttl};

/// Splits a script's reply into its first word and the values after it.
pub(super) fn answer(reply: &Value) -> Result<(String, &[Value])> {
    let (first, rest) = reply::items(reply)
        .and_then(<[Value]>::split_first)
        .ok_or_else(failure::unreadable)?;
    Ok((reply::text(first).ok_or_else(failure::unreadable)?, rest))
}

/// Returns the other mode in which the owner already holds the lock, if the reply says so.
pub(super) fn otherwise(reply: &Value) -> Option<String> {
    match answer(reply) {
        Ok((word, [kind])) if word == "otherwise" => reply::text(kind),
        _ => None,
    }
}

pub(super) fn read_attempt(reply: &Value, request: &Request) -> Result<Attempt> {
    let (answer, rest) = answer(reply)?;
    match (&*answer, rest) {
        ("granted", [fence, holds, rest @ ..]) => Ok(Attempt::Granted(Grant {
            fence: read_fence(fence)?,
            ttl: request.ttl,
            holds: read_count(holds)?,
            drain_delay: Duration::ZERO,
            session: None,
            permit: rest
                .first()
                .and_then(reply::int)
                .and_then(|number| u32::try_from(number).ok()),
        })),
        ("not-held", []) => Ok(Attempt::NotHeld),
        ("otherwise", [kind]) => Err(match reply::text(kind).as_deref() {
            Some("exclusive") => Mode::Exclusive.not_enough(),
            Some("permits") => Mode::Permits(1).not_enough(),
            _ => Mode::Shared.not_enough(),
        }),
        ("refused", rest) => {
            starts::read_refusal(rest).map(|denial| Attempt::Denied(Box::new(denial)))
        }
        ("busy", [now, pttl, lock, record, place, shares, left]) => {
            let lock = reply::pairs(lock).ok_or_else(failure::unreadable)?;
            let record = reply::pairs(record).ok_or_else(failure::unreadable)?;
            let shares = read_shares(shares);
            let snapshot = LockSnapshot {
                now: reply::int(now),
                pttl: reply::int(pttl),
                lock_len: lock.len(),
                lock,
                record,
                shares,
            };
            let holders = snapshot.holders()?;
            let left = reply::int(left)
                .and_then(|ms| u64::try_from(ms).ok())
                .filter(|ms| *ms > 0)
                .map(Duration::from_millis);
            let expires_in = left.or_else(|| snapshot.expires_in());
            let notifies = expires_in.is_some() && holders.iter().all(|holder| !holder.foreign);
            let position = reply::int(place)
                .and_then(|place| u32::try_from(place).ok())
                .filter(|place| *place > 0);
            Ok(Attempt::Busy(Busy {
                transient: holders.is_empty(),
                holders,
                expires_in,
                notifies,
                position,
            }))
        }
        // A string is a lock of `SET NX`, with or without a TTL.
        ("alien", [kind, pttl]) => match reply::text(kind).as_deref() {
            Some("string") => {
                let left = read_ms(pttl).ok();
                Ok(Attempt::Busy(Busy {
                    holders: vec![foreign(Mode::Exclusive, left)],
                    expires_in: left,
                    notifies: false,
                    ..Busy::default()
                }))
            }
            kind => Err(failure::no_lock(&format!("a {}", kind.unwrap_or("value")))),
        },
        ("layout", [version]) => Err(failure::newer_layout(
            &reply::text(version).unwrap_or_default(),
        )),
        _ => Err(failure::unreadable()),
    }
}

pub(super) fn read_renewal(reply: &Value) -> Result<Renewal> {
    let (answer, rest) = answer(reply)?;
    match (&*answer, rest) {
        ("renewed", [ttl, fence]) => Ok(Renewal::Renewed {
            ttl: read_ttl(ttl)?,
            fence: read_fence(fence)?,
        }),
        ("shorter", [left]) => Ok(Renewal::Kept {
            expires_in: Some(read_ms(left)?),
        }),
        ("not-held", []) => Ok(Renewal::NotHeld),
        ("broken", [mark, seen]) => read_mark(mark, seen).map(Renewal::Broken),
        ("layout", [version]) => Err(failure::newer_layout(
            &reply::text(version).unwrap_or_default(),
        )),
        _ => Err(failure::unreadable()),
    }
}

/// Reads the mark of a break, and whether the holder has seen it.
pub(in crate::backends) fn read_mark(mark: &Value, seen: &Value) -> Result<Break> {
    let mark: Option<Break> = reply::text(mark).and_then(|mark| serde_json::from_str(&mark).ok());
    mark.map(|mark| Break {
        seen: reply::text(seen).as_deref() == Some("1"),
        ..mark
    })
    .ok_or_else(failure::unreadable)
}

fn read_fence(value: &Value) -> Result<Fence> {
    reply::int(value)
        .and_then(|fence| u64::try_from(fence).ok())
        .map(Fence)
        .ok_or_else(failure::unreadable)
}

pub(super) fn read_count(value: &Value) -> Result<u32> {
    reply::int(value)
        .and_then(|count| u32::try_from(count).ok())
        .ok_or_else(failure::unreadable)
}

fn read_ms(value: &Value) -> Result<Duration> {
    let ms = reply::int(value).and_then(|ms| u64::try_from(ms).ok());
    ms.map(Duration::from_millis)
        .ok_or_else(failure::unreadable)
}

fn read_ttl(value: &Value) -> Result<Ttl> {
    Ttl::new(read_ms(value)?).map_err(|_| failure::unreadable())
}
