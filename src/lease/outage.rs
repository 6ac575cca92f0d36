//! Whether a store leaves a question unanswered now, for what is shown on a terminal meanwhile.
//!
//! It is known of this thread, which asks one thing at a time. Nothing is decided by it.

use std::cell::RefCell;

use crate::lock::BootTime;

/// A question that has no answer yet.
#[derive(Clone, Debug)]
pub struct Outage {
    /// The store, without secrets.
    pub url: String,
    /// What went wrong last; `None` if the store is only silent.
    pub why: Option<String>,
    /// Since when it has not answered.
    pub since: BootTime,
    /// When it is given up; `None` for never.
    pub until: Option<BootTime>,
}

thread_local! {
    static NOW: RefCell<Option<Outage>> = const { RefCell::new(None) };
}

/// The question that has no answer yet, if there is one.
pub fn outage() -> Option<Outage> {
    NOW.with_borrow(Clone::clone)
}

/// Something was asked.
pub(super) fn asked(url: impl FnOnce() -> String, since: BootTime, until: Option<BootTime>) {
    NOW.with_borrow_mut(|now| {
        now.get_or_insert_with(|| Outage { url: url(), why: None, since, until });
    });
}

/// It failed, and will be asked again.
pub(super) fn failed(why: &str) {
    NOW.with_borrow_mut(|now| {
        if let Some(outage) = now {
            outage.why = Some(why.to_owned());
        }
    });
}

/// It was answered, if it was.
pub(super) fn over_if(answered: bool) {
    if answered {
        over();
    }
}

/// It was answered, or given up.
pub(super) fn over() {
    NOW.with_borrow_mut(Option::take);
}
