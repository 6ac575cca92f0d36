//! What people look at in a browser: README's pictures and its comparison, and the page of
//! `dlock report`. Headless Chromium draws them, and tells the sizes and colours of what it drew.

use std::{fs, time::Duration};

use serde_json::{Value, json};

use crate::{
    manual::read,
    support::{
        self, dlock,
        process::{self, Process},
    },
};

const LIMIT: Duration = Duration::from_secs(60);
const BROWSER: &str = "chromium-headless-shell";
/// The background of README in both themes.
const BACKGROUND: [&str; 2] = ["#ffffff", "#0d1117"];

/// Functions for the scripts: each visible text with its colour and box, and the contrast of two
/// colours.
const SCRIPT: &str = r#"
const rgb = text => text.match(/[\d.]+/g).map(Number);
const light = text => rgb(text).slice(0, 3).map(v => v / 255)
  .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
const contrast = (a, b) => { const [x, y] = [light(a), light(b)].sort(); return (y + 0.05) / (x + 0.05); };
const say = value => { document.body.textContent = ""; document.title = "";
  const out = document.createElement("pre"); out.id = "said"; out.textContent = JSON.stringify(value);
  document.body.append(out); };
"#;

/// Shows a page in a window of this width, runs the script, and returns what it says.
fn shown(page: &str, script: &str, (width, dark): (u32, bool)) -> Value {
    let folder = support::folder();
    let file = folder.path().join("page.html");
    let script =
        format!("<script>{SCRIPT}\naddEventListener('load', () => {{ {script} }});</script>");
    fs::write(&file, format!("{page}{script}")).expect("the page");
    let mut browser = process::command(BROWSER);
    browser.args([
        "--no-sandbox",
        "--disable-gpu",
        "--dump-dom",
        &format!("--window-size={width},900"),
        &format!("--blink-settings=preferredColorScheme={}", u8::from(!dark)),
        &format!("--user-data-dir={}", folder.path().display()),
    ]);
    browser.arg(format!("file://{}", file.display()));
    let ended = Process::collect(browser).wait(LIMIT);
    let said = ended
        .stdout
        .split_once("<pre id=\"said\">")
        .and_then(|(_, rest)| rest.split_once("</pre>"))
        .unwrap_or_else(|| panic!("{}{}", ended.stdout, ended.stderr))
        .0;
    let said = said
        .replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&amp;", "&");
    serde_json::from_str(&said).expect("JSON")
}

fn picture(name: &str, script: &str, dark: bool) -> Value {
    let svg = read(&format!("contrib/pictures/{name}.svg"));
    let back = BACKGROUND[usize::from(dark)];
    let page = format!(
        "<!DOCTYPE html><meta charset=utf-8><body style=\"margin:0;background:{back}\">{svg}"
    );
    shown(&page, script, (900, dark))
}

#[test]
fn the_pictures_are_readable_in_both_themes() {
    if !support::have("the_pictures_are_readable_in_both_themes", &[BROWSER]) {
        return;
    }
    // What is painted below a text is what has its point and comes before it.
    let script = r#"
        const svg = document.querySelector("svg"), frame = svg.getBoundingClientRect(), bad = [];
        const shapes = [...svg.querySelectorAll("rect")];
        for (const text of svg.querySelectorAll("text")) {
          const box = text.getBoundingClientRect();
          const below = shapes.filter(shape => { const b = shape.getBoundingClientRect();
            return b.left <= box.left + 1 && b.right >= box.left + 1 && b.top <= box.top + box.height / 2
              && b.bottom >= box.top + box.height / 2
              && shape.compareDocumentPosition(text) & Node.DOCUMENT_POSITION_FOLLOWING; }).pop();
          const back = below ? getComputedStyle(below).fill : getComputedStyle(document.body).backgroundColor;
          for (const part of [text, ...text.querySelectorAll("tspan")]) {
            const ratio = contrast(getComputedStyle(part).fill, back);
            if (ratio < 4.5) bad.push([part.textContent.trim(), "contrast", ratio]);
          }
          if (box.left < frame.left || box.right > frame.right + 1 || box.bottom > frame.bottom + 1)
            bad.push([text.textContent.trim(), "outside"]);
        }
        say({bad, texts: svg.querySelectorAll("text").length});
    "#;
    for name in ["promise", "incident", "speed"] {
        for dark in [false, true] {
            let said = picture(name, script, dark);
            assert_eq!(said["bad"], json!([]), "{name}, dark: {dark}");
            assert!(said["texts"].as_u64() > Some(5), "{name}: {said}");
        }
    }
}

#[test]
fn a_terminal_that_is_drawn_keeps_its_columns() {
    if !support::have("a_terminal_that_is_drawn_keeps_its_columns", &[BROWSER]) {
        return;
    }
    let script = r#"
        const texts = [...document.querySelectorAll("g text")];
        say(texts.map(text => [text.textContent, text.getComputedTextLength() / text.textContent.length]));
    "#;
    let said = picture("incident", script, false);
    let lines = said.as_array().expect("lines");
    let widths: Vec<f64> = lines
        .iter()
        .map(|line| line[1].as_f64().expect("a width"))
        .collect();
    let usual = widths[0];
    for (line, width) in lines.iter().zip(widths) {
        assert!((width / usual - 1.0).abs() < 0.02, "{line}: {usual}");
    }
    assert!(
        lines
            .iter()
            .any(|line| line[0].as_str().is_some_and(|text| text.contains("  ")))
    );
}

#[test]
fn bars_are_to_scale_or_broken() {
    if !support::have("bars_are_to_scale_or_broken", &[BROWSER]) {
        return;
    }
    let script = r#"
        const bars = new Map();
        for (const bar of document.querySelectorAll("rect")) {
          const b = bar.getBBox();
          bars.set(b.y, [...(bars.get(b.y) ?? []), [b.x, b.width]]);
        }
        say([...document.querySelectorAll("text")].filter(text => /^\s*[\d.]+ ms\s*$/.test(text.textContent))
          .map(text => [parseFloat(text.textContent), bars.get(Number(text.getAttribute("y")))]));
    "#;
    let said = picture("speed", script, false);
    let rows = said.as_array().expect("rows");
    assert!(rows.len() >= 16, "{said}");
    let (mut broken, mut scale) = (0, None);
    for row in rows {
        let (ms, parts) = (
            row[0].as_f64().expect("ms"),
            row[1].as_array().expect("bars"),
        );
        if let [part] = &parts[..] {
            let unit = part[1].as_f64().expect("a width") / ms;
            let scale = *scale.get_or_insert(unit);
            assert!(
                (unit / scale - 1.0).abs() < 0.06,
                "{row}: {unit} and {scale}"
            );
        } else {
            broken += 1;
        }
    }
    assert!((1..=2).contains(&broken), "{said}");
}

/// README's comparison, as GitHub shows it: 16 px, and at most 896 px wide.
#[test]
fn the_comparison_fits_on_a_page() {
    if !support::have("the_comparison_fits_on_a_page", &[BROWSER]) {
        return;
    }
    let readme = read("README.md");
    let (_, table) = readme.split_once("## Why not").expect("the comparison");
    let (table, _) = table.split_once("\n## ").expect("its end");
    let rows: Vec<String> = table
        .lines()
        .filter(|line| line.starts_with('|') && !line.starts_with("|---"))
        .map(|line| {
            let cells = line.trim_matches('|').split('|');
            let cells: Vec<&str> = cells.map(str::trim).collect();
            format!("<td>{}", cells.join("<td>"))
        })
        .collect();
    let page = format!(
        "<!DOCTYPE html><meta charset=utf-8><style>body {{ margin: 0; font: 16px/1.5 'Noto Sans', Helvetica, Arial, sans-serif; }}
         div {{ width: 896px; }} table {{ border-collapse: collapse; display: block; width: max-content; max-width: 100%; overflow: auto; }}
         td {{ padding: 6px 13px; border: 1px solid; }}</style><div><table><tr>{}</table></div>",
        rows.join("<tr>")
    );
    let script = r#"
        const table = document.querySelector("table");
        say([table.scrollWidth, table.clientWidth, table.rows[0].cells.length]);
    "#;
    let said = shown(&page, script, (1000, false));
    assert!(said[0].as_u64() <= said[1].as_u64(), "{said}");
}

#[test]
fn the_report_is_readable_in_every_window_and_theme() {
    if !support::have(
        "the_report_is_readable_in_every_window_and_theme",
        &[BROWSER],
    ) {
        return;
    }
    let folder = support::folder();
    let store = format!("sqlite://{}", folder.path().join("locks.db").display());
    let run = |arguments: &[&str]| {
        let mut command = dlock::command();
        command.env("DLOCK_BACKEND", &store).args(arguments);
        Process::collect(command).wait(LIMIT)
    };
    let long = format!("report-{}", "of-a-department-".repeat(12));
    for (key, script) in [
        ("nightly", "true"),
        (&long, "true"),
        (
            "<b>import</b>&",
            "echo '<script>document.title=1</script>' >&2; exit 3",
        ),
    ] {
        for host in ["web1", "web2"] {
            run(&[
                "run",
                "-k",
                key,
                "--host",
                host,
                "--skew-guard",
                "0",
                "-c",
                script,
            ]);
        }
    }
    let file = folder.path().join("jobs.html");
    let written = run(&["report", "--to", file.to_str().expect("UTF-8")]);
    assert_eq!((written.code(), &*written.stderr), (0, ""));
    let page = fs::read_to_string(&file).expect("the page");
    let printed = run(&["report"]);
    assert!(
        printed.stdout.starts_with("<!DOCTYPE html>"),
        "{}",
        printed.stdout
    );
    // The policy of the page forbids all scripts, the test's too.
    let policy = "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">";
    assert_eq!(page.matches(policy).count(), 1, "{page}");
    let script = r#"
        const bad = [], back = getComputedStyle(document.body).backgroundColor;
        const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
        while (walk.nextNode()) {
          const text = walk.currentNode, parent = text.parentElement;
          if (!text.textContent.trim() || parent.tagName == "SCRIPT") continue;
          const ratio = contrast(getComputedStyle(parent).color, back);
          if (ratio < 4.5) bad.push([text.textContent, ratio]);
        }
        const rows = [...document.querySelectorAll("tbody tr")];
        say({bad, back, wide: document.documentElement.scrollWidth, window: innerWidth,
          keys: rows.map(row => row.querySelector("th").textContent),
          states: rows.map(row => row.querySelector(".state").textContent),
          bars: rows.map(row => [...row.querySelectorAll("i")].map(bar => bar.getBoundingClientRect().height)),
          titles: document.querySelector("i").title, scripts: document.scripts.length});
    "#;
    for (width, dark) in [(1200, false), (1200, true), (400, false)] {
        let said = shown(&page.replace(policy, ""), script, (width, dark));
        assert_eq!(said["bad"], json!([]), "{width}, dark: {dark}");
        assert!(said["wide"].as_u64() <= said["window"].as_u64(), "{said}");
        assert_eq!(said["keys"], json!(["<b>import</b>&", "nightly", long]));
        assert_eq!(said["states"], json!(["FAILED", "ok", "ok"]));
        assert_eq!(said["bars"], json!([[18, 18], [10, 10], [10, 10]]));
        assert_eq!(said["scripts"], 1, "the test's own: {said}");
        assert_eq!(said["back"] == "rgb(255, 255, 255)", !dark, "{said}");
    }
    assert!(page.contains("exit 3"), "{page}");
    let refused = run(&["report", "--to", "/dev/null"]);
    assert_eq!(refused.code(), 74, "{}", refused.stderr);
}
