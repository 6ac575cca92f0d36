//! A whole process around `true`: wall time, CPU time and memory.

use std::{process::Command, time::Instant};

use crate::{
    lockers::Stores,
    table::{Table, median, turns},
};

const ROUNDS: usize = 300;
const FLOOR: &str = "to floor: to the least program that takes this store's lock, runs the command and gives the lock back, without renewing or killing anything";

/// The cost of one process.
struct Cost {
    wall_ms: f64,
    cpu_ms: f64,
    /// Of the largest process in the tree, or of this program, which counts between fork and exec.
    rss_mib: f64,
}

pub fn run(stores: &Stores) -> Vec<Table> {
    let lockers = &stores.lockers;
    let mut costs: Vec<Vec<Cost>> = lockers.iter().map(|_| Vec::new()).collect();
    for round in 0..ROUNDS + 10 {
        for n in turns(lockers.len(), round) {
            let cost = one(stores.command(&lockers[n], "bench", false, &["true"]));
            // The first rounds fill caches and create the database.
            if round >= 10 {
                costs[n].push(cost);
            }
        }
    }
    let of = |costs: &[Cost], what: fn(&Cost) -> f64| {
        median(&mut costs.iter().map(what).collect::<Vec<_>>())
    };
    let wall: Vec<_> = costs
        .iter()
        .map(|costs| of(costs, |cost| cost.wall_ms))
        .collect();
    let ratio = |n: usize, to: Option<usize>| {
        to.map_or_else(|| "-".into(), |to| format!("{:.2}", wall[n].0 / wall[to].0))
    };
    let rows: Vec<_> = lockers
        .iter()
        .enumerate()
        .map(|(n, locker)| {
            vec![
                locker.name.clone(),
                format!("{:.2}", wall[n].0),
                format!("{:.2}", wall[n].1),
                ratio(n, lockers.iter().position(|other| other.name == "flock")),
                ratio(
                    n,
                    lockers.iter().position(|other| other.is_floor_of(locker)),
                ),
                format!("{:.2}", of(&costs[n], |cost| cost.cpu_ms).0),
                format!("{:.1}", of(&costs[n], |cost| cost.rss_mib).0),
            ]
        })
        .collect();
    let title = format!("A whole process around `true`, median of {ROUNDS}, in turns");
    vec![Table::new(
        title,
        &[
            "",
            "wall ms",
            "95 %",
            "to flock",
            "to floor",
            "CPU ms",
            "peak RSS MiB",
        ],
        rows,
        FLOOR,
    )]
}

/// Runs a command to its end.
fn one(mut command: Command) -> Cost {
    let began = Instant::now();
    let child = command
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (status, usage) = wait4(child.id());
    let wall_ms = began.elapsed().as_secs_f64() * 1e3;
    assert_eq!(status, 0, "{command:?}");
    let ms = |time: libc::timeval| time.tv_sec as f64 * 1e3 + time.tv_usec as f64 / 1e3;
    Cost {
        wall_ms,
        cpu_ms: ms(usage.ru_utime) + ms(usage.ru_stime),
        rss_mib: usage.ru_maxrss as f64 / 1024.0,
    }
}

/// Waits for a child, and returns its status and the usage of its tree: std returns only the
/// status.
fn wait4(pid: u32) -> (i32, libc::rusage) {
    let mut status = 0;
    // Both are plain data that the kernel fills in, and all zeros is a valid value of each.
    #[allow(unsafe_code)]
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(
            libc::wait4(pid.cast_signed(), &raw mut status, 0, &raw mut usage),
            pid.cast_signed()
        );
        usage
    };
    (status, usage)
}
