//! The text of `dlock explain`.

use super::{
    TableStyle, age,
    columns::{Column, Cut, TableRow, table},
    doctor::Source,
    holders,
};
use crate::lock::{Denial, Holder, Key, Rule, RunState, Waiter};

/// What a run would do now.
#[derive(Clone, Debug)]
pub enum Prediction {
    /// It would start the command.
    Run,
    /// This lock is held by these holders.
    Held(Key, Vec<Holder>),
    /// This waiter for the lock goes first.
    After(Key, Waiter),
    /// An earlier run denies this lock, by the rule with this name.
    Denied(Key, Box<Denial>, String),
}

/// What `explain` reports about a key.
#[derive(Clone, Copy, Debug)]
pub struct Explained<'a> {
    /// The key.
    pub key: &'a Key,
    /// The store's name in the configuration file.
    pub name: Option<&'a str>,
    /// The store's URL, without secrets.
    pub store: &'a str,
    /// The lock's name in the store.
    pub stored_as: &'a str,
    /// What a run would do now.
    pub would: &'a Prediction,
    /// Whether the run would wait for a busy lock.
    pub waits: bool,
    /// The settings of the run.
    pub settings: &'a [Source],
    /// Whether the text has the settings that are at their defaults.
    pub all: bool,
}

impl Explained<'_> {
    /// Returns `run`, `wait` or `skip`.
    pub fn verb(&self) -> &'static str {
        match self.would {
            Prediction::Run => "run",
            _ if self.waits => "wait",
            _ => "skip",
        }
    }

    /// Returns why it would not run at once: `once per 1d, app@web2 ran it 3h ago`.
    pub fn why(&self) -> Option<String> {
        let of = |key: &Key| {
            if key == self.key {
                String::new()
            } else {
                format!("{}: ", holders::clean(key.as_str(), 255))
            }
        };
        match self.would {
            Prediction::Run => None,
            Prediction::Held(key, holders) => {
                let holder = holders
                    .first()
                    .map_or_else(|| "another client".into(), holders::described);
                Some(format!("{}held by {holder}", of(key)))
            }
            Prediction::After(key, waiter) => {
                let who = holders::user_at_host(waiter.metadata.as_ref())
                    .unwrap_or_else(|| "another process".into());
                let waited = waiter
                    .waiting_for
                    .map(|waited| format!(", which has waited {},", age(waited)))
                    .unwrap_or_default();
                Some(format!("{}{who}{waited} goes first", of(key)))
            }
            Prediction::Denied(key, denial, option) => {
                let who = holders::user_at_host(denial.metadata.as_ref())
                    .unwrap_or_else(|| "a run".into());
                let did = if matches!(denial.rule, Rule::Once(RunState::Ok | RunState::Failed)) {
                    "ran"
                } else {
                    "started"
                };
                let failed = if denial.rule == Rule::Once(RunState::Failed) {
                    " and failed"
                } else {
                    ""
                };
                let began = denial
                    .began
                    .map(|ago| format!(" {} ago", age(ago)))
                    .unwrap_or_default();
                let again = denial
                    .again_in
                    .map(|left| format!("; again in {}", age(left)))
                    .unwrap_or_default();
                Some(format!(
                    "{}{option}, {who} {did} it{began}{failed}{again}",
                    of(key)
                ))
            }
        }
    }
}

/// Where a setting comes from that was not given.
const DEFAULT: &str = "default";

const COLUMNS: [Column; 3] = [
    Column::new("SETTING", 8),
    Column::new("VALUE", 5).cut_by(Cut::Middle(16)),
    Column::new("FROM", 4).cut_by(Cut::Middle(20)),
];

/// Returns the verdict, followed by the table of settings.
pub fn view(explained: &Explained<'_>, style: TableStyle) -> String {
    let verb = explained.verb();
    let sgr = if verb == "run" { "32" } else { "33" };
    let why = explained
        .why()
        .map(|why| format!(": {why}"))
        .unwrap_or_default();
    let store = explained.name.map_or_else(
        || explained.store.to_owned(),
        |name| format!("{} ({})", holders::clean(name, 60), explained.store),
    );
    let mut text = format!(
        "{}   {}{why}\n  stored as  {} in {store}\n\n",
        holders::clean(explained.key.as_str(), 255),
        style.paint(sgr, &format!("would {verb}")),
        holders::clean(explained.stored_as, 300)
    );
    let row = |source: &Source| {
        let value = source
            .value
            .as_deref()
            .map_or_else(|| "(secret)".into(), |value| holders::clean(value, 255));
        let sgr = if source.from == DEFAULT { "2" } else { "" };
        TableRow {
            cells: [
                source.name.clone(),
                value,
                holders::clean(&source.from, 255),
            ],
            sgr,
        }
    };
    let (usual, given): (Vec<_>, Vec<_>) = explained
        .settings
        .iter()
        .partition(|source| source.from == DEFAULT && !explained.all);
    let rows: Vec<TableRow<3>> = given.into_iter().map(row).collect();
    if !rows.is_empty() {
        text.extend(
            table(&COLUMNS, &rows, style)
                .into_iter()
                .flat_map(|line| [line, "\n".into()]),
        );
    }
    if !usual.is_empty() {
        let all = if rows.is_empty() { "all" } else { "all other" };
        text.extend([all, " settings are at their defaults; --all shows them\n"]);
    }
    text
}
