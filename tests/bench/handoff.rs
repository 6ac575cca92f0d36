//! From the end of one holder's command to the start of the next one's, with one waiter.

use std::{fs, thread, time::Duration};

use crate::{
    child,
    lockers::{Locker, Stores},
    table::{self, median},
};

const ROUNDS: usize = 40;

pub fn run(stores: &Stores) {
    let lockers = stores.waiting();
    let mut gaps: Vec<Vec<f64>> = lockers.iter().map(|_| Vec::new()).collect();
    for round in 0..ROUNDS {
        for (locker, gaps) in lockers.iter().zip(&mut gaps) {
            // On a busy machine the second can be the first to have the lock, whose turn then was no hand-off.
            gaps.push((0..20).find_map(|_| one(stores, locker, round)).unwrap_or_else(|| panic!("{} starts too slowly", locker.name)));
        }
    }
    let flock = median(&mut gaps[0]).0;
    let rows: Vec<_> = lockers
        .iter()
        .zip(&mut gaps)
        .map(|(locker, gaps)| {
            let (middle, late) = median(gaps);
            vec![locker.name.clone(), format!("{middle:.2}"), format!("{late:.2}"), format!("{:.2}", middle / flock)]
        })
        .collect();
    table::print(&format!("Hand-off with one waiter, median of {ROUNDS}, in turns"), &["", "ms", "95 %", "to flock"], &rows);
}

fn one(stores: &Stores, locker: &Locker, round: usize) -> Option<f64> {
    let key = format!("handoff-{round}");
    let me = stores.me.to_str().expect("UTF-8");
    let file = |who: &str| stores.folder.path().join(format!("{key}-{who}"));
    let run = |who: &str, ms: &str| {
        let stamp = file(who);
        let words = [me, "child", "stamp", stamp.to_str().expect("UTF-8"), ms];
        stores.command(locker, &key, true, &words).spawn().expect("a process")
    };
    let mut first = run("first", "120");
    thread::sleep(Duration::from_millis(50));
    let mut second = run("second", "0");
    assert!(first.wait().expect("wait").success() && second.wait().expect("wait").success(), "{}", locker.name);
    let read = |who: &str| child::read(&file(who)).expect("a stamp");
    let (first, second) = (read("first"), read("second"));
    for who in ["first", "second"] {
        let _ = fs::remove_file(file(who));
    }
    if second.1 <= first.0 {
        return None;
    }
    Some(second.0.checked_sub(first.1).expect("no overlap") as f64 / 1e6)
}
