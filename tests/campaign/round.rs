//! Runs a round: starts its runs, injects the faults, watches which sections are alive, and gathers
//! the facts.

use std::{
    collections::HashMap,
    fs::File,
    net::Ipv4Addr,
    os::unix::process::ExitStatusExt as _,
    path::Path,
    process::{Command, Stdio},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
    thread::{self, sleep},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, pidfd_open},
};
use serde_json::Value;

use crate::{
    facts::{Facts, INNER, InjectedFault, KeyEnd, Run, sections},
    liveness::{LivenessFile, now},
    plan::{Contender, Kind, ONCE_KEY, Plan, Route, Step, When},
    section::{ROLE, SectionTask},
    stores::Arsenal,
    support::{self, dlock, netns::Netns, process, procfs, proxy::Proxy},
};

/// A store and the routes to it.
pub struct Arena {
    pub store: Arc<Mutex<Arsenal>>,
    direct: String,
    /// All proxies of both routes.
    pub proxies: Mutex<Vec<Proxy>>,
    proxied: Option<String>,
    pub netns: Option<Netns>,
    from_netns: Option<String>,
    /// Whether other rounds use the store at the same time, so that a leftover may be theirs.
    shared: bool,
}

/// The current run of a contender, and the process of its dlock.
pub type Slot = Mutex<Option<(u64, u32)>>;

/// A round in progress.
pub struct Round<'a> {
    pub arena: &'a Arena,
    pub plan: &'a Plan,
    pub folder: &'a Path,
    /// Marks all processes and keys of this round.
    pub tag: &'a str,
    pub slots: Arc<Vec<Slot>>,
    ended: AtomicUsize,
    runs: Mutex<Vec<Run>>,
    pub injected: Mutex<Vec<InjectedFault>>,
    hung: Mutex<Vec<String>>,
    pub over: AtomicBool,
    slow: AtomicU32,
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Arena {
    pub fn new(store: Arsenal) -> Self {
        let mut proxies = store.fronts(Ipv4Addr::LOCALHOST);
        let proxied = (!proxies.is_empty()).then(|| store.through(&proxies));
        let (mut netns, mut from_netns) = (None, None);
        if proxied.is_some()
            && rustix::process::geteuid().is_root()
            && support::find_program("ip").is_some()
        {
            netns = Netns::make("campaign");
            if let Some(netns) = &netns {
                let more = store.fronts(netns.host);
                from_netns = Some(store.through(&more));
                proxies.extend(more);
            }
        }
        let (direct, proxies) = (store.url(), Mutex::new(proxies));
        Self {
            direct,
            store: Arc::new(Mutex::new(store)),
            proxies,
            proxied,
            netns,
            from_netns,
            shared: false,
        }
    }

    /// Returns an arena for one of several rounds on a store, with this URL as the proxied route.
    pub fn beside(store: &Arc<Mutex<Arsenal>>, proxied: String) -> Self {
        let (direct, store, proxies) = (lock(store).url(), Arc::clone(store), Mutex::default());
        Self {
            direct,
            store,
            proxies,
            proxied: Some(proxied),
            netns: None,
            from_netns: None,
            shared: true,
        }
    }

    /// Returns the route closest to the wanted one, and its URL.
    fn route(&self, wanted: Route) -> (Route, &str) {
        match (wanted, &self.proxied, &self.from_netns) {
            (Route::Netns, _, Some(url)) => (Route::Netns, url),
            (Route::Proxy | Route::Netns, Some(url), _) => (Route::Proxy, url),
            _ => (Route::Direct, &self.direct),
        }
    }

    /// Runs a `dlock` outside of the contenders.
    pub fn dlock(&self, args: &[&str]) -> process::Ended {
        dlock::spawn(&self.direct, args).wait(Duration::from_secs(120))
    }
}

impl<'a> Round<'a> {
    pub fn new(arena: &'a Arena, plan: &'a Plan, folder: &'a Path, tag: &'a str) -> Self {
        Self {
            arena,
            plan,
            folder,
            tag,
            slots: Arc::new(plan.contenders.iter().map(|_| Mutex::default()).collect()),
            ended: AtomicUsize::new(0),
            runs: Mutex::default(),
            injected: Mutex::default(),
            hung: Mutex::default(),
            over: AtomicBool::new(false),
            slow: AtomicU32::new(support::slowness()),
        }
    }

    /// Runs all contenders. Returns when each run was last seen alive.
    pub fn contend_all(&self) -> HashMap<u64, u64> {
        let began = Instant::now();
        thread::scope(|scope| {
            let watch = scope.spawn(|| self.watch());
            let faults: Vec<_> = self
                .plan
                .faults
                .iter()
                .map(|fault| scope.spawn(move || self.inject(*fault, began)))
                .collect();
            let contend = |(nth, contender)| scope.spawn(move || self.contend(nth, contender));
            let contenders: Vec<_> = self
                .plan
                .contenders
                .iter()
                .enumerate()
                .map(contend)
                .collect();
            let mut failed: usize = contenders
                .into_iter()
                .map(|one| usize::from(one.join().is_err()))
                .sum();
            self.over.store(true, Ordering::SeqCst);
            failed += faults
                .into_iter()
                .map(|one| usize::from(one.join().is_err()))
                .sum::<usize>();
            assert_eq!(failed, 0, "the campaign itself failed");
            watch.join().expect("the watch")
        })
    }

    fn contend(&self, nth: usize, contender: &Contender) {
        match contender.when {
            When::AtOnce => {}
            When::Second => support::must("a section is alive", Duration::from_secs(20), || {
                !self.living().is_empty()
            }),
            When::Last => {
                let others = self.slots.len() - 1;
                support::must("all others have ended", Duration::from_secs(180), || {
                    self.ended.load(Ordering::SeqCst) == others
                });
            }
        }
        for (step, number) in contender.steps.iter().zip(0..) {
            sleep(Duration::from_millis(step.pause_ms));
            self.run(nth, contender.route, step, nth as u64 * 100 + number);
        }
        self.ended.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns the runs whose sections are alive.
    pub fn living(&self) -> Vec<u64> {
        let liveness = |key| {
            LivenessFile::open(self.folder, key)
                .and_then(|file| file.living())
                .unwrap_or_default()
        };
        self.key_numbers().into_iter().flat_map(liveness).collect()
    }

    pub fn key(&self, key: usize) -> String {
        format!("{}-{key}", self.tag)
    }

    /// Runs one `dlock run` to its end.
    fn run(&self, nth: usize, route: Route, step: &Step, id: u64) {
        let (route, url) = self.arena.route(route);
        let mut command = match (&self.arena.netns, route) {
            (Some(netns), Route::Netns) => {
                let [ip, rest @ ..] = netns.prefix();
                let mut command = process::command(ip);
                command.args(rest).arg(dlock::binary());
                command
                    .env_clear()
                    .env("PATH", "/usr/local/bin:/usr/bin:/bin")
                    .env("HOME", "/nonexistent")
                    .stdin(Stdio::null());
                command
            }
            _ => dlock::command(),
        };
        let (status, stderr) = (
            self.folder.join(format!("{id}.json")),
            self.folder.join(format!("{id}.err")),
        );
        command
            .arg("run")
            .args(self.options(step))
            .args(["--ttl", &format!("{}ms", self.plan.ttl.as_millis())]);
        command
            .args(["--grace", "300ms", "--log", "off", "--status-file"])
            .arg(&status)
            .arg("--")
            .args(self.command(step, id));
        command
            .env("DLOCK_BACKEND", url)
            .env("CAMPAIGN", self.tag)
            .env("TMPDIR", self.folder);
        command
            .stdout(Stdio::null())
            .stderr(File::create(&stderr).expect("a file in the round's folder"));
        new_group(&mut command);
        let spawned = now();
        let mut child = process::start(command).expect("dlock starts");
        *lock(&self.slots[nth]) = Some((id, child.id()));
        let longest = step.wait_ms.unwrap_or_default()
            + step.hold_ms
            + step
                .tree
                .iter()
                .map(|member| member.ms)
                .max()
                .unwrap_or_default();
        if !ended(
            child.id(),
            Duration::from_millis(longest) + Duration::from_secs(45),
        ) {
            let tree = procfs::descendants(child.id());
            lock(&self.hung).push(format!(
                "run {id} ({:?}) with {tree:?}",
                procfs::stat(child.id())
            ));
            process::signal(child.id(), Signal::CONT);
            let _ = child.kill();
        }
        let how = child.wait().expect("dlock ends");
        let ended = now();
        *lock(&self.slots[nth]) = None;
        lock(&self.runs).push(Run {
            id,
            step: step.clone(),
            route,
            spawned,
            ended,
            code: how
                .code()
                .unwrap_or_else(|| 128 + how.signal().unwrap_or_default()),
            signalled: how.signal().is_some(),
            verdict: std::fs::read_to_string(status)
                .ok()
                .and_then(|text| serde_json::from_str(&text).ok())
                .unwrap_or_default(),
            stderr: std::fs::read_to_string(stderr).unwrap_or_default(),
        });
    }

    fn options(&self, step: &Step) -> Vec<String> {
        let mut options: Vec<String> = step
            .keys
            .iter()
            .flat_map(|key| ["-k".to_owned(), self.key(*key)])
            .collect();
        match step.kind {
            Kind::Exclusive => {}
            Kind::Shared => options.push("-s".into()),
            Kind::Permits(most) => options.extend(["--permits".into(), most.to_string()]),
        }
        if step.fair {
            options.push("--fair".into());
        }
        if let Some(ms) = step.wait_ms {
            options.extend(["-w".into(), format!("{ms}ms")]);
        }
        match step.once_per_ms {
            Some(ms) if step.once => {
                options.extend(["--once".into(), "--keep".into(), format!("{ms}ms")]);
            }
            Some(ms) => options.extend([
                "--once-per".into(),
                format!("{ms}ms"),
                "--skew-guard".into(),
                "0".into(),
            ]),
            None => {}
        }
        if step.at_least_ms > 0 {
            options.extend(["--at-least".into(), format!("{}ms", step.at_least_ms)]);
        }
        if step.leftover != "wait" {
            options.extend(["--leftover".into(), step.leftover.into()]);
        }
        options
    }

    /// Returns the command line of the section, with its nested `dlock run` and the shell around
    /// it.
    fn command(&self, step: &Step, id: u64) -> Vec<String> {
        let program = std::env::current_exe()
            .expect("a test program")
            .display()
            .to_string();
        let mut task = SectionTask {
            folder: self.folder.to_owned(),
            run: id,
            keys: step.keys.clone(),
            hold_ms: step.hold_ms,
            code: step.code,
            tree: step.tree.clone(),
            inner: None,
        };
        if step.nested {
            let inner = SectionTask {
                run: INNER + id,
                tree: Vec::new(),
                code: step.code,
                ..task.clone()
            };
            let mut line = vec![dlock::binary().display().to_string(), "run".into()];
            line.extend(self.options(&Step {
                keys: step.keys.clone(),
                ..Step::plain(0)
            }));
            line.extend([
                "--ttl".into(),
                format!("{}ms", self.plan.ttl.as_millis()),
                "--grace".into(),
                "300ms".into(),
                "--log".into(),
                "off".into(),
            ]);
            line.extend(["--".into(), program.clone(), ROLE.into(), text(&inner)]);
            task.inner = Some(line);
        }
        let own = [program, ROLE.into(), text(&task)];
        if step.stubborn {
            let shell = ["/bin/sh", "-c", "trap '' TERM; exec \"$@\"", "sh"].map(str::to_owned);
            return shell.into_iter().chain(own).collect();
        }
        own.into()
    }

    /// Returns when each run was last seen alive; returns when the round is over.
    fn watch(&self) -> HashMap<u64, u64> {
        let files: Vec<LivenessFile> = self
            .key_numbers()
            .into_iter()
            .map(|key| LivenessFile::open(self.folder, key).expect("a file"))
            .collect();
        let mut last_seen = HashMap::new();
        let mut looked = Instant::now();
        while !self.over.load(Ordering::SeqCst) {
            // A process that is alive at this check was alive at least until just before.
            let time = now();
            for file in &files {
                last_seen.extend(
                    file.living()
                        .expect("locks")
                        .into_iter()
                        .map(|run| (run, time)),
                );
            }
            if looked.elapsed() > Duration::from_secs(1) {
                self.slow.fetch_max(support::slowness(), Ordering::SeqCst);
                looked = Instant::now();
            }
            sleep(Duration::from_millis(5));
        }
        last_seen
    }

    pub fn key_numbers(&self) -> Vec<usize> {
        let once = self
            .plan
            .contenders
            .iter()
            .flat_map(|contender| &contender.steps)
            .any(|step| step.keys == [ONCE_KEY]);
        (0..self.plan.keys)
            .chain(once.then_some(ONCE_KEY))
            .collect()
    }

    /// Collects the facts, once all locks are free.
    pub fn gather(&self, last_seen: &HashMap<u64, u64>) -> Facts {
        let can = lock(&self.arena.store).can;
        let mut left = Vec::new();
        // The entry of a waiter that was killed or cut off lapses after 15 s.
        let lapse = if self.arena.shared { 15 } else { 0 };
        let limit = self.plan.ttl
            + Duration::from_secs((can.handover_s + 5).max(lapse)) * support::slowness();
        if !support::eventually(limit, || procfs::tagged(self.tag).is_empty()) {
            left.extend(
                procfs::tagged(self.tag)
                    .into_iter()
                    .map(|stat| format!("a process: {stat:?}")),
            );
        }
        let keys: Vec<KeyEnd> = self
            .key_numbers()
            .into_iter()
            .map(|key| self.key_end(key, limit))
            .collect();
        let names: Vec<String> = self
            .key_numbers()
            .into_iter()
            .map(|key| self.key(key))
            .collect();
        let mut rest = Vec::new();
        // A server takes a moment to notice that a client is gone.
        support::eventually(limit, || {
            rest = if self.arena.shared {
                Vec::new()
            } else {
                lock(&self.arena.store).left(&names)
            };
            rest.is_empty()
        });
        left.extend(rest);
        let slow = self.slow.load(Ordering::SeqCst).max(support::slowness());
        Facts {
            calm: self.plan.faults.is_empty() && lock(&self.injected).is_empty(),
            fifo: self.plan.name == "fifo",
            can,
            ttl: u64::try_from(self.plan.ttl.as_nanos()).unwrap_or_default(),
            slow: u64::from(slow),
            runs: std::mem::take(&mut lock(&self.runs)),
            sections: sections(self.folder, last_seen),
            injected: std::mem::take(&mut lock(&self.injected)),
            keys,
            left,
            hung: std::mem::take(&mut lock(&self.hung)),
        }
    }

    /// Returns the store's records of a key, once it is free.
    fn key_end(&self, key: usize, limit: Duration) -> KeyEnd {
        let name = self.key(key);
        let ask = |what: &str| -> Value {
            let ended = self.arena.dlock(&[what, &name, "--json"]);
            serde_json::from_str(&ended.stdout)
                .unwrap_or_else(|_| Value::String(format!("{}{}", ended.stdout, ended.stderr)))
        };
        let mut state = Value::Null;
        support::eventually(limit, || {
            state = ask("inspect");
            let free = ["holders", "waiters"]
                .iter()
                .all(|field| state[field].as_array().is_some_and(Vec::is_empty));
            sleep(Duration::from_millis(if free { 0 } else { 300 }));
            free
        });
        KeyEnd {
            key,
            history: ask("history"),
            state,
        }
    }
}

fn text(task: &SectionTask) -> String {
    serde_json::to_string(task).expect("JSON")
}

fn new_group(command: &mut Command) {
    use std::os::unix::process::CommandExt as _;
    command.process_group(0);
}

/// Whether the child ends within this time. The child isn't reaped.
fn ended(pid: u32, limit: Duration) -> bool {
    let Some(pid) = Pid::from_raw(pid.cast_signed()) else {
        return true;
    };
    let Ok(fd) = pidfd_open(pid, PidfdFlags::empty()) else {
        return true;
    };
    let until = Instant::now() + limit;
    loop {
        let Ok(left) = Timespec::try_from(until.saturating_duration_since(Instant::now())) else {
            return false;
        };
        match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&left)) {
            Ok(0) => return false,
            Ok(_) => return true,
            Err(_) => {}
        }
    }
}
