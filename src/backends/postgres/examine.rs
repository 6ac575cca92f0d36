//! The operator's view of a PostgreSQL server: its settings, and the rights that dlock needs.

use std::time::Duration;

use super::{
    CAPABILITIES, PORT, Postgres, checks,
    connection::{OLDEST, OLDEST_NAME, PostgresSession},
    names::Tables,
    options::PostgresOptions,
    schema,
};
use crate::{
    backends::{
        net::transport,
        sql::{Fields, SqlDatabase, SqlMode, SqlOptions, rights},
    },
    lock::{
        Capabilities, Check, Error, Finding, Grants, Init, Kind, Notice, PASSWORD, Result, Role,
        check,
    },
};

/// The checks of `dlock doctor`.
pub const CHECKS: &[Check] = &[
    check("version", "the server's version"),
    check(
        "encoding",
        "whether the database's encoding has all characters, as UTF8 does",
    ),
    check("role", "whether it is a primary, and takes changes"),
    check(
        "durability",
        "fsync, full_page_writes and synchronous_commit: what a crash forgets",
    ),
    check("isolation", "default_transaction_isolation"),
    check(
        "replication",
        "standbys, and whether a grant waits for one of them",
    ),
    check(
        "pooler",
        "whether something in between shares the server's sessions among clients, as PgBouncer does",
    ),
    check(
        "connections",
        "how many sessions are used of max_connections, and how many the user may have",
    ),
    check(
        "schema",
        "whether the tables are there, in this version's layout, and in one schema only",
    ),
    transport::CHECK,
];

/// The ends of the names of the lock table and its side tables.
const TABLES: [&str; 5] = ["", "_waiters", "_rows", "_runs", "_skips"];

impl SqlDatabase for Postgres {
    type Options = PostgresOptions;
    type Tables = Tables;
    type Session = PostgresSession;
    const CAPABILITIES: [&'static Capabilities; 3] = CAPABILITIES;

    fn sql(options: &PostgresOptions) -> &SqlOptions {
        &options.sql
    }

    fn tables(options: &SqlOptions) -> Tables {
        Tables::new(&options.table, options.mode)
    }

    fn url(options: &SqlOptions) -> String {
        options.redacted_url("postgres", PORT, "host")
    }

    async fn open(options: &PostgresOptions) -> Result<(PostgresSession, Vec<Notice>)> {
        Ok((PostgresSession::open(&options.sql).await?, Vec::new()))
    }

    async fn init(
        session: &mut PostgresSession,
        tables: &Tables,
        mode: SqlMode,
    ) -> Result<(Init, Vec<Notice>)> {
        let done = schema::create(session, tables).await?;
        Ok((done, checks::examine(session, tables, mode).await?))
    }

    async fn collect(
        session: &mut PostgresSession,
        tables: &Tables,
        options: &SqlOptions,
        unused_for: Duration,
    ) -> Result<u64> {
        schema::collect(session, tables, options, unused_for).await
    }

    async fn examine(options: &PostgresOptions, tables: &Tables) -> Result<Vec<Finding>> {
        let mut session = PostgresSession::open_to_look(&options.sql).await?;
        let mut found = vec![version(&mut session).await?, encoding(&session)];
        found.extend(checks::settings(&mut session).await?);
        found.push(replication(&mut session).await?);
        found.push(pooler(&mut session, options).await?);
        found.push(connections(&mut session, options.sql.mode).await?);
        found.push(layout(&mut session, tables).await);
        found.push(rights::tls(
            &options.sql,
            "sslmode=verify-full, and sslrootcert=FILE for an authority of your own",
        ));
        Ok(found)
    }

    async fn time_us(session: &mut PostgresSession) -> Result<i64> {
        let row = session
            .query_one(
                "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint",
                &[],
            )
            .await?;
        Fields::of(&row).int()
    }
}

/// Returns the least rights for `role`.
pub(super) fn grants(options: &PostgresOptions, role: Role, user: &str) -> Grants {
    let tables = Postgres::tables(&options.sql);
    let user = user.replace('"', "\"\"");
    let names: Vec<String> = TABLES.iter().map(|suffix| tables.quoted(suffix)).collect();
    let rights = if role.writes() {
        "SELECT, INSERT, UPDATE, DELETE"
    } else {
        "SELECT"
    };
    let database = options
        .sql
        .database
        .as_deref()
        .unwrap_or("DATABASE")
        .replace('"', "");
    let schema = options
        .sql
        .table
        .split_once('.')
        .map_or("public", |(schema, _)| schema)
        .replace('"', "");
    let text = format!(
        "CREATE ROLE \"{user}\" LOGIN PASSWORD '{PASSWORD}';\nGRANT CONNECT ON DATABASE \"{database}\" TO \"{user}\";\n\
         GRANT USAGE ON SCHEMA \"{schema}\" TO \"{user}\";\nGRANT {rights} ON {} TO \"{user}\";\n",
        names.join(", ")
    );
    let mut notes = vec![
        format!("put a password in the place of {PASSWORD}"),
        "run dlock init first, as the owner of the tables: it needs more rights than these"
            .to_owned(),
    ];
    if options.sql.mode != SqlMode::Lease {
        notes.push("holders should be of one role: the server tells a role little of another one's sessions".into());
    }
    if options.sql.mode == SqlMode::Advisory {
        notes.push("every user who may connect can call pg_advisory_lock: the server has no right for that".into());
    }
    Grants { text, notes }
}

async fn version(session: &mut PostgresSession) -> Result<Finding> {
    const ID: &str = "version";
    let row = session.query_one("SELECT version()", &[]).await?;
    if let Err(Error { message, hint, .. }) = checks::is_postgres(row.at(0)) {
        let found = Finding::not_safe(
            ID,
            message,
            "the locks of its sessions may exclude no other session",
        );
        return Ok(hint.into_iter().fold(found, Finding::fix));
    }
    let text = format!(
        "PostgreSQL {}.{}",
        session.version / 10_000,
        session.version % 10_000
    );
    if session.version < OLDEST {
        return Ok(
            Finding::not_safe(ID, text, "it lacks what dlock's statements need").fix(OLDEST_NAME),
        );
    }
    Ok(Finding::ok(ID, text))
}

fn encoding(session: &PostgresSession) -> Finding {
    checks::encoding(session)
        .unwrap_or_else(|| Finding::ok("encoding", "the database's encoding has all characters"))
}

async fn replication(session: &mut PostgresSession) -> Result<Finding> {
    const ID: &str = "replication";
    let sql = "SELECT count(*), count(sync_state), count(*) FILTER (WHERE sync_state IN ('sync', 'quorum')),
                      current_setting('synchronous_standby_names'), current_setting('synchronous_commit'), quote_ident(current_user) FROM pg_stat_replication";
    let row = session.query_one(sql, &[]).await?;
    let mut fields = Fields::of(&row);
    let (count, told, waited_for, names, commit, user) = (
        fields.int()?,
        fields.int()?,
        fields.int()?,
        fields.text()?,
        fields.text()?,
        fields.text()?,
    );
    let waits = !names.is_empty() && !matches!(&*commit, "local" | "off");
    let standbys = if count == 1 {
        "1 standby".to_owned()
    } else {
        format!("{count} standbys")
    };
    let none = |why: String, fix| {
        let risk =
            "a failover forgets a lock that the new primary had not heard of, so that two may run";
        Finding::warn(
            ID,
            format!("{standbys}, and no grant waits for one{why}"),
            risk,
        )
        .fix(fix)
    };
    Ok(match (count, waits) {
        (0, true) => Finding::warn(
            ID,
            format!("synchronous_standby_names {names}, and no standby is connected"),
            "each grant waits for one",
        )
        .fix("start the standby, or set synchronous_standby_names to ''"),
        (0, false) => Finding::ok(ID, "no standby"),
        (_, true) if waited_for > 0 => Finding::ok(
            ID,
            format!("synchronous_standby_names {names}; promote none but those"),
        ),
        (_, true) if told < count => Finding::unchecked(
            ID,
            "whether a grant waits for a standby",
            "the server doesn't tell this user",
        )
        .fix(format!("GRANT pg_read_all_stats TO {user}")),
        (_, false) if !names.is_empty() => none(
            format!(": synchronous_commit is {commit}"),
            "ALTER ROLE CURRENT_USER SET synchronous_commit = on",
        ),
        _ => none(
            String::new(),
            "synchronous_standby_names, and promote none but those that it names",
        ),
    })
}

async fn pooler(session: &mut PostgresSession, options: &PostgresOptions) -> Result<Finding> {
    const ID: &str = "pooler";
    let pooled = match checks::is_pooled(session, None, options).await {
        // The server is no PostgreSQL: the version check reports that.
        Err(error) if error.kind == Kind::Config => {
            return Ok(Finding::unchecked(
                ID,
                "a pooler",
                "the server is no PostgreSQL",
            ));
        }
        pooled => pooled?,
    };
    Ok(match (pooled, options.sql.mode) {
        (false, SqlMode::Row) if !checks::is_direct(session).await? => {
            let risk = "runs wait for each other's sessions if the pool has less than two for each run that holds or waits";
            Finding::warn(
                ID,
                "a pooler in between; with mode=row each run takes two sessions of its pool",
                risk,
            )
            .fix("make the pool as large as that, or use ?mode=lease")
        }
        (false, _) => Finding::ok(ID, "nothing in between shares the server's sessions"),
        (true, SqlMode::Lease) => {
            let risk = "waiters are not notified of releases, and poll the lock";
            Finding::warn(
                ID,
                "a pooler in between lends the server's sessions out by the transaction",
                risk,
            )
            .fix("connect to the server itself, or to a pool with pool_mode=session")
        }
        (true, _) => {
            let risk = "a lock stays with a session of another client";
            Finding::not_safe(
                ID,
                "a pooler in between lends the server's sessions out by the transaction",
                risk,
            )
            .fix(
                "connect to the server itself, or to a pool with pool_mode=session; or ?mode=lease",
            )
        }
    })
}

async fn connections(session: &mut PostgresSession, mode: SqlMode) -> Result<Finding> {
    let sql = "SELECT count(*), current_setting('max_connections')::bigint,
                      (SELECT min(most) FROM (SELECT rolconnlimit FROM pg_roles WHERE rolname = session_user AND NOT rolsuper
                       UNION ALL SELECT datconnlimit FROM pg_database WHERE datname = current_database()) AS limits(most) WHERE most >= 0)
                 FROM pg_stat_activity WHERE backend_type = 'client backend'";
    let row = session.query_one(sql, &[]).await?;
    let mut fields = Fields::of(&row);
    Ok(rights::sessions(
        "connections",
        (fields.int()?, fields.int()?),
        fields.int_or_null()?,
        mode,
    ))
}

async fn layout(session: &mut PostgresSession, tables: &Tables) -> Finding {
    if let Some(finding) = rights::unusable_tables(
        schema::is_complete(session, tables).await,
        &tables.quoted(""),
    ) {
        return finding;
    }
    match checks::place(session, tables).await {
        Ok((place, None)) => rights::usable_tables(&place),
        Ok((_, Some(others))) => others,
        Err(Error { message, .. }) => {
            Finding::unchecked("schema", "the schema of the table", &message)
        }
    }
}
