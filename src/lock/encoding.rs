//! Reversible encoding of keys into the characters that a store's names may have.

use std::{borrow::Cow, fmt::Write as _};

use super::Key;

/// Percent-encoding with a store's own set of reserved bytes.
///
/// `%` and control characters are always encoded. Decoding accepts only upper-case hexadecimal, and
/// refuses a needlessly encoded byte. So every key has one encoding, and every encoding one key.
#[derive(Clone, Copy, Debug)]
pub struct Encoding {
    reserved: &'static [u8],
}

impl Encoding {
    /// Returns an encoding that replaces `%`, control characters and the bytes of `reserved`.
    pub const fn new(reserved: &'static [u8]) -> Self {
        Self { reserved }
    }

    fn is_reserved(self, byte: u8) -> bool {
        byte == b'%' || byte.is_ascii_control() || self.reserved.contains(&byte)
    }

    /// Returns the key in the store's form.
    pub fn encode(self, key: &Key) -> String {
        self.encode_str(key.as_str())
    }

    /// Returns any text in the store's form, such as the start of a key in a listing.
    pub fn encode_str(self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        for c in text.chars() {
            match u8::try_from(c) {
                Ok(byte) if c.is_ascii() && self.is_reserved(byte) => {
                    // Writing to a String can't fail.
                    let _ = write!(out, "%{byte:02X}");
                }
                _ => out.push(c),
            }
        }
        out
    }

    /// Returns the key encoded as `stored`; `None` if `stored` is no key's encoding.
    pub fn decode(self, stored: &str) -> Option<Key> {
        let mut bytes = Vec::with_capacity(stored.len());
        let mut rest = stored.bytes();
        while let Some(byte) = rest.next() {
            if byte == b'%' {
                let byte = hex(rest.next()?)? << 4 | hex(rest.next()?)?;
                if !self.is_reserved(byte) {
                    return None;
                }
                bytes.push(byte);
            } else if self.is_reserved(byte) {
                return None;
            } else {
                bytes.push(byte);
            }
        }
        Key::new(String::from_utf8(bytes).ok()?).ok()
    }
}

fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

/// Returns `text` with all characters escaped that could move a terminal's cursor, or hide or
/// reorder characters.
pub fn printable(text: &str) -> Cow<'_, str> {
    if text.chars().all(is_printable) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for (at, c) in text.char_indices() {
        if is_printable(c) || joins_emoji(text, at, c) {
            out.push(c);
        } else {
            out.extend(c.escape_default());
        }
    }
    Cow::Owned(out)
}

/// Whether this is a joiner between two emoji, as in a family emoji. It hides and moves nothing.
fn joins_emoji(text: &str, at: usize, c: char) -> bool {
    let is_emoji =
        |c: char| matches!(c, '\u{2190}'..='\u{2bff}' | '\u{fe0f}' | '\u{1f000}'..='\u{1faff}');
    c == '\u{200d}'
        && text[..at].ends_with(is_emoji)
        && text[at + c.len_utf8()..].starts_with(is_emoji)
}

/// Whether this is no control, format (zero-width, bidirectional), line-separator or tag character.
fn is_printable(c: char) -> bool {
    !c.is_control()
        && !matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SETS: [&[u8]; 3] = [b"", b"{}", b"/:*?[]\\"];

    fn any_key() -> impl Strategy<Value = Key> {
        let odd = prop_oneof![
            Just("../x".to_owned()),
            Just("a/b".to_owned()),
            Just("a{b}c".to_owned()),
            Just("%".to_owned()),
            Just("%25".to_owned()),
            Just("_".to_owned()),
            Just("*".to_owned()),
            Just("job ".to_owned()),
            "[a%{}/:*_ ]{1,40}",
            "\\PC{1,60}",
        ];
        odd.prop_filter_map("no key", |name| Key::new(name).ok())
    }

    proptest! {
        #[test]
        fn every_key_survives_a_round_trip(key in any_key()) {
            for set in SETS {
                let encoding = Encoding::new(set);
                prop_assert_eq!(encoding.decode(&encoding.encode(&key)), Some(key.clone()));
            }
        }

        #[test]
        fn no_two_keys_collide(a in any_key(), b in any_key()) {
            for set in SETS {
                let encoding = Encoding::new(set);
                prop_assert_eq!(a == b, encoding.encode(&a) == encoding.encode(&b));
            }
        }

        #[test]
        fn reserved_bytes_never_appear(key in any_key()) {
            for set in SETS {
                let stored = Encoding::new(set).encode(&key);
                prop_assert!(!stored.bytes().any(|b| set.contains(&b)));
            }
        }

        #[test]
        fn decoded_keys_are_canonical(stored in "[a%{}/0-9A-F]{1,12}") {
            for set in SETS {
                let encoding = Encoding::new(set);
                if let Some(key) = encoding.decode(&stored) {
                    prop_assert_eq!(encoding.encode(&key), stored.clone());
                }
            }
        }
    }

    #[test]
    fn reordering_and_invisible_characters_are_escaped() {
        assert_eq!(
            printable("a\u{202e}b\u{1b}[2Jc\u{200b}"),
            "a\\u{202e}b\\u{1b}[2Jc\\u{200b}"
        );
        assert_eq!(
            printable("👨\u{200d}👩\u{200b}"),
            "👨\u{200d}👩\\u{200b}",
            "a family is one, and nothing is hidden"
        );
        assert_eq!(printable("a\u{200d}b"), "a\\u{200d}b");
        assert_eq!(printable("\u{200b}👩\u{200d}"), "\\u{200b}👩\\u{200d}");
        assert!(matches!(printable("naïve ∀ 日本"), Cow::Borrowed(_)));
    }
}
