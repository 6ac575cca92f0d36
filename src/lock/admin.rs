//! The operator's view of a store: setting it up, sweeping it, and checking its settings (`dlock
//! doctor`).

use std::{borrow::Cow, time::Duration};

use async_trait::async_trait;
use serde::Serialize;

use super::{Progress, Result};

/// One check of `doctor`. `doctor`, the man page and the tests read the same tables of checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Check {
    /// The check's name in findings.
    pub id: &'static str,
    /// The setting or state that is checked, in one line.
    pub about: &'static str,
}

/// Returns a check, as a row of a table.
pub const fn check(id: &'static str, about: &'static str) -> Check {
    Check { id, about }
}

/// The severity of a finding, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The setting is right.
    Ok,
    /// A promise is weaker than it could be, or dlock can't tell whether it holds.
    Warn,
    /// Two commands can run at the same time, or none can.
    Unsafe,
}

/// The start of a finding's text if the check could not read anything.
pub const UNCHECKED: &str = "not checked: ";

/// A notice about a store that does answer, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Whether the notice has a line of its own. Otherwise only `-v` shows it.
    pub warning: bool,
    /// The notice, in one line.
    pub text: String,
    /// The remedy, in one line.
    pub hint: Option<String>,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The id of the check.
    pub check: &'static str,
    /// The severity.
    pub severity: Severity,
    /// The setting or state that was found, with its value, in one line.
    pub text: String,
    /// The possible consequence, in one line.
    pub risk: Option<String>,
    /// The remedy, in one line.
    pub fix: Option<String>,
}

impl Finding {
    /// Returns a finding without a problem.
    pub fn ok(check: &'static str, text: impl Into<String>) -> Self {
        Self {
            check,
            severity: Severity::Ok,
            text: text.into(),
            risk: None,
            fix: None,
        }
    }

    /// Returns a finding of a weaker promise.
    pub fn warn<'a>(
        check: &'static str,
        text: impl Into<String>,
        risk: impl Into<Cow<'a, str>>,
    ) -> Self {
        Self {
            severity: Severity::Warn,
            risk: Some(risk.into().into_owned()),
            ..Self::ok(check, text)
        }
    }

    /// Returns a finding of a broken promise.
    pub fn not_safe<'a>(
        check: &'static str,
        text: impl Into<String>,
        risk: impl Into<Cow<'a, str>>,
    ) -> Self {
        Self {
            severity: Severity::Unsafe,
            ..Self::warn(check, text, risk)
        }
    }

    /// Returns the finding that `what` could not be read. It is a warning: an unknown setting is
    /// not a safe one.
    pub fn unchecked(check: &'static str, what: &str, why: &str) -> Self {
        Self {
            severity: Severity::Warn,
            ..Self::ok(check, format!("{UNCHECKED}{what}, because {why}"))
        }
    }

    /// Returns a backend's notice as a finding. The text before the colon is the state, the text
    /// after it the consequence.
    pub fn noticed(check: &'static str, notice: Notice) -> Self {
        let (text, risk) = match notice.text.split_once(": ") {
            Some((text, risk)) => (text.to_owned(), Some(risk.to_owned())),
            None => (notice.text, None),
        };
        Self {
            check,
            severity: Severity::Warn,
            text,
            risk,
            fix: notice.hint,
        }
    }

    /// Adds the remedy.
    #[must_use]
    pub fn fix(mut self, how: impl Into<String>) -> Self {
        self.fix = Some(how.into());
        self
    }

    /// Adds the name of the server that the finding is about.
    #[must_use]
    pub fn at(mut self, server: &str) -> Self {
        self.text = format!("{server}: {}", self.text);
        self
    }
}

/// The role that rights are granted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Takes, waits for, renews and releases locks.
    Run,
    /// Reads locks.
    View,
    /// Reads locks, and breaks holds.
    Break,
}

impl Role {
    /// Returns the user name of this role in printed text.
    pub const fn user(self) -> &'static str {
        match self {
            Self::Run => "dlock-run",
            Self::View => "dlock-view",
            Self::Break => "dlock-break",
        }
    }

    /// Whether the role writes.
    pub const fn writes(self) -> bool {
        !matches!(self, Self::View)
    }
}

/// The least rights of a role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grants {
    /// Lines for the store's own client.
    pub text: String,
    /// Notes to read first, one per line.
    pub notes: Vec<String>,
}

/// The placeholder of the password in [`Grants::text`].
pub const PASSWORD: &str = "CHANGE-ME";

/// The time on a server's own clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerTime {
    /// The server.
    pub server: String,
    /// The time since the Unix epoch.
    pub since_epoch: Duration,
}

/// A backend's operations on the store itself, besides locks.
#[async_trait(?Send)]
pub trait Admin {
    /// Creates or upgrades the schema, if the store needs one for locks. Idempotent.
    async fn init(&mut self) -> Result<Init> {
        Ok(Init::NotNeeded)
    }

    /// Removes data that no lock has used for this long by the store's clock, and returns the
    /// number of items. Returns `None` if the store keeps no leftovers. Never removes data that a
    /// lock's fences depend on.
    async fn collect(
        &mut self,
        _unused_for: Duration,
        _progress: &Progress,
    ) -> Result<Option<u64>> {
        Ok(None)
    }

    /// Reads the store's settings. Read only. Each check of the store has a finding, also one that
    /// could not read its setting.
    async fn examine(&mut self) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }

    /// Returns the clocks that decide when leases end. The list is empty if the store has no such
    /// clock or none can be read: etcd counts its leader's ticks, and SQLite's clock is this
    /// host's. Some stores need a held lock for this.
    async fn clocks(&mut self) -> Result<Vec<ServerTime>> {
        Ok(Vec::new())
    }
}

/// The answer to [`Admin::init`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Init {
    /// The store needs nothing.
    NotNeeded,
    /// The store was set up already, in this version.
    UpToDate,
    /// The store was set up or upgraded.
    Created,
}
