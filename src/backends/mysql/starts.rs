//! The starts of runs, as parts of the statements that grant a lock and give it back.
//!
//! Worst cases: the statement that grants waits for the row while another run is granted the lock and gives it back (the row is looked
//! at as it is then, and by a time from before the wait: what began since lies in the future, which is in the way); the server's clock
//! is set back (likewise, and then judged with the row's own time); a row was judged and is changed (its revision says so).

use super::{
    reading::Fields,
    statement::{Value, substitute},
};
use crate::{
    backends::sql::{Begin, Columns},
    lock::{Result, RunRecord, RunState, Which},
};

/// The columns that [`read`] reads, in its order.
pub(super) const STARTS: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', l.paced_at) DIV 1000, l.paced_fence, l.paced_place, l.guard_ms, \
    l.at_least_ms, l.paced_who, l.paced_hold, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', l.start_at) DIV 1000, l.start_fence, l.start_stage, \
    l.start_tries, l.start_window_ms, l.start_who, l.start_hold";

/// What a statement that grants asks of the starts in its row and writes into it.
pub(super) struct Granting {
    /// Assignments, before the fence is counted. Empty, or with a comma at the end.
    pub set: String,
    /// The same for a new row: columns, with a comma at their begin, and values.
    pub columns: String,
    /// See `columns`.
    pub values: String,
    /// That nothing can be in the way, whatever else is in the row.
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
            new.extend([", ", or(now)]);
        }
        let mut clear = "COALESCE(TIMESTAMPADD(MICROSECOND, at_least_ms * 1000, paced_at) <= UTC_TIMESTAMP(6), 1)".to_owned();
        if begin.guard_ms.is_some() {
            clear += " AND COALESCE(paced_place = :place OR TIMESTAMPADD(MICROSECOND, guard_ms * 1000, paced_at) <= UTC_TIMESTAMP(6), 1)";
        }
        if begin.window_ms.is_some() {
            clear += " AND COALESCE(TIMESTAMPADD(MICROSECOND, :window * 1000, start_at) <= UTC_TIMESTAMP(6), 1)";
        }
        Self { set: fill(&set), columns: names, values: fill(&new), clear: fill(&clear) }
    }
}

/// The names that start so, in one of the tables; for [`Which::Kept`] those whose run records may keep other runs away.
pub(super) fn known(table: &str, which: Which) -> String {
    let kept = match which {
        Which::All => "",
        Which::Kept => {
            " AND TIMESTAMPADD(MICROSECOND, GREATEST(COALESCE(guard_ms, 0), COALESCE(at_least_ms, 0)) * 1000, paced_at) > UTC_TIMESTAMP(6)"
        }
    };
    format!("SELECT name FROM {table} WHERE LEFT(name, LENGTH(:start)) = :start AND name >= :start{kept} ORDER BY name;")
}

/// What a statement that gives the hold of a row's fence back sets besides; with a comma at the end.
pub(super) fn became(stage: Option<RunState>) -> String {
    let Some(stage) = stage else { return String::new() };
    let mut set = format!("start_stage = IF(start_fence = fence AND start_stage = 'started', '{}', start_stage), ", stage.as_str());
    if stage == RunState::Cancelled {
        set += "paced_at = IF(paced_fence = fence, NULL, paced_at), ";
    }
    set
}

/// What a statement that writes a row back sets besides, where other starts are recorded by now; with a comma at the end.
pub(super) fn recorded(record: &RunRecord) -> String {
    let columns = Columns::from(record);
    let int = |number: Option<i64>| number.map_or(Value::Null, Value::Int);
    let time = |ms: Option<i64>| {
        ms.map_or("NULL".to_owned(), |ms| format!("TIMESTAMPADD(MICROSECOND, {ms} * 1000, '1970-01-01 00:00:00.000000')"))
    };
    let (paced_at, start_at) = (time(columns.paced_at_ms), time(columns.start_at_ms));
    let values = [
        ("paced_at", Value::Sql(&paced_at)),
        ("paced_fence", int(columns.paced_fence)),
        ("paced_place", columns.paced_place.as_deref().map_or(Value::Null, Value::Bytes)),
        ("guard", int(columns.guard_ms)),
        ("least", int(columns.at_least_ms)),
        ("paced_who", Value::text_or_null(columns.paced_who.as_deref())),
        ("paced_hold", Value::text_or_null(columns.paced_hold.as_deref())),
        ("start_at", Value::Sql(&start_at)),
        ("start_fence", int(columns.start_fence)),
        ("start_stage", Value::text_or_null(columns.start_stage.as_deref())),
        ("start_tries", int(columns.start_tries)),
        ("start_window", int(columns.start_window_ms)),
        ("start_who", Value::text_or_null(columns.start_who.as_deref())),
        ("start_hold", Value::text_or_null(columns.start_hold.as_deref())),
    ];
    substitute(
        "paced_at = :paced_at, paced_fence = :paced_fence, paced_place = :paced_place, guard_ms = :guard, at_least_ms = :least, \
         paced_who = :paced_who, paced_hold = :paced_hold, start_at = :start_at, start_fence = :start_fence, start_stage = :start_stage, \
         start_tries = :start_tries, start_window_ms = :start_window, start_who = :start_who, start_hold = :start_hold, ",
        &values,
    )
}

/// The columns of [`STARTS`].
pub(super) fn read(fields: &mut Fields<'_>) -> Result<RunRecord> {
    Ok(RunRecord::from(Columns {
        paced_at_ms: fields.int_or_null()?,
        paced_fence: fields.int_or_null()?,
        paced_place: fields.text_or_null()?,
        guard_ms: fields.int_or_null()?,
        at_least_ms: fields.int_or_null()?,
        paced_who: fields.text_or_null()?,
        paced_hold: fields.text_or_null()?,
        start_at_ms: fields.int_or_null()?,
        start_fence: fields.int_or_null()?,
        start_stage: fields.text_or_null()?,
        start_tries: fields.int_or_null()?,
        start_window_ms: fields.int_or_null()?,
        start_who: fields.text_or_null()?,
        start_hold: fields.text_or_null()?,
    }))
}
