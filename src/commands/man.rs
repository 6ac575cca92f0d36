//! `dlock man`: the pages in `man/`. Options come from the command line's definition, longer texts from `man/*.md` next to this file.

use clap_mangen::{
    Man,
    roff::{Roff, bold, roman},
};

use super::{CAPABILITIES, CHECKS, LIBRARIES};
use crate::lock::{Capabilities, Check, Error, Excludes, Kind, Library, Result};

/// The arguments of `dlock man`.
#[derive(clap::Args, Debug)]
#[command(after_help = "interop, which is no command, is the page of the other lock libraries.\nExample:  dlock man run | man -l -")]
pub struct Args {
    /// The page of this command instead of dlock's
    #[arg(value_name = "COMMAND")]
    pub page: Option<String>,
}

/// The page in roff.
///
/// # Errors
/// [`Kind::Usage`] if there is no such command.
pub fn text(command: clap::Command, args: &Args, variables: &[(String, String)]) -> Result<Vec<u8>> {
    // What is too much for a screen has its place here.
    let show = |command: clap::Command| command.hide(false).mut_args(|argument| argument.hide_short_help(false));
    let mut command = show(command).mut_subcommands(show).subcommand_help_heading("COMMANDS");
    command.build();
    let mut out = Vec::new();
    let rendered = match args.page.as_deref() {
        None => overview(command, variables, &mut out),
        Some(INTEROP) => interop(&command, &mut out),
        Some(name) => {
            let Some(page) = command.get_subcommands().find(|page| page.get_name() == name) else {
                let names: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).chain([INTEROP]).collect();
                return Err(Error::new(Kind::Usage, "there is no page of this name").hint(format!("it is one of {}", names.join(", "))));
            };
            // `dlock man run` makes dlock-run(1).
            let page = page.clone().name(format!("dlock-{name}")).bin_name(format!("dlock {name}"));
            subcommand(name, page, &mut out)
        }
    };
    rendered.map_err(|error| Error::new(Kind::Internal, "the page can't be made").source(error))?;
    Ok(out)
}

/// The page about other lock libraries.
const INTEROP: &str = "interop";

fn interop(command: &clap::Command, out: &mut Vec<u8>) -> std::io::Result<()> {
    let mut title = Roff::new();
    let version = format!("dlock {}", command.get_version().unwrap_or_default());
    title.control("TH", ["dlock-interop", "7", "", &version, ""]);
    title.to_writer(out)?;
    render(&format!("{}\n{}", include_str!("man/interop.md"), libraries()), out)?;
    render("# SEE ALSO\ndlock(1), dlock-names(1), dlock-inspect(1)", out)
}

/// The libraries of each store, from the tables that `dlock names` uses.
fn libraries() -> String {
    let one = |library: &Library| {
        let Library { name, code, about, .. } = library;
        let how = match library.excludes {
            Excludes::BothWays => "both ways",
            Excludes::OneWay => "one way",
            Excludes::No => "no",
        };
        let code = code.replace("{string}", "\"NAME\"").replace("{word}", "NAME").replace("{sql}", "'NAME'").replace("{name}", "NAME");
        let code = code.replace("{table}", "\"dlock\"").replace("{lock}", "NAME");
        let code = if code.is_empty() { code } else { format!("    {code}\n\n") };
        let about = if about.is_empty() { String::new() } else { format!("; {about}") };
        format!("- {name}: {how}{about}.\n{code}")
    };
    let of = |(title, libraries): &(&str, &[Library])| format!("## {title}\n{}", libraries.iter().map(one).collect::<String>());
    LIBRARIES.iter().map(of).collect()
}

fn overview(command: clap::Command, variables: &[(String, String)], out: &mut Vec<u8>) -> std::io::Result<()> {
    let man = Man::new(command);
    man.render_title(out)?;
    man.render_name_section(out)?;
    man.render_synopsis_section(out)?;
    render(include_str!("man/description.md"), out)?;
    man.render_subcommands_section(out)?;
    man.render_options_section(out)?;
    render(&format!("{}\n{}", include_str!("man/stores.md"), capabilities()), out)?;
    render(include_str!("man/status.md"), out)?;
    render(&format!("{}\n{}", items(variables.iter().map(|(name, text)| (name, text))), include_str!("man/outputs.md")), out)?;
    render(include_str!("man/usage.md"), out)
}

fn subcommand(name: &str, page: clap::Command, out: &mut Vec<u8>) -> std::io::Result<()> {
    let after = page.get_after_help().map(ToString::to_string).unwrap_or_default();
    let man = Man::new(page);
    man.render_title(out)?;
    man.render_name_section(out)?;
    man.render_synopsis_section(out)?;
    man.render_description_section(out)?;
    let (notes, example) = after.split_once("Example:").unwrap_or((&after, ""));
    // As paragraphs of the description.
    if !notes.is_empty() {
        render(&format!("\n{notes}"), out)?;
    }
    man.render_options_section(out)?;
    match name {
        "run" => render(include_str!("man/run.md"), out)?,
        "doctor" => render(&format!("{}\n{}", include_str!("man/doctor.md"), checks()), out)?,
        _ => {}
    }
    if !example.is_empty() && name != "run" {
        let lines: Vec<&str> = example.trim().lines().map(str::trim).collect();
        render(&format!("# EXAMPLES\n    {}", lines.join("\n    ")), out)?;
    }
    render("# SEE ALSO\ndlock(1) has the exit statuses, the environment, the configuration file and the JSON schema.", out)
}

/// Translates the little Markdown that the texts use: sections (`#`), subsections (`##`), paragraphs, items (`- name: text`),
/// and indented lines, which stay as they are.
fn render(text: &str, out: &mut Vec<u8>) -> std::io::Result<()> {
    let mut roff = Roff::new();
    let mut verbatim = false;
    let mut lines = text.trim_end().lines().enumerate().peekable();
    while let Some((at, line)) = lines.next() {
        let indented = line.starts_with("    ");
        if indented != verbatim && !line.is_empty() {
            roff.control(if indented { "nf" } else { "fi" }, []);
            verbatim = indented;
        }
        if let Some(title) = line.strip_prefix("# ") {
            if at > 0 {
                std::mem::take(&mut roff).to_writer(out)?;
            }
            roff.control("SH", [title]);
        } else if let Some(title) = line.strip_prefix("## ") {
            roff.control("SS", [title]);
        } else if let Some((name, about)) = line.strip_prefix("- ").and_then(|item| item.split_once(": ")) {
            roff.control("TP", []).text([bold(name)]).text([roman(about)]);
        } else if !line.is_empty() {
            roff.text([roman(if indented { line } else { line.trim() })]);
        } else if lines.peek().is_some_and(|(_, next)| !next.starts_with('#')) {
            roff.control("PP", []);
        }
    }
    if verbatim {
        roff.control("fi", []);
    }
    roff.to_writer(out)
}

/// Items of a list, as [`render`] reads them.
fn items<T: AsRef<str>>(rows: impl IntoIterator<Item = (T, T)>) -> String {
    rows.into_iter().map(|(name, text)| ["- ", name.as_ref(), ": ", text.as_ref(), "\n"].concat()).collect()
}

/// Which store has which kinds of locks, from what the backends go by themselves.
fn capabilities() -> String {
    let row = |name: &str, cells: [&str; 6]| {
        let [shared, permits, fair, nested, acquire, wakes] = cells;
        format!("    {name:<26}{shared:<5}{permits:<11}{fair:<8}{nested:<8}{acquire:<9}{wakes}").trim_end().to_owned()
    };
    let yes = |can: bool| if can { "yes" } else { "-" };
    let of = |capabilities: &Capabilities| {
        let Capabilities { shared, permits, fair, reentrant, detached, notification, .. } = *capabilities;
        [shared, permits, fair, reentrant, detached, notification].map(yes)
    };
    let mut lines = vec![row("", ["-s", "--permits", "--fair", "nested", "acquire", "wakes"])];
    lines.extend(CAPABILITIES.iter().map(|(name, capabilities)| row(name, of(capabilities))));
    lines.join("\n")
}

/// The checks of `doctor`, from the tables that it uses itself.
fn checks() -> String {
    let all = [("Whatever the store", &[super::doctor::CHECKS] as &[&[Check]])];
    let of = |(title, tables): &(&str, &[&[Check]])| {
        format!("## {title}\n{}", items(tables.iter().copied().flatten().map(|Check { id, about }| (id, about))))
    };
    all.iter().chain(CHECKS).map(of).collect()
}
