//! Looking at locks, and removing the records of those long unused. Each look is a session of its own, brought up to date.

use std::{collections::HashSet, time::Duration};

use super::{
    ZooKeeper,
    contender::{Contender, line},
    failure::{Asked, Fault},
    hold::{Hold, line_of, listed, unexpected},
    look::{Clock, Look, look},
    names::{LASTING, Memory, Names, decode, folder, lasting, memory_folder, meta_folder},
    session::{Ensemble, Purpose, Session, VISIT},
    starts::{Change, Starts},
    wire::{Code, Node, Reply, Request as Ask},
};
use crate::lock::{Key, LockState, Renewal, Result, Token};

/// A path, where the empty one is the root.
fn or_root(path: &str) -> &str {
    if path.is_empty() { "/" } else { path }
}

impl ZooKeeper {
    pub(super) async fn read_lock(&mut self, key: &Key) -> Result<LockState> {
        self.options().check()?;
        let names = self.names(key);
        let folder = meta_folder(&self.options().chroot, &self.options().namespace);
        let mut session = Session::open(&self.ensemble, VISIT, Purpose::Visit).await?;
        let read = async {
            let asked = [Ask::Sync { path: &names.lock }, Ask::Children { path: &names.lock }];
            let line = line_of(session.ask(&self.ensemble, &asked).await?.pop())?;
            state(&mut session, &self.ensemble, key, &names, &line, &folder).await
        };
        let read: Asked<LockState> = read.await;
        read.map_err(Fault::into_error)
    }

    /// Whether the token's hold is there, and how long its session lasts yet unless it is heard of.
    pub(super) async fn look_for(&mut self, key: &Key, token: &Token) -> Result<Renewal> {
        self.options().check()?;
        let now = format!("{}/%now-", meta_folder(&self.options().chroot, &self.options().namespace));
        let mut hold = Hold::new(key, token, self.names(key), true);
        hold.session = Some(Session::open(&self.ensemble, VISIT, Purpose::Visit).await?);
        let look = async {
            let seen = hold.read_line(&self.ensemble, true).await?;
            if hold.owners_place(&self.ensemble, &seen).await?.is_none() {
                return Ok(Renewal::NotHeld);
            }
            let beat = hold.beat();
            let asked = [Ask::Read { path: &beat }, Ask::Create { path: &now, data: &[], node: Node::Contender }];
            let mut answers = hold.ask(&self.ensemble, &asked).await?.into_iter();
            let (data, renewed) = match answers.next() {
                Some(Ok(Reply::Data { data, stat })) => (data, stat.mtime),
                Some(Err(Code::NoNode)) => return Ok(Renewal::NotHeld),
                answer => return Err(unexpected(answer).into()),
            };
            // Where that may not be made, lengths of time are counted to the last thing that happened.
            let now = match answers.next() {
                Some(Ok(Reply::Made { stat, .. })) => stat.ctime,
                _ => renewed,
            };
            let timeout = std::str::from_utf8(&data).ok().and_then(|text| text.parse().ok()).map(Duration::from_millis);
            let silent = Duration::from_millis(u64::try_from(now - renewed).unwrap_or_default());
            Ok(Renewal::Kept { expires_in: timeout.map(|timeout| timeout.saturating_sub(silent)) })
        };
        let look: Asked<Renewal> = look.await;
        look.map_err(Fault::into_error)
    }

    pub(super) async fn read_locks(&mut self, start: &str) -> Result<Vec<LockState>> {
        self.options().check()?;
        let (chroot, namespace) = (self.options().chroot.clone(), self.options().namespace.clone());
        let (locks, beside) = (folder(&chroot, &namespace), meta_folder(&chroot, &namespace));
        let mut session = Session::open(&self.ensemble, VISIT, Purpose::Visit).await?;
        let read = async {
            let asked = [Ask::Sync { path: or_root(&locks) }, Ask::Children { path: or_root(&locks) }];
            let names = listed(session.ask(&self.ensemble, &asked).await?.pop())?;
            let mut keys: Vec<Key> = names.iter().filter_map(|name| decode(name)).filter(|key| key.as_str().starts_with(start)).collect();
            keys.sort();
            let names: Vec<Names> = keys.iter().map(|key| Names::new(&chroot, &namespace, key)).collect();
            let asked: Vec<_> = names.iter().map(|names| Ask::Children { path: &names.lock }).collect();
            let lines = session.ask(&self.ensemble, &asked).await?;
            let mut states = Vec::new();
            for ((key, names), answer) in keys.iter().zip(&names).zip(lines) {
                // What holds something else is no lock.
                let Ok(line) = line(&listed(Some(answer))?) else { continue };
                if !line.is_empty() {
                    let state = state(&mut session, &self.ensemble, key, names, &line, &beside).await?;
                    states.extend(Some(state).filter(|state| !state.holders.is_empty()));
                }
            }
            Ok(states)
        };
        let read: Asked<Vec<LockState>> = read.await;
        read.map_err(Fault::into_error)
    }

    /// Removes the records of locks that were last taken so long ago and that nobody has or wants. Fences don't
    /// depend on them.
    pub(super) async fn remove_records(&mut self, unused_for: Duration) -> Result<u64> {
        self.options().check()?;
        let folder = meta_folder(&self.options().chroot, &self.options().namespace);
        let mut session = Session::open(&self.ensemble, VISIT, Purpose::Visit).await?;
        let removed = async {
            let mut locks = remove(&mut session, &self.ensemble, &folder, unused_for).await?;
            locks.extend(forget(&mut session, &self.ensemble, &folder).await?);
            Ok(u64::try_from(locks.len()).unwrap_or(u64::MAX))
        };
        let removed: Asked<u64> = removed.await;
        removed.map_err(Fault::into_error)
    }
}

/// Removes the records; returns the names of their locks.
async fn remove(session: &mut Session, ensemble: &Ensemble, folder: &str, unused_for: Duration) -> Asked<HashSet<String>> {
    let name_of = |path: &str| path[folder.len() + 1..].to_owned();
    let now = format!("{folder}/%now-");
    let asked = [Ask::Sync { path: folder }, Ask::Children { path: folder }, Ask::Create { path: &now, data: &[], node: Node::Contender }];
    let mut answers = session.ask(ensemble, &asked).await?;
    let now = match answers.pop() {
        Some(Ok(Reply::Made { stat, .. })) => stat.ctime,
        Some(Err(Code::NoNode)) => return Ok(HashSet::new()),
        answer => return Err(unexpected(answer).into()),
    };
    let names = listed(answers.pop())?;
    let paths: Vec<String> = names.iter().filter(|name| decode(name).is_some()).map(|name| format!("{folder}/{name}")).collect();
    let mut removed = HashSet::new();
    for batch in paths.chunks(100) {
        let looks: Vec<_> = batch.iter().map(|path| Ask::Exists { path }).collect();
        let answers = session.ask(ensemble, &looks).await?;
        let unused = |answer: &_, most: i32| match answer {
            Ok(Reply::Stat(stat)) => stat.children <= most && u128::try_from(now - stat.mtime).is_ok_and(|ms| ms > unused_for.as_millis()),
            _ => false,
        };
        let old = |most: i32| batch.iter().zip(&answers).filter(move |(_, answer)| unused(*answer, most)).map(|(path, _)| path);
        for path in old(LASTING).filter(|path| !old(0).any(|bare| bare == *path)) {
            if remove_whole(session, ensemble, path, now).await? {
                removed.insert(name_of(path));
            }
        }
        // One that is taken meanwhile gets a child, which keeps it.
        let deletes: Vec<_> = old(0).map(|path| Ask::Delete { path }).collect();
        for (path, answer) in old(0).zip(session.ask(ensemble, &deletes).await?) {
            match answer {
                Ok(_) => drop(removed.insert(name_of(path))),
                Err(Code::NoNode | Code::NotEmpty) => {}
                Err(_) => return Err(unexpected(Some(answer)).into()),
            }
        }
    }
    Ok(removed)
}

/// Removes a record with what the last runs have left beside it, if nobody goes by that any more; whether it did.
async fn remove_whole(session: &mut Session, ensemble: &Ensemble, path: &str, now: i64) -> Asked<bool> {
    let [paced, once, warned] = lasting(path);
    let asks = [Ask::Children { path }, Ask::Read { path: &paced }, Ask::Read { path: &once }, Ask::Exists { path: &warned }];
    let mut answers = session.ask(ensemble, &asks).await?.into_iter();
    let beside = listed(answers.next())?;
    let starts = Starts::read(answers.next(), answers.next())?;
    let Some(changes) = starts.removal([&paced, &once], u64::try_from(now).unwrap_or_default()) else { return Ok(false) };
    let mut steps: Vec<_> = changes.iter().map(Change::step).collect();
    if let Some(Ok(Reply::Stat(stat))) = answers.next() {
        steps.push(Ask::DeleteSince { path: &warned, version: stat.version });
    }
    if steps.len() != beside.len() {
        return Ok(false);
    }
    // One that was taken meanwhile has another child, or has changed one.
    steps.push(Ask::Delete { path });
    match session.ask(ensemble, &[Ask::All(steps)]).await?.pop() {
        Some(Ok(Reply::AllDone { .. })) => Ok(true),
        Some(Ok(Reply::RolledBack { code: Code::NoNode | Code::NotEmpty | Code::BadVersion, .. })) => Ok(false),
        answer => Err(unexpected(answer).into()),
    }
}

/// Removes what is remembered of locks that have no record any more; returns their names.
async fn forget(session: &mut Session, ensemble: &Ensemble, folder: &str) -> Asked<HashSet<String>> {
    let mut forgotten = HashSet::new();
    for what in [Memory::Fine, Memory::Bad, Memory::Skips] {
        let memories = memory_folder(folder, what);
        let names = listed(session.ask(ensemble, &[Ask::Children { path: &memories }]).await?.pop())?;
        let records: Vec<_> = names.iter().map(|name| format!("{folder}/{name}")).collect();
        let answers = session.ask(ensemble, &records.iter().map(|path| Ask::Exists { path }).collect::<Vec<_>>()).await?;
        for (name, answer) in names.iter().zip(answers) {
            if answer != Err(Code::NoNode) {
                continue;
            }
            let memory = format!("{memories}/{name}");
            let inside = listed(session.ask(ensemble, &[Ask::Children { path: &memory }]).await?.pop())?;
            let paths: Vec<_> = inside.iter().map(|inside| format!("{memory}/{inside}")).chain([memory.clone()]).collect();
            // A lock that is taken meanwhile makes its folder anew.
            match session.ask(ensemble, &paths.iter().map(|path| Ask::Delete { path }).collect::<Vec<_>>()).await?.pop() {
                Some(Ok(_)) if inside.is_empty() => {}
                Some(Ok(_)) => drop(forgotten.insert(name.clone())),
                Some(Err(Code::NoNode | Code::NotEmpty)) => {}
                answer => return Err(unexpected(answer).into()),
            }
        }
    }
    Ok(forgotten)
}

async fn state(session: &mut Session, ensemble: &Ensemble, key: &Key, names: &Names, line: &[Contender], folder: &str) -> Asked<LockState> {
    let Look { holders, waiters, last_fence } = look(session, ensemble, names, line, true, Clock::Make(folder)).await?;
    Ok(LockState { key: key.clone(), stored_as: names.lock.clone(), holders, waiters, last_fence, nodes: Vec::new() })
}
