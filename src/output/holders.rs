//! Text about holders and waiters. All of it comes from other users, so all of it is escaped and
//! cut.

use super::age;
pub use super::columns::cut;
use crate::{
    lease::Loss,
    lock::{Break, Error, Fence, Holder, Metadata, printable},
};

/// Most characters shown of a name.
const MAX_NAME: usize = 40;
/// Most characters shown of a note.
const MAX_NOTE: usize = 120;

/// Returns how a lock was lost: `no renewal for 36s: redis://r1: connection refused`.
/// Without any attempt to renew, dlock itself was probably stopped.
pub fn loss(loss: &Loss) -> String {
    match loss {
        Loss::NotOwner => "the store has another holder, or none".into(),
        Loss::Unconfirmed { since, last: None } => {
            format!("no renewal for {}: was dlock stopped?", age(*since))
        }
        Loss::Unconfirmed {
            since,
            last: Some(Error {
                backend, message, ..
            }),
        } => {
            let backend = backend
                .as_ref()
                .map(|backend| format!("{backend}: "))
                .unwrap_or_default();
            format!("no renewal for {}: {backend}{message}", age(*since))
        }
        Loss::Broken(by) => format!("it is being broken {}", mark(by)),
    }
}

/// Returns `text` escaped, and cut to `most` columns.
pub fn clean(text: &str, most: usize) -> String {
    // Cut first, so that megabytes of text are not escaped in vain.
    let start: String = text.chars().take(most + 1).collect();
    cut(&printable(&start), most)
}

/// Returns the last digits of a fence, at least four and enough to distinguish it from `others`.
/// `break --fence` takes them.
pub fn fence(fence: Fence, others: impl Iterator<Item = Fence>) -> String {
    let digits = fence.to_string();
    let others: Vec<String> = others
        .filter(|other| *other != fence)
        .map(|other| other.to_string())
        .collect();
    let ends = (4..digits.len().saturating_sub(1)).map(|many| &digits[digits.len() - many..]);
    match ends
        .into_iter()
        .find(|end| others.iter().all(|other| !other.ends_with(end)))
    {
        Some(end) if digits.len() > 6 => format!("…{end}"),
        _ => digits,
    }
}

/// Returns `user@host`, or only one of them; `None` if both are unknown.
pub fn user_at_host(metadata: Option<&Metadata>) -> Option<String> {
    let metadata = metadata?;
    let name = |text: &Option<String>| text.as_deref().map(|text| clean(text, MAX_NAME));
    match (name(&metadata.user), name(&metadata.host)) {
        (Some(user), Some(host)) => Some(format!("{user}@{host}")),
        (None, Some(host)) => Some(host),
        (Some(user), None) => Some(user),
        (None, None) => None,
    }
}

/// Returns the holder's name, for use in a sentence.
pub fn holder(holder: &Holder) -> String {
    user_at_host(holder.metadata.as_ref()).unwrap_or_else(|| {
        if holder.foreign {
            "a client that is not dlock"
        } else {
            "another process"
        }
        .into()
    })
}

/// Returns the name of the command.
pub fn command(metadata: Option<&Metadata>) -> Option<String> {
    metadata?
        .command
        .as_deref()
        .map(|command| clean(command, MAX_NAME))
}

/// Returns the note in quotes.
pub fn note(metadata: Option<&Metadata>) -> Option<String> {
    metadata?
        .description
        .as_deref()
        .map(|note| format!("\"{}\"", clean(note, MAX_NOTE)))
}

/// Returns the holder, how long it has held the lock, and its note: `ana@ops1, 4m 12s, "v2.3"`.
pub fn described(one: &Holder) -> String {
    let held = one.held_for.map(super::age);
    [Some(holder(one)), held, note(one.metadata.as_ref())]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(", ")
}

/// Returns the operator that is breaking a hold, and the reason: `by ana@ops1: "NFS"`.
pub fn mark(mark: &Break) -> String {
    let by = clean(&mark.by, 2 * MAX_NAME);
    match &mark.why {
        Some(why) => format!("by {by}: \"{}\"", clean(why, MAX_NOTE)),
        None => format!("by {by}"),
    }
}

/// Returns a key, or its name in a store, quoted for a shell.
pub fn shell(name: &(impl AsRef<str> + ?Sized)) -> String {
    let text = name.as_ref();
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@%+=,".contains(c);
    if text.chars().all(plain) && !text.starts_with('-') {
        text.to_owned()
    } else if text.starts_with('-') {
        format!("-- '{}'", text.replace('\'', r"'\''"))
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_escaped_and_cut() {
        let metadata = Metadata {
            user: Some("an\u{1b}[2Ja\r\u{202e}".into()),
            host: Some("h".repeat(10 << 20)),
            description: Some("x\n".repeat(5 << 20)),
            ..Metadata::default()
        };
        let who = user_at_host(Some(&metadata)).unwrap();
        assert!(
            who.starts_with("an\\u{1b}[2Ja\\r\\u{202e}@hhh") && who.chars().count() < 100,
            "{who}"
        );
        assert!(
            note(Some(&metadata))
                .is_some_and(|note| note.chars().count() <= MAX_NOTE + 2 && !note.contains('\n'))
        );
    }

    #[test]
    fn fences_are_shortened_but_stay_distinct() {
        let among = |others: &[u64]| {
            fence(
                Fence(1_795_364_671_046_172),
                others.iter().copied().map(Fence),
            )
        };
        assert_eq!(
            (among(&[]), among(&[1_795_364_671_146_172])),
            ("…6172".into(), "…046172".into())
        );
        assert_eq!(among(&[5_671_046_172]), "…4671046172");
        assert_eq!(fence(Fence(812), [Fence(9812)].into_iter()), "812");
    }

    #[test]
    fn keys_can_be_pasted_into_a_shell() {
        for (key, word) in [
            ("demo", "demo"),
            ("a b", "'a b'"),
            ("it's", r"'it'\''s'"),
            ("-x", "-- '-x'"),
            ("$(reboot)", "'$(reboot)'"),
        ] {
            assert_eq!(shell(key), word);
        }
    }
}
