//! `dlock man`: what `man/` holds. The options come from the command line's definition, the rest stands here.

use clap_mangen::{
    Man,
    roff::{Roff, bold, roman},
};

use super::{CAPABILITIES, CHECKS};
use crate::lock::{Capabilities, Check, Error, Kind, Result};

/// The arguments of `dlock man`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:  dlock man run | man -l -")]
pub struct Args {
    /// The page of this command instead of dlock's
    #[arg(value_name = "COMMAND")]
    pub page: Option<String>,
}

/// The page in roff.
///
/// # Errors
/// [`Kind::Usage`] if there is no such command.
pub fn text(command: clap::Command, args: &Args, variables: &[(String, String)]) -> Result<Vec<u8>> {
    // What is too much for a screen has its place here.
    let show = |command: clap::Command| command.hide(false).mut_args(|argument| argument.hide_short_help(false));
    let mut command = show(command).mut_subcommands(show).subcommand_help_heading("COMMANDS");
    command.build();
    let mut out = Vec::new();
    let rendered = match args.page.as_deref() {
        None => overview(command, variables, &mut out),
        Some(name) => {
            let Some(page) = command.get_subcommands().find(|page| page.get_name() == name) else {
                let names: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
                return Err(Error::new(Kind::Usage, "there is no page of this name").hint(format!("it is one of {}", names.join(", "))));
            };
            // `dlock man run` makes dlock-run(1).
            let page = page.clone().name(format!("dlock-{name}")).bin_name(format!("dlock {name}"));
            subcommand(name, page, &mut out)
        }
    };
    rendered.map_err(|error| Error::new(Kind::Internal, "the page can't be made").source(error))?;
    Ok(out)
}

fn overview(command: clap::Command, variables: &[(String, String)], out: &mut Vec<u8>) -> std::io::Result<()> {
    let man = Man::new(command);
    man.render_title(out)?;
    man.render_name_section(out)?;
    man.render_synopsis_section(out)?;
    section("DESCRIPTION", DESCRIPTION, out)?;
    man.render_subcommands_section(out)?;
    man.render_options_section(out)?;
    section("STORES", STORES, out)?;
    section("WHAT A STORE CAN DO", &capabilities(), out)?;
    table("EXIT STATUS", EXIT_STATUS, out)?;
    environment(variables, out)?;
    section("FILES", FILES, out)?;
    section("JSON", JSON, out)?;
    section("EXAMPLES", EXAMPLES, out)?;
    section("SEE ALSO", "dlock-run(1), dlock-acquire(1), dlock-inspect(1), flock(1), crontab(5)", out)
}

fn subcommand(name: &str, page: clap::Command, out: &mut Vec<u8>) -> std::io::Result<()> {
    let man = Man::new(page);
    man.render_title(out)?;
    man.render_name_section(out)?;
    man.render_synopsis_section(out)?;
    man.render_description_section(out)?;
    man.render_options_section(out)?;
    if name == "run" {
        section("HOW IT WORKS", RUN, out)?;
        section("READERS, PERMITS AND ORDER", KINDS, out)?;
        section("SEVERAL LOCKS", SEVERAL, out)?;
        section("CRON", CRON, out)?;
        section("EXAMPLES", RUN_EXAMPLES, out)?;
    }
    if name == "doctor" {
        section("HOW IT WORKS", DOCTOR, out)?;
        checks(out)?;
    }
    section("SEE ALSO", "dlock(1) has the exit statuses, the environment, the configuration file and the JSON schema.", out)
}

/// A section of paragraphs; indented lines stay as they are.
fn section(title: &str, text: &str, out: &mut Vec<u8>) -> std::io::Result<()> {
    let mut roff = Roff::new();
    roff.control("SH", [title]);
    let mut verbatim = false;
    for line in text.lines() {
        let indented = line.starts_with("    ");
        if indented != verbatim && !line.is_empty() {
            roff.control(if indented { "nf" } else { "fi" }, []);
            verbatim = indented;
        }
        if line.is_empty() {
            roff.control("PP", []);
        } else {
            roff.text([roman(if indented { line } else { line.trim() })]);
        }
    }
    if verbatim {
        roff.control("fi", []);
    }
    roff.to_writer(out)
}

fn table(title: &str, rows: &[(&str, &str)], out: &mut Vec<u8>) -> std::io::Result<()> {
    let mut roff = Roff::new();
    roff.control("SH", [title]);
    for (name, text) in rows {
        roff.control("TP", []);
        roff.text([bold(*name)]);
        roff.text([roman(*text)]);
    }
    roff.to_writer(out)
}

fn environment(variables: &[(String, String)], out: &mut Vec<u8>) -> std::io::Result<()> {
    section("ENVIRONMENT", ENVIRONMENT, out)?;
    let mut roff = Roff::new();
    for (name, text) in variables {
        roff.control("TP", []);
        roff.text([bold(name.as_str())]);
        roff.text([roman(text.as_str())]);
    }
    roff.control("PP", []);
    roff.text([roman("The command that run starts gets:")]);
    for (name, text) in OUTPUTS {
        roff.control("TP", []);
        roff.text([bold(*name)]);
        roff.text([roman(*text)]);
    }
    roff.to_writer(out)
}

/// Which store has which kinds of locks, from what the backends go by themselves.
fn capabilities() -> String {
    let row = |name: &str, cells: [&str; 6]| {
        let [shared, permits, fair, nested, acquire, wakes] = cells;
        format!("    {name:<26}{shared:<5}{permits:<11}{fair:<8}{nested:<8}{acquire:<9}{wakes}").trim_end().to_owned()
    };
    let yes = |can: bool| if can { "yes" } else { "-" };
    let of = |capabilities: &Capabilities| {
        let Capabilities { shared, permits, fair, reentrant, detached, notification, .. } = *capabilities;
        [shared, permits, fair, reentrant, detached, notification].map(yes)
    };
    let mut lines = vec![row("", ["-s", "--permits", "--fair", "nested", "acquire", "wakes"])];
    lines.extend(CAPABILITIES.iter().map(|(name, capabilities)| row(name, of(capabilities))));
    format!("{ABLE}\n\n{}", lines.join("\n"))
}

/// What `doctor` looks at, from the tables that it goes by itself.
fn checks(out: &mut Vec<u8>) -> std::io::Result<()> {
    let mut roff = Roff::new();
    roff.control("SH", ["CHECKS"]);
    let all = [("Whatever the store", &[super::doctor::CHECKS] as &[&[Check]])];
    for (title, tables) in all.iter().chain(CHECKS) {
        roff.control("SS", [*title]);
        for Check { id, about } in tables.iter().copied().flatten() {
            roff.control("TP", []);
            roff.text([bold(*id)]);
            roff.text([roman(*about)]);
        }
    }
    roff.to_writer(out)
}

const DESCRIPTION: &str = "\
dlock takes a lock on a store that all nodes share, runs a command under it, keeps the lease alive, and makes sure that the command is dead before anybody else can own the lock.

A key is 1 to 255 bytes of UTF-8 without control characters, compared by bytes: job, JOB and an accented letter in its composed and decomposed forms are different locks. Lengths of time are written like 90, .5, 30s, 5m or 1h 30m; a bare number is seconds.";

const STORES: &str = "\
A store is named by a URL, or by a name that the configuration file gives to one:

    local                              the embedded default, asked for
    sqlite:///path/to/file             SQLite on this host
    redis://[user@]host[:6379][/db]    one Redis or Valkey
    rediss://...                       the same over TLS
    redis+unix:///path.sock[?db=N]     the same over a Unix socket
    redis+sentinel://h1,h2,h3/MASTER   Redis behind sentinels (port 26379)
    redis+cluster://h1,h2              Redis Cluster, by some of its nodes
    redlock://h1,h2,h3[,h4,h5]         independent Redis servers, a majority decides
    tair://host[:6379]                 Tair, or Redis with the TairString module
    postgres://user@host[:5432]/db     PostgreSQL (dlock init once)
    mysql:// or mariadb://user@host/db MySQL or MariaDB (dlock init once)
    zookeeper://h1,h2,h3[/chroot]      ZooKeeper (port 2181)
    etcd://h1,h2,h3                    etcd v3 (port 2379)
    rediss+sentinel, rediss+cluster, redlocks, tairs, zookeepers, etcds
                                       the same over TLS

Without a store, locks are kept in SQLite in /var/lib/dlock for root and in $XDG_STATE_HOME/dlock for others; they protect this user on this host only, and a line on stderr says so.

A URL takes the parameters ttl, namespace, password_file, backend_timeout, cacert, cert and key (PEM files: CA certificates, the client's certificate and its key; rediss only) and db, as in redis://r1?ttl=30s. With replicas=N a grant or renewal of Redis counts only once N replicas have it, for which they have replica_timeout (500ms). Sentinels have credentials of their own: sentinel_user and sentinel_password_file. Redlock has node_timeout, retry_delay and allow_few=yes; tair has mode=plain or version. SQL stores have mode=lease (a row that ends, the default), row (a row locked in a transaction) and advisory (GET_LOCK, pg_advisory_lock), and table; TLS is set as their own clients have it, by sslmode, sslrootcert, sslcert and sslkey for PostgreSQL and ssl-mode, ssl-ca, ssl-cert and ssl-key for MySQL, and .pgpass, the PG variables and .my.cnf are read. The TTL of ZooKeeper is the timeout of a session, in the server's range, and etcd's is whole seconds. User, password and path are percent-encoded. A password in a --backend URL is refused, because every user of the host can read it there.";

const ABLE: &str = "\
What a store can't do is refused before it is asked, with status 64. All have fences, a history, and the options for cron. Where a release wakes nobody, those who wait look again after pauses. In mode=row and mode=advisory one session has the lock, which no other process can enter or take over, and whose order is the server's; GET_LOCK knows no readers. Independent servers (Redlock) can't count permits by majorities, and have no order in common.";

const EXIT_STATUS: &[(&str, &str)] = &[
    ("the command's, or 128+N", "it ran to its end (N: the signal that ended it)"),
    ("1, 2", "doctor: there are warnings; something is unsafe"),
    ("64", "usage: the command line, the environment, or what this store can't do"),
    ("65", "malformed data: a token, or something under the key that is no lock"),
    ("69", "the store can't be reached or can't answer in time; the command was not started"),
    ("70", "a bug in dlock"),
    ("74", "stdout can't be written"),
    ("75", "not taken: held by somebody else, or the wait ran out; --conflict-exit-code replaces it"),
    ("76", "the lock was lost or broken while the command ran; the command was stopped"),
    ("77", "the token does not hold this lock (renew, verify, release), or another hold has it (break)"),
    ("78", "the configuration is wrong, or credentials or rights were refused"),
    ("124", "--max-runtime is over; the command was stopped"),
    ("126, 127", "the command can't be executed, or doesn't exist"),
    ("128+N", "signal N ended the wait for the lock"),
];

const ENVIRONMENT: &str = "\
A flag beats a variable, a variable beats the configuration file. An empty variable is as an unset one. NO_COLOR is respected.

All but DLOCK_BACKEND, DLOCK_CONFIG, DLOCK_PASSWORD_FILE, DLOCK_SENTINEL_PASSWORD_FILE, DLOCK_BACKEND_TIMEOUT, DLOCK_HOST and DLOCK_NAMESPACE are taken out of the environment of the command that run starts. A password in DLOCK_BACKEND does reach the command.";

const OUTPUTS: &[(&str, &str)] = &[
    ("DLOCK_KEY, DLOCK_TOKEN", "the lock and the secret that holds it; renew, verify and release without arguments use them"),
    ("DLOCK_FENCE", "the number of this hold, higher than that of every hold before: the protected resource refuses lower ones"),
    ("DLOCK_FENCES", "in place of these three, where several locks are held: a line KEY=FENCE for each"),
    ("DLOCK_PERMIT", "with --permits, which one it is, from 0; nobody else has it for as long as it is held"),
    (
        "DLOCK_HELD",
        "the locks of all runs around it, so that a nested dlock run of the same key enters instead of deadlocking; dlock verify KEY looks here",
    ),
];

const FILES: &str = "\
$XDG_CONFIG_HOME/dlock/config.toml (~/.config/dlock/config.toml), or else /etc/dlock/config.toml; they are not merged. Every setting of the environment is a key here, in lower case and without DLOCK_; once_per, once, keep, retry_failed, retry_crashed and permits stand in [keys.\"KEY\"] alone. An unknown key is an error. A file with a password in it must not be readable by everybody.

    backend = \"prod\"

    [backends.prod]
    url = \"rediss://dlock@r1:6379/0\"
    password_file = \"/etc/dlock/redis.pass\"
    ttl = \"60s\"

    [keys.\"deploy\"]
    wait = \"5m\"
    grace = \"10s\"

A setting of [keys.\"KEY\"] beats one of [backends.NAME], which beats one of the top level.

/var/lib/dlock/dlock.db, $XDG_STATE_HOME/dlock/dlock.db: the embedded store.";

const JSON: &str = "\
--json prints exactly one object on one line of stdout, on failure too; run prints it as the last line of stderr, since stdout is the command's. Times are RFC 3339 in UTC, lengths of time whole milliseconds, and what is unknown is null. Every object has schema (dlock/1), result and status (the exit status). dlock.schema.json, beside these pages, is its JSON schema.

    result       of             further fields
    ok           acquire hold   key backend token fence permit ttl_ms keys
    ok           verify         key backend expires_in_ms
    ok           renew          key backend fence ttl_ms
    ok           release        key backend holds
    ok           inspect        backend, and those of a lock
    ok           list           backend locks
    ok           history        key backend runs skips
    ok           break          key backend fence how waited_ms
    ok           init           backend done
    ok warn unsafe
                 doctor         backend name from findings round_trip_us
                                hand_over_us settings error
    ok lost broken timed_out
                 run            key backend fence keys permit by started
                                waited_ms ran_ms command released holders
                                error
    busy         acquire        key backend waited_ms expires_in_ms position
                                holders
    not_held     renew verify release break
                                key backend
    broken       renew          key backend broken
    interrupted  acquire        key signal
    error        all            error

A lock has key, stored_as, held, last_fence, holders and waiters. A holder has mode (exclusive, shared or permits), permit and permits (which of how many), host, user, pid, boot_id, pid_ns, command, description, fence, foreign, detached, since, held_for_ms, renewed_ago_ms, expires_in_ms, holds and broken (by, reason and seen, while somebody breaks it). A run of a history has fence, host, user, pid, command, description, started, ended, ran_ms, end (running, ok, exit N, signal N, not started, released, expired, lost or broken), bad and reason; skips have host, count, since, last and reason. A waiter has host, user, pid, command, description and waiting_for_ms. An error has kind, message, hint, operation, key, backend, effect (not_applied, applied or unknown: whether the step happened in the store all the same) and causes. The keys of a run have key and fence, those of acquire and hold a token as well; by is the key that kept a run from running. The command of a run has status or signal; released is yes, nested, not_held or unknown.";

const EXAMPLES: &str = "\
In the crontab of every node; one runs the job, the others skip:

    * * * * *  dlock run --key sms-job -- ./send_sms.sh

Wait for the turn:

    dlock run -k deploy -w 10m -- ./deploy.sh

A lock over several commands of a script:

    token=$(dlock acquire deploy --ttl 5m) || exit
    ./step1 && dlock renew deploy --token \"$token\" && ./step2
    dlock release deploy --token \"$token\"

The same for as long as the script runs. It is sent TERM if the lock is lost or broken:

    token=$(dlock acquire deploy --while-pid $$) || exit

A script that takes its own lock, whoever starts it:

    #!/bin/sh
    dlock verify -qk deploy || exec dlock run -k deploy -w 10m -- \"$0\" \"$@\"

The same for a part of a script in bash. It has to look at the status of the coprocess, since nothing stops it if the lock is lost:

    coproc dlock hold deploy -w 10m
    read -r taken <&\"${COPROC[0]}\" || exit

Don't write local token=$(dlock acquire ...): local succeeds always, and hides the status. A file that the shell truncates (dlock run ... > file) is truncated before the lock is taken.

Who has it, who had it, and away with who hangs:

    dlock inspect deploy
    dlock history deploy --timeline
    dlock break deploy --fence 1042 --yes --reason 'NFS hangs'";

const RUN: &str = "\
The lock is tried once, unless --wait says otherwise. The lease is renewed every sixth of its TTL. If no renewal is confirmed by 0.6 of it, the command and everything it started gets TERM, and KILL a grace later, by 0.8 of the TTL at the latest; dlock then exits with 76. If the store says that the lock is somebody else's, KILL comes at once. A second process, the guardian, does the same by itself if dlock is killed or stopped.

Somebody may break the lock (dlock break): then the command is stopped as by TERM, the lock is given back when nothing of it is left, and dlock exits with 76.

--max-runtime counts from the command's start, also while the host is suspended. Then the whole tree gets TERM, and KILL a grace later, while the lease goes on being renewed; dlock exits with 124, and the history names the option. The guardian does it by itself if dlock is stopped. What outlives the command (--leftover wait) is part of it; 0 is no limit.

The lock is released when the last process of the command's tree is gone. --leftover kill stops those that outlive the command, --leftover leave releases the lock beside them.

--on-lost continue leaves the command running after a loss: two may then run at the same time. --on-lost signal:SIG sends another signal than TERM; KILL follows all the same.

A dlock run inside of another one with the same key enters its lock, and returns it when the outer one ends. Two such runs side by side do not exclude each other. A process that got hold of DLOCK_HELD but runs outside of the command's tree (in a tmux server, by at or systemd-run) enters as well, but does not keep the lock when the outer run ends. --no-reentrant refuses instead.

TERM sent to dlock stops the command in order: TERM, and KILL a grace later, while the lease goes on being renewed. INT, HUP, QUIT, USR1, USR2, WINCH and CONT are passed on, and the command decides. While the lock is waited for, TERM, INT, HUP and QUIT end the wait with 128+N.

Without a terminal on stderr, a success and a skip print nothing, so that cron mails nothing; a line goes to syslog (facility cron) instead. Losses and unreachable stores are always printed.

--status-file gets the JSON object of the run, written aside and renamed: the command's own exit status can look like one of dlock's.

Unless root runs it, a setuid command is refused, because it could not be killed: use sudo dlock run.

Nothing saves a host that freezes as a whole: only the protected resource can refuse a command that wakes up too late, by its DLOCK_FENCE.";

const KINDS: &str = "\
A lock is held by one run alone (-x, the default), by any number of readers (-s), or by at most N at a time (--permits N). The three exclude each other: a lock that readers have is busy for permits. Each holder has a lease, a token and a fence of its own; one that crashes ends with its own lease, whatever the others do. dlock(1) says which store can do what; what it can't is refused before it is asked.

Readers come and go as long as no writer waits: one that does keeps later readers out, until it had its turn.

Of permits each has a number, DLOCK_PERMIT, from 0 to N-1, which nobody else has for as long as it is held: for a port, a shard or a GPU; acquire and hold tell it with --json. N is what this run goes by: it is granted one while fewer than N are held. So N can be changed at any time; who holds one keeps it, and who skips because others asked for another N is told so.

With --fair those who wait are served in the order of asking, and whoever comes later lets them go first. One that died in line costs the others up to a second. Without it whoever asks when the lock is free gets it, and a newcomer may overtake. ZooKeeper and etcd keep the order anyway.

A nested run enters what the run around it has, and can't ask for more: -x inside of -s is refused, and so is one kind inside of another, but for -s inside of -x.";

const SEVERAL: &str = "\
With several --key all of the locks are had, or none. They are taken in the order of their names, whatever the order of the command line, so that two such runs don't wait for each other; nested runs that take them in another order may. --wait counts for all of it. What is taken already is renewed while the next one is waited for. If one of them is lost, the command is stopped as usual, and the others are given back when nothing of it is left.

The first key that is named is the job's own: --skew-guard, --at-least, --once-per, --once and its policy in the configuration file go by it alone, as do the metrics and the line for syslog. DLOCK_FENCES has a line KEY=FENCE for each lock. DLOCK_KEY, DLOCK_TOKEN and DLOCK_FENCE are not set; dlock verify KEY finds each of them all the same.

acquire prints a line TOKEN KEY for each, in the order in which they were named.";

const CRON: &str = "\
The same line stands in the crontab of every node. One gets the lock and runs the job; the others skip with 75, print nothing, and send a line to syslog. What goes for a job wherever it is started from stands in the configuration file, under the names of the options:

    [keys.\"sms-job\"]
    once_per = \"1m\"
    max_runtime = \"10m\"
    metrics_file = \"/var/lib/prometheus/node-exporter/dlock.prom\"

While the job still runs when it is due again, all skip. If its node dies half-way, the lock ends with its lease, and the next tick after that runs the job elsewhere. If the store can't be reached, nothing is run (69). A job that hangs keeps its lock, unless --max-runtime stops it (124). A job that failed is run again by the next tick. dlock history tells who ran, how it ended, and who skipped.

Clocks differ, and a job may be over before the slowest of them strikes. --skew-guard refuses tries from other hosts (of another boot, or in another PID namespace) for 5 seconds from the start of a run that did not wait itself; never those from the same host, and never who waits. 0 is none. --at-least keeps the lock for so long from the start, for everybody; other libraries that share the lock see its holds alone.

--once-per says how often the schedule fires: a run is not started while the last recorded start is younger than half of that, by the store's clock, whoever started it and whatever became of it. The start is recorded in the step that grants the lock, before the command starts: rather skipped than run twice. --retry-failed lets so many more runs follow one that failed, and --retry-crashed one that began and was never heard of again. A skew guard is at most half of it.

--once runs a key until it was successful, and not again as long as that is remembered (--keep): for what has a key of its own, like order-4711. A run that failed may be repeated, with --retry-failed only so often; one of which nobody knows how it ended only with --retry-crashed. A nested dlock run of the same key is part of the run around it: none of these options is asked of it.

A lock that has been held for an hour, two, four and so on is told of by one of those who skip because of it (--warn-held), also without a terminal.

--metrics-file is for the textfile collector of Prometheus' node exporter: for each key, when a run was last tried, started and successful, how long it ran and waited, with which status it ended, and how many ran, skipped and lost their lock. All runs of a host may share one file; each locks its folder for a moment, by flock(2), and replaces the file. A file that dlock did not write is left alone, and one that can't be written stops no job.

In a systemd service belong SuccessExitStatus=75 and KillMode=mixed, in its timer AccuracySec=1s. In a container dlock may be PID 1: it reaps what is left behind, passes signals on, and with -E 0 a skip is a success. The README has the units and manifests.";

const DOCTOR: &str = "\
Each finding has a check, a severity, what was read, what could happen and how to mend it. ok is as it should be. WARN is a promise that is weaker than it could be, or something that could not be looked at: \"not checked\" says why. UNSAFE means that two can run at a time, or that nobody can. The last line sums up; --quiet leaves out what is ok.

The exit status is 0 if all is well, 1 if there are warnings, and 2 if something is unsafe. If the store can't be reached it is 69, and 78 if it refuses the user or the configuration is wrong: then nothing else could be looked at.

Settings are only read. One lock is taken, renewed, handed over and given back as run does it, with the TTL of the configuration. Its name has a control character, so that it can't be typed, is in nobody's way and in no list; it is the same each time, and what stays behind of it is what its fence needs: a counter or a row, and in SQLite and ZooKeeper the place for locks. On Redis an empty message is published to channels of that lock. Nothing is tried where pg_key makes all keys one lock.

The store's clock is compared with this host's in the middle of a round trip. Leases don't depend on that; what does is cron, whose jobs start as far apart as the hosts' clocks are.

--print-grants asks the store nothing. It prints the least rights for the namespace and the store of the configuration: of those who run jobs (run, acquire, hold, renew, release and waiting), of those who only look (inspect, list, verify), and of those who may break locks. The tests run with exactly these rights. In the place of CHANGE-ME belongs a password.

--json prints result (ok, warn or unsafe), backend, name, from (where the URL stood), findings (check, severity, text, risk, mend), round_trip_us, hand_over_us, settings (name, value, from; a secret's value is null) and error; with --print-grants, role, text and notes.";

const RUN_EXAMPLES: &str = "\
Skip if another node runs it; wait for the turn; run a line of a shell:

    dlock run -k sms-job -- ./send_sms.sh
    dlock run -k deploy -w 10m --ttl 2m --grace 20s -- ./deploy.sh
    dlock run -k report -c 'make report | gzip > /srv/report.gz'

Many may read while none writes; three at a time, each with a port of its own; two locks at once:

    dlock run -k catalog -s -- ./serve-snapshot
    dlock run -k encode --permits 3 -w 1h -- sh -c './encode --port 900$DLOCK_PERMIT'
    dlock run -k deploy -k schema -w 10m -- ./deploy.sh";
