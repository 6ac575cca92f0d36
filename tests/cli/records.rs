//! What is said of a free lock that an earlier run keeps from others, and how an operator gets past that.

use snapbox::{assert_data_eq, file};

use crate::lab::Lab;

/// Takes out what differs from run to run.
fn redacted(text: &str) -> String {
    let is_time = |word: &str| word.len() == 8 && word.bytes().filter(|byte| *byte == b':').count() == 2;
    let line = |line: &str| {
        let words = line.split_inclusive(' ').map(|word| {
            let (bare, gap) = (word.trim_end_matches([' ', ':', ',', ';', ')']), word.len());
            let rest = &word[bare.len()..gap];
            let number = bare.len() > 12 && bare.bytes().all(|byte| byte.is_ascii_digit());
            let age = !line.starts_with('$')
                && bare.len() > 1
                && bare.ends_with(['s', 'm'])
                && bare[..bare.len() - 1].bytes().all(|b| b.is_ascii_digit());
            let known = if number {
                "[FENCE]"
            } else if is_time(bare) {
                "[TIME]"
            } else if age {
                "[AGE]"
            } else if bare.contains("@lap") {
                "[USER]@lap"
            } else if ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"].contains(&bare) {
                "[DAY]"
            } else {
                return word.to_owned();
            };
            format!("{known}{rest}")
        });
        words.collect::<String>().split("[AGE] [AGE]").collect::<Vec<_>>().join("[AGE]").trim_end().to_owned() + "\n"
    };
    let mut text: String = text.lines().map(line).collect();
    while text.contains("    ") {
        text = text.replace("    ", "   ");
    }
    text
}

#[test]
fn a_free_lock_that_can_not_be_had_says_so_and_gives_way() {
    let mut lab = Lab::new();
    lab.note("kept for an hour, whoever asks").say("run -k job --at-least 1h --host lap -- true");
    lab.say("inspect job").say("list").say("run -k job -v -- true");
    lab.say("run -k job --anyway -- true").say("run -k job --reason x -- true");
    lab.say("run -k job --anyway --reason rerun --host lap --at-least 1h -- echo ran");
    lab.say("forget job").say("forget job --yes").say("forget job --yes --reason fixed --host lap").say("inspect job").say("list");
    lab.say("forget job --yes --reason again");
    lab.note("once in a day").say("run -k once --once-per 1d --skew-guard 0 --host lap -- true").say("inspect once");
    lab.say("run -k once --once-per 1d -v -- true").say("run -k once --once-per none --host lap -- echo ran");
    lab.say("forget once --yes --reason fixed --host lap").say("run -k once --once-per 1d --host lap -- echo ran");
    assert_data_eq!(redacted(&lab.transcript()), file!["snapshots/records.txt"]);
}
