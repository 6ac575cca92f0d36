//! The environment of a command, and how its end is reported.

use std::fs;

use crate::{trials, world::World};

trials!(
    the_status_is_the_commands,
    a_signal_that_ended_the_command_is_passed_on,
    a_missing_command_is_127_and_one_that_cannot_run_126,
    a_script_without_interpreter_is_run_by_sh,
    the_path_is_searched,
    a_script_without_interpreter_may_have_very_many_arguments,
    closed_descriptors_stay_closed,
    a_command_is_not_started_too_late,
    the_environment_has_results_but_no_options,
    signal_masks_and_dispositions_are_unchanged,
    inherited_descriptors_stay_open_and_dlocks_do_not_leak,
    without_a_terminal_the_command_has_its_own_group,
    giving_up_leaves_no_guardian,
    a_long_environment_fits_and_a_huge_one_is_refused,
);

fn the_status_is_the_commands() {
    for wanted in [0, 7, 255] {
        let mut world = World::new();
        world.start("", &format!("exit {wanted}"));
        assert_eq!(world.status(), wanted);
        world.await_end();
        let log: Vec<String> = world.log().into_iter().map(|(_, line)| line).collect();
        assert!(log[1].starts_with("Started { pid: "), "{log:?}");
        let ended = format!(
            "Ended(Ended {{ outcome: Some(Exited({wanted})), by_itself: true, stopped: None, leftover_left: false, usage: Some("
        );
        assert!(log[2].starts_with(&ended), "{log:?}");
    }
}

fn a_signal_that_ended_the_command_is_passed_on() {
    let mut world = World::new();
    world.start("", "kill -9 $$");
    assert_eq!(world.status(), 137);
    // INT ends dlock too, as a shell expects.
    let mut world = World::new();
    world.start("", "kill -INT $$");
    assert_eq!(world.status(), 130);
    assert!(world.event("Ended").1.contains("Signalled(2)"));
}

fn a_missing_command_is_127_and_one_that_cannot_run_126() {
    let file = World::new();
    fs::write(file.path("text"), "x").unwrap();
    for (command, status, event) in [
        ("no-such-command-anywhere", 127, "NotFound"),
        ("/no/such/file", 127, "NotFound"),
        ("/tmp", 126, "NotExecutable(13)"),
        (&file.path("text"), 126, "NotExecutable(13)"),
    ] {
        let mut world = World::new();
        world.start_behind(&[], "", &[command]);
        assert_eq!(world.status(), status, "{command}");
        assert!(
            world.event("CannotStart").1.contains(event),
            "{command}: {:?}",
            world.log()
        );
        world.await_end();
    }
}

fn a_script_without_interpreter_is_run_by_sh() {
    let mut world = World::new();
    support::program::write(world.path("script"), "exit $1\n");
    world.start_behind(&[], "", &[&world.path("script"), "9"]);
    assert_eq!(world.status(), 9);
}

fn the_path_is_searched() {
    let mut world = World::new();
    world.start_behind(&[], "", &["true"]);
    assert_eq!(world.status(), 0);
}

/// More than 4 MiB of argument pointers, which a kernel allows with an unlimited stack.
fn a_script_without_interpreter_may_have_very_many_arguments() {
    for many in ["540000", "600000"] {
        let mut world = World::new();
        support::program::write(world.path("script"), "exit 9\n");
        let more = format!("ulimit -s unlimited || exit 99; exec \"$@\" $(yes x | head -n {many})");
        world.start_behind(&["sh", "-c", &more, "sh"], "", &[&world.path("script")]);
        let status = world.status();
        if status == 99 {
            eprintln!(
                "SKIPPED a_script_without_interpreter_may_have_very_many_arguments: the stack can't be unlimited here"
            );
            return;
        }
        assert_eq!(status, 9, "{many} arguments");
        world.await_end();
    }
}

fn closed_descriptors_stay_closed() {
    let look = "closed=; for n in 0 1 2; do [ -e /proc/$$/fd/$n ] || closed=$closed$n; done; echo $closed > DIR/closed; exit 5";
    for (close, expected) in [("", "\n"), ("<&-", "0\n"), ("<&- >&- 2>&-", "012\n")] {
        let mut world = World::new();
        world.start_behind(
            &["sh", "-c", &format!("exec \"$@\" {close}"), "sh"],
            "",
            &["sh", "-c", look],
        );
        assert_eq!(world.status(), 5);
        assert_eq!(world.file("closed"), expected, "{close}");
    }
}

fn a_command_is_not_started_too_late() {
    let mut world = World::new();
    world.start("start_by=-1", "touch DIR/ran");
    assert_eq!(world.status(), 69);
    assert_eq!(world.event("CannotStart").1, "(TooLate)");
    assert!(!fs::exists(world.path("ran")).unwrap());
    world.await_end();
}

fn the_environment_has_results_but_no_options() {
    let mut world = World::new();
    world.start("", "env > DIR/env");
    assert_eq!(world.status(), 0);
    let environment = world.file("env");
    let mut ours: Vec<&str> = environment
        .lines()
        .filter(|line| line.starts_with("DLOCK_"))
        .collect();
    ours.sort_unstable();
    assert_eq!(ours, ["DLOCK_BACKEND=kept", "DLOCK_KEY=the key"]);
    assert!(environment.contains("PATH="));
}

fn signal_masks_and_dispositions_are_unchanged() {
    for setting in ["", "trap '' HUP;", "trap '' PIPE INT;"] {
        let mut world = World::new();
        let look = "grep -E '^(SigBlk|SigIgn|ShdPnd)' /proc/self/status >";
        let line = world
            .line("", &["sh", "-c", &format!("{look} DIR/inside")])
            .join("' '");
        let script = format!(
            "{setting} {look} {}; exec '{}'",
            world.path("outside"),
            line.replace(look, &look.replace('\'', "'\\''"))
        );
        let mut child = std::process::Command::new("sh")
            .args(["-c", &script])
            .spawn()
            .unwrap();
        assert!(child.wait().unwrap().success());
        assert_eq!(world.file("inside"), world.file("outside"), "{setting}");
        world.child = None;
    }
}

fn inherited_descriptors_stay_open_and_dlocks_do_not_leak() {
    let mut world = World::new();
    let script = "echo kept >&9; ls /proc/self/fd > DIR/inside";
    // The caller of the tests may have left descriptors open.
    let before = "exec 9>\"$0/nine\"; ls /proc/self/fd > \"$0/outside\"; exec \"$@\"";
    let directory = world.directory.path().to_str().unwrap().to_owned();
    world.start_behind(&["sh", "-c", before, &directory], "", &["sh", "-c", script]);
    assert_eq!(world.status(), 0);
    assert_eq!(world.file("nine"), "kept\n");
    assert_eq!(world.file("inside"), world.file("outside"));
}

fn without_a_terminal_the_command_has_its_own_group() {
    let mut world = World::new();
    world.start(
        "",
        "echo $$ $(cut -d' ' -f5,6 /proc/$$/stat) > DIR/ready; sleep TOKEN",
    );
    let text = world.ready().file("ready");
    let numbers: Vec<i32> = text
        .split_whitespace()
        .map(|number| number.parse().unwrap())
        .collect();
    assert_eq!(numbers[0], numbers[1], "the group is led by the command");
    let guardian = world.guardian();
    let group = |pid| crate::world::stat(pid, 2).unwrap().parse::<i32>().unwrap();
    assert_eq!(group(guardian), guardian);
    assert_eq!(group(world.pid), world.pid);
    assert_eq!(
        crate::world::stat(guardian, 3),
        crate::world::stat(world.pid, 3),
        "all in one session"
    );
}

fn giving_up_leaves_no_guardian() {
    let mut world = World::new();
    world.start("give_up=1", "touch DIR/ran");
    assert_eq!(world.status(), 75);
    assert!(world.event("GaveUp").1.ends_with("children left: false"));
    assert!(!fs::exists(world.path("ran")).unwrap());
    world.await_end();
}

fn a_long_environment_fits_and_a_huge_one_is_refused() {
    let mut world = World::new();
    world.start("huge=1", "echo ${#DLOCK_HELD} > DIR/length");
    assert_eq!(world.status(), 0, "{:?}", world.log());
    assert_eq!(world.file("length"), "100000\n");
    world.event("Err(InvalidInput)");
}
