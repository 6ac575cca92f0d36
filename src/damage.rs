//! Damaged input for tests, as another program, another version or a broken disk may leave it.

use std::hash::{BuildHasher as _, RandomState};

use serde_json::{Map, Value};

/// A stream of choices that a seed decides.
pub struct Dice(pub u64);

impl Dice {
    /// Returns a number below `most`.
    pub fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        usize::try_from((mixed ^ (mixed >> 27)) % most as u64).unwrap_or_default()
    }

    fn one_of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

/// Returns JSON with some of its parts replaced, lost or doubled.
pub fn json(value: &Value, dice: &mut Dice) -> Value {
    let odd = [
        0.into(),
        1.into(),
        u64::MAX.into(),
        i64::MAX.into(),
        i64::MIN.into(),
        (-1).into(),
        (1_u64 << 53).into(),
        1e300.into(),
        0.5.into(),
        Value::Null,
        true.into(),
        "".into(),
        "x".into(),
        "\u{0}'\"\\{}".into(),
        "18446744073709551615".into(),
        Value::Array(Vec::new()),
        Value::Object(Map::new()),
    ];
    // Numbers mostly stay numbers: text in their place is refused at once.
    let number = value.is_number() && dice.below(9) == 0;
    if number || dice.below(300) == 0 {
        return dice.one_of(if number { &odd[..9] } else { &odd }).clone();
    }
    match value {
        Value::Array(items) => {
            let mut out = Vec::new();
            for item in items {
                for _ in 0..*dice.one_of(&[1, 1, 1, 1, 1, 1, 0, 2]) {
                    out.push(json(item, dice));
                }
            }
            Value::Array(out)
        }
        Value::Object(fields) => {
            let kept = fields
                .iter()
                .filter(|_| dice.below(150) != 0)
                .map(|(name, value)| (name.clone(), value.clone()));
            let kept: Vec<_> = kept.collect();
            Value::Object(
                kept.into_iter()
                    .map(|(name, value)| (name, json(&value, dice)))
                    .collect(),
            )
        }
        Value::String(text) => Value::String(digits(text, dice)),
        other => other.clone(),
    }
}

/// Returns text with some of its numbers replaced by extreme ones.
fn digits(text: &str, dice: &mut Dice) -> String {
    const ODD: &[&str] = &[
        "0",
        "1",
        "-1",
        "-9223372036854775808",
        "9223372036854775807",
        "18446744073709551615",
        "99999999999999999999",
        "",
        "1.5",
    ];
    let mut out = String::new();
    let is_digit = |c: &char| c.is_ascii_digit();
    let all: Vec<char> = text.chars().collect();
    for run in all.chunk_by(|a, b| is_digit(a) == is_digit(b)) {
        if is_digit(&run[0]) && dice.below(12) == 0 {
            out += ODD[dice.below(ODD.len())];
        } else {
            out.extend(run);
        }
    }
    out
}

/// Returns text with some of its characters replaced, lost or doubled, or cut off.
pub fn text(text: &str, dice: &mut Dice) -> String {
    const ODD: &[char] = &[
        '\0',
        '"',
        '\'',
        '=',
        '[',
        ']',
        '{',
        '}',
        '#',
        '%',
        '@',
        ':',
        '/',
        '?',
        '&',
        '\n',
        '\u{202e}',
        '\u{1F469}',
        '9',
        '-',
        '.',
    ];
    let mut out = String::new();
    for c in text.chars() {
        match dice.below(60) {
            0 => {}
            1 => out.extend([c, c]),
            2 => out.push(*dice.one_of(ODD)),
            3 if dice.below(10) == 0 => return out,
            _ => out.push(c),
        }
    }
    out
}

/// Returns bytes with some of them replaced, lost or doubled, or cut off.
pub fn bytes(bytes: &[u8], dice: &mut Dice) -> Vec<u8> {
    let mut out = Vec::new();
    for byte in bytes {
        match dice.below(40) {
            0 => {}
            1 => out.extend([*byte, *byte]),
            2 => out.push(*dice.one_of(&[0, 1, 0x7f, 0x80, 0xfe, 0xff])),
            3 if dice.below(10) == 0 => return out,
            _ => out.push(*byte),
        }
    }
    out
}

/// How many inputs a case tries.
pub const TRIES: u64 = 2000;

/// Returns the first seed of a case: `DLOCK_TEST_SEED`, or a random one.
pub fn first_seed() -> u64 {
    std::env::var("DLOCK_TEST_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(|| RandomState::new().hash_one(()))
}

/// Tries damaged inputs; a panic prints the seed.
pub fn each(mut case: impl FnMut(&mut Dice)) {
    let first = first_seed();
    for seed in (0..TRIES).map(|nth| first.wrapping_add(nth)) {
        let caught =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| case(&mut Dice(seed))));
        assert!(caught.is_ok(), "DLOCK_TEST_SEED={seed}");
    }
}
