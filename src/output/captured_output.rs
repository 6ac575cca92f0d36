//! The last lines of a command's output, for the history.

use crate::supervise::CapturedOutput;

/// How many bytes of the output the history keeps.
const KEPT: usize = 1000;
/// The longest headline, in characters.
const HEADLINE: usize = 200;

/// Returns the last lines of the output without control characters; `None` if there are none.
pub fn last_lines(printed: &CapturedOutput) -> Option<String> {
    let start = printed.tail.len().saturating_sub(KEPT);
    let text = String::from_utf8_lossy(&printed.tail[start..]);
    // A line that was cut in the middle is left out, unless it is the only one.
    let text = text
        .split_once('\n')
        .filter(|(_, rest)| start > 0 && !rest.trim().is_empty())
        .map_or(&*text, |(_, rest)| rest);
    let text: String = text
        .chars()
        .filter(|c| *c == '\n' || !c.is_control())
        .collect();
    Some(text.trim_end().trim_start_matches('\n').to_owned()).filter(|text| !text.is_empty())
}

/// Returns why a run ended: a headline, then the last lines of the command's output. Without `why`,
/// the last line is the headline.
pub fn reason(why: Option<String>, lines: Option<&str>) -> Option<String> {
    let Some(lines) = lines else { return why };
    let last = lines.lines().next_back().unwrap_or_default().trim();
    let headline = why.unwrap_or_else(|| last.chars().take(HEADLINE).collect());
    Some(if headline == lines {
        headline
    } else {
        format!("{headline}\n{lines}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(tail: &[u8]) -> Option<String> {
        last_lines(&CapturedOutput {
            tail: tail.to_vec(),
            left_out: 0,
        })
    }

    #[test]
    fn the_last_lines_are_kept_without_controls() {
        assert_eq!(of(b"\n\n"), None);
        assert_eq!(of(b"a\r\n\x1b[31mb\0\n\n").as_deref(), Some("a\n[31mb"));
        let long = [b"x".repeat(2000), b"\nend\n".to_vec()].concat();
        assert_eq!(of(&long).as_deref(), Some("end"));
        assert_eq!(of(&b"x".repeat(2000)).map(|text| text.len()), Some(1000));
    }

    #[test]
    fn the_headline_comes_first() {
        assert_eq!(reason(None, Some("no host")).as_deref(), Some("no host"));
        assert_eq!(
            reason(None, Some("a\nno host")).as_deref(),
            Some("no host\na\nno host")
        );
        assert_eq!(
            reason(Some("max runtime 1s".into()), Some("a")).as_deref(),
            Some("max runtime 1s\na")
        );
        assert_eq!(reason(Some("w".into()), None).as_deref(), Some("w"));
    }
}
