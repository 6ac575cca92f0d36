//! Parses durations.

use std::time::Duration;

/// Parses durations such as `1h 30m`. As with flock(1), a bare number is in seconds (`5`, `.5`,
/// `1.5`). One number with a unit may have a fraction, too (`1.5m`).
///
/// # Errors
/// Why the text is invalid, without repeating it.
pub fn parse(text: &str) -> Result<Duration, String> {
    if text.is_empty() {
        return Err("it is empty".into());
    }
    let units = text
        .split(|c: char| !c.is_ascii_alphabetic())
        .filter(|unit| !unit.is_empty());
    for unit in units {
        match unit {
            "M" | "month" | "months" => {
                return Err("months have no fixed length; minutes are m, as in 5m".into());
            }
            "y" | "yr" | "yrs" | "year" | "years" | "Y" => {
                return Err("years have no fixed length; days are d, as in 365d".into());
            }
            _ => {}
        }
    }
    let (number, unit) = text.split_at(
        text.find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text.len()),
    );
    let one_unit = unit.trim_start().bytes().all(|b| b.is_ascii_alphabetic());
    if unit.is_empty() || one_unit && number.contains('.') {
        let count: f64 = number.parse().map_err(|_| INVALID.to_owned())?;
        let one = if unit.is_empty() {
            Duration::from_secs(1)
        } else {
            whole(&format!("1{unit}"))?
        };
        return Duration::try_from_secs_f64(count * one.as_secs_f64()).map_err(|_| TOO_LONG.into());
    }
    whole(text)
}

/// Parses numbers with units, as humantime takes them.
fn whole(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| match error {
        humantime::DurationError::NumberOverflow => TOO_LONG.into(),
        _ => INVALID.into(),
    })
}

const INVALID: &str = "invalid duration";
const TOO_LONG: &str = "it is too long";

/// Examples of durations, for hints.
pub const EXAMPLES: &str = "like 90, .5, 30s, 5m or 1h 30m";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bare_numbers_are_seconds() {
        for (text, ms) in [
            ("5", 5000),
            (".5", 500),
            ("1.5", 1500),
            ("0", 0),
            ("90", 90_000),
            ("5.", 5000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
    }

    #[test]
    fn units_add_up() {
        assert_eq!(parse("1m 30s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse("1h30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(parse("250ms"), Ok(Duration::from_millis(250)));
    }

    #[test]
    fn one_number_with_a_unit_may_have_a_fraction() {
        for (text, ms) in [
            (".5s", 500),
            ("1.5m", 90_000),
            ("0.25h", 900_000),
            ("1.5 d", 129_600_000),
            ("2.ms", 2),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in [".s", "1.5.5s", "1.5m30", "1.5 parsecs"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn months_and_years_are_refused_by_name() {
        assert!(parse("5M").unwrap_err().starts_with("months"));
        assert!(parse("1h 2months").unwrap_err().starts_with("months"));
        assert!(parse("1y").unwrap_err().starts_with("years"));
        assert_eq!(parse("2w"), Ok(Duration::from_secs(14 * 24 * 3600)));
    }

    #[test]
    fn invalid_durations_are_refused() {
        let long = "9".repeat(400);
        for text in [
            "",
            " ",
            ".",
            "1.2.3",
            "-1",
            "-1s",
            "NaN",
            "nan",
            "inf",
            "1e30",
            "5 parsecs",
            "s",
            "+5",
            "0x10",
            &long,
        ] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }
}
