//! Figures, for people: `cargo test --release --lib sqlite::tests::figures -- --ignored --nocapture`.
#![allow(clippy::print_stdout)]

use super::{processes::Other, *};

fn median(mut of: Vec<Duration>) -> Duration {
    of.sort();
    of[of.len() / 2]
}

/// One run in this process, as `dlock run` does it, and how long its steps took.
pub(super) async fn steps(path: &Path) -> Vec<u128> {
    let start = Instant::now();
    let mut a = backend(path);
    a.prepare().unwrap();
    let prepared = Instant::now();
    let held = request("job");
    super::super::opened(&mut a.store, path).await.unwrap();
    let opened = Instant::now();
    granted(&mut a, &held).await;
    let acquired = Instant::now();
    release(&mut a, &held).await;
    let done = Instant::now();
    [prepared - start, opened - prepared, acquired - opened, done - acquired].iter().map(Duration::as_micros).collect()
}

#[test]
#[ignore = "measures, proves nothing"]
fn steps_of_an_uncontended_run() {
    let (_keep, path) = place();
    let mut all: [Vec<Duration>; 4] = Default::default();
    for _ in 0..300 {
        let mut one = Other::start(&format!("steps|{}", path.display()));
        let said = one.says();
        for (step, took) in all.iter_mut().zip(said.split(' ')) {
            step.push(Duration::from_micros(took.parse().unwrap()));
        }
        drop(one);
    }
    let worst = all.iter().map(|step| *step.iter().max().unwrap()).collect::<Vec<_>>();
    let [prepare, open, acquire, release] = all.map(median);
    println!("prepare {prepare:?}  open {open:?}  acquire {acquire:?}  release {release:?}  worst {worst:?}");
}

#[test]
#[ignore = "measures, proves nothing"]
fn hand_overs() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for waiters in [1_u32, 20] {
        let mut per_hand_over = Vec::new();
        for _ in 0..20 {
            let (_keep, path) = place();
            let mut a = backend(&path);
            let held = request("job");
            runtime.block_on(granted(&mut a, &held));
            let mut all: Vec<_> = (0..waiters).map(|_| Other::start(&format!("drain|{}", path.display()))).collect();
            for one in &mut all {
                assert_eq!(one.says(), "ready");
            }
            std::thread::sleep(Duration::from_millis(50));
            let start = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
            runtime.block_on(release(&mut a, &held));
            let last = all.iter_mut().map(|one| one.says().parse::<i64>().unwrap()).max().unwrap();
            per_hand_over.push(Duration::from_nanos(u64::try_from(last - start.tv_sec * 1_000_000_000 - start.tv_nsec).unwrap()));
        }
        println!("{waiters} waiting: the last had it {:?} after the release", median(per_hand_over));
    }
}
