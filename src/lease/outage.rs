//! Whether a store leaves a question unanswered now, for what is shown on a terminal meanwhile. Nothing is decided by it.

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

/// Where the questions to one store note whether they are answered. Clients that ask at the same time share it: an answer to any is one.
#[derive(Debug, Default)]
pub struct Silence(RefCell<Option<Outage>>);

impl Silence {
    /// The question that has no answer yet, if there is one.
    pub fn outage(&self) -> Option<Outage> {
        self.0.borrow().clone()
    }

    /// Something was asked.
    pub(super) fn asked(&self, url: impl FnOnce() -> String, since: BootTime, until: Option<BootTime>) {
        self.0.borrow_mut().get_or_insert_with(|| Outage { url: url(), why: None, since, until });
    }

    /// It failed, and will be asked again.
    pub(super) fn failed(&self, why: &str) {
        if let Some(outage) = &mut *self.0.borrow_mut() {
            outage.why = Some(why.to_owned());
        }
    }

    /// It was answered, or given up.
    pub(super) fn over(&self) {
        self.0.take();
    }
}
