//! The sessions that have a lock, as the server tells.
//!
//! Read only, except that reading in `mode=row` share-locks the row for an instant.

use super::{
    Mysql,
    connection::{Connection, first_row},
    failure,
    names::{advisory, is_locked},
    readers::presence,
    statement::{Value, literal},
};
use crate::{
    backends::sql::{Client, Fields, Server, SqlMode},
    lock::{Key, Progress, Result, document::Document},
};

/// What the server tells of the sessions that have a lock.
pub(in crate::backends) struct MysqlHolders {
    /// The number of the session that has the lock alone, or 0 in `mode=row`, where it is not told.
    pub alone: Option<i64>,
    /// The numbers of the sessions that share the row, of those that the document knows.
    pub sharing: Vec<i64>,
}

/// Returns the server, and the sessions that have a lock, of those that its document knows.
pub(super) async fn holders(
    client: &Client<Mysql>,
    session: &mut Connection,
    key: &Key,
    document: &Document,
) -> Result<(Server, MysqlHolders)> {
    let server = session.served_by()?;
    let (tables, name) = (&client.tables, client.names.of(key));
    if client.mode() == SqlMode::Advisory {
        let holder = advisory(&client.options, key, &name);
        let answers = session
            .ask(&format!("SELECT IS_USED_LOCK({holder})"))
            .await?;
        let (alone, sharing) = (first_row(&answers, 0)?.int_or_null()?, Vec::new());
        return Ok((server, MysqlHolders { alone, sharing }));
    }
    // If this session can't lock the row, another one has it locked. This session releases the row
    // at once.
    let share = if session.server.mariadb {
        "LOCK IN SHARE MODE"
    } else {
        "FOR SHARE"
    };
    let mut batch = tables.fill(
        &format!("SELECT COUNT(*) FROM :rows WHERE name = :name;\nSELECT COUNT(*) FROM (SELECT 1 FROM :rows WHERE name = :name {share} SKIP LOCKED) AS free;"),
        &[("name", Value::Bytes(&name))],
    );
    let readers: Vec<_> = document
        .readers()
        .filter_map(|(hold, session)| Some((hold, server.number(session)?)))
        .collect();
    for (hold, number) in &readers {
        let presence = presence(
            tables,
            &name,
            &number.to_string(),
            &literal(Value::Text(hold)),
        );
        let has = format!("SELECT IS_USED_LOCK({presence}) <=> {number};\n");
        batch.push_str(&has);
    }
    let answers = session.ask(&batch).await?;
    let is = |nth: usize| first_row(&answers, nth)?.int().map(|it| it != 0);
    let alone = (is(0)? && !is(1)?).then_some(0);
    let mut sharing = Vec::new();
    for (nth, (_, number)) in (2..).zip(&readers) {
        if is(nth)? {
            sharing.push(*number);
        }
    }
    if answers.len() < 2 + readers.len() {
        return Err(failure::unreadable());
    }
    Ok((server, MysqlHolders { alone, sharing }))
}

/// Returns the names with this start of the locks that sessions may have, in order: by their
/// documents, or by the server's locks.
pub(super) async fn held(
    client: &Client<Mysql>,
    session: &mut Connection,
    start: &str,
    progress: &Progress,
) -> Result<Vec<String>> {
    let held = "SELECT name FROM :table WHERE LEFT(name, LENGTH(:start)) = :start AND name >= :start AND mode <=> :mode \
        AND (document LIKE '%\"s\":[%' OR :is_locked) ORDER BY name;";
    let is_locked = is_locked(&client.options);
    let values = [
        ("start", Value::Bytes(start)),
        ("is_locked", Value::Sql(&is_locked)),
    ];
    let answers = session
        .ask_long(&client.tables.fill(held, &values), progress)
        .await?;
    let rows = answers.iter().flat_map(|answer| &answer.rows);
    rows.map(|row| Fields::of(row).text()).collect()
}
