//! Entering a hold that an ancestor has: a nested hold, with a session and a lease of its own.
//!
//! It lies beside the lock, not in its line. When the hold that the lock was taken with is given back first, it hands its
//! session down, sealed so that only holds of the same owner can open it, and those keep the session alive from then on.

use std::time::Duration;

use super::{
    ZooKeeper,
    acquire::negotiate,
    failure::{Asked, Fault},
    hold::{Hold, unexpected},
    names::{guid, holds_of, seal},
    record::Heirloom,
    session::{Ensemble, Session},
    wire::{Code, Node, Reply, Request as Ask},
};
use crate::lock::{self, Attempt, Grant, Request, Result, Ttl};

impl ZooKeeper {
    pub(super) async fn enter(&mut self, request: &Request) -> Result<Attempt> {
        let at = self.hold_or_new(request, false).await?;
        let outcome = self.ask_to_enter(at, request).await;
        let keep = match &outcome {
            Ok(Attempt::Granted(_)) => true,
            Ok(_) => false,
            Err(error) => error.is_transient(),
        };
        if !keep {
            let hold = self.holds.remove(at);
            if let Some(session) = hold.session {
                session.close(&self.ensemble).await;
            }
        }
        outcome
    }

    async fn ask_to_enter(&mut self, at: usize, request: &Request) -> Result<Attempt> {
        let hold = &mut self.holds[at];
        for _ in 0..2 {
            if hold.session.is_none() {
                hold.session = Some(negotiate(&self.ensemble, request).await?);
            }
            match hold.note(&self.ensemble).await {
                Err(Fault::Expired) => hold.forget(),
                Err(Fault::Error(error)) => return Err(error),
                Ok(attempt) => return Ok(attempt),
            }
        }
        Err(Fault::Expired.into_error())
    }
}

impl Hold {
    /// Notes this hold beside the lock, if its owner has the lock.
    async fn note(&mut self, ensemble: &Ensemble) -> Asked<Attempt> {
        let seen = self.read_line(ensemble, true).await?;
        let Some(place) = self.owners_place(ensemble, &seen).await? else { return Ok(Attempt::NotHeld) };
        let (beat, mark) = (self.beat(), self.names.mark(&guid(&self.token)));
        let ttl = self.session.as_ref().map(|session| session.timeout.as_millis().to_string()).unwrap_or_default();
        // Asked again, it is there already.
        let steps =
            [Ask::Create { path: &beat, data: ttl.as_bytes(), node: Node::Ephemeral }, Ask::Write { path: &beat, data: ttl.as_bytes() }];
        let mut noted = false;
        for step in steps {
            let all = vec![Ask::Check { path: &place.path }, Ask::Check { path: &mark }, step];
            match self.ask(ensemble, &[Ask::All(all)]).await?.pop() {
                Some(Ok(Reply::AllDone { .. })) => {
                    noted = true;
                    break;
                }
                Some(Ok(Reply::RolledBack { at: 0 | 1, code: Code::NoNode })) => return Ok(Attempt::NotHeld),
                Some(Ok(Reply::RolledBack { at: 2, code: Code::NodeExists | Code::NoNode })) => {}
                answer => return Err(unexpected(answer).into()),
            }
        }
        if !noted {
            return Ok(Attempt::NotHeld);
        }
        self.granted = true;
        let fence = place.fence;
        self.place = Some(place);
        let holds = self.holds(ensemble, false).await?.len();
        let Some(session) = &mut self.session else { return Err(Fault::Expired) };
        let grant = Grant {
            fence,
            ttl: Ttl::new(session.timeout)?,
            holds: u32::try_from(holds).unwrap_or(u32::MAX),
            settle: Duration::ZERO,
            session: session.hand_over(),
        };
        session.let_go();
        Ok(Attempt::Granted(grant))
    }

    /// The nodes of all holds of this owner.
    pub(super) async fn holds(&mut self, ensemble: &Ensemble, sync: bool) -> Asked<Vec<String>> {
        let seen = self.read_line(ensemble, sync).await?;
        let start = holds_of(&guid(&self.token));
        Ok(seen.beside.into_iter().filter(|name| name.starts_with(&start)).map(|name| format!("{}/{name}", self.names.meta)).collect())
    }

    /// The session of the place, as its mark is to say from now on.
    pub(super) fn heirloom(&self) -> Vec<u8> {
        let Some(session) = &self.session else { return Vec::new() };
        let Some(lock::Session { id, password }) = session.password() else { return Vec::new() };
        let timeout_ms = u64::try_from(session.timeout.as_millis()).unwrap_or(u64::MAX);
        Heirloom { session: id, sealed: seal(&self.token, password), timeout_ms }.write()
    }

    /// Keeps the session of the place alive, if it was handed down to this nested hold. What that lasts, or `None` if it
    /// is over; the longest there is if it is still its owner's own affair.
    pub(super) async fn keep_heirloom(&mut self, ensemble: &Ensemble) -> Asked<Option<Duration>> {
        let Some(place) = self.place.clone() else { return Ok(None) };
        let mark = self.names.mark(&guid(&self.token));
        let data = match self.ask(ensemble, &[Ask::Read { path: &mark }]).await?.pop() {
            Some(Ok(Reply::Data { data, .. })) => data,
            Some(Err(Code::NoNode)) => return Ok(None),
            answer => return Err(unexpected(answer).into()),
        };
        let Some(Heirloom { session, sealed, timeout_ms }) = Heirloom::read(&data) else { return Ok(Some(Duration::MAX)) };
        let handed = lock::Session { id: session, password: seal(&self.token, sealed) };
        let mut session = Session::handed_over(handed, Duration::from_millis(timeout_ms));
        // A write of that session, with its node checked: what a majority confirmed.
        let steps = vec![Ask::Check { path: &place.path }, Ask::Write { path: &mark, data: &data }];
        match session.ask(ensemble, &[Ask::All(steps)]).await {
            Ok(mut answers) => match answers.pop() {
                Some(Ok(Reply::AllDone { .. })) => Ok(Some(session.timeout)),
                Some(Ok(Reply::RolledBack { code: Code::NoNode, .. })) => Ok(None),
                answer => Err(unexpected(answer).into()),
            },
            Err(Fault::Expired) => Ok(None),
            Err(fault) => Err(fault),
        }
    }
}
