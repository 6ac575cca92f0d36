//! Descendants that outlive the command, and forwarded signals.

use rustix::process::Signal;

use crate::{
    trials,
    world::{World, send},
};

trials!(
    a_daemon_is_waited_for,
    leftovers_are_killed_on_request,
    leftovers_are_left_on_request,
    a_stopped_tree_is_not_left,
    term_reaches_the_whole_group_and_usr1_only_the_command,
    term_reaches_leftovers,
    an_ignored_signal_stays_ignored,
);

fn a_daemon_is_waited_for() {
    let mut world = World::new();
    world.start(
        "",
        "(setsid sh -c 'sleep 0.7; echo > DIR/done; : TOKEN' &); exit 6",
    );
    let (noticed, pids) = world.event("Leftover");
    assert!(pids.contains(char::is_numeric), "{pids}");
    assert_eq!(world.status(), 6);
    assert!(std::fs::exists(world.path("done")).unwrap());
    assert!(world.event("Ended").0 - noticed >= 400);
    world.await_end();
}

fn leftovers_are_killed_on_request() {
    let mut world = World::new();
    let script = "(setsid sh -c 'trap \"echo > DIR/term\" TERM; echo > DIR/up; while :; do sleep 0.01; done; : TOKEN' &); while ! [ -e DIR/up ]; do sleep 0.01; done; exit 6";
    world.start("leftover=kill", script);
    let (_, how) = world.event("Ended");
    assert!(
        how.contains("Exited(6)")
            && how.contains("Some(Leftover)")
            && how.contains("leftover_left: false"),
        "{how}"
    );
    world.file("term");
    world.await_end();
}

fn leftovers_are_left_on_request() {
    let mut world = World::new();
    world.start("leftover=leave", "(setsid sleep TOKEN &); exit 6");
    assert_eq!(world.status(), 6);
    assert!(world.event("Ended").1.contains("leftover_left: true"));
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(world.alive().len(), 1, "the leftover was killed");
    assert!(world.supervisors().is_empty());
}

fn a_stopped_tree_is_not_left() {
    let mut world = World::new();
    world.start(
        "leftover=leave after=400:stop",
        "(trap '' TERM; setsid sleep TOKEN &) ; echo > DIR/ready; sleep TOKEN",
    );
    let (_, how) = world.ready().event("Ended");
    assert!(
        how.contains("Some(Stop)") && how.contains("leftover_left: false"),
        "{how}"
    );
    world.await_end();
}

fn term_reaches_the_whole_group_and_usr1_only_the_command() {
    let mut world = World::new();
    let inner = "trap 'echo in-usr1 >> DIR/signals' USR1; trap 'echo in-term >> DIR/signals; exit' TERM; echo > DIR/inner; while :; do sleep 0.01; done";
    let outer = "trap 'echo usr1 >> DIR/signals; echo > DIR/got' USR1; trap 'echo term >> DIR/signals' TERM; sh -c \"$0\" & \
                 while ! [ -e DIR/inner ]; do sleep 0.01; done; echo > DIR/ready; wait; wait; : TOKEN";
    let inner = inner.replace("DIR", world.directory.path().to_str().unwrap());
    world.start_behind(&[], "", &["sh", "-c", outer, &inner]);
    world.ready();
    send(world.pid, Signal::USR1);
    world.file("got");
    send(world.pid, Signal::TERM);
    world.status();
    let signals = world.file("signals");
    let mut signals: Vec<&str> = signals.lines().collect();
    signals.sort_unstable();
    assert_eq!(signals, ["in-term", "term", "usr1"]);
    assert!(world.event("Ended").1.contains("stopped: None"));
    world.await_end();
}

fn term_reaches_leftovers() {
    let mut world = World::new();
    world.start("", "(setsid sleep TOKEN &); exit 6");
    world.event("Leftover");
    send(world.pid, Signal::TERM);
    assert_eq!(world.status(), 6);
    world.await_end();
}

fn an_ignored_signal_stays_ignored() {
    let mut world = World::new();
    world.start_behind(
        &["sh", "-c", "trap '' HUP; exec \"$@\"", "sh"],
        "",
        &["sh", "-c", "echo > DIR/ready; sleep 0.6; exit 8; : TOKEN"],
    );
    world.ready();
    send(world.pid, Signal::HUP);
    send(world.guardian(), Signal::HUP);
    assert_eq!(world.status(), 8);
    assert!(world.when("Signal").is_none(), "{:?}", world.log());
}
