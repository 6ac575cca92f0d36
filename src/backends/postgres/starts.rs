//! Run records, as parts of the statements that grant a lock and give it back.
//!
//! Worst cases: the granting statement waits for the row while another run is granted the lock and gives it back (the statement checks
//! the row after the wait, by a time from before the wait: a run that began since lies in the future, and denies the grant); the server's
//! clock is set back (likewise, and the row is then judged by its own time); a row changes after it was judged (its revision differs).

use super::statement::{Value, ascii, literal};
use crate::{
    backends::sql::{Begin, RunColumn, columns},
    lock::{RunRecord, RunState, Which},
};

/// The names of the parameters that [`granting`] adds to a statement.
const NAMES: [&str; 7] = ["{place}", "{guard}", "{at_least}", "{window}", "{tries}", "{who}", "{hold}"];

/// Returns the values of [`NAMES`]. `who` is the runner's metadata.
pub(super) fn values<'a>(begin: &'a Begin<'a>, who: Option<&'a str>, hold: &'a str) -> [Value<'a>; NAMES.len()] {
    [
        Value::Maybe(begin.place),
        Value::Int(begin.guard_ms.unwrap_or_default()),
        Value::Int(begin.at_least_ms.unwrap_or_default()),
        Value::MaybeInt(begin.window_ms),
        Value::Int(begin.tries),
        Value::Maybe(who),
        Value::Text(hold),
    ]
}

/// Fills the run record's condition and assignments for the row `l` into a granting statement, which has `own` parameters before those of
/// [`values`]. `now` is the time in the condition; `None` if the run record was judged before.
pub(super) fn granting(sql: &str, begin: &Begin<'_>, own: usize, now: Option<&str>) -> String {
    let [mut columns, mut values, mut set] = [const { String::new() }; 3];
    if begin.is_paced() {
        columns += ", paced_at, paced_fence, paced_place, guard_ms, at_least_ms, paced_who, paced_hold";
        values += ", t.now, (extract(epoch FROM t.now) * 1000000)::bigint, {place}, {guard}, {at_least}, {who}, {hold}";
        set += ", paced_at = excluded.paced_at, paced_fence = greatest(l.fence + 1, excluded.fence), paced_place = excluded.paced_place, \
                guard_ms = excluded.guard_ms, at_least_ms = excluded.at_least_ms, paced_who = excluded.paced_who, \
                paced_hold = excluded.paced_hold";
    }
    if begin.window_ms.is_some() {
        columns += ", start_at, start_fence, start_stage, start_tries, start_window_ms, start_who, start_hold";
        values += ", t.now, (extract(epoch FROM t.now) * 1000000)::bigint, 'started', {tries}, {window}, {who}, {hold}";
        set += ", start_at = excluded.start_at, start_fence = greatest(l.fence + 1, excluded.fence), start_stage = excluded.start_stage, \
                start_tries = excluded.start_tries, start_window_ms = excluded.start_window_ms, start_who = excluded.start_who, \
                start_hold = excluded.start_hold";
    }
    let nothing = now.map_or_else(String::new, |now| nothing_in_the_way(begin).replace("{now}", now));
    let sql = sql
        .replace("{start_columns}", &columns)
        .replace("{start_values}", &values)
        .replace("{start_set}", &set)
        .replace("{nothing_in_the_way}", &nothing);
    NAMES.iter().zip(own + 1..).fold(sql, |sql, (name, number)| sql.replace(name, &format!("${number}")))
}

/// Returns the condition that no run record can deny the grant.
fn nothing_in_the_way(begin: &Begin<'_>) -> String {
    let mut sql = "AND coalesce(l.paced_at + l.at_least_ms * interval '1 millisecond' <= {now}, true)".to_owned();
    if begin.guard_ms.is_some() {
        sql += " AND coalesce(l.paced_place = {place} OR l.paced_at + l.guard_ms * interval '1 millisecond' <= {now}, true)";
    }
    if begin.window_ms.is_some() {
        sql += " AND coalesce(l.start_at + {window} * interval '1 millisecond' <= {now}, true)";
    }
    sql
}

/// Returns the assignments of a statement that releases the hold with this fence, for the row `l`, after its other columns.
pub(super) fn outcome(stage: Option<RunState>, fence: &str) -> String {
    let Some(stage) = stage else { return String::new() };
    let undone = ", paced_at = CASE WHEN l.paced_fence = {fence} THEN NULL ELSE l.paced_at END";
    let sql = ", start_stage = CASE WHEN l.start_fence = {fence} AND l.start_stage = 'started' THEN '{stage}' ELSE l.start_stage END"
        .to_owned()
        + if stage == RunState::Cancelled { undone } else { "" };
    sql.replace("{fence}", fence).replace("{stage}", stage.as_str())
}

/// Returns the assignments of a changed run record in a statement that writes the row `l` back.
pub(super) fn recorded(record: &RunRecord) -> String {
    let assign = |(name, column): (&str, RunColumn)| {
        let json = if let RunColumn::Json(Some(json)) = &column { Some(ascii(json)) } else { None };
        let int = |number: Option<i64>| literal(Value::MaybeInt(number));
        let value = match &column {
            RunColumn::Time(ms) => format!("timestamp 'epoch' + {} * interval '1 millisecond'", int(*ms)),
            RunColumn::Int(number) => int(*number),
            RunColumn::Bytes(text) | RunColumn::Text(text) => literal(Value::Maybe(text.as_deref())),
            RunColumn::Json(_) => literal(Value::Maybe(json.as_deref())),
        };
        format!(", {name} = {value}")
    };
    columns(record).into_iter().map(assign).collect()
}

/// Returns the statement for the names in a table that start with $1; for [`Which::Kept`] those whose run records may deny other runs.
pub(super) fn known(table: &str, which: Which) -> String {
    let kept = match which {
        Which::All => "",
        Which::Kept => {
            " AND paced_at + greatest(coalesce(guard_ms, 0), coalesce(at_least_ms, 0)) * interval '1 millisecond' > timezone('utc', clock_timestamp())"
        }
    };
    format!("SELECT name FROM {table} WHERE left(name, length($1)) = $1{kept} ORDER BY name COLLATE \"C\"")
}
