//! The slot of a name among a cluster's 16384: the CRC16 (XMODEM) of its hash tag.

/// The number of slots.
pub(super) const SLOTS: u16 = 16_384;

/// Returns the slot of a key or channel.
pub(super) fn of(name: &str) -> u16 {
    crc16(tag(name).as_bytes()) % SLOTS
}

/// Returns the text between the first brace and the next closing one, or the whole name if there is
/// none.
fn tag(name: &str) -> &str {
    let tag = name
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'))
        .map(|(tag, _)| tag);
    tag.filter(|tag| !tag.is_empty()).unwrap_or(name)
}

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| {
            if crc & 0x8000 == 0 {
                crc << 1
            } else {
                crc << 1 ^ 0x1021
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        backends::redis::names::RedisNames,
        lock::{Key, Namespace},
    };

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        for (name, slot) in [
            ("foo", 12_182),
            ("{user1000}.following", 3443),
            ("foo{}{bar}", 8363),
            ("foo{{bar}}zap", 4015),
            ("{bar", 4015),
        ] {
            assert_eq!(of(name), slot, "{name}");
        }
    }

    #[test]
    fn all_of_a_locks_names_share_its_slot() {
        for namespace in ["dlock", ""] {
            for key in [
                "job",
                "a{b}c",
                "{}",
                "{",
                "}{",
                "{{a}}",
                "a:b",
                "%",
                "caf\u{e9}",
            ] {
                let Ok(names) =
                    RedisNames::new(&Namespace::new(namespace).unwrap(), &Key::new(key).unwrap())
                else {
                    continue;
                };
                let slot = of(&names.lock);
                let others = [
                    &names.fence,
                    &names.record,
                    &names.queue,
                    &names.waiters,
                    &names.wake,
                    &names.channel,
                    &names.rw_channel,
                ];
                assert!(
                    others.iter().all(|name| of(name) == slot),
                    "{namespace:?} {key:?}"
                );
            }
        }
    }
}
