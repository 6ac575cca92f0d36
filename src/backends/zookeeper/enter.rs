//! Entering a hold that an ancestor has: a nested hold, with a session and a lease of its own.
//!
//! It lies beside the lock, not in its line. When the hold that the lock was taken with is given back first, it hands its
//! session down, sealed so that only holds of the same owner can open it, and those keep the session alive from then on.
//!
//! Whoever enters or leaves writes the mark of the grant, if nobody did since he counted the holds: so no hold is entered
//! while the last of the others frees the lock, and of two that leave together one frees it.

use std::time::Duration;

use super::{
    ZooKeeper,
    acquire::{LOOKS, negotiate},
    failure::{self, Asked, Fault},
    hold::{Hold, Marked, Place, listed, marked, unexpected},
    names::{Names, guid, holds_of, seal},
    record::{Granted, Heirloom},
    session::{Ensemble, Session},
    wire::{Code, Node, Reply, Request as Ask, Stat},
};
use crate::lock::{self, Attempt, Grant, Intent, Mode, Request, Result, Token, Ttl};

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
                session.close(&self.ensemble);
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
            match hold.note(&self.ensemble, request.mode).await {
                Err(Fault::Expired) => hold.forget(),
                Err(Fault::Error(error)) => return Err(error),
                Ok(attempt) => return Ok(attempt),
            }
        }
        Err(Fault::Expired.into_error())
    }
}

/// What keeps a lock that is held.
pub(super) struct Kept {
    /// The mark; without it nobody enters any more.
    mark: Marked,
    /// The nodes of all holds of the owner.
    pub(super) holds: Vec<String>,
}

impl Kept {
    /// Writes the mark, if nobody entered or left since: what it says already, or this.
    pub(super) fn remark<'a>(&'a self, path: &'a str, data: Option<&'a [u8]>) -> Option<Ask<'a>> {
        self.mark.as_ref().map(|(says, stat)| Ask::WriteSince { path, data: data.unwrap_or(says), version: stat.version })
    }

    /// Removes the mark, if nobody entered or left since.
    pub(super) fn unmark<'a>(&self, path: &'a str) -> Option<Ask<'a>> {
        self.mark.as_ref().map(|(_, stat)| Ask::DeleteSince { path, version: stat.version })
    }

    /// The session that was handed down to those who are left.
    pub(super) fn heirloom(&self) -> Option<Heirloom> {
        self.granted().and_then(|(granted, _)| granted.heirloom)
    }

    /// What the mark says of the hold.
    pub(super) fn granted(&self) -> Option<(Granted, &Stat)> {
        self.mark.as_ref().and_then(|(says, stat)| Some((Granted::read(says)?, stat)))
    }
}

impl Heirloom {
    pub(super) fn session(&self, token: &Token) -> Session {
        let handed = lock::Session { id: self.session, password: seal(token, self.sealed) };
        Session::handed_over(handed, Duration::from_millis(self.timeout_ms))
    }
}

impl Hold {
    /// Notes this hold beside the lock, if its owner has the lock.
    async fn note(&mut self, ensemble: &Ensemble, mode: Mode) -> Asked<Attempt> {
        let (beat, mark) = (self.beat(), self.names.mark(&guid(&self.token)));
        let ttl = self.session.as_ref().map(|session| session.timeout.as_millis().to_string()).unwrap_or_default();
        for _ in 0..LOOKS {
            let seen = self.read_line(ensemble, true).await?;
            let Some(place) = self.owners_place(ensemble, &seen).await? else { return Ok(Attempt::NotHeld) };
            let kept = self.kept(ensemble, false).await?;
            let Some(remark) = kept.remark(&mark, None) else { return Ok(Attempt::NotHeld) };
            let granted = kept.granted().map(|(granted, _)| granted).unwrap_or_default();
            granted.mode().check_nested(mode)?;
            // Asked again, it is there already.
            let step = if kept.holds.contains(&beat) {
                Ask::Write { path: &beat, data: ttl.as_bytes() }
            } else {
                Ask::Create { path: &beat, data: ttl.as_bytes(), node: Node::Ephemeral }
            };
            let steps = vec![Ask::Check { path: &place.path }, remark, step];
            match self.ask(ensemble, &[Ask::All(steps)]).await?.pop() {
                Some(Ok(Reply::AllDone { .. })) => {
                    self.outer = self.shortest(ensemble, &kept).await?;
                    let others = kept.holds.iter().filter(|hold| **hold != beat).count();
                    return self.entered(place, granted, others);
                }
                Some(Ok(Reply::RolledBack { at: 0 | 1, code: Code::NoNode })) => return Ok(Attempt::NotHeld),
                Some(Ok(Reply::RolledBack { code: Code::BadVersion | Code::NodeExists | Code::NoNode, .. })) => {}
                answer => return Err(unexpected(answer).into()),
            }
        }
        Err(failure::unsettled().into())
    }

    /// How long the shortest session of the owner's holds lasts: the one that has the lock may be handed down at any time, and then
    /// has to be kept alive at its own pace.
    async fn shortest(&mut self, ensemble: &Ensemble, kept: &Kept) -> Asked<Duration> {
        let reads: Vec<_> = kept.holds.iter().map(|path| Ask::Read { path }).collect();
        let answers = if reads.is_empty() { Vec::new() } else { self.ask(ensemble, &reads).await? };
        let told = answers.into_iter().filter_map(|answer| match answer {
            Ok(Reply::Data { data, .. }) => str::from_utf8(&data).ok()?.parse().ok(),
            _ => None,
        });
        let handed_down = kept.heirloom().map(|heirloom| heirloom.timeout_ms);
        Ok(told.chain(handed_down).min().map_or(Duration::MAX, Duration::from_millis))
    }

    fn entered(&mut self, place: Place, granted: Granted, others: usize) -> Asked<Attempt> {
        let Some(session) = &mut self.session else { return Err(Fault::Expired) };
        let grant = Grant {
            fence: place.fence,
            ttl: Ttl::new(session.timeout.min(self.outer))?,
            holds: u32::try_from(others + 1).unwrap_or(u32::MAX),
            settle: Duration::ZERO,
            session: session.hand_over(),
            permit: granted.number(),
        };
        session.let_go();
        (self.granted, self.place, self.grant) = (true, Some(place), Some(granted));
        Ok(Attempt::Granted(grant))
    }

    /// The mark of this owner's grant and the holds that it has.
    pub(super) async fn kept(&mut self, ensemble: &Ensemble, sync: bool) -> Asked<Kept> {
        let Names { meta, .. } = self.names.clone();
        let guid = guid(&self.token);
        let (mark, start) = (self.names.mark(&guid), holds_of(&guid));
        // What is counted is at least as new as the version.
        let mut requests = vec![Ask::Read { path: &mark }, Ask::Children { path: &meta }];
        if sync {
            requests.insert(0, Ask::Sync { path: &meta });
        }
        let mut answers = self.ask(ensemble, &requests).await?;
        let holds = listed(answers.pop())?.into_iter().filter(|name| name.starts_with(&start)).map(|name| format!("{meta}/{name}"));
        Ok(Kept { mark: marked(answers.pop())?, holds: holds.collect() })
    }

    /// Whether somebody else who has this token gave the hold back while others were nested in it, whom its session is now: of
    /// one that can't be asked about it is left to end by itself.
    pub(super) async fn is_handed_down(&mut self, ensemble: &Ensemble) -> bool {
        let own = self.session.as_ref().map(|session| session.id);
        if !self.root || !self.granted || own.is_none() {
            return false;
        }
        match self.kept(ensemble, true).await {
            Ok(kept) => kept.heirloom().is_some_and(|heirloom| Some(heirloom.session) == own),
            Err(fault) => !matches!(fault, Fault::Expired),
        }
    }

    /// What the mark is to say from now on, with the session of the place.
    pub(super) fn legacy(&self, kept: &Kept) -> Vec<u8> {
        let heirloom = self.session.as_ref().and_then(|session| {
            let lock::Session { id, password } = session.password()?;
            let timeout_ms = u64::try_from(session.timeout.as_millis()).unwrap_or(u64::MAX);
            Some(Heirloom { session: id, sealed: seal(&self.token, password), timeout_ms })
        });
        Granted { heirloom, ..kept.granted().map(|(granted, _)| granted).unwrap_or_default() }.write()
    }

    /// Keeps the session of the place alive, if it was handed down to this nested hold by the mark that was just read. What
    /// that lasts, or `None` if it is over; the longest there is if it is still its owner's own affair.
    pub(super) async fn keep_heirloom(&mut self, ensemble: &Ensemble, mut mark: Marked, intent: Intent) -> Asked<Option<Duration>> {
        let Some(place) = self.place.clone() else { return Ok(None) };
        let path = self.names.mark(&guid(&self.token));
        for _ in 0..LOOKS {
            let Some((data, stat)) = mark else { return Ok(None) };
            let granted = Granted::read(&data);
            let Some(heirloom) = granted.as_ref().and_then(|granted| granted.heirloom.as_ref()) else { return Ok(Some(Duration::MAX)) };
            let mut session = heirloom.session(&self.token);
            let seen = granted.as_ref().filter(|_| intent == Intent::Drain).and_then(Granted::seen);
            // A write of that session, with its node checked: what a majority confirmed. It says what it said.
            let says = seen.as_ref().unwrap_or(&data);
            let steps = vec![Ask::Check { path: &place.path }, Ask::WriteSince { path: &path, data: says, version: stat.version }];
            match session.ask(ensemble, &[Ask::All(steps)]).await {
                Ok(mut answers) => match answers.pop() {
                    Some(Ok(Reply::AllDone { .. })) => return Ok(Some(session.timeout)),
                    Some(Ok(Reply::RolledBack { code: Code::NoNode, .. })) => return Ok(None),
                    // Another heir was first, or somebody is breaking the hold.
                    Some(Ok(Reply::RolledBack { code: Code::BadVersion, .. })) => {}
                    answer => return Err(unexpected(answer).into()),
                },
                Err(Fault::Expired) => return Ok(None),
                Err(fault) => return Err(fault),
            }
            mark = marked(self.ask(ensemble, &[Ask::Sync { path: &path }, Ask::Read { path: &path }]).await?.pop())?;
        }
        Err(failure::unsettled().into())
    }
}
