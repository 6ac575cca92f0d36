//! `DLOCK_HELD`: the locks that ancestor processes hold, so that a nested `dlock run` enters
//! instead of deadlocking.
//!
//! The variable is only a claim: the store is asked each time whether a token still holds its lock.

use crate::lock::{Encoding, Key, Token};

/// Keys stand between slashes and spaces.
const ENCODING: Encoding = Encoding::new(b" /");

/// The holds that ancestors claim, outermost first.
#[derive(Clone, Debug, Default)]
pub struct Held(Vec<HeldLock>);

#[derive(Clone, Debug)]
struct HeldLock {
    store: u64,
    key: Key,
    token: Token,
}

impl Held {
    /// The name of the environment variable.
    pub const VARIABLE: &'static str = "DLOCK_HELD";

    /// Reads the variable's value. What can't be read is left out: at worst a lock is found busy.
    pub fn parse(value: &str) -> Self {
        let entry = |text: &str| {
            let mut parts = text.splitn(3, '/');
            let store = u64::from_str_radix(parts.next()?, 16).ok()?;
            let token = parts.next()?.parse().ok()?;
            let key = ENCODING.decode(parts.next()?)?;
            Some(HeldLock { store, key, token })
        };
        Self(value.split(' ').filter_map(entry).collect())
    }

    /// Returns the innermost hold that is claimed of `key` in the store with this fingerprint.
    pub fn find(&self, store: u64, key: &Key) -> Option<Token> {
        self.0
            .iter()
            .rev()
            .find(|entry| entry.store == store && entry.key == *key)
            .map(|entry| entry.token)
    }

    /// Returns the value for a command that runs under one more hold.
    #[must_use]
    pub fn and(mut self, store: u64, key: &Key, token: Token) -> Self {
        self.0
            .retain(|entry| entry.store != store || entry.key != *key);
        self.0.push(HeldLock {
            store,
            key: key.clone(),
            token,
        });
        self
    }

    /// Returns the variable's value, which is a secret because it has tokens.
    pub fn reveal(&self) -> String {
        let entry = |e: &HeldLock| {
            format!(
                "{:016x}/{}/{}",
                e.store,
                e.token.reveal(),
                ENCODING.encode(&e.key)
            )
        };
        self.0.iter().map(entry).collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::damage;

    #[test]
    fn holds_survive_a_round_trip_and_the_innermost_wins() {
        let key = |name: &str| Key::new(name).unwrap();
        let (first, second, third) = (Token::random(), Token::random(), Token::random());
        let held = Held::default()
            .and(1, &key("a b/c%"), first)
            .and(2, &key("a b/c%"), second)
            .and(1, &key("x"), third);
        let back = Held::parse(&held.reveal());
        assert_eq!(back.find(1, &key("a b/c%")), Some(first));
        assert_eq!(back.find(2, &key("a b/c%")), Some(second));
        assert_eq!(back.find(3, &key("x")), None);
        let nested = first.nested();
        assert_eq!(
            back.and(1, &key("a b/c%"), nested).find(1, &key("a b/c%")),
            Some(nested)
        );
    }

    #[test]
    fn invalid_entries_are_skipped() {
        let held = Held::parse("x //// 1/2/3 ffffffffffffffff/nonsense/key  ");
        assert!(held.0.is_empty());
    }

    /// Any process may set the variable. Each parsed hold was in the text, or there is none.
    #[test]
    fn a_damaged_value_is_read_up_to_the_damage() {
        let key = |name: &str| Key::new(name).unwrap();
        let session = crate::lock::StoreSession {
            id: 7,
            password: *b"sixteen bytes ok",
        };
        let (first, token) = (
            Token::random(),
            Token {
                session: Some(session),
                ..Token::random()
            },
        );
        let whole = Held::default()
            .and(1, &key("a b/c%"), first)
            .and(u64::MAX, &key("\u{1F469}"), token)
            .reveal();
        let mut kept = 0;
        damage::each(|dice| {
            let (before, after) =
                whole.split_at(whole.floor_char_boundary(dice.below(whole.len())));
            let held = Held::parse(&(before.to_owned() + &damage::text(after, dice)));
            kept += u64::from(held.find(1, &key("a b/c%")) == Some(first));
            // What is passed on is read as it was meant.
            let again = Held::parse(&held.reveal());
            assert_eq!(again.reveal(), held.reveal());
            assert_eq!(again.0.len(), held.0.len());
        });
        assert!(kept > damage::TRIES / 20, "only {kept} were found");
    }
}
