//! Text in columns of a terminal: a Chinese character takes two, and a family of emoji two altogether.

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use super::Look;

/// How many columns a text takes.
pub fn width(text: &str) -> usize {
    text.width()
}

/// Where a text can be cut: between characters that are drawn by themselves.
fn cuts(text: &str) -> impl DoubleEndedIterator<Item = usize> {
    let stands_alone = |at: usize| {
        let next = text[at..].chars().next();
        !text[..at].ends_with('\u{200d}') && next.is_none_or(|c| c.width() != Some(0))
    };
    let ends = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect::<Vec<_>>();
    ends.into_iter().filter(move |at| stands_alone(*at))
}

/// The start of a text in so many columns.
fn start(text: &str, most: usize) -> &str {
    let end = cuts(text).take_while(|at| text[..*at].width() <= most).last().unwrap_or(0);
    &text[..end]
}

/// The text in so many columns, with an ellipsis if it was longer.
pub fn cut(text: &str, most: usize) -> String {
    if text.width() <= most { text.to_owned() } else { format!("{}…", start(text, most.saturating_sub(1))) }
}

/// The text in so many columns, with an ellipsis in its middle if it was longer: both ends tell names apart.
pub fn middle(text: &str, most: usize) -> String {
    if text.width() <= most {
        return text.to_owned();
    }
    let room = most.saturating_sub(1);
    let first = start(text, room.div_ceil(2));
    let left = room.saturating_sub(first.width());
    let from = cuts(text).rev().take_while(|at| text[*at..].width() <= left).last().unwrap_or(text.len());
    format!("{first}…{}", &text[from..])
}

/// The text, filled up to so many columns.
pub fn pad(text: &str, to: usize) -> String {
    format!("{text}{}", " ".repeat(to.saturating_sub(text.width())))
}

/// What a column gives where the terminal is too narrow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gives {
    /// Nothing: a number, a time.
    Nothing,
    /// Its middle, down to so many columns.
    Middle(usize),
    /// Its end, down to so many columns; where there are not even so many, it stands on a line of its own.
    End(usize),
}

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// What stands above it.
    pub title: &'static str,
    /// The fewest columns of the terminal that it takes, if there is room.
    pub least: usize,
    /// Whether it is a number.
    pub right: bool,
    /// What it gives.
    pub gives: Gives,
}

impl Column {
    /// One that gives nothing.
    pub const fn new(title: &'static str, least: usize) -> Self {
        Self { title, least, right: false, gives: Gives::Nothing }
    }

    /// Of numbers.
    #[must_use]
    pub const fn right(self) -> Self {
        Self { right: true, ..self }
    }

    /// One that is cut.
    #[must_use]
    pub const fn giving(self, gives: Gives) -> Self {
        Self { gives, ..self }
    }
}

/// A row, and how it is painted (SGR numbers).
pub struct Row<const N: usize> {
    /// Its cells.
    pub cells: [String; N],
    /// As a whole; empty for plainly.
    pub style: &'static str,
}

/// Off a terminal nothing is cut, and one long name doesn't push all others that far.
const WIDEST: usize = 40;

/// A table with its titles, line by line.
pub fn table<const N: usize>(columns: &[Column; N], rows: &[Row<N>], look: Look) -> Vec<String> {
    grouped(columns, rows, look).concat()
}

/// A table: the lines of the titles, then those of each row, whose last column may stand on a line of its own.
pub fn grouped<const N: usize>(columns: &[Column; N], rows: &[Row<N>], look: Look) -> Vec<Vec<String>> {
    let mut widths: [usize; N] = std::array::from_fn(|n| {
        let widest = rows.iter().map(|row| row.cells[n].width()).max().unwrap_or(0);
        widest.max(columns[n].title.width()).max(columns[n].least)
    });
    let mut apart = false;
    match look.width {
        None => widths = widths.map(|width| width.min(WIDEST)),
        Some(most) => apart = fit(columns, rows, &mut widths, most),
    }
    let titles = Row { cells: std::array::from_fn(|n| columns[n].title.to_owned()), style: "1" };
    let mut groups = Vec::new();
    for (nth, row) in [&titles].into_iter().chain(rows).enumerate() {
        let shown = if apart { N - 1 } else { N };
        let cells: Vec<String> = (0..shown).map(|n| cell(columns[n], &row.cells[n], widths[n], look)).collect();
        let line = cells.join("  ");
        let paint = |line: &str| if row.style.is_empty() { line.to_owned() } else { look.paint(row.style, line) };
        let mut lines = vec![paint(line.trim_end())];
        if apart && nth > 0 && !row.cells[N - 1].is_empty() {
            lines.push(paint(&cut(&format!("  {}", row.cells[N - 1]), look.width.unwrap_or(usize::MAX))));
        }
        groups.push(lines);
    }
    groups
}

fn cell(column: Column, text: &str, width: usize, look: Look) -> String {
    let text = match column.gives {
        _ if look.width.is_none() => text.to_owned(),
        Gives::Nothing => text.to_owned(),
        Gives::Middle(_) => middle(text, width),
        Gives::End(_) => cut(text, width),
    };
    if column.right { format!("{}{text}", " ".repeat(width.saturating_sub(text.width()))) } else { pad(&text, width) }
}

/// Makes the columns fit; whether the last one has to stand on lines of its own. Names give way first, then notes, then names once more.
fn fit<const N: usize>(columns: &[Column; N], rows: &[Row<N>], widths: &mut [usize; N], most: usize) -> bool {
    let natural = *widths;
    let total = |widths: &[usize; N], shown: usize| widths[..shown].iter().sum::<usize>() + 2 * (shown - 1);
    let shrink = |widths: &mut [usize; N], shown: usize, least: &dyn Fn(Gives, usize) -> Option<usize>| {
        while total(widths, shown) > most {
            // The widest of those that have something to give.
            let can = |n: &usize| least(columns[*n].gives, natural[*n]).is_some_and(|least| widths[*n] > least);
            let Some(widest) = (0..shown).filter(can).max_by_key(|n| widths[*n]) else { break };
            widths[widest] -= 1;
        }
    };
    shrink(widths, N, &|gives, natural| if let Gives::Middle(least) = gives { Some((2 * least).min(natural)) } else { None });
    shrink(widths, N, &|gives, _| if let Gives::End(least) = gives { Some(least) } else { None });
    shrink(widths, N, &|gives, _| if let Gives::Middle(least) = gives { Some(least) } else { None });
    let last_is_free = matches!(columns[N - 1].gives, Gives::End(_));
    if total(widths, N) <= most || !last_is_free {
        return false;
    }
    *widths = natural;
    shrink(widths, N - 1, &|gives, _| if let Gives::Middle(least) | Gives::End(least) = gives { Some(least) } else { None });
    rows.iter().any(|row| !row.cells[N - 1].is_empty()) || total(widths, N) > most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_measured_and_cut_by_columns() {
        assert_eq!((width("中文"), width("👨\u{200d}👩"), width("é")), (4, 2, 1));
        assert_eq!(cut("中文锁名字", 6), "中文…");
        assert_eq!((cut("abc", 3), cut("abcd", 3)), ("abc".into(), "ab…".into()));
        assert_eq!((middle("abcdefgh", 5), middle("中文锁名字很", 7)), ("ab…gh".into(), "中…字很".into()));
        assert_eq!(middle("👨\u{200d}👩👨\u{200d}👩👨\u{200d}👩x", 5), "👨\u{200d}👩…x");
        assert_eq!(pad("中", 4), "中  ");
    }

    #[test]
    fn a_narrow_table_loses_nothing_but_the_middle_of_names() {
        let columns =
            [Column::new("KEY", 3).giving(Gives::Middle(8)), Column::new("WAIT", 4).right(), Column::new("NOTE", 4).giving(Gives::End(10))];
        let rows = [Row { cells: ["a-key-that-is-much-too-long".into(), "12".into(), "a note".into()], style: "" }];
        for most in [20, 30, 40, 80] {
            let lines = table(&columns, &rows, Look { width: Some(most), color: false });
            assert!(lines.iter().all(|line| width(line) <= most), "{most}: {lines:?}");
            let text = lines.join("\n");
            assert!(text.contains("12") && text.contains("a note"), "{most}: {text}");
        }
    }
}
