//! Taking a lock away from its holder.
//!
//! A break stands in the mark of the grant, which a renewal reads after its write in the same go, over the same session: what
//! it reads is at least as new as what a majority confirmed to it. The session lasts on by itself as long as its process
//! does, so that whoever breaks waits for a whole lease before the eviction.
//!
//! The worst interleavings:
//! - **The hold ends, or another begins, beside a break or an eviction:** both check the contender's node, whose name with its
//!   number is never given again, and which was found by the number of the change that made it.
//! - **Holds enter or leave, or the session is handed down, meanwhile:** they write the mark too, each of them only if nobody
//!   did since it was read.
//! - **The holder that is evicted lives on:** it hears that its node is gone and stops, which takes a moment. Its mark stays,
//!   for the next one to settle for, but says nothing any more: the hold is remembered already.

use super::{
    ZooKeeper,
    acquire::LOOKS,
    contender::heads,
    failure::{self, Asked, Fault},
    history::{Run, make},
    hold::{Hold, Seen, line_of, listed, unexpected},
    look::fence as fence_of,
    names::{Memory, Names, guid, way_to},
    record::{Granted, Last},
    session::{Ensemble, Purpose, Session, VISIT},
    wire::{Code, Node, Reply, Request as Ask, Stat},
};
use crate::lock::{Break, Fence, Key, Past, Result};

/// A hold that is to be broken.
struct Target {
    /// The contender's node.
    path: String,
    /// The mark of its grant, and what that says.
    mark: String,
    granted: Granted,
    stat: Stat,
    /// The node of its permit, and its second one in the line.
    besides: Vec<String>,
}

impl ZooKeeper {
    pub(super) async fn ask_mark(&mut self, key: &Key, fence: Fence, mark: &Break) -> Result<bool> {
        self.options().check()?;
        let names = self.names(key);
        let mut session = Session::open(&self.ensemble, VISIT, Purpose::Visit).await?;
        put_mark(&mut session, &self.ensemble, &names, fence, mark).await.map_err(Fault::into_error)
    }

    pub(super) async fn ask_evict(&mut self, key: &Key, fence: Fence, mark: &Break) -> Result<bool> {
        self.options().check()?;
        let names = self.names(key);
        let mut session = Session::open(&self.ensemble, VISIT, Purpose::Visit).await?;
        evict(&mut session, &self.ensemble, &names, fence, mark).await.map_err(Fault::into_error)
    }
}

/// The holder with this fence, if there is one. Holders of other libraries have none.
async fn find(session: &mut Session, ensemble: &Ensemble, names: &Names, fence: Fence) -> Asked<Option<Target>> {
    let asked = [Ask::Sync { path: &names.lock }, Ask::Children { path: &names.meta }, Ask::Children { path: &names.lock }];
    let mut answers = session.ask(ensemble, &asked).await?;
    let (line, beside) = (line_of(answers.pop())?, listed(answers.pop())?);
    let seen = Seen { line, beside, missing: false, joined: false, basis: None };
    let holders: Vec<_> = seen.line[..heads(&seen.line)]
        .iter()
        .filter_map(|one| one.guid().filter(|guid| seen.is_marked(guid)).map(|guid| (one, names.contender(&one.name), names.mark(guid))))
        .collect();
    let mut asked = Vec::new();
    for (_, path, mark) in &holders {
        asked.extend([Ask::Exists { path }, Ask::Read { path: mark }]);
    }
    let mut answers = session.ask(ensemble, &asked).await?.into_iter();
    for (one, path, mark) in holders {
        let (Some(Ok(Reply::Stat(own))), Some(Ok(Reply::Data { data, stat }))) = (answers.next(), answers.next()) else { continue };
        if fence_of(&own) == Some(fence) {
            let granted = Granted::read(&data).unwrap_or_default();
            let granted =
                Granted { fence: if matches!(granted.fence, Last::None) { Last::Fence(fence.0) } else { granted.fence }, ..granted };
            let number = granted.number().map(|number| names.permit(number));
            let besides = number.into_iter().chain(one.twin.as_ref().map(|twin| names.contender(twin))).collect();
            return Ok(Some(Target { path, mark, granted, stat, besides }));
        }
    }
    Ok(None)
}

async fn put_mark(session: &mut Session, ensemble: &Ensemble, names: &Names, fence: Fence, mark: &Break) -> Asked<bool> {
    for _ in 0..LOOKS {
        let Some(target) = find(session, ensemble, names, fence).await? else { return Ok(false) };
        let seen = target.granted.broken.as_ref().is_some_and(|known| known.seen);
        let says = Granted { broken: Some(Break { seen, ..mark.clone() }), ..target.granted }.write();
        let steps =
            vec![Ask::Check { path: &target.path }, Ask::WriteSince { path: &target.mark, data: &says, version: target.stat.version }];
        match session.ask(ensemble, &[Ask::All(steps)]).await?.pop() {
            Some(Ok(Reply::AllDone { .. })) => return Ok(true),
            Some(Ok(Reply::RolledBack { code: Code::NoNode | Code::BadVersion, .. })) => {}
            answer => return Err(unexpected(answer).into()),
        }
    }
    Err(failure::unsettled().into())
}

async fn evict(session: &mut Session, ensemble: &Ensemble, names: &Names, fence: Fence, mark: &Break) -> Asked<bool> {
    let (mut remember, mut numbered) = (true, true);
    for _ in 0..LOOKS {
        let Some(target) = find(session, ensemble, names, fence).await? else { return Ok(false) };
        let (end, why) = mark.into();
        let (metadata, started_ms) = (target.granted.metadata, u64::try_from(target.stat.ctime).ok());
        let run = Run::ending_now(Past { fence: Some(fence), started_ms, ended_ms: None, end, why, metadata }).node(names);
        let mut steps =
            vec![Ask::Delete { path: &target.path }, Ask::WriteSince { path: &target.mark, data: &[], version: target.stat.version }];
        let run = run.as_ref().filter(|_| remember);
        let besides = &target.besides[..if numbered { target.besides.len() } else { 0 }];
        let of_besides = steps.len()..steps.len() + besides.len();
        steps.extend(besides.iter().map(|path| Ask::Delete { path }));
        let at_run = steps.len();
        steps.extend(run.map(|(path, data)| Ask::Create { path, data, node: Node::Persistent }));
        match session.ask(ensemble, &[Ask::All(steps)]).await?.pop() {
            Some(Ok(Reply::AllDone { .. })) => return Ok(true),
            // Removed from outside.
            Some(Ok(Reply::RolledBack { at, code: Code::NoNode })) if of_besides.contains(&at) => numbered = false,
            Some(Ok(Reply::RolledBack { at, code })) if run.is_some() && at == at_run => {
                // The first bad end of this lock; or one that can't be written, or was told by the holder already.
                let bad = way_to(&names.memory(Memory::Bad));
                let made = session.ask(ensemble, &make(&bad)).await?;
                remember = code == Code::NoNode && matches!(made.last(), Some(Ok(_) | Err(Code::NodeExists)));
            }
            Some(Ok(Reply::RolledBack { code: Code::NoNode | Code::BadVersion, .. })) => {}
            answer => return Err(unexpected(answer).into()),
        }
    }
    Err(failure::unsettled().into())
}

impl Hold {
    /// Notes in the mark, as it was read, that the holder has seen that it is being broken. Nothing depends on it.
    pub(super) async fn note_seen(&mut self, ensemble: &Ensemble, granted: &Granted, stat: &Stat) {
        let Some(says) = granted.seen() else { return };
        let path = self.names.mark(&guid(&self.token));
        let _ = self.ask(ensemble, &[Ask::WriteSince { path: &path, data: &says, version: stat.version }]).await;
    }
}
