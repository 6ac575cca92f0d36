//! `dlock man`: the pages in `man/`. Options and tables come from the code, texts from `man/*.md`
//! next to this file, one per page.

mod markdown;
mod tables;

use clap_mangen::{Man, roff::Roff};

use self::markdown::render;
use crate::lock::{Error, Kind, Result};

/// The arguments of `dlock man`.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Pages that are no commands: stores, cron, daemon, interop, migrate.\nExample:  dlock man run | man -l -"
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
        "{contrib/systemd/importer.service}",
        include_str!("../../contrib/systemd/importer.service"),
    ),
    (
        "{contrib/kubernetes/deployment.yaml}",
        include_str!("../../contrib/kubernetes/deployment.yaml"),
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
    ("report", include_str!("man/report.md")),
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
        "daemon",
        "daemons of which one runs in the cluster: leaders and standbys",
        include_str!("man/daemon.md"),
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
            // As man(1) names the page.
            let name = name.strip_prefix("dlock-").unwrap_or(name);
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
            ("{variables}", _) => tables::items(variables.iter().map(|(name, text)| (name, text))),
            ("{capabilities}", _) => tables::capabilities(),
            ("{urls}", _) => tables::urls(),
            ("{parameters}", _) => tables::parameters(),
            ("{checks}", _) => tables::checks(),
            ("{libraries}", _) => tables::libraries(),
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
