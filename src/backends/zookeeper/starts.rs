//! What the last runs of a lock have left for those after them: at-least, skew guard, and once.
//!
//! They are two nodes beside the lock, written in the transaction that grants. The server's clock is what it writes into the nodes
//! that are made: a start was when its node was last written, and it is now when a node is made for that. It is the leader's, so that
//! another leader's may go ahead or behind: what began in the future refuses once, and by more than its length nothing else.
//!
//! The worst interleavings:
//! - **The answer to a grant is lost:** the mark of the grant was made in the same transaction. Asked again, it is there, and no
//!   start is recorded anew.
//! - **Somebody joins the line between a look and the joining:** the joining can't tell. So a start is recorded by who is known to be
//!   first, in a step of its own: nobody goes by one that is not to be.
//! - **Somebody takes and frees the lock between a try's look and its step**, which has no start to record: each grant writes the
//!   record beside the lock, and the step goes only by the version that was read before all that it was judged by. Readers, who come
//!   together, don't: they look at what was left after they joined, and take their grant back if need be.
//! - **The session ends between being first in line and the grant:** that checks the contender's node, and records nothing then.
//! - **One waits whom at-least keeps:** it stays first in line, without a mark of its grant. So others see that nobody has the lock,
//!   and other libraries don't take it either.
//! - **A release is late:** it writes what became of a start only into what is of its own fence, in the version that it has read.

use serde::{Serialize, de::DeserializeOwned};

use super::{
    ZooKeeper,
    acquire::LOOKS,
    failure::{self, Asked, Fault},
    history::make,
    hold::{Hold, Seen, unexpected},
    names::{Names, way_to},
    session::{Ensemble, Purpose, Session, VISIT},
    wire::{Answer, Code, Node, Reply, Request as Ask, Stat},
};
use crate::lock::{Fence, Key, Paced, Record, Refusal, Request, Result, Stage, Start, Terms, random};

/// One of the two nodes.
#[derive(Clone, Debug)]
struct Kept<T> {
    says: T,
    version: i32,
}

/// What both say.
#[derive(Clone, Debug, Default)]
pub(super) struct Starts {
    paced: Option<Kept<Paced>>,
    once: Option<Kept<Start>>,
}

/// What one in line is judged by.
#[derive(Clone, Debug, Default)]
pub(super) struct Basis {
    pub(super) starts: Starts,
    /// The version of the record beside the lock, which each grant writes, before that.
    pub(super) version: i32,
    /// The server's time in ms, if it was asked for.
    now: Option<u64>,
}

/// A start that is about to be recorded.
#[derive(Clone, Debug, Default)]
pub(super) struct Beginning {
    then: Starts,
    changes: Vec<Change>,
}

/// A change of a node, as a step of a transaction.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Make(String, Vec<u8>),
    Write(String, Vec<u8>, i32),
    Remove(String, i32),
}

impl Change {
    pub(super) fn step(&self) -> Ask<'_> {
        match self {
            Self::Make(path, data) => Ask::Create { path, data, node: Node::Persistent },
            Self::Write(path, data, version) => Ask::WriteSince { path, data, version: *version },
            Self::Remove(path, version) => Ask::DeleteSince { path, version: *version },
        }
    }
}

fn json(what: &impl Serialize) -> Vec<u8> {
    // Strings and numbers can be written.
    serde_json::to_vec(what).unwrap_or_default()
}

/// What a node says, if it is there.
fn kept<T: DeserializeOwned>(answer: Option<Answer>) -> Result<Option<(Kept<T>, Stat)>> {
    match answer {
        Some(Ok(Reply::Data { data, stat })) => {
            let says = serde_json::from_slice(&data).map_err(|_| failure::unreadable())?;
            Ok(Some((Kept { says, version: stat.version }, stat)))
        }
        Some(Err(Code::NoNode)) => Ok(None),
        answer => Err(unexpected(answer)),
    }
}

/// What is written can't name its own time.
fn fill(at_ms: &mut u64, written: i64) {
    if *at_ms == 0 {
        *at_ms = u64::try_from(written).unwrap_or_default();
    }
}

/// Whether there is something to record.
pub(super) fn records(request: &Request) -> bool {
    request.terms.as_ref().is_some_and(Terms::record_anything)
}

fn next<T>(before: Option<&Kept<T>>) -> i32 {
    before.map_or(0, |kept| kept.version.wrapping_add(1))
}

impl Starts {
    /// What reads them.
    pub(super) fn paths(names: &Names) -> [String; 2] {
        [names.paced(), names.once()]
    }

    /// From the answers to that.
    pub(super) fn read(paced: Option<Answer>, once: Option<Answer>) -> Result<Self> {
        let paced = kept::<Paced>(paced)?.map(|(mut kept, stat)| {
            fill(&mut kept.says.at_ms, stat.mtime);
            kept
        });
        let once = kept::<Start>(once)?.map(|(mut kept, stat)| {
            fill(&mut kept.says.at_ms, stat.mtime);
            kept
        });
        Ok(Self { paced, once })
    }

    pub(super) fn record(&self) -> Record {
        Record { paced: self.paced.as_ref().map(|kept| kept.says.clone()), start: self.once.as_ref().map(|kept| kept.says.clone()) }
    }

    /// Whether the time tells whether one with these terms is refused.
    fn matter_to(&self, terms: Option<&Terms>) -> bool {
        let guarded = terms.is_some_and(|terms| terms.skew_guard.is_some());
        self.paced.as_ref().is_some_and(|kept| kept.says.at_least_ms > 0 || guarded && kept.says.guard_ms > 0)
            || self.once.is_some() && terms.is_some_and(|terms| terms.once.is_some())
    }

    /// What takes down what became of the start of the hold with this fence.
    pub(super) fn end(&self, names: &Names, fence: Fence, stage: Stage) -> Vec<Change> {
        let mut record = self.record();
        if !record.end(fence, stage) {
            return Vec::new();
        }
        let mut changes = Vec::new();
        if let Some(kept) = self.paced.as_ref().filter(|_| record.paced.is_none()) {
            changes.push(Change::Remove(names.paced(), kept.version));
        }
        if let (Some(kept), Some(start)) = (&self.once, &record.start)
            && kept.says != *start
        {
            changes.push(Change::Write(names.once(), json(start), kept.version));
        }
        changes
    }

    /// What removes both, if they are of no use to anybody any more; `None` if they are of some.
    pub(super) fn removal(&self, [of_paced, of_once]: [&str; 2], now_ms: u64) -> Option<Vec<Change>> {
        if !self.record().relevant(now_ms).is_zero() {
            return None;
        }
        let paced = self.paced.as_ref().map(|kept| Change::Remove(of_paced.to_owned(), kept.version));
        let once = self.once.as_ref().map(|kept| Change::Remove(of_once.to_owned(), kept.version));
        Some(paced.into_iter().chain(once).collect())
    }
}

impl Basis {
    /// As it was just after a node of ours was made.
    pub(super) fn at(starts: Starts, made: &Stat) -> Self {
        Self { starts, version: 0, now: u64::try_from(made.ctime).ok() }
    }

    /// The start that follows.
    pub(super) fn begin(&self, names: &Names, request: &Request, fence: Fence) -> Beginning {
        let Starts { paced, once } = &self.starts;
        let mut record = self.starts.record();
        // Where the time was not asked for it makes no difference.
        record.begin(request, fence, self.now.unwrap_or_default());
        let mut beginning = Beginning::default();
        let change = |path: String, data: Vec<u8>, before: Option<i32>| match before {
            Some(version) => Change::Write(path, data, version),
            None => Change::Make(path, data),
        };
        if let Some(says) = record.paced.filter(|paced| paced.fence == fence) {
            let says = Paced { at_ms: 0, ..says };
            beginning.changes.push(change(names.paced(), json(&says), paced.as_ref().map(|kept| kept.version)));
            beginning.then.paced = Some(Kept { says, version: next(paced.as_ref()) });
        }
        if let Some(says) = record.start.filter(|start| start.fence == fence) {
            let says = Start { at_ms: 0, ..says };
            beginning.changes.push(change(names.once(), json(&says), once.as_ref().map(|kept| kept.version)));
            beginning.then.once = Some(Kept { says, version: next(once.as_ref()) });
        }
        beginning
    }
}

impl Beginning {
    pub(super) fn steps(&self) -> impl Iterator<Item = Ask<'_>> {
        self.changes.iter().map(Change::step)
    }

    /// What there is, once it is done: `None` if it isn't known when that was.
    pub(super) fn done(self, at: Option<i64>) -> Option<Starts> {
        let (at, Self { mut then, .. }) = (at?, self);
        if let Some(Kept { says, .. }) = &mut then.paced {
            fill(&mut says.at_ms, at);
        }
        if let Some(Kept { says, .. }) = &mut then.once {
            fill(&mut says.at_ms, at);
        }
        Some(then)
    }
}

/// A node that is made and dropped to learn the time.
pub(super) fn moment(folder: &str) -> String {
    format!("{folder}/%now-{:016x}", random())
}

/// What does that.
pub(super) fn ask_time(path: &str) -> [Ask<'_>; 2] {
    [Ask::Create { path, data: &[], node: Node::Ephemeral }, Ask::Delete { path }]
}

/// The time in ms, by the answer to the first of these.
pub(super) fn time(answer: Option<&Answer>) -> Option<u64> {
    match answer {
        Some(Ok(Reply::Made { stat, .. })) => u64::try_from(stat.ctime).ok(),
        _ => None,
    }
}

impl Hold {
    /// The line, what lies beside the lock, and what one in line is judged by; the time too where that is likely to matter.
    pub(super) async fn read_all(&mut self, ensemble: &Ensemble, request: &Request) -> Asked<Seen> {
        let Names { lock, meta, .. } = self.names.clone();
        let [paced, once] = Starts::paths(&self.names);
        let moment = moment(self.names.folder());
        let mut asks = Vec::new();
        if self.place.is_none() {
            asks.push(Ask::Sync { path: &lock });
        }
        let synced = asks.len();
        asks.extend([Ask::Exists { path: &meta }, Ask::Children { path: &lock }, Ask::Children { path: &meta }]);
        asks.extend([Ask::Read { path: &paced }, Ask::Read { path: &once }]);
        // A waiter asks for it when its turn comes.
        let timed = request.terms.is_some() && !request.waiting;
        asks.extend(timed.then(|| ask_time(&moment)).into_iter().flatten());
        let mut answers = self.ask(ensemble, &asks).await?.into_iter().skip(synced);
        let version = match answers.next() {
            Some(Ok(Reply::Stat(stat))) => stat.version,
            // As it will be when it is made.
            Some(Err(Code::NoNode)) => 0,
            answer => return Err(unexpected(answer).into()),
        };
        let seen = Seen::read(answers.by_ref().take(2).collect())?;
        let starts = Starts::read(answers.next(), answers.next())?;
        let now = time(answers.next().as_ref().filter(|_| timed));
        Ok(Seen { basis: Some(Basis { starts, version, now }), ..seen })
    }

    /// Why one whom nobody is before is not to be granted the lock.
    pub(super) async fn judge(&mut self, ensemble: &Ensemble, terms: Option<&Terms>, basis: &mut Basis) -> Asked<Option<Box<Refusal>>> {
        if !basis.starts.matter_to(terms) {
            return Ok(None);
        }
        if basis.now.is_none() {
            let moment = moment(self.names.folder());
            let made = self.ask(ensemble, &ask_time(&moment)).await?.into_iter().next();
            basis.now = time(made.as_ref());
            if basis.now.is_none() {
                return Err(unexpected(made).into());
            }
        }
        Ok(basis.starts.record().judge(terms, &self.token, basis.now.unwrap_or_default()).map(Box::new))
    }

    /// What takes down what became of this hold's start, as far as it has one.
    pub(super) async fn ending(&mut self, ensemble: &Ensemble, stage: Option<Stage>) -> Asked<Vec<Change>> {
        // What becomes of a nested hold is nothing to the run around it.
        let (Some(stage), Some(fence), true) = (stage, self.place.as_ref().map(|place| place.fence), self.root) else {
            return Ok(Vec::new());
        };
        // Of what is known only the first attempt makes use.
        let starts = if let Some(starts) = self.starts.take() {
            starts
        } else {
            let [paced, once] = Starts::paths(&self.names);
            let mut answers = self.ask(ensemble, &[Ask::Read { path: &paced }, Ask::Read { path: &once }]).await?.into_iter();
            Starts::read(answers.next(), answers.next())?
        };
        Ok(starts.end(&self.names, fence, stage))
    }
}

impl ZooKeeper {
    /// Claims the warning of this level about a hold; whether nobody had one of that level or a higher one.
    pub(super) async fn ask_warning(&mut self, key: &Key, fence: Fence, level: u32) -> Result<bool> {
        self.options().check()?;
        let names = self.names(key);
        let mut session = Session::open(&self.ensemble, VISIT, Purpose::Visit).await?;
        claim_warning(&mut session, &self.ensemble, &names, fence, level).await.map_err(Fault::into_error)
    }
}

async fn claim_warning(session: &mut Session, ensemble: &Ensemble, names: &Names, fence: Fence, level: u32) -> Asked<bool> {
    let (path, data, folders) = (names.warned(), json(&(fence, level)), way_to(&names.meta));
    for _ in 0..LOOKS {
        let mut answers = session.ask(ensemble, &[Ask::Sync { path: &path }, Ask::Read { path: &path }]).await?;
        let ask = match answers.pop() {
            Some(Ok(Reply::Data { data: said, stat })) => {
                if serde_json::from_slice::<(Fence, u32)>(&said).is_ok_and(|said| said >= (fence, level)) {
                    return Ok(false);
                }
                Ask::WriteSince { path: &path, data: &data, version: stat.version }
            }
            Some(Err(Code::NoNode)) => Ask::Create { path: &path, data: &data, node: Node::Persistent },
            answer => return Err(unexpected(answer).into()),
        };
        match session.ask(ensemble, &[ask]).await?.pop() {
            Some(Ok(_)) => return Ok(true),
            Some(Err(Code::BadVersion | Code::NodeExists)) => {}
            // A lock that only other libraries have taken so far.
            Some(Err(Code::NoNode)) => drop(session.ask(ensemble, &make(&folders)).await?),
            answer => return Err(unexpected(answer).into()),
        }
    }
    Err(failure::unsettled().into())
}
