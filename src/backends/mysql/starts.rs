//! Run records, as parts of the statements that grant a lock and give it back.
//!
//! Worst cases: the granting statement waits for the row while another run is granted the lock and
//! gives it back (the statement checks the row after the wait, by a time from before the wait: a
//! run that began since lies in the future, and denies the grant); the server's clock is set back
//! (likewise, and the row is then judged by its own time); a row changes after it was judged (its
//! revision differs).

use super::statement::{Value, literal, substitute};
use crate::{
    backends::sql::{Begin, RunColumn, columns},
    lock::{RunRecord, Which},
};

/// The columns of a run record, in the order of [`columns`].
pub(super) const STARTS: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', l.paced_at) DIV 1000, l.paced_fence, l.paced_place, l.guard_ms, \
    l.at_least_ms, l.paced_who, l.paced_hold, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', l.start_at) DIV 1000, l.start_fence, l.start_stage, \
    l.start_tries, l.start_window_ms, l.start_who, l.start_hold, l.paced_replaced, l.start_replaced";

/// The cooldown that a run replaces, as JSON of [`Cooldown`](crate::lock::Cooldown), if it may
/// still matter.
const REPLACED_COOLDOWN: &str = "CASE WHEN paced_hold = :hold THEN paced_replaced \
    WHEN TIMESTAMPADD(MICROSECOND, GREATEST(guard_ms, at_least_ms) * 1000, paced_at) > UTC_TIMESTAMP(6) THEN JSON_OBJECT(\
    's', TIMESTAMPDIFF(MICROSECOND, '1970-01-01', paced_at) DIV 1000, 'f', paced_fence, 'p', CONVERT(paced_place USING utf8mb4), \
    'g', guard_ms, 'l', at_least_ms, 'm', JSON_EXTRACT(paced_who, '$'), 'h', COALESCE(paced_hold, '')) END";

/// The run record's condition and assignments in a granting statement.
pub(super) struct Granting {
    /// Assignments, before the fence is counted. Empty, or with a comma at the end.
    pub set: String,
    /// The columns of a new row, with a comma at the start.
    pub columns: String,
    /// See `columns`.
    pub values: String,
    /// The condition that no run record can deny the grant, and that none that may still matter is
    /// replaced.
    pub clear: String,
}

impl Granting {
    pub(super) fn of(begin: &Begin<'_>, hold: &str, metadata: Option<&str>) -> Self {
        let int = |number: Option<i64>| Value::Int(number.unwrap_or_default());
        let values = [
            ("place", begin.place.map_or(Value::Null, Value::Bytes)),
            ("guard", int(begin.guard_ms)),
            ("least", int(begin.at_least_ms)),
            ("window", int(begin.window_ms)),
            ("tries", Value::Int(begin.tries)),
            ("who", Value::text_or_null(metadata)),
            ("hold", Value::Text(hold)),
        ];
        let mut columns = Vec::new();
        if begin.is_paced() {
            columns.extend([
                // MySQL carries out the assignments in their order, and this one reads the columns.
                ("paced_replaced", REPLACED_COOLDOWN),
                ("paced_at", "UTC_TIMESTAMP(6)"),
                ("paced_fence", ""),
                ("paced_place", ":place"),
                ("guard_ms", ":guard"),
                ("at_least_ms", ":least"),
                ("paced_who", ":who"),
                ("paced_hold", ":hold"),
            ]);
        }
        if begin.window_ms.is_some() {
            columns.extend([
                ("start_at", "UTC_TIMESTAMP(6)"),
                ("start_fence", ""),
                ("start_stage", "'started'"),
                ("start_tries", ":tries"),
                ("start_window_ms", ":window"),
                ("start_who", ":who"),
                ("start_hold", ":hold"),
                ("start_replaced", "NULL"),
            ]);
        }
        let now = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";
        let next = format!("GREATEST(fence + 1, {now})");
        let fill = |text: &str| substitute(text, &values);
        let [mut set, mut names, mut new] = [const { String::new() }; 3];
        for (column, value) in columns {
            let or = |fence| if value.is_empty() { fence } else { value };
            set.extend([column, " = ", or(&next), ", "]);
            names.extend([", ", column]);
            // A new row has no cooldown that could be replaced.
            let replaces = column == "paced_replaced";
            new.extend([", ", if replaces { "NULL" } else { or(now) }]);
        }
        let mut clear = "COALESCE(TIMESTAMPADD(MICROSECOND, at_least_ms * 1000, paced_at) <= UTC_TIMESTAMP(6), 1)".to_owned();
        if begin.guard_ms.is_some() {
            clear += " AND COALESCE(paced_place = :place OR TIMESTAMPADD(MICROSECOND, guard_ms * 1000, paced_at) <= UTC_TIMESTAMP(6), 1)";
        }
        // A cancelled cooldown has no time: the one before may count.
        clear += " AND (paced_at IS NOT NULL OR paced_replaced IS NULL)";
        if begin.window_ms.is_some() {
            clear += " AND COALESCE(TIMESTAMPADD(MICROSECOND, GREATEST(:window, start_window_ms) * 1000, start_at) <= UTC_TIMESTAMP(6), 1) AND start_replaced IS NULL";
        }
        Self {
            set: fill(&set),
            columns: names,
            values: fill(&new),
            clear: fill(&clear),
        }
    }
}

/// Returns the statement for the names of this mode with this start; for [`Which::Kept`] those whose
/// run records may deny other runs.
pub(super) fn known(which: Which) -> String {
    let kept = match which {
        Which::All => "",
        Which::Kept => {
            " AND TIMESTAMPADD(MICROSECOND, GREATEST(COALESCE(guard_ms, 0), COALESCE(at_least_ms, 0)) * 1000, paced_at) > UTC_TIMESTAMP(6)"
        }
    };
    format!(
        "SELECT name FROM :table WHERE LEFT(name, LENGTH(:start)) = :start AND name >= :start AND mode <=> :mode{kept} ORDER BY name;"
    )
}

/// Returns the assignments of a changed run record in a statement that writes a row back, with a
/// comma at the end.
pub(super) fn recorded(record: &RunRecord) -> String {
    let assign = |(name, column): (&str, RunColumn)| {
        let value = match &column {
            RunColumn::Time(None) => "NULL".to_owned(),
            RunColumn::Time(Some(ms)) => {
                format!("TIMESTAMPADD(MICROSECOND, {ms} * 1000, '1970-01-01 00:00:00.000000')")
            }
            RunColumn::Int(number) => literal(number.map_or(Value::Null, Value::Int)),
            RunColumn::Bytes(bytes) => literal(bytes.as_deref().map_or(Value::Null, Value::Bytes)),
            RunColumn::Text(words) | RunColumn::Json(words) => {
                literal(Value::text_or_null(words.as_deref()))
            }
        };
        format!("{name} = {value}, ")
    };
    columns(record).into_iter().map(assign).collect()
}
