//! The kinds of stores: deployments, and the modes of SQL stores.

use std::time::Duration;

use super::{FIXTURES, Need, Store};

/// A kind of store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The reference, which the contract itself makes.
    Memory,
    Sqlite,
    Redis,
    Sentinel,
    Cluster,
    Redlock,
    /// A single member.
    Etcd,
    /// Three members: a client tries another one if a member does not answer, and each step needs
    /// two of them.
    Etcd3,
    /// A single server.
    ZooKeeper,
    /// Three servers: each step needs two of them, and one may not know the latest step yet.
    ZooKeeper3,
    PostgresLease,
    PostgresRow,
    PostgresAdvisory,
    MariadbLease,
    MariadbRow,
    MariadbAdvisory,
    /// MySQL itself, of a newer release than the system's, which `tests/run` unpacks.
    MysqlLease,
    MysqlRow,
    MysqlAdvisory,
    Tair,
    TairVersion,
}

/// A store.
#[derive(Clone, Copy)]
pub struct Fixture {
    /// Its name in dlock's own tables.
    pub store: &'static str,
    pub kinds: &'static [Info],
}

/// What tests have to know of a kind before it runs.
#[derive(Clone, Copy)]
pub struct Info {
    pub kind: Kind,
    /// Its name in the contract.
    pub name: &'static str,
    /// Its name where real processes run, if that is another one.
    pub also: &'static str,
    /// Returns why it can't run here; `None` if it can.
    pub missing: fn() -> Option<String>,
    /// Whether it may be missing even in CI: it is fetched from another release than the system's.
    pub optional: bool,
    pub start: fn(Kind, Need) -> Box<dyn Store>,
    pub can: Can,
    pub marks: Marks,
}

/// The features of a kind beyond exclusive locks.
#[derive(Clone, Copy, Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "each by itself")]
pub struct Can {
    pub shared: bool,
    pub permits: bool,
    pub fair: bool,
    /// Whether a run can enter the hold of the run around it.
    pub nested: bool,
    pub once: bool,
    /// Whether the store is reached over a network by the addresses in its URL alone.
    pub network: bool,
    /// Whether faults can hit a server.
    pub server: bool,
    /// Whether the server's clock can be stepped; dlock must not depend on it.
    pub clock: bool,
    /// Whether the disk can be filled.
    pub disk: bool,
    /// Whether a failover loses recent confirmed writes: README then promises the lock, but no
    /// history.
    pub forgets: bool,
    /// Whether a reader that is cut off while it takes the lock keeps the other readers out until
    /// its lease ends.
    pub claims: bool,
    /// Whether a lock ends with its holder's session.
    pub sessions: bool,
    /// The longest delay, in seconds, between the end of a dead holder's lease and the next start.
    pub handover_s: u64,
}

/// What most stores can do.
pub const USUAL: Can = Can {
    shared: true,
    permits: true,
    fair: true,
    nested: true,
    once: true,
    network: true,
    server: true,
    clock: false,
    disk: false,
    forgets: false,
    claims: false,
    sessions: false,
    handover_s: 3,
};

/// A lock that a session holds.
pub const SESSIONS: Can = Can {
    permits: false,
    fair: false,
    nested: false,
    sessions: true,
    handover_s: 8,
    ..USUAL
};

/// Texts in requests to a single server.
#[derive(Clone, Copy, Debug, Default)]
pub struct Marks {
    /// In an acquire's requests for a lease of one minute, and in no request that undoes one.
    pub acquire: &'static str,
    /// In the request that takes a lock; empty if that is always the next request.
    pub taking: &'static str,
    /// In the request that extends or releases a hold, likewise.
    pub changing: &'static str,
}

impl Info {
    pub const fn new(
        kind: Kind,
        name: &'static str,
        start: fn(Kind, Need) -> Box<dyn Store>,
        missing: fn() -> Option<String>,
    ) -> Self {
        Self {
            kind,
            name,
            also: name,
            missing,
            optional: false,
            start,
            can: USUAL,
            marks: Marks {
                acquire: "",
                taking: "",
                changing: "",
            },
        }
    }
}

/// The store in the contract's own memory.
const MEMORY: Info = Info {
    can: Can {
        server: false,
        network: false,
        ..USUAL
    },
    ..Info::new(
        Kind::Memory,
        "memory",
        |_, _| panic!("the contract has it in its memory"),
        || None,
    )
};

impl Kind {
    /// Returns all kinds.
    pub fn all() -> impl Iterator<Item = Self> {
        let stores = FIXTURES.into_iter().flat_map(|fixture| fixture.kinds);
        [Self::Memory]
            .into_iter()
            .chain(stores.map(|info| info.kind))
    }

    /// Returns the kind with this name. Dashes may be underscores.
    ///
    /// # Errors
    /// If there is none.
    pub fn named(name: &str) -> Result<Self, String> {
        let is = |one: &str| one.replace('_', "-") == name.replace('_', "-");
        let has_name = |kind: &Self| is(kind.also()) || is(kind.name());
        Self::all().find(has_name).ok_or_else(|| {
            let names: Vec<&str> = Self::all().map(Self::also).collect();
            format!("no such store: {name}; there are {}", names.join(", "))
        })
    }

    fn info(self) -> Info {
        let stores = FIXTURES.into_iter().flat_map(|fixture| fixture.kinds);
        stores
            .copied()
            .find(|info| info.kind == self)
            .unwrap_or(MEMORY)
    }

    pub fn name(self) -> &'static str {
        self.info().name
    }

    /// Returns the name where real processes run.
    pub fn also(self) -> &'static str {
        self.info().also
    }

    pub fn marks(self) -> Marks {
        self.info().marks
    }

    pub fn can(self) -> Can {
        self.info().can
    }

    /// Returns why this kind can't run here; `None` if it can.
    pub fn missing(self) -> Option<String> {
        (self.info().missing)()
    }

    /// Whether this kind can run here; otherwise reports the test as skipped, or fails it.
    pub fn runs(self, test: &str) -> bool {
        let missing = self.missing();
        match &missing {
            Some(why) if self.info().optional => crate::say(&format!("SKIPPED {test}: {why}")),
            Some(why) => crate::skip(test, why),
            None => {}
        }
        missing.is_none()
    }

    pub fn start(self, need: Need) -> Box<dyn Store> {
        (self.info().start)(self, need)
    }

    /// Starts it for a test, which is skipped if that is not possible here.
    pub fn start_for(self, test: &str, need: Need) -> Option<Box<dyn Store>> {
        self.runs(test).then(|| self.start(need))
    }

    /// Returns the parameter for the mode of a SQL store.
    pub(super) fn mode(self) -> &'static str {
        match self {
            Self::PostgresRow | Self::MariadbRow | Self::MysqlRow => "&mode=row",
            Self::PostgresAdvisory | Self::MariadbAdvisory | Self::MysqlAdvisory => {
                "&mode=advisory"
            }
            _ => "",
        }
    }

    /// Whether the store uses the runtime's clock, so that the test can stop it.
    pub fn clock_is_ours(self) -> bool {
        self == Self::Memory
    }

    /// Whether a hold ends exactly with its process: its TTL applies to detached holds only.
    pub fn bound_to_processes(self) -> bool {
        self == Self::Sqlite
    }

    /// Whether a hold lasts at least as long as its process, renewed or not: its TTL applies to
    /// detached holds, and to holds of dead processes.
    pub fn lasts_with_its_process(self) -> bool {
        self.bound_to_processes() || self.is_zookeeper()
    }

    /// How late the store may notice the end of a lease, in addition to a slack of all stores: etcd
    /// checks twice a second.
    pub fn late(self) -> Duration {
        if self.is_etcd() {
            Duration::from_millis(650)
        } else {
            Duration::ZERO
        }
    }

    /// Whether a renewal can change the hold's TTL: the contract compares this with the
    /// capabilities that the store declares, and the next ones too.
    pub fn adjusts_ttl(self) -> bool {
        !self.keeps_positions()
    }

    /// Whether readers can share a lock.
    pub fn shared(self) -> bool {
        self.can().shared
    }

    /// Whether the store has permits.
    pub fn permits(self) -> bool {
        self.can().permits
    }

    /// Whether waiters can request fair order.
    pub fn fair(self) -> bool {
        self.can().fair
    }

    /// Whether a waiter has a position that no other client can pass: not even a newcomer to a free
    /// lock. A dead waiter keeps its position until its lease ends.
    pub fn keeps_positions(self) -> bool {
        self.is_etcd() || self.is_zookeeper()
    }

    /// Whether the store is ZooKeeper, with one server or more.
    pub fn is_zookeeper(self) -> bool {
        matches!(self, Self::ZooKeeper | Self::ZooKeeper3)
    }

    pub fn is_etcd(self) -> bool {
        matches!(self, Self::Etcd | Self::Etcd3)
    }

    pub fn is_tair(self) -> bool {
        matches!(self, Self::Tair | Self::TairVersion)
    }

    /// Whether a hold belongs to one session of its process: it ends with that session, and no
    /// other process can take it over or enter it. A lost connection is a lost lock.
    pub fn held_by_session(self) -> bool {
        self.can().sessions
    }

    /// Whether the server is MariaDB or MySQL.
    pub fn speaks_mysql(self) -> bool {
        self.is_mysql_itself()
            || matches!(
                self,
                Self::MariadbLease | Self::MariadbRow | Self::MariadbAdvisory
            )
    }

    /// Whether the server is MariaDB or MySQL, with `mode=lease`.
    pub fn is_mysql_lease(self) -> bool {
        matches!(self, Self::MariadbLease | Self::MysqlLease)
    }

    /// Whether the server is MySQL itself.
    pub fn is_mysql_itself(self) -> bool {
        matches!(
            self,
            Self::MysqlLease | Self::MysqlRow | Self::MysqlAdvisory
        )
    }

    /// Whether the store is a SQL server.
    pub fn is_sql(self) -> bool {
        self.is_postgres() || self.speaks_mysql()
    }

    /// Whether the store is PostgreSQL.
    pub fn is_postgres(self) -> bool {
        matches!(
            self,
            Self::PostgresLease | Self::PostgresRow | Self::PostgresAdvisory
        )
    }

    /// Whether a hold ends with its process, at the latest after its TTL.
    pub fn ends_with_its_process(self) -> bool {
        self.bound_to_processes() || self.held_by_session()
    }

    /// Whether another process can enter a hold, and a hold can outlive its process.
    pub fn crosses_processes(self) -> bool {
        !self.held_by_session()
    }

    /// Whether a release wakes a waiter; on other stores waiters poll.
    pub fn notifies(self) -> bool {
        self != Self::Redlock && !self.is_tair()
    }

    /// Whether the contract tests the store behind one TCP port, so that a proxy can precede it,
    /// and the case can freeze it.
    pub fn has_server(self) -> bool {
        !self.marks().acquire.is_empty() && !self.held_by_session()
    }
}
