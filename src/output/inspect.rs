//! The text of `dlock inspect`.

mod free;

use std::time::Duration;

use super::{LockView, Now, TableStyle, age, holders, usual::EarlierRuns};
use crate::lock::{Holder, Mode, NodeView};

/// Most waiters shown; further ones are only counted.
const WAITERS: usize = 10;
/// Most holders shown; further ones are only counted.
const HOLDERS: usize = 10;

/// Returns the text about one lock, in at most 80 columns unless its names are longer.
pub fn view(
    lock: &LockView,
    earlier: &EarlierRuns,
    name: Option<&str>,
    backend: &str,
    now: &Now,
    style: TableStyle,
) -> String {
    let state = &lock.state;
    let key = holders::clean(state.key.as_str(), 255);
    let store = name.map_or_else(
        || backend.to_owned(),
        |name| format!("{} ({backend})", holders::clean(name, 60)),
    );
    let stored_as = holders::clean(&state.stored_as, 300);
    let mut lines = Vec::new();
    match state.holders.as_slice() {
        [] => lines.extend(free::lines(lock, (&key, &store, &stored_as), now, style)),
        holders => {
            lines.push(format!(
                "{key}   {}   {}   {store}",
                style.paint("1;33", "HELD"),
                kind(holders)
            ));
            for (index, holder) in holders.iter().take(HOLDERS).enumerate() {
                held(holder, (index == 0).then_some(&stored_as), now, &mut lines);
            }
            if holders.len() > HOLDERS {
                lines.push(row("", &format!("and {} more", holders.len() - HOLDERS)));
            }
        }
    }
    for (title, text) in earlier.rows(state.holders.is_empty(), now) {
        lines.push(row(title, &text));
    }
    for (index, waiter) in state.waiters.iter().take(WAITERS).enumerate() {
        let title = if index == 0 { "waiting" } else { "" };
        let who = holders::user_at_host(waiter.metadata.as_ref())
            .unwrap_or_else(|| "another process".into());
        let long = waiter
            .waiting_for
            .map(|long| format!(", {}", age(long)))
            .unwrap_or_default();
        // Without an order, a position would be a false promise: a newcomer may be granted first.
        let position = if waiter.in_order {
            format!("{}. ", index + 1)
        } else {
            String::new()
        };
        lines.push(row(title, &format!("{position}{who}{long}")));
    }
    if state.waiters.len() > WAITERS {
        lines.push(row(
            "",
            &format!("and {} more", state.waiters.len() - WAITERS),
        ));
    }
    for (index, node) in state.nodes.iter().enumerate() {
        lines.push(row(if index == 0 { "nodes" } else { "" }, &on_node(node)));
    }
    lines
        .iter()
        .flat_map(|line| [line.trim_end(), "\n"])
        .collect()
}

/// Returns the mode of the lock and the number of holders.
fn kind(holders: &[Holder]) -> String {
    match (holders.first().map(|holder| holder.mode), holders.len()) {
        (Some(Mode::Permits(_)), many) => {
            // Holders may have asked for different numbers of permits: the store grants up to the
            // largest.
            let most = holders
                .iter()
                .map(|holder| {
                    if let Mode::Permits(most) = holder.mode {
                        most
                    } else {
                        0
                    }
                })
                .max()
                .unwrap_or_default();
            format!("{many} of {most} permits")
        }
        (Some(Mode::Shared), 1) => "shared by 1 reader".into(),
        (Some(Mode::Shared), many) => format!("shared by {many} readers"),
        (mode, _) => mode.map_or("", |_| "exclusive").into(),
    }
}

fn on_node(node: &NodeView) -> String {
    let what = match (node.held, &node.error) {
        (Some(false), _) => "free".to_owned(),
        (Some(true), _) => {
            let whose = match (node.others, node.fence) {
                (true, _) => "held by another",
                (false, Some(_)) => "held",
                (false, None) => "held, unconfirmed",
            };
            let left = node
                .expires_in
                .map(|left| format!(", expires in {}", age(left)))
                .unwrap_or_default();
            format!("{whose}{left}")
        }
        (None, why) => why
            .as_ref()
            .map_or_else(|| "?".into(), |why| holders::clean(why, 60)),
    };
    format!("{:<22}  {what}", holders::clean(&node.node, 40))
}

fn held(holder: &Holder, stored_as: Option<&String>, now: &Now, lines: &mut Vec<String>) {
    let metadata = holder.metadata.as_ref();
    let mut parts = vec![holders::holder(holder)];
    if let Some(permit) = holder.permit {
        parts.push(format!("permit {permit}"));
    }
    if let Some(pid) = metadata.and_then(|m| m.pid) {
        let kept = holders::command(metadata).is_some();
        parts.push(if holder.detached && !kept {
            format!("acquired by pid {pid}")
        } else {
            format!("dlock pid {pid}")
        });
    }
    if let Some(command) = holders::command(metadata) {
        parts.push(if holder.detached {
            format!("kept for {command}")
        } else {
            format!("command {command}")
        });
    }
    if holder.holds > 1 {
        let times = holder.holds - 1;
        parts.push(if times == 1 {
            "entered once".into()
        } else {
            format!("entered {times} times")
        });
    }
    lines.push(row("holder", &parts.join("   ")));
    if let Some(note) = holders::note(metadata) {
        lines.push(row("note", &note));
    }
    if let Some(why) = metadata.and_then(|m| m.anyway.as_deref()) {
        lines.push(row("anyway", &format!("\"{}\"", holders::clean(why, 120))));
    }
    if let Some(long) = holder.held_for {
        lines.push(row(
            "since",
            &format!("{}, {} ago", now.local_before(long), age(long)),
        ));
    }
    lines.push(row("lease", &lease(holder)));
    if let Some(mark) = &holder.broken {
        let seen = match (mark.seen, verdict(holder)) {
            (true, _) => "it is being stopped",
            (false, Some(unkept)) if unkept.starts_with("acquired with") => {
                "it ends with its lease"
            }
            (false, _) => "its dlock has not seen that yet",
        };
        lines.push(row("break", &format!("{}: {seen}", holders::mark(mark))));
    }
    let fence = holder
        .fence
        .map_or_else(|| "none".into(), |fence| fence.to_string());
    let stored_as = stored_as
        .map(|name| format!("  stored as  {name}"))
        .unwrap_or_default();
    lines.push(row("fence", &format!("{fence:<10}{stored_as}")));
}

fn lease(holder: &Holder) -> String {
    let renewed = holder
        .renewed_ago
        .map(|ago| format!("renewed {} ago", age(ago)));
    let expires = match (&holder.removal, holder.expires_in) {
        (Some(removal), _) => {
            format!(
                "never ends by itself: {removal} frees it, once the program that took it is dead"
            )
        }
        (None, Some(left)) => format!("expires in {}", age(left)),
        (None, None) => "its end is not known".into(),
    };
    let facts = [renewed, Some(expires)]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(", ");
    match verdict(holder) {
        Some(verdict) => format!("{facts}: {verdict}"),
        None => facts,
    }
}

/// Whether a renewal of the holder is overdue. Holders with a process renew at every sixth of the
/// lease.
pub fn is_late(holder: &Holder) -> bool {
    let by_itself = !holder.foreign
        && (!holder.detached || holders::command(holder.metadata.as_ref()).is_some());
    let times = holder
        .renewed_ago
        .zip(holder.expires_in)
        .filter(|_| by_itself);
    times.is_some_and(|(ago, left)| ago > (ago + left) / 3 + Duration::from_secs(1))
}

/// Returns what the lease tells about the holder's process. A holder renews at every sixth of its
/// lease.
fn verdict(holder: &Holder) -> Option<String> {
    if holder.foreign {
        return None;
    }
    // A detached hold with a renewing process names the program in `command`.
    if holder.detached && holders::command(holder.metadata.as_ref()).is_none() {
        return Some("acquired with a TTL: no process renews it".into());
    }
    let (ago, left) = (holder.renewed_ago?, holder.expires_in?);
    let on_host = holder
        .metadata
        .as_ref()
        .and_then(|m| m.host.as_deref())
        .map(|host| format!(" on {}", holders::clean(host, 40)))
        .unwrap_or_default();
    if left.is_zero() {
        // The lock is still held: the kernel keeps SQLite's lock file locked for a process.
        return Some(format!(
            "dlock{on_host} is stopped, and keeps the lock until it continues or is killed"
        ));
    }
    let second = Duration::from_secs(1);
    // The holder has not renewed since it acquired, so whether it is alive is unknown.
    if holder
        .held_for
        .is_some_and(|held| held > second && held.saturating_sub(ago) < second / 10)
    {
        return Some(format!("dlock{on_host} has not renewed it yet"));
    }
    Some(if is_late(holder) {
        format!("dlock{on_host} is late")
    } else {
        format!("dlock{on_host} is alive")
    })
}

fn row(title: &str, text: &str) -> String {
    format!("  {title:<9}{text}")
}

#[cfg(test)]
mod tests {
    use jiff::tz::{TimeZone, offset};

    use super::*;
    use crate::lock::{Denial, Fence, Key, LockState, Metadata, Rule, Waiter};

    #[allow(clippy::unnecessary_wraps)] // as the fields have it
    fn secs(seconds: u64) -> Option<Duration> {
        Some(Duration::from_secs(seconds))
    }

    fn state() -> LockState {
        let metadata = |user: &str, host: &str| Metadata {
            user: Some(user.into()),
            host: Some(host.into()),
            pid: Some(48121),
            command: Some("report.sh".into()),
            ..Metadata::default()
        };
        LockState {
            key: Key::new("nightly").unwrap(),
            stored_as: "dlock:nightly".into(),
            holders: vec![Holder {
                permit: None,
                mode: Mode::Exclusive,
                metadata: Some(metadata("app", "web3")),
                fence: Some(Fence(1042)),
                foreign: false,
                detached: false,
                held_for: secs(3840),
                renewed_ago: secs(3),
                expires_in: secs(57),
                removal: None,
                holds: 1,
                broken: None,
            }],
            waiters: vec![Waiter {
                metadata: Some(metadata("deploy", "web1")),
                mode: None,
                waiting_for: secs(120),
                in_order: true,
            }],
            last_fence: Some(Fence(1042)),
            nodes: vec![],
        }
    }

    fn shown(state: &LockState) -> String {
        let now = Now::at(
            "2026-11-20T02:04:01Z".parse().unwrap(),
            TimeZone::fixed(offset(1)),
        );
        view(
            &LockView::from(state.clone()),
            &EarlierRuns::default(),
            Some("prod"),
            "rediss://r1:6379",
            &now,
            TableStyle::default(),
        )
    }

    #[test]
    fn a_held_lock() {
        let expected = "\
nightly   HELD   exclusive   prod (rediss://r1:6379)
  holder   app@web3   dlock pid 48121   command report.sh
  since    02:00:01 +01, 1h 4m ago
  lease    renewed 3s ago, expires in 57s: dlock on web3 is alive
  fence    1042        stored as  dlock:nightly
  waiting  1. deploy@web1, 2m
";
        assert_eq!(shown(&state()), expected);
    }

    #[test]
    fn shared_holders_are_counted_and_listed() {
        let mut lock = LockState {
            waiters: vec![],
            ..state()
        };
        let permit = |number: u32, of| Holder {
            mode: Mode::Permits(of),
            permit: Some(number),
            ..lock.holders[0].clone()
        };
        lock.holders = vec![permit(0, 3), permit(2, 4)];
        let text = shown(&lock);
        assert!(
            text.starts_with("nightly   HELD   2 of 4 permits   prod"),
            "{text}"
        );
        assert!(
            text.contains("holder   app@web3   permit 2   dlock pid 48121"),
            "{text}"
        );
        assert_eq!(text.matches("stored as").count(), 1, "{text}");
        lock.holders = vec![
            Holder {
                mode: Mode::Shared,
                permit: None,
                ..lock.holders[0].clone()
            };
            12
        ];
        let text = shown(&lock);
        assert!(
            text.starts_with("nightly   HELD   shared by 12 readers   prod")
                && text.ends_with("           and 2 more\n"),
            "{text}"
        );
    }

    #[test]
    fn a_free_lock_remembers_its_fence() {
        let free = LockState {
            holders: vec![],
            waiters: vec![],
            ..state()
        };
        assert_eq!(
            shown(&free),
            "nightly   FREE   prod (rediss://r1:6379)\n  fence    1042 was the last  stored as  dlock:nightly\n"
        );
    }

    #[test]
    fn a_denied_free_lock_shows_the_end_of_the_denial() {
        let now = Now::at(
            "2026-11-20T02:04:01Z".parse().unwrap(),
            TimeZone::fixed(offset(1)),
        );
        let denial = |rule| Denial {
            rule,
            fence: None,
            began: secs(600),
            metadata: Some(Metadata {
                user: Some("root".into()),
                host: Some("web1".into()),
                ..Metadata::default()
            }),
            again_in: secs(3000),
        };
        let free = |rule| LockView {
            denial: Some(denial(rule)),
            ..LockView::from(LockState {
                holders: vec![],
                waiters: vec![],
                ..state()
            })
        };
        let text = |rule| {
            view(
                &free(rule),
                &EarlierRuns::default(),
                None,
                "local",
                &now,
                TableStyle::default(),
            )
            .lines()
            .next()
            .unwrap()
            .to_owned()
        };
        let hour = Duration::from_secs(3600);
        assert_eq!(
            text(Rule::AtLeast(hour)),
            "nightly   FREE, but not before 03:54:01: at least 1h, started 02:54:01 root@web1"
        );
        let narrow = TableStyle {
            width: Some(50),
            color: false,
        };
        let narrow = view(
            &free(Rule::AtLeast(hour)),
            &EarlierRuns::default(),
            None,
            "local",
            &now,
            narrow,
        );
        assert!(
            narrow.starts_with("nightly   FREE, but not before 03:54:01\n  why      at least 1h, started 02:54:01 root@web1\n"),
            "{narrow}"
        );
        assert!(
            text(Rule::SkewGuard(hour)).starts_with(
                "nightly   FREE, but for other hosts not before 03:54:01: skew guard 1h"
            )
        );
    }

    #[test]
    fn unknown_values_are_not_shown() {
        let mut lock = state();
        let holder = &mut lock.holders[0];
        *holder = Holder {
            metadata: None,
            fence: None,
            foreign: true,
            held_for: None,
            renewed_ago: None,
            expires_in: None,
            ..holder.clone()
        };
        lock.waiters = vec![
            Waiter {
                metadata: None,
                mode: None,
                waiting_for: None,
                in_order: false
            };
            12
        ];
        let text = shown(&lock);
        assert!(
            text.contains("holder   a client that is not dlock\n"),
            "{text}"
        );
        assert!(
            text.contains("lease    its end is not known\n") && !text.contains("since"),
            "{text}"
        );
        assert!(
            text.ends_with("           another process\n           and 2 more\n")
                && !text.contains("1. "),
            "{text}"
        );
        lock.holders[0].removal = Some("etcdctl del 'x'".into());
        let text = shown(&lock);
        assert!(
            text.contains("lease    never ends by itself: etcdctl del 'x' frees it"),
            "{text}"
        );
    }

    #[test]
    fn nodes_are_shown_one_by_one() {
        let node = |name: &str, held, fence| NodeView {
            node: name.into(),
            held,
            others: fence == Some(Fence(7)),
            fence,
            expires_in: held.filter(|held| *held).and_then(|_| secs(57)),
            error: held.is_none().then(|| "nothing listens there".into()),
        };
        let nodes = vec![
            node("r1:6379", Some(true), Some(Fence(1042))),
            node("r2:6379", Some(true), Some(Fence(7))),
            node("r3:6379", Some(true), None),
            node("r4:6379", Some(false), None),
            node("r5:6379", None, None),
        ];
        let text = shown(&LockState {
            waiters: vec![],
            nodes,
            ..state()
        });
        let expected = "  nodes    r1:6379                 held, expires in 57s
           r2:6379                 held by another, expires in 57s
           r3:6379                 held, unconfirmed, expires in 57s
           r4:6379                 free
           r5:6379                 nothing listens there
";
        assert!(text.ends_with(expected), "{text}");
    }

    #[test]
    fn a_stopped_holder_with_an_expired_lease_is_described() {
        let mut lock = state();
        lock.holders[0].renewed_ago = Some(Duration::from_secs(90));
        lock.holders[0].expires_in = Some(Duration::ZERO);
        let shown = shown(&lock);
        assert!(
            shown.contains("expires in 0s: dlock on web3 is stopped, and keeps the lock until"),
            "{shown}"
        );
    }

    #[test]
    fn late_and_detached_holders_are_described() {
        let mut lock = state();
        lock.holders[0].renewed_ago = secs(36);
        lock.holders[0].expires_in = secs(24);
        assert!(shown(&lock).contains("expires in 24s: dlock on web3 is late"));
        lock.holders[0].detached = true;
        // A hold that a process renews would name its program.
        lock.holders[0].metadata.as_mut().unwrap().command = None;
        assert!(shown(&lock).contains("expires in 24s: acquired with a TTL: no process renews it"));
    }
}
