//! For `doctor`: the settings that were given, their origins, and where secrets are stored.

use super::{
    args::Globals,
    layers::Layers,
    setting::{Origin, Setting},
    spec, url,
};
use crate::{
    commands::{
        Target,
        doctor::{FoundSecret, SecretPlace},
    },
    lock::Result,
    output::doctor::Source,
};

/// Settings whose value is never shown.
const SECRET: &[&str] = &[
    "password",
    "password_command",
    "sentinel_password",
    "sentinel_password_command",
];
/// Settings that affect only how dlock prints; they are not shown.
const PRINT_SETTINGS: &[&str] = &["config", "output", "color", "quiet", "verbose"];
/// Parameters that name a file with a private key.
const KEYS: &[&str] = &["key", "ssl-key", "sslkey"];

/// Returns every given setting with its origin.
///
/// # Errors
/// If a variable is not UTF-8.
pub fn sources(globals: &Globals, ttl: Option<&str>, layers: &Layers<'_>) -> Result<Vec<Source>> {
    let mut found = Vec::new();
    let mut add = |name: &str, setting: Setting| found.push(source(name, setting));
    for spec in spec::SETTINGS
        .iter()
        .filter(|spec| !PRINT_SETTINGS.contains(&spec.name))
    {
        let flag = match spec.name {
            "backend" => globals.backend.as_deref(),
            "password_file" => globals.password_file.as_deref(),
            "backend_timeout" => globals.backend_timeout.as_deref(),
            "host" => globals.host.as_deref(),
            "namespace" => globals.namespace.as_deref(),
            "ttl" => ttl,
            _ => None,
        };
        if let Some(setting) = layers.get(spec.name, flag)? {
            add(spec.name, setting);
        }
    }
    for name in spec::backend_keys() {
        if let Some(setting) = layers
            .table
            .and_then(|table| table.get(name))
            .or_else(|| layers.url.get(name))
        {
            add(name, setting.clone());
        }
    }
    Ok(found)
}

/// Returns a setting with its origin, without secrets.
pub fn source(name: &str, setting: Setting) -> Source {
    let value = match name {
        name if SECRET.contains(&name) => None,
        "backend" | "url" => Some(url::redacted(&setting.text)),
        _ => Some(setting.text),
    };
    Source {
        name: name.to_owned(),
        value,
        from: place(&setting.origin),
    }
}

/// Returns the origin of the URL: a flag, a variable or a file.
pub fn origin(globals: &Globals, layers: &Layers<'_>) -> Result<Option<String>> {
    if let Some(url) = layers.table.and_then(|table| table.get("url")) {
        return Ok(Some(file_of(&url.origin)));
    }
    Ok(layers
        .get("backend", globals.backend.as_deref())?
        .map(|setting| file_of(&setting.origin)))
}

/// Returns where secrets are stored, and the files that name the store.
///
/// # Errors
/// If a variable is not UTF-8.
pub fn secrets(
    globals: &Globals,
    layers: &Layers<'_>,
    target: &Target,
) -> Result<Vec<FoundSecret>> {
    let mut found = Vec::new();
    found.extend(layers.file.paths.iter().map(|path| {
        FoundSecret::new(
            "the configuration",
            SecretPlace::Configuration(path.clone()),
        )
    }));
    for (name, flag, what) in [
        (
            "password_file",
            globals.password_file.as_deref(),
            "the password",
        ),
        ("sentinel_password_file", None, "the sentinels' password"),
    ] {
        if let Some(setting) = layers.get(name, flag)? {
            found.push(FoundSecret::new(
                what,
                SecretPlace::File(setting.text.into()),
            ));
        }
    }
    for (name, what) in [
        ("password_command", "the password"),
        ("sentinel_password_command", "the sentinels' password"),
    ] {
        if layers.in_file(name).is_some() {
            found.push(FoundSecret::new(what, SecretPlace::Command(name)));
        }
    }
    for (name, what) in [
        ("DLOCK_PASSWORD", "the password"),
        ("DLOCK_SENTINEL_PASSWORD", "the sentinels' password"),
    ] {
        if layers.env.get(name)?.is_some() {
            found.push(FoundSecret::new(what, SecretPlace::Variable(name)));
        }
    }
    if let Some(setting) = layers.get("backend", globals.backend.as_deref())?
        && url::has_password(&setting.text)
    {
        let place = match &setting.origin {
            Origin::Flag(_) => Some(SecretPlace::CommandLine),
            Origin::Env(_) => Some(SecretPlace::UrlInVariable),
            // The configuration files are already in the list.
            Origin::File { .. } => None,
        };
        found.extend(place.map(|place| FoundSecret::new("the password", place)));
    }
    for name in KEYS {
        if let Some(setting) = layers
            .table
            .and_then(|table| table.get(name))
            .or_else(|| layers.url.get(*name))
        {
            found.push(FoundSecret::new(
                "the key",
                SecretPlace::File(setting.text.clone().into()),
            ));
        }
    }
    let client_file = target.store.info().client_file.as_ref();
    found.extend(
        client_file
            .and_then(|file| file.path(layers.env))
            .filter(|path| path.is_file())
            .map(|path| FoundSecret::new("the client's file", SecretPlace::File(path))),
    );
    Ok(found)
}

fn place(origin: &Origin) -> String {
    match origin {
        Origin::File { path, line, .. } => format!("{}:{line}", path.display()),
        other => other.to_string(),
    }
}

fn file_of(origin: &Origin) -> String {
    match origin {
        Origin::File { path, .. } => path.display().to_string(),
        other => other.to_string(),
    }
}
