//! Medians, and tables of them.

use std::fmt::Write as _;

use crate::support::dice::Dice;

/// Returns the median and the 95th percentile.
pub fn median(values: &mut [f64]) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    let at = |part: f64| {
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "an index"
        )]
        let index = ((values.len() - 1) as f64 * part).round() as usize;
        values[index]
    };
    (at(0.5), at(0.95))
}

/// Returns the order of `many` programs in this round. The order changes each time, because a
/// program affects the next one, for example by letting a processor sleep.
pub fn turns(many: usize, round: usize) -> Vec<usize> {
    let mut dice = Dice((round as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let mut order: Vec<usize> = (0..many).collect();
    for left in (1..many).rev() {
        order.swap(
            left,
            usize::try_from(dice.below(left as u64 + 1)).unwrap_or_default(),
        );
    }
    order
}

/// A table of results: a row per program, starting with its name.
pub struct Table {
    pub title: String,
    pub head: Vec<String>,
    pub rows: Vec<Vec<String>>,
    pub note: &'static str,
}

impl Table {
    pub fn new(
        title: impl Into<String>,
        head: &[&str],
        rows: Vec<Vec<String>>,
        note: &'static str,
    ) -> Self {
        Self {
            title: title.into(),
            head: head.iter().map(ToString::to_string).collect(),
            rows,
            note,
        }
    }

    /// Formats the table for a terminal: a line under the head, numbers aligned to the right.
    pub fn text(&self) -> String {
        let width = |column: usize| {
            self.rows
                .iter()
                .chain([&self.head])
                .map(|row| row[column].len())
                .max()
                .unwrap_or_default()
        };
        let line = |cells: &[String]| {
            let mut text = format!("{:<1$}", cells[0], width(0));
            for (column, cell) in cells.iter().enumerate().skip(1) {
                text += &format!("  {:>1$}", cell, width(column));
            }
            text
        };
        let rule =
            "-".repeat((0..self.head.len()).map(width).sum::<usize>() + 2 * (self.head.len() - 1));
        let rows: Vec<_> = self.rows.iter().map(|row| line(row)).collect();
        let note = if self.note.is_empty() {
            String::new()
        } else {
            format!("\n{}", self.note)
        };
        format!(
            "\n{}\n{}\n{rule}\n{}{note}",
            self.title,
            line(&self.head),
            rows.join("\n")
        )
    }

    pub fn markdown(&self) -> String {
        let mut text = format!("## {}\n\n", self.title);
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        text += &line(&self.head);
        let _ = writeln!(text, "|---|{}", "---:|".repeat(self.head.len() - 1));
        for row in &self.rows {
            text += &line(row);
        }
        if !self.note.is_empty() {
            let _ = write!(text, "\n{}\n", self.note);
        }
        text
    }

    /// Returns the number in a column of the row with this name.
    pub fn number(&self, name: &str, column: usize) -> Option<f64> {
        self.rows
            .iter()
            .find(|row| row[0] == name)?
            .get(column)?
            .parse()
            .ok()
    }
}
