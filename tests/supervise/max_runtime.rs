//! `--max-runtime`: the guardian alone, then the real binary on SQLite.

use std::{
    fs,
    process::{Child, Command, Stdio},
    thread::sleep,
    time::Duration,
};

use rustix::process::Signal;
use serde_json::Value;

use crate::{
    trials,
    world::{World, send, stat, until},
};

trials!(
    max_runtime_stops_the_tree,
    a_command_that_ends_in_time_is_not_stopped,
    leftovers_have_no_more_time_than_the_command,
    a_frozen_guardian_gives_no_more_time,
    an_earlier_lease_end_comes_first,
    a_timed_out_run_has_status_124_and_a_reason_in_the_history,
    the_lock_is_kept_until_the_tree_is_dead,
    a_stopped_dlock_gives_no_more_time,
    the_inner_run_has_a_limit_of_its_own,
    the_outer_limit_stops_the_inner_run,
);

/// A script that ignores TERM.
const STUBBORN: &str =
    "trap 'echo > DIR/term' TERM; echo > DIR/ready; while :; do sleep 0.01; done; : TOKEN";

fn max_runtime_stops_the_tree() {
    let mut world = World::new();
    world.start(
        "max=400 grace=300",
        &format!("(setsid sleep TOKEN &); {STUBBORN}"),
    );
    let ((ordered, _), (started, _)) = (world.event("Guardian"), world.event("Started"));
    let (over, _) = world.event("TimeUp");
    let (ended, how) = world.event("Ended");
    assert!(
        how.contains("Some(Signalled(9))") && how.contains("Some(TimeUp)"),
        "{how}"
    );
    assert!(
        over - ordered >= 400 && over - started < 2000 && ended - over >= 290,
        "{:?}",
        world.log()
    );
    world.file("term");
    world.status();
    world.await_end();
}

fn a_command_that_ends_in_time_is_not_stopped() {
    let mut world = World::new();
    world.start("max=20000", "sleep 0.2; exit 6");
    assert_eq!(world.status(), 6);
    assert!(world.when("TimeUp").is_none() && world.event("Ended").1.contains("stopped: None"));
}

fn leftovers_have_no_more_time_than_the_command() {
    let mut world = World::new();
    world.start("max=700", "(setsid sleep TOKEN &); exit 6");
    world.event("Leftover");
    let (_, how) = world.event("Ended");
    assert!(
        how.contains("Some(Exited(6))") && how.contains("Some(TimeUp)"),
        "{how}"
    );
    world.status();
    world.await_end();
}

fn a_frozen_guardian_gives_no_more_time() {
    let mut world = World::new();
    world.start("max=900 grace=300", STUBBORN);
    world.ready();
    let guardian = world.guardian();
    send(guardian, Signal::STOP);
    let (lost, how) = world.event("GuardianLost");
    assert!(how.contains("frozen: true"), "{how}");
    let started = world.event("Started").0;
    assert!(
        (1_150..6_000).contains(&(lost - started)),
        "{:?}",
        world.log()
    );
    world.file("term");
    world.status();
    world.await_end();
}

fn an_earlier_lease_end_comes_first() {
    let mut world = World::new();
    world.start("max=900 term=300 kill=600", STUBBORN);
    let (_, how) = world.ready().event("Ended");
    assert!(
        how.contains("Some(Deadline)") && world.when("TimeUp").is_none(),
        "{:?}",
        world.log()
    );
    world.await_end();
}

/// A real dlock on its own store in the test's folder.
struct Real {
    world: World,
    child: Child,
}

impl Real {
    /// Starts `dlock run -k job OPTIONS -- sh -c SCRIPT`; `DLOCK` in the script is the binary.
    fn start(options: &str, script: &str) -> Self {
        let world = World::new();
        let folder = world.directory.path().to_str().unwrap();
        let script = script
            .replace("DLOCK", env!("CARGO_BIN_EXE_dlock"))
            .replace("DIR", folder)
            .replace("TOKEN", &world.token);
        let child = dlock(&world)
            .args(["run", "-k", "job", "--status-file", &world.path("status")])
            .args(options.split(' '))
            .args(["--", "sh", "-c", &script])
            .stderr(fs::File::create(world.path("stderr")).unwrap())
            .spawn()
            .unwrap();
        Self { world, child }
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    /// Waits for dlock's end, checks the status, and returns the output and the verdict.
    fn ends_with(mut self, status: i32) -> (World, String, Value) {
        let ended = until("the end of dlock", || self.child.try_wait().unwrap());
        let said = fs::read_to_string(self.world.path("stderr")).unwrap();
        assert_eq!(ended.code(), Some(status), "{said}");
        self.world.await_end();
        let verdict = serde_json::from_str(&self.world.file("status")).unwrap();
        (self.world, said, verdict)
    }
}

fn dlock(world: &World) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dlock"));
    command
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", world.path(""))
        .stdin(Stdio::null());
    command.env(
        "DLOCK_BACKEND",
        format!("sqlite://{}", world.path("store.db")),
    );
    command
}

/// Returns the latest run in the history.
fn last_run(world: &World) -> Value {
    let output = dlock(world)
        .args(["history", "job", "--json"])
        .output()
        .unwrap();
    serde_json::from_slice::<Value>(&output.stdout).unwrap()["runs"][0].clone()
}

fn a_timed_out_run_has_status_124_and_a_reason_in_the_history() {
    // The command was stopped, even if its TERM handler exits with 0.
    for (script, signal) in [
        ("sleep TOKEN", Value::from(15)),
        ("trap 'exit 0' TERM; sleep TOKEN & wait", Value::Null),
    ] {
        let (world, said, verdict) = Real::start("--max-runtime 500ms", script).ends_with(124);
        let hint = "hint: the lock is released when its process tree is empty; dlock history job tells how long runs usually take";
        assert_eq!(
            said,
            format!(
                "dlock: job: max runtime 500ms is over: the command is being stopped\n{hint}\n"
            )
        );
        assert_eq!(
            (&verdict["result"], &verdict["status"]),
            (&"timed_out".into(), &124.into())
        );
        assert_eq!(
            (&verdict["released"], &verdict["command"]["signal"]),
            (&"yes".into(), &signal),
            "{verdict}"
        );
        assert_eq!(verdict["error"]["message"], "max runtime 500ms");
        let run = last_run(&world);
        assert_eq!(
            (&run["end"], &run["reason"], &run["bad"]),
            (
                &"exit 124".into(),
                &"max runtime 500ms".into(),
                &true.into()
            )
        );
        let report = dlock(&world)
            .args(["history", "job"])
            .output()
            .unwrap()
            .stdout;
        assert!(
            String::from_utf8(report)
                .unwrap()
                .contains("TIMED OUT after 500ms")
        );
    }
}

fn the_lock_is_kept_until_the_tree_is_dead() {
    let real = Real::start("--max-runtime 400ms --grace 2s", STUBBORN);
    real.world.file("term");
    let other = dlock(&real.world)
        .args(["run", "-k", "job", "--", "true"])
        .status()
        .unwrap();
    assert_eq!(
        (other.code(), real.world.alive().is_empty()),
        (Some(75), false)
    );
    let (_, _, verdict) = real.ends_with(124);
    assert_eq!(
        (&verdict["released"], &verdict["command"]["signal"]),
        (&"yes".into(), &9.into()),
        "{verdict}"
    );
}

fn a_stopped_dlock_gives_no_more_time() {
    let real = Real::start("--max-runtime 1s --grace 300ms", STUBBORN);
    real.world.file("ready");
    send(real.pid(), Signal::STOP);
    real.world.file("term");
    // Only dlock is left.
    until("the end of the command", || {
        (real.world.alive() == [real.pid()]).then_some(())
    });
    assert_eq!(stat(real.pid(), 0).as_deref(), Some("T"));
    sleep(Duration::from_millis(300));
    send(real.pid(), Signal::CONT);
    let (world, said, verdict) = real.ends_with(124);
    assert!(said.contains("max runtime 1s is over"), "{said}");
    assert_eq!(verdict["released"], "yes");
    assert_eq!(last_run(&world)["reason"], "max runtime 1s");
}

fn the_inner_run_has_a_limit_of_its_own() {
    let script = "DLOCK run -k job --max-runtime 300ms -- sleep TOKEN; echo $? > DIR/inner; DLOCK verify -qk job && exit 5";
    let (world, _, verdict) = Real::start("--max-runtime 20s", script).ends_with(5);
    assert_eq!(world.file("inner"), "124\n");
    assert_eq!(verdict["result"], "ok");
}

fn the_outer_limit_stops_the_inner_run() {
    let inner = "DLOCK run -k job --status-file DIR/inner -- sleep TOKEN & DLOCK run -k other --status-file DIR/other -- sleep TOKEN &";
    let (world, _, verdict) = Real::start(
        "--max-runtime 1s",
        &format!("trap : TERM; {inner} wait; wait; wait; exit 0"),
    )
    .ends_with(124);
    assert_eq!(
        (&verdict["result"], &verdict["released"]),
        (&"timed_out".into(), &"yes".into())
    );
    for (name, released) in [("inner", "nested"), ("other", "yes")] {
        let inner: Value = serde_json::from_str(&world.file(name)).unwrap();
        assert_eq!(
            (&inner["released"], &inner["command"]["signal"]),
            (&released.into(), &15.into()),
            "{inner}"
        );
    }
    assert_eq!(last_run(&world)["reason"], "max runtime 1s");
}
