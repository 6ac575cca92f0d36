//! Permits: which permit a contender has, and which contender gets one next.
//!
//! A contender for a permit is in the queue from before the grant to the end of the hold. So
//! contenders of other kinds and libraries wait for it as for an exclusive one. A held permit is
//! also a key, named by its number, on the lease of the hold. These keys are counted.
//!
//! The code handles these interleavings:
//! - *Two contenders take the same number, or the last two of different numbers of permits.* The
//!   transaction that makes the record a hold's puts the number. It requires that the number is
//!   free, and that none was taken since the count.
//! - *The answer to that is lost.* A repeated request finds the number, on the own lease.
//! - *The lease ends between joining the queue and taking the number.* Nothing is put on an ended
//!   lease, and the transaction compares the own key. Later, the number goes in the same step as
//!   the key.
//! - *A holder goes while the first waiter looks.* The watches begin at the revision of the look. A
//!   number that is given back after the look goes to the next waiter. The count may be one too
//!   high, never too low.
//! - *The preceding waiter dies, or is granted a permit.* The next one watches its key and its
//!   record, which the grant rewrites, and then counts.
//! - *There are fewer permits than before, and more are held.* Holders stay, whatever their
//!   numbers. No permit is granted before fewer are held than are asked for. A lower number is free
//!   then, since each holder has a different one.
//! - *Two waiters ask for different numbers of permits.* Each is granted one if its own number
//!   leaves room for all before it and itself. A waiter that asks for more than all before it
//!   watches the held permits, as the first one does.
//! - *Many arrive at once, and all want the lowest number.* One is granted it. Of the others, the
//!   first tries again, and the rest wait for the preceding one, which is about to be granted its
//!   own.
//! - *The number is deleted from outside.* A renewal detects that, as for the own key, and the hold
//!   is over.
//! - *There is no space.* Without a number nothing is granted.

use super::{
    client::EtcdResult,
    failure::{self, Trouble},
    messages::{Compare, RequestOp},
    names::EtcdNames,
    ops,
    position::AcquireAttempt,
    queue::{LockAtRevision, Permit},
};
use crate::backends::queue::record::HoldRecord;

/// How many times the first waiter tries again after its number was granted to another contender.
const TRIES: u32 = 16;

/// Requires that no permit was taken since the look, so that its count is still valid.
pub(super) fn permits_unchanged(names: &EtcdNames, look: &LockAtRevision) -> Vec<Compare> {
    vec![
        ops::nothing_newer_under(&names.numbers(), look.revision),
        ops::absent(&names.number(look.queue.free_number())),
    ]
}

/// Takes the number that is free according to this look.
pub(super) fn take(names: &EtcdNames, look: &LockAtRevision, lease: i64) -> RequestOp {
    ops::put(&names.number(look.queue.free_number()), "", lease)
}

/// Gives a permit back, if the key is still the one that was taken.
pub(super) fn release(names: &EtcdNames, number: &Permit) -> RequestOp {
    let name = names.number(number.number);
    ops::when(
        vec![ops::created_at(&name, number.created)],
        vec![ops::delete(&name)],
        Vec::new(),
    )
}

impl AcquireAttempt<'_> {
    /// Takes a permit, if this contender may have one. Returns the last look, and the own position
    /// if there is one. The flag tells whether the contender has a permit, or only the run policy
    /// denies one.
    pub(super) async fn take_permit(
        &mut self,
        mut look: LockAtRevision,
    ) -> EtcdResult<(LockAtRevision, Option<(usize, bool)>)> {
        let (names, request, lease) = (&self.session.names, self.request, self.session.lease);
        let mut conflicts = 0;
        loop {
            let Some(at) = look.find(&self.own) else {
                return Ok((look, None));
            };
            if look.number_of(at).is_some() {
                return Ok((look, Some((at, true))));
            }
            let first = look.queue.position(at) == 1;
            if !look.queue.may_hold(request.mode, at)
                || conflicts > 0 && !first
                || conflicts == TRIES
            {
                return Ok((look, Some((at, false))));
            }
            if look
                .runs
                .judge(request.run_policy.as_ref(), &request.token)
                .is_some()
            {
                return Ok((look, Some((at, true))));
            }
            let (one, open) = (&look.contenders[at], names.open_of(lease));
            let mut compare = vec![ops::created_at(&one.name, one.created)];
            compare.push(ops::unchanged(
                &open,
                look.record_of(one).map_or(0, |record| record.revision),
            ));
            compare.extend(permits_unchanged(names, &look));
            let held = HoldRecord::of(request, Some(one.fence())).write();
            let puts = vec![ops::put(&open, held, 0), take(names, &look, lease)];
            look = self
                .client
                .put_and_look(names, compare, puts)
                .await
                .map_err(|trouble| match trouble {
                    Trouble::NoLease => failure::lease_gone().into(),
                    trouble => trouble,
                })?;
            conflicts += 1;
        }
    }
}
