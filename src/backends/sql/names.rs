//! The names of locks and holds in a lock table.

use crate::lock::{Key, Namespace, Token};

/// The names of a namespace: `<namespace>:<key>`, or the bare key if the namespace is empty. A
/// column can hold any key; the table must compare names by their bytes.
#[derive(Clone, Debug)]
pub struct Names(String);

impl Names {
    /// Returns the names of `namespace`.
    pub fn new(namespace: &Namespace) -> Self {
        Self(match namespace.as_str() {
            "" => String::new(),
            namespace => format!("{namespace}:"),
        })
    }

    /// Returns the lock's name in the table.
    pub fn of(&self, key: &Key) -> String {
        self.starting_with(key.as_str())
    }

    /// Returns the common prefix of the names of all keys that begin with `start`.
    pub fn starting_with(&self, start: &str) -> String {
        format!("{}{start}", self.0)
    }

    /// Returns the key of a name; `None` if no key of this namespace has the name.
    pub fn key(&self, name: &str) -> Option<Key> {
        Key::new(name.strip_prefix(&self.0)?).ok()
    }
}

/// The prefix of `locked_by`.
pub(super) const OWNER: &str = "dlock:";

/// Returns the value of `locked_by` while a token's owner has the lock. It is unique per lease, so
/// that no other client takes the lock for its own.
pub fn locked_by(token: &Token) -> String {
    format!("{OWNER}{}", token.owner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_a_round_trip_and_stay_in_their_namespace() {
        let (job, slash) = (Key::new("job").unwrap(), Key::new("a:b/%").unwrap());
        let names = Names::new(&Namespace::default());
        assert_eq!(names.of(&job), "dlock:job");
        assert_eq!(names.key(&names.of(&slash)), Some(slash.clone()));
        assert_eq!(
            (names.key("job"), names.key("dlock:"), names.key("dlock")),
            (None, None, None)
        );
        let bare = Names::new(&Namespace::new("").unwrap());
        assert_eq!(
            (bare.of(&job).as_str(), bare.key("job")),
            ("job", Some(job))
        );
    }
}
