//! A sweep: one fault at every packet. It counts the packets that contender A exchanges with the
//! store in one undisturbed run of a scene, and plays the scene again for each packet and each
//! mode, with the fault exactly there. The other contenders reach the store directly.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread::{self, sleep},
    time::{Duration, Instant},
};

use crate::{
    campaign::round_played,
    facts::{Facts, InjectedFault},
    liveness::now,
    packets::{Packets, Strike},
    round::{Arena, Round, lock},
    scenes::{self, MODES, Mode},
    stores::Arsenal,
    support::{self, dice::Dice, stores::Can},
};

/// Which packets to strike.
#[derive(Clone, Debug)]
pub struct Options {
    pub store: String,
    pub seed: u64,
    pub scenes: Vec<&'static str>,
    pub modes: Vec<(&'static str, Mode)>,
    /// Takes each n-th packet, from another one with another seed.
    pub step: usize,
    pub first: usize,
    /// The last packet; 0 for all.
    pub last: usize,
    /// Draws one scene, and one packet for each mode.
    pub sample: bool,
    /// The number of cases that run at once.
    pub parallel: usize,
    /// Prints a line for each case.
    pub verbose: bool,
}

impl Options {
    pub fn of(store: &str, seed: u64) -> Self {
        let (scenes, modes, store) = (scenes::NAMES.to_vec(), MODES.to_vec(), store.to_owned());
        Self {
            store,
            seed,
            scenes,
            modes,
            step: 1,
            first: 1,
            last: 0,
            sample: false,
            parallel: 6,
            verbose: false,
        }
    }
}

/// Parses the command line.
pub fn options(arguments: &[String]) -> Result<Options, String> {
    let mut options = Options::of("", 1);
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let mut value = || rest.next().ok_or(format!("{argument} needs a value"));
        let number = |text: &String| {
            text.parse::<usize>()
                .map_err(|_| format!("{text} is not a number"))
        };
        match argument.as_str() {
            "--sweep" => {}
            "--store" => options.store.clone_from(value()?),
            "--seed" => options.seed = number(value()?)? as u64,
            "--step" => options.step = number(value()?)?.max(1),
            "--first" => options.first = number(value()?)?.max(1),
            "--last" => options.last = number(value()?)?,
            "--parallel" => options.parallel = number(value()?)?.max(1),
            "--scenes" => {
                let named = |name| {
                    scenes::NAMES
                        .into_iter()
                        .find(|known| *known == name)
                        .ok_or(format!("no such scene: {name}"))
                };
                options.scenes = value()?.split(',').map(named).collect::<Result<_, _>>()?;
            }
            "--modes" => {
                let named = |name| {
                    MODES
                        .into_iter()
                        .find(|(known, _)| *known == name)
                        .ok_or(format!("no such mode: {name}"))
                };
                options.modes = value()?.split(',').map(named).collect::<Result<_, _>>()?;
            }
            "-v" | "--verbose" => options.verbose = true,
            other => return Err(format!("unknown option {other}")),
        }
    }
    Ok(options)
}

/// A scene, and the packet that is struck; none in the run that counts.
#[derive(Clone, Copy, Debug)]
struct Case {
    scene: &'static str,
    strike: Option<(&'static str, Mode, usize)>,
}

/// Totals over the cases that ran.
#[derive(Debug, Default)]
pub struct Tally {
    pub cases: usize,
    /// The cases whose packet came, by mode.
    struck: BTreeMap<&'static str, usize>,
    /// The exit statuses of A, by mode.
    statuses: BTreeMap<(&'static str, i32), usize>,
    pub violations: Vec<String>,
}

impl Tally {
    pub fn summary(&self, options: &Options, took: Duration) -> String {
        let (store, cases, struck) = (
            &options.store,
            self.cases,
            self.struck.values().sum::<usize>(),
        );
        let (seed, found, took) = (options.seed, self.violations.len(), took.as_secs_f64());
        let mut text = format!(
            "sweep {store} seed {seed}: {cases} cases, {struck} packets struck, {found} cases violate a rule in {took:.1} s"
        );
        for (mode, count) in &self.struck {
            let of_mode = self.statuses.iter().filter(|((of, _), _)| of == mode);
            let statuses: Vec<String> = of_mode
                .map(|((_, status), count)| format!("{status} x{count}"))
                .collect();
            let _ = write!(
                text,
                "\n  {count:>6} {mode}: A ended with {}",
                statuses.join(", ")
            );
        }
        text
    }
}

struct Sweep<'a> {
    options: &'a Options,
    store: Arc<Mutex<Arsenal>>,
    can: Can,
    tally: Mutex<Tally>,
}

/// Runs all cases.
///
/// # Errors
/// Names the program that the store needs and that isn't installed, or says that the store has no
/// packets.
pub fn play(options: &Options) -> Result<Tally, String> {
    let store = Arsenal::start(&options.store)?;
    if store.ports().0.is_empty() {
        return Err(format!("{} has no packets", options.store));
    }
    let can = store.can;
    let sweep = Sweep {
        options,
        can,
        store: Arc::new(Mutex::new(store)),
        tally: Mutex::default(),
    };
    let scenes: Vec<_> = options
        .scenes
        .iter()
        .copied()
        .filter(|scene| scenes::plan(scene, can).is_some())
        .collect();
    let drawn = if options.sample {
        draw(options, &scenes)
    } else {
        scenes
    };
    let counting: Vec<Case> = drawn
        .iter()
        .map(|scene| Case {
            scene,
            strike: None,
        })
        .collect();
    // The first run of a scene loads scripts into a server of Redis.
    sweep.all(&counting);
    let counts = sweep.all(&counting);
    let cases: Vec<Case> = counts
        .into_iter()
        .flat_map(|(scene, packets)| cases(options, scene, packets))
        .collect();
    sweep.all(&cases);
    sweep.leftovers();
    Ok(sweep.tally.into_inner().expect("the tally"))
}

fn draw(options: &Options, scenes: &[&'static str]) -> Vec<&'static str> {
    let nth = options.store.bytes().map(usize::from).sum::<usize>()
        + usize::try_from(options.seed).unwrap_or_default();
    vec![scenes[nth % scenes.len()]]
}

/// Returns the cases of a scene. Its runs with a fault may exchange a packet more than the
/// undisturbed one.
fn cases(options: &Options, scene: &'static str, packets: usize) -> Vec<Case> {
    let last = if options.last == 0 {
        packets + 1
    } else {
        options.last
    };
    let mut dice = Dice(options.seed.wrapping_mul(31) + packets as u64 + 1);
    let mut all = Vec::new();
    for (name, mode) in &options.modes {
        let case = |packet| Case {
            scene,
            strike: Some((*name, *mode, packet)),
        };
        let drawn = usize::try_from(dice.below(if options.sample {
            packets
        } else {
            options.step
        } as u64))
        .unwrap_or_default();
        if options.sample {
            all.push(case(1 + drawn));
        } else {
            all.extend(
                (options.first + drawn..=last)
                    .step_by(options.step)
                    .map(case),
            );
        }
    }
    all
}

impl Sweep<'_> {
    /// Runs the cases, several at a time. Returns how many packets each of them had.
    fn all(&self, cases: &[Case]) -> Vec<(&'static str, usize)> {
        let (next, counts) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        thread::scope(|scope| {
            for _ in 0..self.options.parallel {
                scope.spawn(|| {
                    while let Some(case) = cases.get(next.fetch_add(1, Ordering::SeqCst)) {
                        let packets = self.case(*case);
                        lock(&counts).push((case.scene, packets));
                    }
                });
            }
        });
        counts.into_inner().expect("the counts")
    }

    /// Plays and judges one case. Returns how many packets A exchanged.
    fn case(&self, case: Case) -> usize {
        let began = Instant::now();
        let plan = scenes::plan(case.scene, self.can).expect("a scene of this store");
        let (packets, arena) = self.arena();
        let (facts, violations, kept) = round_played(&arena, &plan, &self.name(case), |round| {
            played(round, &packets, case)
        });
        let statuses: Vec<String> = facts
            .runs
            .iter()
            .map(|run| format!("{}={}", run.id / 100, run.code))
            .collect();
        let (name, count, took) = (
            self.name(case),
            packets.count(),
            began.elapsed().as_secs_f64(),
        );
        let line = format!(
            "{name} of {count} packets: {} in {took:.1} s",
            statuses.join(" ")
        );
        let mut tally = lock(&self.tally);
        tally.cases += 1;
        if let (Some((mode, ..)), Some(_), Some(a)) = (case.strike, packets.hit(), facts.run(0)) {
            *tally.struck.entry(mode).or_default() += 1;
            *tally.statuses.entry((mode, a.code)).or_default() += 1;
        }
        if !violations.is_empty() {
            let what: Vec<String> = violations
                .iter()
                .map(|violation| format!("\n  {violation}"))
                .collect();
            let text = format!(
                "{line}{}\n  records: {}\n  again: {}",
                what.concat(),
                kept.display(),
                self.again(case)
            );
            support::say(&text);
            tally.violations.push(text);
        } else if self.options.verbose {
            support::say(&line);
        }
        count
    }

    fn name(&self, case: Case) -> String {
        let (mode, number) = case
            .strike
            .map_or(("undisturbed", 0), |(mode, _, number)| (mode, number));
        format!("{}-{}-{mode}-{number}", self.options.store, case.scene)
    }

    fn again(&self, case: Case) -> String {
        let only = case.strike.map_or_else(String::new, |(mode, _, number)| {
            format!(" --modes {mode} --first {number} --last {number}")
        });
        format!(
            "tests/run --campaign --store {} --sweep --scenes {}{only}",
            self.options.store, case.scene
        )
    }

    /// When all cases have ended, no session or connection is left.
    fn leftovers(&self) {
        let (store, mut left) = (lock(&self.store), Vec::new());
        // A server takes a moment to notice that a client is gone.
        if !support::eventually(support::stretched(Duration::from_secs(15)), || {
            left = store.left(&[]);
            left.is_empty()
        }) {
            lock(&self.tally)
                .violations
                .push(format!("left over on {}: {left:?}", self.options.store));
        }
    }

    /// Returns proxies of a case's own, and the arena whose proxied route leads through them.
    fn arena(&self) -> (Packets, Arena) {
        let store = lock(&self.store);
        let (ports, named) = store.ports();
        let packets = Packets::to(&[&*ports, &*named].concat(), !named.is_empty());
        let url = store.at("127.0.0.1", &packets.ports[..ports.len()]);
        drop(store);
        (packets, Arena::beside(&self.store, url))
    }
}

/// Runs all contenders of a case, with its fault.
fn played(round: &Round<'_>, packets: &Packets, case: Case) -> Facts {
    if let Some((_, mode, packet)) = case.strike {
        packets.arm(Strike {
            mode,
            packet,
            victim: Arc::clone(&round.slots),
        });
    }
    let last_seen = round.contend_all();
    if let (Some((from, until)), Some((_, mode, _))) = (packets.hit(), case.strike) {
        let fault = mode.fault();
        // A packet that is still on its way may change what the store has.
        let over = until + 500_000_000;
        if mode == Mode::Late && now() < over {
            sleep(Duration::from_nanos(over - now()));
        }
        let run = fault.hits_one_run().then_some(0);
        lock(&round.injected).push(InjectedFault {
            fault,
            from,
            until,
            run,
        });
    }
    let mut facts = round.gather(&last_seen);
    // No server fails, so the next waiter starts when the lease is over, and no history is lost.
    (facts.can.handover_s, facts.can.forgets) = (0, false);
    facts
}
