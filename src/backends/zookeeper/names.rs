//! The paths of a lock's nodes.
//!
//! ```text
//! <chroot>/<namespace>/<key>/_c_<guid>-lock-NNNNNNNNNN        a holder or a waiter; a directory of nothing else
//!                                                             (for other kinds see [`super::contender`])
//! <chroot>/<namespace>.meta/<key>                             the last fence, and below it:
//!                                 /held-<guid>                there from the grant to the clean release: whose hold it is
//!                                 /hold-<guid>-<hold>         one for each hold of an owner; what renewals write
//!                                 /permit-<number>            a permit that is held, as long as its holder's session
//!                                 /runs                       the run records: see [`super::runs`]
//! <chroot>/<namespace>.meta/%now-…                            made and removed to learn the time
//! <chroot>/<namespace>.meta/%wait-<guid>-…                    a waiter's proof that it lives, of its session: the ms until the next
//! <chroot>/<namespace>.meta/%fine/<key>/<fence>               a history entry: see [`super::history`]
//! <chroot>/<namespace>.meta/%bad/<key>/<fence>                a bad history entry
//! <chroot>/<namespace>.meta/%skips/<key>/…                    a host that skipped
//! ```
//! Without a namespace, locks are in the chroot itself, where other libraries look for them, and
//! all other nodes in `.meta`.

use std::fmt::Write as _;

use uuid::Uuid;

use crate::lock::{Fence, Key, Namespace, Token};

/// The names of all nodes of one lock.
#[derive(Clone, Debug)]
pub(super) struct ZkNames {
    /// The directory of its contenders.
    pub(super) lock: String,
    /// Its own node in the side folder, with the last fence.
    pub(super) meta: String,
    /// The folder of all other nodes of the namespace.
    folder: String,
    name: String,
}

impl ZkNames {
    pub(super) fn new(chroot: &str, namespace: &Namespace, key: &Key) -> Self {
        let name = encode(key.as_str());
        let side_nodes = meta_folder(chroot, namespace);
        Self {
            lock: format!("{}/{name}", folder(chroot, namespace)),
            meta: format!("{side_nodes}/{name}"),
            folder: side_nodes,
            name,
        }
    }

    /// Returns the folder of one kind of the lock's history.
    pub(super) fn memory(&self, what: HistoryKind) -> String {
        format!("{}/{}", history_folder(&self.folder, what), self.name)
    }

    /// Returns the node of a host that skipped. The host's name may be anything.
    pub(super) fn skips_of(&self, host: &str) -> String {
        format!(
            "{}/{}",
            self.memory(HistoryKind::SkipCount),
            hash(Uuid::nil(), host.as_bytes()).simple()
        )
    }

    /// Returns the node of a history entry.
    pub(super) fn run(&self, bad: bool, fence: Fence) -> String {
        let folder = self.memory(if bad {
            HistoryKind::Bad
        } else {
            HistoryKind::Fine
        });
        // The order by name is the order of the grants.
        format!("{folder}/{:016x}", fence.0)
    }

    pub(super) fn contender(&self, name: &str) -> String {
        format!("{}/{name}", self.lock)
    }

    /// Returns the folder of all nodes that are not contenders, of any lock.
    pub(super) fn folder(&self) -> &str {
        &self.folder
    }

    /// Returns the node of the run records.
    pub(super) fn runs(&self) -> String {
        runs_of(&self.meta)
    }

    /// Returns the grant's mark of the owner with this public id. It exists until the owner gives
    /// the lock back.
    pub(super) fn mark(&self, guid: &str) -> String {
        format!("{}/{MARK}{guid}", self.meta)
    }

    /// Returns the node by which the owner with this public id proves, while it waits, that it
    /// lives.
    pub(super) fn wait(&self, guid: &str) -> String {
        format!(
            "{}/%wait-{guid}-{}",
            self.folder,
            hash(Uuid::nil(), self.name.as_bytes()).simple()
        )
    }

    /// Returns the node of the permit with this number.
    pub(super) fn permit(&self, number: u32) -> String {
        format!("{}/{PERMIT}{number}", self.meta)
    }

    /// Returns the node that renewals of this hold write.
    pub(super) fn hold(&self, token: &Token) -> String {
        format!("{}/{}{}", self.meta, holds_of(&guid(token)), hold_id(token))
    }
}

/// The kinds of a lock's history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HistoryKind {
    /// History entries.
    Fine,
    /// Bad history entries.
    Bad,
    /// A skipped run.
    SkipCount,
}

/// Returns the folder of one kind of history, in the folder of the nodes that are no contenders. No
/// key is encoded to such a name.
pub(super) fn history_folder(meta: &str, what: HistoryKind) -> String {
    let name = match what {
        HistoryKind::Fine => "%fine",
        HistoryKind::Bad => "%bad",
        HistoryKind::SkipCount => "%skips",
    };
    format!("{meta}/{name}")
}

/// Returns the run records of the lock with this node. They outlive its holds.
pub(super) fn runs_of(meta: &str) -> String {
    format!("{meta}/runs")
}

/// The run records of an older layout.
pub(super) const OLD: [&str; 2] = ["paced", "once"];

/// The beginning of marks' names.
pub(super) const MARK: &str = "held-";
/// The beginning of permits' names.
pub(super) const PERMIT: &str = "permit-";

/// Returns all parents of a node, and the node itself.
pub(super) fn parents_of(path: &str) -> Vec<String> {
    path.match_indices('/')
        .map(|(at, _)| at)
        .skip(1)
        .chain([path.len()])
        .map(|end| path[..end].to_owned())
        .collect()
}

/// Returns the folder of all locks of a namespace; empty for the root itself.
pub(super) fn folder(chroot: &str, namespace: &Namespace) -> String {
    match namespace.as_str() {
        "" => chroot.to_owned(),
        namespace => format!("{chroot}/{namespace}"),
    }
}

/// Returns the folder of all nodes that are not contenders.
pub(super) fn meta_folder(chroot: &str, namespace: &Namespace) -> String {
    format!("{chroot}/{}.meta", namespace.as_str())
}

/// Returns the beginning of the names of the holds of the owner with this public id.
pub(super) fn holds_of(guid: &str) -> String {
    format!("hold-{guid}-")
}

/// Hashes a secret, so that it can be recognised in public: SHA-1, as in UUIDs of version 5.
fn hash(owner: Uuid, what: &[u8]) -> Uuid {
    const SPACE: Uuid = Uuid::from_u128(0x6c0a_1d5e_95b8_4f43_8e0a_646c_6f63_6b31);
    Uuid::new_v5(&SPACE, &[owner.as_bytes(), what].concat())
}

/// Returns the owner's public id, in Curator's form.
pub(super) fn guid(token: &Token) -> String {
    hash(token.owner, b"").hyphenated().to_string()
}

/// Returns the public id of a hold among those of its owner.
fn hold_id(token: &Token) -> String {
    hash(token.owner, token.hold_text().as_bytes())
        .simple()
        .to_string()[..16]
        .to_owned()
}

/// Seals a session's password for the nested holds: only they know the owner.
pub(super) fn seal(token: &Token, password: [u8; 16]) -> [u8; 16] {
    let pad = hash(token.owner, b"session").into_bytes();
    std::array::from_fn(|at| password[at] ^ pad[at])
}

/// Returns whether ZooKeeper allows the character in no name. Java stores those beyond 16 bits as
/// two of the forbidden surrogates.
pub(super) fn is_forbidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..='\u{ffff}')
        || c > '\u{ffff}'
}

/// Names with a special meaning, whose first byte is encoded.
const RESERVED: [&str; 4] = [".", "..", ".meta", "zookeeper"];

/// Returns the key as a node's name: percent-encoded where ZooKeeper allows no such name.
pub(super) fn encode(key: &str) -> String {
    let mut out = String::with_capacity(key.len() + 8);
    for (at, c) in key.char_indices() {
        if c == '/' || c == '%' || is_forbidden(c) || (at == 0 && RESERVED.contains(&key)) {
            for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                // Writing to a String can't fail.
                let _ = write!(out, "%{byte:02X}");
            }
        } else {
            out.push(c);
        }
    }
    out
}

/// Returns the key that `name` encodes; `None` if it encodes none.
pub(super) fn decode(name: &str) -> Option<Key> {
    let bytes = percent_encoding::percent_decode_str(name)
        .decode_utf8()
        .ok()?;
    let key = Key::new(bytes.into_owned()).ok()?;
    (encode(key.as_str()) == name).then_some(key)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_key() -> impl Strategy<Value = Key> {
        prop_oneof![
            "[a%/.\u{1f512}\u{e000}\u{fffd}é ]{1,30}",
            "\\PC{1,60}",
            "(\\.|\\.\\.|\\.meta|zookeeper|%2E|zookeepe)"
        ]
        .prop_filter_map("no key", |name| Key::new(name).ok())
    }

    proptest! {
        #[test]
        fn every_key_survives_a_round_trip_and_is_a_valid_name(key in any_key()) {
            let name = encode(key.as_str());
            prop_assert!(!name.contains('/') && !name.chars().any(is_forbidden) && !RESERVED.contains(&name.as_str()), "{}", name);
            prop_assert_eq!(decode(&name), Some(key));
        }

        #[test]
        fn no_two_keys_collide(a in any_key(), b in any_key()) {
            prop_assert_eq!(a == b, encode(a.as_str()) == encode(b.as_str()));
        }

        #[test]
        fn decoded_keys_are_canonical(name in "[a%/.0-9A-Fz]{1,12}") {
            if let Some(key) = decode(&name) {
                prop_assert_eq!(encode(key.as_str()), name);
            }
        }
    }

    #[test]
    fn names_match_other_libraries() {
        let key = Key::new("a/b.c").unwrap();
        let names = ZkNames::new("/x", &Namespace::default(), &key);
        assert_eq!(
            (names.lock.as_str(), names.meta.as_str()),
            ("/x/dlock/a%2Fb.c", "/x/dlock.meta/a%2Fb.c")
        );
        let bare = ZkNames::new(
            "",
            &Namespace::new("").unwrap(),
            &Key::new("my.lock").unwrap(),
        );
        assert_eq!(
            (bare.lock.as_str(), bare.meta.as_str()),
            ("/my.lock", "/.meta/my.lock")
        );
        assert_eq!(decode("%now-1"), None);
        assert!(
            [HistoryKind::Fine, HistoryKind::Bad, HistoryKind::SkipCount]
                .into_iter()
                .all(|what| decode(&history_folder("", what)[1..]).is_none())
        );
        assert_eq!(
            names.run(true, Fence(0x1f)),
            "/x/dlock.meta/%bad/a%2Fb.c/000000000000001f"
        );
    }

    #[test]
    fn public_ids_distinguish_owners_and_holds_without_revealing_them() {
        let token = Token::random();
        let nested = token.nested();
        assert_eq!(guid(&token), guid(&nested));
        assert_ne!(hold_id(&token), hold_id(&nested));
        assert_eq!(
            seal(&token, seal(&nested, *b"sixteen bytes ok")),
            *b"sixteen bytes ok"
        );
        assert!(
            !guid(&token).contains(&token.owner.to_string()[..8])
                && !hold_id(&token).contains(&token.hold_text())
        );
    }
}
