//! A real etcd: one member, or a cluster of three.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use super::{ports, process, procfs, tls::Certificates};

/// The options of a cluster.
#[derive(Clone, Debug)]
pub struct Options {
    pub members: usize,
    /// Uses TLS with clients, with a certificate for these names.
    pub tls_names: Vec<&'static str>,
    /// Requires a client certificate of the tests' authority.
    pub client_certificates: bool,
    /// Further arguments, such as `--auth-token-ttl=1`.
    pub arguments: Vec<&'static str>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            members: 1,
            tls_names: Vec::new(),
            client_certificates: false,
            arguments: Vec::new(),
        }
    }
}

/// One etcd process.
#[derive(Debug)]
struct Member {
    client: u16,
    peer: u16,
    child: Option<std::process::Child>,
}

/// A running cluster; it ends with this value, by process ids.
#[derive(Debug)]
pub struct Etcd {
    members: Vec<Member>,
    pub certificates: Option<Certificates>,
    options: Options,
    folder: TempDir,
    /// Whether the tests' own requests authenticate as root, once users exist.
    root: bool,
}

/// An `etcd grpc-proxy` process; it ends with this value.
pub struct GrpcProxy {
    pub port: u16,
    child: std::process::Child,
}

impl Drop for GrpcProxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The shortest lease is 1.5 election timeouts: about one second with these values.
const ELECTION_MS: u32 = 500;
const HEARTBEAT_MS: u32 = 50;

impl Etcd {
    /// The programs that have to be installed.
    pub const PROGRAMS: [&'static str; 2] = ["etcd", "etcdctl"];

    /// Returns why no member can run here; `None` if one can.
    pub fn missing() -> Option<String> {
        super::missing(&Self::PROGRAMS)
    }

    pub fn plain() -> Self {
        Self::with(Options::default())
    }

    pub fn cluster() -> Self {
        Self::with(Options {
            members: 3,
            ..Options::default()
        })
    }

    pub fn with(options: Options) -> Self {
        let folder = super::folder();
        let certificates = (!options.tls_names.is_empty())
            .then(|| Certificates::make(folder.path(), &options.tls_names));
        let mut etcd = Self {
            members: Vec::new(),
            certificates,
            options,
            folder,
            root: false,
        };
        // Another process may take a port before the member does.
        for _ in 0..5 {
            etcd.members = (0..etcd.options.members)
                .map(|_| Member {
                    client: ports::free(),
                    peer: ports::free(),
                    child: None,
                })
                .collect();
            match etcd.try_start() {
                Ok(()) => return etcd,
                Err(why) => {
                    super::say(&why);
                    etcd.kill();
                    etcd.forget();
                }
            }
        }
        panic!("etcd does not start");
    }

    /// Returns the URL of the first member.
    pub fn url(&self) -> String {
        format!("etcd://127.0.0.1:{}", self.port())
    }

    /// Returns the URL of all members.
    pub fn all(&self) -> String {
        let hosts: Vec<_> = self
            .ports()
            .iter()
            .map(|port| format!("127.0.0.1:{port}"))
            .collect();
        format!("etcd://{}", hosts.join(","))
    }

    pub fn port(&self) -> u16 {
        self.members[0].client
    }

    pub fn ports(&self) -> Vec<u16> {
        self.members.iter().map(|member| member.client).collect()
    }

    fn scheme(&self) -> &'static str {
        if self.certificates.is_some() {
            "https"
        } else {
            "http"
        }
    }

    fn home(&self, member: usize) -> PathBuf {
        self.folder.path().join(format!("member{member}"))
    }

    fn spawn(&mut self, member: usize) {
        let peers: Vec<_> = self
            .members
            .iter()
            .enumerate()
            .map(|(n, one)| format!("m{n}=http://127.0.0.1:{}", one.peer))
            .collect();
        let one = &self.members[member];
        assert!(one.child.is_none(), "member {member} runs already");
        let (client, peer) = (
            format!("{}://127.0.0.1:{}", self.scheme(), one.client),
            format!("http://127.0.0.1:{}", one.peer),
        );
        let mut command = process::command("etcd");
        command
            .arg("--name")
            .arg(format!("m{member}"))
            .arg("--data-dir")
            .arg(self.home(member));
        command.args([
            "--listen-client-urls",
            &client,
            "--advertise-client-urls",
            &client,
        ]);
        command.args([
            "--listen-peer-urls",
            &peer,
            "--initial-advertise-peer-urls",
            &peer,
        ]);
        command.args([
            "--initial-cluster",
            &peers.join(","),
            "--initial-cluster-token",
            &format!("test-{}", self.members[0].peer),
        ]);
        if !self.options.arguments.contains(&"--election-timeout") {
            command.args([
                "--heartbeat-interval",
                &HEARTBEAT_MS.to_string(),
                "--election-timeout",
                &ELECTION_MS.to_string(),
            ]);
        }
        command
            .args([
                "--logger",
                "zap",
                "--log-level",
                "error",
                "--bcrypt-cost",
                "4",
            ])
            .args(&self.options.arguments);
        if let Some(files) = &self.certificates {
            command
                .arg("--cert-file")
                .arg(&files.certificate)
                .arg("--key-file")
                .arg(&files.key);
            if self.options.client_certificates {
                command
                    .arg("--client-cert-auth")
                    .arg("--trusted-ca-file")
                    .arg(&files.ca);
            }
        }
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log(member))
            .expect("a log");
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        // etcd reads settings from the environment too, and refuses duplicates.
        command.env_clear().env("PATH", "/usr/bin:/bin");
        self.members[member].child = Some(process::start(command).expect("etcd"));
    }

    fn log(&self, member: usize) -> PathBuf {
        self.folder.path().join(format!("member{member}.log"))
    }

    fn try_start(&mut self) -> Result<(), String> {
        for member in 0..self.members.len() {
            self.spawn(member);
        }
        self.await_health()
    }

    /// Waits until all running members are part of the cluster.
    fn await_health(&self) -> Result<(), String> {
        let began = Instant::now();
        for member in (0..self.members.len()).filter(|member| self.members[*member].child.is_some())
        {
            while !self.answers(member) {
                let log = || fs::read_to_string(self.log(member)).unwrap_or_default();
                if !procfs::alive(self.pid(member)) {
                    return Err(format!("etcd ended:\n{}", log()));
                }
                if began.elapsed() > Duration::from_secs(20) {
                    return Err(format!("etcd does not answer:\n{}", log()));
                }
                thread::sleep(Duration::from_millis(10));
            }
        }
        Ok(())
    }

    /// Returns whether this member is part of a cluster with a leader.
    fn answers(&self, member: usize) -> bool {
        if self.certificates.is_some() || self.root {
            return TcpStream::connect((Ipv4Addr::LOCALHOST, self.members[member].client)).is_ok()
                && self.try_ctl(&["get", "x"]).is_ok();
        }
        http(self.members[member].client, "/health").is_ok_and(|text| text.contains("\"true\""))
    }

    /// Starts an `etcd grpc-proxy` in front of the members.
    pub fn proxy(&self) -> GrpcProxy {
        let port = ports::free();
        let mut command = process::command("etcd");
        let members: Vec<_> = self
            .ports()
            .iter()
            .map(|port| format!("127.0.0.1:{port}"))
            .collect();
        command.args([
            "grpc-proxy",
            "start",
            "--endpoints",
            &members.join(","),
            "--listen-addr",
            &format!("127.0.0.1:{port}"),
        ]);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
            .current_dir(self.folder.path())
            .env_clear()
            .env("PATH", "/usr/bin:/bin");
        let child = process::start(command).expect("etcd grpc-proxy");
        super::must("the proxy answers", Duration::from_secs(20), || {
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
        });
        GrpcProxy { port, child }
    }

    pub fn pid(&self, member: usize) -> u32 {
        self.members[member]
            .child
            .as_ref()
            .expect("the member runs")
            .id()
    }

    /// Returns an `etcdctl` command with the options to reach this cluster.
    pub fn etcdctl(&self) -> Command {
        let mut command = process::command("etcdctl");
        let endpoints: Vec<_> = self
            .members
            .iter()
            .filter(|member| member.child.is_some())
            .map(|member| member.client)
            .collect();
        let endpoints: Vec<_> = endpoints
            .iter()
            .map(|port| format!("{}://127.0.0.1:{port}", self.scheme()))
            .collect();
        command
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("ETCDCTL_API", "3")
            .env("ETCDCTL_ENDPOINTS", endpoints.join(","));
        if let Some(files) = &self.certificates {
            command.env("ETCDCTL_CACERT", &files.ca);
            if self.options.client_certificates {
                command
                    .env("ETCDCTL_CERT", &files.certificate)
                    .env("ETCDCTL_KEY", &files.key);
            }
        }
        if self.root {
            command.env("ETCDCTL_USER", "root:root");
        }
        command
    }

    pub fn try_ctl(&self, words: &[&str]) -> Result<String, String> {
        let mut command = self.etcdctl();
        command
            .args(["--command-timeout", "10s"])
            .args(words)
            .stdin(Stdio::null());
        let ended = process::Process::collect(command).wait(Duration::from_secs(20));
        if ended.code() == 0 {
            Ok(ended.stdout)
        } else {
            Err(ended.stderr)
        }
    }

    /// Returns the output of `etcdctl WORDS`.
    #[track_caller]
    pub fn ctl(&self, words: &[&str]) -> String {
        self.try_ctl(words)
            .unwrap_or_else(|why| panic!("etcdctl {words:?}: {why}"))
    }

    /// Returns the names of all keys that begin with `start`, sorted.
    #[track_caller]
    pub fn keys(&self, start: &str) -> Vec<String> {
        self.ctl(&["get", start, "--prefix", "--keys-only"])
            .lines()
            .filter(|line| !line.is_empty())
            .map(str::to_owned)
            .collect()
    }

    /// Returns the ids of all leases, as `etcdctl` prints them.
    #[track_caller]
    pub fn leases(&self) -> Vec<String> {
        self.ctl(&["lease", "list"])
            .lines()
            .skip(1)
            .map(str::to_owned)
            .collect()
    }

    /// Gives the user `name` with this password all rights on keys that begin with one of `starts`,
    /// and other users none. From now on the tests' own requests authenticate as root.
    pub fn authenticate(&mut self, name: &str, password: &str, starts: &[&str]) {
        self.ctl(&["user", "add", "root:root"]);
        self.ctl(&["role", "add", "root"]);
        self.ctl(&["user", "grant-role", "root", "root"]);
        self.ctl(&["user", "add", &format!("{name}:{password}")]);
        self.ctl(&["role", "add", "locks"]);
        for start in starts {
            self.ctl(&[
                "role",
                "grant-permission",
                "locks",
                "--prefix=true",
                "readwrite",
                start,
            ]);
        }
        self.ctl(&["user", "grant-role", name, "locks"]);
        self.ctl(&["auth", "enable"]);
        self.root = true;
    }

    /// Returns the leader and the followers.
    pub fn leader(&self) -> (usize, Vec<usize>) {
        let mut leader = None;
        super::must("there is a leader", Duration::from_secs(20), || {
            leader = self.try_leader();
            leader.is_some()
        });
        let leader = leader.expect("a leader");
        (
            leader,
            (0..self.members.len())
                .filter(|member| *member != leader && self.members[*member].child.is_some())
                .collect(),
        )
    }

    fn try_leader(&self) -> Option<usize> {
        let status: Value =
            serde_json::from_str(&self.try_ctl(&["endpoint", "status", "-w", "json"]).ok()?)
                .ok()?;
        status.as_array()?.iter().find_map(|one| {
            let answer = &one["Status"];
            let leads = answer["leader"].as_u64()? == answer["header"]["member_id"].as_u64()?;
            let port = one["Endpoint"]
                .as_str()?
                .rsplit(':')
                .next()?
                .parse::<u16>()
                .ok()?;
            leads.then(|| self.members.iter().position(|member| member.client == port))?
        })
    }

    /// Returns how many requests of each kind the members got, by their own metrics.
    pub fn calls(&self) -> Vec<(String, u64)> {
        let mut calls: Vec<(String, u64)> = Vec::new();
        for member in &self.members {
            let text = http(member.client, "/metrics").expect("metrics");
            for line in text
                .lines()
                .filter_map(|line| line.strip_prefix("grpc_server_started_total{"))
            {
                let Some((labels, count)) = line.split_once("} ") else {
                    continue;
                };
                let method = labels
                    .split("grpc_method=\"")
                    .nth(1)
                    .and_then(|rest| rest.split('"').next())
                    .unwrap_or_default();
                let count = number(count.trim());
                match calls.iter_mut().find(|(name, _)| name == method) {
                    Some((_, sum)) => *sum += count,
                    None => calls.push((method.to_owned(), count)),
                }
            }
        }
        calls.retain(|(_, count)| *count > 0);
        calls
    }

    fn signal(&self, member: usize, signal: Signal) {
        process::signal(self.pid(member), signal);
    }

    /// Freezes one member: it stops answering, with all connections open.
    pub fn freeze_member(&self, member: usize) {
        self.signal(member, Signal::STOP);
    }

    pub fn thaw_member(&self, member: usize) {
        self.signal(member, Signal::CONT);
    }

    pub fn freeze(&self) {
        (0..self.members.len()).for_each(|member| self.freeze_member(member));
    }

    pub fn thaw(&self) {
        (0..self.members.len()).for_each(|member| self.thaw_member(member));
    }

    /// Kills one member, as a crash does.
    pub fn kill_member(&mut self, member: usize) {
        if let Some(mut child) = self.members[member].child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Removes one member from the cluster, which ends it.
    pub fn remove_member(&mut self, member: usize) {
        let list = self.ctl(&["member", "list"]);
        let of = format!("m{member}, ");
        let id = list
            .lines()
            .find(|line| line.contains(&of))
            .and_then(|line| line.split(',').next())
            .expect("the member");
        self.ctl(&["member", "remove", id]);
        let ended = |child: &mut std::process::Child| matches!(child.try_wait(), Ok(Some(_)));
        super::must("the member ends", Duration::from_secs(20), || {
            self.members[member].child.as_mut().is_none_or(ended)
        });
        self.members[member].child = None;
    }

    pub fn kill(&mut self) {
        (0..self.members.len()).for_each(|member| self.kill_member(member));
    }

    /// Starts the members that don't run, with their data on disk.
    #[track_caller]
    pub fn restart(&mut self) {
        for member in 0..self.members.len() {
            if self.members[member].child.is_none() {
                self.spawn(member);
            }
        }
        self.await_health().unwrap_or_else(|why| panic!("{why}"));
    }

    fn forget(&self) {
        (0..self.members.len()).for_each(|member| drop(fs::remove_dir_all(self.home(member))));
    }

    /// Restarts the members without their data, like machines that lost their disks.
    #[track_caller]
    pub fn restart_empty(&mut self) {
        self.kill();
        self.forget();
        self.restart();
    }

    /// Returns the folder with all data of the cluster.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Parses a count from metrics, which write `1.234567e+06` from a million on.
fn number(text: &str) -> u64 {
    let float: f64 = text.parse().unwrap_or_default();
    format!("{float:.0}").parse().unwrap_or_default()
}

/// Returns the whole HTTP answer, headers included.
fn http(port: u16, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}
