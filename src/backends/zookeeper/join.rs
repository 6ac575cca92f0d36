//! Joining the line, and being granted the lock in the same step where nobody stands in it.

use super::{
    contender::{self, Contender},
    failure::{self, Asked},
    hold::{Hold, Place, Seen, Way, unexpected},
    look::fence,
    names::guid,
    record::{Granted, Last, Record, Said},
    session::Ensemble,
    starts::{Basis, Starts},
    wire::{Code, Node, Reply, Request as Ask},
};
use crate::lock::{Mode, Request};

/// What came of joining the line.
pub(super) enum Joined {
    /// The line after that.
    Seen(Box<Seen>),
    /// A directory was not there.
    NoWay,
    /// Something has changed since the last look.
    Changed,
}

impl Hold {
    /// Puts a node at the end of the line.
    ///
    /// If nobody seems to stand in line, by what was looked at before, the grant is marked in the same transaction: it is confirmed by
    /// it if nobody does, and taken back otherwise. What one first in line is judged by is read after that. `goes_by` is the version
    /// that the record beside the lock had before that look, and the number that a permit would have.
    pub(super) async fn join(
        &mut self,
        ensemble: &Ensemble,
        request: &Request,
        goes_by: Option<(i32, u32)>,
        ways: &[Way],
    ) -> Asked<Joined> {
        let (names, own, beat) = (self.names.clone(), guid(&self.token), self.beat());
        let (path, mark) = (names.contender(&contender::name(&own, request.mode)), names.mark(&own));
        let data = Said::write(request.detached, request.metadata.as_ref());
        let (record, ttl) = (Record::write(Last::Here), self.ttl());
        let number = goes_by.map(|(_, number)| number).unwrap_or_default();
        let (grant, numbered) = (Granted::of(request, Last::Here, number), names.permit(number));
        let says = grant.write();
        let [paced, once] = Starts::paths(&names);
        let mut requests: Vec<_> = ways.iter().map(|(path, node, data)| Ask::Create { path, data, node: *node }).collect();
        let create = Ask::Create { path: &path, data: &data, node: Node::Contender };
        let twin = names.contender(&contender::twin(&own, request.mode));
        let twin = Ask::Create { path: &twin, data: &data, node: Node::Contender };
        requests.push(if let Some((version, _)) = goes_by {
            let mut steps = vec![
                create,
                Ask::Create { path: &mark, data: &says, node: Node::Persistent },
                Ask::Create { path: &beat, data: ttl.as_bytes(), node: Node::Ephemeral },
                // Readers come together.
                if request.mode == Mode::Shared {
                    Ask::Write { path: &names.meta, data: &record }
                } else {
                    Ask::WriteSince { path: &names.meta, data: &record, version }
                },
            ];
            if grant.number().is_some() {
                steps.push(Ask::Create { path: &numbered, data: own.as_bytes(), node: Node::Ephemeral });
            }
            steps.push(twin);
            Ask::All(steps)
        } else {
            Ask::All(vec![create, twin])
        });
        requests.extend([Ask::Children { path: &names.lock }, Ask::Children { path: &names.meta }]);
        requests.extend([Ask::Read { path: &paced }, Ask::Read { path: &once }]);
        self.maybe_placed = true;
        let mut answers = self.ask(ensemble, &requests).await?;
        let mut seen = answers.split_off(ways.len() + 1);
        let (once, paced) = (seen.pop(), seen.pop());
        let ((path, stat), twin) = match answers.pop() {
            Some(Ok(Reply::AllDone { made: Some(made), last })) => (made, last),
            Some(Ok(Reply::RolledBack { code: Code::NoNode, .. })) => {
                self.maybe_placed = false;
                // Containers are newer than 3.4.
                self.no_containers = answers.contains(&Err(Code::Unimplemented));
                if answers.contains(&Err(Code::NoAuth)) {
                    return Err(failure::refused(&Code::NoAuth).into());
                }
                return Ok(Joined::NoWay);
            }
            // An earlier session of ours left its mark.
            Some(Ok(Reply::RolledBack { at: 0..=2, code: Code::NodeExists })) => {
                self.maybe_placed = false;
                self.remove(ensemble, &[&mark]).await?;
                return Ok(Joined::Changed);
            }
            // Somebody was granted the lock since we looked.
            Some(Ok(Reply::RolledBack { code: Code::BadVersion | Code::NodeExists, .. })) => {
                self.maybe_placed = false;
                return Ok(Joined::Changed);
            }
            answer => return Err(unexpected(answer).into()),
        };
        let stat = match stat {
            Some(stat) => Some(stat),
            None => self.stat(ensemble, &path).await?,
        };
        let name = |path: &str| path.rsplit_once('/').map(|(_, name)| name.to_owned());
        let contender = name(&path).and_then(|name| Contender::parse(&name));
        let twin = twin.as_deref().and_then(name);
        let contender = contender.map(|contender| contender.with(twin));
        let (Some(contender), Some(stat)) = (contender, stat) else { return Err(failure::unreadable().into()) };
        let fence = fence(&stat).ok_or_else(failure::unreadable)?;
        self.place = Some(Place { contender, path, fence });
        let free = goes_by.is_some();
        (self.grant, self.since) = (Some(grant), free.then_some(stat.ctime));
        self.starts = free.then(Starts::default);
        let mut basis = Basis::at(Starts::read(paced, once)?, &stat);
        let mut seen = Seen { joined: free, ..Seen::read(seen)? };
        // Somebody may have come and gone since what was left was read.
        if free && request.mode == Mode::Shared && self.judge(ensemble, None, &mut basis).await?.is_some() {
            self.unmark(ensemble).await?;
            seen.joined = false;
        }
        // A permit goes by how all was before it was counted, which is to be looked at then.
        seen.basis = Some(basis).filter(|_| free || !matches!(request.mode, Mode::Permits(_)));
        Ok(Joined::Seen(Box::new(seen)))
    }
}
