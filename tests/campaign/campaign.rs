//! A campaign: rounds on one store, each drawn from the seed, run and checked, until one fails.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use crate::{
    checker::{Rule, Violation, check},
    facts::Facts,
    plan::{FaultKind, Mix, Plan},
    round::{Arena, Round},
    stores::Arsenal,
    support::{self, process::Sweep},
};

/// Which rounds to run.
#[derive(Clone, Debug)]
pub struct Options {
    pub store: String,
    pub seed: u64,
    /// The first round.
    pub from: u64,
    pub rounds: u64,
    pub mix: Mix,
    /// The only faults to inject; empty for all of them.
    pub faults: Vec<FaultKind>,
    /// Prints a line for each round.
    pub verbose: bool,
}

/// Totals over the rounds that ran.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub rounds: u64,
    pub runs: usize,
    pub sections: usize,
    pub injected: BTreeMap<FaultKind, usize>,
    pub overlaps: usize,
    /// The violations of the round that failed.
    pub violations: Vec<Violation>,
}

impl Tally {
    fn add(&mut self, facts: &Facts, violations: &[Violation]) {
        self.rounds += 1;
        self.runs += facts.runs.len();
        self.sections += facts.sections.len();
        for injected in &facts.injected {
            *self.injected.entry(injected.fault).or_default() += 1;
        }
        self.overlaps += violations
            .iter()
            .filter(|violation| violation.rule == Rule::Overlap)
            .count();
    }

    /// Returns the summary, in text for a person.
    pub fn summary(&self, options: &Options, took: Duration) -> String {
        let mut text = self.line(options, took);
        for (fault, count) in &self.injected {
            let _ = write!(text, "\n  {count:>6} {fault:?}");
        }
        text
    }

    fn line(&self, options: &Options, took: Duration) -> String {
        let faults: usize = self.injected.values().sum();
        format!(
            "campaign {} seed {}: {} of {} rounds, {} runs, {} sections, {faults} faults, {} overlaps in {:.1} s",
            options.store,
            options.seed,
            self.rounds,
            options.rounds,
            self.runs,
            self.sections,
            self.overlaps,
            took.as_secs_f64()
        )
    }
}

/// Time between two lines about a campaign that still runs.
const PROGRESS: Duration = Duration::from_secs(30);

/// Runs the rounds. The first round that fails ends the campaign: its violations are printed and
/// its records kept.
///
/// # Errors
/// Names the program that the store needs and that isn't installed.
pub fn play(options: &Options) -> Result<Tally, String> {
    let arena = Arena::new(Arsenal::start(&options.store)?);
    let can = crate::round::lock(&arena.store).can;
    let mut tally = Tally::default();
    let start = Instant::now();
    let mut last_line = start;
    for number in options.from..options.from + options.rounds {
        let plan = Plan::draw(options.seed, number, options.mix, &options.faults, can);
        let began = Instant::now();
        let (facts, violations, kept) = round(
            &arena,
            &plan,
            &format!("{}-{}-{number}", options.store, options.seed),
        );
        tally.add(&facts, &violations);
        if options.verbose || !violations.is_empty() {
            let line = format!(
                "{} round {number} {}: {} contenders, {} runs, {} sections, {:?}, {:.1} s",
                options.store,
                plan.name,
                plan.contenders.len(),
                facts.runs.len(),
                facts.sections.len(),
                facts
                    .injected
                    .iter()
                    .map(|injected| injected.fault)
                    .collect::<Vec<_>>(),
                began.elapsed().as_secs_f64()
            );
            support::say(&line);
        }
        if !violations.is_empty() {
            for violation in &violations {
                support::say(&format!("  {violation}"));
            }
            let again = format!(
                "tests/run --test campaign -- --store {} --seed {} --from {number} --rounds 1",
                options.store, options.seed
            );
            let again = again
                + match options.mix {
                    Mix::Both => "",
                    Mix::Calm => " --calm",
                    Mix::Rough => " --rough",
                };
            let again = match &options.faults[..] {
                [] => again,
                faults => format!(
                    "{again} --faults {}",
                    faults
                        .iter()
                        .map(|fault| format!("{fault:?}"))
                        .collect::<Vec<_>>()
                        .join(",")
                ),
            };
            support::say(&format!("  records: {}\n  again: {again}", kept.display()));
            tally.violations = violations;
            break;
        }
        if last_line.elapsed() > PROGRESS {
            support::say(&tally.line(options, start.elapsed()));
            last_line = Instant::now();
        }
    }
    Ok(tally)
}

/// Runs one round in a folder of its own, which is kept if the checker finds a violation.
pub fn round(arena: &Arena, plan: &Plan, name: &str) -> (Facts, Vec<Violation>, PathBuf) {
    round_played(arena, plan, name, |round| {
        let last_seen = round.contend_all();
        round.gather(&last_seen)
    })
}

/// Runs one round, played in this way.
pub fn round_played(
    arena: &Arena,
    plan: &Plan,
    name: &str,
    play: impl FnOnce(&Round<'_>) -> Facts,
) -> (Facts, Vec<Violation>, PathBuf) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // All tags have one length, so that no tag is a prefix of another.
    let tag = format!(
        "c{:07}x{:05}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    );
    let _sweep = Sweep(tag.clone());
    let folder = support::folder();
    let inside = folder.path().join(&tag);
    std::fs::create_dir(&inside).expect("a folder");
    let facts = play(&Round::new(arena, plan, &inside, &tag));
    let violations = check(&facts);
    let mut kept = PathBuf::new();
    if !violations.is_empty() {
        let _ = std::fs::write(
            inside.join("server.log"),
            arena.store.lock().expect("the store").log(),
        );
        kept = keep(&inside, name, plan, &facts, &violations);
    }
    (facts, violations, kept)
}

/// Writes the plan, the facts and the violations next to the sections' records and the server's
/// log, where cargo keeps test output.
fn keep(
    inside: &Path,
    name: &str,
    plan: &Plan,
    facts: &Facts,
    violations: &[Violation],
) -> PathBuf {
    let to = support::kept().join(format!("campaign-{name}"));
    let recorded: Vec<String> = violations.iter().map(ToString::to_string).collect();
    let _ = std::fs::write(inside.join("plan.txt"), format!("{plan:#?}"));
    let _ = std::fs::write(inside.join("facts.txt"), format!("{facts:#?}"));
    let _ = std::fs::write(inside.join("violations.txt"), recorded.join("\n"));
    let _ = std::fs::remove_dir_all(&to);
    let _ = std::process::Command::new("cp")
        .arg("-r")
        .arg(inside)
        .arg(&to)
        .status();
    to
}
