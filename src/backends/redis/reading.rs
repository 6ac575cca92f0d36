//! Reading locks: plain read commands, so that a read-only user can run them.
//!
//! Values that the user may not read are unknown. Without the right to TIME, so are all durations.

use std::collections::{BTreeMap, BTreeSet};

use redis::{Pipeline, ServerErrorKind, Value};

use super::{
    REDIRECTIONS, Redis,
    cluster::Redirect,
    connection::ServerConnection,
    failure,
    names::{ENCODING, RedisNames, is_run_data, key_of, pattern, prefix, side_of, side_start},
    reply, starts,
    state::{LockSnapshot, foreign, read_shares, waiters},
};
use crate::lock::{Effect, Error, Fence, Key, Kind, LockState, Mode, Progress, Result, Which};

/// The number of commands per lock.
const PER_LOCK: usize = 11;

/// The number of locks read in one packet.
const BATCH: usize = 50;

fn add_reads(pipeline: &mut Pipeline, names: &RedisNames) {
    pipeline
        .cmd("TIME")
        .cmd("TYPE")
        .arg(&names.lock)
        // Bounded: with an empty namespace the key may hold another program's huge hash.
        .cmd("HRANDFIELD")
        .arg(&names.lock)
        .arg(16)
        .arg("WITHVALUES")
        .cmd("HLEN")
        .arg(&names.lock)
        .cmd("PTTL")
        .arg(&names.lock)
        .cmd("HGETALL")
        .arg(&names.record)
        .cmd("ZRANGE")
        .arg(&names.queue)
        .arg(0)
        .arg(-1)
        .arg("WITHSCORES")
        .cmd("HGETALL")
        .arg(&names.waiters)
        .cmd("GET")
        .arg(&names.fence)
        .cmd("HVALS")
        .arg(&names.shares)
        .cmd("ZRANGE")
        .arg(&names.ordered_queue)
        .arg(0)
        .arg(-1)
        .arg("WITHSCORES");
}

impl Redis {
    pub(super) async fn read_lock(&mut self, key: &Key) -> Result<LockState> {
        let names = self.names(key)?;
        let mut pipeline = redis::pipe();
        add_reads(&mut pipeline, &names);
        let replies = self.look(&names.lock, &pipeline).await?;
        read_state(key.clone(), &names, &replies)
    }

    pub(super) async fn read_locks(
        &mut self,
        start: &str,
        progress: &Progress,
    ) -> Result<Vec<LockState>> {
        let mut states = BTreeMap::new();
        for server in self.servers.all().await? {
            let mut conn = self.servers.to(server).await?;
            let keys: Vec<Key> = self
                .scan(&mut conn, start, progress)
                .await?
                .into_iter()
                .collect();
            let mut moved = Vec::new();
            for batch in keys.chunks(BATCH) {
                let mut pipeline = redis::pipe();
                let names: Vec<RedisNames> = batch
                    .iter()
                    .map(|key| self.names(key))
                    .collect::<Result<_>>()?;
                for names in &names {
                    add_reads(&mut pipeline, names);
                }
                let replies = exchange(&mut conn, &pipeline).await?;
                progress.part();
                for ((key, names), replies) in
                    batch.iter().zip(&names).zip(replies.chunks(PER_LOCK))
                {
                    if replies.iter().any(|reply| conn.redirect(reply).is_some()) {
                        moved.push(key);
                    } else {
                        add_held(&mut states, read_state(key.clone(), names, replies))?;
                    }
                }
            }
            self.servers.rest(conn);
            for key in moved {
                add_held(&mut states, self.read_lock(key).await)?;
                progress.part();
            }
        }
        Ok(states.into_values().collect())
    }

    /// Returns the keys that begin with `start` and may be locks: hashes, and in a namespace strings,
    /// as other libraries have them. A set, since a scan may return a key twice.
    async fn scan(
        &self,
        conn: &mut ServerConnection,
        start: &str,
        progress: &Progress,
    ) -> Result<BTreeSet<Key>> {
        let namespace = &self.options().namespace;
        let pattern = pattern(&(prefix(namespace) + &ENCODING.encode_str(start)));
        scan(
            conn,
            (&pattern, namespace.as_str().is_empty().then_some("hash")),
            |name| key_of(namespace, name),
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
        let namespace = self.options().namespace.clone();
        let wanted = |what: &str| {
            if which == Which::Kept {
                what == "starts"
            } else {
                is_run_data(what)
            }
        };
        let of = |name: &str| {
            side_of(&namespace, name)
                .filter(|(_, what)| wanted(what))
                .map(|(key, _)| key)
        };
        let pattern = pattern(&side_start(&namespace, start));
        let mut known = BTreeSet::new();
        for server in self.servers.all().await? {
            let mut conn = self.servers.to(server).await?;
            let keys = scan(&mut conn, (&pattern, None), of, progress).await?;
            if which == Which::All {
                known.extend(keys);
            } else {
                self.keep_denying(
                    &mut conn,
                    &keys.into_iter().collect::<Vec<_>>(),
                    &mut known,
                    progress,
                )
                .await?;
            }
            self.servers.rest(conn);
        }
        Ok(known.into_iter().collect())
    }

    /// Adds those of the keys to `known` whose run records may deny other runs.
    async fn keep_denying(
        &self,
        conn: &mut ServerConnection,
        keys: &[Key],
        known: &mut BTreeSet<Key>,
        progress: &Progress,
    ) -> Result<()> {
        for batch in keys.chunks(10 * BATCH) {
            let mut pipeline = redis::pipe();
            pipeline.cmd("TIME");
            for key in batch {
                pipeline.cmd("HGETALL").arg(&self.names(key)?.starts);
            }
            let replies = exchange(conn, &pipeline).await?;
            progress.part();
            let (time, records) = replies.split_first().ok_or_else(failure::unreadable)?;
            let now = readable(time)?
                .and_then(read_time)
                .and_then(|now| u64::try_from(now).ok())
                .unwrap_or_default();
            let kept = |record: &Value| {
                let record = starts::read_record(&reply::pairs(readable(record).ok()??)?);
                Some(record.current_denial(now).is_some())
            };
            // A run record that a cluster has moved can't be read here. Its key is added: it is
            // read later, with the lock.
            known.extend(
                batch
                    .iter()
                    .zip(records)
                    .filter(|(_, record)| kept(record) != Some(false))
                    .map(|(key, _)| key.clone()),
            );
        }
        Ok(())
    }

    /// Sends several commands in one packet to the server of the lock stored as `name`.
    pub(super) async fn look(&mut self, name: &str, pipeline: &Pipeline) -> Result<Vec<Value>> {
        let mut conn = self.servers.take(name).await?;
        for _ in 0..REDIRECTIONS {
            let mut replies = exchange(&mut conn, pipeline).await?;
            match replies.iter().find_map(|reply| conn.redirect(reply)) {
                None => {
                    self.servers.put_back(name, conn);
                    return Ok(replies);
                }
                Some(redirect @ Redirect::Moved(_)) => {
                    conn = self.servers.follow(name, redirect, conn).await?;
                }
                Some(redirect @ Redirect::Ask(_)) => {
                    let mut there = self.servers.follow(name, redirect, conn).await?;
                    for (command, reply) in pipeline.cmd_iter().zip(&mut replies) {
                        if there.redirect(reply).is_some() {
                            *reply = there
                                .ask(&command.get_packed_command())
                                .await
                                .map_err(|error| error.effect(Effect::NotApplied))?;
                        }
                    }
                    self.servers.rest(there);
                    return Ok(replies);
                }
            }
        }
        Err(failure::lost_in_cluster())
    }
}

/// Sends several read commands in one packet. A failure has changed nothing.
pub(super) async fn exchange(
    conn: &mut ServerConnection,
    pipeline: &Pipeline,
) -> Result<Vec<Value>> {
    let packed = pipeline.get_packed_pipeline();
    conn.connection
        .exchange(&packed, pipeline.len())
        .await
        .map_err(|error| error.effect(Effect::NotApplied))
}

fn add_held(states: &mut BTreeMap<Key, LockState>, read: Result<LockState>) -> Result<()> {
    match read {
        Ok(state) if state.holders.is_empty() => Ok(()),
        Ok(state) => {
            states.insert(state.key.clone(), state);
            Ok(())
        }
        // Another program's hash.
        Err(error) if error.kind == Kind::Data => Ok(()),
        Err(error) => Err(error),
    }
}

fn read_state(key: Key, names: &RedisNames, replies: &[Value]) -> Result<LockState> {
    let [
        time,
        kind,
        lock,
        lock_len,
        pttl,
        record,
        queue,
        infos,
        fence,
        shares,
        ordered_queue,
    ] = replies
    else {
        return Err(failure::unreadable());
    };
    let now = readable(time)?.and_then(read_time);
    // Without read rights the lock's state is unknown, and must not be reported as free.
    if let Value::ServerError(error) = kind {
        return Err(failure::refused(error));
    }
    let kind = reply::text(kind).ok_or_else(failure::unreadable)?;
    let snapshot = LockSnapshot {
        now,
        pttl: readable(pttl)?.and_then(reply::int),
        lock: readable(lock)?.and_then(reply::pairs).unwrap_or_default(),
        lock_len: readable(lock_len)?
            .and_then(reply::int)
            .and_then(|len| usize::try_from(len).ok())
            .unwrap_or_default(),
        record: readable(record)?.and_then(reply::pairs).unwrap_or_default(),
        shares: readable(shares)?.map(read_shares).unwrap_or_default(),
    };
    let holders = match &*kind {
        "hash" => {
            if let Value::ServerError(error) = lock {
                return Err(failure::refused(error));
            }
            snapshot.holders()?
        }
        "none" => LockSnapshot {
            lock: Vec::new(),
            ..snapshot
        }
        .holders()?,
        "string" => vec![foreign(Mode::Exclusive, snapshot.expires_in())],
        other => return Err(failure::no_lock(&format!("a {other}"))),
    };
    let pairs = |reply| Ok::<_, Error>(readable(reply)?.and_then(reply::pairs).unwrap_or_default());
    Ok(LockState {
        key,
        stored_as: names.lock.clone(),
        holders,
        waiters: waiters(now, [pairs(queue)?, pairs(ordered_queue)?], &pairs(infos)?),
        last_fence: readable(fence)?
            .and_then(reply::int)
            .and_then(|fence| u64::try_from(fence).ok())
            .map(Fence),
        nodes: Vec::new(),
    })
}

/// Returns the reply; `None` if the user may not read the key, or if its type is wrong.
pub(in crate::backends) fn readable(reply: &Value) -> Result<Option<&Value>> {
    match reply {
        Value::ServerError(error)
            if error.kind() == Some(ServerErrorKind::NoPerm) || error.code() == "WRONGTYPE" =>
        {
            Ok(None)
        }
        Value::ServerError(error) => Err(failure::refused(error)),
        reply => Ok(Some(reply)),
    }
}

pub(in crate::backends) fn read_time(reply: &Value) -> Option<i64> {
    let [seconds, micros] = reply::items(reply)? else {
        return None;
    };
    Some(
        reply::int(seconds)?
            .saturating_mul(1000)
            .saturating_add(reply::int(micros)? / 1000),
    )
}

/// Returns the keys of the Redis names that match `pattern`. A set, since a scan may return a name
/// twice.
async fn scan(
    conn: &mut ServerConnection,
    (pattern, kind): (&str, Option<&str>),
    key_of: impl Fn(&str) -> Option<Key>,
    progress: &Progress,
) -> Result<BTreeSet<Key>> {
    let mut found = BTreeSet::new();
    let mut cursor = "0".to_owned();
    loop {
        let mut pipeline = redis::pipe();
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
        let replies = exchange(conn, &pipeline).await?;
        progress.part();
        cursor = add_scanned(replies.first(), &mut found, &key_of)?;
        if cursor == "0" {
            return Ok(found);
        }
    }
}

/// Adds the keys in the reply to a `SCAN`. Returns the next cursor.
pub(in crate::backends) fn add_scanned(
    reply: Option<&Value>,
    found: &mut BTreeSet<Key>,
    key_of: impl Fn(&str) -> Option<Key>,
) -> Result<String> {
    let reply = reply.ok_or_else(failure::unreadable)?;
    if let Value::ServerError(error) = reply {
        return Err(failure::refused(error));
    }
    let Some([next, names]) = reply::items(reply) else {
        return Err(failure::unreadable());
    };
    for name in reply::items(names).unwrap_or_default() {
        if let Value::BulkString(name) = name
            && let Ok(name) = str::from_utf8(name)
        {
            found.extend(key_of(name));
        }
    }
    reply::text(next).ok_or_else(failure::unreadable)
}
