//! The checks of this host: whether dlock gets CPU time, and the privilege, to kill in time.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::process::geteuid;

use crate::{
    lock::{Finding, Ttl},
    supervise::may_kill_all,
};

const ID: &str = "host";
/// A shorter lease has less than a second between KILL and its end.
const SHORT: Duration = Duration::from_secs(5);

/// Returns all problems, or an all-clear.
pub(super) fn examine(ttl: Option<Ttl>) -> Vec<Finding> {
    let mut found = Vec::new();
    if geteuid().is_root() && !may_kill_all() {
        let risk = "a command that becomes another user can't be killed when its lock is lost";
        found.push(
            Finding::warn(ID, "this is root without CAP_KILL", risk)
                .fix("give the container the capability KILL"),
        );
    }
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    found.extend(
        places(&own, Path::new("/sys/fs/cgroup"))
            .iter()
            .find_map(|place| throttled(place)),
    );
    if let Some(ttl) = ttl.filter(|ttl| ttl.get() < SHORT) {
        let text = format!("a TTL of {}", humantime::format_duration(ttl.get()));
        let risk =
            "on a host that is short of CPU time for a second, the command may outlive its lease";
        found.push(Finding::warn(ID, text, risk).fix("--ttl 10s or more"));
    }
    if found.is_empty() {
        found.push(Finding::ok(
            ID,
            "CPU time is not limited, and what a command starts can be killed",
        ));
    }
    found
}

/// Returns the directories of this process's cgroup and its ancestors that can limit CPU time.
fn places(own: &str, root: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for line in own.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        let bases = if controllers.is_empty() {
            vec![root.to_owned(), root.join("unified")]
        } else if controllers.split(',').any(|name| name == "cpu") {
            vec![root.join(controllers), root.join("cpu")]
        } else {
            continue;
        };
        for base in bases {
            let below = base.join(path.trim_start_matches('/'));
            // In a container the path may be the host's, while the mount shows the container's own
            // cgroup.
            let below = if below.is_dir() { below } else { base.clone() };
            all.extend(
                below
                    .ancestors()
                    .take_while(|place| place.starts_with(&base))
                    .map(Path::to_owned),
            );
        }
    }
    all
}

/// Reports a cgroup that gets less than half a CPU, or was often throttled.
fn throttled(place: &Path) -> Option<Finding> {
    let number = |name: &str| {
        fs::read_to_string(place.join(name))
            .ok()?
            .trim()
            .parse::<f64>()
            .ok()
    };
    let share = match fs::read_to_string(place.join("cpu.max")) {
        Ok(text) => text.split_once(' ').and_then(|(quota, period)| {
            Some(quota.parse::<f64>().ok()? / period.trim().parse::<f64>().ok()?)
        }),
        Err(_) => number("cpu.cfs_quota_us")
            .filter(|quota| *quota > 0.0)
            .zip(number("cpu.cfs_period_us"))
            .map(|(quota, period)| quota / period),
    };
    let share = share?;
    let stat = fs::read_to_string(place.join("cpu.stat")).unwrap_or_default();
    let count = |name: &str| {
        stat.lines()
            .find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok())
            .unwrap_or_default()
    };
    let (periods, stopped) = (count("nr_periods "), count("nr_throttled "));
    let often = periods >= 100 && stopped.saturating_mul(4) > periods;
    if share >= 0.5 && !often {
        return None;
    }
    let throttled = if often {
        format!(", and was throttled in {stopped} of {periods} periods")
    } else {
        String::new()
    };
    let text = format!(
        "{} allows {:.0} % of one CPU{throttled}",
        place.display(),
        share * 100.0
    );
    let risk = "what a command started may take longer to die than its lease lasts";
    Some(Finding::warn(ID, text, risk).fix("half a CPU or more, or a TTL of a minute or more"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        folder
    }

    #[test]
    fn a_cgroup_short_of_cpu_time_is_reported() {
        let often = "nr_periods 1000\nnr_throttled 600\nthrottled_usec 5\n";
        for (files, expected) in [
            (&[("cpu.max", "max 100000\n")][..], None),
            (
                &[("cpu.max", "3000 100000\n")],
                Some("allows 3 % of one CPU"),
            ),
            (
                &[
                    ("cpu.max", "200000 100000\n"),
                    ("cpu.stat", "nr_periods 1000\nnr_throttled 2\n"),
                ],
                None,
            ),
            (
                &[("cpu.max", "200000 100000\n"), ("cpu.stat", often)],
                Some("throttled in 600 of 1000 periods"),
            ),
            (
                &[
                    ("cpu.cfs_quota_us", "-1\n"),
                    ("cpu.cfs_period_us", "100000\n"),
                ],
                None,
            ),
            (
                &[
                    ("cpu.cfs_quota_us", "3000\n"),
                    ("cpu.cfs_period_us", "100000\n"),
                ],
                Some("allows 3 % of one CPU"),
            ),
            (&[], None),
        ] {
            let folder = group(files);
            let found = throttled(folder.path()).map(|finding| finding.text);
            assert_eq!(found.is_some(), expected.is_some(), "{files:?}: {found:?}");
            assert!(
                expected.is_none_or(|part| found.unwrap().contains(part)),
                "{files:?}"
            );
        }
    }

    #[test]
    fn the_cgroups_above_count_as_well() {
        let folder = group(&[]);
        let root = folder.path();
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::create_dir_all(root.join("cpu,cpuacct")).unwrap();
        let found = places("4:cpu,cpuacct:/docker/5\n3:memory:/x\n0::/a/b\n", root);
        for place in ["a/b", "a", "", "cpu,cpuacct"] {
            assert!(found.contains(&root.join(place)), "{place}: {found:?}");
        }
        assert!(found.iter().all(|place| place.starts_with(root)));
    }
}
