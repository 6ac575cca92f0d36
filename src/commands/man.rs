//! `dlock man`: the pages in `man/`. Options and tables come from the code, texts from `man/*.md`
//! next to this file, one per page.

mod markdown;

use clap_mangen::{Man, roff::Roff};

use self::markdown::render;
use crate::{
    backends::{
        STORES,
        kit::{PASSWORD, Parameter, Place, TLS},
    },
    lock::{Capabilities, Check, Error, Excludes, Kind, Library, Result},
};

/// The arguments of `dlock man`.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Pages that are no commands: stores, cron, interop, migrate.\nExample:  dlock man run | man -l -"
)]
pub struct Args {
    /// The page of this command or topic instead of dlock's
    #[arg(value_name = "COMMAND")]
    pub page: Option<String>,
}

/// Files of `contrib/` that pages include verbatim.
const EXAMPLES: &[(&str, &str)] = &[
    (
        "{contrib/systemd/sms-job.service}",
        include_str!("../../contrib/systemd/sms-job.service"),
    ),
    (
        "{contrib/systemd/sms-job.timer}",
        include_str!("../../contrib/systemd/sms-job.timer"),
    ),
    (
        "{contrib/kubernetes/cronjob.yaml}",
        include_str!("../../contrib/kubernetes/cronjob.yaml"),
    ),
    (
        "{contrib/ansible/migrate.yml}",
        include_str!("../../contrib/ansible/migrate.yml"),
    ),
];

/// When the pages were last revised.
const REVISED: &str = "2026-11-23";

/// The text of each command's page; placeholders such as `{options}` are filled from the code.
const COMMANDS: &[(&str, &str)] = &[
    ("run", include_str!("man/run.md")),
    ("acquire", include_str!("man/acquire.md")),
    ("renew", include_str!("man/renew.md")),
    ("verify", include_str!("man/verify.md")),
    ("release", include_str!("man/release.md")),
    ("hold", include_str!("man/hold.md")),
    ("inspect", include_str!("man/inspect.md")),
    ("names", include_str!("man/names.md")),
    ("list", include_str!("man/list.md")),
    ("history", include_str!("man/history.md")),
    ("break", include_str!("man/break.md")),
    ("explain", include_str!("man/explain.md")),
    ("forget", include_str!("man/forget.md")),
    ("doctor", include_str!("man/doctor.md")),
    ("init", include_str!("man/init.md")),
    ("gc", include_str!("man/gc.md")),
    ("completions", include_str!("man/completions.md")),
    ("man", include_str!("man/man.md")),
];

/// The pages about more than one command: name, summary, text.
const TOPICS: &[(&str, &str, &str)] = &[
    (
        "stores",
        "the stores that dlock can keep locks in, and what each promises",
        include_str!("man/stores.md"),
    ),
    (
        "cron",
        "jobs that several nodes start: crontab, systemd, Kubernetes, Ansible, CI",
        include_str!("man/cron.md"),
    ),
    (
        "interop",
        "locks that dlock shares with other lock libraries",
        include_str!("man/interop.md"),
    ),
    (
        "migrate",
        "from flock, cronlock, consul lock, etcdctl lock and ShedLock to dlock",
        include_str!("man/migrate.md"),
    ),
];

/// Returns the page in roff.
///
/// # Errors
/// [`Kind::Usage`] if there is no such command or topic.
pub fn text(
    command: clap::Command,
    args: &Args,
    variables: &[(String, String)],
) -> Result<Vec<u8>> {
    // The page shows the options that the short help hides.
    let show = |command: clap::Command| {
        command
            .hide(false)
            .mut_args(|argument| argument.hide_short_help(false))
    };
    let mut command = show(command)
        .mut_subcommands(show)
        .subcommand_help_heading("COMMANDS");
    command.build();
    let mut out = Vec::new();
    let rendered = match args.page.as_deref() {
        None => Page::new(&command, command.clone(), variables)
            .render(include_str!("man/dlock.md"), &mut out),
        Some(name) => {
            if let Some((name, about, text)) = TOPICS.iter().find(|(topic, ..)| *topic == name) {
                topic(&command, (name, about), text, variables, &mut out)
            } else if let Some(found) = command
                .get_subcommands()
                .find(|page| page.get_name() == name)
            {
                // `dlock man run` makes dlock-run(1). The common options are in dlock(1).
                let page = found
                    .clone()
                    .name(format!("dlock-{name}"))
                    .bin_name(format!("dlock {name}"));
                let page = page.mut_args(|argument| {
                    if argument.is_global_set() {
                        argument.hide(true)
                    } else {
                        argument
                    }
                });
                let text = COMMANDS
                    .iter()
                    .find(|(command, _)| *command == name)
                    .map_or_else(|| plain(found), |(_, text)| (*text).to_owned());
                Page::new(&command, page, variables).render(&text, &mut out)
            } else {
                let topics = TOPICS.iter().map(|(topic, ..)| *topic);
                let names: Vec<&str> = command
                    .get_subcommands()
                    .map(clap::Command::get_name)
                    .chain(topics)
                    .collect();
                return Err(Error::new(Kind::Usage, "there is no page of this name")
                    .hint(format!("it is one of {}", names.join(", "))));
            }
        }
    };
    rendered.map_err(|error| Error::new(Kind::Internal, "the page can't be made").source(error))?;
    Ok(out)
}

/// Returns a page about more than one command.
fn topic(
    command: &clap::Command,
    (name, about): (&str, &str),
    text: &str,
    variables: &[(String, String)],
    out: &mut Vec<u8>,
) -> std::io::Result<()> {
    let mut title = Roff::new();
    title.control(
        "TH",
        [
            &*format!("dlock-{name}"),
            "7",
            REVISED,
            &*source(command),
            "dlock",
        ],
    );
    title.to_writer(out)?;
    render(&format!("# NAME\ndlock-{name} - {about}"), out)?;
    body(text, command, None, variables, out)
}

/// Returns the help of a command that has no page text.
fn plain(command: &clap::Command) -> String {
    let about = command
        .get_about()
        .map(ToString::to_string)
        .unwrap_or_default();
    let after = command
        .get_after_help()
        .map(ToString::to_string)
        .unwrap_or_default();
    let (notes, example) = after.split_once("Example:").unwrap_or((&after, ""));
    let lines: Vec<&str> = example.trim().lines().map(str::trim).collect();
    format!(
        "# DESCRIPTION\n{about}\n\n{notes}\n{{options}}\n# EXIT STATUS\n{{errors}}\n# EXAMPLES\n    {}\n",
        lines.join("\n    ")
    )
}

/// Returns the version of the pages.
fn source(command: &clap::Command) -> String {
    format!("dlock {}", command.get_version().unwrap_or_default())
}

/// The page of dlock or of one command.
struct Page<'a> {
    all: &'a clap::Command,
    man: Man,
    variables: &'a [(String, String)],
}

impl<'a> Page<'a> {
    fn new(all: &'a clap::Command, page: clap::Command, variables: &'a [(String, String)]) -> Self {
        let man = Man::new(page)
            .section("1")
            .date(REVISED)
            .source(source(all))
            .manual("User Commands");
        Self {
            all,
            man,
            variables,
        }
    }

    fn render(&self, text: &str, out: &mut Vec<u8>) -> std::io::Result<()> {
        self.man.render_title(out)?;
        self.man.render_name_section(out)?;
        if !text.starts_with("# SYNOPSIS") {
            self.man.render_synopsis_section(out)?;
        }
        body(text, self.all, Some(&self.man), self.variables, out)
    }
}

/// Renders a page's text and fills placeholders such as `{options}` from the code.
fn body(
    text: &str,
    all: &clap::Command,
    man: Option<&Man>,
    variables: &[(String, String)],
    out: &mut Vec<u8>,
) -> std::io::Result<()> {
    let mut pending = String::new();
    for line in text.lines() {
        let table = match (line, man) {
            ("{options}", Some(man)) => {
                render(&std::mem::take(&mut pending), out)?;
                let mut section = Vec::new();
                man.render_options_section(&mut section)?;
                // An empty line between two breaks is one space.
                out.extend(
                    String::from_utf8_lossy(&section)
                        .replace("\n.br\n\n.br\n", "\n.sp\n")
                        .into_bytes(),
                );
                continue;
            }
            ("{commands}", Some(man)) => {
                render(&std::mem::take(&mut pending), out)?;
                man.render_subcommands_section(out)?;
                continue;
            }
            ("{common}", _) => common(all),
            ("{variables}", _) => items(variables.iter().map(|(name, text)| (name, text))),
            ("{capabilities}", _) => capabilities(),
            ("{urls}", _) => urls(),
            ("{parameters}", _) => parameters(),
            ("{checks}", _) => checks(),
            ("{libraries}", _) => libraries(),
            ("{errors}", _) => include_str!("man/errors.md").to_owned(),
            _ => EXAMPLES
                .iter()
                .find(|(name, _)| *name == line)
                .map_or_else(|| line.to_owned(), |(_, text)| verbatim(text)),
        };
        pending.push_str(&table);
        pending.push('\n');
    }
    render(&pending, out)
}

/// Returns a file as an example: each line indented.
fn verbatim(text: &str) -> String {
    text.lines()
        .map(|line| format!("    {line}").trim_end().to_owned() + "\n")
        .collect()
}

/// Returns the names of the options that every command has: `dlock.1` describes them.
fn common(all: &clap::Command) -> String {
    let globals = all
        .get_arguments()
        .filter(|argument| argument.is_global_set());
    let names: Vec<String> = globals
        .filter_map(|argument| argument.get_long())
        .map(|long| format!("`--{long}`"))
        .collect();
    format!(
        "\nEvery command also takes {}: see dlock(1).",
        names.join(", ")
    )
}

/// Returns the libraries of each store, from the tables of `dlock names`.
fn libraries() -> String {
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
fn items<T: AsRef<str>>(rows: impl IntoIterator<Item = (T, T)>) -> String {
    rows.into_iter()
        .map(|(name, text)| ["- ", name.as_ref(), ": ", text.as_ref(), "\n"].concat())
        .collect()
}

/// Returns the URLs of all stores.
fn urls() -> String {
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
fn parameters() -> String {
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
fn capabilities() -> String {
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
fn checks() -> String {
    let all = [(
        "Whatever the store",
        &[super::doctor::CHECKS] as &[&[Check]],
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
