//! What an operator asks of a store: to be set up and swept, and what its settings make of the promise (`dlock doctor`).

use std::{borrow::Cow, time::Duration};

use async_trait::async_trait;

use super::{Notice, Result};

/// One thing that is looked at. The tables of these are what `doctor`, the man page and the tests go by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Check {
    /// Its name in findings.
    pub id: &'static str,
    /// What is looked at, in one line.
    pub about: &'static str,
}

/// A row of a table of checks.
pub const fn check(id: &'static str, about: &'static str) -> Check {
    Check { id, about }
}

/// What a finding makes of the promise. The order is that of severity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// As it should be.
    Ok,
    /// A promise is weaker than it could be, or it is not known whether it holds.
    Warn,
    /// Two can run at a time, or none can.
    Unsafe,
}

/// What the text of a finding begins with if nothing could be found.
pub const UNCHECKED: &str = "not checked: ";

/// What was found by one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The id of the check.
    pub check: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What was read, with its value, in one line.
    pub text: String,
    /// What could happen, in one line.
    pub risk: Option<String>,
    /// What to do about it, in one line.
    pub mend: Option<String>,
}

impl Finding {
    /// As it should be.
    pub fn ok(check: &'static str, text: impl Into<String>) -> Self {
        Self { check, severity: Severity::Ok, text: text.into(), risk: None, mend: None }
    }

    /// Weaker than it could be.
    pub fn warn<'a>(check: &'static str, text: impl Into<String>, risk: impl Into<Cow<'a, str>>) -> Self {
        Self { severity: Severity::Warn, risk: Some(risk.into().into_owned()), ..Self::ok(check, text) }
    }

    /// No promise holds.
    pub fn not_safe<'a>(check: &'static str, text: impl Into<String>, risk: impl Into<Cow<'a, str>>) -> Self {
        Self { severity: Severity::Unsafe, ..Self::warn(check, text, risk) }
    }

    /// Nothing is known of `what`, which is no reason to call it fine.
    pub fn unchecked(check: &'static str, what: &str, why: &str) -> Self {
        Self { severity: Severity::Warn, ..Self::ok(check, format!("{UNCHECKED}{what}, because {why}")) }
    }

    /// What a backend notices by itself, as a finding: what is so, and behind a colon what could happen.
    pub fn noticed(check: &'static str, notice: Notice) -> Self {
        let (text, risk) = match notice.text.split_once(": ") {
            Some((text, risk)) => (text.to_owned(), Some(risk.to_owned())),
            None => (notice.text, None),
        };
        Self { check, severity: Severity::Warn, text, risk, mend: notice.hint }
    }

    /// With what to do about it.
    #[must_use]
    pub fn mend(mut self, how: impl Into<String>) -> Self {
        self.mend = Some(how.into());
        self
    }

    /// Says which of several servers it was found at.
    #[must_use]
    pub fn at(mut self, server: &str) -> Self {
        self.text = format!("{server}: {}", self.text);
        self
    }
}

/// Whom rights are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Takes, waits for, renews and gives back locks.
    Run,
    /// Looks at them.
    View,
    /// Looks at them, and takes one away from its holder.
    Break,
}

impl Role {
    /// What the user of this role is called in what is printed.
    pub const fn user(self) -> &'static str {
        match self {
            Self::Run => "dlock-run",
            Self::View => "dlock-view",
            Self::Break => "dlock-break",
        }
    }

    /// Whether it writes.
    pub const fn writes(self) -> bool {
        !matches!(self, Self::View)
    }
}

/// The least rights of a role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grants {
    /// Lines to be pasted into the store's own client.
    pub text: String,
    /// What to know before, a line each.
    pub notes: Vec<String>,
}

/// What stands for the password in [`Grants::text`].
pub const PASSWORD: &str = "CHANGE-ME";

/// The time on a server's own clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerTime {
    /// Which server.
    pub server: String,
    /// Since the Unix epoch.
    pub since_epoch: Duration,
}

/// What a backend does to its store, and tells of it, besides locks.
#[async_trait(?Send)]
pub trait Admin {
    /// Creates or upgrades what the store must have before locks can be kept (a schema). Idempotent.
    async fn init(&mut self) -> Result<Init> {
        Ok(Init::NotNeeded)
    }

    /// Returns what [`Admin::init`] would do, in the store's own language; `None` where it does nothing.
    fn schema(&self) -> Option<String> {
        None
    }

    /// Removes what no lock has used for so long by the store's clock, and says how much that was; `None` where nothing is left
    /// behind. Never what a lock's fences depend on.
    async fn collect(&mut self, _unused_for: Duration) -> Result<Option<u64>> {
        Ok(None)
    }

    /// Returns what [`Admin::examine`] looks at: each of its findings is of one of these, and each of these has a finding.
    fn checks(&self) -> Vec<Check>;

    /// Reads the store's settings. Read only. What can't be read is a finding that says so, never one that is fine.
    async fn examine(&mut self) -> Result<Vec<Finding>>;

    /// What the clocks say that decide when leases end; none where there is no such clock, or none that tells. May need
    /// that a lock is held.
    async fn clocks(&mut self) -> Result<Vec<ServerTime>>;

    /// The least rights for `role`, in the store's own language. Without I/O.
    fn grants(&self, role: Role) -> Grants;
}

/// The answer to [`Admin::init`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Init {
    /// The store needs nothing.
    NotNeeded,
    /// It was there already, in this version.
    UpToDate,
    /// It was created or upgraded.
    Created,
}
