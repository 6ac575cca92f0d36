//! dlock, the guardian, or both are killed or frozen.

use rustix::process::{Pid, Signal, kill_process_group};

use crate::{
    trials,
    world::{World, send, until},
};

trials!(
    dlock_killed_takes_the_tree_along,
    dlock_killed_before_the_start_takes_the_guardian_along,
    dlock_killed_is_bounded_by_the_lease,
    dlock_frozen_kills_in_time,
    guardian_killed_takes_the_tree_along,
    guardian_killed_idle_is_noticed,
    guardian_frozen_kills_in_time,
    guardian_frozen_is_noticed_when_the_lock_is_lost,
    guardian_frozen_as_the_lease_runs_out_kills_in_time,
    group_killed_leaves_nothing,
    group_terminated_does_not_stop_the_guardian,
    earlier_children_are_spared,
    earlier_children_do_not_hide_a_tree_that_keeps_forking,
);

/// Ignores TERM, and starts an orphaned daemon in its own session that also ignores TERM.
const DAEMONS: &str = "trap '' TERM; (setsid sh -c 'trap \"\" TERM; sleep TOKEN & sleep TOKEN' &); echo > DIR/ready; sleep TOKEN & sleep TOKEN";

fn started(instructions: &str) -> World {
    let mut world = World::new();
    world.start(instructions, DAEMONS);
    world.ready().await_processes(6);
    world
}

fn now() -> u64 {
    u64::try_from(dlock::lease::BootClock::read().since_boot().as_millis()).unwrap()
}

fn dlock_killed_takes_the_tree_along() {
    let mut world = started("");
    send(world.pid, Signal::KILL);
    let killed = now();
    assert_eq!(world.status(), 137);
    world.await_end();
    assert!(now() - killed >= 250, "the grace was too short");
}

fn dlock_killed_before_the_start_takes_the_guardian_along() {
    let mut world = World::new();
    world.start("wait=60000", "touch DIR/ran");
    world.guardian();
    send(world.pid, Signal::KILL);
    assert_eq!(world.status(), 137);
    world.await_end();
    assert!(!std::fs::exists(world.path("ran")).unwrap());
}

fn dlock_killed_is_bounded_by_the_lease() {
    let world = started("grace=60000 term=1500 kill=2000");
    send(world.pid, Signal::KILL);
    world.await_end();
}

fn dlock_frozen_kills_in_time() {
    let mut world = started("term=700 kill=1000 renew=100");
    send(world.pid, Signal::STOP);
    let frozen = now();
    until("the tree's death", || {
        world.alive().is_empty().then_some(())
    });
    let took = now() - frozen;
    assert!((500..1800).contains(&took), "{took} ms");
    send(world.pid, Signal::CONT);
    assert_eq!(world.status(), 76);
    assert!(world.event("Ended").1.contains("Deadline"));
    world.await_end();
}

fn guardian_killed_takes_the_tree_along() {
    let mut world = started("");
    send(world.guardian(), Signal::KILL);
    world.event("GuardianLost { frozen: false }");
    let (_, how) = world.event("Ended");
    assert!(
        how.contains("Guardian") && how.contains("Signalled(9)"),
        "{how}"
    );
    assert_eq!(world.alive(), [0; 0], "Ended was reported too early");
    assert_eq!(world.status(), 76);
    world.await_end();
}

fn guardian_killed_idle_is_noticed() {
    let mut world = World::new();
    world.start("wait=60000", "touch DIR/ran");
    send(world.guardian(), Signal::KILL);
    world.event("GuardianLost { frozen: false }");
    world.event("Ended(Ended { outcome: None, by_itself: false, stopped: Some(Guardian)");
    assert_eq!(world.status(), 70);
    world.await_end();
    assert!(!std::fs::exists(world.path("ran")).unwrap());
}

fn guardian_frozen_kills_in_time() {
    let mut world = started("term=700 kill=1000 renew=100");
    send(world.guardian(), Signal::STOP);
    let frozen = now();
    let (ended, how) = world.event("Ended");
    assert!(how.contains("Guardian"), "{how}");
    world.event("GuardianLost { frozen: true }");
    assert!(
        (500..2000).contains(&(ended - frozen)),
        "{} ms",
        ended - frozen
    );
    assert_eq!(world.alive(), [0; 0], "Ended was reported too early");
    assert_eq!(world.status(), 76);
    world.await_end();
}

fn guardian_frozen_is_noticed_when_the_lock_is_lost() {
    let mut world = started("after=1500:lost");
    send(world.guardian(), Signal::STOP);
    world.event("GuardianLost { frozen: true }");
    assert_eq!(world.status(), 76);
    world.await_end();
}

fn guardian_frozen_as_the_lease_runs_out_kills_in_time() {
    let mut world = started("term=1500 kill=2000");
    send(world.guardian(), Signal::STOP);
    world.event("GuardianLost { frozen: true }");
    assert_eq!(world.status(), 76);
    world.await_end();
}

fn group_killed_leaves_nothing() {
    let mut world = started("");
    kill_process_group(Pid::from_raw(world.pid).unwrap(), Signal::KILL).unwrap();
    assert_eq!(world.status(), 137);
    world.await_end();
}

fn group_terminated_does_not_stop_the_guardian() {
    let mut world = started("");
    for pid in world.supervisors() {
        for signal in [
            Signal::TERM,
            Signal::INT,
            Signal::HUP,
            Signal::QUIT,
            Signal::USR1,
            Signal::ALARM,
            Signal::PIPE,
        ] {
            if pid != world.pid {
                send(pid, signal);
            }
        }
    }
    send(world.pid, Signal::KILL);
    assert_eq!(world.status(), 137);
    world.await_end();
}

fn earlier_children_are_spared() {
    let mut world = World::new();
    let before = World::new();
    let script = format!("sleep {} & exec \"$@\"", before.token);
    world.start_behind(&["sh", "-c", &script, "sh"], "", &["sh", "-c", DAEMONS]);
    world.ready().await_processes(6);
    send(world.guardian(), Signal::KILL);
    assert_eq!(world.status(), 76);
    world.await_end();
    assert_eq!(
        before.alive().len(),
        1,
        "a child from before dlock was killed"
    );
}

/// The tree changes during each scan, and `waitpid` can't tell whether it is empty, because there
/// are other children.
fn earlier_children_do_not_hide_a_tree_that_keeps_forking() {
    for _ in 0..3 {
        let mut world = World::new();
        let before = World::new();
        let hare = "trap '' TERM; n=$1; [ $n -gt 0 ] || exit 0; setsid sh \"$0\" $((n-1)) TOKEN & setsid sh \"$0\" 0 & exit 0";
        std::fs::write(world.path("hare"), hare.replace("TOKEN", &world.token)).unwrap();
        let script = format!("sleep {} & exec \"$@\"", before.token);
        let hares = "for i in 1 2 3; do setsid sh DIR/hare 100000 TOKEN & done; echo > DIR/ready; sleep TOKEN";
        world.start_behind(
            &["sh", "-c", &script, "sh"],
            "grace=0",
            &["sh", "-c", hares],
        );
        world.ready();
        send(world.guardian(), Signal::KILL);
        world.event("Ended");
        assert_eq!(world.alive(), [0; 0], "Ended was reported too early");
        assert_eq!(world.status(), 76);
        world.await_end();
        assert_eq!(
            before.alive().len(),
            1,
            "a child from before dlock was killed"
        );
    }
}
