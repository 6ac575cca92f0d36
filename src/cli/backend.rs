//! Resolves a backend setting (a URL, a name from the configuration file, or nothing) to a checked
//! [`Target`].

use std::{collections::BTreeMap, time::Duration};

use super::{
    args::Globals,
    file::Table,
    layers::{Layers, from_env, from_flag},
    setting::{Origin, Setting, short},
    spec, suggest,
    url::{self, Url},
};
use crate::{
    backends::{
        Address, Configured, STORES, SecretSource, StoreInfo, embedded,
        kit::{Parameter, Place, Scheme},
    },
    commands::{Target, user_name},
    lease::Limits,
    lock::{Error, Namespace, Result},
};

/// Resolves the backend, adds its table and its URL's parameters to `layers`, and checks all of
/// them.
///
/// # Errors
/// The first invalid setting, with its origin and never with a secret.
pub fn resolve(globals: &Globals, layers: &mut Layers<'_>) -> Result<Target> {
    let target = match layers.get("backend", globals.backend.as_deref())? {
        None => Target {
            store: embedded(namespace(globals, layers)?)?,
            name: None,
            asked_for: false,
        },
        Some(named) => resolve_named(globals, &named, layers)?,
    };
    let info = target.store.info();
    match from_flag("password_file", globals.password_file.as_deref()) {
        Some(setting) if !info.has_password() => Err(setting
            .refuse(format!("the {} backend has no password", info.name))
            .hint("--backend or DLOCK_BACKEND names another store")),
        _ => Ok(target),
    }
}

fn resolve_named(globals: &Globals, named: &Setting, layers: &mut Layers<'_>) -> Result<Target> {
    let (url, name) = if named.text.contains([':', '/']) || named.text == "local" {
        (named.clone(), None)
    } else {
        let Some((name, table)) = layers.file.backends.get_key_value(&named.text) else {
            return Err(unknown_name(named, layers));
        };
        layers.table = Some(table);
        let url = table
            .get("url")
            .ok_or_else(|| named.refuse(format!("[backends.{name}] has no url")))?;
        (url.clone(), Some(name.clone()))
    };
    let store = if url.text == "local" {
        embedded(namespace(globals, layers)?)?
    } else {
        from_url(globals, &url, layers)?
    };
    if url.text == "local" {
        check_parameters(store.info(), None, layers)?;
    }
    Ok(Target {
        store,
        name,
        asked_for: true,
    })
}

fn from_url(
    globals: &Globals,
    setting: &Setting,
    layers: &mut Layers<'_>,
) -> Result<std::sync::Arc<dyn Configured>> {
    let text = setting.text.as_str();
    let shown = url::redacted(text);
    if matches!(setting.origin, Origin::Flag(_))
        && !globals.insecure_argv
        && url::has_password(text)
    {
        return Err(setting
            .refuse(format!("{shown}: a password on the command line can be read by every user of this host"))
            .hint("put it into DLOCK_PASSWORD, --password-file or the configuration file; --insecure-argv allows it"));
    }
    let wrong = |why: &str| setting.refuse(format!("{shown}: {why}"));
    let named = url::scheme(text);
    let known = named.as_deref().and_then(store_of);
    if let (Some(scheme), None) = (&named, known) {
        let hint = of_host_and_port(text).unwrap_or_else(|| meant(scheme));
        return Err(wrong("there is no backend with this scheme").hint(hint));
    }
    if text.trim() != text {
        return Err(wrong("it begins or ends with a space"));
    }
    let example = "a URL is like redis://user@host:6379/0 or sqlite:///path/to/file";
    let url = Url::parse(text).map_err(|why| wrong(&why).hint(example))?;
    let Some((info, scheme)) = known else {
        return Err(wrong("it has no scheme").hint(example));
    };
    for (name, value) in &url.query {
        if !spec::is_url_parameter(name) {
            return Err(wrong(&format!("there is no parameter {:?}", short(name)))
                .hint(suggest::or_all(name, &spec::url_parameters())));
        }
        if layers.table.is_some_and(|table| table.get(name).is_some()) {
            return Err(wrong(&format!(
                "{name} is given in the URL and outside of it"
            )));
        }
        let value = Setting {
            text: value.clone(),
            origin: setting.origin.clone(),
        };
        if layers.url.insert(name.clone(), value).is_some() {
            return Err(wrong(&format!("{name} is given twice")));
        }
    }
    check_parameters(info, Some(scheme), layers)?;
    let mut secrets = BTreeMap::new();
    let has = |name: &&str| !layers.offline && is_used(info, Some(scheme), name);
    for name in ["password", "sentinel_password"].into_iter().filter(has) {
        let in_url = url.password.as_deref().filter(|_| name == "password");
        secrets.extend(secret(globals, layers, name, in_url)?.map(|source| (name, source)));
    }
    let mut parameters = BTreeMap::new();
    for parameter in info.parameters() {
        if let Some(setting) = given(layers, parameter) {
            parameters.insert(parameter.name.to_owned(), setting);
        }
        if parameter.place == Place::Url {
            // It is no setting: another one may have this name.
            layers.url.remove(parameter.name);
        }
    }
    (info.configure)(Address {
        given: setting.clone(),
        url,
        info,
        scheme,
        parameters,
        secrets,
        namespace: namespace(globals, layers)?,
        env: layers.env,
        offline: layers.offline,
        local_user: user_name,
    })
}

/// Returns the store whose URLs have this scheme.
fn store_of(name: &str) -> Option<(&'static StoreInfo, &'static Scheme)> {
    STORES
        .iter()
        .find_map(|store| Some((*store, store.scheme(name)?)))
}

fn schemes() -> impl Iterator<Item = &'static Scheme> {
    STORES.iter().flat_map(|store| store.schemes)
}

/// Returns a hint that names the scheme that may be meant.
fn meant(typed: &str) -> String {
    match schemes().find(|scheme| scheme.aliases.contains(&typed)) {
        Some(scheme) => format!("did you mean {}://?", scheme.name),
        None => suggest::or_all(
            typed,
            &schemes().map(|scheme| scheme.name).collect::<Vec<_>>(),
        ),
    }
}

/// Returns a hint for `HOST:PORT`: the URL with the scheme of the store that usually has this port.
fn of_host_and_port(text: &str) -> Option<String> {
    let (host, port) = text.split_once(':')?;
    let is_host = |c: char| c.is_ascii_alphanumeric() || ".-".contains(c);
    if port.parse::<u16>().is_err() || host.is_empty() || !host.chars().all(is_host) {
        return None;
    }
    let of_port = schemes().find(|scheme| scheme.example.0.contains(&format!("[:{port}]")));
    let name = of_port.map_or("redis", |scheme| scheme.name);
    Some(format!(
        "a URL begins with the store's scheme, as in {name}://{host}:{port}"
    ))
}

/// Returns a parameter of the store, from the backend's table or the URL.
fn given(layers: &Layers<'_>, parameter: &Parameter) -> Option<Setting> {
    let table = layers.table.filter(|_| parameter.place != Place::Url);
    let in_table = table.and_then(|table| table.get(parameter.name));
    in_table.or_else(|| layers.url.get(parameter.name)).cloned()
}

/// Whether the store has this parameter, in a URL with this scheme if it has a URL.
fn is_used(info: &StoreInfo, scheme: Option<&Scheme>, name: &str) -> bool {
    info.parameters()
        .any(|used| used.name == name && scheme.is_none_or(|scheme| used.is_of(scheme)))
}

/// Refuses parameters that this kind of backend does not use.
fn check_parameters(info: &StoreInfo, scheme: Option<&Scheme>, layers: &Layers<'_>) -> Result<()> {
    let given = spec::parameters().filter_map(|one| Some((one.name, given(layers, one)?)));
    for (name, setting) in given {
        if !is_used(info, scheme, name) {
            return Err(setting.refuse(format!("this backend has no {name}")));
        }
    }
    Ok(())
}

/// Returns the first source that has this password: flag, environment, URL, configuration file.
fn secret(
    globals: &Globals,
    layers: &Layers<'_>,
    name: &str,
    in_url: Option<&str>,
) -> Result<Option<SecretSource>> {
    let (file, command) = (format!("{name}_file"), format!("{name}_command"));
    let flag = globals
        .password_file
        .as_deref()
        .filter(|_| name == "password");
    if let Some(setting) = from_flag(&file, flag) {
        return Ok(Some(SecretSource::File(setting)));
    }
    if let Some(setting) = from_env(layers.env, name)? {
        return Ok(Some(SecretSource::Text(setting.text)));
    }
    if let Some(setting) = from_env(layers.env, &file)? {
        return Ok(Some(SecretSource::File(setting)));
    }
    if let Some(password) = in_url {
        return Ok(Some(SecretSource::Text(password.to_owned())));
    }
    let of = |table: &Table| (table.get(&file).cloned(), table.get(&command).cloned());
    if let Some(setting) = layers.table.and_then(|table| table.get(name)) {
        one_source(name, layers.table.and_then(|table| table.get(&command)))?;
        return Ok(Some(SecretSource::Text(setting.text.clone())));
    }
    let of_url = (layers.url.get(&file).cloned(), None);
    let nearest = layers
        .table
        .map(of)
        .into_iter()
        .chain([of_url, of(&layers.file.top)]);
    match nearest
        .into_iter()
        .find(|(file, command)| file.is_some() || command.is_some())
        .unwrap_or_default()
    {
        (Some(setting), command) => {
            one_source(&file, command.as_ref())?;
            Ok(Some(SecretSource::File(setting)))
        }
        (None, Some(command)) => {
            let limit = backend_timeout(globals, layers)?;
            Ok(Some(SecretSource::Command(command, limit)))
        }
        (None, None) => Ok(None),
    }
}

/// Refuses a command beside another source of the same password.
fn one_source(other: &str, command: Option<&Setting>) -> Result<()> {
    command.map_or(Ok(()), |command| {
        Err(command.refuse(format!(
            "{other} and the command are two sources: one of them will do"
        )))
    })
}

/// Returns how long the store may take to answer.
///
/// # Errors
/// If it is out of range.
pub fn backend_timeout(globals: &Globals, layers: &Layers<'_>) -> Result<Duration> {
    match layers.get("backend_timeout", globals.backend_timeout.as_deref())? {
        Some(setting) => setting.within((
            Duration::from_millis(100),
            Duration::from_secs(3600),
            "a backend timeout is between 100ms and 1h",
        )),
        None => Ok(Limits::DEFAULT.answer),
    }
}

fn namespace(globals: &Globals, layers: &Layers<'_>) -> Result<Namespace> {
    match layers.get("namespace", globals.namespace.as_deref())? {
        Some(setting) => Namespace::new(&setting.text).map_err(|error| setting.blame(error)),
        None => Ok(Namespace::default()),
    }
}

fn unknown_name(setting: &Setting, layers: &Layers<'_>) -> Error {
    let names: Vec<&str> = layers.file.backends.keys().map(String::as_str).collect();
    let typed = crate::settings::setting::short(&setting.text);
    let files: Vec<String> = layers
        .file
        .paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    let reason = match &*files {
        [] => "there is no configuration file".into(),
        [file] => format!("{file} has no [backends.{typed}]"),
        files => format!("neither {} has [backends.{typed}]", files.join(" nor ")),
    };
    let error = setting.refuse(format!("no backend is named {typed:?}: {reason}"));
    if store_of(&typed).is_some() {
        return error.hint(format!("a URL is meant? {typed}://…"));
    }
    match (suggest::nearest(&typed, &names), names.is_empty()) {
        (Some(name), _) => error.hint(format!("did you mean {name}?")),
        (None, false) => error.hint(format!("it has {}", names.join(", "))),
        (None, true) => error.hint("a backend is a URL such as redis://host:6379/0, or a name that the configuration file defines"),
    }
}

#[cfg(test)]
mod tests;
