//! The translation of the pages' Markdown subset to roff: sections (`#`), subsections (`##`),
//! paragraphs, items (`- name: text`), indented lines, which stay as they are, and words in
//! backticks, which become bold.

use clap_mangen::roff::{Inline, Roff, bold, roman};

/// Translates a text and appends it.
///
/// # Errors
/// If `out` can't be written.
pub fn render(text: &str, out: &mut Vec<u8>) -> std::io::Result<()> {
    let mut roff = Roff::new();
    let mut verbatim = false;
    // A section's first paragraph, and one after an item's name, need no paragraph break.
    let mut paragraph = false;
    for line in text.trim_end().lines() {
        let indented = line.strip_prefix("    ");
        if verbatim && indented.is_none() && !line.is_empty() {
            roff.control("fi", []).control("RE", []);
            verbatim = false;
        }
        if let Some(line) = indented {
            if !verbatim {
                if paragraph {
                    roff.control("PP", []);
                }
                roff.control("RS", ["2"]).control("nf", []);
            } else if paragraph {
                roff.text([roman("")]);
            }
            verbatim = true;
            paragraph = false;
            roff.text([roman(line)]);
        } else if let Some(title) = line.strip_prefix("# ") {
            roff.control("SH", [title]);
            paragraph = false;
        } else if let Some(title) = line.strip_prefix("## ") {
            roff.control("SS", [title]);
            paragraph = false;
        } else if let Some((name, about)) = line
            .strip_prefix("- ")
            .and_then(|item| item.split_once(": "))
        {
            roff.control("TP", [])
                .text([bold(name.replace('`', ""))])
                .text(inline(about));
            paragraph = false;
        } else if line.is_empty() {
            paragraph = true;
        } else {
            if paragraph {
                roff.control("PP", []);
            }
            roff.text(inline(line.trim()));
            paragraph = false;
        }
    }
    if verbatim {
        roff.control("fi", []).control("RE", []);
    }
    roff.to_writer(out)
}

/// Returns a line of text whose parts in backticks are bold.
fn inline(line: &str) -> Vec<Inline> {
    let parts = line
        .split('`')
        .enumerate()
        .filter(|(_, part)| !part.is_empty());
    parts
        .map(|(at, part)| if at % 2 == 0 { roman(part) } else { bold(part) })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_has_its_macro() {
        let mut out = Vec::new();
        render("# TITLE\nA `--word` here.\n\nNext:\n\n    one\n\n    .two\n\n- name: about `it`\n## Sub\nEnd.", &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.lines().skip(2).collect();
        let expected = [
            ".SH TITLE",
            r"A \fB\-\-word\fR here.",
            ".PP",
            "Next:",
            ".PP",
            ".RS 2",
            ".nf",
            "one",
            "",
            r"\&.two",
            ".fi",
            ".RE",
            ".TP",
            r"\fBname\fR",
            r"about \fBit\fR",
            ".SS Sub",
            "End.",
        ];
        assert_eq!(lines, expected);
    }
}
