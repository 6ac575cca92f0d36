//! The starts of runs, as parts of the statements that grant a lock and give it back.
//!
//! Worst cases: the statement that grants waits for the row while another run is granted the lock and gives it back (the row is looked
//! at as it is then, and by a time from before the wait: what began since lies in the future, which is in the way); the server's clock
//! is set back (likewise, and then judged with the row's own time); a row was judged and is changed (its revision says so).

use super::{
    statement::{Value, literal},
    table::ascii,
};
use crate::{
    backends::sql::{Begin, Column, columns},
    lock::{RunRecord, RunState, Which},
};

/// The parameters that [`granting`] adds to a statement, as they are named in it.
const NAMES: [&str; 7] = ["{place}", "{guard}", "{at_least}", "{window}", "{tries}", "{who}", "{hold}"];

/// Their values. `who` is what the runner says of itself.
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

/// A statement that grants, with what it asks of the starts in the row `l` and writes into it. It has `own` parameters, before those of
/// [`values`]. `now` is the time in its condition, unless the rules were asked about these starts before.
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

/// That nothing can be, whatever else is in the row.
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

/// What a statement that gives the hold with this fence back sets in the row `l`, after its other columns.
pub(super) fn outcome(stage: Option<RunState>, fence: &str) -> String {
    let Some(stage) = stage else { return String::new() };
    let undone = ", paced_at = CASE WHEN l.paced_fence = {fence} THEN NULL ELSE l.paced_at END";
    let sql = ", start_stage = CASE WHEN l.start_fence = {fence} AND l.start_stage = 'started' THEN '{stage}' ELSE l.start_stage END"
        .to_owned()
        + if stage == RunState::Cancelled { undone } else { "" };
    sql.replace("{fence}", fence).replace("{stage}", stage.as_str())
}

/// What a statement that writes the row `l` back also sets, where other starts are recorded by now.
pub(super) fn recorded(record: &RunRecord) -> String {
    let assign = |(name, column): (&str, Column)| {
        let json = if let Column::Json(Some(json)) = &column { Some(ascii(json)) } else { None };
        let int = |number: Option<i64>| literal(Value::MaybeInt(number));
        let value = match &column {
            Column::Time(ms) => format!("timestamp 'epoch' + {} * interval '1 millisecond'", int(*ms)),
            Column::Int(number) => int(*number),
            Column::Bytes(text) | Column::Text(text) => literal(Value::Maybe(text.as_deref())),
            Column::Json(_) => literal(Value::Maybe(json.as_deref())),
        };
        format!(", {name} = {value}")
    };
    columns(record).into_iter().map(assign).collect()
}

/// The names that start with $1, in one of the tables; for [`Which::Kept`] those whose run records may keep other runs away.
pub(super) fn known(table: &str, which: Which) -> String {
    let kept = match which {
        Which::All => "",
        Which::Kept => {
            " AND paced_at + greatest(coalesce(guard_ms, 0), coalesce(at_least_ms, 0)) * interval '1 millisecond' > timezone('utc', clock_timestamp())"
        }
    };
    format!("SELECT name FROM {table} WHERE left(name, length($1)) = $1{kept} ORDER BY name COLLATE \"C\"")
}
