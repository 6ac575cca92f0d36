//! A folder with its own store, and transcripts of `dlock`'s output there.

use std::{
    ffi::{OsStr, OsString},
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

/// A folder, an environment and a transcript.
pub struct Lab {
    folder: tempfile::TempDir,
    env: Vec<(String, OsString)>,
    text: String,
}

impl Lab {
    /// Creates a folder whose store doesn't exist yet. The caller's environment isn't inherited.
    pub fn new() -> Self {
        // Not under /tmp, which may be a memory file system, where secrets may have any mode.
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mut lab = Self {
            folder,
            env: Vec::new(),
            text: String::new(),
        };
        let store = format!("sqlite://{}", lab.path("store.db").display());
        let home = lab.path("");
        lab.set("PATH", "/usr/bin:/bin")
            .set("HOME", home.as_os_str())
            .set("TZ", "UTC")
            .set("DLOCK_BACKEND", store);
        lab
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Sets a variable for all later commands; an empty one counts as unset.
    pub fn set(&mut self, name: &str, value: impl AsRef<OsStr>) -> &mut Self {
        self.env.retain(|(old, _)| old != name);
        self.env.push((name.to_owned(), value.as_ref().to_owned()));
        self
    }

    pub fn write(&self, name: &str, mode: u32, content: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    pub fn dlock<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dlock"));
        command
            .args(arguments)
            .env_clear()
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null());
        command
    }

    /// Runs dlock, and returns its output and status.
    pub fn run<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Output {
        self.dlock(arguments).output().unwrap()
    }

    /// Runs dlock, asserts success, and returns the printed line.
    pub fn line(&self, arguments: &str) -> String {
        let output = self.run(arguments.split(' '));
        assert!(output.status.success(), "{arguments}: {output:?}");
        String::from_utf8(output.stdout)
            .unwrap()
            .trim_end()
            .to_owned()
    }

    /// Adds a run of `dlock` with these words to the transcript.
    pub fn say(&mut self, words: &str) -> &mut Self {
        let arguments: Vec<&str> = words.split(' ').filter(|word| !word.is_empty()).collect();
        self.say_args(&arguments)
    }

    /// Adds a run of `dlock` with these arguments to the transcript.
    pub fn say_args<S: AsRef<OsStr>>(&mut self, arguments: &[S]) -> &mut Self {
        let output = self.run(arguments);
        let shown: String = arguments
            .iter()
            .map(|argument| {
                format!(
                    " {}",
                    quoted(argument.as_ref(), &self.folder.path().to_string_lossy())
                )
            })
            .collect();
        self.add(&format!("$ dlock{shown}\n"), &output)
    }

    /// Adds a comment to the transcript.
    pub fn note(&mut self, text: &str) -> &mut Self {
        self.text += &format!("# {text}\n");
        self
    }

    pub fn add(&mut self, title: &str, output: &Output) -> &mut Self {
        let mut entry = title.to_owned();
        for stream in [&output.stdout, &output.stderr] {
            entry += std::str::from_utf8(stream).expect("output is UTF-8");
        }
        let status = output
            .status
            .code()
            .map_or_else(|| output.status.to_string(), |status| status.to_string());
        self.text += &format!("{entry}[{status}]\n\n");
        self
    }

    /// Returns the transcript, with this folder's name replaced.
    pub fn transcript(&self) -> String {
        self.text
            .replace(&*self.folder.path().to_string_lossy(), "[LAB]")
    }

    /// Asserts that no file of the store exists.
    pub fn assert_untouched(&self) {
        assert!(
            !self.path("store.db").exists() && !self.path("store.db.lock").exists(),
            "the store was touched"
        );
    }
}

fn quoted(argument: &OsStr, folder: &str) -> String {
    let text = argument.to_string_lossy().replace(folder, "[LAB]");
    let text = if text.len() > 60 {
        format!("{}...", &text[..20])
    } else {
        text
    };
    if text.is_empty() || text.contains(|c: char| c.is_control() || " '\"\u{fffd}".contains(c)) {
        format!("{text:?}")
    } else {
        text
    }
}

/// Copies the binary to a place where every user can execute it.
pub fn copy_of_dlock(folder: &Path) -> PathBuf {
    let path = folder.join("dlock");
    support::program::copy(env!("CARGO_BIN_EXE_dlock"), &path, 0o755);
    path
}

/// Removes the weekdays of times that are not today, because a few minutes may cross midnight.
pub fn without_days(text: &str) -> String {
    const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let line = |line: &str| {
        let mut kept = Vec::new();
        let mut words = line.split(' ').peekable();
        while let Some(word) = words.next() {
            if DAYS.contains(&word) && words.next_if(|next| next.parse::<u8>().is_ok()).is_some() {
                words.next_if(|next| MONTHS.contains(next));
            } else {
                kept.push(word);
            }
        }
        kept.join(" ") + "\n"
    };
    text.lines().map(line).collect()
}
