//! The lock libraries that share a store's locks with dlock, as data: `dlock names`, the man page
//! and the tests use the same tables.

use serde::Serialize;

/// Whether a library and dlock wait while the other one holds the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Excludes {
    /// Each waits for the other one.
    BothWays,
    /// dlock waits for the library; the library takes the lock while dlock holds it.
    OneWay,
    /// Neither waits.
    No,
}

/// One lock library, or one way to use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Library {
    /// Its name.
    pub name: &'static str,
    /// The code for a program that uses it. `{string}` is the lock's name as a string of Java,
    /// Python, JavaScript or Go, `{word}` as a word of a shell, `{sql}` as a string of SQL;
    /// `{name}` is the name as it is stored.
    pub code: &'static str,
    /// The prefix that the library adds to the name by itself.
    pub prefix: &'static str,
    /// Which of the two waits for the other.
    pub excludes: Excludes,
    /// A note, as a sentence without its full stop: for a library that doesn't share, the necessary
    /// change.
    pub about: &'static str,
}

impl Library {
    /// Returns a library that shares locks both ways.
    pub const fn shares(name: &'static str, code: &'static str, about: &'static str) -> Self {
        Self {
            name,
            code,
            prefix: "",
            excludes: Excludes::BothWays,
            about,
        }
    }

    /// Returns the same library with a prefix before each name.
    #[must_use]
    pub const fn with_prefix(self, prefix: &'static str) -> Self {
        Self { prefix, ..self }
    }

    /// Returns a library that takes the lock while dlock holds it.
    pub const fn one_way(name: &'static str, about: &'static str) -> Self {
        Self {
            name,
            code: "",
            prefix: "",
            excludes: Excludes::OneWay,
            about,
        }
    }

    /// Returns a library with other locks.
    pub const fn strange(name: &'static str, about: &'static str) -> Self {
        Self {
            excludes: Excludes::No,
            ..Self::one_way(name, about)
        }
    }
}

/// The name under which a lock is stored, and the code for each library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sharing {
    /// The name, as [`super::LockState::stored_as`] has it.
    pub stored_as: String,
    /// The libraries of the store.
    pub libraries: Vec<Neighbour>,
}

/// The code of one library for one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// The library.
    pub library: Library,
    /// The code for a program that uses it; `None` if the library can't name this lock, or doesn't
    /// share it.
    pub code: Option<String>,
    /// The namespace in which the library can name the lock.
    pub namespace: Option<&'static str>,
}

impl Sharing {
    /// Returns the lock that is stored as `stored_as`, for these libraries; `more` has further
    /// placeholders of their code.
    pub fn new(stored_as: String, libraries: &[Library], more: &[(&str, &str)]) -> Self {
        let of = |library: &Library| {
            let name = stored_as
                .strip_prefix(library.prefix)
                .filter(|name| !name.is_empty());
            let shares = library.excludes == Excludes::BothWays;
            Neighbour {
                library: *library,
                code: name
                    .filter(|_| shares)
                    .map(|name| filled(library.code, name, more)),
                namespace: library
                    .prefix
                    .split(':')
                    .next()
                    .filter(|_| shares && name.is_none()),
            }
        };
        let libraries = libraries.iter().map(of).collect();
        Self {
            stored_as,
            libraries,
        }
    }
}

/// Returns the code with the name filled in.
fn filled(code: &str, name: &str, more: &[(&str, &str)]) -> String {
    let string = format!("\"{}\"", name.replace('\\', r"\\").replace('"', "\\\""));
    let word = format!("'{}'", name.replace('\'', r"'\''"));
    let sql = format!("'{}'", name.replace('\'', "''"));
    let known = [
        ("name", name),
        ("string", &*string),
        ("word", &*word),
        ("sql", &*sql),
    ];
    // One pass, so that no name is taken for a placeholder.
    let (mut out, mut rest) = (String::with_capacity(code.len() + name.len()), code);
    while let Some((before, after)) = rest.split_once('{') {
        out.push_str(before);
        let value = after.split_once('}').and_then(|(of, after)| {
            let (_, value) = known.iter().chain(more).find(|(known, _)| *known == of)?;
            Some((*value, after))
        });
        rest = if let Some((value, after)) = value {
            out.push_str(value);
            after
        } else {
            out.push('{');
            after
        };
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_names_can_be_pasted() {
        let code = |name: &str, code| filled(code, name, &[("table", "jobs")]);
        assert_eq!(
            code("a\"b\\", "lock({string}, {px: 1})"),
            r#"lock("a\"b\\", {px: 1})"#
        );
        assert_eq!(
            code(
                "it's",
                "etcdctl lock {word}; SELECT {sql} FROM {table}; {name}"
            ),
            r"etcdctl lock 'it'\''s'; SELECT 'it''s' FROM jobs; it's"
        );
        assert_eq!(
            code("{word}", "{string}{"),
            "\"{word}\"{",
            "a name is no placeholder"
        );
    }

    #[test]
    fn a_library_with_a_prefix_shares_in_its_own_namespace() {
        let library = Library::shares("x", "lock({string})", "").with_prefix("lock:");
        let of = |stored_as: &str| {
            let sharing = Sharing::new(stored_as.into(), &[library], &[]);
            (
                sharing.libraries[0].code.clone(),
                sharing.libraries[0].namespace,
            )
        };
        assert_eq!(of("lock:job"), (Some("lock(\"job\")".into()), None));
        assert_eq!(of("dlock:job"), (None, Some("lock")));
        assert_eq!(of("lock:"), (None, Some("lock")));
    }
}
