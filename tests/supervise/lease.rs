//! The lease expires or is lost: the command must be dead by then.

use rustix::process::Signal;

use crate::{
    trials,
    world::{World, send, until},
};

trials!(
    without_renewal_term_comes_and_kill_follows,
    renewals_keep_the_command_alive,
    no_renewal_cancels_a_stop_after_term,
    a_command_that_ends_on_term_gets_no_kill,
    a_stopped_command_is_woken_to_act_on_term,
    lost_kills_at_once,
    another_signal_replaces_term,
    continue_survives_deadline_and_loss_but_not_dlock,
    stop_gives_the_grace,
    an_orderly_stop_is_bounded_by_a_lease_that_is_not_renewed,
    leftovers_die_with_the_lease,
    a_tree_that_keeps_forking_is_caught,
    a_lifeline_outlives_dlock_and_not_the_tree,
    a_lifeline_is_cut_when_the_lease_ran_out_with_dlock_stopped,
);

/// Ignores TERM and records it.
const STUBBORN: &str = "trap 'echo term >> DIR/signals' TERM; echo $$ > DIR/ready; while :; do sleep TOKEN & wait; done";

fn without_renewal_term_comes_and_kill_follows() {
    let mut world = World::new();
    world.start("term=400 kill=800", STUBBORN);
    let (started, _) = world.ready().event("Started");
    let (ended, how) = world.event("Ended");
    assert!(
        how.contains("Signalled(9)") && how.contains("Deadline"),
        "{how}"
    );
    assert_eq!(world.file("signals"), "term\n");
    let (termed, _) = world.event("DeadlineTerm");
    assert!(
        (250..700).contains(&(termed - started)),
        "TERM after {} ms",
        termed - started
    );
    assert!(
        (650..1500).contains(&(ended - started)),
        "ended after {} ms",
        ended - started
    );
    assert_eq!(world.status(), 76);
    world.await_end();
}

fn renewals_keep_the_command_alive() {
    let mut world = World::new();
    world.start("term=500 kill=800 renew=80", "sleep 1.5; exit 3");
    assert_eq!(world.status(), 3, "{:?}", world.log());
}

fn no_renewal_cancels_a_stop_after_term() {
    let mut world = World::new();
    world.start("term=300 kill=700 after=450:extend", STUBBORN);
    let (started, _) = world.ready().event("Started");
    let (ended, _) = world.event("Ended");
    assert!(
        ended - started < 1100,
        "the renewal moved KILL to {} ms",
        ended - started
    );
    assert_eq!(world.status(), 76);
}

fn a_command_that_ends_on_term_gets_no_kill() {
    let mut world = World::new();
    world.start(
        "term=300 kill=60000",
        "trap 'exit 5' TERM; echo > DIR/ready; sleep TOKEN & wait",
    );
    let (_, how) = world.ready().event("Ended");
    assert!(
        how.contains("Exited(5)") && how.contains("Deadline"),
        "{how}"
    );
    assert_eq!(world.status(), 76);
    world.await_end();
}

fn a_stopped_command_is_woken_to_act_on_term() {
    let mut world = World::new();
    world.start("term=500 kill=60000", "trap 'echo woken > DIR/woken; exit' TERM; echo $$ > DIR/ready; while :; do sleep 0.01; done");
    let pid = world.ready().file("ready").trim().parse().unwrap();
    send(pid, Signal::STOP);
    assert_eq!(world.status(), 76);
    world.file("woken");
    world.await_end();
}

fn lost_kills_at_once() {
    let mut world = World::new();
    world.start("grace=60000 after=400:lost", STUBBORN);
    let (started, _) = world.ready().event("Started");
    let (ended, how) = world.event("Ended");
    assert!(
        how.contains("Lost") && how.contains("Signalled(9)"),
        "{how}"
    );
    assert!(ended - started < 1200, "{} ms", ended - started);
    assert!(world.when("DeadlineTerm").is_none());
    assert!(
        std::fs::read(world.path("signals")).is_err(),
        "TERM came before KILL"
    );
    assert_eq!(world.status(), 76);
    world.await_end();
}

fn another_signal_replaces_term() {
    let mut world = World::new();
    let script = "trap 'echo term >> DIR/signals' TERM; trap 'echo usr1 >> DIR/signals' USR1; echo > DIR/ready; while :; do sleep 0.01; done; : TOKEN";
    world.start("on_lost=10 term=400 kill=800", script);
    assert_eq!(world.status(), 76);
    assert_eq!(world.file("signals"), "usr1\n");
    world.await_end();
}

fn continue_survives_deadline_and_loss_but_not_dlock() {
    let mut world = World::new();
    world.start(
        "on_lost=continue grace=200 term=200 kill=300 after=400:lost",
        STUBBORN,
    );
    let (started, _) = world.ready().event("Started");
    until("more than the lease", || {
        (dlock::lease::BootClock::read().since_boot().as_millis() > u128::from(started) + 900)
            .then_some(())
    });
    assert!(!world.alive().is_empty());
    assert!(world.when("DeadlineTerm").is_none() && world.when("Ended").is_none());
    send(world.pid, Signal::KILL);
    world.await_end();
    assert_eq!(
        world.file("signals"),
        "term\n",
        "the grace applies after dlock's death"
    );
}

fn stop_gives_the_grace() {
    let mut world = World::new();
    world.start(
        "grace=500 after=300:stop term=2000 kill=3000 renew=100",
        STUBBORN,
    );
    let (started, _) = world.ready().event("Started");
    let (ended, how) = world.event("Ended");
    assert!(
        how.contains("Stop") && how.contains("Signalled(9)"),
        "{how}"
    );
    assert!(
        (700..1700).contains(&(ended - started)),
        "{} ms",
        ended - started
    );
    assert_eq!(world.file("signals"), "term\n");
}

fn an_orderly_stop_is_bounded_by_a_lease_that_is_not_renewed() {
    let mut world = World::new();
    world.start("grace=60000 after=100:stop term=400 kill=700", STUBBORN);
    let (_, how) = world.ready().event("Ended");
    assert!(how.contains("Stop"), "{how}");
    world.event("DeadlineTerm");
    world.await_end();
}

fn leftovers_die_with_the_lease() {
    let mut world = World::new();
    world.start(
        "term=500 kill=700",
        "(trap '' TERM; setsid sleep TOKEN) & exit 4",
    );
    world.event("Leftover");
    let (_, how) = world.event("Ended");
    assert!(
        how.contains("Exited(4)") && how.contains("Deadline"),
        "{how}"
    );
    assert_eq!(world.status(), 76);
    world.await_end();
}

fn a_tree_that_keeps_forking_is_caught() {
    let mut world = World::new();
    // Every process replaces itself by a new one in a new session, repeatedly.
    let hare = "trap '' TERM; n=$1; [ $n -gt 0 ] || exit 0; setsid sh \"$0\" $((n-1)) TOKEN & setsid sh \"$0\" 0 & exit 0";
    std::fs::write(world.path("hare"), hare.replace("TOKEN", &world.token)).unwrap();
    world.start(
        "after=500:lost",
        "for i in 1 2 3; do setsid sh DIR/hare 100000 TOKEN & done; echo > DIR/ready; sleep TOKEN",
    );
    world.ready();
    let (_, how) = world.event("Ended");
    assert!(how.contains("Lost"), "{how}");
    world.await_end();
}

/// Starts the command with a lifeline, and returns the test's end of it.
fn with_lifeline(world: &mut World, instructions: &str) -> std::net::TcpStream {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    world.start(
        &format!(
            "lifeline={} {instructions}",
            listener.local_addr().unwrap().port()
        ),
        STUBBORN,
    );
    let line = listener.accept().unwrap().0;
    world.ready();
    line
}

/// Waits until the other end is closed, and returns the processes alive at that moment.
fn alive_at_the_end(world: &World, mut line: &std::net::TcpStream) -> Vec<i32> {
    use std::io::Read as _;
    line.set_read_timeout(Some(std::time::Duration::from_secs(20)))
        .unwrap();
    assert_eq!(line.read(&mut [0]).unwrap(), 0, "closed");
    world.alive()
}

fn a_lifeline_outlives_dlock_and_not_the_tree() {
    let mut world = World::new();
    let line = with_lifeline(&mut world, "grace=400");
    send(world.pid, Signal::KILL);
    let alive = alive_at_the_end(&world, &line);
    assert!(alive.is_empty(), "{alive:?} are alive without the lock");
    assert_eq!(world.file("signals"), "term\n");
}

fn a_lifeline_is_cut_when_the_lease_ran_out_with_dlock_stopped() {
    let mut world = World::new();
    let line = with_lifeline(&mut world, "term=400 kill=800");
    send(world.pid, Signal::STOP);
    let alive = alive_at_the_end(&world, &line);
    assert!(alive.is_empty(), "{alive:?} are alive without the lock");
    send(world.pid, Signal::CONT);
    assert_eq!(world.status(), 76);
}
