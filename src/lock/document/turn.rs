//! Which requests fit next to which holders, and which waiters go first: for the document, and for
//! all who look at a lock, on any store.

use super::super::Mode;

/// Returns how many holds of `mode` fit next to these holders. A new number of permits applies to
/// new holds.
pub(in crate::lock) fn room(mut holders: impl Iterator<Item = Mode>, mode: Mode) -> usize {
    match mode {
        Mode::Exclusive => usize::from(holders.next().is_none()),
        Mode::Shared if holders.all(|holder| holder == Mode::Shared) => usize::MAX,
        Mode::Shared => 0,
        Mode::Permits(most) => holders
            .try_fold(
                usize::try_from(most).unwrap_or(usize::MAX),
                |left, holder| is_permit(holder).then(|| left.saturating_sub(1)),
            )
            .unwrap_or(0),
    }
}

/// Whether a waiter of mode `waiter`, in fair order or not, goes before a later request of `mode`.
pub(in crate::lock) fn goes_before(waiter: Mode, fair: bool, mode: Mode) -> bool {
    match (waiter, mode) {
        (Mode::Shared, Mode::Shared) => false,
        (Mode::Exclusive, Mode::Shared) => true,
        _ => fair,
    }
}

/// Returns the position of the first of these earlier waiters that a request of `mode` must let go
/// first; `None` if it may go. `room` tells for how many holds of `mode` there is room. The order
/// of permits doesn't matter while there is one for each.
pub(in crate::lock) fn first_before(
    waiters: impl Iterator<Item = (Mode, bool)>,
    mode: Mode,
    room: impl FnOnce() -> usize,
) -> Option<usize> {
    let mut before = waiters
        .enumerate()
        .filter(|(_, (waiter, fair))| goes_before(*waiter, *fair, mode));
    if !is_permit(mode) {
        return before.next().map(|(at, _)| at);
    }
    let before: Vec<_> = before.collect();
    let alike = before.iter().all(|(_, (waiter, _))| is_permit(*waiter));
    let first = before.first()?.0;
    (!alike || before.len() >= room()).then_some(first)
}

fn is_permit(mode: Mode) -> bool {
    matches!(mode, Mode::Permits(_))
}
