//! Permits: which of them one has, and whose turn it is for one.
//!
//! Whoever wants a permit stands in the queue as everybody does, from before the grant to the end of the hold: so all others
//! wait for it as for one who wants the lock alone, whatever library they are of. Who has a permit has its number besides, a
//! key of its own beside the lock, on the lease of the hold. What is counted is these keys.
//!
//! The interleavings that this is written against:
//! - *Two take the same number, or the last two of different numbers of permits:* the number is put in the transaction that
//!   makes the record one of a hold, which compares that it isn't there, and that none was taken since all were counted.
//! - *The answer to that is lost:* asked again, the number is there, on the lease of who asks.
//! - *The lease ends between joining the queue and taking the number:* nothing is put on a lease that is over, and the own key
//!   is compared. After it the number goes in the same step as the key.
//! - *A holder goes while the first in line looks:* what it watches for begins at the revision of the look. A number that came
//!   back after the look is the next one's; one of more was counted than there are, never of less.
//! - *The one before dies, or is granted a permit:* the next one watches its key and its record, which the grant writes, and counts
//!   for itself then.
//! - *There are fewer permits than before, and more are held:* what is held stays, whatever its number, and nobody is let
//!   before there are less than are asked for now. There is a number below it free then, since each has another one.
//! - *Two who ask for different numbers of permits wait:* each is let as there is room by its own, for all before and itself.
//!   Who asks for more than everybody before watches what is held as the first one does.
//! - *Many come at once, and all want the lowest number:* one is granted it, and of the others who is first asks again; the
//!   others wait for the one before, who is about to be granted its own.
//! - *The number is deleted by somebody:* a renewal finds that out, as of the own key, and the hold is over.
//! - *There is no space:* without a number nothing is granted.

use super::{
    client::{Answer, Client},
    failure::{self, Trouble},
    messages::{Compare, RequestOp, TxnRequest},
    names::Names,
    ops::{self, Answers},
    queue::{Look, Permit},
    record::Held,
    session::Session,
};
use crate::lock::Request;

/// So often the first in line asks again for a number that somebody else was granted.
const TRIES: u32 = 16;

/// That the lock is still as it was counted, as far as permits go.
pub(super) fn as_counted(names: &Names, look: &Look) -> Vec<Compare> {
    vec![ops::nothing_newer_under(&names.numbers(), look.revision), ops::absent(&names.number(look.free_number()))]
}

/// Takes the number that is free by this look.
pub(super) fn take(names: &Names, look: &Look, lease: i64) -> RequestOp {
    ops::put(&names.number(look.free_number()), "", lease)
}

/// Gives one back, if it is the one that was taken.
pub(super) fn give_back(names: &Names, number: &Permit) -> RequestOp {
    let name = names.number(number.number);
    ops::when(vec![ops::created_at(&name, number.created)], vec![ops::delete(&name)], Vec::new())
}

/// Grants a permit to one in the queue, if it is its turn. Returns the last look, and its place if it has one: whether it has
/// a permit, or is kept from one by nothing but an earlier run.
pub(super) async fn grant(
    client: &mut Client,
    session: &Session,
    request: &Request,
    mut look: Look,
) -> Answer<(Look, Option<(usize, bool)>)> {
    let (names, own) = (&session.names, session.names.own(request.mode, session.lease));
    let mut conflicts = 0;
    loop {
        let Some(place) = look.find(&own) else { return Ok((look, None)) };
        let one = &look.contenders[place];
        if look.number_of(one).is_some() {
            return Ok((look, Some((place, true))));
        }
        let first = look.position(place) == 1;
        if !look.lets(request.mode, place) || conflicts > 0 && !first || conflicts == TRIES {
            return Ok((look, Some((place, false))));
        }
        if look.starts.judge(request.terms.as_ref(), &request.token).is_some() {
            return Ok((look, Some((place, true))));
        }
        let open = names.open_of(session.lease);
        let mut compare = vec![ops::created_at(&one.name, one.created)];
        compare.push(ops::unchanged(&open, look.record_of(one).map_or(0, |record| record.revision)));
        compare.extend(as_counted(names, &look));
        let held = Held::of(request, Some(one.created)).write();
        let mut success = vec![ops::put(&open, held, 0), take(names, &look, session.lease)];
        let puts = success.len();
        success.extend(ops::look(names, ops::SOME));
        let txn = TxnRequest { compare, success, failure: ops::look(names, ops::SOME) };
        let answer = client.txn(txn).await.map_err(|trouble| match trouble {
            Trouble::NoLease => failure::lease_gone().into(),
            trouble => trouble,
        })?;
        let mut answers = Answers::of(answer)?;
        if answers.succeeded {
            answers.skip(puts);
        }
        look = answers.look(names)?;
        conflicts += 1;
    }
}
