//! The data that dlock writes into the nodes next to a lock: JSON, whose short names are part of
//! the layout. A contender's own node contains
//! [`ContenderInfo`](crate::backends::queue::record::ContenderInfo). Curator and go-zookeeper don't
//! read that data in others' locks; kazoo shows it as text in `contenders()`.

use serde::{Deserialize, Serialize};

use crate::{
    backends::queue::record::HoldRecord,
    lock::{Fence, Request},
};

/// The data of a lock's node in the side folder.
#[derive(Deserialize, Serialize)]
struct LastFence {
    /// The last fence. 0 means the number of the change that wrote this.
    last: u64,
}

/// Returns the data for the last fence; with `None`, the fence is the number of the change that
/// writes the data.
pub(super) fn write_last(fence: Option<Fence>) -> Vec<u8> {
    json(&LastFence {
        last: fence.map_or(0, |fence| fence.0),
    })
}

/// Returns the last fence, from data that the change with this number wrote.
pub(super) fn last_fence(data: &[u8], written: i64) -> Option<Fence> {
    let LastFence { last } = serde_json::from_slice(data).ok()?;
    if last > 0 {
        Some(Fence(last))
    } else {
        numbered(written)
    }
}

/// Returns a change's number as a fence.
pub(super) fn numbered(change: i64) -> Option<Fence> {
    u64::try_from(change).ok().map(Fence)
}

/// The content of a grant's mark.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct GrantMark {
    #[serde(flatten)]
    pub(super) hold: HoldRecord,
    /// For nested holds that outlive the outer one.
    #[serde(flatten)]
    pub(super) inherited_session: Option<InheritedSession>,
}

impl GrantMark {
    /// Returns the content for the hold that `request` asks for; `number` is that of its permit.
    pub(super) fn of(request: &Request, fence: Option<Fence>, number: Option<u32>) -> Self {
        // The node itself tells when the hold began.
        Self {
            hold: HoldRecord {
                number,
                since_ms: None,
                ..HoldRecord::of(request, fence)
            },
            inherited_session: None,
        }
    }

    pub(super) fn write(&self) -> Vec<u8> {
        json(self)
    }

    pub(super) fn read(data: &[u8]) -> Option<Self> {
        serde_json::from_slice(data).ok()
    }

    /// Returns the mark after the holder saw the break; `None` if the mark says so already, or
    /// contains no break.
    pub(super) fn seen(&self) -> Option<Vec<u8>> {
        Some(
            Self {
                hold: self.hold.seen()?,
                ..self.clone()
            }
            .write(),
        )
    }
}

/// The part of a mark for nested holds that keep the lock after the outer hold was released: the
/// session of the contender's node, for them to keep alive.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct InheritedSession {
    pub(super) session: i64,
    /// The session's password, sealed with a secret that only holds of this owner know.
    pub(super) sealed: [u8; 16],
    /// The session's timeout, in ms.
    pub(super) timeout_ms: u64,
}

/// Serializing these types can't fail.
fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::Mode;

    #[test]
    fn the_last_fence_is_stored_or_taken_from_the_change() {
        let last = |data: &[u8]| last_fence(data, 9);
        assert_eq!(
            [
                last(b""),
                last(&write_last(None)),
                last(&write_last(Some(Fence(7))))
            ],
            [None, Some(Fence(9)), Some(Fence(7))]
        );
    }

    #[test]
    fn a_granted_record_has_the_hold_and_the_sealed_session() {
        let data = br#"{"o":"p3","h":true,"n":1,"session":7,"sealed":[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0],"timeout_ms":4000}"#;
        let granted = GrantMark::read(data).unwrap();
        assert_eq!(
            granted
                .inherited_session
                .as_ref()
                .map(|inherited_session| inherited_session.timeout_ms),
            Some(4000)
        );
        assert_eq!(
            (granted.hold.mode, granted.hold.number),
            (Mode::Permits(3), Some(1))
        );
        let again = GrantMark::read(&granted.write()).unwrap();
        assert!(again.inherited_session.is_some() && again.hold == granted.hold);
        assert!(
            GrantMark::read(&HoldRecord::waiting(Mode::Exclusive).write())
                .unwrap()
                .inherited_session
                .is_none()
        );
        assert!(GrantMark::read(b"").is_none());
    }
}
