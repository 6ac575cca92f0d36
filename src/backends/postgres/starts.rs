//! Run records, as parts of the statements that grant a lock and give it back.
//!
//! Worst cases: the granting statement waits for the row while another run is granted the lock and
//! gives it back (the statement checks the row after the wait, by a time from before the wait: a
//! run that began since lies in the future, and denies the grant); the server's clock is set back
//! (likewise, and the row is then judged by its own time); a row changes after it was judged (its
//! revision differs).

use super::statement::{Value, ascii, literal};
use crate::{
    backends::sql::{Begin, RunColumn, columns},
    lock::{RunRecord, Which},
};

/// The names of the parameters that [`granting`] adds to a statement.
const NAMES: [&str; 7] = [
    "{place}",
    "{guard}",
    "{at_least}",
    "{window}",
    "{tries}",
    "{who}",
    "{hold}",
];
/// The cooldown that a run replaces, as JSON of [`Cooldown`](crate::lock::Cooldown), if it may
/// still matter.
const REPLACED_COOLDOWN: &str = "CASE WHEN l.paced_hold = {hold} THEN l.paced_replaced \
    WHEN l.paced_at + greatest(l.guard_ms, l.at_least_ms) * interval '1 millisecond' > {now} THEN json_build_object(\
    's', floor(extract(epoch FROM l.paced_at) * 1000)::bigint, 'f', l.paced_fence, 'p', l.paced_place, 'g', l.guard_ms, \
    'l', l.at_least_ms, 'm', l.paced_who::json, 'h', coalesce(l.paced_hold, ''))::text END";

/// Returns the values of [`NAMES`]. `who` is the runner's metadata.
pub(super) fn values<'a>(
    begin: &'a Begin<'a>,
    who: Option<&'a str>,
    hold: &'a str,
) -> [Value<'a>; NAMES.len()] {
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

/// Fills the run record's condition and assignments for the row `l` into a granting statement,
/// which has `own` parameters before those of [`values`]. `now` is the time in the condition.
pub(super) fn granting(sql: &str, begin: &Begin<'_>, own: usize, now: &str) -> String {
    let [mut columns, mut values, mut set] = [const { String::new() }; 3];
    if begin.is_paced() {
        columns +=
            ", paced_at, paced_fence, paced_place, guard_ms, at_least_ms, paced_who, paced_hold";
        values += ", t.now, (extract(epoch FROM t.now) * 1000000)::bigint, {place}, {guard}, {at_least}, {who}, {hold}";
        set += ", paced_at = excluded.paced_at, paced_fence = greatest(l.fence + 1, excluded.fence), paced_place = excluded.paced_place, \
                guard_ms = excluded.guard_ms, at_least_ms = excluded.at_least_ms, paced_who = excluded.paced_who, \
                paced_hold = excluded.paced_hold, paced_replaced = ";
        columns += ", paced_replaced";
        values += ", NULL";
        set += &REPLACED_COOLDOWN.replace("{now}", now);
    }
    if begin.window_ms.is_some() {
        columns += ", start_at, start_fence, start_stage, start_tries, start_window_ms, start_who, start_hold";
        values += ", t.now, (extract(epoch FROM t.now) * 1000000)::bigint, 'started', {tries}, {window}, {who}, {hold}";
        set += ", start_at = excluded.start_at, start_fence = greatest(l.fence + 1, excluded.fence), start_stage = excluded.start_stage, \
                start_tries = excluded.start_tries, start_window_ms = excluded.start_window_ms, start_who = excluded.start_who, \
                start_hold = excluded.start_hold, start_replaced = excluded.start_replaced";
        columns += ", start_replaced";
        values += ", NULL";
    }
    let nothing = nothing_in_the_way(begin).replace("{now}", now);
    let sql = sql
        .replace("{start_columns}", &columns)
        .replace("{start_values}", &values)
        .replace("{start_set}", &set)
        .replace("{nothing_in_the_way}", &nothing);
    NAMES
        .iter()
        .zip(own + 1..)
        .fold(sql, |sql, (name, number)| {
            sql.replace(name, &format!("${number}"))
        })
}

/// Returns the condition that no run record can deny the grant, and that none that may still matter
/// is replaced.
fn nothing_in_the_way(begin: &Begin<'_>) -> String {
    let mut sql =
        "AND coalesce(l.paced_at + l.at_least_ms * interval '1 millisecond' <= {now}, true)"
            .to_owned();
    if begin.guard_ms.is_some() {
        sql += " AND coalesce(l.paced_place = {place} OR l.paced_at + l.guard_ms * interval '1 millisecond' <= {now}, true)";
    }
    // A cancelled cooldown has no time: the one before may count.
    sql += " AND (l.paced_at IS NOT NULL OR l.paced_replaced IS NULL)";
    if begin.window_ms.is_some() {
        sql += " AND coalesce(l.start_at + greatest({window}, l.start_window_ms) * interval '1 millisecond' <= {now}, true) AND l.start_replaced IS NULL";
    }
    sql
}

/// Returns the assignments of a changed run record in a statement that writes the row `l` back.
pub(super) fn recorded(record: &RunRecord) -> String {
    let assign = |(name, column): (&str, RunColumn)| {
        let json = if let RunColumn::Json(Some(json)) = &column {
            Some(ascii(json))
        } else {
            None
        };
        let int = |number: Option<i64>| literal(Value::MaybeInt(number));
        let value = match &column {
            RunColumn::Time(ms) => format!(
                "timestamp 'epoch' + {} * interval '1 millisecond'",
                int(*ms)
            ),
            RunColumn::Int(number) => int(*number),
            RunColumn::Bytes(text) | RunColumn::Text(text) => {
                literal(Value::Maybe(text.as_deref()))
            }
            RunColumn::Json(_) => literal(Value::Maybe(json.as_deref())),
        };
        format!(", {name} = {value}")
    };
    columns(record).into_iter().map(assign).collect()
}

/// Returns the statement for the names of this mode that start with $1; for [`Which::Kept`] those
/// whose run records may deny other runs.
pub(super) fn known(which: Which) -> String {
    let kept = match which {
        Which::All => "",
        Which::Kept => {
            " AND paced_at + greatest(coalesce(guard_ms, 0), coalesce(at_least_ms, 0)) * interval '1 millisecond' > timezone('utc', clock_timestamp())"
        }
    };
    format!(
        "SELECT name FROM {{table}} WHERE left(name, length($1)) = $1 AND mode IS NOT DISTINCT FROM {{mode}}{kept} ORDER BY name COLLATE \"C\""
    )
}
