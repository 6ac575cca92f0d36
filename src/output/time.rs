//! Formats of times and durations, for text and JSON.

use std::{fmt::Write as _, time::Duration};

use jiff::{Timestamp, Zoned, tz::TimeZone};
use serde::Serialize;

/// The host's wall clock, read once per view. It is for display only: no lease depends on it.
#[derive(Clone, Debug)]
pub struct Now(Zoned);

impl Now {
    /// Reads the host's clock and time zone.
    pub fn read() -> Self {
        Self(Zoned::now())
    }

    /// Uses a given time, for tests.
    pub fn at(timestamp: Timestamp, zone: TimeZone) -> Self {
        Self(timestamp.to_zoned(zone))
    }

    fn before(&self, ago: Duration) -> Option<Zoned> {
        jiff::SignedDuration::try_from(ago)
            .ok()
            .and_then(|ago| self.0.checked_sub(ago).ok())
    }

    /// Returns the time `ago` before now as RFC 3339 in UTC, to the millisecond.
    pub fn utc_before(&self, ago: Duration) -> Option<Time> {
        self.before(ago).map(|then| rfc3339(then.timestamp()))
    }

    /// Returns the time `left` after now as RFC 3339 in UTC, to the millisecond.
    pub fn utc_after(&self, left: Duration) -> Option<Time> {
        rfc3339_ms(self.unix_ms().saturating_add(millis(left)))
    }

    /// Returns a time in ms since 1970 as the local time of day, with the date if that is not
    /// today.
    pub fn moment(&self, unix_ms: u64) -> String {
        let then = i64::try_from(unix_ms)
            .ok()
            .and_then(|ms| Timestamp::from_millisecond(ms).ok());
        let then = then.map(|then| then.to_zoned(self.0.time_zone().clone()));
        match then {
            Some(then) if then.date() == self.0.date() => then.strftime("%H:%M:%S").to_string(),
            _ => self.local(unix_ms),
        }
    }

    /// Returns the local time `ago` before now with its zone, and with the date if that is not
    /// today.
    pub fn local_before(&self, ago: Duration) -> String {
        let Some(then) = self.before(ago) else {
            return "long ago".into();
        };
        let format = match (then.date() == self.0.date(), then.year() == self.0.year()) {
            (true, _) => "%H:%M:%S %Z",
            (_, true) => "%a %-d %b %H:%M:%S %Z",
            _ => "%a %-d %b %Y %H:%M:%S %Z",
        };
        then.strftime(format).to_string()
    }

    /// Returns the time in ms since 1970.
    pub fn unix_ms(&self) -> u64 {
        u64::try_from(self.0.timestamp().as_millisecond()).unwrap_or_default()
    }

    /// Returns a time in ms since 1970 as local date and time. Within 25 days, the date is only the
    /// day of the month.
    pub fn local(&self, unix_ms: u64) -> String {
        let then = i64::try_from(unix_ms)
            .ok()
            .and_then(|ms| Timestamp::from_millisecond(ms).ok());
        let Some(then) = then.map(|then| then.to_zoned(self.0.time_zone().clone())) else {
            return "?".into();
        };
        let days = self.unix_ms().abs_diff(unix_ms) / 86_400_000;
        then.strftime(if days < 25 {
            "%a %d %H:%M:%S"
        } else {
            "%Y-%m-%d %H:%M"
        })
        .to_string()
    }

    /// Returns the time of day.
    pub fn clock(&self) -> String {
        self.0.strftime("%H:%M:%S").to_string()
    }

    /// Returns the time in syslog's format.
    pub fn syslog(&self) -> String {
        self.0.strftime("%b %e %H:%M:%S").to_string()
    }
}

/// A time as RFC 3339 in UTC, to the millisecond.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Time(String);

/// Returns a time for JSON.
pub fn rfc3339(timestamp: Timestamp) -> Time {
    Time(format!("{timestamp:.3}"))
}

/// Returns a time in ms since 1970 as RFC 3339 in UTC.
pub fn rfc3339_ms(unix_ms: u64) -> Option<Time> {
    i64::try_from(unix_ms)
        .ok()
        .and_then(|ms| Timestamp::from_millisecond(ms).ok())
        .map(rfc3339)
}

/// Returns a duration in its two largest units, rounded down: `1h 4m`, `48s`.
pub fn age(length: Duration) -> String {
    let seconds = length.as_secs();
    let units = [(86_400, "d"), (3600, "h"), (60, "m"), (1, "s")];
    let Some(first) = units.iter().position(|(size, _)| seconds >= *size) else {
        return "0s".into();
    };
    let (size, unit) = units[first];
    let mut text = format!("{}{unit}", seconds / size);
    if let Some((small, unit)) = units.get(first + 1) {
        let rest = seconds % size / small;
        if rest > 0 {
            let _ = write!(text, " {rest}{unit}");
        }
    }
    text
}

/// Returns the length of a wait: as [`age`], but in ms below a second.
pub fn waited(length: Duration) -> String {
    if length.as_secs() == 0 {
        crate::lock::length(length)
    } else {
        age(length)
    }
}

/// Returns a duration in whole milliseconds.
pub fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_two_units() {
        assert_eq!(waited(Duration::from_millis(999)), "999ms");
        assert_eq!(waited(Duration::from_millis(1999)), "1s");
        for (seconds, text) in [
            (0, "0s"),
            (48, "48s"),
            (60, "1m"),
            (252, "4m 12s"),
            (3840, "1h 4m"),
            (3601, "1h"),
            (90_061, "1d 1h"),
            (864_000, "10d"),
        ] {
            assert_eq!(age(Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn times_are_local_for_people_and_utc_for_programs() {
        let zone = TimeZone::fixed(jiff::tz::offset(1));
        let now = Now::at("2026-11-20T02:04:01.5Z".parse().unwrap(), zone);
        assert_eq!(
            now.utc_before(Duration::from_millis(500)).unwrap().0,
            "2026-11-20T02:04:01.000Z"
        );
        assert!(
            now.local_before(Duration::from_secs(60))
                .starts_with("03:03:01 ")
        );
        assert!(
            now.local_before(Duration::from_secs(90_000))
                .starts_with("Thu 19 Nov 02:04:01 ")
        );
        assert_eq!(now.local_before(Duration::MAX), "long ago");
        assert_eq!(now.syslog(), "Nov 20 03:04:01");
    }
}
