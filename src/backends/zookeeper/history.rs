//! What is remembered of a lock's holds that are over, and of who did without.
//!
//! A run is a node named after its fence, made in the transaction that frees the lock; when that was, the node says itself.
//! A hold that was never given back is told by its mark, which is there until whoever followed gives the lock back; then the
//! mark becomes a run, in one step. A host that did without has a node whose version counts how often.
//!
//! The worst interleavings:
//! - **The answer to a release is lost:** a run has the name of its fence, and the transaction checks the contender's node.
//! - **The loser's note and the successor's step meet:** the successor makes a run only where there is none.
//! - **Somebody waits and vanishes:** nothing but a grant makes a mark.
//! - **A look takes place beside a grant or a release:** the marks are listed before the line, so that who comes between is
//!   in line, and of who goes the mark can't be read any more.
//! - **The folder isn't there, is full, or not for this user to write:** it is made; otherwise a release does without.

use serde::{Deserialize, Serialize};

use super::{
    ZooKeeper,
    failure::{self, Asked, Fault},
    hold::{Hold, Seen, Stale, line_of, listed, marked, unexpected},
    names::{Memory, Names, guid, way_to},
    record::{Granted, Last},
    session::{Ensemble, Purpose, Session, VISIT},
    starts::Starts,
    wire::{Answer, Code, Node, Reply, Request as Ask, Stat},
};
use crate::lock::{End, History, Key, Mode, Note, Parting, Past, REMEMBERED, Result, SKIPPING_HOSTS, Skips};

/// How many runs more than needed there may be before the oldest are removed.
const SPARE: usize = 16;

/// A hold that is over, as its node says it.
#[derive(Deserialize, Serialize)]
pub(super) struct Run {
    #[serde(flatten)]
    past: Past,
    /// It ended when this was written.
    #[serde(default, rename = "now")]
    ended_now: bool,
    /// How long it had been held, by its host's clock, where the time of its beginning was not known.
    #[serde(default, rename = "h", skip_serializing_if = "Option::is_none")]
    held_ms: Option<u64>,
}

impl Run {
    fn read(data: &[u8], stat: &Stat) -> Option<Past> {
        // What a newer version wrote in another way is not known.
        let Self { mut past, ended_now, held_ms } = serde_json::from_slice(data).ok()?;
        if ended_now {
            past.ended_ms = u64::try_from(stat.ctime).ok();
        }
        past.started_ms = past.started_ms.or(past.ended_ms.zip(held_ms).map(|(ended, held)| ended.saturating_sub(held)));
        Some(past)
    }
}

/// The path and the data of a node to be made.
pub(super) type Made = (String, Vec<u8>);

impl From<Past> for Run {
    fn from(past: Past) -> Self {
        Self { past, ended_now: false, held_ms: None }
    }
}

impl Run {
    pub(super) fn ending_now(past: Past) -> Self {
        Self { ended_now: true, ..past.into() }
    }

    /// As a node; `None` if it has no name.
    pub(super) fn node(&self, names: &Names) -> Option<Made> {
        // Strings and numbers can be written.
        Some((names.run(self.past.end.is_bad(), self.past.fence?), serde_json::to_vec(self).unwrap_or_default()))
    }
}

/// What kind of folder a run is in.
pub(super) fn memory_of(end: &End) -> Memory {
    if end.is_bad() { Memory::Bad } else { Memory::Fine }
}

/// Makes folders, if they are not there.
pub(super) fn make(folders: &[String]) -> Vec<Ask<'_>> {
    folders.iter().map(|path| Ask::Create { path, data: &[], node: Node::Persistent }).collect()
}

/// What removes marks and remembers what they say, in these folders.
fn burial<'a>(folders: &'a [String], stale: &'a [Stale]) -> Vec<Ask<'a>> {
    let mut asks = if stale.iter().any(|stale| stale.run.is_some()) { make(folders) } else { Vec::new() };
    for Stale { path: mark, run, .. } in stale {
        if let Some((path, data)) = run {
            asks.push(Ask::All(vec![Ask::Delete { path: mark }, Ask::Create { path, data, node: Node::Persistent }]));
        }
        // If it was remembered before, or can't be.
        asks.push(Ask::Delete { path: mark });
    }
    asks
}

#[derive(Deserialize, Serialize)]
struct Skip {
    host: String,
    reason: String,
}

impl Hold {
    /// How this hold, which is given back now, is remembered; `None` if nothing was done under it.
    pub(super) fn run(&self, parting: &Parting, kept: Option<(Granted, &Stat)>) -> Option<Run> {
        // Who gives back the last nested hold gives back what the outer one had.
        let end = parting.end.clone().or_else(|| (!self.root).then_some(End::Released))?;
        let place = self.place.as_ref()?;
        let (granted, since) = match kept {
            Some((granted, stat)) => (Some(granted), Some(stat.ctime)),
            None => (self.grant.clone(), self.since),
        };
        let started_ms = since.and_then(|since| u64::try_from(since).ok());
        let metadata = granted.and_then(|granted| granted.metadata);
        let past = Past { fence: Some(place.fence), started_ms, ended_ms: None, end, why: parting.why.clone(), metadata };
        let held_ms = parting.held_ms.filter(|_| self.root && past.started_ms.is_none());
        Some(Run { held_ms, ..Run::ending_now(past) })
    }

    /// Looks again at marks that seemed to be of holders that vanished: which still do, and what they say.
    pub(super) async fn still_stale(&mut self, ensemble: &Ensemble, marks: Vec<String>) -> Asked<Vec<Stale>> {
        let Names { lock, meta, .. } = self.names.clone();
        let paths: Vec<_> = marks.iter().map(|name| format!("{meta}/{name}")).collect();
        let mut asks: Vec<_> = paths.iter().map(|path| Ask::Read { path }).collect();
        asks.extend([Ask::Children { path: &lock }, Ask::Children { path: &meta }]);
        let mut answers = self.ask(ensemble, &asks).await?;
        let still = Seen::read(answers.split_off(marks.len()))?.stale();
        let mut stale = Vec::new();
        for ((name, path), answer) in marks.iter().zip(paths).zip(answers) {
            if still.contains(name) {
                let granted = marked(Some(answer))?.and_then(|(data, stat)| Some((Granted::read(&data)?, stat)));
                let alone = granted.as_ref().is_some_and(|(granted, _)| granted.mode() == Mode::Exclusive);
                let past = granted.and_then(|(granted, stat)| granted.past(stat.czxid, stat.ctime));
                let alone = past.as_ref().and_then(|past| past.fence).filter(|_| alone);
                stale.push(Stale { path, run: past.and_then(|past| Run::from(past).node(&self.names)), alone });
            }
        }
        Ok(stale)
    }

    /// Removes the marks of holds that vanished, and remembers what they say. Nobody needs to hear how that went: what is left
    /// is left to the next.
    pub(super) fn bury(&self, ensemble: &Ensemble) {
        let folders = way_to(&self.names.memory(Memory::Bad));
        if let Some(session) = &self.session {
            session.tell(ensemble, &burial(&folders, &self.stale));
        }
    }

    /// The same with the older ones, if there are many: nobody who followed them gave back anything.
    ///
    /// When one had the lock alone, all who came before were gone. So as long as its own mark stays, nobody is left less time
    /// to die in.
    pub(super) async fn bury_old(&mut self, ensemble: &Ensemble) {
        if self.stale.len() <= SPARE {
            return;
        }
        let newest = self.stale.iter().filter_map(|stale| stale.alone).max();
        let (old, rest): (Vec<_>, _) =
            std::mem::take(&mut self.stale).into_iter().partition(|stale| stale.alone.is_some() && stale.alone < newest);
        self.stale = rest;
        let folders = way_to(&self.names.memory(Memory::Bad));
        // Awaited, since a session that is given away is not kept.
        let _ = self.ask(ensemble, &burial(&folders, &old)).await;
    }

    /// The own mark, as that of a hold which was found to be gone.
    pub(super) fn own_mark(&self) -> Stale {
        let past = self.grant.clone().zip(self.place.as_ref()).and_then(|(granted, place)| {
            let since = self.since.unwrap_or(-1);
            Granted { fence: Last::Fence(place.fence.0), ..granted }.past(0, since)
        });
        Stale { alone: None, path: self.names.mark(&guid(&self.token)), run: past.and_then(|past| Run::from(past).node(&self.names)) }
    }

    /// Removes the oldest runs, if there are too many by the answer to whether their folder is there.
    ///
    /// What is too much today is so tomorrow: no failure here is worth a word.
    pub(super) async fn trim(&mut self, ensemble: &Ensemble, what: Memory, folder: &Answer) {
        if many_in(folder) > REMEMBERED + SPARE
            && let Some(session) = &mut self.session
        {
            trim(session, ensemble, &self.names, what).await;
        }
    }
}

/// How many there are in a folder, by the answer to whether it is there.
fn many_in(folder: &Answer) -> usize {
    match folder {
        Ok(Reply::Stat(stat)) => usize::try_from(stat.children).unwrap_or_default(),
        _ => 0,
    }
}

async fn trim(session: &mut Session, ensemble: &Ensemble, names: &Names, what: Memory) {
    let folder = names.memory(what);
    let Ok(mut answers) = session.ask(ensemble, &[Ask::Children { path: &folder }]).await else { return };
    let mut runs = listed(answers.pop()).unwrap_or_default();
    runs.sort();
    let many = runs.len().saturating_sub(REMEMBERED);
    let oldest: Vec<_> = runs[..many].iter().map(|run| format!("{folder}/{run}")).collect();
    session.tell(ensemble, &oldest.iter().map(|path| Ask::Delete { path }).collect::<Vec<_>>());
}

impl ZooKeeper {
    pub(super) async fn read_history(&mut self, key: &Key) -> Result<History> {
        self.options().check()?;
        let names = self.names(key);
        let mut session = Session::open(&self.ensemble, VISIT, Purpose::Visit).await?;
        let read: Asked<History> = history(&mut session, &self.ensemble, &names).await;
        read.map_err(Fault::into_error)
    }

    pub(super) async fn take_note(&mut self, key: &Key, note: &Note) -> Result<()> {
        self.options().check()?;
        let names = self.names(key);
        let mut session = Session::open(&self.ensemble, VISIT, Purpose::Visit).await?;
        let noted = match note {
            Note::Lost(past) => lost(&mut session, &self.ensemble, &names, past).await,
            Note::Skipped { host, reason, .. } => skipped(&mut session, &self.ensemble, &names, host, reason).await,
        };
        noted.map_err(Fault::into_error)
    }
}

async fn history(session: &mut Session, ensemble: &Ensemble, names: &Names) -> Asked<History> {
    let memories = [Memory::Bad, Memory::Fine, Memory::Skips].map(|what| names.memory(what));
    let [paced, once] = Starts::paths(names);
    let mut asked = vec![Ask::Sync { path: &names.lock }, Ask::Read { path: &paced }, Ask::Read { path: &once }];
    asked.extend([Ask::Children { path: &names.meta }, Ask::Children { path: &names.lock }]);
    asked.extend(memories.iter().map(|path| Ask::Children { path }));
    let mut answers = session.ask(ensemble, &asked).await?.into_iter().skip(1);
    let record = Starts::read(answers.next(), answers.next())?.record();
    let beside = listed(answers.next())?;
    // With something else than contenders in it, the line tells nothing of who is gone.
    let line = line_of(answers.next());
    let stale = line.map(|line| Seen { line, beside, missing: false, joined: false, basis: None }.stale()).unwrap_or_default();
    let mut paths: Vec<String> = stale.iter().map(|mark| format!("{}/{mark}", names.meta)).collect();
    for (folder, answer) in memories.iter().zip(answers) {
        paths.extend(listed(Some(answer))?.iter().map(|name| format!("{folder}/{name}")));
    }
    let reads: Vec<_> = paths.iter().map(|path| Ask::Read { path }).collect();
    let (mut found, mut vanished, mut skips) = (Vec::new(), Vec::new(), Vec::new());
    for (at, answer) in session.ask(ensemble, &reads).await?.into_iter().enumerate() {
        let Ok(Reply::Data { data, stat }) = answer else {
            if matches!(answer, Err(Code::NoNode)) {
                continue;
            }
            return Err(unexpected(Some(answer)).into());
        };
        if at < stale.len() {
            vanished.extend(Granted::read(&data).and_then(|granted| granted.past(stat.czxid, stat.ctime)));
        } else if paths[at].starts_with(&memories[2]) {
            let ms = |time| u64::try_from(time).ok();
            skips.extend(serde_json::from_slice::<Skip>(&data).ok().map(|skip| Skips {
                host: skip.host,
                count: u64::try_from(stat.version).unwrap_or_default(),
                since_ms: ms(stat.ctime),
                last_ms: ms(stat.mtime),
                reason: skip.reason,
            }));
        } else {
            found.extend(Run::read(&data, &stat));
        }
    }
    found.append(&mut vanished);
    Ok(History { record, ..History::new(found, skips) })
}

/// Remembers a loss, whatever was thought of that hold before.
async fn lost(session: &mut Session, ensemble: &Ensemble, names: &Names, past: &Past) -> Asked<()> {
    let (Some(fence), Some((path, data))) = (past.fence, Run::from(past.clone()).node(names)) else { return Ok(()) };
    let what = memory_of(&past.end);
    let other = names.run(what == Memory::Fine, fence);
    let asks = [
        Ask::Create { path: &path, data: &data, node: Node::Persistent },
        Ask::Write { path: &path, data: &data },
        Ask::Delete { path: &other },
    ];
    let Written { many, .. } = write(session, ensemble, &names.memory(what), &asks).await?;
    if many > REMEMBERED + SPARE {
        trim(session, ensemble, names, what).await;
    }
    Ok(())
}

/// Counts a host that did without: each time its node is written once more.
async fn skipped(session: &mut Session, ensemble: &Ensemble, names: &Names, host: &str, reason: &str) -> Asked<()> {
    let path = names.skips_of(host);
    // Strings can be written.
    let data = serde_json::to_vec(&Skip { host: host.into(), reason: reason.into() }).unwrap_or_default();
    let asks = [Ask::Create { path: &path, data: &[], node: Node::Persistent }, Ask::Write { path: &path, data: &data }];
    let Written { new, many } = write(session, ensemble, &names.memory(Memory::Skips), &asks).await?;
    if new && many > SKIPPING_HOSTS {
        session.ask(ensemble, &[Ask::Delete { path: &path }]).await?;
    }
    Ok(())
}

/// A node that was written.
struct Written {
    /// It was not there before.
    new: bool,
    /// How many there are in its folder.
    many: usize,
}

/// Makes a node, writes it, and does what else is asked; makes its folder before if that is not there.
async fn write(session: &mut Session, ensemble: &Ensemble, folder: &str, asks: &[Ask<'_>]) -> Asked<Written> {
    let folders = way_to(folder);
    let mut asked = [asks, &[Ask::Exists { path: folder }]].concat();
    for _ in 0..2 {
        let mut answers = session.ask(ensemble, &asked).await?;
        let many = answers.pop().map_or(0, |folder| many_in(&folder));
        let rest = answers.split_off(answers.len() - asks.len());
        match rest.get(1) {
            Some(Ok(_)) => return Ok(Written { new: rest[0].is_ok(), many }),
            Some(Err(Code::NoNode)) if answers.contains(&Err(Code::NoAuth)) => return Err(failure::refused(&Code::NoAuth).into()),
            Some(Err(Code::NoNode)) => asked = [&make(&folders)[..], asks, &[Ask::Exists { path: folder }]].concat(),
            answer => return Err(unexpected(answer.cloned()).into()),
        }
    }
    Err(failure::unsettled().into())
}
