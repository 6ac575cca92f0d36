//! The runs of many keys: the common code of `list --all` and `history` without a key.

use std::cell::RefCell;

use futures_util::future::{join, join_all};

use super::Context;
use crate::{
    lease::{BootClock, ask, ask_long},
    lock::{Backend, End, Key, LastRun, LockState, Metadata, Progress, Result, SkipCount, Which},
    output::{
        Now,
        history::{self, RunOf},
    },
};

/// The arguments that choose runs.
#[derive(clap::Args, Debug, Default)]
pub struct ChoiceArgs {
    /// Only runs that ended badly
    #[arg(long)]
    pub failed: bool,
    /// Only runs of this user
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// Only runs that started within D
    #[arg(long, value_name = "D")]
    pub since: Option<String>,
}

/// The validated filter of runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Only failed runs.
    pub failed: bool,
    /// Only runs of this host.
    pub host: Option<String>,
    /// Only runs of this user.
    pub user: Option<String>,
    /// Only runs that started within this time.
    pub since: Option<std::time::Duration>,
}

impl Choice {
    /// Whether a hold matches the filter's host and user.
    pub fn matches_holder(&self, metadata: Option<&Metadata>) -> bool {
        let is = |wanted: &Option<String>, has: Option<&String>| {
            wanted.is_none() || wanted.as_ref() == has
        };
        is(&self.host, metadata.and_then(|m| m.host.as_ref()))
            && is(&self.user, metadata.and_then(|m| m.user.as_ref()))
    }

    /// Whether a run matches the filter.
    pub fn matches_run(&self, run: &RunOf, now: &Now) -> bool {
        let began = |within: std::time::Duration| {
            let least = now
                .unix_ms()
                .saturating_sub(u64::try_from(within.as_millis()).unwrap_or(u64::MAX));
            run.started_ms.is_some_and(|started| started >= least)
        };
        (!self.failed || run.end.as_ref().is_some_and(End::is_bad))
            && self.matches_holder(run.metadata.as_ref())
            && self.since.is_none_or(began)
    }
}

/// The store's data about one key.
pub struct KnownKey {
    /// The key.
    pub key: Key,
    /// The runs of the key, the latest first, current holds included.
    pub runs: Vec<RunOf>,
    /// The skip counts of the key.
    pub skips: Vec<SkipCount>,
    /// The last run with a run policy that limits how often the key may run.
    pub start: Option<LastRun>,
}

/// The most clients that query at the same time.
const TOGETHER: usize = 16;
/// The number of keys that justifies another client.
const EACH: usize = 50;

/// Queries each key of which the store keeps data. The results are unordered.
///
/// `tell` reduces each key's runs to the caller's result, since all runs of a store may not fit in
/// memory.
///
/// # Errors
/// The store's error.
pub async fn each<T>(
    backend: &mut dyn Backend,
    start: &str,
    context: &Context,
    tell: impl Fn(KnownKey, &Now) -> Option<T>,
) -> Result<Vec<T>> {
    let about = ("list", None);
    // Before the histories: a hold that ends in between then appears in its history.
    let list = async |b: &mut dyn Backend, progress: &Progress| b.list(start, progress).await;
    let held = ask_long(backend, &BootClock, context.limits(), about, list).await?;
    let known =
        async |b: &mut dyn Backend, progress: &Progress| b.known(start, Which::All, progress).await;
    let mut keys = ask_long(backend, &BootClock, context.limits(), about, known).await?;
    keys.extend(held.iter().map(|state| state.key.clone()));
    keys.sort();
    keys.dedup();
    keys.retain(|key| !key.is_probe());
    let found = ask_each(backend, keys, context, async |backend, key| {
        let past = ask(
            backend,
            &BootClock,
            context.limits(),
            ("list", Some(key)),
            async |b: &mut dyn Backend| b.history(key).await,
        )
        .await?;
        let now = Now::read();
        let holders = held
            .binary_search_by(|state| state.key.cmp(key))
            .map(|at| held[at].holders.clone())
            .unwrap_or_default();
        let state = LockState {
            stored_as: String::new(),
            holders,
            waiters: Vec::new(),
            last_fence: None,
            nodes: Vec::new(),
            key: key.clone(),
        };
        let runs = history::runs(&state, past.past, &now);
        if runs.is_empty() && past.skips.is_empty() {
            return Ok(None);
        }
        Ok(tell(
            KnownKey {
                runs,
                skips: past.skips,
                start: past.record.start,
                key: key.clone(),
            },
            &now,
        ))
    });
    Ok(found.await?.into_iter().flatten().collect())
}

/// Queries each key, with several clients for many keys, since round trips take most of the time.
/// The answers are unordered.
///
/// # Errors
/// The first error of the given client. If another client can't connect, or fails, the remaining
/// clients do its work.
pub async fn ask_each<T>(
    backend: &mut dyn Backend,
    keys: Vec<Key>,
    context: &Context,
    question: impl AsyncFn(&mut dyn Backend, &Key) -> Result<T>,
) -> Result<Vec<T>> {
    let more = (keys.len() / EACH).min(TOGETHER - 1);
    let (left, answers) = (RefCell::new(keys), RefCell::new(Vec::new()));
    let work = async |backend: &mut dyn Backend| {
        loop {
            let Some(key) = left.borrow_mut().pop() else {
                return Ok(());
            };
            match question(backend, &key).await {
                Ok(answer) => answers.borrow_mut().push(answer),
                Err(error) => {
                    left.borrow_mut().push(key);
                    return Err(error);
                }
            }
        }
    };
    let mut others: Vec<_> = (0..more).map(|_| context.target.store.backend()).collect();
    let (done, _) = join(
        work(&mut *backend),
        join_all(others.iter_mut().map(|other| work(&mut **other))),
    )
    .await;
    done?;
    // Retries the keys at which another client failed after this client had finished.
    work(backend).await?;
    Ok(answers.into_inner())
}
