//! What a server's settings make of its locks, and the rights that they take.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::Row as _;

use super::{
    checks,
    connection::{OLDEST, OLDEST_NAME, Session},
    keeper::IDLE_SESSION_TIMEOUT,
    lease::LeaseStore,
    names::Tables,
    options::{Mode, Options},
    schema,
    sessions::Sessions,
};
use crate::{
    backends::{net::transport, sql::rights},
    lock::{Admin, Check, Error, Finding, Grants, Init, Kind, Notice, PASSWORD, Result, Role, ServerTime, check},
};

/// What is looked at.
pub const CHECKS: &[Check] = &[
    check("version", "the server's version"),
    check("encoding", "whether the database's encoding has all characters, as UTF8 does"),
    check("role", "whether it is a primary, and takes changes"),
    check("durability", "fsync, full_page_writes and synchronous_commit: what a crash forgets"),
    check("isolation", "default_transaction_isolation"),
    check("replication", "standbys, and whether a grant waits for one of them"),
    check("pooler", "whether something in between shares the server's sessions among clients, as PgBouncer does"),
    check("connections", "how many sessions are used of max_connections; each waiter takes one"),
    check("schema", "whether the tables are there, in this version's layout, and in one schema only"),
    transport::CHECK,
];

/// The lock table and its side tables, by the ends of their names.
const TABLES: [&str; 8] = ["", "_waiters", "_rows", "_fences", "_sessions", "_runs", "_skips", "_marks"];

async fn look(options: &Options, tables: &Tables) -> Result<Vec<Finding>> {
    let mut session = Session::open_to_look(&options.sql).await?;
    let mut found = vec![version(&mut session).await?, encoding(&session)];
    found.extend(checks::settings(&mut session).await?);
    found.push(replication(&mut session).await?);
    found.push(pooler(&mut session, options).await?);
    found.push(connections(&mut session).await?);
    found.push(layout(&mut session, tables).await);
    found.push(rights::tls(&options.sql, "sslmode=verify-full, and sslrootcert=FILE for an authority of your own"));
    Ok(found)
}

async fn version(session: &mut Session) -> Result<Finding> {
    const ID: &str = "version";
    let full: String = session.query_one("SELECT version()", &[]).await?.get(0);
    if let Err(Error { message, hint, .. }) = checks::is_postgres(&full) {
        let found = Finding::not_safe(ID, message, "the locks of its sessions may exclude no other session");
        return Ok(hint.into_iter().fold(found, Finding::fix));
    }
    let text = format!("PostgreSQL {}.{}", session.version / 10_000, session.version % 10_000);
    if session.version < OLDEST {
        return Ok(Finding::not_safe(ID, text, "it lacks what dlock's statements need").fix(OLDEST_NAME));
    }
    Ok(Finding::ok(ID, text))
}

fn encoding(session: &Session) -> Finding {
    checks::encoding(session).unwrap_or_else(|| Finding::ok("encoding", "the database's encoding has all characters"))
}

async fn replication(session: &mut Session) -> Result<Finding> {
    const ID: &str = "replication";
    let sql = "SELECT count(*), count(sync_state), count(*) FILTER (WHERE sync_state IN ('sync', 'quorum')),
                      current_setting('synchronous_standby_names'), current_setting('synchronous_commit') FROM pg_stat_replication";
    let row = session.query_one(sql, &[]).await?;
    let (count, told, waited_for): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
    let (names, commit): (String, String) = (row.get(3), row.get(4));
    let waits = !names.is_empty() && !matches!(&*commit, "local" | "off");
    let standbys = if count == 1 { "1 standby".to_owned() } else { format!("{count} standbys") };
    let none = |why: String, fix| {
        let risk = "a failover forgets a lock that the new primary had not heard of, so that two may run";
        Finding::warn(ID, format!("{standbys}, and no grant waits for one{why}"), risk).fix(fix)
    };
    Ok(match (count, waits) {
        (0, true) => {
            Finding::warn(ID, format!("synchronous_standby_names {names}, and no standby is connected"), "each grant waits for one")
                .fix("start the standby, or set synchronous_standby_names to ''")
        }
        (0, false) => Finding::ok(ID, "no standby"),
        (_, true) if waited_for > 0 => Finding::ok(ID, format!("synchronous_standby_names {names}; promote none but those")),
        (_, true) if told < count => Finding::unchecked(ID, "whether a grant waits for a standby", "the server doesn't tell this user")
            .fix("GRANT pg_read_all_stats to the user of dlock doctor"),
        (_, false) if !names.is_empty() => none(format!(": synchronous_commit is {commit}"), "ALTER ROLE … SET synchronous_commit = on"),
        _ => none(String::new(), "synchronous_standby_names, and promote none but those that it names"),
    })
}

async fn pooler(session: &mut Session, options: &Options) -> Result<Finding> {
    const ID: &str = "pooler";
    let pooled = match checks::is_pooled(session, options).await {
        // No PostgreSQL, as the version says.
        Err(error) if error.kind == Kind::Config => return Ok(Finding::unchecked(ID, "a pooler", "the server is no PostgreSQL")),
        pooled => pooled?,
    };
    Ok(match (pooled, options.mode) {
        (false, _) => Finding::ok(ID, "nothing in between shares the server's sessions"),
        (true, Mode::Lease) => {
            let risk = "waiters are not notified of releases, and poll the lock";
            Finding::warn(ID, "a pooler in between lends the server's sessions out by the transaction", risk)
                .fix("connect to the server itself, or to a pool with pool_mode=session")
        }
        (true, _) => {
            let risk = "a lock stays with a session of another client";
            Finding::not_safe(ID, "a pooler in between lends the server's sessions out by the transaction", risk)
                .fix("connect to the server itself, or to a pool with pool_mode=session; or ?mode=lease")
        }
    })
}

async fn connections(session: &mut Session) -> Result<Finding> {
    let sql = "SELECT count(*), current_setting('max_connections')::bigint FROM pg_stat_activity WHERE backend_type = 'client backend'";
    let row = session.query_one(sql, &[]).await?;
    Ok(rights::sessions("connections", row.get(0), row.get(1)))
}

async fn layout(session: &mut Session, tables: &Tables) -> Finding {
    const ID: &str = "schema";
    let table = tables.quoted("");
    match schema::is_complete(session, tables).await {
        Ok(true) => match checks::place(session, tables).await {
            Ok((place, None)) => Finding::ok(ID, format!("the table {place} and its companions have this version's layout")),
            Ok((_, Some(others))) => others,
            Err(Error { message, .. }) => Finding::unchecked(ID, "the schema of the table", &message),
        },
        Ok(false) => {
            let text = format!("the table {table} or one of its companions is missing, or has an older layout");
            Finding::not_safe(ID, text, "no lock can be taken").fix("dlock init")
        }
        Err(Error { message, hint, .. }) => {
            let found = Finding::not_safe(ID, message, "no lock can be taken");
            hint.into_iter().fold(found, Finding::fix)
        }
    }
}

async fn time(session: &mut Session) -> Result<Vec<ServerTime>> {
    let row = session.query_one("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint", &[]).await?;
    let since_epoch = Duration::from_micros(u64::try_from(row.get::<i64, _>(0)).unwrap_or_default());
    Ok(vec![ServerTime { server: "the server".into(), since_epoch }])
}

fn grants(options: &Options, tables: &Tables, role: Role) -> Grants {
    let user = role.user();
    let names: Vec<String> = TABLES.iter().map(|suffix| tables.quoted(suffix)).collect();
    let rights = if role.writes() { "SELECT, INSERT, UPDATE, DELETE" } else { "SELECT" };
    let database = options.sql.database.as_deref().unwrap_or("DATABASE").replace('"', "");
    let schema = options.sql.table.split_once('.').map_or("public", |(schema, _)| schema).replace('"', "");
    let text = format!(
        "CREATE ROLE \"{user}\" LOGIN PASSWORD '{PASSWORD}';\nGRANT CONNECT ON DATABASE \"{database}\" TO \"{user}\";\n\
         GRANT USAGE ON SCHEMA \"{schema}\" TO \"{user}\";\nGRANT {rights} ON {} TO \"{user}\";\n",
        names.join(", ")
    );
    let mut notes = vec![
        format!("put a password in the place of {PASSWORD}"),
        "run dlock init first, as the owner of the tables: it needs more rights than these".to_owned(),
    ];
    if options.mode != Mode::Lease {
        notes.push("holders should be of one role: the server tells a role little of another one's sessions".into());
    }
    if options.mode == Mode::Advisory {
        notes.push("every user who may connect can call pg_advisory_lock: the server has no right for that".into());
    }
    Grants { text, notes }
}

#[async_trait(?Send)]
impl Admin for LeaseStore {
    async fn init(&mut self) -> Result<Init> {
        let mut session = self.take_session().await?;
        let done = schema::create(&mut session, &self.tables, self.options().mode).await?;
        self.notices.extend(checks::examine(&mut session, &self.tables).await?);
        self.session = Some(session);
        Ok(done)
    }

    fn schema(&self) -> Option<String> {
        Some(schema::text(&self.tables))
    }

    async fn collect(&mut self, unused_for: Duration) -> Result<Option<u64>> {
        let mut session = self.take_session().await?;
        let removed = schema::collect(&mut session, &self.tables, &self.options().sql, unused_for).await?;
        self.session = Some(session);
        Ok(Some(removed))
    }

    fn checks(&self) -> Vec<Check> {
        CHECKS.to_vec()
    }

    async fn examine(&mut self) -> Result<Vec<Finding>> {
        look(self.options(), &self.tables).await
    }

    async fn clocks(&mut self) -> Result<Vec<ServerTime>> {
        let mut session = self.take_session().await?;
        let time = time(&mut session).await;
        self.session = Some(session);
        time
    }

    fn grants(&self, role: Role) -> Grants {
        grants(self.options(), &self.tables, role)
    }
}

#[async_trait(?Send)]
impl Admin for Sessions {
    async fn init(&mut self) -> Result<Init> {
        let mut session = self.side().await?;
        let done = schema::create(&mut session, &self.tables, self.options.mode).await?;
        self.notices.extend(checks::examine(&mut session, &self.tables).await?);
        if self.options.mode == Mode::Advisory && session.version < IDLE_SESSION_TIMEOUT {
            self.notices.push(Notice {
                warning: true,
                text: "before version 14 the server ends the session of a frozen holder never, and of a vanished one late".into(),
                hint: Some("?mode=lease ends with its TTL on any version".into()),
            });
        }
        self.side = Some(session);
        Ok(done)
    }

    fn schema(&self) -> Option<String> {
        Some(schema::text(&self.tables))
    }

    fn checks(&self) -> Vec<Check> {
        CHECKS.to_vec()
    }

    async fn examine(&mut self) -> Result<Vec<Finding>> {
        look(&self.options, &self.tables).await
    }

    async fn clocks(&mut self) -> Result<Vec<ServerTime>> {
        let mut session = self.side().await?;
        let time = time(&mut session).await;
        self.side = Some(session);
        time
    }

    fn grants(&self, role: Role) -> Grants {
        grants(&self.options, &self.tables, role)
    }
}
