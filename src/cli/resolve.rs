//! Resolves the parsed command line, the environment and the configuration file to checked
//! settings.
//!
//! Everything is checked here, before any store, lock or command is touched.

use std::{ffi::OsString, io::Read as _};

use super::{
    args::{Command, Globals},
    backend,
    env::Env,
    explain,
    file::File,
    format,
    layers::{Layers, from_env, from_flag},
    run,
    setting::{Origin, Setting, reason, short},
    taking::wanted,
    views::{
        break_host_settings, break_settings, doctor_settings, history_settings, is_offline,
        list_settings, report_settings, verify_settings,
    },
};
use crate::{
    commands::{
        Context, KeyArg, TokenArg, Work, acquire, forget, gc, hold, hold::HoldUntil, init, inspect,
        names, release, renew, verify,
    },
    lease::Silence,
    lock::{Error, Key, Kind, Result, Token},
    output::Output,
};

/// The longest host name, in bytes.
const HOST: usize = 255;

/// Returns the command with its settings, and its context.
///
/// # Errors
/// The first invalid setting, with its origin.
pub fn resolve(
    globals: &Globals,
    command: Command,
    env: &Env,
    mut out: Output,
) -> Result<(Work, Context)> {
    let named = match from_flag("config", globals.config.as_deref()) {
        Some(setting) => Some(setting),
        None => from_env(env, "config")?,
    };
    let (key, token) = identify(&command, env, globals)?;
    let file = File::load(named.as_ref(), env)?;
    let mut layers = Layers::new(env, &file, key.as_ref());
    layers.offline = is_offline(&command);
    let is_run = matches!(command, Command::Run(_) | Command::Explain(_));
    format::choose(globals, is_run, &layers, &mut out)?;
    format::warn_of_unknown(env, &out);
    out.color = format::color(globals, &layers)?;
    out.quiet = layers.yes("quiet", globals.quiet)?;
    out.verbose = layers.yes("verbose", globals.verbose)?;
    let target = backend::resolve(globals, &mut layers)?;
    let answer = backend::backend_timeout(globals, &layers)?;
    let host = layers
        .get("host", globals.host.as_deref())?
        .map(|setting| setting.line(HOST))
        .transpose()?;
    let context = Context {
        target,
        answer,
        silence: Silence::default(),
        host,
        out,
    };
    if let Command::Doctor(args) = &command {
        let settings = doctor_settings(args, globals, &layers, &context)?;
        return Ok((Work::Doctor(Box::new(settings)), context));
    }
    Ok((work(command, key, token, &layers, env, globals)?, context))
}

/// Returns the key and the token of a command. They are resolved first, because a key may have its
/// own settings.
fn identify(
    command: &Command,
    env: &Env,
    globals: &Globals,
) -> Result<(Option<Key>, Option<Token>)> {
    match command {
        Command::Run(args) => {
            let Some(key) = args.key.first() else {
                // The caller may have given the key by position, as other commands take it.
                let by_position = args
                    .command
                    .get(1)
                    .filter(|word| *word == "--")
                    .and(args.command.first())
                    .and_then(|key| key.to_str());
                let hint = by_position
                    .filter(|key| key.len() < 60)
                    .map(|key| format!("did you mean dlock run -k {key} -- …?"));
                return Err(no_key(hint.as_deref().unwrap_or(
                    "-k KEY names the lock: dlock run -k sms-job -- ./send_sms.sh",
                )));
            };
            Ok((Some(Key::from_os(key)?), None))
        }
        Command::Acquire(acquire::Args { wanted, .. })
        | Command::Hold(hold::Args { wanted, .. }) => {
            let first = wanted.keys.key.as_ref().or(wanted.keys.key_flags.first());
            let first = first.ok_or_else(|| {
                no_key("the key is the lock's name, as in: dlock acquire sms-job --ttl 5m")
            })?;
            Ok((Some(Key::from_os(first)?), None))
        }
        Command::Explain(args) => {
            let first = args.run.key.first();
            Ok((
                Some(Key::from_os(first.ok_or_else(|| {
                    no_key("the key is the lock's name, as in: dlock explain sms-job")
                })?)?),
                None,
            ))
        }
        Command::Inspect(args) => Ok((Some(key(&args.key, "inspect")?), None)),
        Command::Names(args) => Ok((Some(key(&args.key, "names")?), None)),
        Command::Verify(args) => verified(args, env, globals),
        Command::Renew(args) => pair(&args.key, &args.token, env),
        Command::Release(args) if args.force => {
            Ok((Some(key(&args.key, "release --force")?), None))
        }
        Command::Release(args) => {
            if args.how.is_given() {
                return Err(Error::new(
                    Kind::Usage,
                    "--fence, --reason, --yes and --now are for breaking a lock",
                )
                .hint("--force breaks it, as dlock break does"));
            }
            pair(&args.key, &args.token, env)
        }
        Command::History(args) => Ok((
            given(&args.key)
                .map(|name| Key::from_os(name))
                .transpose()?,
            None,
        )),
        // Without a key, `break` breaks all holds of a host.
        Command::Break(args) if given(&args.key).is_none() && globals.host.is_some() => {
            Ok((None, None))
        }
        Command::Break(args) => Ok((Some(key(&args.key, "break")?), None)),
        Command::Forget(args) => Ok((Some(key(&args.key, "forget")?), None)),
        _ => Ok((None, None)),
    }
}

fn no_key(hint: &str) -> Error {
    Error::new(Kind::Usage, "no key is given").hint(hint)
}

fn given(key: &KeyArg) -> Option<&OsString> {
    key.key.as_ref().or(key.key_flag.as_ref())
}

fn key(arg: &KeyArg, command: &str) -> Result<Key> {
    Key::from_os(given(arg).ok_or_else(|| {
        no_key(&format!(
            "the key is the lock's name, as in: dlock {command} sms-job"
        ))
    })?)
}

/// Returns key and token, both from the command line or both from the environment of `run`'s
/// command.
fn pair(key_arg: &KeyArg, token: &TokenArg, env: &Env) -> Result<(Option<Key>, Option<Token>)> {
    let from_env = (env.get_os("DLOCK_KEY"), env.get("DLOCK_TOKEN")?);
    match (given(key_arg), &token.token) {
        (Some(name), Some(token)) => Ok((Some(Key::from_os(name)?), Some(self::token(token)?))),
        (None, None) => match from_env {
            (Some(key), Some(token)) => {
                let key = Key::from_os(key).map_err(|error| blame("DLOCK_KEY", error))?;
                Ok((
                    Some(key),
                    Some(
                        token
                            .trim()
                            .parse()
                            .map_err(|error| blame("DLOCK_TOKEN", error))?,
                    ),
                ))
            }
            _ => Err(no_key(
                "give KEY and --token, or neither inside of `dlock run`, where DLOCK_KEY and DLOCK_TOKEN name them",
            )),
        },
        (Some(_), None) => Err(Error::new(Kind::Usage, "no token is given")
            .hint("--token T, --token @FILE or --token @-: what `dlock acquire` printed")),
        (None, Some(_)) => Err(no_key(
            "the key of the token: DLOCK_KEY and DLOCK_TOKEN are only used together",
        )),
    }
}

fn blame(name: &str, mut error: Error) -> Error {
    error.message = format!("{name}: {}", error.message);
    error
}

/// Parses a token given literally, or reads it from `@FILE` or from stdin (`@-`).
fn token(text: &str) -> Result<Token> {
    let Some(source) = text.strip_prefix('@') else {
        return text.parse().map_err(|error| blame("--token", error));
    };
    let mut read = String::new();
    // A token has 53 bytes; the limit stops reading an endless file.
    let result = if source == "-" {
        std::io::stdin().lock().take(1024).read_to_string(&mut read)
    } else {
        std::fs::File::open(source).and_then(|file| file.take(1024).read_to_string(&mut read))
    };
    result.map_err(|error| {
        Error::new(
            Kind::Usage,
            format!("--token {text}: {}", crate::lock::plain(&error)),
        )
    })?;
    read.trim()
        .parse()
        .map_err(|error| blame(&format!("--token {text}"), error))
}

fn work(
    command: Command,
    key: Option<Key>,
    token: Option<Token>,
    layers: &Layers<'_>,
    env: &Env,
    globals: &Globals,
) -> Result<Work> {
    if let Command::History(args) = command {
        return Ok(Work::History(history_settings(
            key,
            args,
            globals.host.clone(),
        )?));
    }
    if let Command::Explain(args) = command {
        let key = key.ok_or_else(|| Error::new(Kind::Internal, "a key got lost"))?;
        return Ok(Work::Explain(Box::new(explain::resolve(
            *args, key, globals, layers,
        )?)));
    }
    if let Command::Verify(_) = command {
        let key = key.ok_or_else(|| Error::new(Kind::Internal, "a key got lost"))?;
        return Ok(Work::Verify(verify_settings(key, token, env, globals)));
    }
    let key = || key.ok_or_else(|| Error::new(Kind::Internal, "a key got lost"));
    let token = || token.ok_or_else(|| Error::new(Kind::Internal, "a token got lost"));
    Ok(match command {
        Command::Run(args) => Work::Run(Box::new(run::settings(*args, key()?, layers)?)),
        Command::Acquire(args) => {
            let ttl = layers
                .get("ttl", args.ttl.as_deref())?
                .map(|setting| setting.ttl())
                .transpose()?;
            let while_pid = args.while_pid.as_deref().map(process).transpose()?;
            if ttl.is_none() && while_pid.is_none() {
                return Err(Error::new(Kind::Usage, "acquire needs a --ttl: no process renews the lock after dlock has ended")
                    .hint("--ttl 5m holds it for 5 minutes; --while-pid $$ for as long as this shell lives"));
            }
            let wanted = wanted(key()?, &args.wanted, ttl, layers)?;
            Work::Acquire(Box::new(acquire::AcquireSettings { wanted, while_pid }))
        }
        Command::Renew(args) => {
            // Only the flag counts: a configured TTL for `run` must not change the length of this
            // lease.
            let ttl = from_flag("ttl", args.ttl.as_deref())
                .map(|setting| setting.ttl())
                .transpose()?;
            Work::Renew(renew::RenewSettings {
                key: key()?,
                token: token()?,
                ttl,
            })
        }
        Command::Release(args) if args.force => Work::Break(break_settings(key()?, args.how)?),
        Command::Break(args) if given(&args.key).is_none() => {
            Work::BreakHost(break_host_settings(globals, args.how)?)
        }
        Command::Break(args) => Work::Break(break_settings(key()?, args.how)?),
        Command::Forget(args) => {
            let reason = args.reason.map(reason).transpose()?;
            Work::Forget(forget::ForgetSettings {
                key: key()?,
                reason,
                yes: args.yes,
            })
        }
        Command::Release(_) => Work::Release(release::ReleaseSettings {
            key: key()?,
            token: token()?,
        }),
        Command::Inspect(_) => Work::Inspect(inspect::InspectSettings { key: key()? }),
        Command::Names(_) => Work::Names(names::NamesSettings { key: key()? }),
        Command::List(args) => Work::List(list_settings(args, globals.host.clone())?),
        Command::Report(args) => Work::Report(report_settings(args)),
        Command::Init(args) => Work::Init(init::InitSettings { print: args.print }),
        Command::Gc(args) => Work::Gc(gc_settings(args.older_than)?),
        Command::Hold(args) => {
            let ttl = layers
                .get("ttl", args.ttl.as_deref())?
                .map(|setting| setting.ttl())
                .transpose()?;
            let wanted = wanted(key()?, &args.wanted, ttl, layers)?;
            Work::Hold(Box::new(hold::HoldSettings {
                wanted,
                until: hold_until(args.until_signal, args.while_pid.as_deref())?,
            }))
        }
        Command::Completions(_)
        | Command::Man(_)
        | Command::Verify(_)
        | Command::Doctor(_)
        | Command::History(_)
        | Command::Explain(_) => {
            return Err(Error::new(Kind::Internal, "this command needs no store"));
        }
    })
}

fn gc_settings(older_than: Option<String>) -> Result<gc::GcSettings> {
    // Only the flag counts: no configuration may choose what is removed.
    let Some(setting) = older_than.map(|text| Setting {
        text,
        origin: Origin::Flag("--older-than"),
    }) else {
        return Err(Error::new(Kind::Usage, "gc needs --older-than")
            .hint("--older-than 90d removes what was not used for 90 days"));
    };
    Ok(gc::GcSettings {
        older_than: setting.duration("an age is 0 or more")?,
    })
}

/// Returns the key that `verify` asks about, and its token if one is given.
fn verified(
    args: &verify::Args,
    env: &Env,
    globals: &Globals,
) -> Result<(Option<Key>, Option<Token>)> {
    let has_token = args.token.token.is_some();
    if has_token && globals.host.is_some() {
        return Err(
            Error::new(Kind::Usage, "--host and --token exclude each other")
                .hint("--host NAME asks about a host, --token T about a token"),
        );
    }
    // Without a token, `verify KEY` asks whether an outer run holds the lock: DLOCK_HELD has its
    // token.
    if !has_token && (given(&args.key).is_some() || globals.host.is_some()) {
        return Ok((Some(key(&args.key, "verify")?), None));
    }
    pair(&args.key, &args.token, env)
}

fn hold_until(signal: bool, pid: Option<&str>) -> Result<HoldUntil> {
    let Some(text) = pid else {
        return Ok(if signal {
            HoldUntil::Signal
        } else {
            HoldUntil::StdinEnds
        });
    };
    process(text).map(HoldUntil::ProcessEnds)
}

fn process(text: &str) -> Result<i32> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(no_process(text)),
    }
}

/// Returns the error for a text that is no process id.
pub(super) fn no_process(text: &str) -> Error {
    Error::new(
        Kind::Usage,
        format!("--while-pid: {:?} is no process id", short(text)),
    )
    .hint("in a shell, $$ is the shell's own, and $! the last background job's")
}
