//! The history of a lock: its ended holds, and the hosts that skipped.
//!
//! A history entry is a node named after its fence, made in the transaction that frees the lock.
//! The node itself tells when that was. A hold that was never released is known by its mark, which
//! stays until the successor releases the lock. One step then turns the mark into an entry. A host
//! that skipped has a node whose version is the count.
//!
//! The worst interleavings:
//! - **The answer to a release is lost:** an entry is named after its fence, and the transaction
//!   checks the contender's node.
//! - **The loser's note and the successor's step meet:** the successor makes an entry only if there
//!   is none.
//! - **A waiter vanishes:** only a grant makes a mark.
//! - **A look takes place during a grant or a release:** the marks are listed before the
//!   contenders. So a new holder is among the contenders, and the mark of a leaving one can't be
//!   read any more.
//! - **The folder is missing, is full, or this user may not write it:** dlock makes it; otherwise a
//!   release does without.

use serde::{Deserialize, Serialize};

use super::{
    ZooKeeper,
    failure::{self, ZkResult, unexpected},
    hold::{LockListing, StaleNode, ZkHold, contenders_of, listed, marked},
    names::{HistoryKind, ZkNames, guid, parents_of},
    record::{GrantMark, numbered},
    runs::RunRecordNode,
    session::ZkSession,
    wire::{Code, NodeKind, Reply, Stat, WireReply, WireRequest},
};
use crate::{
    backends::queue::{
        history::{SkipRecord, outdated, released, too_many},
        record::HoldRecord,
    },
    lock::{
        End, History, HistoryEntry, Key, Note, ReleaseInfo, Result, SKIPPING_HOSTS, SkipCount,
        forgotten_hosts,
    },
};

/// An ended hold, as its node contains it.
#[derive(Deserialize, Serialize)]
pub(super) struct Run {
    #[serde(flatten)]
    past: HistoryEntry,
    /// The hold ended when this was written.
    #[serde(default, rename = "now")]
    ended_now: bool,
    /// How long it had been held, by its host's clock, if its beginning was not known.
    #[serde(default, rename = "h", skip_serializing_if = "Option::is_none")]
    held_ms: Option<u64>,
}

impl Run {
    fn read(data: &[u8], stat: &Stat) -> Option<HistoryEntry> {
        // Entries that a newer version wrote in another format are left out.
        let Self {
            mut past,
            ended_now,
            held_ms,
        } = serde_json::from_slice(data).ok()?;
        if ended_now {
            past.ended_ms = u64::try_from(stat.ctime).ok();
        }
        past.started_ms = past.started_ms.or(past
            .ended_ms
            .zip(held_ms)
            .map(|(ended, held)| ended.saturating_sub(held)));
        Some(past)
    }
}

/// The path and the data of a node to create.
pub(super) type NewNode = (String, Vec<u8>);

impl From<HistoryEntry> for Run {
    fn from(past: HistoryEntry) -> Self {
        Self {
            past,
            ended_now: false,
            held_ms: None,
        }
    }
}

impl Run {
    pub(super) fn ending_now(past: HistoryEntry) -> Self {
        Self {
            ended_now: true,
            ..past.into()
        }
    }

    /// Returns the entry's node; `None` if it has no name.
    pub(super) fn node(&self, names: &ZkNames) -> Option<NewNode> {
        // Serializing strings and numbers can't fail.
        Some((
            names.run(self.past.end.is_bad(), self.past.fence?),
            serde_json::to_vec(self).unwrap_or_default(),
        ))
    }
}

/// Returns the kind of folder that an entry is in.
pub(super) fn history_folder_of(end: &End) -> HistoryKind {
    if end.is_bad() {
        HistoryKind::Bad
    } else {
        HistoryKind::Fine
    }
}

/// Makes folders that are missing.
pub(super) fn make(folders: &[String]) -> Vec<WireRequest<'_>> {
    folders
        .iter()
        .map(|path| WireRequest::Create(path, &[], NodeKind::Persistent))
        .collect()
}

/// Returns the operations that remove marks and put their history entries into these folders.
fn archiving<'a>(
    folders: &'a [String],
    stale: &'a [(&String, Option<NewNode>)],
) -> Vec<WireRequest<'a>> {
    let mut asks = if stale.iter().any(|(_, run)| run.is_some()) {
        make(folders)
    } else {
        Vec::new()
    };
    for (mark, run) in stale {
        if let Some((path, data)) = run {
            asks.push(WireRequest::All(vec![
                WireRequest::Delete(mark),
                WireRequest::Create(path, data, NodeKind::Persistent),
            ]));
        }
        // The entry exists already, or can't be made.
        asks.push(WireRequest::Delete(mark));
    }
    asks
}

/// Returns the marks with their history entries.
fn with_runs<'a>(names: &ZkNames, stale: &'a [StaleNode]) -> Vec<(&'a String, Option<NewNode>)> {
    let run = |hold_record: &HoldRecord| {
        Run::from(hold_record.history_entry(hold_record.fence?)?).node(names)
    };
    stale
        .iter()
        .map(|stale| (&stale.path, stale.hold_record.as_ref().and_then(run)))
        .collect()
}

impl ZkHold {
    /// Returns the history entry of this hold, which is given back now; `None` if nothing was done
    /// under it.
    pub(super) fn run(&self, info: &ReleaseInfo, kept: Option<(GrantMark, &Stat)>) -> Option<Run> {
        let place = self.place.as_ref()?;
        let (granted, since) = match kept {
            Some((granted, stat)) => (Some(granted), Some(stat.ctime)),
            None => (self.grant.clone(), self.since),
        };
        let started_ms = since.and_then(|since| u64::try_from(since).ok());
        let metadata = granted.and_then(|granted| granted.hold.metadata);
        let past = released(info, !self.root, place.fence, started_ms, metadata)?;
        let held_ms = info
            .held_ms
            .filter(|_| self.root && past.started_ms.is_none());
        Some(Run {
            held_ms,
            ..Run::ending_now(past)
        })
    }

    /// Reads marks again that seemed to be of vanished holders. Returns those that still are, with
    /// their content.
    pub(super) async fn still_stale(&mut self, marks: Vec<String>) -> ZkResult<Vec<StaleNode>> {
        let ZkNames { lock, meta, .. } = self.names.clone();
        let paths: Vec<_> = marks.iter().map(|name| format!("{meta}/{name}")).collect();
        let mut asks: Vec<_> = paths.iter().map(|path| WireRequest::Read(path)).collect();
        asks.extend([WireRequest::Children(&lock), WireRequest::Children(&meta)]);
        let mut answers = self.ask(&asks).await?;
        let still = LockListing::read(answers.split_off(marks.len()))?.stale();
        let mut stale = Vec::new();
        for ((name, path), answer) in marks.iter().zip(paths).zip(answers) {
            if still.contains(name) {
                let hold_record =
                    marked(Some(answer))?.and_then(|(data, stat)| vanished(&data, &stat));
                stale.push(StaleNode { path, hold_record });
            }
        }
        Ok(stale)
    }

    /// Removes the marks of vanished holds, and writes their history entries. It does not wait for
    /// the answer: the next holder does the rest.
    pub(super) fn archive(&self) {
        let folders = parents_of(&self.names.memory(HistoryKind::Bad));
        if let Some(session) = &self.session {
            session.tell(&archiving(&folders, &with_runs(&self.names, &self.stale)));
        }
    }

    /// Does likewise with those that no successor has to wait for any more, if there are many.
    pub(super) async fn archive_stale(&mut self) {
        let fence = |stale: &StaleNode| {
            stale
                .hold_record
                .as_ref()
                .and_then(|hold_record| hold_record.fence)
        };
        let Some(newest) = outdated(
            self.stale
                .iter()
                .filter_map(|stale| Some((stale.hold_record.as_ref()?, fence(stale)?))),
        ) else {
            return;
        };
        let (old, rest): (Vec<_>, _) = std::mem::take(&mut self.stale)
            .into_iter()
            .partition(|stale| fence(stale).is_some_and(|fence| fence < newest));
        self.stale = rest;
        let folders = parents_of(&self.names.memory(HistoryKind::Bad));
        // It waits for the answer, since a session that is given away is not kept.
        let _ = self
            .ask(&archiving(&folders, &with_runs(&self.names, &old)))
            .await;
    }

    /// Returns the own mark, as that of a hold that was found to be gone.
    pub(super) fn own_mark(&self) -> StaleNode {
        let hold_record = self
            .grant
            .clone()
            .zip(self.place.as_ref())
            .map(|(granted, place)| {
                let since_ms = self.since.and_then(|since| u64::try_from(since).ok());
                HoldRecord {
                    since_ms,
                    fence: Some(place.fence),
                    ..granted.hold
                }
            });
        StaleNode {
            path: self.names.mark(&guid(&self.token)),
            hold_record,
        }
    }

    /// Removes the oldest history entries, if the folder's state shows too many.
    ///
    /// A failure is not reported: a later release does the rest.
    pub(super) async fn trim(&mut self, what: HistoryKind, folder: &WireReply) {
        if too_many(many_in(folder)).is_some()
            && let Some(session) = &mut self.session
        {
            trim(session, &self.names, what).await;
        }
    }
}

/// Returns the content of a vanished hold's mark, with its fence and the time of its grant.
fn vanished(data: &[u8], stat: &Stat) -> Option<HoldRecord> {
    let hold = GrantMark::read(data)?.hold.named(numbered(stat.czxid)?);
    Some(HoldRecord {
        since_ms: u64::try_from(stat.ctime).ok(),
        ..hold
    })
}

/// Returns how many nodes a folder has, by the answer to whether it exists.
fn many_in(folder: &WireReply) -> usize {
    match folder {
        Ok(Reply::Stat(stat)) => usize::try_from(stat.num_children).unwrap_or_default(),
        _ => 0,
    }
}

async fn trim(session: &mut ZkSession, names: &ZkNames, what: HistoryKind) {
    let folder = names.memory(what);
    let Ok(mut answers) = session.ask(&[WireRequest::Children(&folder)]).await else {
        return;
    };
    let mut runs = listed(answers.pop()).unwrap_or_default();
    runs.sort();
    let oldest: Vec<_> = runs[..too_many(runs.len()).unwrap_or_default()]
        .iter()
        .map(|run| format!("{folder}/{run}"))
        .collect();
    session.tell(
        &oldest
            .iter()
            .map(|path| WireRequest::Delete(path))
            .collect::<Vec<_>>(),
    );
}

impl ZooKeeper {
    pub(super) async fn read_history(&mut self, key: &Key) -> Result<History> {
        let (mut session, names) = self.visit_lock(key).await?;
        Ok(history(&mut session, &names).await?)
    }

    pub(super) async fn take_note(&mut self, key: &Key, note: &Note) -> Result<()> {
        let (mut session, names) = self.visit_lock(key).await?;
        match note {
            Note::Lost(past) => lost(&mut session, &names, past).await?,
            Note::Skipped {
                host,
                reason,
                at_ms,
            } => {
                let skip = SkipRecord {
                    host: host.clone(),
                    reason: reason.clone(),
                    at_ms: *at_ms,
                };
                skipped(&mut session, &names, &skip).await?;
            }
        }
        Ok(())
    }
}

async fn history(session: &mut ZkSession, names: &ZkNames) -> ZkResult<History> {
    let memories = [HistoryKind::Bad, HistoryKind::Fine, HistoryKind::SkipCount]
        .map(|what| names.memory(what));
    let runs = names.runs();
    let mut asked = vec![WireRequest::Sync(&names.lock), WireRequest::Read(&runs)];
    asked.extend([
        WireRequest::Children(&names.meta),
        WireRequest::Children(&names.lock),
    ]);
    asked.extend(memories.iter().map(|path| WireRequest::Children(path)));
    let mut answers = session.ask(&asked).await?.into_iter().skip(1);
    let record = RunRecordNode::read(answers.next())?.record;
    let side_nodes = listed(answers.next())?;
    // A directory with other nodes than contenders does not tell which contenders are gone.
    let contenders = contenders_of(answers.next());
    let stale = contenders
        .map(|contenders| LockListing::of(contenders, side_nodes).stale())
        .unwrap_or_default();
    let mut paths: Vec<String> = stale
        .iter()
        .map(|mark| format!("{}/{mark}", names.meta))
        .collect();
    for (folder, answer) in memories.iter().zip(answers) {
        paths.extend(
            listed(Some(answer))?
                .iter()
                .map(|name| format!("{folder}/{name}")),
        );
    }
    let reads: Vec<_> = paths.iter().map(|path| WireRequest::Read(path)).collect();
    let (mut found, mut gone, mut skips) = (Vec::new(), Vec::new(), Vec::new());
    for (at, answer) in session.ask(&reads).await?.into_iter().enumerate() {
        let Ok(Reply::Data { data, stat }) = answer else {
            if matches!(answer, Err(Code::NoNode)) {
                continue;
            }
            return Err(unexpected(Some(answer)).into());
        };
        if at < stale.len() {
            gone.extend(
                vanished(&data, &stat)
                    .and_then(|hold_record| hold_record.history_entry(hold_record.fence?)),
            );
        } else if paths[at].starts_with(&memories[2]) {
            let ms = |time| u64::try_from(time).ok();
            skips.extend(
                serde_json::from_slice::<SkipRecord>(&data)
                    .ok()
                    .map(|skip| SkipCount {
                        host: skip.host,
                        count: u64::try_from(stat.version).unwrap_or_default(),
                        since_ms: ms(stat.ctime),
                        last_ms: ms(stat.mtime),
                        reason: skip.reason,
                    }),
            );
        } else {
            found.extend(Run::read(&data, &stat));
        }
    }
    found.append(&mut gone);
    Ok(History {
        record,
        ..History::new(found, skips)
    })
}

/// Writes a lost hold to the history, in place of any other entry of that hold.
async fn lost(session: &mut ZkSession, names: &ZkNames, past: &HistoryEntry) -> ZkResult<()> {
    let (Some(fence), Some((path, data))) = (past.fence, Run::from(past.clone()).node(names))
    else {
        return Ok(());
    };
    let what = history_folder_of(&past.end);
    let other = names.run(what == HistoryKind::Fine, fence);
    let asks = [
        WireRequest::Create(&path, &data, NodeKind::Persistent),
        WireRequest::Write(&path, &data),
        WireRequest::Delete(&other),
    ];
    let WrittenNode { many, .. } = write(session, &names.memory(what), &asks).await?;
    if too_many(many).is_some() {
        trim(session, names, what).await;
    }
    Ok(())
}

/// Counts a host that skipped: each time its node is written once more.
async fn skipped(session: &mut ZkSession, names: &ZkNames, skip: &SkipRecord) -> ZkResult<()> {
    let path = names.skips_of(&skip.host);
    // Serializing strings can't fail.
    let data = serde_json::to_vec(skip).unwrap_or_default();
    let asks = [
        WireRequest::Create(&path, &[], NodeKind::Persistent),
        WireRequest::Write(&path, &data),
    ];
    let WrittenNode { new, many } =
        write(session, &names.memory(HistoryKind::SkipCount), &asks).await?;
    if new && many > SKIPPING_HOSTS {
        forget_hosts(session, &names.memory(HistoryKind::SkipCount)).await?;
    }
    Ok(())
}

/// Forgets the hosts beyond the limit whose last skip is longest ago.
async fn forget_hosts(session: &mut ZkSession, folder: &str) -> ZkResult<()> {
    let mut answers = session.ask(&[WireRequest::Children(folder)]).await?;
    let paths: Vec<_> = listed(answers.pop())?
        .iter()
        .map(|host| format!("{folder}/{host}"))
        .collect();
    let answers = session
        .ask(
            &paths
                .iter()
                .map(|path| WireRequest::Exists(path))
                .collect::<Vec<_>>(),
        )
        .await?;
    let hosts = paths.iter().zip(answers).filter_map(|(path, answer)| {
        let Ok(Reply::Stat(stat)) = answer else {
            return None;
        };
        Some((u64::try_from(stat.mtime).ok(), path))
    });
    let gone: Vec<_> = forgotten_hosts(hosts.collect())
        .into_iter()
        .map(|path| WireRequest::Delete(path))
        .collect();
    session.ask(&gone).await?;
    Ok(())
}

/// A node that was written.
struct WrittenNode {
    /// Whether the node did not exist before.
    new: bool,
    /// How many nodes its folder has.
    many: usize,
}

/// Creates a node, writes it, and does the other requests. Creates its folder before if that is
/// missing.
async fn write(
    session: &mut ZkSession,
    folder: &str,
    asks: &[WireRequest<'_>],
) -> ZkResult<WrittenNode> {
    let folders = parents_of(folder);
    let mut asked = [asks, &[WireRequest::Exists(folder)]].concat();
    for _ in 0..2 {
        let mut answers = session.ask(&asked).await?;
        let many = answers.pop().map_or(0, |folder| many_in(&folder));
        let rest = answers.split_off(answers.len() - asks.len());
        match rest.get(1) {
            Some(Ok(_)) => {
                return Ok(WrittenNode {
                    new: rest[0].is_ok(),
                    many,
                });
            }
            Some(Err(Code::NoNode)) if answers.contains(&Err(Code::NoAuth)) => {
                return Err(failure::refused(&Code::NoAuth).into());
            }
            Some(Err(Code::NoNode)) => {
                asked = [&make(&folders)[..], asks, &[WireRequest::Exists(folder)]].concat();
            }
            answer => return Err(unexpected(answer.cloned()).into()),
        }
    }
    Err(failure::unsettled().into())
}
