//! The time from the end of one holder's command to the start of the next one's, with one waiter.

use std::{fs, thread, time::Duration};

use crate::{
    child,
    lockers::{Locker, Stores},
    table::{Table, median, turns},
};

const ROUNDS: usize = 80;

pub fn run(stores: &Stores) -> Vec<Table> {
    let lockers = stores.waiting();
    let mut gaps: Vec<Vec<f64>> = lockers.iter().map(|_| Vec::new()).collect();
    for round in 0..ROUNDS {
        for n in turns(lockers.len(), round) {
            // On a busy machine the second process may get the lock first. Then there was no
            // hand-over to a waiter.
            gaps[n].push(
                (0..10)
                    .find_map(|again| one(stores, lockers[n], &format!("handover-{round}-{again}")))
                    .expect("a hand-over"),
            );
        }
    }
    let flock = median(&mut gaps[0]).0;
    let rows: Vec<_> = lockers
        .iter()
        .zip(&mut gaps)
        .map(|(locker, gaps)| {
            let (middle, late) = median(gaps);
            vec![
                locker.name.clone(),
                format!("{middle:.2}"),
                format!("{late:.2}"),
                format!("{:.2}", middle / flock),
            ]
        })
        .collect();
    vec![Table::new(
        format!("Hand-over with one waiter, median of {ROUNDS}, in turns"),
        &["", "ms", "95 %", "to flock"],
        rows,
        "",
    )]
}

fn one(stores: &Stores, locker: &Locker, key: &str) -> Option<f64> {
    let me = stores.me.to_str().expect("UTF-8");
    let file = |who: &str| stores.folder.path().join(format!("{key}-{who}"));
    let run = |who: &str, ms: &str| {
        let stamp = file(who);
        let words = [me, "child", "stamp", stamp.to_str().expect("UTF-8"), ms];
        stores
            .command(locker, key, true, &words)
            .spawn()
            .expect("a process")
    };
    let mut first = run("first", "120");
    thread::sleep(Duration::from_millis(50));
    let mut second = run("second", "0");
    assert!(
        first.wait().expect("wait").success() && second.wait().expect("wait").success(),
        "{}",
        locker.name
    );
    let read = |who: &str| child::read(&file(who)).expect("a stamp");
    let (first, second) = (read("first"), read("second"));
    assert!(
        first.1 <= second.0 || second.1 <= first.0,
        "{}: two at once",
        locker.name
    );
    for who in ["first", "second"] {
        let _ = fs::remove_file(file(who));
    }
    second.0.checked_sub(first.1).map(|gap| gap as f64 / 1e6)
}
