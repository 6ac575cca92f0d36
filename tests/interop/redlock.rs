//! Python's `redlock-py` and the locks of `redis-py`, for those who have them: `DLOCK_TEST_PYTHON` names an interpreter that does
//! (`python3 -m venv v && v/bin/pip install redlock-py redis`). They come from no distribution, so that nobody must have them.

use std::{
    env,
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, ChildStdin, Command, Stdio},
    time::Duration,
};

use crate::support::{
    dlock::{self, unique},
    have, must, process,
    redlock::Nodes,
    say,
};

const LIMIT: Duration = Duration::from_secs(30);

/// Reads commands from its standard input and says what came of each.
const THEIRS: &str = r#"
import sys, redis
from redlock import Redlock, MultipleRedlockException
ports, name = [int(p) for p in sys.argv[1].split(",")], sys.argv[2]
library = Redlock([{"host": "127.0.0.1", "port": p, "db": 0} for p in ports], retry_count=1)
single = redis.Redis(port=ports[0]).lock(name, timeout=20, blocking=False)
held = None
for line in sys.stdin:
    word = line.strip()
    if word == "lock":
        held = library.lock(name, 20000)
        print("held" if held else "busy", flush=True)
    elif word == "unlock":
        library.unlock(held)
        print("given back", flush=True)
    elif word == "single":
        print("held" if single.acquire() else "busy", flush=True)
"#;

struct Theirs {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<std::process::ChildStdout>,
}

impl Theirs {
    fn start(nodes: &Nodes, name: &str) -> Option<Self> {
        let Ok(python) = env::var("DLOCK_TEST_PYTHON") else {
            say("not run: interop with redlock-py, since DLOCK_TEST_PYTHON names no Python that has it");
            return None;
        };
        let ports: Vec<_> = nodes.0.iter().map(|node| node.port.to_string()).collect();
        let mut command: Command = process::command(python);
        command.args(["-c", THEIRS, &ports.join(","), name]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = process::start(command).unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Some(Self { child, stdin, stdout })
    }

    fn say(&mut self, word: &str) -> String {
        writeln!(self.stdin, "{word}").unwrap();
        let mut answer = String::new();
        self.stdout.read_line(&mut answer).unwrap();
        answer.trim().to_owned()
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn redlock_py_is_kept_out_and_keeps_out() {
    if !have("redlock_py_is_kept_out_and_keeps_out", &["redis-server"]) {
        return;
    }
    let nodes = Nodes::plain();
    let key = unique("job");
    let Some(mut theirs) = Theirs::start(&nodes, &format!("dlock:{key}")) else { return };
    assert_eq!(theirs.say("lock"), "held");
    let ours = dlock::run(&nodes.url(), &["run", "-k", &key, "--", "true"]);
    assert_eq!(ours.code(), 75, "{}", ours.stderr);
    let shown = dlock::run(&nodes.url(), &["inspect", &key, "--json"]).stdout;
    assert!(shown.contains(r#""foreign":true"#), "{shown}");
    assert_eq!(theirs.say("unlock"), "given back");
    let ours = dlock::spawn(&nodes.url(), &["run", "-k", &key, "--ttl", "4s", "--", "sleep", "5"]);
    must("dlock holds it", LIMIT, || nodes.0.iter().all(|node| node.int(&["EXISTS", &format!("dlock:{key}")]) == 1));
    assert_eq!(theirs.say("lock"), "busy");
    assert_eq!(theirs.say("single"), "busy", "redis-py's own lock, on one of the nodes");
    let ours = ours.wait(LIMIT);
    assert_eq!(ours.code(), 0, "they took it away: {}", ours.stderr);
    assert_eq!(theirs.say("lock"), "held");
}
