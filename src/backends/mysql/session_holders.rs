//! The holders of locks that sessions keep: the server's view of its locks, and the holders' own
//! records.
//!
//! Read only, except that reading in `mode=row` share-locks the row for an instant.

use std::time::Duration;

use super::{
    Mysql, checks::ServerCheck, connection::Answer, failure, life::Life, names::advisory,
    readers::reads, statement::Value,
};
use crate::{
    backends::sql::{Client, Fields, SqlMode, as_fence, foreign_holder, micros},
    lock::{Fence, Holder, Key, Mode, Result},
};

/// Returns the statements for a lock's holders, which [`read_holders`] reads.
pub(super) fn look_sql(client: &Client<Mysql>, key: &Key, server: &ServerCheck) -> String {
    let (tables, name, is_row) = (
        &client.tables,
        client.names.of(key),
        client.mode() == SqlMode::Row,
    );
    let holder = if is_row {
        "0".to_owned()
    } else {
        format!("IS_USED_LOCK({})", advisory(&client.options, key, &name))
    };
    let values = [
        ("name", Value::Bytes(&name)),
        ("holder", Value::Sql(&holder)),
    ];
    let look = tables.fill(include_str!("sql/look_session.sql"), &values);
    let life = Life::of(server);
    let left = tables.fill(
        include_str!("sql/left_holds.sql"),
        &[&values[..], &life.values()].concat(),
    );
    if !is_row {
        return look + &left;
    }
    // If this reader can't lock the row, a holder has it locked. This reader releases the row at
    // once.
    let share = if server.mariadb {
        "LOCK IN SHARE MODE"
    } else {
        "FOR SHARE"
    };
    let template = format!(
        "SELECT 1 FROM :rows WHERE name = :name;\nSELECT 1 FROM :rows WHERE name = :name {share} SKIP LOCKED;"
    );
    let reads = reads(tables, &name);
    let readers = [("name", Value::Bytes(&name)), ("reads", Value::Sql(&reads))];
    look + &tables.fill(&template, &values)
        + &tables.fill(include_str!("sql/look_readers.sql"), &readers)
        + &left
}

/// Returns how long the lock stays busy because of holds whose server is gone: of all others it is
/// known when they renewed.
pub(super) fn left_for(holders: &[Holder]) -> Option<Duration> {
    holders
        .iter()
        .filter(|holder| !holder.foreign && holder.renewed_ago.is_none())
        .filter_map(|holder| holder.expires_in)
        .max()
}

/// Returns the holders of the lock, and the last fence given out, from the answers to [`look_sql`].
pub(super) fn read_holders(answers: &[Answer], at: usize) -> Result<(Vec<Holder>, Option<Fence>)> {
    let (mut holders, fence, looked) = read_present(answers, at)?;
    for row in answers
        .get(at + looked)
        .map(|answer| &*answer.rows)
        .unwrap_or_default()
    {
        let mut fields = Fields::of(row);
        let mode = if fields.flag()? {
            Mode::Shared
        } else {
            Mode::Exclusive
        };
        holders.push(Holder {
            fence: Some(as_fence(fields.int()?)),
            foreign: false,
            held_for: Some(micros(fields.int()?)),
            expires_in: Some(micros(fields.int()?)),
            metadata: fields.json()?,
            ..foreign_holder(mode)
        });
    }
    Ok((holders, fence))
}

/// Returns the holders whose sessions have the lock, the last fence, and the number of answers
/// read.
fn read_present(answers: &[Answer], at: usize) -> Result<(Vec<Holder>, Option<Fence>, usize)> {
    let row = answers
        .get(at)
        .and_then(|answer| answer.rows.first())
        .ok_or_else(failure::unreadable)?;
    let mut fields = Fields::of(row);
    let (holder, fence, layout) = (
        fields.int_or_null()?,
        fields.int_or_null()?,
        fields.int_or_null()?,
    );
    let (session, held, silent) = (
        fields.int_or_null()?,
        fields.int_or_null()?,
        fields.int_or_null()?,
    );
    let (ttl, metadata, mark) = (
        fields.int_or_null()?,
        fields.text_or_null()?,
        fields.mark()?,
    );
    failure::check_layout(layout.unwrap_or_default())?;
    // A hold may have been undone before it counted a fence.
    let fence = fence.filter(|fence| *fence > 0).map(as_fence);
    // mode=row: if readers are known, no other session has the row. No more readers can lock it
    // while a writer waits.
    let looked = if holder == Some(0) { 4 } else { 1 };
    let readers = answers
        .get(at + 3)
        .filter(|_| holder == Some(0))
        .map(|answer| &*answer.rows)
        .unwrap_or_default();
    if !readers.is_empty() {
        return Ok((
            readers
                .iter()
                .map(|row| reader(Fields::of(row)))
                .collect::<Result<_>>()?,
            fence,
            looked,
        ));
    }
    let held_by = match holder {
        // mode=row: whether the row exists, and whether this reader could lock it.
        Some(0) => {
            let found = |nth: usize| {
                answers
                    .get(at + nth)
                    .is_some_and(|answer| !answer.rows.is_empty())
            };
            (found(1) && !found(2)).then_some(session)
        }
        Some(number) => Some(session.filter(|session| *session == number)),
        None => None,
    };
    let Some(ours) = held_by else {
        return Ok((Vec::new(), fence, looked));
    };
    let mut holder = foreign_holder(Mode::Exclusive);
    if ours.is_some() {
        holder = Holder {
            metadata: metadata.and_then(|json| serde_json::from_str(&json).ok()),
            fence,
            foreign: false,
            held_for: held.map(micros),
            renewed_ago: silent.map(micros),
            expires_in: ttl
                .zip(silent)
                .map(|(ttl, silent)| micros(ttl.saturating_mul(1000) - silent)),
            broken: mark,
            ..holder
        };
    }
    Ok((vec![holder], fence, looked))
}

fn reader(mut fields: Fields<'_>) -> Result<Holder> {
    let (fence, held, silent, ttl) = (fields.int()?, fields.int()?, fields.int()?, fields.int()?);
    Ok(Holder {
        metadata: fields.json()?,
        fence: Some(as_fence(fence)),
        foreign: false,
        held_for: Some(micros(held)),
        renewed_ago: Some(micros(silent)),
        expires_in: Some(micros(ttl.saturating_mul(1000) - silent)),
        broken: fields.mark()?,
        ..foreign_holder(Mode::Shared)
    })
}
