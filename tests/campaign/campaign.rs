//! A campaign: rounds on one store, each drawn from the seed, played and judged, until one fails.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    time::Instant,
};

use crate::{
    facts::Facts,
    judge::{Fault, Rule, judge},
    plan::{Blow, Mix, Plan},
    round::{Arena, Round},
    stores,
    support::{self, process::Sweep},
};

/// The rounds to play.
#[derive(Clone, Debug)]
pub struct Order {
    pub store: String,
    pub seed: u64,
    /// The first round.
    pub from: u64,
    pub rounds: u64,
    pub mix: Mix,
    /// What alone is to strike, if not everything.
    pub blows: Vec<Blow>,
    /// A line for each round.
    pub verbose: bool,
}

/// What was played.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub rounds: u64,
    pub runs: usize,
    pub sections: usize,
    pub struck: BTreeMap<Blow, usize>,
    pub overlaps: usize,
    /// Of the round that failed.
    pub faults: Vec<Fault>,
}

impl Tally {
    fn add(&mut self, facts: &Facts, faults: &[Fault]) {
        self.rounds += 1;
        self.runs += facts.runs.len();
        self.sections += facts.sections.len();
        for struck in &facts.struck {
            *self.struck.entry(struck.blow).or_default() += 1;
        }
        self.overlaps += faults.iter().filter(|fault| fault.rule == Rule::Overlap).count();
    }

    /// The summary, for people.
    pub fn summary(&self, order: &Order, took: std::time::Duration) -> String {
        let blows: usize = self.struck.values().sum();
        let mut text = format!(
            "campaign {} seed {}: {} rounds, {} runs, {} sections, {blows} faults, {} overlaps in {:.1} s",
            order.store,
            order.seed,
            self.rounds,
            self.runs,
            self.sections,
            self.overlaps,
            took.as_secs_f64()
        );
        for (blow, count) in &self.struck {
            let _ = write!(text, "\n  {count:>6} {blow:?}");
        }
        text
    }
}

/// Plays it. Stops at the first round that fails, tells its faults and keeps its records.
///
/// # Errors
/// What the store lacks here.
pub fn play(order: &Order) -> Result<Tally, String> {
    let arena = Arena::new(stores::start(&order.store)?);
    let can = crate::round::lock(&arena.store).can();
    let mut tally = Tally::default();
    for number in order.from..order.from + order.rounds {
        let plan = Plan::draw(order.seed, number, order.mix, &order.blows, can);
        let began = Instant::now();
        let (facts, faults, kept) = round(&arena, &plan, &format!("{}-{}-{number}", order.store, order.seed));
        tally.add(&facts, &faults);
        if order.verbose || !faults.is_empty() {
            let line = format!(
                "{} round {number} {}: {} contenders, {} runs, {} sections, {:?}, {:.1} s",
                order.store,
                plan.name,
                plan.contenders.len(),
                facts.runs.len(),
                facts.sections.len(),
                facts.struck.iter().map(|struck| struck.blow).collect::<Vec<_>>(),
                began.elapsed().as_secs_f64()
            );
            support::say(&line);
        }
        if !faults.is_empty() {
            for fault in &faults {
                support::say(&format!("  {fault}"));
            }
            let again = format!("tests/run --test campaign -- --store {} --seed {} --from {number} --rounds 1", order.store, order.seed);
            let again = again
                + match order.mix {
                    Mix::Both => "",
                    Mix::Calm => " --calm",
                    Mix::Rough => " --rough",
                };
            let again = match &order.blows[..] {
                [] => again,
                blows => format!("{again} --blows {}", blows.iter().map(|blow| format!("{blow:?}")).collect::<Vec<_>>().join(",")),
            };
            support::say(&format!("  records: {}\n  again: {again}", kept.display()));
            tally.faults = faults;
            break;
        }
    }
    Ok(tally)
}

/// Plays one round in a folder of its own, which is kept if something is wrong.
pub fn round(arena: &Arena, plan: &Plan, name: &str) -> (Facts, Vec<Fault>, PathBuf) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Of one width, so that none is the beginning of another.
    let tag = format!("c{:07}x{:05}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let _sweep = Sweep(tag.clone());
    let folder = support::folder();
    let inside = folder.path().join(&tag);
    std::fs::create_dir(&inside).expect("a folder");
    let facts = Round::new(arena, plan, &inside, &tag).play();
    let faults = judge(&facts);
    let mut kept = PathBuf::new();
    if !faults.is_empty() {
        kept = keep(&inside, name, plan, &facts, &faults);
    }
    (facts, faults, kept)
}

/// Writes everything that is known of a round beside what its sections wrote, where cargo keeps what tests leave.
fn keep(inside: &Path, name: &str, plan: &Plan, facts: &Facts, faults: &[Fault]) -> PathBuf {
    let to = support::kept().join(format!("campaign-{name}"));
    let told: Vec<String> = faults.iter().map(ToString::to_string).collect();
    let _ = std::fs::write(inside.join("plan.txt"), format!("{plan:#?}"));
    let _ = std::fs::write(inside.join("facts.txt"), format!("{facts:#?}"));
    let _ = std::fs::write(inside.join("faults.txt"), told.join("\n"));
    let _ = std::fs::remove_dir_all(&to);
    let _ = std::process::Command::new("cp").arg("-r").arg(inside).arg(&to).status();
    to
}
