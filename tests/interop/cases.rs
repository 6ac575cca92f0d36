//! What each library has to show: that it and dlock take turns, that each outlives the other one's death, and that nothing is lost in a race.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use serde_json::Value;

use crate::{
    program::{Language, Program},
    stores::{Server, Store},
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
/// Long enough for a program that is not kept out to start.
const KEPT_OUT: Duration = Duration::from_millis(500);
/// How long a race lasts.
const RACE: Duration = Duration::from_secs(5);
/// The lease of a library that is not to lose it.
const LONG: u32 = 40;
/// The lease of one that is killed.
const SHORT: u32 = 4;

/// How a library and one mode of dlock stand to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meet {
    /// Each is refused while the other one holds the lock.
    Excluded,
    /// Both are readers.
    GroupOutcome,
}
pub use Meet::{Excluded, GroupOutcome};

/// A library that shares its locks with dlock.
#[derive(Clone, Copy, Debug)]
pub struct Library {
    pub language: Language,
    pub store: Store,
    /// dlock's side, if there is anything to say.
    pub options: &'static [&'static str],
    /// What the library is given for a key in a database.
    pub name: fn(key: &str, database: &str) -> String,
    /// dlock's modes, the first of which is the exclusive one.
    pub modes: &'static [(&'static str, Meet)],
    /// What it says while dlock holds the lock, if it can't say that it is busy, and why.
    pub raises: Option<(&'static str, &'static str)>,
    /// Why a killed holder's lock does not end.
    pub without_end: Option<&'static str>,
}

/// A library that does not.
#[derive(Clone, Copy, Debug)]
pub struct Stranger {
    pub language: Language,
    pub store: Store,
    pub name: fn(key: &str, database: &str) -> String,
    /// dlock's status while the library has its lock: 75 if dlock waits for it, 65 if dlock can't read what it finds, 0 if it sees nothing.
    pub dlock: i32,
    /// The status of a hold of dlock's while which the library is granted the lock: 76 if it takes the lock away by that.
    pub passed: i32,
    /// What the library says while dlock holds its lock.
    pub library: &'static str,
    /// Why it can't be otherwise, as the man page has it.
    pub why: &'static str,
}

/// Both, on one lock.
struct Two<'a> {
    library: &'a Library,
    server: Server,
    key: String,
    name: String,
}

/// Says why a case can't be run here.
pub fn skipped(test: &str, language: Language, store: Store) -> bool {
    let why = language.missing().or_else(|| store.missing());
    if let Some(why) = &why {
        support::skip(test, why);
    }
    why.is_some()
}

/// A job that runs until it is told to end.
fn job(folder: &Path) -> String {
    let folder = folder.display();
    format!("echo $$ > {folder}/began; while [ ! -e {folder}/go ]; do sleep 0.02; done; touch {folder}/ended")
}

impl<'a> Two<'a> {
    fn new(library: &'a Library) -> Self {
        let server = library.store.start();
        let key = unique("job");
        let name = (library.name)(&key, &server.database);
        Self { library, server, key, name }
    }

    fn program(&self, ttl: u32) -> Program {
        Program::start(self.library.language, &self.server.address, &self.name, ttl)
    }

    /// `dlock WORDS`, with the options of this library.
    fn dlock(&self, words: &[&str]) -> Process {
        let words: Vec<_> = words[..1].iter().chain(self.library.options).chain(&words[1..]).copied().collect();
        dlock::spawn(&self.server.url, &words)
    }

    fn json(&self, command: &str) -> Value {
        let said = self.dlock(&[command, "--json", &self.key]).wait(LIMIT);
        assert_eq!(said.code(), 0, "{}{}", said.stdout, said.stderr);
        serde_json::from_str(&said.stdout).unwrap()
    }

    /// What `names` prints is what the library was given, and `inspect` shows its hold under the same name.
    fn is_named(&self) {
        let (state, names) = (self.json("inspect"), self.json("names"));
        let holders = state["holders"].as_array().unwrap();
        assert!(!holders.is_empty() && holders.iter().all(|holder| holder["foreign"] == true), "{state}");
        assert_eq!(state["stored_as"], names["stored_as"]);
        let codes: Vec<_> = names["libraries"].as_array().unwrap().iter().filter_map(|library| library["code"].as_str()).collect();
        assert!(codes.iter().any(|code| code.contains(&self.name)), "{} is in none of {codes:?}", self.name);
    }

    fn library_first(&self, theirs: &mut Program, mode: &str, meet: Meet) {
        assert_eq!(theirs.say("try"), "held");
        let tried = self.dlock(&["run", mode, "-k", &self.key, "--", "true"]).wait(LIMIT);
        assert_eq!(tried.code(), if meet == Excluded { 75 } else { 0 }, "{mode}: {}", tried.stderr);
        self.is_named();
        let folder = support::folder();
        let ran = folder.path().join("ran");
        let waiter = self.dlock(&["run", mode, "-k", &self.key, "-w", "50", "--", "touch", &ran.display().to_string()]);
        if meet == Excluded {
            std::thread::sleep(KEPT_OUT);
            assert!(!ran.exists(), "dlock {mode} ran while the library held the lock");
        }
        assert_eq!(theirs.say("release"), "free");
        let released = Instant::now();
        let waiter = waiter.wait(LIMIT);
        assert_eq!(waiter.code(), 0, "{mode}: {}", waiter.stderr);
        say(&format!("interop: {:?}, then dlock {mode} in {} ms", self.library.language, released.elapsed().as_millis()));
    }

    fn dlock_first(&self, theirs: &mut Program, mode: &str, meet: Meet) {
        let folder = support::folder();
        let folder = folder.path();
        let holder = self.dlock(&["run", mode, "-k", &self.key, "--", "sh", "-c", &job(folder)]);
        must("dlock has it", LIMIT, || folder.join("began").exists());
        if meet == GroupOutcome {
            assert_eq!(theirs.say("try"), "held");
            fs::write(folder.join("go"), "").unwrap();
            assert_eq!(holder.wait(LIMIT).code(), 0);
            assert_eq!(theirs.say("release"), "free", "dlock took the lock away with its own share");
            return;
        }
        let raises = self.library.raises.map(|(name, _)| format!("raised {name}"));
        assert_eq!(theirs.say("try"), raises.clone().unwrap_or_else(|| "busy".into()), "while dlock {mode} held the lock");
        if raises.is_none() {
            theirs.tell("lock");
            assert_eq!(theirs.answer_within(KEPT_OUT), None, "while dlock {mode} held the lock");
        }
        assert!(!folder.join("ended").exists());
        fs::write(folder.join("go"), "").unwrap();
        let began = Instant::now();
        if raises.is_none() {
            assert_eq!(theirs.answer(), "held");
            assert!(folder.join("ended").exists(), "the library got the lock while dlock's command ran");
            say(&format!("interop: dlock {mode}, then {:?} in {} ms", self.library.language, began.elapsed().as_millis()));
        }
        assert_eq!(holder.wait(LIMIT).code(), 0);
        if raises.is_some() {
            assert_eq!(theirs.say("lock"), "held");
        }
        assert_eq!(theirs.say("release"), "free");
    }

    /// The library's process is killed while it has the lock.
    fn library_dies(&self) {
        let mut theirs = self.program(SHORT);
        assert_eq!(theirs.say("try"), "held");
        let wait = if self.library.without_end.is_some() { "6" } else { "50" };
        let waiter = self.dlock(&["run", "-k", &self.key, "-w", wait, "--", "true"]);
        std::thread::sleep(KEPT_OUT / 2);
        theirs.kill();
        let killed = Instant::now();
        let waiter = waiter.wait(LIMIT);
        if let Some(why) = self.library.without_end {
            assert_eq!(waiter.code(), 75, "{why}: {}", waiter.stderr);
            assert_eq!(self.json("inspect")["holders"][0]["expires_in_ms"], Value::Null, "{why}");
            return;
        }
        assert_eq!(waiter.code(), 0, "{}", waiter.stderr);
        say(&format!("interop: {:?} killed, dlock {} ms later", self.library.language, killed.elapsed().as_millis()));
    }

    /// dlock is killed while it has the lock.
    fn dlock_dies(&self) {
        let folder = support::folder();
        let folder = folder.path();
        let holder = self.dlock(&["run", "-k", &self.key, "--ttl", "4s", "--", "sh", "-c", &job(folder)]);
        let began = folder.join("began");
        must("dlock has it", LIMIT, || fs::read_to_string(&began).is_ok_and(|pid| pid.ends_with('\n')));
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
            must("the library gets the lock", LIMIT, || theirs.say("try") == "held");
        }
        assert!(!procfs::alive(command), "the library got the lock while dlock's command was alive");
        say(&format!("interop: dlock killed, {:?} {} ms later", self.library.language, killed.elapsed().as_millis()));
        assert_eq!(theirs.say("release"), "free");
        let ended = holder.wait(LIMIT);
        assert_eq!(ended.code(), 128 + Signal::KILL.as_raw(), "{}", ended.stderr);
    }

    /// Both take the lock as often as they can, and count in two steps what they do.
    fn race(&self) {
        let folder = support::folder();
        let file = folder.path().join("count").display().to_string();
        fs::write(&file, "0").unwrap();
        let mut theirs = self.program(LONG);
        theirs.tell(&format!("race {} {file}", RACE.as_secs()));
        let script = format!("n=$(cat {file}); sleep 0.005; echo $((n + 1)) > {file}");
        let (mut ours, mut dice, began) = (0, Dice(u64::from(std::process::id()) | 1), Instant::now());
        while began.elapsed() < RACE {
            let run = self.dlock(&["run", "-k", &self.key, "-w", ".3", "--skew-guard", "0", "--", "sh", "-c", &script]).wait(LIMIT);
            assert!([0, 75].contains(&run.code()), "{}", run.stderr);
            ours += u64::from(run.code() == 0);
            std::thread::sleep(Duration::from_millis(dice.below(40)));
        }
        let theirs: u64 = theirs.answer().strip_prefix("counted ").unwrap().parse().unwrap();
        let count: u64 = fs::read_to_string(&file).unwrap().trim().parse().unwrap();
        say(&format!("interop: race of dlock {ours} and {:?} {theirs}", self.library.language));
        assert_eq!(count, ours + theirs, "they overlapped");
        assert!(ours > 0 && theirs > 0, "one of them never got the lock: dlock {ours}, the library {theirs}");
    }
}

/// The library holds and dlock is busy, waits and gets it; and the other way round, in each mode of dlock.
pub fn take_turns(library: &Library) {
    let two = Two::new(library);
    let mut theirs = two.program(LONG);
    for (mode, meet) in library.modes {
        two.library_first(&mut theirs, mode, *meet);
        two.dlock_first(&mut theirs, mode, *meet);
    }
}

/// Each is killed, and the other one takes over.
pub fn outlive_each_other(library: &Library) {
    std::thread::scope(|both| {
        both.spawn(|| Two::new(library).dlock_dies());
        both.spawn(|| Two::new(library).library_dies());
    });
}

/// As often as both can for some seconds.
pub fn race(library: &Library) {
    Two::new(library).race();
}

/// What is documented of a library that doesn't share its locks, or only one way, is so.
pub fn pass_each_other(stranger: &Stranger) {
    let server = stranger.store.start();
    let key = unique("job");
    let name = (stranger.name)(&key, &server.database);
    let mut theirs = Program::start(stranger.language, &server.address, &name, LONG);
    let folder = support::folder();
    let folder = folder.path();
    let holder = dlock::spawn(&server.url, &["run", "-k", &key, "--", "sh", "-c", &job(folder)]);
    must("dlock has it", LIMIT, || folder.join("began").exists());
    assert_eq!(theirs.say("try"), stranger.library, "{}", stranger.why);
    fs::write(folder.join("go"), "").unwrap();
    assert_eq!(holder.wait(LIMIT).code(), stranger.passed);
    if stranger.library != "held" {
        assert_eq!(theirs.say("lock"), "held");
    }
    let tried = dlock::run(&server.url, &["run", "-k", &key, "--", "true"]);
    assert_eq!(tried.code(), stranger.dlock, "{}: {}", stranger.why, tried.stderr);
}
