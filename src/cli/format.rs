//! The output settings, and the notice about misspelt variables.

use super::{args::Globals, env::Env, layers::Layers, setting::Origin, spec, suggest};
use crate::{
    lock::{Error, Kind, Result},
    output::Output,
};

/// Sets the format in `out`: text or JSON, and whether the command's output is shown only on
/// failure. A format that waits for a failure is meant for cron: a person at a terminal gets it only
/// by a flag.
///
/// # Errors
/// If the format does not exist, or not for this command.
pub fn choose(
    globals: &Globals,
    is_run: bool,
    layers: &Layers<'_>,
    out: &mut Output,
) -> Result<()> {
    let Some(setting) = layers.get("output", globals.output.as_deref())? else {
        return Ok(());
    };
    let (json, only_on_failure) = setting.choice(&[
        ("human", (false, false)),
        ("json", (true, false)),
        ("on-failure", (false, true)),
    ])?;
    let flag = matches!(setting.origin, Origin::Flag(_));
    if globals.json && flag && !only_on_failure {
        let error = Error::new(Kind::Usage, "--json and --output exclude each other");
        return Err(error.hint("--json is -o json; only -o on-failure goes with it"));
    }
    if only_on_failure && flag && !is_run {
        return Err(setting.refuse("on-failure is for dlock run"));
    }
    out.json |= json;
    out.only_on_failure = only_on_failure && (flag || !out.attended());
    Ok(())
}

/// Returns whether colours are forced on or off; `None` if the terminal decides.
///
/// # Errors
/// If the setting has no valid value.
pub fn color(globals: &Globals, layers: &Layers<'_>) -> Result<Option<bool>> {
    let Some(setting) = layers.get("color", globals.color.as_deref())? else {
        return Ok(None);
    };
    setting.choice(&[
        ("auto", None),
        ("always", Some(true)),
        ("never", Some(false)),
    ])
}

/// Variables that dlock itself sets for commands and hooks.
const OWN: [&str; 8] = [
    "KEY", "TOKEN", "FENCE", "FENCES", "PERMIT", "HELD", "EVENT", "STATUS",
];

/// Reports variables that look like a misspelt setting, so that a typing error is not silently
/// ignored.
///
/// Other variables are ignored: Kubernetes sets variables with the name of each service.
pub fn warn_of_unknown(env: &Env, out: &Output) {
    for (name, nearest) in unknown(env) {
        out.notice_with_hint(
            &format!("{name}: there is no such setting"),
            &format!("did you mean {nearest}?"),
        );
    }
}

fn unknown(env: &Env) -> Vec<(String, String)> {
    let settings = || spec::SETTINGS.iter().filter(|spec| spec.from_env);
    let is_setting = |typed: &str| {
        let typed = typed.bytes();
        settings().any(|spec| {
            typed
                .clone()
                .eq(spec.name.bytes().map(|b| b.to_ascii_uppercase()))
        })
    };
    let typed = env.names().filter_map(|name| name.strip_prefix("DLOCK_"));
    let mut typed = typed
        .filter(|name| !OWN.contains(name) && !is_setting(name))
        .peekable();
    // Most environments have none.
    if typed.peek().is_none() {
        return Vec::new();
    }
    let known: Vec<String> = settings()
        .map(|spec| spec.name.to_ascii_uppercase())
        .collect();
    let known: Vec<&str> = known.iter().map(String::as_str).chain(OWN).collect();
    let suggestion = |name: &str| {
        let nearest = suggest::nearest(name, &known)?;
        (strsim::osa_distance(name, nearest) == 1 || nearest.len() > 5).then_some(nearest)
    };
    typed
        .filter_map(|name| {
            Some((
                format!("DLOCK_{name}"),
                format!("DLOCK_{}", suggestion(name)?),
            ))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_variables_are_found_and_foreign_ones_ignored() {
        let names = [
            "DLOCK_TLL",
            "DLOCK_BACKENT",
            "DLOCK_TTL",
            "DLOCK_KEY",
            "DLOCK_PORT",
            "DLOCK_SERVICE_HOST",
            "DLOCK_TEST_TIMES",
            "TLL",
        ];
        let env: Env = names.into_iter().map(|name| (name, "1")).collect();
        let said: Vec<_> = unknown(&env)
            .into_iter()
            .map(|(name, nearest)| format!("{name} {nearest}"))
            .collect();
        assert_eq!(said, ["DLOCK_BACKENT DLOCK_BACKEND", "DLOCK_TLL DLOCK_TTL"]);
    }
}
