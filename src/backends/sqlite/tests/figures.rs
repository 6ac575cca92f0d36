//! Figures, for people: `cargo test --release --lib sqlite::tests::figures -- --ignored --nocapture`.
#![allow(clippy::print_stdout)]

use super::{processes::Other, *};

fn median(mut of: Vec<Duration>) -> Duration {
    of.sort();
    of[of.len() / 2]
}

#[tokio::test]
#[ignore = "measures, proves nothing"]
async fn steps_of_an_uncontended_run() {
    let (_keep, path) = place();
    backend(&path).init().await.unwrap();
    let mut steps: [Vec<Duration>; 4] = Default::default();
    for _ in 0..500 {
        let start = Instant::now();
        let mut a = backend(&path);
        a.prepare().unwrap();
        let prepared = Instant::now();
        let held = request("job");
        super::super::opened(&mut a.store, &path).await.unwrap();
        let opened = Instant::now();
        granted(&mut a, &held).await;
        let acquired = Instant::now();
        release(&mut a, &held).await;
        let done = Instant::now();
        // Closed as a process's end would: the next one has to recover the log.
        a.store.take().unwrap().close();
        tokio::time::sleep(Duration::from_millis(1)).await;
        for (step, took) in steps.iter_mut().zip([prepared - start, opened - prepared, acquired - opened, done - acquired]) {
            step.push(took);
        }
    }
    let [prepare, open, acquire, release] = steps.map(median);
    println!("prepare {prepare:?}  open {open:?}  acquire {acquire:?}  release {release:?}");
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
            all.iter_mut().for_each(|one| assert_eq!(one.says(), "ready"));
            std::thread::sleep(Duration::from_millis(50));
            let start = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
            runtime.block_on(release(&mut a, &held));
            let last = all.iter_mut().map(|one| one.says().parse::<i64>().unwrap()).max().unwrap();
            per_hand_over.push(Duration::from_nanos(u64::try_from(last - start.tv_sec * 1_000_000_000 - start.tv_nsec).unwrap()));
        }
        println!("{waiters} waiting: the last had it {:?} after the release", median(per_hand_over));
    }
}
