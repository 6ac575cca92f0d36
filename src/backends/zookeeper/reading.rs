//! Reads locks, and removes the records of long unused ones. Each read uses a session of its own,
//! brought up to date.

use std::{collections::HashSet, time::Duration};

use super::{
    ZooKeeper,
    failure::{ZkResult, unexpected},
    hold::{LockListing, ZkHold, listed},
    inspect::{LockSummary, look},
    names::{HistoryKind, ZkNames, decode, folder, history_folder, meta_folder, runs_of},
    runs::RunRecordNode,
    session::ZkSession,
    wire::{Code, NodeKind, Reply, WireRequest},
};
use crate::lock::{Key, Kind, LockState, Progress, Renewal, Result, Token, Which};

/// The number of locks read in one packet.
const BATCH: usize = 500;

/// Returns the path, where an empty one means the root.
fn or_root(path: &str) -> &str {
    if path.is_empty() { "/" } else { path }
}

impl ZooKeeper {
    pub(super) async fn read_lock(&mut self, key: &Key) -> Result<LockState> {
        let (mut session, names) = self.visit_lock(key).await?;
        let asked = [
            WireRequest::Sync(&names.lock),
            WireRequest::Children(&names.lock),
            WireRequest::Children(&names.meta),
        ];
        let seen = LockListing::read(session.ask(&asked).await?)?;
        Ok(state(&mut session, key, &names, &seen).await?)
    }

    /// Returns whether the token's hold is there, and how long its session lasts if no renewal
    /// comes.
    pub(super) async fn look_for(&mut self, key: &Key, token: &Token) -> Result<Renewal> {
        let mut hold = ZkHold::new(&self.ensemble, key, token, true);
        hold.session = Some(self.visit().await?);
        let seen = hold.read_line(true).await?;
        if hold.owners_place(&seen).await?.is_none() {
            return Ok(Renewal::NotHeld);
        }
        let (renewal_node, now) = (
            hold.renewal_node(),
            format!("{}/%now-", hold.names.folder()),
        );
        let asked = [
            WireRequest::Read(&renewal_node),
            WireRequest::Create(&now, &[], NodeKind::Contender),
        ];
        let mut answers = hold.ask(&asked).await?.into_iter();
        let (data, renewed) = match answers.next() {
            Some(Ok(Reply::Data { data, stat })) => (data, stat.mtime),
            Some(Err(Code::NoNode)) => return Ok(Renewal::NotHeld),
            answer => return Err(unexpected(answer)),
        };
        // Where dlock may not make that node, durations are counted to the last known event.
        let now = match answers.next() {
            Some(Ok(Reply::Created { stat, .. })) => stat.ctime,
            _ => renewed,
        };
        let timeout = std::str::from_utf8(&data)
            .ok()
            .and_then(|text| text.parse().ok())
            .map(Duration::from_millis);
        let silent = Duration::from_millis(u64::try_from(now - renewed).unwrap_or_default());
        Ok(Renewal::Kept {
            expires_in: timeout.map(|timeout| timeout.saturating_sub(silent)),
        })
    }

    pub(super) async fn read_locks(
        &mut self,
        start: &str,
        progress: &Progress,
    ) -> Result<Vec<LockState>> {
        let mut session = self.visit().await?;
        let locks = folder(&self.options().chroot, &self.options().namespace);
        let asked = [
            WireRequest::Sync(or_root(&locks)),
            WireRequest::Children(or_root(&locks)),
        ];
        let names = listed(session.ask(&asked).await?.pop())?;
        let mut keys: Vec<Key> = names
            .iter()
            .filter_map(|name| decode(name))
            .filter(|key| key.as_str().starts_with(start))
            .collect();
        keys.sort();
        let mut states = Vec::new();
        for batch in keys.chunks(BATCH) {
            let names: Vec<ZkNames> = batch.iter().map(|key| self.ensemble.names(key)).collect();
            let asked = names.iter().flat_map(|names| {
                [
                    WireRequest::Children(&names.lock),
                    WireRequest::Children(&names.meta),
                ]
            });
            let answers = session.ask(&asked.collect::<Vec<_>>()).await?;
            progress.part();
            for ((key, names), both) in batch.iter().zip(&names).zip(answers.chunks(2)) {
                // A directory with other nodes is no lock.
                let seen = match LockListing::read(both.to_vec()) {
                    Err(error) if error.kind == Kind::Data => continue,
                    seen => seen?,
                };
                if !seen.contenders.is_empty() {
                    let state = state(&mut session, key, names, &seen).await?;
                    progress.part();
                    states.extend(Some(state).filter(|state| !state.holders.is_empty()));
                }
            }
        }
        Ok(states)
    }

    pub(super) async fn known_keys(
        &mut self,
        start: &str,
        which: Which,
        progress: &Progress,
    ) -> Result<Vec<Key>> {
        let mut session = self.visit().await?;
        let meta = meta_folder(&self.options().chroot, &self.options().namespace);
        let names = listed(
            session
                .ask(&[WireRequest::Sync(&meta), WireRequest::Children(&meta)])
                .await?
                .pop(),
        )?;
        let mut keys: Vec<Key> = names
            .iter()
            .filter_map(|name| decode(name))
            .filter(|key| key.as_str().starts_with(start))
            .collect();
        keys.sort();
        if which == Which::All {
            return Ok(keys);
        }
        let mut kept = Vec::new();
        for batch in keys.chunks(BATCH) {
            let paths: Vec<String> = batch
                .iter()
                .map(|key| self.ensemble.names(key).runs())
                .collect();
            let answers = session
                .ask(
                    &paths
                        .iter()
                        .map(|path| WireRequest::Read(path))
                        .collect::<Vec<_>>(),
                )
                .await?;
            progress.part();
            for (key, answer) in batch.iter().zip(answers) {
                if RunRecordNode::read(Some(answer))?.record.cooldown.is_some() {
                    kept.push(key.clone());
                }
            }
        }
        Ok(kept)
    }

    /// Removes the records of locks without a contender that were last taken at least `unused_for`
    /// ago. Fences don't depend on them.
    pub(super) async fn remove_records(
        &mut self,
        unused_for: Duration,
        progress: &Progress,
    ) -> Result<u64> {
        let mut session = self.visit().await?;
        let folder = meta_folder(&self.options().chroot, &self.options().namespace);
        let mut locks = remove(&mut session, &folder, unused_for, progress).await?;
        locks.extend(forget(&mut session, &folder, progress).await?);
        Ok(u64::try_from(locks.len()).unwrap_or(u64::MAX))
    }
}

/// Removes the records. Returns the names of their locks.
async fn remove(
    session: &mut ZkSession,
    folder: &str,
    unused_for: Duration,
    progress: &Progress,
) -> ZkResult<HashSet<String>> {
    let name_of = |path: &str| path[folder.len() + 1..].to_owned();
    let now = format!("{folder}/%now-");
    let asked = [
        WireRequest::Sync(folder),
        WireRequest::Children(folder),
        WireRequest::Create(&now, &[], NodeKind::Contender),
    ];
    let mut answers = session.ask(&asked).await?;
    let now = match answers.pop() {
        Some(Ok(Reply::Created { stat, .. })) => stat.ctime,
        Some(Err(Code::NoNode)) => return Ok(HashSet::new()),
        answer => return Err(unexpected(answer).into()),
    };
    let names = listed(answers.pop())?;
    let paths: Vec<String> = names
        .iter()
        .filter(|name| decode(name).is_some())
        .map(|name| format!("{folder}/{name}"))
        .collect();
    let mut removed = HashSet::new();
    for batch in paths.chunks(100) {
        let looks: Vec<_> = batch.iter().map(|path| WireRequest::Exists(path)).collect();
        let answers = session.ask(&looks).await?;
        progress.part();
        let unused = |answer: &_, most: i32| match answer {
            Ok(Reply::Stat(stat)) => {
                stat.num_children <= most
                    && u128::try_from(now - stat.mtime).is_ok_and(|ms| ms > unused_for.as_millis())
            }
            _ => false,
        };
        let old = |most: i32| {
            batch
                .iter()
                .zip(&answers)
                .filter(move |(_, answer)| unused(*answer, most))
                .map(|(path, _)| path)
        };
        for path in old(1).filter(|path| !old(0).any(|bare| bare == *path)) {
            if remove_whole(session, path, now).await? {
                removed.insert(name_of(path));
            }
            progress.part();
        }
        // A lock that is taken meanwhile gets a child, which prevents the deletion.
        let deletes: Vec<_> = old(0).map(|path| WireRequest::Delete(path)).collect();
        let outcomes = session.ask(&deletes).await?;
        progress.part();
        for (path, answer) in old(0).zip(outcomes) {
            match answer {
                Ok(_) => drop(removed.insert(name_of(path))),
                Err(Code::NoNode | Code::NotEmpty) => {}
                Err(_) => return Err(unexpected(Some(answer)).into()),
            }
        }
    }
    Ok(removed)
}

/// Removes a lock's node with the run records below it, if those don't count any more. Returns
/// whether it did.
async fn remove_whole(session: &mut ZkSession, path: &str, now: i64) -> ZkResult<bool> {
    let runs = runs_of(path);
    let mut answers = session
        .ask(&[WireRequest::Children(path), WireRequest::Read(&runs)])
        .await?
        .into_iter();
    let side_nodes = listed(answers.next())?;
    let removal =
        RunRecordNode::read(answers.next())?.removal(&runs, u64::try_from(now).unwrap_or_default());
    let Some(removal) = removal.filter(|_| side_nodes.len() == 1) else {
        return Ok(false);
    };
    // A lock that was taken meanwhile has another child, or a changed one.
    let steps = vec![removal.step(), WireRequest::Delete(path)];
    match session.ask(&[WireRequest::All(steps)]).await?.pop() {
        Some(Ok(Reply::AllDone { .. })) => Ok(true),
        Some(Ok(Reply::RolledBack {
            code: Code::NoNode | Code::NotEmpty | Code::BadVersion,
            ..
        })) => Ok(false),
        answer => Err(unexpected(answer).into()),
    }
}

/// Removes the history of locks that have no record any more. Returns their names.
async fn forget(
    session: &mut ZkSession,
    folder: &str,
    progress: &Progress,
) -> ZkResult<HashSet<String>> {
    let mut forgotten = HashSet::new();
    for what in [HistoryKind::Fine, HistoryKind::Bad, HistoryKind::SkipCount] {
        let memories = history_folder(folder, what);
        let names = listed(
            session
                .ask(&[WireRequest::Children(&memories)])
                .await?
                .pop(),
        )?;
        for batch in names.chunks(BATCH) {
            let records: Vec<_> = batch
                .iter()
                .map(|name| format!("{folder}/{name}"))
                .collect();
            let answers = session
                .ask(
                    &records
                        .iter()
                        .map(|path| WireRequest::Exists(path))
                        .collect::<Vec<_>>(),
                )
                .await?;
            progress.part();
            for (name, _) in batch
                .iter()
                .zip(answers)
                .filter(|(_, answer)| *answer == Err(Code::NoNode))
            {
                if forget_lock(session, &format!("{memories}/{name}")).await? {
                    forgotten.insert(name.clone());
                }
                progress.part();
            }
        }
    }
    Ok(forgotten)
}

/// Removes the history of one lock in this folder. Returns whether there was any.
async fn forget_lock(session: &mut ZkSession, memory: &str) -> ZkResult<bool> {
    let inside = listed(session.ask(&[WireRequest::Children(memory)]).await?.pop())?;
    let paths: Vec<_> = inside
        .iter()
        .map(|inside| format!("{memory}/{inside}"))
        .chain([memory.to_owned()])
        .collect();
    // A lock that is taken meanwhile makes its folder anew.
    match session
        .ask(
            &paths
                .iter()
                .map(|path| WireRequest::Delete(path))
                .collect::<Vec<_>>(),
        )
        .await?
        .pop()
    {
        Some(Ok(_)) => Ok(!inside.is_empty()),
        Some(Err(Code::NoNode | Code::NotEmpty)) => Ok(false),
        answer => Err(unexpected(answer).into()),
    }
}

async fn state(
    session: &mut ZkSession,
    key: &Key,
    names: &ZkNames,
    seen: &LockListing,
) -> ZkResult<LockState> {
    let LockSummary {
        holders,
        waiters,
        last_fence,
    } = look(session, names, seen, true, true).await?;
    Ok(LockState {
        key: key.clone(),
        stored_as: names.lock.clone(),
        holders,
        waiters,
        last_fence,
        nodes: Vec::new(),
    })
}
