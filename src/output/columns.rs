//! Tables in terminal columns: a Chinese character takes two columns, and so does a whole family of
//! emoji.

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use super::TableStyle;

/// Returns the number of columns that a text takes.
pub fn width(text: &str) -> usize {
    text.width()
}

/// Returns the offsets at which a text can be cut: never within a combined character.
fn cuts(text: &str) -> impl DoubleEndedIterator<Item = usize> {
    let stands_alone = |at: usize| {
        let next = text[at..].chars().next();
        !text[..at].ends_with('\u{200d}') && next.is_none_or(|c| c.width() != Some(0))
    };
    let ends = text
        .char_indices()
        .map(|(at, _)| at)
        .chain([text.len()])
        .collect::<Vec<_>>();
    ends.into_iter().filter(move |at| stands_alone(*at))
}

/// Returns the longest start of a text that fits into `most` columns.
fn start(text: &str, most: usize) -> &str {
    let end = cuts(text)
        .take_while(|at| text[..*at].width() <= most)
        .last()
        .unwrap_or(0);
    &text[..end]
}

/// Returns the text cut to `most` columns, with an ellipsis at its end if it was longer.
pub fn cut(text: &str, most: usize) -> String {
    if text.width() <= most {
        text.to_owned()
    } else {
        format!("{}…", start(text, most.saturating_sub(1)))
    }
}

/// Returns the text cut to `most` columns, with an ellipsis in its middle if it was longer: both
/// ends distinguish names.
pub fn middle(text: &str, most: usize) -> String {
    if text.width() <= most {
        return text.to_owned();
    }
    let room = most.saturating_sub(1);
    let first = start(text, room.div_ceil(2));
    let left = room.saturating_sub(first.width());
    let from = cuts(text)
        .rev()
        .take_while(|at| text[*at..].width() <= left)
        .last()
        .unwrap_or(text.len());
    format!("{first}…{}", &text[from..])
}

/// Returns the text as lines of at most `most` columns, broken between words. A longer word has a
/// line of its own.
pub fn lines(text: &str, most: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.width() + 1 + word.width() <= most => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// As [`lines`], but longer words are broken too.
fn broken(text: &str, most: usize) -> Vec<String> {
    let mut parts = Vec::new();
    for line in lines(text, most) {
        let mut rest = &*line;
        while rest.width() > most {
            let part = start(rest, most);
            if part.is_empty() {
                // A character that is wider than the column.
                break;
            }
            parts.push(part.to_owned());
            rest = &rest[part.len()..];
        }
        parts.push(rest.to_owned());
    }
    parts
}

/// Returns the text padded to `to` columns.
pub fn pad(text: &str, to: usize) -> String {
    format!("{text}{}", " ".repeat(to.saturating_sub(text.width())))
}

/// How a column's text is cut on a terminal that is too narrow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Never: a number, a time.
    Never,
    /// In the middle, down to this number of columns.
    Middle(usize),
    /// At the end, down to this number of columns. On a narrower terminal, the text goes onto its
    /// own line.
    End(usize),
    /// As `End`, but the text goes on in the next lines: nothing of it is lost.
    Wrap(usize),
}

impl Cut {
    /// Returns the least number of columns of a text that is cut or broken at its end.
    const fn at_end(self) -> Option<usize> {
        match self {
            Self::End(least) | Self::Wrap(least) => Some(least),
            Self::Never | Self::Middle(_) => None,
        }
    }
}

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// The heading.
    pub title: &'static str,
    /// The minimum width in terminal columns, if there is room.
    pub least: usize,
    /// Whether the text is aligned to the right, as numbers are.
    pub right: bool,
    /// How its text is cut.
    pub cut: Cut,
}

impl Column {
    /// Creates a column that is aligned to the left and never cut.
    pub const fn new(title: &'static str, least: usize) -> Self {
        Self {
            title,
            least,
            right: false,
            cut: Cut::Never,
        }
    }

    /// Aligns the column to the right.
    #[must_use]
    pub const fn right(self) -> Self {
        Self {
            right: true,
            ..self
        }
    }

    /// Sets how the column's text is cut.
    #[must_use]
    pub const fn cut_by(self, cut: Cut) -> Self {
        Self { cut, ..self }
    }
}

/// A row of a table.
pub struct TableRow<const N: usize> {
    /// One text per column.
    pub cells: [String; N],
    /// The style of the whole row (SGR numbers); empty for none.
    pub sgr: &'static str,
}

/// The widest padding without a terminal. Longer text is not cut there, but shifts only its own
/// row.
const WIDEST: usize = 40;

/// Returns a table as lines, the headings first.
pub fn table<const N: usize>(
    columns: &[Column; N],
    rows: &[TableRow<N>],
    style: TableStyle,
) -> Vec<String> {
    grouped(columns, rows, style).concat()
}

/// Returns a table as groups of lines: the headings, then one group per row. The last column may be
/// on its own line.
pub fn grouped<const N: usize>(
    columns: &[Column; N],
    rows: &[TableRow<N>],
    style: TableStyle,
) -> Vec<Vec<String>> {
    let mut widths: [usize; N] = std::array::from_fn(|n| {
        let widest = rows
            .iter()
            .map(|row| row.cells[n].width())
            .max()
            .unwrap_or(0);
        widest.max(columns[n].title.width()).max(columns[n].least)
    });
    let mut separate = false;
    match style.width {
        None => widths = widths.map(|width| width.min(WIDEST)),
        Some(most) => separate = fit(columns, rows, &mut widths, most),
    }
    let titles = TableRow {
        cells: std::array::from_fn(|n| columns[n].title.to_owned()),
        sgr: "1",
    };
    let mut groups = Vec::new();
    for (nth, row) in [&titles].into_iter().chain(rows).enumerate() {
        let shown = if separate { N - 1 } else { N };
        let cells: Vec<String> = (0..shown)
            .map(|n| cell(columns[n], &row.cells[n], widths[n], style))
            .collect();
        let line = cells.join("  ");
        let paint = |line: &str| {
            if row.sgr.is_empty() {
                line.to_owned()
            } else {
                style.paint(row.sgr, line)
            }
        };
        let mut lines = vec![paint(line.trim_end())];
        let last = &row.cells[N - 1];
        let wraps = matches!(columns[N - 1].cut, Cut::Wrap(_));
        let most = style.width.unwrap_or(usize::MAX);
        if separate && nth > 0 && !last.is_empty() {
            let below = if wraps {
                broken(last, most - 2)
            } else {
                vec![cut(last, most - 2)]
            };
            lines.extend(below.iter().map(|line| paint(&format!("  {line}"))));
        } else if wraps && style.width.is_some() && !separate {
            let indent = widths[..N - 1].iter().map(|width| width + 2).sum();
            let below = broken(last, widths[N - 1]).into_iter().skip(1);
            lines.extend(below.map(|line| paint(&format!("{:indent$}{line}", ""))));
        }
        groups.push(lines);
    }
    groups
}

fn cell(column: Column, text: &str, width: usize, style: TableStyle) -> String {
    let text = match column.cut {
        _ if style.width.is_none() => text.to_owned(),
        Cut::Never => text.to_owned(),
        Cut::Middle(_) => middle(text, width),
        Cut::End(_) => cut(text, width),
        Cut::Wrap(_) => broken(text, width).swap_remove(0),
    };
    if column.right {
        format!("{}{text}", " ".repeat(width.saturating_sub(text.width())))
    } else {
        pad(&text, width)
    }
}

/// Shrinks the columns to `most` and returns whether the last column needs its own lines. Names
/// shrink first, then notes, then names again.
fn fit<const N: usize>(
    columns: &[Column; N],
    rows: &[TableRow<N>],
    widths: &mut [usize; N],
    most: usize,
) -> bool {
    let natural = *widths;
    let total =
        |widths: &[usize; N], shown: usize| widths[..shown].iter().sum::<usize>() + 2 * (shown - 1);
    let shrink =
        |widths: &mut [usize; N], shown: usize, least: &dyn Fn(Cut, usize) -> Option<usize>| {
            while total(widths, shown) > most {
                // The widest column that can still shrink.
                let can = |n: &usize| {
                    least(columns[*n].cut, natural[*n]).is_some_and(|least| widths[*n] > least)
                };
                let Some(widest) = (0..shown).filter(can).max_by_key(|n| widths[*n]) else {
                    break;
                };
                widths[widest] -= 1;
            }
        };
    shrink(widths, N, &|cut, natural| {
        if let Cut::Middle(least) = cut {
            Some((2 * least).min(natural))
        } else {
            None
        }
    });
    shrink(widths, N, &|cut, _| cut.at_end());
    shrink(widths, N, &|cut, _| {
        if let Cut::Middle(least) = cut {
            Some(least)
        } else {
            None
        }
    });
    if total(widths, N) <= most || columns[N - 1].cut.at_end().is_none() {
        return false;
    }
    *widths = natural;
    shrink(widths, N - 1, &|cut, _| {
        if let Cut::Middle(least) = cut {
            Some(least)
        } else {
            cut.at_end()
        }
    });
    rows.iter().any(|row| !row.cells[N - 1].is_empty()) || total(widths, N) > most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_measured_and_cut_by_columns() {
        assert_eq!(
            (width("中文"), width("👨\u{200d}👩"), width("é")),
            (4, 2, 1)
        );
        assert_eq!(cut("中文锁名字", 6), "中文…");
        assert_eq!(
            (cut("abc", 3), cut("abcd", 3)),
            ("abc".into(), "ab…".into())
        );
        assert_eq!(
            (middle("abcdefgh", 5), middle("中文锁名字很", 7)),
            ("ab…gh".into(), "中…字很".into())
        );
        assert_eq!(
            middle("👨\u{200d}👩👨\u{200d}👩👨\u{200d}👩x", 5),
            "👨\u{200d}👩…x"
        );
        assert_eq!(pad("中", 4), "中  ");
    }

    #[test]
    fn a_narrow_table_loses_nothing_but_the_middle_of_names() {
        let columns = [
            Column::new("KEY", 3).cut_by(Cut::Middle(8)),
            Column::new("WAIT", 4).right(),
            Column::new("NOTE", 4).cut_by(Cut::End(10)),
        ];
        let rows = [TableRow {
            cells: [
                "a-key-that-is-much-too-long".into(),
                "12".into(),
                "a note".into(),
            ],
            sgr: "",
        }];
        for most in [20, 30, 40, 80] {
            let lines = table(
                &columns,
                &rows,
                TableStyle {
                    width: Some(most),
                    color: false,
                },
            );
            assert!(
                lines.iter().all(|line| width(line) <= most),
                "{most}: {lines:?}"
            );
            let text = lines.join("\n");
            assert!(
                text.contains("12") && text.contains("a note"),
                "{most}: {text}"
            );
        }
    }

    #[test]
    fn a_text_that_wraps_is_shown_whole() {
        assert_eq!(broken("中文 ab", 1), ["中文", "a", "b"]);
        let columns = [
            Column::new("KEY", 3),
            Column::new("END", 3).cut_by(Cut::Wrap(14)),
        ];
        let why = "LOST: no renewal for 36s: redis://dlock@redis1.example.com:6379/0: timed out";
        let rows = [TableRow {
            cells: ["job".into(), why.into()],
            sgr: "",
        }];
        for most in [10, 20, 30, 40, 80, 100] {
            let style = TableStyle {
                width: Some(most),
                color: false,
            };
            let lines = table(&columns, &rows, style);
            assert!(
                lines.iter().all(|line| width(line) <= most),
                "{most}: {lines:?}"
            );
            let letters = |text: &str| text.replace([' ', '\n'], "");
            let text = letters(&lines.concat());
            assert!(text.ends_with(&letters(why)), "{most}: {lines:?}");
        }
        let text = table(
            &columns,
            &rows,
            TableStyle {
                width: Some(40),
                color: false,
            },
        );
        assert_eq!(text[1], "job  LOST: no renewal for 36s:");
        assert!(text[2].starts_with("     redis://dlock"), "{text:?}");
    }
}
