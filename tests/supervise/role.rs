//! A `dlock run` without a lock: its arguments are instructions, and it writes its events to a
//! file.

use std::{ffi::OsString, fs::OpenOptions, io::Write as _, os::fd::OwnedFd, time::Duration};

use dlock::{
    lease::{BootClock, Clock as _},
    lock::BootTime,
    supervise::{
        Contain, Deadlines, Event, Leftover, OnLost, Plan, Signals, Supervisor, fork_guardian,
        reraise,
    },
};

/// The instructions in the arguments before `--`.
struct Instructions {
    log: String,
    term: u64,
    kill: u64,
    renew: u64,
    start_by: i64,
    grace: u64,
    /// Actions, with their delay after the start in ms.
    after: Vec<(u64, String)>,
    give_up: bool,
    huge: bool,
    /// A port to connect to while the tree lives.
    lifeline: u16,
    /// How long to wait before the start, as if for a lock.
    wait: u64,
}

/// Runs as dlock. `arguments`: `name=value …  -- command…`.
pub fn live(arguments: &[OsString]) -> ! {
    let split = arguments
        .iter()
        .position(|word| word == "--")
        .expect("no --");
    let mut plan = Plan {
        command: arguments[split + 1..].to_vec(),
        on_lost: OnLost::Kill,
        leftover: Leftover::Wait,
        contain: Contain::Group,
        grace: Duration::from_millis(300),
        max_runtime: None,
        kept_variables: vec!["DLOCK_BACKEND".into()],
        capture: false,
    };
    let mut instructions = Instructions {
        log: String::new(),
        term: 600_000,
        kill: 900_000,
        renew: 0,
        start_by: 60_000,
        grace: 300,
        after: vec![],
        give_up: false,
        huge: false,
        lifeline: 0,
        wait: 0,
    };
    for word in &arguments[..split] {
        let (name, value) = word.to_str().unwrap().split_once('=').unwrap();
        let number = || value.parse().unwrap();
        match name {
            "log" => instructions.log = value.into(),
            "term" => instructions.term = number(),
            "kill" => instructions.kill = number(),
            "renew" => instructions.renew = number(),
            "start_by" => instructions.start_by = value.parse().unwrap(),
            "grace" => {
                instructions.grace = number();
                plan.grace = Duration::from_millis(instructions.grace);
            }
            "max" => plan.max_runtime = Some(Duration::from_millis(number())),
            "after" => {
                let (when, what) = value.split_once(':').unwrap();
                instructions
                    .after
                    .push((when.parse().unwrap(), what.into()));
            }
            "wait" => instructions.wait = number(),
            "give_up" => instructions.give_up = true,
            "huge" => instructions.huge = true,
            "lifeline" => instructions.lifeline = value.parse().unwrap(),
            "on_lost" => {
                plan.on_lost = match value {
                    "continue" => OnLost::Continue,
                    signal => OnLost::Signal(signal.parse().unwrap()),
                }
            }
            "leftover" => {
                plan.leftover = if value == "kill" {
                    Leftover::Kill
                } else {
                    Leftover::Leave
                }
            }
            "contain" => {
                plan.contain = if value == "auto" {
                    Contain::Auto
                } else {
                    Contain::Cgroup
                }
            }
            other => panic!("unknown instruction {other}"),
        }
    }
    if let Err(refused) = plan.check() {
        Log(&instructions.log).line(&format!("Refused {refused}"));
        std::process::exit(64);
    }
    let guardian = fork_guardian(plan, None).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let status = runtime.block_on(async {
        let supervisor = guardian.attach().unwrap();
        let signals = Signals::new().unwrap();
        if instructions.give_up {
            let started = BootClock::read();
            supervisor.give_up();
            let took = BootClock::read().since(started).as_micros();
            let children = rustix::process::wait(rustix::process::WaitOptions::NOHANG).is_ok();
            Log(&instructions.log).line(&format!(
                "GaveUp after {took} us, children left: {children}"
            ));
            return 75;
        }
        run(supervisor, signals, &instructions).await
    });
    std::process::exit(status)
}

struct Log<'a>(&'a str);

impl Log<'_> {
    fn line(&self, text: &str) {
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.0)
            .unwrap();
        let at = BootClock::read().since_boot().as_millis();
        file.write_all(format!("{at} {text}\n").as_bytes()).unwrap();
    }
}

/// Waits before the start, and returns an event if the wait was cut short.
async fn dlock_waits(supervisor: &mut Supervisor, until: BootTime) -> Option<Event> {
    tokio::select! {
        event = supervisor.next() => Some(event),
        () = BootClock.sleep_until(until) => None,
    }
}

async fn run(mut supervisor: Supervisor, mut signals: Signals, instructions: &Instructions) -> i32 {
    let log = Log(&instructions.log);
    let ms = Duration::from_millis;
    let ahead = |now: BootTime| Deadlines {
        term_at: now.plus(ms(instructions.term)),
        kill_at: now.plus(ms(instructions.kill)),
    };
    let began = BootClock::read();
    let start_by = if instructions.start_by < 0 {
        BootTime::from_boot(ms(1))
    } else {
        began.plus(ms(instructions.start_by.unsigned_abs()))
    };
    let mut environment: Vec<(String, String)> = vec![("DLOCK_KEY".into(), "the key".into())];
    if instructions.huge {
        environment.push(("DLOCK_HELD".into(), "x".repeat(200_000)));
        log.line(&format!(
            "{:?}",
            supervisor
                .start(&environment, start_by, ahead(began), &[])
                .map_err(|error| error.kind())
        ));
        environment[1].1 = "x".repeat(100_000);
    }
    log.line(&format!("Guardian {}", supervisor.guardian()));
    let waited = dlock_waits(&mut supervisor, began.plus(ms(instructions.wait))).await;
    if let Some(event) = waited {
        log.line(&format!("{event:?}"));
        log.line(&format!("{:?}", supervisor.next().await));
        return 70;
    }
    // This process also keeps the connection open while it lives, like a store's connection.
    let line = (instructions.lifeline > 0)
        .then(|| std::net::TcpStream::connect(("127.0.0.1", instructions.lifeline)).unwrap());
    let lifelines: Vec<OwnedFd> = line
        .iter()
        .map(|line| line.try_clone().unwrap().into())
        .collect();
    supervisor
        .start(&environment, start_by, ahead(began), &lifelines)
        .unwrap();
    drop(lifelines);
    let mut after: Vec<(BootTime, &str)> = instructions
        .after
        .iter()
        .map(|(when, what)| (began.plus(ms(*when)), what.as_str()))
        .collect();
    let mut renew_at = began.plus(ms(instructions.renew));
    loop {
        let next = after
            .iter()
            .map(|(when, _)| *when)
            .chain((instructions.renew > 0).then_some(renew_at))
            .min();
        tokio::select! {
            event = supervisor.next() => {
                log.line(&format!("{event:?}"));
                match event {
                    Event::Stopped { signal } => {
                        supervisor.extend(ahead(BootClock::read()));
                        supervisor.stop_with_command(signal);
                        log.line("Resumed");
                    }
                    Event::CannotStart(why) => {
                        supervisor.finish();
                        return i32::from(why.status());
                    }
                    Event::Ended(ended) => {
                        supervisor.finish();
                        if let Some(dlock::supervise::ProcessEnd::Signalled(signal)) = ended.outcome.filter(|_| ended.stopped.is_none()) {
                            [2, 3].contains(&signal).then(|| reraise(signal));
                        }
                        return match ended.outcome {
                            _ if ended.stopped.is_some() => 76,
                            Some(outcome) => i32::from(outcome.status()),
                            None => 70,
                        };
                    }
                    _ => {}
                }
            }
            signal = signals.next() => {
                log.line(&format!("{signal:?}"));
                supervisor.forward(signal);
            }
            () = BootClock.sleep_until(next.unwrap_or(began)), if next.is_some() => {
                let now = BootClock::read();
                if instructions.renew > 0 && now >= renew_at {
                    supervisor.extend(ahead(now));
                    renew_at = now.plus(ms(instructions.renew));
                }
                after.retain(|(when, what)| {
                    if now >= *when {
                        match *what {
                            "lost" => supervisor.lost(),
                            "stop" => supervisor.stop(ms(instructions.grace)),
                            "extend" => supervisor.extend(ahead(now)),
                            other => panic!("unknown instruction {other}"),
                        }
                    }
                    now < *when
                });
            }
        }
    }
}
