//! Permits: which of them a contender has, and whose turn it is for one.
//!
//! A contender for a permit stands in the queue from before the grant to the end of the hold: so contenders of other kinds and libraries wait
//! for it as for an exclusive one. A held permit is also a key of its own, with its number, on the lease of the hold. These keys are counted.
//!
//! The interleavings that this is written against:
//! - *Two take the same number, or the last two of different numbers of permits:* the number is put in the transaction that
//!   makes the record one of a hold, which compares that it isn't there, and that none was taken since all were counted.
//! - *The answer to that is lost:* asked again, the number is there, on the own lease.
//! - *The lease ends between joining the queue and taking the number:* nothing is put on a lease that is over, and the own key
//!   is compared. After it the number goes in the same step as the key.
//! - *A holder goes while the first waiter looks:* what it watches for begins at the revision of the look. A number that came
//!   back after the look is the next one's; one too many was counted, never one too few.
//! - *The one before dies, or is granted a permit:* the next one watches its key and its record, which the grant writes, and counts
//!   for itself then.
//! - *There are fewer permits than before, and more are held:* what is held stays, whatever its number, and no permit is granted
//!   before there are less than are asked for now. There is a number below it free then, since each has another one.
//! - *Two waiters ask for different numbers of permits:* each is granted one as there is room by its own number, for all before and itself.
//!   One that asks for more than all before it watches what is held as the first one does.
//! - *Many come at once, and all want the lowest number:* one is granted it, and of the others the first one asks again; the
//!   others wait for the one before, which is about to be granted its own.
//! - *The number is deleted from outside:* a renewal finds that out, as of the own key, and the hold is over.
//! - *There is no space:* without a number nothing is granted.

use super::{
    acquire::Taking,
    client::Answer,
    failure::{self, Trouble},
    messages::{Compare, RequestOp},
    names::Names,
    ops,
    queue::{Look, Permit},
};
use crate::backends::queue::record::HoldRecord;

/// How often the first waiter asks again for a number that was granted to another one.
const TRIES: u32 = 16;

/// That the lock is still as it was counted, as far as permits go.
pub(super) fn as_counted(names: &Names, look: &Look) -> Vec<Compare> {
    vec![ops::nothing_newer_under(&names.numbers(), look.revision), ops::absent(&names.number(look.queue.free_number()))]
}

/// Takes the number that is free by this look.
pub(super) fn take(names: &Names, look: &Look, lease: i64) -> RequestOp {
    ops::put(&names.number(look.queue.free_number()), "", lease)
}

/// Gives one back, if it is the one that was taken.
pub(super) fn give_back(names: &Names, number: &Permit) -> RequestOp {
    let name = names.number(number.number);
    ops::when(vec![ops::created_at(&name, number.created)], vec![ops::delete(&name)], Vec::new())
}

impl Taking<'_> {
    /// Takes a permit, if it is our turn. Returns the last look, and our place if there is one: whether we have a permit, or are kept from one
    /// by nothing but the run policy.
    pub(super) async fn take_permit(&mut self, mut look: Look) -> Answer<(Look, Option<(usize, bool)>)> {
        let (names, request, lease) = (&self.session.names, self.request, self.session.lease);
        let mut conflicts = 0;
        loop {
            let Some(at) = look.find(&self.own) else { return Ok((look, None)) };
            if look.number_of(at).is_some() {
                return Ok((look, Some((at, true))));
            }
            let first = look.queue.place(at) == 1;
            if !look.queue.may_hold(request.mode, at) || conflicts > 0 && !first || conflicts == TRIES {
                return Ok((look, Some((at, false))));
            }
            if look.runs.judge(request.run_policy.as_ref(), &request.token).is_some() {
                return Ok((look, Some((at, true))));
            }
            let (one, open) = (&look.contenders[at], names.open_of(lease));
            let mut compare = vec![ops::created_at(&one.name, one.created)];
            compare.push(ops::unchanged(&open, look.record_of(one).map_or(0, |record| record.revision)));
            compare.extend(as_counted(names, &look));
            let held = HoldRecord::of(request, Some(one.fence())).write();
            let puts = vec![ops::put(&open, held, 0), take(names, &look, lease)];
            look = self.client.put_and_look(names, compare, puts).await.map_err(|trouble| match trouble {
                Trouble::NoLease => failure::lease_gone().into(),
                trouble => trouble,
            })?;
            conflicts += 1;
        }
    }
}
