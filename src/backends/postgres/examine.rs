//! What a server's settings make of its locks, and the rights that they take.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::Row as _;

use super::{
    checks,
    connection::Session,
    lease::Lease,
    names::Tables,
    options::{Mode, Options},
    schema,
    sessions::Sessions,
};
use crate::{
    backends::{sql::rights, transport},
    lock::{Check, Error, Examine, Finding, Grants, PASSWORD, Result, Role, ServerTime, check},
};

/// What is looked at.
pub const CHECKS: &[Check] = &[
    check("version", "the server's version"),
    check("role", "whether it is a primary, and takes changes"),
    check("durability", "fsync, full_page_writes and synchronous_commit: what a crash forgets"),
    check("isolation", "default_transaction_isolation"),
    check("replication", "standbys, and whether a grant waits for one of them"),
    check("pooler", "whether something in between shares the server's sessions among clients, as PgBouncer does"),
    check("connections", "how many sessions are used of max_connections; each waiter takes one"),
    check("schema", "whether the tables are there, in this version's layout"),
    transport::CHECK,
];

/// The lock table and those beside it, by the ends of their names.
const TABLES: [&str; 8] = ["", "_waiters", "_rows", "_fences", "_sessions", "_runs", "_skips", "_marks"];

/// The oldest that has all that the statements use.
const OLDEST: u32 = 110_000;

async fn look(options: &Options, tables: &Tables) -> Result<Vec<Finding>> {
    let mut session = Session::open(&options.sql).await?;
    let mut found = vec![version(&session)];
    found.extend(checks::settings(&mut session).await?);
    found.push(replication(&mut session).await?);
    found.push(pooler(&mut session, options).await?);
    found.push(connections(&mut session).await?);
    found.push(layout(&mut session, tables).await);
    found.push(rights::tls(&options.sql, "sslmode=verify-full, and sslrootcert=FILE for an authority of your own"));
    Ok(found)
}

fn version(session: &Session) -> Finding {
    let text = format!("PostgreSQL {}.{}", session.version / 10_000, session.version % 10_000);
    if session.version < OLDEST {
        return Finding::not_safe("version", text, "it lacks what dlock's statements need").mend("PostgreSQL 11 at least");
    }
    Finding::ok("version", text)
}

async fn replication(session: &mut Session) -> Result<Finding> {
    const ID: &str = "replication";
    let row = session.query_one("SELECT count(*), current_setting('synchronous_standby_names') FROM pg_stat_replication", &[]).await?;
    let (count, names): (i64, String) = (row.get(0), row.get(1));
    Ok(match (count, names.is_empty()) {
        (0, true) => Finding::ok(ID, "no standby"),
        (_, false) => Finding::ok(ID, format!("synchronous_standby_names {names}; promote none but those")),
        (count, true) => {
            let standbys = if count == 1 { "1 standby".to_owned() } else { format!("{count} standbys") };
            let risk = "a failover forgets a lock that the new primary had not heard of, so that two may run";
            Finding::warn(ID, format!("{standbys}, and no grant waits for one"), risk)
                .mend("synchronous_standby_names, and promote none but those that it names")
        }
    })
}

async fn pooler(session: &mut Session, options: &Options) -> Result<Finding> {
    const ID: &str = "pooler";
    Ok(match (checks::is_pooled(session, options).await?, options.mode) {
        (false, _) => Finding::ok(ID, "nothing in between shares the server's sessions"),
        (true, Mode::Lease) => {
            let risk = "who waits is not told of releases, and looks at the lock again and again";
            Finding::warn(ID, "a pooler in between lends the server's sessions out by the transaction", risk)
                .mend("connect to the server itself, or to a pool with pool_mode=session")
        }
        (true, _) => {
            let risk = "a lock stays with a session that is somebody else's";
            Finding::not_safe(ID, "a pooler in between lends the server's sessions out by the transaction", risk)
                .mend("connect to the server itself, or to a pool with pool_mode=session; or ?mode=lease")
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
        Ok(true) => Finding::ok(ID, format!("the table {table} and those beside it are as this version needs them")),
        Ok(false) => {
            let text = format!("the table {table} or those beside it are not there, or of an older layout");
            Finding::not_safe(ID, text, "no lock can be taken").mend("dlock init")
        }
        Err(Error { message, hint, .. }) => {
            let found = Finding::not_safe(ID, message, "no lock can be taken");
            hint.into_iter().fold(found, Finding::mend)
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
        "dlock init comes first, as whoever is to own the tables: what it does needs more rights than these".to_owned(),
    ];
    if options.mode != Mode::Lease {
        notes.push("holders should be of one role: the server tells a role little of another one's sessions".into());
    }
    if options.mode == Mode::Advisory {
        notes.push("whoever may connect can call pg_advisory_lock itself: no right of the server bounds that".into());
    }
    Grants { text, notes }
}

#[async_trait(?Send)]
impl Examine for Lease {
    fn checks(&self) -> Vec<Check> {
        CHECKS.to_vec()
    }

    async fn examine(&mut self) -> Result<Vec<Finding>> {
        let outcome = look(self.options(), &self.tables).await;
        self.about(outcome, "doctor", None)
    }

    async fn clocks(&mut self) -> Result<Vec<ServerTime>> {
        let outcome = async {
            let mut session = self.take_session().await?;
            let time = time(&mut session).await;
            self.session = Some(session);
            time
        }
        .await;
        self.about(outcome, "doctor", None)
    }

    fn grants(&self, role: Role) -> Grants {
        grants(self.options(), &self.tables, role)
    }
}

#[async_trait(?Send)]
impl Examine for Sessions {
    fn checks(&self) -> Vec<Check> {
        CHECKS.to_vec()
    }

    async fn examine(&mut self) -> Result<Vec<Finding>> {
        let outcome = look(&self.options, &self.tables).await;
        self.about(outcome, "doctor", None)
    }

    async fn clocks(&mut self) -> Result<Vec<ServerTime>> {
        let outcome = async {
            let mut session = self.side().await?;
            let time = time(&mut session).await;
            self.side = Some(session);
            time
        }
        .await;
        self.about(outcome, "doctor", None)
    }

    fn grants(&self, role: Role) -> Grants {
        grants(&self.options, &self.tables, role)
    }
}
