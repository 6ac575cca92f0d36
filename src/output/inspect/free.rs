//! The text about a free lock, which an earlier run may still deny to others.

use super::{
    super::{LockView, Now, TableStyle, columns::width, history, holders, lock_view},
    row,
};
use crate::lock::LastRun;

/// Returns the lines about a free lock.
pub(super) fn lines(
    lock: &LockView,
    (key, store, stored_as): (&str, &str, &str),
    now: &Now,
    style: TableStyle,
) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(denial) = &lock.denial {
        let (free, why) = (
            format!("FREE, but {}", lock_view::until(denial, now)),
            lock_view::why(denial, now),
        );
        let painted = style.paint("33", &free);
        let whole = width(&format!("{key}   {free}: {why}"));
        if style.width.is_none_or(|most| whole <= most) {
            lines.push(format!("{key}   {painted}: {why}"));
        } else {
            lines.extend([format!("{key}   {painted}"), row("why", &why)]);
        }
        lines.push(row("store", store));
    } else {
        lines.push(format!("{key}   {}   {store}", style.paint("32", "FREE")));
    }
    if let Some(start) = &lock.start {
        lines.push(row("once", &once(start, now)));
    }
    let fence = lock.state.last_fence.map_or_else(
        || "none yet".into(),
        |fence| format!("{fence} was the last"),
    );
    lines.push(row(
        "fence",
        &format!("{fence:<10}  stored as  {stored_as}"),
    ));
    lines
}

/// Returns the text about the last run of `--once` or `--once-per`.
fn once(start: &LastRun, now: &Now) -> String {
    let who = holders::user_at_host(start.metadata.as_ref())
        .map(|who| format!(" {who}"))
        .unwrap_or_default();
    let until = now.moment(start.at_ms.saturating_add(start.window_ms));
    format!(
        "started {}{who}: {}; counts until {until}",
        now.moment(start.at_ms),
        history::state(start.state)
    )
}
