//! The parts of pages that come from the stores' descriptions.

use crate::{
    backends::{
        STORES,
        kit::{PASSWORD, Parameter, Place, TLS},
    },
    lock::{Capabilities, Check, Excludes, Library},
};

/// Returns the libraries of each store, from the tables of `dlock names`.
pub(super) fn libraries() -> String {
    let one = |library: &Library| {
        let Library {
            name, code, about, ..
        } = library;
        let how = match library.excludes {
            Excludes::BothWays => "both ways",
            Excludes::OneWay => "one way",
            Excludes::No => "no",
        };
        let code = code
            .replace("{string}", "\"NAME\"")
            .replace("{word}", "NAME")
            .replace("{sql}", "'NAME'")
            .replace("{name}", "NAME");
        let code = code
            .replace("{table}", "\"dlock\"")
            .replace("{lock}", "NAME");
        // A terminal has 80 columns.
        let code = if code.len() > 64 {
            code.replace("; ", ";\n    ")
        } else {
            code
        };
        let code = if code.is_empty() {
            code
        } else {
            format!("    {code}\n\n")
        };
        let about = if about.is_empty() {
            String::new()
        } else {
            format!("; {about}")
        };
        format!("- {name}: {how}{about}.\n{code}")
    };
    let of = |(title, libraries): &(String, &[Library])| {
        format!(
            "## {title}\n{}",
            libraries.iter().map(one).collect::<String>()
        )
    };
    merged(STORES.iter().flat_map(|store| store.libraries).copied())
        .iter()
        .map(of)
        .collect()
}

/// Returns list items in the format of [`render`].
pub(super) fn items<T: AsRef<str>>(rows: impl IntoIterator<Item = (T, T)>) -> String {
    rows.into_iter()
        .map(|(name, text)| ["- ", name.as_ref(), ": ", text.as_ref(), "\n"].concat())
        .collect()
}

/// Returns the URLs of all stores.
pub(super) fn urls() -> String {
    let schemes = || STORES.iter().flat_map(|store| store.schemes);
    let examples = schemes()
        .map(|scheme| scheme.example)
        .filter(|(url, _)| !url.is_empty());
    let rows: Vec<_> = examples
        .map(|(url, about)| format!("    {url:<35}{about}"))
        .collect();
    let tls: Vec<_> = schemes()
        .filter(|scheme| scheme.tls == Some(true))
        .collect();
    let tls: Vec<_> = tls.iter().map(|scheme| scheme.name).collect();
    format!(
        "{}\n\nOver TLS: {}. SQL servers have settings for it.",
        rows.join("\n"),
        tls.join(", ")
    )
}

/// Returns the parameters of all stores.
pub(super) fn parameters() -> String {
    let common = [("Stores with a login", PASSWORD), ("Stores over TLS", TLS)];
    let own = STORES.iter().flat_map(|store| {
        let own = store.parameters.iter().filter(|table| {
            !common
                .iter()
                .any(|(_, shared)| std::ptr::eq(**table, *shared))
        });
        own.map(|table| (store.name, *table))
    });
    let of = |(title, table): &(String, &[Parameter])| {
        let rows = table.iter().map(|parameter| {
            let name = format!("`{}`", parameter.name);
            let place = match parameter.place {
                Place::Both => "",
                Place::Url => ", in the URL only",
                Place::Table => ", in the configuration only",
            };
            (
                name,
                format!("{} ({}){place}", parameter.help, parameter.value),
            )
        });
        format!("## {title}\n{}\n", items(rows))
    };
    merged(common.into_iter().chain(own))
        .iter()
        .map(of)
        .collect()
}

/// Returns which store has which kinds of locks, from the backends' capabilities.
pub(super) fn capabilities() -> String {
    let row = |name: &str, cells: [&str; 6]| {
        let [shared, permits, fair, nested, acquire, wakes] = cells;
        format!("    {name:<26}{shared:<5}{permits:<10}{fair:<8}{nested:<8}{acquire:<9}{wakes}")
            .trim_end()
            .to_owned()
    };
    let yes = |can: bool| if can { "yes" } else { "-" };
    let of = |capabilities: &Capabilities| {
        let Capabilities {
            shared,
            permits,
            fair,
            reentrant,
            detached,
            notification,
            ..
        } = *capabilities;
        [shared, permits, fair, reentrant, detached, notification].map(yes)
    };
    let mut lines = vec![row(
        "",
        ["-s", "--permits", "--fair", "nested", "acquire", "wakes"],
    )];
    lines.extend(
        STORES
            .iter()
            .flat_map(|store| store.capabilities)
            .map(|(name, capabilities)| row(name, of(capabilities))),
    );
    lines.join("\n")
}

/// Returns the checks of `doctor`, from its own tables.
pub(super) fn checks() -> String {
    let all = [(
        "Whatever the store",
        &[crate::commands::doctor::CHECKS] as &[&[Check]],
    )];
    let all = all
        .into_iter()
        .chain(STORES.iter().flat_map(|store| store.checks).copied());
    let of = |(title, tables): &(String, &[&[Check]])| {
        format!(
            "## {title}\n{}",
            items(
                tables
                    .iter()
                    .copied()
                    .flatten()
                    .map(|Check { id, about }| (id, about))
            )
        )
    };
    merged(all).iter().map(of).collect()
}

/// Joins the titles of tables that several stores share.
fn merged<T>(
    tables: impl Iterator<Item = (&'static str, &'static [T])>,
) -> Vec<(String, &'static [T])> {
    let mut all: Vec<(Vec<&str>, &[T])> = Vec::new();
    for (title, table) in tables {
        match all
            .iter_mut()
            .find(|(_, known)| std::ptr::eq(*known, table))
        {
            Some((titles, _)) => titles.push(title),
            None => all.push((vec![title], table)),
        }
    }
    all.into_iter()
        .map(|(titles, table)| (titles.join(", "), table))
        .collect()
}
