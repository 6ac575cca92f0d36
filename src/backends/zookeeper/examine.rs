//! Examines the settings of an ensemble and the user's rights, as far as locks need them.

use std::time::Duration;

use async_trait::async_trait;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{
    ZooKeeper, ZooKeeperOptions, failure,
    hold::ZkHold,
    names::{folder, meta_folder},
    options::TLS,
    session::{LONGEST, Purpose, ZkSession},
    wire::{NodeKind, Reply, WireRequest},
};
use crate::{
    backends::net::{self, Stream, transport},
    lock::{
        self, Admin, Check, Error, Finding, Grants, PASSWORD, Progress, Result, Role, ServerTime,
        Ttl, check,
    },
};

/// The checks.
pub const CHECKS: &[Check] = &[
    check("version", "the server's version, by the four letters srvr"),
    check(
        "timeouts",
        "the shortest and the longest session, which are the shortest and the longest lease",
    ),
    check(
        "ensemble",
        "how many servers decide together, and how many may fail",
    ),
    check(
        "clients",
        "how many connections a host may have, if conf is in the server's 4lw.commands.whitelist",
    ),
    transport::CHECK,
];

/// A maximum lease below this leaves less than two seconds between renewals.
const SHORT: Duration = Duration::from_secs(12);

/// With fewer connections than this, the jobs that one minute starts on a host may be refused.
const FEW: u32 = 60;

impl ZooKeeper {
    async fn look_at_ensemble(&mut self) -> Result<Vec<Finding>> {
        self.options().check()?;
        // Requests for the minimum and the maximum reveal the range.
        let shortest = ZkSession::open(&self.ensemble, Ttl::MIN, Purpose::Visit).await?;
        let mut longest = ZkSession::open(&self.ensemble, LONGEST, Purpose::Visit).await?;
        let mut found = vec![timeouts(shortest.timeout, longest.timeout)];
        let asked = [WireRequest::Read("/zookeeper/config")];
        let mut answers = longest.ask(&asked).await?;
        found.push(match answers.pop() {
            Some(Ok(Reply::Data { data, .. })) => ensemble(&String::from_utf8_lossy(&data)),
            _ => Finding::unchecked(
                "ensemble",
                "the ensemble's servers",
                "the user may not read /zookeeper/config",
            ),
        });
        found.push(match self.four_letters(b"srvr").await {
            Ok(reply) => version(&reply),
            Err(error) => Finding::unchecked("version", "the version", &error.message),
        });
        found.extend(
            self.four_letters(b"conf")
                .await
                .ok()
                .and_then(|reply| clients(&reply)),
        );
        let options = self.options();
        found.push(transport::finding(
            options.tls.is_some(),
            options.hosts.iter().map(|(host, _)| host.as_str()),
            options.login.is_some(),
            "a URL that begins with zookeepers, and secureClientPort on the servers",
        ));
        Ok(found)
    }

    /// Returns the report of the first server that answers.
    async fn four_letters(&self, word: &[u8; 4]) -> Result<String> {
        let options = self.options();
        let mut failed = None;
        for (host, port) in &options.hosts {
            match net::open(host, *port, options.tls.as_ref(), &TLS).await {
                Ok(stream) => return ask_four_letters(word, stream).await,
                Err(error) => failed = Some(error),
            }
        }
        Err(failed
            .unwrap_or_else(|| Error::new(crate::lock::Kind::Config, "the URL names no server")))
    }

    /// Returns the time of a node that is made for this; `None` if its parent does not exist yet.
    async fn read_clock(&mut self) -> Result<Option<ServerTime>> {
        let now = format!(
            "{}/%now-",
            meta_folder(&self.options().chroot, &self.options().namespace)
        );
        if self.visiting.is_none() {
            self.visiting = Some(self.visit().await?);
        }
        let Some(session) = &mut self.visiting else {
            return Ok(None);
        };
        let asked = [WireRequest::Create(&now, &[], NodeKind::Contender)];
        let mut answers = session.ask(&asked).await?;
        Ok(match answers.pop() {
            Some(Ok(Reply::Created { stat, .. })) => {
                let since_epoch =
                    Duration::from_millis(u64::try_from(stat.ctime).unwrap_or_default());
                Some(ServerTime {
                    server: "the leader".into(),
                    since_epoch,
                })
            }
            _ => None,
        })
    }
}

async fn ask_four_letters(word: &[u8; 4], mut stream: Stream) -> Result<String> {
    let failed = |error| {
        Error::new(
            crate::lock::Kind::Unavailable,
            "the server does not answer to four letters",
        )
        .source(error)
    };
    stream.write_all(word).await.map_err(failed)?;
    stream.flush().await.map_err(failed)?;
    let mut reply = Vec::new();
    // The answer is a few lines, after which the server closes the connection.
    stream
        .take(64 << 10)
        .read_to_end(&mut reply)
        .await
        .map_err(failed)?;
    Ok(String::from_utf8_lossy(&reply).into_owned())
}

impl ZkHold {
    /// Explains why a server ended the connection, if it is too old. Servers of 3.4 do so at
    /// requests that they do not know, and lack what all newer ones have.
    pub(super) async fn explain(&mut self, error: lock::Error) -> lock::Error {
        let ended =
            self.place.is_none() && error.is_transient() && error.effect == lock::Effect::Unknown;
        let old = ended && matches!(self.stat("/zookeeper/config").await, Ok(None));
        if old { failure::too_old() } else { error }
    }
}

fn version(reply: &str) -> Finding {
    const ID: &str = "version";
    let Some(version) = reply
        .lines()
        .find_map(|line| line.strip_prefix("Zookeeper version: "))
    else {
        return Finding::unchecked(ID, "the version", "srvr is not in 4lw.commands.whitelist");
    };
    let version = version.split(['-', ',', ' ']).next().unwrap_or(version);
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    let number: (u32, u32) = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    let text = format!("ZooKeeper {version}");
    if number < (3, 5) {
        return Finding::not_safe(ID, text, "it has no containers, which locks lie in")
            .fix(failure::OLDEST);
    }
    Finding::ok(ID, text)
}

/// A server that doesn't tell it has its usual limit of 60.
fn clients(reply: &str) -> Option<Finding> {
    const ID: &str = "clients";
    let most: u32 = reply
        .lines()
        .find_map(|line| line.strip_prefix("maxClientCnxns="))?
        .trim()
        .parse()
        .ok()?;
    Some(match most {
        0 => Finding::ok(ID, "a host may have any number of connections"),
        1..FEW => Finding::warn(
            ID,
            format!("a host may have {most} connections; each run and each waiter takes one"),
            "runs beyond that end with 69",
        )
        .fix("raise maxClientCnxns on the servers"),
        _ => Finding::ok(
            ID,
            format!("a host may have {most} connections; each run and each waiter takes one"),
        ),
    })
}

fn timeouts(shortest: Duration, longest: Duration) -> Finding {
    const ID: &str = "timeouts";
    let show = humantime::format_duration;
    let text = format!(
        "sessions, and so leases, last {} to {}",
        show(shortest),
        show(longest)
    );
    if longest < SHORT {
        let risk = "a renewal that is a little late stops the job";
        return Finding::warn(ID, text, risk)
            .fix("maxSessionTimeout=60000 on every server; its default is 20 ticks");
    }
    Finding::ok(ID, text)
}

/// Judges the ensemble's configuration, one line for each server. A standalone server has none.
fn ensemble(config: &str) -> Finding {
    const ID: &str = "ensemble";
    let servers = config
        .lines()
        .filter(|line| line.starts_with("server.") && !line.contains(":observer"))
        .count()
        .max(1);
    let may_fail = (servers - 1) / 2;
    let text = if servers == 1 {
        "1 server".to_owned()
    } else {
        format!("{servers} servers, {may_fail} may fail")
    };
    if may_fail == 0 {
        let which = if servers == 1 { "it" } else { "one" };
        return Finding::warn(
            ID,
            text,
            format!("when {which} is down, locks can't be taken and jobs are stopped"),
        )
        .fix("three servers, or five");
    }
    Finding::ok(ID, text)
}

#[async_trait(?Send)]
impl Admin for ZooKeeper {
    async fn collect(&mut self, unused_for: Duration, progress: &Progress) -> Result<Option<u64>> {
        let outcome = self.remove_records(unused_for, progress).await;
        self.ensemble.await_ended_sessions().await;
        outcome.map(Some)
    }

    async fn examine(&mut self) -> Result<Vec<Finding>> {
        let outcome = self.look_at_ensemble().await;
        self.ensemble.await_ended_sessions().await;
        outcome
    }

    async fn clocks(&mut self) -> Result<Vec<ServerTime>> {
        Ok(self.read_clock().await?.into_iter().collect())
    }
}

/// Returns the least rights for `role`.
pub(super) fn grants(options: &ZooKeeperOptions, role: Role, user: &str) -> Grants {
    let places = [
        folder(&options.chroot, &options.namespace),
        meta_folder(&options.chroot, &options.namespace),
    ];
    if !role.writes() {
        return Grants {
            text: String::new(),
            notes: vec![
                "ZooKeeper has no such role for locks: what a login makes is that login's alone, to read too".into(),
                "to look, use the login of --print-grants run; without a login all users can look, and take".into(),
            ],
        };
    }
    let mut lines = vec![format!("addauth digest {}:{PASSWORD}", user)];
    for (at, _) in format!("{}/", options.chroot).match_indices('/').skip(1) {
        lines.push(format!("create {}", &options.chroot[..at]));
    }
    for place in places.iter().filter(|place| **place != options.chroot) {
        lines.push(format!("create {place}"));
        lines.push(format!("setAcl {place} auth::cdrwa"));
    }
    let notes = vec![
        format!("lines for zkCli.sh, once; put a password in the place of {PASSWORD}"),
        format!(
            "then the URL is zookeeper://{}@HOST: dlock makes all below for that login alone",
            user
        ),
    ];
    Grants {
        text: lines.join("\n") + "\n",
        notes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::Severity;

    #[test]
    fn servers_of_an_ensemble_are_counted_without_observers() {
        let one = |n: usize| format!("server.{n}=h{n}:2888:3888:participant;0.0.0.0:2181");
        let of = |servers: usize| (1..=servers).map(one).collect::<Vec<_>>().join("\n");
        assert_eq!(
            (ensemble("").severity, ensemble(&of(2)).severity),
            (Severity::Warn, Severity::Warn)
        );
        assert_eq!(
            ensemble(&(of(3) + "\nserver.4=h4:1:2:observer;2181\nversion=0")).text,
            "3 servers, 1 may fail"
        );
    }

    #[test]
    fn versions_and_session_ranges_are_rated() {
        assert_eq!(
            version("Zookeeper version: 3.8.0-${mvngit.commit.id}, built on\nMode: standalone")
                .text,
            "ZooKeeper 3.8.0"
        );
        assert_eq!(
            version("Zookeeper version: 3.4.14-4c25, built").severity,
            Severity::Unsafe
        );
        assert!(
            version("srvr is not executed because it is not in the whitelist.")
                .text
                .starts_with("not checked")
        );
        let most = |reply: &str| clients(reply).map(|found| found.severity);
        assert_eq!(
            [
                most("a=1\nmaxClientCnxns=60\n"),
                most("maxClientCnxns=0"),
                most("maxClientCnxns=5")
            ]
            .map(|found| found == Some(Severity::Ok)),
            [true, true, false]
        );
        assert_eq!(
            most("conf is not executed because it is not in the whitelist."),
            None
        );
        let range =
            |longest| timeouts(Duration::from_secs(1), Duration::from_secs(longest)).severity;
        assert_eq!((range(10), range(40)), (Severity::Warn, Severity::Ok));
    }
}
