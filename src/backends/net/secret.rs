//! Passwords, kept out of all output, and read at each login.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use super::{
    addresses::{HEAD_START, rest},
    password_command,
    shared::SharedWork,
};
use crate::lock::{Error, Kind, Result};

/// A password or the way to it, which is never printed.
#[derive(Clone)]
pub struct Secret(Source);

#[derive(Clone)]
enum Source {
    Text(String),
    File(Arc<PasswordFile>),
    Command(Arc<PasswordCommand>),
}

/// Reads the password again; `None` if it can't be read now.
type Read = Arc<dyn Fn() -> Option<String> + Send + Sync>;

struct PasswordFile {
    /// The last password, and whether a login has used it.
    last: Mutex<(String, bool)>,
    read: Read,
    reading: SharedWork<Option<String>>,
}

struct PasswordCommand {
    words: Vec<String>,
    limit: Duration,
    running: SharedWork<Result<String, (Kind, String)>>,
}

impl Secret {
    /// Wraps a password that stays the same.
    pub fn new(password: impl Into<String>) -> Self {
        Self(Source::Text(password.into()))
    }

    /// Wraps a password that was read just now, for the first login. Each later login reads it
    /// again; if that fails, or takes long, the last one is used.
    pub fn read_again(
        password: impl Into<String>,
        read: impl Fn() -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        let last = Mutex::new((password.into(), false));
        Self(Source::File(Arc::new(PasswordFile {
            last,
            read: Arc::new(read),
            reading: SharedWork::default(),
        })))
    }

    /// A command whose first line is the password, for each login. It is killed after `limit`.
    pub fn command(words: Vec<String>, limit: Duration) -> Self {
        Self(Source::Command(Arc::new(PasswordCommand {
            words,
            limit,
            running: SharedWork::default(),
        })))
    }

    /// Returns the password for a login.
    ///
    /// # Errors
    /// If the command prints none. Cancel safe: the next call gets the result of a command that is
    /// still running.
    pub(in crate::backends) async fn reveal(&self) -> Result<String> {
        match &self.0 {
            Source::Text(text) => Ok(text.clone()),
            Source::File(file) => Ok(file.reveal().await),
            Source::Command(command) => command.reveal().await,
        }
    }
}

impl PasswordFile {
    async fn reveal(&self) -> String {
        let last = || self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::mem::replace(&mut last().1, true) {
            return last().0.clone();
        }
        let read = Arc::clone(&self.read);
        // A lease must not wait for a file system that hangs.
        tokio::select! {
            biased;
            Some(Some(text)) = self.reading.get(move || read()) => last().0 = text,
            () = rest(HEAD_START) => {}
        }
        last().0.clone()
    }
}

impl PasswordCommand {
    async fn reveal(&self) -> Result<String> {
        let (words, limit) = (self.words.clone(), self.limit);
        let run = move || {
            password_command::run(&words, limit).map_err(|error| (error.kind, error.message))
        };
        match self.running.get(run).await {
            Some(Ok(password)) => Ok(password),
            Some(Err((kind, message))) => Err(Error::new(kind, message)),
            None => Err(Error::new(
                Kind::Unavailable,
                "no password: no thread can be started for password_command",
            )),
        }
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        let last = |file: &PasswordFile| {
            file.last
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .0
                .clone()
        };
        match (&self.0, &other.0) {
            (Source::Command(one), Source::Command(other)) => one.words == other.words,
            (Source::Text(one), Source::Text(other)) => one == other,
            (Source::File(one), Source::File(other)) => last(one) == last(other),
            (Source::File(file), Source::Text(text)) | (Source::Text(text), Source::File(file)) => {
                last(file) == *text
            }
            _ => false,
        }
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_is_read_for_each_login_but_the_first() {
        let now = Arc::new(Mutex::new(Some("new".to_owned())));
        let read = Arc::clone(&now);
        let secret = Secret::read_again("first", move || read.lock().unwrap().clone());
        assert_eq!(secret.reveal().await.unwrap(), "first");
        assert_eq!(secret.clone().reveal().await.unwrap(), "new");
        // It is being replaced: the last one will do.
        *now.lock().unwrap() = None;
        assert_eq!(secret.reveal().await.unwrap(), "new");
        *now.lock().unwrap() = Some("newer".into());
        assert_eq!(secret.reveal().await.unwrap(), "newer");
    }

    #[tokio::test]
    async fn a_command_runs_for_each_login_and_outlives_a_dropped_one() {
        let folder = tempfile::tempdir().unwrap();
        let script = format!(
            "echo x >>{0}/runs; sleep .2; wc -l <{0}/runs",
            folder.path().display()
        );
        let secret = Secret::command(
            ["sh", "-c", &script].map(Into::into).to_vec(),
            Duration::from_secs(5),
        );
        assert!(
            tokio::time::timeout(Duration::from_millis(20), secret.reveal())
                .await
                .is_err()
        );
        assert_eq!(secret.reveal().await.unwrap().trim(), "1");
        assert_eq!(secret.reveal().await.unwrap().trim(), "2");
        assert!(!format!("{secret:?}").contains("sleep"));
    }
}
