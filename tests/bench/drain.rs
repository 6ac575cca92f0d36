//! How long twenty waiters take to run once the holder ends, and the resources they need while they
//! wait.

use std::{
    fs,
    path::PathBuf,
    process::Child,
    thread,
    time::{Duration, Instant},
};

use crate::{
    child,
    lockers::{Locker, Stores},
    support::procfs,
    table::{Table, median, turns},
};

const ROUNDS: usize = 5;
const WAITERS: usize = 20;

pub fn run(stores: &Stores) -> Vec<Table> {
    let mut rows = Vec::new();
    let lockers = stores.waiting();
    let mut times: Vec<Vec<f64>> = lockers.iter().map(|_| Vec::new()).collect();
    let mut sizes = times.clone();
    for round in 0..ROUNDS {
        for n in turns(lockers.len(), round) {
            let queue = Queue::gather(stores, lockers[n], &format!("drain-{round}"), WAITERS);
            sizes[n].push(queue.kib_per_waiter() / 1024.0);
            times[n].push(queue.drain());
        }
    }
    for (n, locker) in lockers.iter().enumerate() {
        let ((whole, _), (size, _)) = (median(&mut times[n]), median(&mut sizes[n]));
        let each = whole / WAITERS as f64;
        rows.push(vec![
            locker.name.clone(),
            format!("{whole:.1}"),
            format!("{each:.2}"),
            format!("{size:.2}"),
        ]);
    }
    let title = format!("{WAITERS} waiters drained, median of {ROUNDS}, in turns");
    let note = "MiB per waiter: anonymous memory of all processes of a waiting one, pages of the binary not counted";
    vec![Table::new(
        title,
        &["", "ms", "each", "MiB per waiter"],
        rows,
        note,
    )]
}

/// A holder that ends on request, and processes that wait for its lock.
pub struct Queue {
    folder: PathBuf,
    key: String,
    holder: Child,
    waiters: Vec<Child>,
    exclusive: bool,
}

/// The lock modes of the first holder and of the waiters.
#[derive(Clone, Copy)]
pub struct Kind {
    pub name: &'static str,
    pub holder: &'static [&'static str],
    pub waiters: &'static [&'static str],
    /// Whether each waiter needs the lock exclusively.
    pub exclusive: bool,
}

/// Exclusive and unordered.
pub const EXCLUSIVE: Kind = Kind {
    name: "exclusive",
    holder: &[],
    waiters: &[],
    exclusive: true,
};

impl Queue {
    pub fn gather(stores: &Stores, locker: &Locker, key: &str, size: usize) -> Self {
        Self::gather_as(stores, locker, EXCLUSIVE, key, size)
    }

    /// Like [`Queue::gather`], with these lock modes.
    pub fn gather_as(stores: &Stores, locker: &Locker, kind: Kind, key: &str, size: usize) -> Self {
        let folder = stores.folder.path().join(format!("{key}-{}", locker.name));
        fs::create_dir_all(&folder).expect("a folder");
        let me = stores.me.to_str().expect("UTF-8");
        let (gate, stamp) = (folder.join("gate"), folder.join("holder"));
        let words = [
            me,
            "child",
            "end-with",
            gate.to_str().expect("UTF-8"),
            stamp.to_str().expect("UTF-8"),
        ];
        let holder = stores
            .command_with(locker, kind.holder, key, true, &words)
            .spawn()
            .expect("the holder");
        thread::sleep(Duration::from_millis(100));
        let waiters = (0..size).map(|n| {
            let stamp = folder.join(n.to_string());
            let words = [me, "child", "stamp", stamp.to_str().expect("UTF-8"), "0"];
            stores
                .command_with(locker, kind.waiters, key, true, &words)
                .spawn()
                .expect("a waiter")
        });
        let waiters: Vec<_> = waiters.collect();
        await_idle();
        Self {
            folder,
            key: key.into(),
            holder,
            waiters,
            exclusive: kind.exclusive,
        }
    }

    /// Lets the holder end, and returns the ms until the last waiter's command has started.
    pub fn drain(mut self) -> f64 {
        fs::write(self.folder.join("gate"), "").expect("the gate");
        let until = Instant::now() + Duration::from_secs(60);
        for waiter in &mut self.waiters {
            while waiter.try_wait().expect("wait").is_none() {
                assert!(
                    Instant::now() < until,
                    "a waiter for {} did not run",
                    self.key
                );
                thread::sleep(Duration::from_millis(1));
            }
        }
        self.holder.wait().expect("wait");
        let stamp = |name: &str| {
            child::read(&self.folder.join(name))
                .unwrap_or_else(|| panic!("{} has no stamp of {name}", self.key))
        };
        let ended = stamp("holder").1;
        let mut turns: Vec<_> = (0..self.waiters.len())
            .map(|n| stamp(&n.to_string()))
            .collect();
        turns.sort_unstable();
        let apart = !self.exclusive || turns.windows(2).all(|two| two[0].1 <= two[1].0);
        assert!(
            apart && turns[0].0 >= ended,
            "two held {} at once",
            self.key
        );
        (turns.last().expect("a waiter").0 - ended) as f64 / 1e6
    }

    /// Returns the mean private memory of a waiter and its children.
    fn kib_per_waiter(&self) -> f64 {
        let mut total = 0;
        for waiter in &self.waiters {
            let below = procfs::descendants(waiter.id());
            total += below
                .iter()
                .map(|stat| stat.pid)
                .chain([waiter.id()])
                .map(anonymous_kib)
                .sum::<u64>();
        }
        total as f64 / self.waiters.len() as f64
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        for child in self.waiters.iter_mut().chain([&mut self.holder]) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Waits until the waiters and their servers use almost no CPU.
fn await_idle() {
    let until = Instant::now() + Duration::from_secs(120);
    loop {
        let before = busy_ticks();
        thread::sleep(Duration::from_millis(500));
        // Of 50 ticks per processor.
        if busy_ticks() - before <= 5 || Instant::now() > until {
            return;
        }
    }
}

/// Returns the CPU time that the processors have spent since boot, in hundredths of a second.
fn busy_ticks() -> u64 {
    let text = fs::read_to_string("/proc/stat").expect("/proc/stat");
    let ticks = text
        .lines()
        .next()
        .expect("a line")
        .split_whitespace()
        .skip(1)
        .map(|field| field.parse::<u64>().unwrap_or_default());
    // User, nice and system. The next field is idle, which includes waiting for disks.
    ticks.take(3).sum()
}

fn anonymous_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let anonymous = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    anonymous
        .and_then(|text| text.trim().strip_suffix(" kB")?.parse().ok())
        .unwrap_or_default()
}
