//! The last lines of a command's output, for the history.

use crate::supervise::CapturedOutput;

/// How many bytes of the output the history keeps.
const KEPT: usize = 1000;

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
}
