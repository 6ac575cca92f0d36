//! Medians, and tables of them.

/// The middle value, and the 95th of a hundred.
pub fn median(values: &mut [f64]) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    let at = |part: f64| {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index")]
        let index = ((values.len() - 1) as f64 * part).round() as usize;
        values[index]
    };
    (at(0.5), at(0.95))
}

/// Prints a table with a line under its head; numbers are set to the right.
pub fn print(title: &str, head: &[&str], rows: &[Vec<String>]) {
    let width = |column: usize| rows.iter().map(|row| row[column].len()).chain([head[column].len()]).max().unwrap_or_default();
    let line = |cells: &[String]| {
        let mut text = format!("{:<1$}", cells[0], width(0));
        for (column, cell) in cells.iter().enumerate().skip(1) {
            text += &format!("  {:>1$}", cell, width(column));
        }
        println!("{text}");
    };
    println!("\n{title}");
    let head: Vec<String> = head.iter().map(ToString::to_string).collect();
    line(&head);
    println!("{}", "-".repeat((0..head.len()).map(width).sum::<usize>() + 2 * (head.len() - 1)));
    for row in rows {
        line(row);
    }
}
