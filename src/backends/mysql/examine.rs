//! The operator's view of a MySQL or MariaDB server: its settings, and the rights that dlock needs.

use std::time::Duration;

use super::{
    CAPABILITIES, Mysql, PORT,
    checks::ServerVersion,
    connection::{Answers, Connection, first_row},
    names::Tables,
    options::MysqlOptions,
    schema,
};
use crate::{
    backends::{
        net::transport,
        sql::{Fields, SqlDatabase, SqlMode, SqlOptions, rights},
    },
    lock::{Capabilities, Check, Error, Finding, Init, Notice, Origin, Result, check},
};

/// The checks of `dlock doctor`.
pub const CHECKS: &[Check] = &[
    check("version", "the server's version"),
    check("role", "whether it takes changes (read_only)"),
    check(
        "cluster",
        "whether it is a node of a Galera cluster, whose nodes can grant one lock twice",
    ),
    check(
        "proxy",
        "whether something in between shares the server's sessions among clients, as ProxySQL does",
    ),
    check(
        "durability",
        "innodb_flush_log_at_trx_commit, sync_binlog, innodb_flush_method and innodb_doublewrite: what a crash forgets",
    ),
    check(
        "replication",
        "replicas, and whether a grant waits for one of them",
    ),
    check(
        "timeouts",
        "wait_timeout, and what ends a transaction that is idle",
    ),
    check(
        "connections",
        "how many sessions are used of max_connections, and how many the user may have",
    ),
    check(
        "schema",
        "whether the tables are there, in this version's layout",
    ),
    transport::CHECK,
];

/// The shortest `wait_timeout`, in seconds, with which sessions need not be opened again and again.
const SHORT: i64 = 60;

impl SqlDatabase for Mysql {
    type Options = MysqlOptions;
    type Tables = Tables;
    type Session = Connection;
    const CAPABILITIES: [&'static Capabilities; 3] = CAPABILITIES;

    fn sql(options: &MysqlOptions) -> &SqlOptions {
        &options.sql
    }

    fn tables(options: &SqlOptions) -> Tables {
        Tables::new(options)
    }

    fn url(options: &SqlOptions) -> String {
        options.redacted_url("mysql", PORT, "socket")
    }

    async fn open(options: &MysqlOptions) -> Result<(Connection, Vec<Notice>)> {
        let session = Connection::open(options).await?;
        let notices = if options.sql.mode == SqlMode::Lease {
            session.server.notices()
        } else {
            Vec::new()
        };
        Ok((session, notices))
    }

    async fn init(
        session: &mut Connection,
        tables: &Tables,
        _: SqlMode,
    ) -> Result<(Init, Vec<Notice>)> {
        Ok((schema::create(session, tables).await?, Vec::new()))
    }

    async fn collect(
        session: &mut Connection,
        tables: &Tables,
        options: &SqlOptions,
        unused_for: Duration,
    ) -> Result<u64> {
        schema::collect(session, tables, options, unused_for).await
    }

    async fn examine(options: &MysqlOptions, tables: &Tables) -> Result<Vec<Finding>> {
        let mut session = Connection::open_to_look(options).await?;
        let read = Variables::read(&mut session).await?;
        let mut found = vec![
            version(&read),
            Finding::ok("role", "the server takes changes"),
        ];
        found.extend(
            ["cluster", "proxy", "durability"].map(|check| Finding::ok(check, fine(check))),
        );
        // The refusals and notices of opening a session become findings here.
        for (check, finding) in refusals(&session, options)
            .into_iter()
            .chain(notices(&session))
            .chain(durability(&read))
        {
            if let Some(at) = found
                .iter()
                .position(|known| known.check == check && known.severity < finding.severity)
            {
                found[at] = finding;
            }
        }
        found.push(replication(&read));
        found.push(timeouts(&read, options.sql.mode));
        found.push(
            match (
                read.number("threads_connected"),
                read.number("max_connections"),
            ) {
                (Some(used), Some(most)) => {
                    let of_user = read
                        .number("max_user_connections")
                        .filter(|limit| *limit > 0);
                    rights::sessions("connections", (used, most), of_user, options.sql.mode)
                }
                _ => Finding::unchecked(
                    "connections",
                    "max_connections",
                    "the server doesn't tell it",
                ),
            },
        );
        found.push(layout(&mut session, tables).await);
        found.push(rights::tls(
            &options.sql,
            "ssl-mode=VERIFY_IDENTITY, and ssl-ca=FILE for an authority of your own",
        ));
        Ok(found)
    }

    async fn time_us(session: &mut Connection) -> Result<i64> {
        let answers = session
            .ask("SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))")
            .await?;
        first_row(&answers, 0)?.int()
    }
}

fn fine(check: &str) -> &'static str {
    match check {
        "cluster" => "no node of a Galera cluster",
        "proxy" => "no proxy that says so is in between",
        _ => {
            "innodb_flush_log_at_trx_commit 1, sync_binlog 1 or no binary log, innodb_doublewrite on"
        }
    }
}

fn refusals(session: &Connection, options: &MysqlOptions) -> Vec<(&'static str, Finding)> {
    let of = |refused: Result<()>| {
        let Error {
            origin,
            message,
            hint,
            ..
        } = refused.err()?;
        let check = match origin {
            Origin::WrongServer => "role",
            _ if message.contains("statements need") => return None,
            _ if message.contains("proxy") => "proxy",
            _ => "cluster",
        };
        let found = Finding {
            fix: hint,
            ..Finding::not_safe(check, message, "dlock takes no lock there")
        };
        Some((check, found))
    };
    let sessions = if options.sql.mode == SqlMode::Lease {
        Ok(())
    } else {
        session.server.check_sessions(options.sql.mode, false)
    };
    [session.server.check(options), sessions]
        .into_iter()
        .filter_map(of)
        .collect()
}

fn notices(session: &Connection) -> Vec<(&'static str, Finding)> {
    let check = |notice: &Notice| match &notice.text {
        text if text.contains("innodb_flush_log_at_trx_commit") || text.contains("sync_binlog") => {
            "durability"
        }
        text if text.contains("proxy") => "proxy",
        _ => "cluster",
    };
    session
        .server
        .notices()
        .into_iter()
        .map(|notice| (check(&notice), Finding::noticed(check(&notice), notice)))
        .collect()
}

/// Variables and counters of the server, by name.
struct Variables(Vec<(String, String)>);

impl Variables {
    async fn read(session: &mut Connection) -> Result<Self> {
        let variables = "'version', 'wait_timeout', 'max_connections', 'log_bin', 'rpl_semi_sync_master_enabled', \
            'rpl_semi_sync_source_enabled', 'idle_transaction_timeout', 'idle_write_transaction_timeout', 'innodb_flush_method', \
            'innodb_doublewrite'";
        let counters = "'Threads_connected', 'Slaves_connected', 'Rpl_semi_sync_master_clients', 'Rpl_semi_sync_source_clients', \
            'Rpl_semi_sync_master_status', 'Rpl_semi_sync_source_status'";
        // The session's value is the account's limit, or else that of all accounts.
        let batch = format!(
            "SHOW GLOBAL VARIABLES WHERE Variable_name IN ({variables}); SHOW GLOBAL STATUS WHERE Variable_name IN ({counters}); \
             SELECT 'max_user_connections', @@session.max_user_connections UNION SELECT 'account', CURRENT_USER();"
        );
        let answers = session.ask(&batch).await?;
        let mut read = Vec::new();
        for row in answers.iter().flat_map(|answer| &answer.rows) {
            let mut fields = Fields::of(row);
            read.push((
                fields.text()?.to_ascii_lowercase(),
                fields.text_or_null()?.unwrap_or_default(),
            ));
        }
        let mut read = Self(read);
        if read.text("slaves_connected").is_none() {
            let replicas = replicas(session).await?;
            read.0
                .extend(replicas.map(|count| ("slaves_connected".to_owned(), count.to_string())));
        }
        Ok(read)
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }

    fn number(&self, name: &str) -> Option<i64> {
        self.text(name)?.parse().ok()
    }
}

fn version(read: &Variables) -> Finding {
    const ID: &str = "version";
    let Some(text) = read.text("version") else {
        return Finding::unchecked(ID, "the version", "the server doesn't tell it");
    };
    let version = ServerVersion::of(text);
    match version.outdated() {
        Some(oldest) => Finding::not_safe(
            ID,
            version.to_string(),
            "it lacks what dlock's statements need",
        )
        .fix(oldest),
        None => Finding::ok(ID, version.to_string()),
    }
}

/// Returns the findings about commits beyond the checks of each session.
fn durability(read: &Variables) -> Vec<(&'static str, Finding)> {
    const ID: &str = "durability";
    let method = read
        .text("innodb_flush_method")
        .unwrap_or_default()
        .to_ascii_lowercase();
    let found = if matches!(&*method, "nosync" | "littlesync") {
        let risk = "a crash of the server's host can lose locks that are held";
        Some(
            Finding::warn(ID, format!("innodb_flush_method {method}"), risk)
                .fix("set innodb_flush_method to O_DIRECT, and restart the server"),
        )
    } else if read
        .text("innodb_doublewrite")
        .is_some_and(|on| matches!(on, "OFF" | "0"))
    {
        let risk = "a crash of the server's host can leave a page half written, unless its file system writes pages as a whole";
        Some(
            Finding::warn(ID, "innodb_doublewrite is off", risk)
                .fix("set innodb_doublewrite to ON, and restart the server"),
        )
    } else if ["innodb_flush_method", "innodb_doublewrite"]
        .into_iter()
        .any(|name| read.text(name).is_none())
    {
        Some(Finding::unchecked(
            ID,
            "innodb_flush_method and innodb_doublewrite",
            "the server doesn't tell them",
        ))
    } else {
        None
    };
    found.into_iter().map(|found| (ID, found)).collect()
}

/// The right to count replicas on MySQL, beyond dlock's rights. MariaDB counts its replicas for
/// every user.
pub(super) const REPLICAS: &str = "SELECT (processlist_command) ON performance_schema.threads";

/// Returns the number of connected replicas of a server that does not count them; `None` if this
/// user may not see that.
async fn replicas(session: &mut Connection) -> Result<Option<usize>> {
    for question in [
        "SELECT 1 FROM performance_schema.threads WHERE processlist_command LIKE 'Binlog Dump%'",
        "SHOW REPLICAS",
    ] {
        let Answers {
            answers,
            server_error,
        } = session.try_ask(question).await?;
        if server_error.is_none() {
            return Ok(answers.first().map(|answer| answer.rows.len()));
        }
    }
    Ok(None)
}

fn replication(read: &Variables) -> Finding {
    const ID: &str = "replication";
    let account = read.text("account").unwrap_or_default();
    let (user, host) = account.rsplit_once('@').unwrap_or((account, "%"));
    if read
        .text("log_bin")
        .is_some_and(|on| on == "OFF" || on == "0")
    {
        return Finding::ok(ID, "no binary log, and so no replica");
    }
    let either = |one: &str, other: &str| read.number(one).or_else(|| read.number(other));
    let on = |names: [&str; 2]| names.into_iter().any(|name| read.text(name) == Some("ON"));
    let enabled = on([
        "rpl_semi_sync_master_enabled",
        "rpl_semi_sync_source_enabled",
    ]);
    // After a commit that no replica confirmed in time, the server stops waiting for replicas.
    let waits = enabled && on(["rpl_semi_sync_master_status", "rpl_semi_sync_source_status"]);
    match (
        waits,
        either(
            "rpl_semi_sync_master_clients",
            "rpl_semi_sync_source_clients",
        ),
        read.number("slaves_connected"),
    ) {
        (true, Some(count), _) if count > 0 => Finding::ok(
            ID,
            format!("{count} replicas that a commit waits for (semi-synchronous)"),
        ),
        (_, _, Some(0)) => Finding::ok(ID, "no replica is connected"),
        (_, _, Some(count)) => {
            let risk = "a failover forgets a lock that the new primary had not heard of, so that two may run";
            let why = if enabled {
                " (semi-synchronous replication fell back)"
            } else {
                ""
            };
            Finding::warn(ID, format!("{count} replicas, and no commit waits for one{why}"), risk)
                .fix("semi-synchronous replication with AFTER_SYNC, and promote none but those that confirmed")
        }
        (_, _, None) => Finding::unchecked(
            ID,
            "replicas",
            "the server doesn't tell this user how many are connected",
        )
        .fix(format!("GRANT {REPLICAS} TO '{user}'@'{host}'")),
    }
}

fn timeouts(read: &Variables, mode: SqlMode) -> Finding {
    const ID: &str = "timeouts";
    let idle = ["idle_transaction_timeout", "idle_write_transaction_timeout"]
        .into_iter()
        .find_map(|name| {
            let seconds = read.number(name).filter(|seconds| *seconds > 0)?;
            Some((name, seconds))
        });
    if let (SqlMode::Row, Some((name, seconds))) = (mode, idle) {
        let risk = "the server ends the transaction that has a lock, and its holder is stopped, if a renewal is later than that";
        return Finding::warn(ID, format!("{name} {seconds}"), risk)
            .fix(format!("SET GLOBAL {name} = 0"));
    }
    match read.number("wait_timeout") {
        Some(seconds) if seconds < SHORT => {
            let risk = "a session that has no lock ends while it waits, and is made again and again; one that has a lock sets its own";
            Finding::warn(ID, format!("wait_timeout {seconds}"), risk)
                .fix("SET GLOBAL wait_timeout = 28800")
        }
        Some(seconds) => Finding::ok(ID, format!("wait_timeout {seconds}")),
        None => Finding::unchecked(ID, "wait_timeout", "the server doesn't tell it"),
    }
}

async fn layout(session: &mut Connection, tables: &Tables) -> Finding {
    let table = tables.table();
    rights::unusable_tables(schema::is_complete(session, tables).await, table)
        .unwrap_or_else(|| rights::usable_tables(table))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fix_names_the_account_that_lacks_the_right() {
        let read = Variables(vec![("account".into(), "ana@h@10.0.0.%".into())]);
        let fix = replication(&read).fix;
        assert_eq!(fix, Some(format!("GRANT {REPLICAS} TO 'ana@h'@'10.0.0.%'")));
    }
}
