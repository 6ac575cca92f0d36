//! Real, separate ZooKeeper servers: one, or an ensemble of three.

use std::{
    fmt::Write as _,
    fs,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, Shutdown, TcpStream},
    path::PathBuf,
    process::Stdio,
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use tempfile::TempDir;

use zookeeper_client::Client;

use super::{
    ports, process, procfs,
    proxy::{Mode, Proxy},
    tls::Certificates,
};

/// One test at a time starts servers. A dozen Java machines that start at once take every processor
/// for seconds, which the short leases of other tests don't outlive.
static STARTING: Mutex<()> = Mutex::new(());

/// The options of the servers.
#[derive(Clone, Debug)]
pub struct Options {
    /// 1, or 3 for an ensemble.
    pub servers: usize,
    /// The servers' time unit: sessions end up to one tick late. By default sessions last 2 to 20
    /// ticks.
    pub tick: Duration,
    /// The shortest and the longest session.
    pub sessions: Option<(Duration, Duration)>,
    /// Also listens on a TLS port, with a certificate for these names.
    pub tls_names: Vec<&'static str>,
    /// Makes it possible to cut the first of three servers off from the others.
    pub apart: bool,
    /// A server that has lost the others serves clients that only read.
    pub read_only: bool,
    /// Further lines for the configuration file.
    pub config: Vec<String>,
}

impl Default for Options {
    /// One server that accepts sessions of any length, and ends them within 50 ms.
    fn default() -> Self {
        Self {
            servers: 1,
            tick: Duration::from_millis(50),
            sessions: Some((
                Duration::from_secs(1),
                Duration::from_millis(i32::MAX as u64),
            )),
            tls_names: Vec::new(),
            apart: false,
            read_only: false,
            config: Vec::new(),
        }
    }
}

/// Running servers; they end with this value, by process id.
pub struct ZooKeeper {
    pub nodes: Vec<Node>,
    pub certificates: Option<Certificates>,
    options: Options,
    /// The proxies between the first server and the others.
    cables: Vec<Proxy>,
    _folder: TempDir,
}

/// One server.
#[derive(Debug)]
pub struct Node {
    pub port: u16,
    pub tls_port: u16,
    folder: PathBuf,
    child: Option<std::process::Child>,
}

const JARS: [&str; 14] = [
    "zookeeper.jar",
    "slf4j-api.jar",
    "slf4j-log4j12.jar",
    "log4j-1.2.jar",
    "netty-common.jar",
    "netty-buffer.jar",
    "netty-transport.jar",
    "netty-handler.jar",
    "netty-codec.jar",
    "netty-resolver.jar",
    "netty-transport-native-epoll.jar",
    "netty-transport-native-unix-common.jar",
    "snappy-java.jar",
    "metrics-core.jar",
];

/// Returns the path of a library from Debian's packages.
pub fn jar(name: &str) -> PathBuf {
    PathBuf::from("/usr/share/java").join(name)
}

impl ZooKeeper {
    /// Returns which programs are missing to run a server; `None` if none is.
    pub fn missing() -> Option<String> {
        if super::find_program("java").is_none() {
            return Some("java is not installed".into());
        }
        (!jar("zookeeper.jar").is_file()).then(|| "zookeeper is not installed".into())
    }

    pub fn single() -> Self {
        Self::with(Options::default())
    }

    pub fn ensemble() -> Self {
        Self::with(Options {
            servers: 3,
            ..Options::default()
        })
    }

    pub fn with(options: Options) -> Self {
        let folder = super::folder();
        let certificates = (!options.tls_names.is_empty())
            .then(|| Certificates::make(folder.path(), &options.tls_names));
        let node = |n: usize| {
            let folder = folder.path().join(n.to_string());
            fs::create_dir(&folder).expect("a folder");
            fs::write(folder.join("myid"), n.to_string()).expect("myid");
            let log = "log4j.rootLogger=WARN, F\nlog4j.appender.F=org.apache.log4j.FileAppender\nlog4j.appender.F.file=${log}\n\
                       log4j.appender.F.layout=org.apache.log4j.PatternLayout\nlog4j.appender.F.layout.ConversionPattern=%d{ISO8601} %-5p %c{1} %m%n\n";
            fs::write(folder.join("log4j.properties"), log).expect("log4j.properties");
            let tls_port = if certificates.is_some() {
                ports::free()
            } else {
                0
            };
            Node {
                port: ports::free(),
                tls_port,
                folder,
                child: None,
            }
        };
        let nodes = (1..=options.servers).map(node).collect();
        let mut servers = Self {
            nodes,
            certificates,
            options,
            cables: Vec::new(),
            _folder: folder,
        };
        // Another process may take a port before a server does.
        for _ in 0..4 {
            servers.configure();
            let _alone = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
            (0..servers.nodes.len()).for_each(|n| servers.launch(n));
            match (0..servers.nodes.len()).try_for_each(|n| servers.await_serving(n)) {
                Ok(()) => return servers,
                Err(why) => {
                    super::say(&why);
                    servers.nodes.iter_mut().for_each(|node| {
                        node.kill();
                        node.port = ports::free();
                        node.tls_port = if node.tls_port == 0 { 0 } else { ports::free() };
                    });
                }
            }
        }
        panic!("ZooKeeper does not start");
    }

    /// Returns the URL with all servers.
    pub fn url(&self) -> String {
        let hosts: Vec<_> = self
            .nodes
            .iter()
            .map(|node| format!("127.0.0.1:{}", node.port))
            .collect();
        format!("zookeeper://{}", hosts.join(","))
    }

    pub fn hosts(&self) -> Vec<(String, u16)> {
        self.nodes
            .iter()
            .map(|node| ("127.0.0.1".into(), node.port))
            .collect()
    }

    /// Cuts the first server off from the others; each side sees the other one as silent.
    pub fn cut_off_first(&mut self) {
        self.cables
            .iter_mut()
            .for_each(|cable| cable.set(Mode::BlackHole));
    }

    /// Reconnects the first server.
    pub fn heal(&mut self) {
        self.cables.iter_mut().for_each(|cable| {
            cable.set(Mode::Pass);
            cable.cut();
        });
    }

    /// Runs `work` with a client of the test on the first server.
    pub fn admin<T>(&self, work: impl AsyncFnOnce(Client) -> T) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let client = Client::connect(&format!("127.0.0.1:{}", self.nodes[0].port))
                .await
                .expect("a connection to the server");
            work(client).await
        })
    }

    /// Deletes the node of the first contender in a lock's queue, as an administrator can.
    pub fn delete_contender(&self, lock: &str) {
        self.admin(async |admin| {
            let mut names = admin.list_children(lock).await.expect("the lock's queue");
            // A contender's first node is its position; the second one only keeps other libraries
            // out.
            names.retain(|name| !name.contains("-excl-__WRIT__"));
            names.sort_by_key(|name| name[name.len() - 10..].to_owned());
            admin
                .delete(&format!("{lock}/{}", names[0]), None)
                .await
                .expect("a node to delete");
        });
    }

    /// Returns the number of nodes in a lock's queue.
    pub fn line(&self, lock: &str) -> usize {
        self.admin(async |admin| {
            admin
                .list_children(lock)
                .await
                .map_or(0, |names| names.len())
        })
    }

    fn configure(&mut self) {
        let peers: Vec<(u16, u16)> = self
            .nodes
            .iter()
            .map(|_| (ports::free(), ports::free()))
            .collect();
        self.cables = if self.options.apart {
            peers[1..]
                .iter()
                .map(|(quorum, _)| Proxy::to(*quorum))
                .collect()
        } else {
            Vec::new()
        };
        for (at, node) in self.nodes.iter().enumerate() {
            let mut text = format!(
                "tickTime={}\ninitLimit=200\nsyncLimit=40\ndataDir={}\nclientPort={}\nclientPortAddress=127.0.0.1\nmaxClientCnxns=0\n\
                 admin.enableServer=false\n4lw.commands.whitelist=*\nextendedTypesEnabled=true\nforceSync=no\n",
                self.options.tick.as_millis(),
                node.folder.display(),
                node.port,
            );
            if let Some((min, max)) = self.options.sessions {
                let _ = writeln!(
                    text,
                    "minSessionTimeout={}\nmaxSessionTimeout={}",
                    min.as_millis(),
                    max.as_millis()
                );
            }
            if self.nodes.len() > 1 {
                for (n, (quorum, election)) in (1..).zip(&peers) {
                    // A follower connects to its leader; the first server does so through a cable.
                    let cable = if at == 0 && n > 1 {
                        self.cables.get(n - 2)
                    } else {
                        None
                    };
                    let quorum = cable.map_or(*quorum, |cable| cable.port);
                    let _ = writeln!(text, "server.{n}=127.0.0.1:{quorum}:{election}");
                }
            }
            if let Some(files) = &self.certificates {
                // The server requires its key and its certificate in one file.
                let both = node.folder.join("server.pem");
                let join = |a: &PathBuf, b: &PathBuf| {
                    fs::read_to_string(a).expect("PEM") + &fs::read_to_string(b).expect("PEM")
                };
                fs::write(&both, join(&files.key, &files.certificate)).expect("server.pem");
                let _ = writeln!(
                    text,
                    "secureClientPort={}\nserverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\nssl.keyStore.location={}\n\
                     ssl.keyStore.type=PEM\nssl.trustStore.location={}\nssl.trustStore.type=PEM\nssl.clientAuth=none",
                    node.tls_port,
                    both.display(),
                    files.ca.display()
                );
            }
            for line in &self.options.config {
                let _ = writeln!(text, "{line}");
            }
            fs::write(node.folder.join("zoo.cfg"), text).expect("zoo.cfg");
        }
    }

    fn launch(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        assert!(node.child.is_none(), "the server runs already");
        let jars: Vec<_> = JARS
            .iter()
            .map(|name| jar(name).display().to_string())
            .collect();
        let mut command = process::command("java");
        command
            .args([
                "-Xmx256m",
                "-XX:TieredStopAtLevel=1",
                "-XX:+UseSerialGC",
                "-Xshare:auto",
                "-Dzookeeper.jmx.log4j.disable=true",
            ])
            .arg("-Dzookeeper.admin.enableServer=false")
            .arg(format!("-Dreadonlymode.enabled={}", self.options.read_only))
            .arg(format!("-Dlog={}", node.folder.join("log").display()))
            .arg(format!(
                "-Dlog4j.configuration=file:{}",
                node.folder.join("log4j.properties").display()
            ))
            .args([
                "-cp",
                &jars.join(":"),
                "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            ])
            .arg(node.folder.join("zoo.cfg"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        node.child = Some(process::start(command).expect("java"));
    }

    fn await_serving(&self, n: usize) -> Result<(), String> {
        let node = &self.nodes[n];
        let began = Instant::now();
        while !node.serves() {
            let log = || fs::read_to_string(node.folder.join("log")).unwrap_or_default();
            if !procfs::alive(node.pid()) {
                return Err(format!("ZooKeeper ended:\n{}", log()));
            }
            if began.elapsed() > Duration::from_secs(40) {
                return Err(format!("ZooKeeper does not serve:\n{}", log()));
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Returns the index of the leader.
    pub fn leader(&self) -> usize {
        let began = Instant::now();
        loop {
            if let Some(at) = self
                .nodes
                .iter()
                .position(|node| node.child.is_some() && node.mode().as_deref() == Some("leader"))
            {
                return at;
            }
            assert!(
                began.elapsed() < Duration::from_secs(20),
                "no server is the leader"
            );
            thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn freeze(&self) {
        self.nodes.iter().for_each(Node::freeze);
    }

    pub fn thaw(&self) {
        self.nodes.iter().for_each(Node::thaw);
    }

    /// Thaws all servers, and waits until each of them serves. Afterwards ZooKeeper 3.8.0 sometimes
    /// hangs: its servers elect a leader, accept requests, and answer none of them until they are
    /// restarted.
    pub fn recover(&mut self) {
        self.thaw();
        self.leader();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let serves = self.nodes.iter().all(|node| {
            let address = format!("127.0.0.1:{}", node.port);
            runtime.block_on(async {
                tokio::time::timeout(Duration::from_secs(10), Client::connect(&address))
                    .await
                    .is_ok_and(|it| it.is_ok())
            })
        });
        if !serves {
            self.kill();
            self.start();
        }
    }

    pub fn kill(&mut self) {
        self.nodes.iter_mut().for_each(Node::kill);
    }

    /// Starts the servers that don't run, with their data, and waits until they serve.
    pub fn start(&mut self) {
        let down: Vec<usize> = (0..self.nodes.len())
            .filter(|n| self.nodes[*n].child.is_none())
            .collect();
        for n in &down {
            self.launch(*n);
        }
        for n in &down {
            self.await_serving(*n).unwrap_or_else(|why| panic!("{why}"));
        }
    }

    /// Restarts the servers without their data, like machines that lost their disks.
    pub fn restart_empty(&mut self) {
        self.kill();
        for node in &self.nodes {
            let _ = fs::remove_dir_all(node.folder.join("version-2"));
        }
        self.start();
    }
}

/// Returns all nodes below `path`, deepest first, then `path` itself.
pub async fn tree(admin: &Client, path: &str) -> Vec<String> {
    let (mut all, mut at) = (vec![path.to_owned()], 0);
    while at < all.len() {
        let node = all[at].clone();
        for child in admin.list_children(&node).await.unwrap_or_default() {
            all.push(format!("{node}/{child}"));
        }
        at += 1;
    }
    all.reverse();
    all
}

impl Node {
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("the server runs").id()
    }

    /// Returns the server's answer to a four-letter word.
    pub fn word(&self, word: &str) -> Option<String> {
        let limit = Duration::from_millis(1000);
        let mut stream =
            TcpStream::connect_timeout(&(Ipv4Addr::LOCALHOST, self.port).into(), limit).ok()?;
        stream.set_read_timeout(Some(limit)).ok()?;
        stream.write_all(word.as_bytes()).ok()?;
        stream.shutdown(Shutdown::Write).ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        Some(text)
    }

    /// Returns whether this server serves on its port, and not another test's.
    fn serves(&self) -> bool {
        let ours = format!("dataDir={}", self.folder.display());
        // The server opens its TLS port last.
        let open = |port: u16| port == 0 || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok();
        self.word("conf").is_some_and(|text| text.contains(&ours))
            && self.mode().is_some()
            && open(self.tls_port)
    }

    /// Returns `standalone`, `leader` or `follower`; `None` while the server does not serve.
    pub fn mode(&self) -> Option<String> {
        self.word("srvr")?
            .lines()
            .find_map(|line| line.strip_prefix("Mode: "))
            .map(str::to_owned)
    }

    /// Returns one of the server's metrics, such as `zk_packets_received`.
    pub fn counted(&self, name: &str) -> Option<u64> {
        self.word("mntr")?.lines().find_map(|line| {
            line.strip_prefix(name)?
                .trim()
                .split('.')
                .next()?
                .parse()
                .ok()
        })
    }

    /// Returns the number of changes in this epoch: the lower half of the last transaction id.
    pub fn changes(&self) -> u64 {
        let zxid = self.word("srvr").and_then(|text| {
            let hex = text
                .lines()
                .find_map(|line| line.strip_prefix("Zxid: 0x"))?
                .to_owned();
            u64::from_str_radix(&hex, 16).ok()
        });
        zxid.unwrap_or_default() & 0xffff_ffff
    }

    /// Freezes the server: it stops answering, with all connections open.
    pub fn freeze(&self) {
        if let Some(child) = &self.child {
            process::signal(child.id(), Signal::STOP);
        }
    }

    pub fn thaw(&self) {
        if let Some(child) = &self.child {
            process::signal(child.id(), Signal::CONT);
        }
    }

    /// Kills the server, as a crash does.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for ZooKeeper {
    fn drop(&mut self) {
        self.kill();
    }
}
