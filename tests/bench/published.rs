//! The published results: `results.md` next to this file, and a picture.

use std::{fmt::Write as _, fs, path::Path, process::Command};

use plotters::prelude::*;

use crate::table::Table;

/// The bars of the picture: a row of a table, and a shorter name.
const DRAWN: [(&str, &str); 10] = [
    ("flock", "flock"),
    ("dlock run, Redis", "dlock, Redis"),
    ("dlock run, SQLite", "dlock, SQLite"),
    ("dlock run, MariaDB", "dlock, MariaDB"),
    ("dlock run, etcd", "dlock, etcd"),
    ("dlock run, PostgreSQL", "dlock, PostgreSQL"),
    ("dlock run, ZooKeeper", "dlock, ZooKeeper"),
    ("mariadb, GET_LOCK", "mariadb GET_LOCK"),
    ("etcdctl lock", "etcdctl lock"),
    ("kazoo", "kazoo (Python)"),
];

/// Writes both files. `version` is the binary's, `words` are the arguments that selected the
/// tables.
pub fn write(tables: &[Table], version: &str, words: &[&str]) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut text = String::from("# What dlock costs\n\n");
    let _ = writeln!(
        text,
        "{version}. Measured on {}, by `{}cargo bench --bench whole_process -- {}`, in turns, each round in another order.\n",
        machine(),
        if std::env::var_os("DLOCK_BENCH").is_some() {
            "DLOCK_BENCH=PATH "
        } else {
            ""
        },
        words.join(" ")
    );
    for table in tables {
        text += &table.markdown();
        text.push('\n');
    }
    fs::write(
        root.join("tests/bench/results.md"),
        text.trim_end().to_owned() + "\n",
    )
    .expect("results.md");
    let find = |start: &str| tables.iter().find(|table| table.title.starts_with(start));
    if let (Some(processes), Some(handover)) = (find("A whole process"), find("Hand-over")) {
        draw(
            processes,
            handover,
            &root.join("contrib/pictures/speed.svg"),
        );
    }
}

/// Returns the machine, the date, and the versions of the compared programs.
fn machine() -> String {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("?", |(_, name)| name);
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let said = |words: &[&str]| {
        let output = Command::new(words[0]).args(&words[1..]).output().ok()?;
        Some(
            String::from_utf8_lossy(&output.stdout)
                .lines()
                .next()?
                .trim()
                .to_owned(),
        )
    };
    let versions: Vec<_> = [
        &["uname", "-sr"][..],
        &["redis-server", "--version"],
        &["etcd", "--version"],
        &["psql", "--version"],
        &["mariadbd", "--version"],
        &["flock", "--version"],
    ]
    .into_iter()
    .filter_map(said)
    .collect();
    let date = said(&["date", "-u", "+%Y-%m-%d"]).unwrap_or_default();
    format!("{date}, {cores} cores of {model} ({})", versions.join("; "))
}

/// Draws two bars for each program: the whole process, and the hand-over to a waiter.
fn draw(processes: &Table, handover: &Table, path: &Path) {
    let rows: Vec<_> = DRAWN
        .into_iter()
        .filter_map(|(name, short)| {
            Some((short, processes.number(name, 1)?, handover.number(name, 1)?))
        })
        .collect();
    let (row, top) = (36, 60);
    let y_of = |n: usize| top + row * i32::try_from(n).expect("a few");
    let size = (720, y_of(rows.len()).cast_unsigned() + 30);
    let grey = RGBColor(89, 99, 110);
    let (blue, orange) = (RGBColor(47, 129, 247), RGBColor(219, 109, 40));
    // The longest bars are cut, because the others would be too short to compare.
    let most = rows
        .iter()
        .map(|row| row.2.max(row.1))
        .filter(|ms| *ms <= 25.0)
        .fold(1.0, f64::max);
    let (left, full) = (170, 460.0);
    let area = SVGBackend::new(path, size).into_drawing_area();
    let font = |size: i32| ("sans-serif", size).into_font().color(&grey);
    let words = |text: String, at: (i32, i32), size: i32| {
        area.draw(&Text::new(text, at, font(size))).expect("a text");
    };
    let bar = |at: (i32, i32), ms: f64, color: RGBColor| {
        #[allow(clippy::cast_possible_truncation, reason = "pixels")]
        let long = (ms.min(most) / most * full) as i32;
        // A bar that does not fit is broken before its end.
        let parts = if ms > most {
            vec![(0, long - 30), (long - 24, long - 18), (long - 12, long)]
        } else {
            vec![(0, long)]
        };
        for (from, to) in parts {
            let corners = [(at.0 + from, at.1), (at.0 + to, at.1 + 12)];
            area.draw(&Rectangle::new(corners, color.filled()))
                .expect("a bar");
        }
        words(format!("{ms:.1} ms"), (at.0 + long + 6, at.1), 12);
    };
    words(
        "a command under a lock, in ms (shorter is better)".into(),
        (8, 6),
        16,
    );
    for (x, name, color) in [
        (left, "whole process around true", blue),
        (left + 220, "hand-over to a waiter", orange),
    ] {
        area.draw(&Rectangle::new([(x, 34), (x + 12, 46)], color.filled()))
            .expect("a key");
        words(name.into(), (x + 18, 34), 13);
    }
    for (n, (short, process, gap)) in rows.iter().enumerate() {
        let y = y_of(n);
        words((*short).into(), (8, y + 6), 14);
        bar((left, y), *process, blue);
        bar((left, y + 14), *gap, orange);
    }
    area.present().expect("the picture");
    drop(area);
    // The text has no background: its colour follows the reader's theme.
    let dark = "<style>@media (prefers-color-scheme: dark){text{fill:#9aa4ae}}</style>";
    let picture = fs::read_to_string(path).expect("the picture");
    let (start, rest) = picture.split_once('\n').expect("its first line");
    fs::write(path, format!("{start}\n{dark}\n{rest}")).expect("the picture");
}
