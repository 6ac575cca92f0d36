//! Reading a lock: its value, and the parts of its document next to it.

use std::collections::BTreeSet;

use ::redis::{Pipeline, Value};

use super::{
    CLAIMED, TairStore, TairVersion, history,
    options::TairMode,
    stored_queue::{self, StoredQueue},
    value::{self, READS, Stored, StoredValue, TairSnapshot, created, readable},
};
use crate::{
    backends::{
        cas::{Base, Outside, ReadFor, Snapshot, in_order},
        redis::{
            failure,
            names::{
                ENCODING, RedisNames, is_run_data, key_of, pattern, prefix, side_of, side_start,
            },
            reading::add_scanned,
            state::foreign,
        },
    },
    lock::{
        Error, Fence, Holder, Key, Kind, Mode, Progress, ReleaseInfo, Request, Result, RunRecord,
        Token, Which, document::Document, whole_ms,
    },
};

/// The number of locks read in one packet.
const BATCH: usize = 50;

/// The parts to read.
#[derive(Clone, Copy)]
struct Parts {
    /// The outbox, and the waiters of `stored_queue.rs`.
    most: bool,
    /// The unfair exclusive waiters too.
    queue: bool,
    /// Whether an unreadable run record is an error.
    strict: bool,
}

impl Parts {
    const ALL: Self = Self {
        most: true,
        queue: true,
        strict: false,
    };

    fn add(self, mode: TairMode, pipeline: &mut Pipeline, names: &RedisNames) {
        mode.read(pipeline, names);
        mode.read_value(pipeline, &mode.policy(names));
        if self.most {
            history::read_outbox(pipeline, names);
            stored_queue::read_ordered(pipeline, names);
        }
        if self.queue {
            stored_queue::read_queue(pipeline, names);
        }
    }

    const fn count(self) -> usize {
        READS + 1 + if self.most { 2 } else { 0 } + if self.queue { 2 } else { 0 }
    }
}

impl TairMode {
    /// Returns the key of the run record. It differs by mode, and from that of `redis://`, since
    /// the types differ.
    pub(super) fn policy(self, names: &RedisNames) -> String {
        format!("{}-{}", names.starts, self.kind())
    }

    pub(super) fn warned(self, names: &RedisNames) -> String {
        format!("{}-warned", self.policy(names))
    }
}

impl TairStore {
    pub(super) async fn read_snapshot(
        &mut self,
        key: &Key,
        purpose: ReadFor<'_>,
    ) -> Result<Snapshot<TairVersion>> {
        let (names, mode) = (self.names(key)?, self.options.mode);
        let (asks, claims) = match purpose {
            ReadFor::Warn => return self.read_warned(key, &names).await,
            ReadFor::Release(token, info) => {
                if let Some(snapshot) = self.as_written(key, token, info) {
                    return Ok(snapshot);
                }
                (None, false)
            }
            ReadFor::Acquire { request, claims } => (Some(request), claims),
            ReadFor::Change | ReadFor::Look => (None, false),
        };
        let look = matches!(purpose, ReadFor::Look);
        let parts = Parts {
            most: look || asks.is_some(),
            queue: look || asks.is_some_and(in_order),
            strict: asks.is_some(),
        };
        let mut packet = ::redis::pipe();
        let claim = match asks.filter(|_| claims) {
            Some(request) => Some(mode.create(
                &mut packet,
                &names.lock,
                &value::claim(request)?,
                whole_ms(request.ttl.get().min(CLAIMED)),
            )),
            None => None,
        };
        parts.add(mode, &mut packet, &names);
        let replies = if claim.is_some() {
            self.run(&packet, true).await?
        } else {
            self.look(&packet).await?
        };
        let (made, reads) = match (claim, replies.split_first()) {
            (Some(claim), Some((reply, reads))) => (created(reply)?.then_some(claim), reads),
            _ => (None, &*replies),
        };
        let own = match purpose {
            ReadFor::Release(token, _) => Some(token.hold_text()),
            _ => asks.map(|request| request.token.hold_text()),
        };
        let found = self
            .understand(reads, parts, (made.clone(), own), &names, asks)
            .await;
        if let (Err(_), Some(made)) = (&found, &made) {
            self.undo(&names, made).await;
        }
        let snapshot = found?;
        if let Some(request) = asks {
            self.in_ordered_queue = in_order(request)
                || !snapshot.version.stored_queue.is_empty()
                || snapshot.is_shared();
        }
        Ok(snapshot)
    }

    async fn understand(
        &mut self,
        reads: &[Value],
        parts: Parts,
        (made, own): (Option<Stored>, Option<String>),
        names: &RedisNames,
        asks: Option<&Request>,
    ) -> Result<Snapshot<TairVersion>> {
        let mut snapshot = snapshot(self.options.mode, reads, parts, (made, own))?;
        if asks.is_some() && !parts.queue {
            snapshot.apart = snapshot.version.stored_queue.is_empty();
            if !snapshot.apart {
                // Reads the whole queue. So far it is only known not to be empty.
                let mut packet = ::redis::pipe();
                stored_queue::read_ordered(&mut packet, names);
                stored_queue::read_queue(&mut packet, names);
                let replies = self.look(&packet).await?;
                let (ordered, queue) = replies.split_first().ok_or_else(failure::unreadable)?;
                snapshot.version.stored_queue = StoredQueue::read(ordered, queue)?;
            }
        }
        let Snapshot {
            document, version, ..
        } = &mut snapshot;
        version.stored_queue.fill(document);
        Ok(snapshot)
    }

    /// Returns the snapshot that this client last wrote, if `token` is the lock's only hold in it.
    fn as_written(
        &mut self,
        key: &Key,
        token: &Token,
        info: &ReleaseInfo,
    ) -> Option<Snapshot<TairVersion>> {
        let (_, mut snapshot) = self.written.take().filter(|(of, _)| of == key)?;
        let (since, ends) = (
            snapshot.document.held_alone_since()?,
            snapshot.document.ends()?,
        );
        if let Some(held) = info.held_ms {
            snapshot.now_us = snapshot
                .now_us
                .max(since.saturating_add(held).saturating_mul(1000));
        }
        (snapshot.document.fence(token).is_some() && snapshot.now() < ends).then_some(snapshot)
    }

    async fn read_warned(
        &mut self,
        key: &Key,
        names: &RedisNames,
    ) -> Result<Snapshot<TairVersion>> {
        let mode = self.options.mode;
        let held = Box::pin(self.read_snapshot(key, ReadFor::Change)).await?;
        let mut look = ::redis::pipe();
        mode.read_value(&mut look, &mode.warned(names));
        let known = value::stored(
            self.look(&look)
                .await?
                .first()
                .ok_or_else(failure::unreadable)?,
        )?;
        let mut document = held.document;
        if let Some((fence, level)) = known.as_ref().and_then(|known| known.value.split_once(':'))
            && let (Ok(fence), Ok(level)) = (fence.parse(), level.parse())
        {
            document.set_warned(Fence(fence), level);
        }
        let version = TairVersion {
            stored: known,
            is_warning: true,
            ..TairVersion::default()
        };
        Ok(Snapshot {
            document,
            version,
            ..held
        })
    }

    pub(super) async fn read_all(
        &mut self,
        start: &str,
        progress: &Progress,
    ) -> Result<Vec<(Key, Snapshot<TairVersion>)>> {
        let (mode, keys) = (
            self.options.mode,
            self.scan_keys(start, progress)
                .await?
                .into_iter()
                .collect::<Vec<Key>>(),
        );
        let mut found = Vec::new();
        for batch in keys.chunks(BATCH) {
            let mut packet = ::redis::pipe();
            for key in batch {
                Parts::ALL.add(mode, &mut packet, &self.names(key)?);
            }
            let replies = self.look(&packet).await?;
            progress.part();
            for (key, replies) in batch.iter().zip(replies.chunks(Parts::ALL.count())) {
                match snapshot(mode, replies, Parts::ALL, (None, None)) {
                    // With an empty namespace, a foreign lock may be any program's temporary value.
                    Ok(found)
                        if found.is_foreign() && self.options.namespace.as_str().is_empty() => {}
                    Ok(mut snapshot) => {
                        snapshot.version.stored_queue.fill(&mut snapshot.document);
                        found.push((key.clone(), snapshot));
                    }
                    Err(error) if error.kind == Kind::Data => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(found)
    }

    async fn scan_keys(&mut self, start: &str, progress: &Progress) -> Result<BTreeSet<Key>> {
        let namespace = self.options.namespace.clone();
        let pattern = pattern(&(prefix(&namespace) + &ENCODING.encode_str(start)));
        self.scan_for(
            (&pattern, Some(self.options.mode.kind())),
            |name| key_of(&namespace, name),
            progress,
        )
        .await
    }

    pub(super) async fn known_keys(
        &mut self,
        start: &str,
        which: Which,
        progress: &Progress,
    ) -> Result<Vec<Key>> {
        let namespace = self.options.namespace.clone();
        let policy = format!("starts-{}", self.options.mode.kind());
        let wanted = |what: &str| {
            if which == Which::Kept {
                what == policy
            } else {
                is_run_data(what)
            }
        };
        let of = |name: &str| {
            side_of(&namespace, name)
                .filter(|(_, what)| wanted(what))
                .map(|(key, _)| key)
        };
        Ok(self
            .scan_for(
                (&pattern(&side_start(&namespace, start)), None),
                of,
                progress,
            )
            .await?
            .into_iter()
            .collect())
    }

    /// Returns the keys of the names that match `pattern`.
    async fn scan_for(
        &mut self,
        (pattern, kind): (&str, Option<&str>),
        key_of: impl Fn(&str) -> Option<Key>,
        progress: &Progress,
    ) -> Result<BTreeSet<Key>> {
        let mut found = BTreeSet::new();
        let mut cursor = "0".to_owned();
        loop {
            let mut pipeline = ::redis::pipe();
            pipeline
                .cmd("SCAN")
                .arg(&cursor)
                .arg("MATCH")
                .arg(pattern)
                .arg("COUNT")
                .arg(1000);
            if let Some(kind) = kind {
                pipeline.arg("TYPE").arg(kind);
            }
            let replies = self.look(&pipeline).await?;
            progress.part();
            cursor = add_scanned(replies.first(), &mut found, &key_of)?;
            if cursor == "0" {
                return Ok(found);
            }
        }
    }
}

impl Snapshot<TairVersion> {
    fn is_foreign(&self) -> bool {
        self.outside
            .as_ref()
            .is_some_and(|outside| outside.holder.foreign)
    }

    fn is_shared(&self) -> bool {
        self.document
            .holders(self.now())
            .iter()
            .any(|holder| holder.mode != Mode::Exclusive)
    }
}

/// Reads the replies to [`Parts::add`], without filling in the queue. `made` is the claim just
/// made, `own` the hold that reads the lock.
fn snapshot(
    mode: TairMode,
    replies: &[Value],
    parts: Parts,
    (made, own): (Option<Stored>, Option<String>),
) -> Result<Snapshot<TairVersion>> {
    let (reads, rest) = replies
        .split_at_checked(READS)
        .ok_or_else(failure::unreadable)?;
    let (policy, rest) = rest.split_first().ok_or_else(failure::unreadable)?;
    let seen = TairSnapshot::read(mode, reads)?;
    let (mut document, mut outside, mut base, mut stored) =
        (Document::default(), None, Base::Nothing, None);
    let left = u64::try_from(seen.left).ok();
    let expires_in = left.map(std::time::Duration::from_millis);
    match (made, seen.what) {
        (Some(made), _) => (base, stored) = (Base::Claim, Some(made)),
        (None, StoredValue::Held(held, value)) => {
            (document, base, stored) = (*held, Base::Document, Some(value));
        }
        // The claim of an earlier attempt whose reply was lost.
        (None, StoredValue::Claimed(claim, value)) if Some(&claim.hold) == own.as_ref() => {
            (base, stored) = (Base::Claim, Some(value));
        }
        (None, StoredValue::Claimed(claim, _)) => {
            let holder = Holder {
                foreign: false,
                metadata: claim.metadata,
                ..foreign(Mode::Exclusive, expires_in)
            };
            outside = Some(Outside {
                holder,
                left,
                transient: true,
            });
        }
        (None, StoredValue::Foreign) => {
            outside = Some(Outside {
                holder: foreign(Mode::Exclusive, expires_in),
                left,
                transient: false,
            });
        }
        (None, StoredValue::Nothing) => {}
        (None, StoredValue::NoLock(kind)) => return Err(failure::no_lock(&format!("a {kind}"))),
    }
    let now_us = match seen.now_us {
        Some(now) => now,
        // Only for display, without the right to TIME: the value ends with the last hold, which
        // gives the time.
        None if parts.queue && own.is_none() => document
            .ends()
            .zip(left)
            .map_or(0, |(ends, left)| ends.saturating_sub(left))
            .saturating_mul(1000),
        None => {
            return Err(
                Error::new(Kind::Denied, "the user may not ask the server for its time")
                    .hint("ACL SETUSER USER +time"),
            );
        }
    };
    let policy = if parts.strict {
        value::stored(policy)?
    } else {
        readable(policy)?.map_or(Ok(None), value::stored)?
    };
    match policy.as_ref().map(|policy| read_policy(&policy.value)) {
        Some(Err(error)) if parts.strict => return Err(error),
        Some(Ok(policy)) => document.set_run_record(policy),
        _ => {}
    }
    let mut stored_queue = StoredQueue::default();
    if parts.most {
        let [outbox, ordered, queue @ ..] = rest else {
            return Err(failure::unreadable());
        };
        history::fill(&mut document, outbox)?;
        stored_queue = StoredQueue::read(ordered, queue)?;
    }
    let version = TairVersion {
        stored,
        is_warning: false,
        policy,
        stored_queue,
    };
    Ok(Snapshot {
        document,
        now_us,
        fence: seen.counter.map(Fence),
        outside,
        base,
        apart: false,
        version,
    })
}

/// Reads a run record. An unreadable one is an error that denies every run, since it may be a
/// start.
fn read_policy(json: &str) -> Result<RunRecord> {
    serde_json::from_str(json).map_err(|error| {
        Error::new(Kind::Data, "the record of starts can't be read")
            .hint("another program wrote it; delete …:starts")
            .source(error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreadable_policy_is_an_error() {
        assert!(read_policy("{}").unwrap() == RunRecord::default());
        assert_eq!(read_policy("7").unwrap_err().kind, Kind::Data);
    }
}
