//! The nodes of a lock's directory: its holders and waiters, of every library.
//!
//! The number at a node's end, which the server assigns, is its position in the one queue.
//! Recognised names:
//!
//! | name | contender |
//! |---|---|
//! | `…-read-lock-N` | dlock, shared. Curator's mutex takes it for a mutex, so that the two exclude each other |
//! | `…-__READ__N` of the same id | made together with that, so that no node is between the two: what writers of Curator's read-write lock wait for. It is the same contender |
//! | `…-permit-M-lock-N` | dlock, for one of M permits. To all others the contender is exclusive |
//! | `…-excl-__WRIT__N` of the same id | made together with an exclusive contender's or a permit's, as above: what readers and writers of Curator's read-write lock wait for |
//! | `…lock-N` | dlock, exclusive; Curator's mutex, go-zookeeper, the Rust client |
//! | `…__WRIT__N`, `…__READ__N` | Curator's read-write lock: waited for. It waits for dlock's second nodes, but not for Curator's mutex |
//! | `…__lock__N`, `…__rlock__N` | kazoo, which waits for dlock only if configured so (`extra_lock_patterns=["-lock-"]`) |

use std::collections::HashMap;

use super::wire::Stat;
use crate::lock::{Fence, Mode};

/// One contender's node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ContenderNode {
    /// The node's name in the directory.
    pub(super) name: String,
    /// Its position. The server continues after 2^31-1 with -2^31, so only differences are
    /// meaningful.
    sequence: i32,
    /// The requested mode.
    pub(super) mode: Mode,
    /// The contender's second node, for libraries that recognise only that one.
    pub(super) second_node: Option<String>,
}

/// Returns the fence of a contender: the number of the change that created its node.
pub(super) fn fence(stat: &Stat) -> Option<Fence> {
    u64::try_from(stat.czxid)
        .ok()
        .filter(|czxid| (1..1 << 53).contains(czxid))
        .map(Fence)
}

/// The beginning of dlock's names, before the public id.
const PREFIX: &str = "_c_";

/// The infixes before the number in the second node: for a reader, and for all others. Curator
/// itself never uses the latter. So a second node without its first is still recognised.
const TWINS: [&str; 2] = ["-__READ__", "-excl-__WRIT__"];
/// The infix before the number of permits that a contender asks for.
const PERMIT: &str = "-permit-";

/// The infixes between a name's beginning and its number, longer ones first.
const FAMILIES: [(&str, Mode); 6] = [
    ("-read-lock-", Mode::Shared),
    ("lock-", Mode::Exclusive),
    ("__WRIT__", Mode::Exclusive),
    ("__READ__", Mode::Shared),
    ("__rlock__", Mode::Shared),
    ("__lock__", Mode::Exclusive),
];

/// Returns the name of a dlock contender, without the number that the server appends.
pub(super) fn name(guid: &str, mode: Mode) -> String {
    match mode {
        Mode::Shared => format!("{PREFIX}{guid}-read-lock-"),
        Mode::Exclusive => format!("{PREFIX}{guid}-lock-"),
        Mode::Permits(most) => format!("{PREFIX}{guid}{PERMIT}{most}-lock-"),
    }
}

/// Returns the name of a dlock contender's second node, without the number.
pub(super) fn second_node(guid: &str, mode: Mode) -> String {
    let [reader, alone] = TWINS;
    format!(
        "{PREFIX}{guid}{}",
        if mode == Mode::Shared { reader } else { alone }
    )
}

impl ContenderNode {
    /// Parses a node's name; returns `None` if it is no contender's.
    pub(super) fn parse(name: &str) -> Option<Self> {
        FAMILIES.into_iter().find_map(|(family, mode)| {
            let (start, number) = name.rsplit_once(family)?;
            // Ten digits, padded with zeros. A sign takes the place of a digit, or is an eleventh
            // character.
            let digits = number.strip_prefix('-').unwrap_or(number);
            let plain =
                (9..=10).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
            let most = || start.strip_suffix('-')?.rsplit_once(PERMIT)?.1.parse().ok();
            let mode = if family == "lock-" {
                most().map_or(mode, Mode::Permits)
            } else {
                mode
            };
            Some(Self {
                name: name.to_owned(),
                sequence: plain.then(|| number.parse().ok())??,
                mode,
                second_node: None,
            })
        })
    }

    /// Returns the contender with its second node.
    pub(super) fn with(self, second_node: Option<String>) -> Self {
        Self {
            second_node,
            ..self
        }
    }

    /// Returns whether its name is a second node's, of dlock's or of Curator's own.
    pub(super) fn is_twin(&self) -> bool {
        self.after_guid().is_some_and(|rest| {
            TWINS
                .iter()
                .any(|second_node| rest.starts_with(second_node))
        })
    }

    /// Returns whether it is a second node that only dlock makes.
    fn is_ours_alone(&self) -> bool {
        self.after_guid()
            .is_some_and(|rest| rest.starts_with(TWINS[1]))
    }

    /// Returns the part after its owner's public id.
    fn after_guid(&self) -> Option<&str> {
        self.guid()
            .and_then(|guid| self.name.get(PREFIX.len() + guid.len()..))
    }

    /// Returns the public id of its owner, if the name is one of dlock's or Curator's.
    pub(super) fn guid(&self) -> Option<&str> {
        let rest = self.name.strip_prefix(PREFIX)?;
        rest.get(..36)
            .filter(|_| rest.as_bytes().get(36) == Some(&b'-'))
    }
}

/// Returns all contenders of a directory in order of arrival, or the name of a child that is no
/// contender.
pub(super) fn contenders(children: &[String]) -> Result<Vec<ContenderNode>, String> {
    let mut contenders = Vec::with_capacity(children.len());
    for child in children {
        contenders.push(ContenderNode::parse(child).ok_or_else(|| child.clone())?);
    }
    let mut contenders = paired(contenders);
    // A comparison by number would fail: around the overflow, the newest nodes have the smallest
    // numbers.
    let newest = contenders
        .iter()
        .fold(None::<i32>, |newest, c| match newest {
            Some(newest) if newest.wrapping_sub(c.sequence) > 0 => Some(newest),
            _ => Some(c.sequence),
        });
    if let Some(newest) = newest {
        contenders.sort_by_key(|c| std::cmp::Reverse(newest.wrapping_sub(c.sequence)));
    }
    Ok(contenders)
}

/// Assigns the second nodes to their contenders.
fn paired(all: Vec<ContenderNode>) -> Vec<ContenderNode> {
    let (twins, mut contenders): (Vec<_>, Vec<_>) =
        all.into_iter().partition(ContenderNode::is_twin);
    if twins.is_empty() {
        return contenders;
    }
    let reads = |one: &ContenderNode| one.mode == Mode::Shared;
    let firsts = contenders.iter_mut();
    let mut firsts: HashMap<_, _> = firsts
        .filter_map(|one| {
            Some((
                (
                    one.guid()?.to_owned(),
                    one.sequence.wrapping_add(1),
                    reads(one),
                ),
                &mut one.second_node,
            ))
        })
        .collect();
    let mut others = Vec::new();
    for second_node in twins {
        let id = second_node
            .guid()
            .map(|guid| (guid.to_owned(), second_node.sequence, reads(&second_node)));
        match id.and_then(|id| firsts.remove(&id)) {
            Some(of) => *of = Some(second_node.name),
            // The first node was deleted from outside. The second node ends with its session.
            None if second_node.is_ours_alone() => {}
            // Curator's own.
            None => others.push(second_node),
        }
    }
    contenders.append(&mut others);
    contenders
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUID: &str = "0b0e0d52-9f1f-4a43-9c80-0d3a6a3a0001";

    fn names(contenders: &[ContenderNode]) -> Vec<&str> {
        contenders
            .iter()
            .map(|c| &c.name[c.name.len() - 3..])
            .collect()
    }

    fn of(names: &[&str]) -> Vec<ContenderNode> {
        contenders(&names.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn contenders_of_every_library_are_ordered_by_their_number() {
        let contenders = of(&[
            "ffffffffffffffffffffffffffffffff__lock__0000000003",
            "_c_0b0e0d52-9f1f-4a43-9c80-0d3a6a3a0001-lock-0000000010",
            "_c_8743c9c0-0795-4907-87fd-6c719a6b4586-__WRIT__0000000001",
            "_c_8743c9c0079549078 7fd6c719a6b4586-lock-0000000004",
            "_c_8743c9c0-0795-4907-87fd-6c719a6b4586-read-lock-0000000005",
            "a__rlock__0000000002",
            "_c_8743c9c0-0795-4907-87fd-6c719a6b4586-permit-3-lock-0000000006",
            "lock-0000000000",
        ]);
        assert_eq!(
            names(&contenders),
            ["000", "001", "002", "003", "004", "005", "006", "010"]
        );
        let (alone, reader) = (Mode::Exclusive, Mode::Shared);
        let modes = [
            alone,
            alone,
            reader,
            alone,
            alone,
            reader,
            Mode::Permits(3),
            alone,
        ];
        assert!(contenders.iter().map(|c| c.mode).eq(modes));
        assert_eq!(
            (contenders[7].guid(), contenders[3].guid()),
            (Some(GUID), None)
        );
    }

    #[test]
    fn a_reader_and_its_second_node_are_one_contender() {
        let contenders = of(&[
            "_c_0b0e0d52-9f1f-4a43-9c80-0d3a6a3a0001-read-lock-0000000002",
            "_c_0b0e0d52-9f1f-4a43-9c80-0d3a6a3a0001-__READ__0000000003",
            "_c_8743c9c0-0795-4907-87fd-6c719a6b4586-__READ__0000000001",
            "_c_8743c9c0-0795-4907-87fd-6c719a6b4586-__WRIT__0000000004",
            // The remaining second node of a contender whose first node was removed.
            "_c_0b0e0d52-9f1f-4a43-9c80-0d3a6a3a0001-__READ__0000000009",
        ]);
        assert_eq!(names(&contenders), ["001", "002", "004", "009"]);
        assert_eq!(
            contenders
                .iter()
                .map(|c| c
                    .second_node
                    .as_deref()
                    .is_some_and(|second_node| second_node.ends_with('3')))
                .collect::<Vec<_>>(),
            [false, true, false, false]
        );
        assert_eq!(
            contenders
                .iter()
                .map(ContenderNode::is_twin)
                .collect::<Vec<_>>(),
            [true, false, false, true]
        );
    }

    #[test]
    fn an_exclusive_contender_has_a_second_node_too() {
        let mutex = "_c_0b0e0d52-9f1f-4a43-9c80-0d3a6a3a0001-lock-0000000002";
        let contenders = of(&[
            mutex,
            "_c_0b0e0d52-9f1f-4a43-9c80-0d3a6a3a0001-excl-__WRIT__0000000003",
            "_c_8743c9c0-0795-4907-87fd-6c719a6b4586-permit-2-lock-0000000004",
            "_c_8743c9c0-0795-4907-87fd-6c719a6b4586-excl-__WRIT__0000000005",
            // Curator's own.
            "_c_11111111-0795-4907-87fd-6c719a6b4586-__WRIT__0000000006",
            // A remaining second node, which blocks no dlock contender.
            "_c_22222222-0795-4907-87fd-6c719a6b4586-excl-__WRIT__0000000007",
        ]);
        assert_eq!(names(&contenders), ["002", "004", "006"]);
        assert_eq!(
            contenders
                .iter()
                .map(|c| c.second_node.is_some())
                .collect::<Vec<_>>(),
            [true, true, false]
        );
        assert_eq!(
            contenders.iter().map(|c| c.mode).collect::<Vec<_>>(),
            [Mode::Exclusive, Mode::Permits(2), Mode::Exclusive]
        );
    }

    #[test]
    fn other_nodes_are_errors() {
        for bad in [
            "locks",
            "config",
            "lock-",
            "lock-12",
            "lock-00000000001x",
            "x-0000000001",
            "a-lease-0000000001",
            "lock-99999999999",
        ] {
            assert_eq!(contenders(&[bad.to_owned()]), Err(bad.to_owned()));
        }
    }

    #[test]
    fn numbers_stay_ordered_after_an_overflow() {
        let contenders = of(&[
            "b-lock--2147483648",
            "a-lock-2147483647",
            "c-lock--2147483647",
            "z-lock-2147483600",
        ]);
        assert_eq!(
            contenders.iter().map(|c| &c.name[..1]).collect::<Vec<_>>(),
            ["z", "a", "b", "c"]
        );
        assert_eq!(
            ContenderNode::parse("x-lock--000000005").unwrap().sequence,
            -5
        );
    }
}
