//! Builds the parts of transactions, and takes their answers apart.

use super::{
    failure,
    messages::{
        Compare, CompareResult, CompareTarget, DeleteRangeRequest, DeleteRangeResponse, KeyValue,
        OpRequest, OpResponse, PutRequest, RangeRequest, RequestOp, SortOrder, SortTarget,
        TxnRequest, TxnResponse,
    },
    names::{self, EtcdNames},
};
use crate::lock::{Mode, Result};

/// How many of the first contenders are read with their values, where only the holders are needed.
pub(super) const SOME: i64 = 20;
/// The limit for all contenders.
pub(super) const ALL: i64 = 0;

/// The most operations that dlock puts into a transaction. A server allows 128 unless configured
/// otherwise.
pub(super) const MOST_OPS: usize = 100;

/// How many times a step is tried before it fails, if other processes break its conditions.
pub(super) const TRIES: u32 = 4;

fn op(request: OpRequest) -> RequestOp {
    RequestOp {
        request: Some(request),
    }
}

/// Returns one of two lists of operations, by conditions that are judged before the whole
/// transaction.
pub(super) fn when(
    compare: Vec<Compare>,
    success: Vec<RequestOp>,
    failure: Vec<RequestOp>,
) -> RequestOp {
    op(OpRequest::Txn(TxnRequest {
        compare,
        success,
        failure,
    }))
}

/// Does `then` if no contender before `created` blocks one of `mode`. Requires that the own key is
/// still there.
pub(super) fn when_first(
    names: &EtcdNames,
    mode: Mode,
    created: i64,
    then: RequestOp,
) -> RequestOp {
    let is_among_them = names.compatible_prefix(mode).is_none();
    blocking(names, mode)
        .into_iter()
        .fold(then, |then, (start, end)| {
            let newer = vec![compare(
                &start,
                end.clone(),
                CompareResult::Greater,
                created.saturating_sub(1),
            )];
            if is_among_them {
                return when(newer, vec![then], Vec::new());
            }
            // For an empty range, etcd compares the create revision as 0.
            let empty = vec![compare(&start, end, CompareResult::Equal, 0)];
            when(
                empty,
                vec![then.clone()],
                vec![when(newer, vec![then], Vec::new())],
            )
        })
}

pub(super) fn get(name: &str) -> RequestOp {
    op(OpRequest::Range(RangeRequest {
        key: name.into(),
        ..RangeRequest::default()
    }))
}

/// Reads whether a key is there, without its value.
pub(super) fn peek(name: &str) -> RequestOp {
    op(OpRequest::Range(RangeRequest {
        key: name.into(),
        keys_only: true,
        ..RangeRequest::default()
    }))
}

/// Reads all keys that begin with `start`.
pub(super) fn under(start: &str, keys_only: bool) -> RequestOp {
    // An empty start means every key, which etcd writes as a range from a zero byte on.
    let key = if start.is_empty() {
        vec![0]
    } else {
        start.into()
    };
    op(OpRequest::Range(RangeRequest {
        key,
        range_end: names::range_end(start),
        keys_only,
        ..RangeRequest::default()
    }))
}

/// Counts the keys that begin with `start`.
pub(super) fn count(start: &str) -> RequestOp {
    op(OpRequest::Range(RangeRequest {
        key: start.into(),
        range_end: names::range_end(start),
        count_only: true,
        ..RangeRequest::default()
    }))
}

/// Reads the first `limit` names, in order of name, that begin with `start`.
pub(super) fn first_names(start: &str, limit: i64) -> RequestOp {
    op(OpRequest::Range(RangeRequest {
        key: start.into(),
        range_end: names::range_end(start),
        limit,
        sort_order: SortOrder::Ascend.into(),
        keys_only: true,
        ..RangeRequest::default()
    }))
}

/// Deletes all keys from `start` to `last`.
pub(super) fn delete_up_to(start: &str, last: Vec<u8>) -> RequestOp {
    let range_end = [last, vec![0]].concat();
    op(OpRequest::DeleteRange(DeleteRangeRequest {
        key: start.into(),
        range_end,
        prev_kv: false,
    }))
}

/// Reads the first `limit` keys, in order of creation, that begin with `start`.
pub(super) fn first(start: &str, limit: i64) -> RequestOp {
    op(OpRequest::Range(RangeRequest {
        key: start.into(),
        range_end: names::range_end(start),
        limit,
        sort_order: SortOrder::Ascend.into(),
        sort_target: SortTarget::Create.into(),
        ..RangeRequest::default()
    }))
}

pub(super) fn put(name: &str, value: impl Into<Vec<u8>>, lease: i64) -> RequestOp {
    op(OpRequest::Put(PutRequest {
        key: name.into(),
        value: value.into(),
        lease,
    }))
}

pub(super) fn delete(name: &str) -> RequestOp {
    op(OpRequest::DeleteRange(DeleteRangeRequest {
        key: name.into(),
        ..DeleteRangeRequest::default()
    }))
}

/// Deletes all keys that begin with `start`, and returns them.
pub(super) fn delete_under(start: &str) -> RequestOp {
    op(OpRequest::DeleteRange(DeleteRangeRequest {
        key: start.into(),
        range_end: names::range_end(start),
        prev_kv: true,
    }))
}

fn compare(name: &str, range_end: Vec<u8>, is: CompareResult, revision: i64) -> Compare {
    Compare {
        result: is.into(),
        target: CompareTarget::Create.into(),
        key: name.into(),
        create_revision: Some(revision),
        range_end,
        ..Compare::default()
    }
}

/// Requires that the key is there with this value.
pub(super) fn has_value(name: &str, value: String) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Value.into(),
        key: name.into(),
        value: Some(value.into_bytes()),
        ..Compare::default()
    }
}

/// Requires that the key was not written since it was read at this modification revision.
pub(super) fn unchanged(name: &str, revision: i64) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Mod.into(),
        key: name.into(),
        mod_revision: Some(revision),
        ..Compare::default()
    }
}

/// Requires that the key was created at this revision; 0 means that there is no such key.
pub(super) fn created_at(name: &str, revision: i64) -> Compare {
    compare(name, Vec::new(), CompareResult::Equal, revision)
}

pub(super) fn absent(name: &str) -> Compare {
    created_at(name, 0)
}

/// Requires that no key begins with `start`.
pub(super) fn nothing_under(start: &str) -> Compare {
    compare(start, names::range_end(start), CompareResult::Equal, 0)
}

/// Returns the ranges of the folder with the contenders that block one of `mode`: each range's
/// first key and end.
fn blocking(names: &EtcdNames, mode: Mode) -> Vec<(String, Vec<u8>)> {
    let folder = &names.folder;
    let end = names::range_end(folder);
    let Some(compatible_prefix) = names.compatible_prefix(mode) else {
        return vec![(folder.clone(), end)];
    };
    // The ranges before and after the contenders that are compatible with this one.
    let after =
        String::from_utf8(names::range_end(&compatible_prefix)).unwrap_or_else(|_| folder.clone());
    vec![
        (folder.clone(), compatible_prefix.into_bytes()),
        (after, end),
    ]
}

/// Requires that the folder has no key that keeps a contender of `mode` from the lock. A permit
/// needs an empty folder.
pub(super) fn free_for(names: &EtcdNames, mode: Mode) -> Vec<Compare> {
    if matches!(mode, Mode::Permits(_)) {
        return vec![
            nothing_under(&names.folder),
            nothing_under(&names.numbers()),
        ];
    }
    blocking(names, mode)
        .into_iter()
        .map(|(start, end)| compare(&start, end, CompareResult::Equal, 0))
        .collect()
}

/// Requires that no key that begins with `start` was created after `revision`.
pub(super) fn nothing_newer_under(start: &str, revision: i64) -> Compare {
    compare(
        start,
        names::range_end(start),
        CompareResult::Less,
        revision.saturating_add(1),
    )
}

/// The part of a lock that a look reads.
#[derive(Clone, Copy)]
pub(super) enum Part<'a> {
    All,
    /// Without the contenders behind the exclusive waiter with this lease, which joined at this
    /// revision. They may be many.
    Ahead(i64, i64),
    /// No contender but the one with this key and this lease.
    Own(&'a str, i64),
}

impl Part<'_> {
    pub(super) fn look(self, names: &EtcdNames) -> Vec<RequestOp> {
        match self {
            Self::All => look(names, SOME),
            Self::Ahead(lease, created) => look_ahead(names, lease, created),
            Self::Own(own, lease) => {
                vec![
                    get(own),
                    get(&names.open_of(lease)),
                    under(&names.all_nested(), true),
                    under(&names.below_fence(), false),
                ]
            }
        }
    }
}

/// Returns the reads for a look at a lock. `values` is how many contenders are read with their
/// values.
pub(super) fn look(names: &EtcdNames, values: i64) -> Vec<RequestOp> {
    vec![
        under(&names.folder, true),
        first(&names.folder, values),
        under(&names.open(), false),
        under(&names.all_nested(), true),
        under(&names.below_fence(), false),
    ]
}

/// Returns the reads for [`Part::Ahead`]. A holder's record is as old as its key. Only the own
/// record may be newer, if it was deleted and put anew.
fn look_ahead(names: &EtcdNames, lease: i64, created: i64) -> Vec<RequestOp> {
    let older = |start: &str| {
        let range_end = names::range_end(start);
        op(OpRequest::Range(RangeRequest {
            key: start.into(),
            range_end,
            max_create_revision: created,
            ..RangeRequest::default()
        }))
    };
    let own = get(&names.open_of(lease));
    vec![
        older(&names.folder),
        older(&names.open()),
        own,
        under(&names.all_nested(), true),
        under(&names.below_fence(), false),
    ]
}

/// The answers of one transaction, in the order of its operations.
pub(super) struct TxnAnswers {
    pub succeeded: bool,
    pub revision: i64,
    rest: std::vec::IntoIter<OpResponse>,
}

impl TxnAnswers {
    pub(super) fn of(response: TxnResponse) -> Result<Self> {
        let revision = response.header.ok_or_else(failure::unreadable)?.revision;
        let answers: Option<Vec<_>> = response
            .responses
            .into_iter()
            .map(|answer| answer.response)
            .collect();
        Ok(Self {
            succeeded: response.succeeded,
            revision,
            rest: answers.ok_or_else(failure::unreadable)?.into_iter(),
        })
    }

    /// Returns how many keys the last operation counted.
    pub(super) fn last_count(&mut self) -> usize {
        match self.rest.next_back() {
            Some(OpResponse::Range(answer)) => usize::try_from(answer.count).unwrap_or_default(),
            _ => 0,
        }
    }

    /// Skips the answers to puts or deletions.
    pub(super) fn skip(&mut self, ops: usize) {
        for _ in 0..ops {
            self.rest.next();
        }
    }

    /// Returns whether the conditions of any of the operations held. All of them must have been
    /// made by [`when`].
    pub(super) fn any_branch(&mut self) -> bool {
        self.rest.by_ref().any(|answer| {
            matches!(
                answer,
                OpResponse::Txn(TxnResponse {
                    succeeded: true,
                    ..
                })
            )
        })
    }

    pub(super) fn keys(&mut self) -> Result<Vec<KeyValue>> {
        match self.rest.next() {
            Some(OpResponse::Range(answer)) => Ok(answer.kvs),
            _ => Err(failure::unreadable()),
        }
    }

    pub(super) fn one(&mut self) -> Result<Option<KeyValue>> {
        Ok(self.keys()?.pop())
    }

    pub(super) fn deleted(&mut self) -> Result<Vec<KeyValue>> {
        match self.rest.next() {
            Some(OpResponse::DeleteRange(DeleteRangeResponse { prev_kvs, .. })) => Ok(prev_kvs),
            _ => Err(failure::unreadable()),
        }
    }
}
