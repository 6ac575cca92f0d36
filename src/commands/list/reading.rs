//! Which locks `dlock list` shows, in which order.

use std::{cmp::Reverse, time::Duration};

use super::{
    super::{
        Context,
        overview::{self, Choice, KnownKey},
        similar,
    },
    ListSettings, SortBy,
};
use crate::{
    lease::{BootClock, ask, ask_long},
    lock::{Backend, LockState, Progress, Result, Rule, Which},
    output::{LockView, Now, overview::Summary},
};

/// What is shown, sorted.
pub(super) enum Listing {
    /// Held locks, and free ones that an earlier run keeps from others.
    Held(Vec<LockView>),
    /// Every key that the store knows.
    Known(Vec<Summary>),
}

/// What a query found.
pub(super) struct Found {
    /// What is shown.
    pub listing: Listing,
    /// The number of locks that could not be checked.
    pub unknown: usize,
    /// The text and the hint if the host of the filter holds no lock.
    pub no_such_host: Option<(String, String)>,
}

/// Reads the locks or keys to show.
pub(super) async fn read(
    settings: &ListSettings,
    backend: &mut dyn Backend,
    context: &Context,
) -> Result<Found> {
    if !settings.all {
        return read_held(settings, backend, context).await;
    }
    Ok(Found {
        listing: Listing::Known(read_known(settings, backend, context).await?),
        unknown: 0,
        no_such_host: None,
    })
}

/// Reads every key that the store knows.
async fn read_known(
    settings: &ListSettings,
    backend: &mut dyn Backend,
    context: &Context,
) -> Result<Vec<Summary>> {
    let summary = |known: KnownKey, now: &Now| {
        let skips = known.skips.iter().map(|skips| skips.count).sum();
        let one = Summary::new(known.key, &known.runs, skips, now);
        let chosen = one
            .last
            .as_ref()
            .map_or(settings.choice == Choice::default(), |run| {
                settings.choice.matches_run(run, now)
            });
        Some(one).filter(|_| chosen)
    };
    let mut keys = overview::each(backend, &settings.start, context, summary).await?;
    keys.sort_by(|a, b| a.key.cmp(&b.key));
    match settings.order {
        SortBy::Failed => keys.sort_by_key(|one| (!one.failed(), !one.late)),
        SortBy::Since => keys.sort_by_key(|one| Reverse(one.started_ms())),
        SortBy::Key | SortBy::Expires | SortBy::Wait => {}
    }
    Ok(keys)
}

/// Reads the held locks.
async fn read_held(
    settings: &ListSettings,
    backend: &mut dyn Backend,
    context: &Context,
) -> Result<Found> {
    let question =
        async |b: &mut dyn Backend, progress: &Progress| b.list(&settings.start, progress).await;
    let locks = ask_long(
        backend,
        &BootClock,
        context.limits(),
        ("list", None),
        question,
    )
    .await?;
    let no_such_host = settings
        .choice
        .host
        .as_deref()
        .map(|host| similar::no_hold_of(host, &locks));
    let mut locks: Vec<LockView> = locks
        .into_iter()
        .map(|state| LockState::in_order(state).into())
        .collect();
    locks.retain(|lock| {
        lock.state
            .holders
            .iter()
            .any(|holder| settings.choice.matches_holder(holder.metadata.as_ref()))
    });
    if settings.choice == Choice::default() {
        locks.extend(denied(settings, backend, context, &locks).await?);
    }
    let held = |lock: &LockView| {
        lock.state
            .holders
            .iter()
            .filter_map(|holder| holder.held_for)
            .max()
    };
    let mut unknown = 0;
    if let Some(least) = settings.held_longer_than {
        locks.retain(|lock| {
            unknown += usize::from(lock.denial.is_none() && held(lock).is_none());
            held(lock).is_some_and(|held| held > least)
        });
    }
    match settings.order {
        SortBy::Key | SortBy::Failed => locks.sort_by(|a, b| a.state.key.cmp(&b.state.key)),
        SortBy::Since => locks.sort_by_key(|lock| Reverse(held(lock))),
        SortBy::Expires => {
            let ends = |lock: &LockView| {
                lock.state
                    .holders
                    .iter()
                    .filter_map(|holder| holder.expires_in)
                    .min()
            };
            let again = |lock: &LockView| lock.denial.as_ref().and_then(|denial| denial.again_in);
            locks.sort_by_key(|lock| ends(lock).or(again(lock)).unwrap_or(Duration::MAX));
        }
        SortBy::Wait => locks.sort_by_key(|lock| Reverse(lock.state.waiters.len())),
    }
    Ok(Found {
        listing: Listing::Held(locks),
        unknown,
        no_such_host,
    })
}

/// Returns the free locks that an earlier run denies to every host; `held` is sorted by key.
async fn denied(
    settings: &ListSettings,
    backend: &mut dyn Backend,
    context: &Context,
    held: &[LockView],
) -> Result<Vec<LockView>> {
    if !backend.identity().capabilities.run_policy {
        return Ok(Vec::new());
    }
    let question = async |b: &mut dyn Backend, progress: &Progress| {
        b.known(&settings.start, Which::Kept, progress).await
    };
    let keys = ask_long(
        backend,
        &BootClock,
        context.limits(),
        ("list", None),
        question,
    )
    .await?;
    let keys: Vec<_> = keys
        .into_iter()
        .filter(|key| {
            held.binary_search_by(|lock| lock.state.key.cmp(key))
                .is_err()
        })
        .collect();
    let denied = overview::ask_each(backend, keys, context, async |backend, key| {
        let about = ("list", Some(key));
        let record = ask(
            backend,
            &BootClock,
            context.limits(),
            about,
            async |b: &mut dyn Backend| b.history(key).await,
        )
        .await?
        .record;
        // A skew guard lasts only seconds, and doesn't affect its own host.
        if !record
            .current_denial(Now::read().unix_ms())
            .is_some_and(|denial| matches!(denial.rule, Rule::AtLeast(_)))
        {
            return Ok(None);
        }
        let state = ask(
            backend,
            &BootClock,
            context.limits(),
            about,
            async |b: &mut dyn Backend| b.inspect(key).await,
        )
        .await?;
        Ok(Some(LockView::with_record(state, record, &Now::read()))
            .filter(|lock| lock.denial.is_some()))
    });
    Ok(denied.await?.into_iter().flatten().collect())
}
