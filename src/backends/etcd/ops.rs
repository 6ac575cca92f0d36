//! The parts that transactions are put together from, and taken apart into.

use super::{
    failure,
    messages::{
        Compare, DeleteRangeRequest, DeleteRangeResponse, Is, KeyValue, PutRequest, RangeRequest, Request, RequestOp, Response, SortOrder,
        SortTarget, Target, TxnRequest, TxnResponse,
    },
    names::{self, Names},
    queue::{Keys, Look},
};
use crate::lock::{Mode, Result};

/// How many of the first contenders are read with their values, where only the holders are needed.
pub(super) const SOME: i64 = 20;
/// All of them.
pub(super) const ALL: i64 = 0;

/// How many operations a server lets a transaction have is 128, unless it is told otherwise.
pub(super) const MOST_OPS: usize = 100;

fn op(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

/// One of two, by what holds before the whole transaction.
pub(super) fn when(compare: Vec<Compare>, success: Vec<RequestOp>, failure: Vec<RequestOp>) -> RequestOp {
    op(Request::Txn(TxnRequest { compare, success, failure }))
}

/// `then`, if no contender came before `created` that one of `mode` has to wait for. The own key was, and is there.
pub(super) fn when_first(names: &Names, mode: Mode, created: i64, then: RequestOp) -> RequestOp {
    let is_among_them = names.alike(mode).is_none();
    blocking(names, mode).into_iter().fold(then, |then, (start, end)| {
        let newer = vec![compare(&start, end.clone(), Is::Greater, created.saturating_sub(1))];
        if is_among_them {
            return when(newer, vec![then], Vec::new());
        }
        // Of an empty range etcd holds that it was created at 0.
        let empty = vec![compare(&start, end, Is::Equal, 0)];
        when(empty, vec![then.clone()], vec![when(newer, vec![then], Vec::new())])
    })
}

pub(super) fn get(name: &str) -> RequestOp {
    op(Request::Range(RangeRequest { key: name.into(), ..RangeRequest::default() }))
}

/// Whether a key is there, without its value.
pub(super) fn peek(name: &str) -> RequestOp {
    op(Request::Range(RangeRequest { key: name.into(), keys_only: true, ..RangeRequest::default() }))
}

/// All that begins with `start`.
pub(super) fn under(start: &str, keys_only: bool) -> RequestOp {
    // An empty start is everything, which etcd writes as from a zero byte on.
    let key = if start.is_empty() { vec![0] } else { start.into() };
    op(Request::Range(RangeRequest { key, range_end: names::range_end(start), keys_only, ..RangeRequest::default() }))
}

/// How many keys begin with `start`.
pub(super) fn count(start: &str) -> RequestOp {
    op(Request::Range(RangeRequest { key: start.into(), range_end: names::range_end(start), count_only: true, ..RangeRequest::default() }))
}

/// The names of the first `limit` by name of what begins with `start`.
pub(super) fn first_names(start: &str, limit: i64) -> RequestOp {
    op(Request::Range(RangeRequest {
        key: start.into(),
        range_end: names::range_end(start),
        limit,
        sort_order: SortOrder::Ascend.into(),
        keys_only: true,
        ..RangeRequest::default()
    }))
}

/// Deletes all from `start` to `last`.
pub(super) fn delete_up_to(start: &str, last: Vec<u8>) -> RequestOp {
    let range_end = [last, vec![0]].concat();
    op(Request::DeleteRange(DeleteRangeRequest { key: start.into(), range_end, prev_kv: false }))
}

/// The first `limit` by creation of what begins with `start`.
pub(super) fn first(start: &str, limit: i64) -> RequestOp {
    op(Request::Range(RangeRequest {
        key: start.into(),
        range_end: names::range_end(start),
        limit,
        sort_order: SortOrder::Ascend.into(),
        sort_target: SortTarget::Create.into(),
        ..RangeRequest::default()
    }))
}

pub(super) fn put(name: &str, value: impl Into<Vec<u8>>, lease: i64) -> RequestOp {
    op(Request::Put(PutRequest { key: name.into(), value: value.into(), lease }))
}

pub(super) fn delete(name: &str) -> RequestOp {
    op(Request::DeleteRange(DeleteRangeRequest { key: name.into(), ..DeleteRangeRequest::default() }))
}

/// Deletes all that begins with `start`, and returns it.
pub(super) fn delete_under(start: &str) -> RequestOp {
    op(Request::DeleteRange(DeleteRangeRequest { key: start.into(), range_end: names::range_end(start), prev_kv: true }))
}

fn compare(name: &str, range_end: Vec<u8>, is: Is, revision: i64) -> Compare {
    Compare {
        result: is.into(),
        target: Target::Create.into(),
        key: name.into(),
        create_revision: Some(revision),
        mod_revision: None,
        range_end,
    }
}

/// The key was not written since it was read at this revision of its own.
pub(super) fn unchanged(name: &str, revision: i64) -> Compare {
    Compare {
        result: Is::Equal.into(),
        target: Target::Mod.into(),
        key: name.into(),
        create_revision: None,
        mod_revision: Some(revision),
        range_end: Vec::new(),
    }
}

/// The key is the one that was created at this revision; 0 if there is none.
pub(super) fn created_at(name: &str, revision: i64) -> Compare {
    compare(name, Vec::new(), Is::Equal, revision)
}

pub(super) fn absent(name: &str) -> Compare {
    created_at(name, 0)
}

/// Nothing begins with `start`.
pub(super) fn nothing_under(start: &str) -> Compare {
    compare(start, names::range_end(start), Is::Equal, 0)
}

/// The ranges of the folder with the contenders that one of `mode` has to wait for: the first key of each, and the end.
fn blocking(names: &Names, mode: Mode) -> Vec<(String, Vec<u8>)> {
    let folder = &names.folder;
    let end = names::range_end(folder);
    let Some(alike) = names.alike(mode) else { return vec![(folder.clone(), end)] };
    // What comes before the contenders that go together with this one, and after them.
    let after = String::from_utf8(names::range_end(&alike)).unwrap_or_else(|_| folder.clone());
    vec![(folder.clone(), alike.into_bytes()), (after, end)]
}

/// Nothing is in the folder that keeps one of `mode` from having the lock. For a permit that is nothing at all.
pub(super) fn free_for(names: &Names, mode: Mode) -> Vec<Compare> {
    if matches!(mode, Mode::Permits(_)) {
        return vec![nothing_under(&names.folder), nothing_under(&names.numbers())];
    }
    blocking(names, mode).into_iter().map(|(start, end)| compare(&start, end, Is::Equal, 0)).collect()
}

/// Nothing that begins with `start` was created after `revision`.
pub(super) fn nothing_newer_under(start: &str, revision: i64) -> Compare {
    compare(start, names::range_end(start), Is::Less, revision.saturating_add(1))
}

/// What it takes to look at a lock; `values` is how many are read with what they say of themselves.
pub(super) fn look(names: &Names, values: i64) -> Vec<RequestOp> {
    vec![
        under(&names.folder, true),
        first(&names.folder, values),
        under(&names.open(), false),
        under(&names.all_nested(), true),
        under(&names.beside(), false),
    ]
}

/// What it takes to look at a lock as one that waits for it alone since `created` does: not at those behind, who may be many. The records
/// of holders are as old as their place; only the own one may have been made anew, where somebody removed it.
pub(super) fn look_ahead(names: &Names, lease: i64, created: i64) -> Vec<RequestOp> {
    let older = |start: &str| {
        let range_end = names::range_end(start);
        op(Request::Range(RangeRequest { key: start.into(), range_end, max_create_revision: created, ..RangeRequest::default() }))
    };
    let own = get(&names.open_of(lease));
    vec![older(&names.folder), older(&names.open()), own, under(&names.all_nested(), true), under(&names.beside(), false)]
}

/// The answers of one transaction, in the order of its operations.
pub(super) struct Answers {
    pub succeeded: bool,
    pub revision: i64,
    rest: std::vec::IntoIter<Response>,
}

impl Answers {
    pub(super) fn of(response: TxnResponse) -> Result<Self> {
        let revision = response.header.ok_or_else(failure::unreadable)?.revision;
        let answers: Option<Vec<_>> = response.responses.into_iter().map(|answer| answer.response).collect();
        Ok(Self { succeeded: response.succeeded, revision, rest: answers.ok_or_else(failure::unreadable)?.into_iter() })
    }

    /// How many keys the last one of these counted.
    pub(super) fn last_count(&mut self) -> usize {
        match self.rest.next_back() {
            Some(Response::Range(answer)) => usize::try_from(answer.count).unwrap_or_default(),
            _ => 0,
        }
    }

    /// What was put or deleted.
    pub(super) fn skip(&mut self, ops: usize) {
        for _ in 0..ops {
            self.rest.next();
        }
    }

    /// Whether what any of these was done for held, which were all done [`when`] something did.
    pub(super) fn any_branch(&mut self) -> bool {
        self.rest.by_ref().any(|answer| matches!(answer, Response::Txn(TxnResponse { succeeded: true, .. })))
    }

    pub(super) fn keys(&mut self) -> Result<Vec<KeyValue>> {
        match self.rest.next() {
            Some(Response::Range(answer)) => Ok(answer.kvs),
            _ => Err(failure::unreadable()),
        }
    }

    pub(super) fn one(&mut self) -> Result<Option<KeyValue>> {
        Ok(self.keys()?.pop())
    }

    pub(super) fn deleted(&mut self) -> Result<Vec<KeyValue>> {
        match self.rest.next() {
            Some(Response::DeleteRange(DeleteRangeResponse { prev_kvs, .. })) => Ok(prev_kvs),
            _ => Err(failure::unreadable()),
        }
    }

    /// The answers to [`look`].
    pub(super) fn look(&mut self, names: &Names) -> Result<Look> {
        let keys =
            Keys { contenders: self.keys()?, with_values: self.keys()?, open: self.keys()?, nested: self.keys()?, beside: self.keys()? };
        Look::new(names, self.revision, keys)
    }

    /// The answers to [`look_ahead`].
    pub(super) fn look_ahead(&mut self, names: &Names) -> Result<Look> {
        let (contenders, open) = (self.keys()?, [self.keys()?, self.keys()?].concat());
        let keys = Keys { with_values: contenders.clone(), contenders, open, nested: self.keys()?, beside: self.keys()? };
        Ok(Look { is_ahead: true, ..Look::new(names, self.revision, keys)? })
    }
}
