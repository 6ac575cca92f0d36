//! The cases for each library: it and dlock exclude each other, each takes over after the other's
//! death, and no update is lost in a race.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use serde_json::Value;

use crate::{
    program::{Language, Program},
    stores::{Place, Server},
    support::{
        self,
        dice::Dice,
        dlock::{self, unique},
        must,
        process::Process,
        procfs, say,
    },
};

const LIMIT: Duration = Duration::from_secs(60);
/// Long enough for a program to start if the lock doesn't block it.
const KEPT_OUT: Duration = Duration::from_millis(500);
/// How long a race lasts.
const RACE: Duration = Duration::from_secs(5);
/// The lease of a library that must not lose its lock.
const LONG: u32 = 40;
/// The lease of a library that is killed.
const SHORT: u32 = 4;

/// How a library's lock interacts with one mode of dlock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interaction {
    /// Each is busy while the other holds the lock.
    Excluded,
    /// Both hold the lock in shared mode.
    Compatible,
}
pub use Interaction::{Compatible, Excluded};

/// A library that shares its locks with dlock.
#[derive(Clone, Copy, Debug)]
pub struct Library {
    pub language: Language,
    pub store: Place,
    /// dlock's options for this library.
    pub options: &'static [&'static str],
    /// Returns the library's name for a key, given the database.
    pub name: fn(key: &str, database: &str) -> String,
    /// dlock's modes, starting with the exclusive one.
    pub modes: &'static [(&'static str, Interaction)],
    /// The error that the library raises instead of reporting busy while dlock holds the lock, and
    /// its reason.
    pub raises: Option<(&'static str, &'static str)>,
    /// Why a killed holder's lock does not expire.
    pub without_end: Option<&'static str>,
}

/// A library that doesn't share its locks with dlock.
#[derive(Clone, Copy, Debug)]
pub struct Independent {
    pub language: Language,
    pub store: Place,
    pub name: fn(key: &str, database: &str) -> String,
    /// dlock's status while the library holds its lock: 75 if dlock waits, 65 if it can't read the
    /// key, 0 if it sees nothing.
    pub dlock: i32,
    /// The status of a dlock hold while the library gets the lock: 76 if that takes the lock away.
    pub passed: i32,
    /// The library's answer while dlock holds its lock.
    pub library: &'static str,
    /// The reason, as the man page explains it.
    pub why: &'static str,
}

/// A library and dlock on one lock.
struct Pair<'a> {
    library: &'a Library,
    server: Server,
    key: String,
    name: String,
}

/// Prints why a case is skipped, if it is.
pub fn skipped(test: &str, language: Language, store: Place) -> bool {
    if let Some(why) = language.missing() {
        support::skip(test, &why);
        return true;
    }
    !store.runs(test)
}

/// A job that runs until the file `go` exists.
fn job(folder: &Path) -> String {
    let folder = folder.display();
    format!(
        "echo $$ > {folder}/began; while [ ! -e {folder}/go ]; do sleep 0.02; done; touch {folder}/ended"
    )
}

impl<'a> Pair<'a> {
    fn new(library: &'a Library) -> Self {
        let server = library.store.start();
        let key = unique("job");
        let name = (library.name)(&key, &server.database);
        Self {
            library,
            server,
            key,
            name,
        }
    }

    fn program(&self, ttl: u32) -> Program {
        Program::start(self.library.language, &self.server.address, &self.name, ttl)
    }

    /// Starts `dlock WORDS` with the options of this library.
    fn dlock(&self, words: &[&str]) -> Process {
        let words: Vec<_> = words[..1]
            .iter()
            .chain(self.library.options)
            .chain(&words[1..])
            .copied()
            .collect();
        dlock::spawn(&self.server.url, &words)
    }

    fn json(&self, command: &str) -> Value {
        let said = self.dlock(&[command, "--json", &self.key]).wait(LIMIT);
        assert_eq!(said.code(), 0, "{}{}", said.stdout, said.stderr);
        serde_json::from_str(&said.stdout).unwrap()
    }

    /// `dlock names` prints the library's name, and `inspect` shows the library's hold under that
    /// name.
    fn is_named(&self) {
        let (state, names) = (self.json("inspect"), self.json("names"));
        let holders = state["holders"].as_array().unwrap();
        assert!(
            !holders.is_empty() && holders.iter().all(|holder| holder["foreign"] == true),
            "{state}"
        );
        assert_eq!(state["stored_as"], names["stored_as"]);
        let codes: Vec<_> = names["libraries"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|library| library["code"].as_str())
            .collect();
        assert!(
            codes.iter().any(|code| code.contains(&self.name)),
            "{} is in none of {codes:?}",
            self.name
        );
    }

    fn library_first(&self, theirs: &mut Program, mode: &str, interaction: Interaction) {
        assert_eq!(theirs.say("try"), "held");
        let tried = self
            .dlock(&["run", mode, "-k", &self.key, "--", "true"])
            .wait(LIMIT);
        assert_eq!(
            tried.code(),
            if interaction == Excluded { 75 } else { 0 },
            "{mode}: {}",
            tried.stderr
        );
        self.is_named();
        let folder = support::folder();
        let ran = folder.path().join("ran");
        let waiter = self.dlock(&[
            "run",
            mode,
            "-k",
            &self.key,
            "-w",
            "50",
            "--",
            "touch",
            &ran.display().to_string(),
        ]);
        if interaction == Excluded {
            std::thread::sleep(KEPT_OUT);
            assert!(
                !ran.exists(),
                "dlock {mode} ran while the library held the lock"
            );
        }
        assert_eq!(theirs.say("release"), "free");
        let released = Instant::now();
        let waiter = waiter.wait(LIMIT);
        assert_eq!(waiter.code(), 0, "{mode}: {}", waiter.stderr);
        say(&format!(
            "interop: {:?}, then dlock {mode} in {} ms",
            self.library.language,
            released.elapsed().as_millis()
        ));
    }

    fn dlock_first(&self, theirs: &mut Program, mode: &str, interaction: Interaction) {
        let folder = support::folder();
        let folder = folder.path();
        let holder = self.dlock(&["run", mode, "-k", &self.key, "--", "sh", "-c", &job(folder)]);
        must("dlock holds the lock", LIMIT, || {
            folder.join("began").exists()
        });
        if interaction == Compatible {
            assert_eq!(theirs.say("try"), "held");
            fs::write(folder.join("go"), "").unwrap();
            assert_eq!(holder.wait(LIMIT).code(), 0);
            assert_eq!(
                theirs.say("release"),
                "free",
                "dlock took the lock away with its own share"
            );
            return;
        }
        let raises = self
            .library
            .raises
            .map(|(name, _)| format!("raised {name}"));
        assert_eq!(
            theirs.say("try"),
            raises.clone().unwrap_or_else(|| "busy".into()),
            "while dlock {mode} held the lock"
        );
        if raises.is_none() {
            theirs.tell("lock");
            assert_eq!(
                theirs.answer_within(KEPT_OUT),
                None,
                "while dlock {mode} held the lock"
            );
        }
        assert!(!folder.join("ended").exists());
        fs::write(folder.join("go"), "").unwrap();
        let began = Instant::now();
        if raises.is_none() {
            assert_eq!(theirs.answer(), "held");
            assert!(
                folder.join("ended").exists(),
                "the library got the lock while dlock's command ran"
            );
            say(&format!(
                "interop: dlock {mode}, then {:?} in {} ms",
                self.library.language,
                began.elapsed().as_millis()
            ));
        }
        assert_eq!(holder.wait(LIMIT).code(), 0);
        if raises.is_some() {
            assert_eq!(theirs.say("lock"), "held");
        }
        assert_eq!(theirs.say("release"), "free");
    }

    /// Kills the library's process while it holds the lock.
    fn library_dies(&self) {
        let mut theirs = self.program(SHORT);
        assert_eq!(theirs.say("try"), "held");
        let wait = if self.library.without_end.is_some() {
            "6"
        } else {
            "50"
        };
        let waiter = self.dlock(&["run", "-k", &self.key, "-w", wait, "--", "true"]);
        std::thread::sleep(KEPT_OUT / 2);
        theirs.kill();
        let killed = Instant::now();
        let waiter = waiter.wait(LIMIT);
        if let Some(why) = self.library.without_end {
            assert_eq!(waiter.code(), 75, "{why}: {}", waiter.stderr);
            assert_eq!(
                self.json("inspect")["holders"][0]["expires_in_ms"],
                Value::Null,
                "{why}"
            );
            let breaks = ["break", "--yes", "--reason", "it is dead", &self.key];
            let refused = self.dlock(&breaks).wait(LIMIT);
            let told = &refused.stderr;
            assert!(
                refused.code() == 64
                    && (told.contains("frees it, once the program that took it is dead")
                        || told.contains("it lasts as long as that program's ")),
                "{told}"
            );
            return;
        }
        assert_eq!(waiter.code(), 0, "{}", waiter.stderr);
        say(&format!(
            "interop: {:?} killed, dlock {} ms later",
            self.library.language,
            killed.elapsed().as_millis()
        ));
    }

    /// Kills dlock while it holds the lock.
    fn dlock_dies(&self) {
        let folder = support::folder();
        let folder = folder.path();
        let holder = self.dlock(&[
            "run",
            "-k",
            &self.key,
            "--ttl",
            "4s",
            "--",
            "sh",
            "-c",
            &job(folder),
        ]);
        let began = folder.join("began");
        must("dlock holds the lock", LIMIT, || {
            fs::read_to_string(&began).is_ok_and(|pid| pid.ends_with('\n'))
        });
        let command: u32 = fs::read_to_string(&began).unwrap().trim().parse().unwrap();
        let mut theirs = self.program(LONG);
        let waits = self.library.raises.is_none();
        if waits {
            theirs.tell("lock");
            assert_eq!(theirs.answer_within(KEPT_OUT / 2), None);
        }
        holder.signal(Signal::KILL);
        let killed = Instant::now();
        if waits {
            assert_eq!(theirs.answer(), "held");
        } else {
            must("the library gets the lock", LIMIT, || {
                theirs.say("try") == "held"
            });
        }
        assert!(
            !procfs::alive(command),
            "the library got the lock while dlock's command was alive"
        );
        say(&format!(
            "interop: dlock killed, {:?} {} ms later",
            self.library.language,
            killed.elapsed().as_millis()
        ));
        assert_eq!(theirs.say("release"), "free");
        let ended = holder.wait(LIMIT);
        assert_eq!(
            ended.code(),
            128 + Signal::KILL.as_raw(),
            "{}",
            ended.stderr
        );
    }

    /// Both take the lock as often as they can, and increment a counter without atomicity.
    fn race(&self) {
        let folder = support::folder();
        let file = folder.path().join("count").display().to_string();
        fs::write(&file, "0").unwrap();
        let mut theirs = self.program(LONG);
        theirs.tell(&format!("race {} {file}", RACE.as_secs()));
        let script = format!("n=$(cat {file}); sleep 0.005; echo $((n + 1)) > {file}");
        let (mut ours, mut dice, began) =
            (0, Dice(u64::from(std::process::id()) | 1), Instant::now());
        while began.elapsed() < RACE {
            let run = self
                .dlock(&[
                    "run",
                    "-k",
                    &self.key,
                    "-w",
                    ".3",
                    "--skew-guard",
                    "0",
                    "--",
                    "sh",
                    "-c",
                    &script,
                ])
                .wait(LIMIT);
            assert!([0, 75].contains(&run.code()), "{}", run.stderr);
            ours += u64::from(run.code() == 0);
            std::thread::sleep(Duration::from_millis(dice.below(40)));
        }
        let theirs: u64 = theirs
            .answer()
            .strip_prefix("counted ")
            .unwrap()
            .parse()
            .unwrap();
        let count: u64 = fs::read_to_string(&file).unwrap().trim().parse().unwrap();
        say(&format!(
            "interop: race of dlock {ours} and {:?} {theirs}",
            self.library.language
        ));
        assert_eq!(count, ours + theirs, "two holders overlapped");
        assert!(
            ours > 0 && theirs > 0,
            "one of them never got the lock: dlock {ours}, the library {theirs}"
        );
    }
}

/// The library holds while dlock is busy, waits and gets the lock, and the other way round, in each
/// mode of dlock.
pub fn exclude_each_other(library: &Library) {
    let pair = Pair::new(library);
    let mut theirs = pair.program(LONG);
    for (mode, interaction) in library.modes {
        pair.library_first(&mut theirs, mode, *interaction);
        pair.dlock_first(&mut theirs, mode, *interaction);
    }
}

/// Each is killed, and the other one takes over.
pub fn outlive_each_other(library: &Library) {
    std::thread::scope(|both| {
        both.spawn(|| Pair::new(library).dlock_dies());
        both.spawn(|| Pair::new(library).library_dies());
    });
}

/// Both take the lock as often as they can for some seconds.
pub fn race(library: &Library) {
    Pair::new(library).race();
}

/// Checks the documentation of a library that doesn't share its locks, or only in one direction.
pub fn ignore_each_other(library: &Independent) {
    let server = library.store.start();
    let key = unique("job");
    let name = (library.name)(&key, &server.database);
    let mut theirs = Program::start(library.language, &server.address, &name, LONG);
    let folder = support::folder();
    let folder = folder.path();
    let holder = dlock::spawn(
        &server.url,
        &["run", "-k", &key, "--", "sh", "-c", &job(folder)],
    );
    must("dlock holds the lock", LIMIT, || {
        folder.join("began").exists()
    });
    assert_eq!(theirs.say("try"), library.library, "{}", library.why);
    fs::write(folder.join("go"), "").unwrap();
    assert_eq!(holder.wait(LIMIT).code(), library.passed);
    if library.library != "held" {
        assert_eq!(theirs.say("lock"), "held");
    }
    let tried = dlock::run(&server.url, &["run", "-k", &key, "--", "true"]);
    assert_eq!(
        tried.code(),
        library.dlock,
        "{}: {}",
        library.why,
        tried.stderr
    );
}
