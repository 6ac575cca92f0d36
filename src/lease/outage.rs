//! Whether a store leaves a question unanswered now, for display on a terminal. No decision depends
//! on it.

use std::cell::RefCell;

use crate::lock::BootTime;

/// A question that has no answer yet.
#[derive(Clone, Debug)]
pub struct Outage {
    /// The store, without secrets.
    pub url: String,
    /// The last failure; `None` if the store is only silent.
    pub why: Option<String>,
    /// Since when the store has not answered.
    pub since: BootTime,
    /// When dlock gives up; `None` for never.
    pub until: Option<BootTime>,
}

/// The record of unanswered questions to one store. Clients that ask at the same time share it: one
/// answer counts for all.
#[derive(Debug, Default)]
pub struct Silence(RefCell<Option<Outage>>);

impl Silence {
    /// Returns the question that has no answer yet, if there is one.
    pub fn outage(&self) -> Option<Outage> {
        self.0.borrow().clone()
    }

    /// Records that a question was asked.
    pub(super) fn asked(
        &self,
        url: impl FnOnce() -> String,
        since: BootTime,
        until: Option<BootTime>,
    ) {
        self.0.borrow_mut().get_or_insert_with(|| Outage {
            url: url(),
            why: None,
            since,
            until,
        });
    }

    /// Records that the question failed, and will be asked again.
    pub(super) fn failed(&self, why: &str) {
        if let Some(outage) = &mut *self.0.borrow_mut() {
            outage.why = Some(why.to_owned());
        }
    }

    /// Records that a part of the answer arrived.
    pub(super) fn heard(&self, since: BootTime, until: BootTime) {
        if let Some(outage) = &mut *self.0.borrow_mut() {
            *outage = Outage {
                url: std::mem::take(&mut outage.url),
                why: None,
                since,
                until: Some(until),
            };
        }
    }

    /// Records that the question was answered or given up.
    pub(super) fn over(&self) {
        self.0.take();
    }
}
