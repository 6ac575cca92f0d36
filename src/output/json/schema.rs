//! The published schema, `man/dlock.schema.json`, made from the types that are printed.
//! `SNAPSHOTS=overwrite cargo test --lib the_published_schema` writes it.

use std::{borrow::Cow, collections::BTreeMap, path::Path};

use schemars::{JsonSchema, Schema, SchemaGenerator, generate::SchemaSettings, json_schema};
use serde_json::{Map, Value, json};

use super::{
    Acquired, AllRuns, Busy, Collected, ExplainedReport, Failed, Forgotten, HostBroken,
    Initialized, InspectReport, Interrupted, KnownKeys, ListReport, NamesReport, NotHeld, Printed,
    Released, Remembered, Renewed, SCHEMA, Schema as Tables, ToBeBroken, Verified, WasBroken,
    words::StateWord,
};
use crate::{
    exit,
    lock::RunState,
    output::{
        doctor::{GrantsReport, Json as Doctor},
        event::EventObject,
        progress::{Running, WaitingReport},
        time::Time,
        verdict::VerdictReport,
    },
};

impl JsonSchema for Time {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Time".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "format": "date-time",
            "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$",
        })
    }
}

impl JsonSchema for StateWord {
    fn schema_name() -> Cow<'static, str> {
        "State".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let states = [
            RunState::Started,
            RunState::Ok,
            RunState::Failed,
            RunState::Unknown,
            RunState::Cancelled,
        ];
        json_schema!({ "enum": states.map(RunState::as_str) })
    }
}

/// Returns the objects of all commands: the name, the type, and the words and statuses of their
/// heads; an empty list stands for any value of the type.
fn objects(generator: &mut SchemaGenerator) -> Map<String, Value> {
    const OK: (&[&str], &[u8]) = (&["ok"], &[exit::OK]);
    let mut all = Map::new();
    let mut add = |name: &str, schema: Schema, (words, statuses): (&[&str], &[u8])| {
        let mut schema = schema.to_value();
        let properties = &mut schema["properties"];
        properties["schema"] = json!({ "const": SCHEMA });
        if !words.is_empty() {
            properties["result"] = json!({ "enum": words });
        }
        if !statuses.is_empty() {
            properties["status"] = json!({ "enum": statuses });
        }
        all.insert(name.to_owned(), schema);
    };
    macro_rules! object {
        ($name:literal, $type:ty, $head:expr) => {
            add($name, <$type>::json_schema(generator), $head);
        };
    }
    object!("acquire", Acquired<'_>, OK);
    object!("renew", Renewed<'_>, OK);
    object!("verify", Verified<'_>, OK);
    object!("release", Released<'_>, OK);
    object!("inspect", InspectReport<'_>, OK);
    object!("names", NamesReport<'_>, OK);
    object!("list", ListReport<'_>, OK);
    object!("list_all", KnownKeys<'_>, OK);
    object!("history", Remembered<'_>, OK);
    object!("history_all", AllRuns<'_>, OK);
    object!("broke", WasBroken<'_>, OK);
    object!(
        "broke_host",
        HostBroken<'_>,
        (&["ok", "not_held", "error", "interrupted"], &[])
    );
    object!("explain", ExplainedReport<'_>, OK);
    object!("forget", Forgotten<'_>, OK);
    object!("init", Initialized<'_>, OK);
    object!("schema", Tables<'_>, OK);
    object!("gc", Collected<'_>, OK);
    object!("printed", Printed<'_>, OK);
    object!("run", VerdictReport<'_>, (&[], &[]));
    object!("waiting", WaitingReport<'_>, (&["waiting"], &[]));
    object!("running", Running<'_>, (&["running"], &[]));
    object!("event", EventObject<'_>, (&[], &[]));
    object!("busy", Busy<'_>, (&["busy"], &[]));
    object!("not_held", NotHeld<'_>, (&["not_held"], &[exit::NOT_HELD]));
    object!("marked", ToBeBroken<'_>, (&["broken"], &[exit::NOT_HELD]));
    object!("interrupted", Interrupted<'_>, (&["interrupted"], &[]));
    let statuses = &[
        exit::OK,
        exit::WARNINGS,
        exit::UNSAFE,
        exit::UNAVAILABLE,
        exit::CONFIG,
    ];
    object!("doctor", Doctor<'_>, (&["ok", "warn", "unsafe"], statuses));
    object!("failed", Failed<'_>, (&["error"], &[]));
    object!("grants", GrantsReport<'_>, OK);
    all
}

fn schema() -> String {
    let mut generator = SchemaSettings::draft2020_12()
        .for_serialize()
        .into_generator();
    let mut all = objects(&mut generator);
    let names: Vec<Value> = all
        .keys()
        .map(|name| json!({ "$ref": format!("#/$defs/{name}") }))
        .collect();
    let parts = generator.take_definitions(true);
    let renamed: BTreeMap<String, String> = parts
        .keys()
        .map(|name| (name.clone(), plain_name(name)))
        .collect();
    for (name, part) in parts {
        let taken = all.insert(renamed[&name].clone(), part);
        assert!(taken.is_none(), "two types are named {name}");
    }
    let mut text = serde_json::to_string_pretty(&json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://dlock.invalid/dlock-1.json",
        "title": SCHEMA,
        "description": "What dlock prints with --json: one object, on one line. Times are RFC 3339 in UTC, lengths of time whole milliseconds, and what is unknown is null. New fields may come under this name; none goes away or changes its meaning.",
        "anyOf": names,
        "$defs": all,
    }))
    .unwrap();
    for (from, to) in renamed {
        text = text.replace(&format!("\"#/$defs/{from}\""), &format!("\"#/$defs/{to}\""));
    }
    text + "\n"
}

/// Returns the name of a part: `HolderReport` is a `holder_part`.
fn plain_name(name: &str) -> String {
    let mut plain = String::new();
    for c in name.trim_end_matches("Report").chars() {
        if c.is_uppercase() && !plain.is_empty() {
            plain.push('_');
        }
        plain.extend(c.to_lowercase());
    }
    plain + "_part"
}

#[test]
fn the_published_schema_is_that_of_the_types() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("man/dlock.schema.json");
    let made = schema();
    if std::env::var_os("SNAPSHOTS").is_some_and(|value| value == "overwrite") {
        std::fs::write(&path, &made).unwrap();
    }
    let published = std::fs::read_to_string(&path).unwrap();
    assert!(
        published == made,
        "man/dlock.schema.json is older than the types; SNAPSHOTS=overwrite writes it"
    );
}
