//! Permits: which of them one has, and whose turn it is for one.
//!
//! Whoever wants a permit stands in line as everybody does, from before the grant to the end of the hold: so all others wait for
//! it as for one who wants the lock alone, whatever library they are of. Who has a permit has a node of its number besides, beside
//! the lock and of the same session. What is counted is these nodes.
//!
//! The worst interleavings, and what is done about them:
//! - **Two take the same number, or the last two of different numbers of permits:** the node is made in the transaction that marks
//!   the grant. Each grant writes the record beside the lock, and this one only in the version that was read before all were
//!   counted: so none was granted since.
//! - **The answer to that is lost:** the mark of the grant was made in the same transaction, and says the number.
//! - **The session ends between joining the line and taking the number:** the transaction checks the contender's node. After it,
//!   all three nodes go with the session.
//! - **A holder goes while the first in line looks:** whoever watches what is held reads the numbers again as it begins to watch, and
//!   looks anew if they are others.
//! - **The one before dies, or is granted a permit:** the grant writes its node in the line, so that one watch tells the next one of both.
//!   Whether it was granted before that watch began is asked after that.
//! - **There are fewer permits than before, and more are held:** what is held stays, whatever its number, and nobody is let
//!   before there are less than are asked for now. There is a number below it free then, since each has another one.
//! - **Two who ask for different numbers of permits wait:** each is let as there is room by its own, for all before and itself.
//!   Who asks for more than everybody before watches what is held as the first one does.
//! - **Many come at once, and all want the lowest number:** one is granted it, and of the others who is first asks again; the
//!   others wait for the one before, who is about to be granted its own.
//! - **Somebody joins the line between a look and a grant at once:** who finds too many before it after that takes its grant back, its
//!   number too.
//! - **The node of the number is deleted from outside:** a renewal checks it, as it checks the contender's, and the hold is over.

use std::collections::HashSet;

use super::{
    acquire::Standing,
    contender::{Class, Contender, blocker},
    failure::{Asked, Fault},
    hold::{Hold, Place, Seen},
    names::{PERMIT, guid},
    session::Ensemble,
};
use crate::lock::{Mode, Request};

impl Seen {
    /// Those before one in line, or all of them.
    fn before(&self, own: Option<&Contender>) -> impl Iterator<Item = &Contender> {
        self.line.iter().filter(move |other| own.is_none_or(|own| other.before(own)))
    }

    fn waits(&self, one: &Contender) -> bool {
        one.guid().is_none_or(|guid| !self.is_marked(guid))
    }

    /// Whether one in line, or who would come to it, can have one of so many permits; `has` says whether it is counted already.
    ///
    /// A permit is granted as soon as there is room for all who were there before and for itself, in whichever order they come
    /// for it. What is held is counted, not which numbers those are: a lower number of permits rules for who asks for that.
    pub(super) fn lets(&self, most: u32, own: Option<&Contender>, has: bool) -> bool {
        // Who has a grant and no number, since somebody removed that, has not stopped yet.
        let held = self.numbers().len().max(self.with_permits().len()).saturating_sub(usize::from(has));
        let waiting = self.before(own).filter(|other| self.waits(other)).count();
        self.before(own).all(|other| matches!(other.class, Class::Permit(_)))
            && held + waiting < usize::try_from(most).unwrap_or(usize::MAX)
    }

    /// Whether one who comes to the line can have the lock at once.
    pub(super) fn is_free_for(&self, mode: Mode) -> bool {
        match mode {
            Mode::Permits(most) => self.lets(most, None, false),
            _ => self.line.iter().all(|other| Class::of(mode).goes_with(other.class)),
        }
    }

    /// The lowest number that no permit has.
    pub(super) fn free_number(&self) -> u32 {
        let mut taken = self.numbers();
        taken.sort_unstable();
        taken.into_iter().fold(0, |free, number| if number == free { free + 1 } else { free })
    }

    /// The place of one in line among those who wait for permits, from 1.
    pub(super) fn place_for_permit(&self, own: &Contender) -> u32 {
        u32::try_from(self.before(Some(own)).filter(|other| self.waits(other)).count() + 1).unwrap_or(u32::MAX)
    }

    /// Those who have permits, for whom wants one to be told.
    pub(super) fn with_permits(&self) -> Vec<Contender> {
        self.line.iter().filter(|one| matches!(one.class, Class::Permit(_)) && !self.waits(one)).cloned().collect()
    }
}

/// How often a permit was somebody else's after all.
pub(super) type Conflicts = u32;

impl Hold {
    /// Takes one of so many permits for one in line, or waits for one. `None` if the line has to be looked at again.
    pub(super) async fn ask_for_permit(
        &mut self,
        ensemble: &Ensemble,
        request: &Request,
        (place, most): (&Place, u32),
        mut seen: Seen,
        conflicts: &mut Conflicts,
    ) -> Asked<Option<Standing>> {
        let own = Some(&place.contender);
        if seen.is_marked(&guid(&self.token)) {
            let ours = if seen.joined { seen.lets(most, own, true) } else { self.was_granted(ensemble).await? };
            if !ours {
                self.unmark(ensemble).await?;
                return Ok(None);
            }
            return Ok(self.take(ensemble, request, place, &seen, true).await?.then_some(Standing::First));
        }
        let first = seen.place_for_permit(&place.contender) == 1;
        if seen.lets(most, own, false) && (first || *conflicts == 0) {
            let Some(basis) = &mut seen.basis else { return Ok(None) };
            if let Some(refusal) = self.judge(ensemble, request.terms.as_ref(), basis).await? {
                self.leave_unless_waiting(ensemble, request, place).await?;
                return Ok(Some(Standing::Kept(refusal)));
            }
            let taken = self.take(ensemble, request, place, &seen, false).await?;
            *conflicts += 1;
            return Ok(taken.then_some(Standing::First));
        }
        if !request.waiting {
            self.leave_unless_waiting(ensemble, request, place).await?;
            seen.line.retain(|other| other.name != place.contender.name);
            return Ok(Some(Standing::Behind(Box::new(seen))));
        }
        let watched = self.watch_for_permit(ensemble, &place.contender, most, &seen).await?;
        Ok(watched.then(|| Standing::Behind(Box::new(seen))))
    }

    async fn leave_unless_waiting(&mut self, ensemble: &Ensemble, request: &Request, place: &Place) -> Asked<()> {
        if !request.waiting {
            self.leave(ensemble, place).await?;
        }
        Ok(())
    }

    /// Whether the grant that is marked is one of this session, of which the answer was lost. Otherwise an earlier one left it.
    async fn was_granted(&mut self, ensemble: &Ensemble) -> Asked<bool> {
        self.grant = None;
        if !self.confirm(ensemble).await? {
            return Ok(false);
        }
        let Some(number) = self.number() else { return Ok(false) };
        let stat = self.stat(ensemble, &number).await?;
        let ours = stat.is_some_and(|stat| self.session.as_ref().is_some_and(|session| session.id == stat.session));
        if !ours {
            // It may be somebody else's by now.
            self.grant = None;
        }
        Ok(ours)
    }

    /// Watches what has to happen before it is one's turn. False if the line has to be looked at again.
    async fn watch_for_permit(&mut self, ensemble: &Ensemble, own: &Contender, most: u32, seen: &Seen) -> Asked<bool> {
        let asks = |other: &Contender| if let Class::Permit(other) = other.class { Some(other) } else { None };
        // One in between may have been granted a permit out of turn.
        let last = seen.before(Some(own)).filter(|other| asks(other).is_none() || seen.waits(other)).last();
        let waiting = seen.before(Some(own)).filter(|other| seen.waits(other));
        let first = blocker(&seen.line, own).is_none() && waiting.filter_map(asks).all(|other| other < most);
        let meta = self.names.meta.clone();
        let path = match last {
            Some(last) if !first => self.names.contender(&last.name),
            _ => meta.clone(),
        };
        if self.blocker.as_ref().is_some_and(|(watched, _)| *watched == path) {
            return Ok(true);
        }
        let Some(session) = &mut self.session else { return Err(Fault::Expired) };
        if path == meta {
            let (beside, watch) = session.watch_children(ensemble, &meta).await?;
            let numbers = |names: &[String]| names.iter().filter(|name| name.starts_with(PERMIT)).cloned().collect::<HashSet<_>>();
            self.blocker = Some((path, watch));
            return Ok(numbers(&beside) == numbers(&seen.beside));
        }
        let Some(watch) = session.watch(ensemble, &path).await? else { return Ok(false) };
        self.blocker = Some((path, watch));
        // Granted since the look, and before the watch?
        let Some(guid) = last.filter(|last| asks(last).is_some()).and_then(Contender::guid) else { return Ok(true) };
        let mark = self.names.mark(guid);
        Ok(self.stat(ensemble, &mark).await?.is_none())
    }
}
