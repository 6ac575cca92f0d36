//! A backend's capabilities, as data.

use std::time::Duration;

use super::{Entry, Error, Kind, Mode, Request, Result, Ttl};

/// The capabilities of a backend. A request beyond them is refused before any I/O.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // a table of yes and no
pub struct Capabilities {
    /// The backend's name in messages and in the man page.
    pub backend: &'static str,
    /// Many readers or one writer.
    pub shared: bool,
    /// Up to N holders.
    pub permits: bool,
    /// First come, first served.
    pub fair: bool,
    /// Waiters are served in the order of asking even if they did not ask for it.
    pub always_fair: bool,
    /// A hold that outlives the process which took it (`acquire`).
    pub detached: bool,
    /// A nested `dlock run` enters its ancestor's hold.
    pub reentrant: bool,
    /// Hands out fencing tokens.
    pub fencing: bool,
    /// A release wakes waiters. Otherwise waiters poll: [`super::Backend::wait`] ends after a pause
    /// of the backend's choice.
    pub notification: bool,
    /// Remembers how holds ended ([`super::Backend::history`]).
    pub history: bool,
    /// Judges and records starts ([`super::RunPolicy`]).
    pub run_policy: bool,
    /// A hold can be taken away from its holder ([`super::Amendment::Mark`]).
    pub breakable: bool,
    /// The shortest lease.
    pub ttl_min: Duration,
    /// The longest lease.
    pub ttl_max: Duration,
    /// Leases are whole multiples of this; others are rounded up.
    pub ttl_granularity: Duration,
    /// A renewal can ask for another TTL than the hold's original one.
    pub adjustable_ttl: bool,
    /// How a lease's time is spent.
    pub pace: Pace,
}

/// The deadlines within a lease, in per cent of the lease from t₀: for a command's start, for TERM
/// and for KILL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// No command starts after this.
    pub start: u32,
    /// TERM.
    pub term: u32,
    /// KILL, at the latest.
    pub kill: u32,
}

impl Pace {
    /// The pace for stores that end a lease by their own clock, counted from the last confirmed
    /// renewal.
    pub const USUAL: Self = Self {
        start: 50,
        term: 60,
        kill: 80,
    };
}

impl Capabilities {
    /// Returns the capabilities common to stores with a record for each lock: exclusive holds with
    /// fences, reentrant, detached or not, wake-ups, and any TTL to the millisecond. Extend it with
    /// `Capabilities { …, ..Capabilities::usual("x") }`.
    pub const fn usual(backend: &'static str) -> Self {
        Self {
            backend,
            shared: false,
            permits: false,
            fair: false,
            always_fair: false,
            detached: true,
            reentrant: true,
            fencing: true,
            notification: true,
            history: false,
            run_policy: false,
            breakable: false,
            ttl_min: Ttl::MIN,
            ttl_max: Ttl::MAX,
            ttl_granularity: Duration::from_millis(1),
            adjustable_ttl: true,
            pace: Pace::USUAL,
        }
    }

    /// Whether this backend can serve `request`.
    ///
    /// # Errors
    /// [`Kind::Unsupported`] with the reason, for the first unsupported property.
    pub fn check(&self, request: &Request) -> Result<()> {
        let refuse = |what: &str| {
            Err(Error::new(
                Kind::Unsupported,
                format!("the {} backend has no {what}", self.backend),
            )
            .during("acquire")
            .key(&request.key))
        };
        match request.mode {
            Mode::Shared if !self.shared => refuse("shared locks"),
            Mode::Permits(_) if !self.permits => refuse("permits"),
            _ if request.entry == Entry::Reenter && !self.reentrant => {
                refuse("nested holds of one lock")
            }
            _ if request.run_policy.is_some() && request.mode != Mode::Exclusive => {
                refuse("skew guard, at-least or once for locks that are shared")
            }
            _ if request.run_policy.is_some() && !self.run_policy => {
                refuse("record of starts for skew guard, at-least or once")
            }
            _ if request.fair && !self.fair => refuse("fair order"),
            _ if request.detached && !self.detached => refuse("holds that outlive their process"),
            _ => self.check_ttl(request.ttl),
        }
    }

    /// Whether an explicit TTL lies in this backend's range.
    ///
    /// # Errors
    /// [`Kind::Unsupported`], naming the range.
    pub fn check_ttl(&self, ttl: Ttl) -> Result<()> {
        if (self.ttl_min..=self.ttl_max).contains(&ttl.get()) {
            return Ok(());
        }
        Err(Error::new(
            Kind::Unsupported,
            format!(
                "the {} backend can't give a lease of {}: it takes {} to {}",
                self.backend,
                humantime::format_duration(ttl.get()),
                humantime::format_duration(self.ttl_min),
                humantime::format_duration(self.ttl_max)
            ),
        ))
    }

    /// Whether a renewal may ask for another TTL, and for this one.
    ///
    /// # Errors
    /// [`Kind::Unsupported`] with the reason.
    pub fn check_new_ttl(&self, ttl: Ttl) -> Result<()> {
        if !self.adjustable_ttl {
            return Err(Error::new(
                Kind::Unsupported,
                format!(
                    "the {} backend keeps a lease's TTL as it was taken",
                    self.backend
                ),
            )
            .hint("renew without --ttl, or acquire with a longer one"));
        }
        self.check_ttl(ttl)
    }

    /// Returns `ttl` moved into this backend's range, for a TTL that the user did not ask for.
    #[must_use]
    pub fn clamp_ttl(&self, ttl: Ttl) -> Ttl {
        Ttl::new(ttl.get().clamp(self.ttl_min, self.ttl_max)).unwrap_or(ttl)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::{Key, RunPolicy};

    const ALL: Capabilities = Capabilities {
        shared: true,
        permits: true,
        fair: true,
        run_policy: true,
        ..Capabilities::usual("test")
    };

    #[test]
    fn what_a_backend_lacks_is_refused_and_only_that() {
        let plain = Request::new(Key::new("job").unwrap(), Ttl::DEFAULT);
        let policy = Some(RunPolicy::forgetting("here".into()));
        let cases = [
            (
                "shared locks",
                Request {
                    mode: Mode::Shared,
                    ..plain.clone()
                },
                Capabilities {
                    shared: false,
                    ..ALL
                },
            ),
            (
                "permits",
                Request {
                    mode: Mode::Permits(2),
                    ..plain.clone()
                },
                Capabilities {
                    permits: false,
                    ..ALL
                },
            ),
            (
                "nested holds",
                Request {
                    entry: Entry::Reenter,
                    ..plain.clone()
                },
                Capabilities {
                    reentrant: false,
                    ..ALL
                },
            ),
            (
                "record of starts",
                Request {
                    run_policy: policy.clone(),
                    ..plain.clone()
                },
                Capabilities {
                    run_policy: false,
                    ..ALL
                },
            ),
            (
                "fair order",
                Request {
                    fair: true,
                    ..plain.clone()
                },
                Capabilities { fair: false, ..ALL },
            ),
            (
                "outlive their process",
                Request {
                    detached: true,
                    ..plain.clone()
                },
                Capabilities {
                    detached: false,
                    ..ALL
                },
            ),
            (
                "a lease of 1m",
                plain.clone(),
                Capabilities {
                    ttl_max: Duration::from_secs(59),
                    ..ALL
                },
            ),
        ];
        for (what, request, lacking) in &cases {
            let error = lacking.check(request).unwrap_err();
            assert!(
                error.kind == Kind::Unsupported && error.to_string().contains(what),
                "{error}"
            );
            ALL.check(request).unwrap();
            for (other, request, _) in cases
                .iter()
                .filter(|(other, ..)| other != what && !what.starts_with("a lease"))
            {
                lacking
                    .check(request)
                    .unwrap_or_else(|error| panic!("{other} without {what}: {error}"));
            }
        }
        let shared = Request {
            run_policy: policy,
            mode: Mode::Shared,
            ..plain
        };
        assert!(
            ALL.check(&shared)
                .unwrap_err()
                .to_string()
                .contains("locks that are shared")
        );
    }

    #[test]
    fn another_ttl_needs_a_store_that_can_change_it() {
        ALL.check_new_ttl(Ttl::DEFAULT).unwrap();
        assert_eq!(
            Capabilities {
                ttl_min: Duration::from_secs(61),
                ..ALL
            }
            .check_new_ttl(Ttl::DEFAULT)
            .unwrap_err()
            .hint,
            None
        );
        assert!(
            Capabilities {
                adjustable_ttl: false,
                ..ALL
            }
            .check_new_ttl(Ttl::DEFAULT)
            .unwrap_err()
            .hint
            .is_some()
        );
    }
}
