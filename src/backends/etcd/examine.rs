//! Examines the settings of a cluster and the user's rights, as far as locks need them.

use std::time::Duration;

use async_trait::async_trait;
use prost::Message;

use super::{
    Etcd, EtcdOptions,
    client::{EtcdResult, Style},
    failure::Trouble,
    gc,
    messages::Header,
    names,
};
use crate::{
    backends::net::transport,
    lock::{Admin, Check, Error, Finding, Grants, Kind, PASSWORD, Progress, Result, Role, check},
};

/// The checks.
pub const CHECKS: &[Check] = &[
    check("version", "the server's version"),
    check("alarms", "alarms that are raised: NOSPACE, CORRUPT"),
    check(
        "quota",
        "how much is stored, of quota-backend-bytes where that is told",
    ),
    check(
        "compaction",
        "whether the history of old changes is ever removed (auto-compaction)",
    ),
    check(
        "members",
        "how many members there are, and how many may fail",
    ),
    transport::CHECK,
];

/// The default storage quota of a member.
const USUAL_QUOTA: i64 = 2 << 30;

// From rpc.proto, without the fields that dlock does not read.

#[derive(Clone, PartialEq, Message)]
struct StatusRequest {}

/// A read of a key at an old revision.
#[derive(Clone, PartialEq, Message)]
struct OldRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(int64, tag = "4")]
    revision: i64,
}

#[derive(Clone, PartialEq, Message)]
struct OldResponse {}

#[derive(Clone, PartialEq, Message)]
struct StatusResponse {
    #[prost(message, optional, tag = "1")]
    header: Option<Header>,
    #[prost(string, tag = "2")]
    version: String,
    #[prost(int64, tag = "3")]
    db_size: i64,
    #[prost(uint64, tag = "4")]
    leader: u64,
    /// Since etcd 3.6.
    #[prost(int64, tag = "12")]
    db_size_quota: i64,
}

/// An empty request asks for all alarms.
#[derive(Clone, PartialEq, Message)]
struct AlarmRequest {}

#[derive(Clone, PartialEq, Message)]
struct AlarmResponse {
    #[prost(message, repeated, tag = "2")]
    alarms: Vec<AlarmMember>,
}

#[derive(Clone, PartialEq, Message)]
struct AlarmMember {
    #[prost(uint64, tag = "1")]
    member: u64,
    #[prost(int32, tag = "2")]
    kind: i32,
}

#[derive(Clone, PartialEq, Message)]
struct MemberListRequest {}

#[derive(Clone, PartialEq, Message)]
struct MemberListResponse {
    #[prost(message, repeated, tag = "2")]
    members: Vec<Member>,
}

#[derive(Clone, PartialEq, Message)]
struct Member {
    #[prost(bool, tag = "5")]
    learner: bool,
}

impl Etcd {
    async fn look_at_cluster(&mut self) -> EtcdResult<Vec<Finding>> {
        // Open to every user before etcd 3.5.17 or so, then to the role root only: any logged-in
        // user can still take locks.
        let status: EtcdResult<StatusResponse> = self
            .client
            .ask(
                "/etcdserverpb.Maintenance/Status",
                StatusRequest {},
                Style::Unary,
            )
            .await;
        let status = match status {
            Ok(status) => Some(status),
            Err(Trouble::Refused(error))
                if error.kind == Kind::Denied && self.client.login.is_some() =>
            {
                None
            }
            Err(trouble) => return Err(trouble),
        };
        let hidden = |check, what| Finding::unchecked(check, what, "only the role root may see it");
        let alarms: EtcdResult<AlarmResponse> = self
            .client
            .ask(
                "/etcdserverpb.Maintenance/Alarm",
                AlarmRequest {},
                Style::Unary,
            )
            .await;
        let members: EtcdResult<MemberListResponse> = self
            .client
            .ask(
                "/etcdserverpb.Cluster/MemberList",
                MemberListRequest {},
                Style::Unary,
            )
            .await;
        let mut found = vec![status.as_ref().map_or_else(
            || hidden("version", "the version"),
            |status| version(&status.version),
        )];
        found.push(match alarms {
            Ok(answer) => raised(&answer.alarms),
            Err(trouble) => unchecked("alarms", "alarms", trouble),
        });
        found.push(
            status
                .as_ref()
                .map_or_else(|| hidden("quota", "the quota"), quota),
        );
        let key = names::prefix(&self.client.options().namespace).into_bytes();
        let key = if key.is_empty() { vec![0] } else { key };
        let oldest: EtcdResult<OldResponse> = self
            .client
            .ask(
                "/etcdserverpb.KV/Range",
                OldRequest { key, revision: 1 },
                Style::Unary,
            )
            .await;
        found.push(match (oldest.map_err(Error::from), &status) {
            (Ok(_), Some(status)) => all_kept(status),
            (Ok(_), None) => hidden("compaction", "whether old changes are removed"),
            (Err(error), _) if error.message.contains("has been compacted") => compacted(),
            (Err(error), _) => Finding::unchecked(
                "compaction",
                "whether old changes are removed",
                &error.message,
            ),
        });
        found.push(match (members, &status) {
            (Ok(answer), Some(status)) => members_of(&answer.members, status.leader),
            (Ok(_), None) => hidden("members", "the leader"),
            (Err(trouble), _) => unchecked("members", "the members", trouble),
        });
        let options = self.client.options();
        found.push(transport::finding(
            options.tls.is_some(),
            options.endpoints.iter().map(|(host, _)| host.as_str()),
            options.password.is_some(),
            "a URL that begins with etcds, and TLS for the members' clients",
        ));
        Ok(found)
    }
}

fn unchecked(check: &'static str, what: &str, trouble: Trouble) -> Finding {
    Finding::unchecked(check, what, &Error::from(trouble).message)
}

fn version(text: &str) -> Finding {
    const ID: &str = "version";
    let mut parts = text.split(['.', '-']).map(|part| part.parse().unwrap_or(0));
    let mut next = || parts.next().unwrap_or(0);
    let number: (u32, u32, u32) = (next(), next(), next());
    let shown = format!("etcd {text}");
    // etcd#16822, and its backports.
    if number < (3, 4, 31) || ((3, 5, 0)..(3, 5, 13)).contains(&number) {
        let risk = "a member that was slow to see that it leads no more may end leases that are kept, so that a job is stopped or two run";
        return Finding::warn(ID, shown, risk).fix("3.4.31, 3.5.13, 3.6 or later");
    }
    Finding::ok(ID, shown)
}

fn raised(alarms: &[AlarmMember]) -> Finding {
    const ID: &str = "alarms";
    let of = |kind: i32| alarms.iter().filter(|alarm| alarm.kind == kind).count();
    match (of(1), of(2)) {
        (_, corrupt @ 1..) => Finding::not_safe(
            ID,
            format!("CORRUPT on {corrupt} members"),
            "members don't store the same: two may be granted one lock",
        )
        .fix("replace the member that is wrong; etcdctl alarm list"),
        (full @ 1.., _) => {
            let text = format!("NOSPACE on {full} members");
            Finding::not_safe(ID, text, "no lock can be taken")
                .fix("etcdctl compact, defrag, alarm disarm; or a larger quota")
        }
        (0, 0) if alarms.is_empty() => Finding::ok(ID, "no alarm is raised"),
        (0, 0) => Finding::warn(
            ID,
            format!("{} alarms of a kind that dlock doesn't know", alarms.len()),
            "the members know what could happen",
        )
        .fix("etcdctl alarm list"),
    }
}

fn quota(status: &StatusResponse) -> Finding {
    const ID: &str = "quota";
    let megabytes = |bytes: i64| bytes >> 20;
    let (used, reported) = (status.db_size, status.db_size_quota);
    let limit = if reported > 0 { reported } else { USUAL_QUOTA };
    let of = if reported > 0 {
        "quota-backend-bytes"
    } else {
        "the usual quota, its own is not told"
    };
    let text = format!(
        "{} MB stored of {} MB ({of})",
        megabytes(used),
        megabytes(limit)
    );
    if used > limit / 10 * 8 {
        return Finding::warn(ID, text, "once it is full, no lock can be taken")
            .fix("etcdctl compact and defrag, or a larger quota");
    }
    Finding::ok(ID, text)
}

/// The number of kept revisions from which the examination mentions them.
const MANY_CHANGES: i64 = 10_000;

fn compacted() -> Finding {
    Finding::ok("compaction", "old changes are removed")
}

/// Judges a cluster whose very first revision can still be read.
fn all_kept(status: &StatusResponse) -> Finding {
    const ID: &str = "compaction";
    let changes = status.header.as_ref().map_or(0, |header| header.revision);
    let text = format!(
        "all {changes} changes since the cluster began are kept, in {} MB",
        status.db_size >> 20
    );
    if changes < MANY_CHANGES {
        return Finding::ok(ID, text);
    }
    Finding::warn(
        ID,
        text,
        "each run adds 1 to 2 KB; once the quota is full, no lock can be taken",
    )
    .fix("--auto-compaction-retention=1h on every member, and etcdctl compact now")
}

fn members_of(members: &[Member], leader: u64) -> Finding {
    const ID: &str = "members";
    let voters = members.iter().filter(|member| !member.learner).count();
    let may_fail = voters.saturating_sub(1) / 2;
    let text = if voters == 1 {
        "1 member".to_owned()
    } else {
        format!("{voters} members, {may_fail} may fail")
    };
    if leader == 0 {
        return Finding::not_safe(ID, format!("{text}; none leads"), "locks can't be taken")
            .fix("etcdctl endpoint status --cluster");
    }
    if may_fail == 0 {
        let which = if voters == 1 { "it" } else { "one" };
        return Finding::warn(
            ID,
            text,
            format!("when {which} is down, locks can't be taken and jobs are stopped"),
        )
        .fix("three members, or five");
    }
    Finding::ok(ID, text)
}

#[async_trait(?Send)]
impl Admin for Etcd {
    async fn collect(&mut self, unused_for: Duration, progress: &Progress) -> Result<Option<u64>> {
        Ok(Some(
            gc::collect(&mut self.client, unused_for, progress).await?,
        ))
    }

    async fn examine(&mut self) -> Result<Vec<Finding>> {
        Ok(self.look_at_cluster().await?)
    }
}

/// Returns the least rights for `role`.
pub(super) fn grants(options: &EtcdOptions, role: Role, user: &str) -> Grants {
    let namespace = &options.namespace;
    let kind = if role.writes() { "readwrite" } else { "read" };
    let mut lines = vec![format!("etcdctl role add {user}")];
    let all = namespace.as_str().is_empty();
    for start in if all {
        vec!["''".to_owned()]
    } else {
        vec![names::prefix(namespace), names::side(namespace)]
    } {
        lines.push(format!(
            "etcdctl role grant-permission --prefix=true {user} {kind} {start}"
        ));
    }
    lines.push(format!("etcdctl user add {user}:{PASSWORD}"));
    lines.push(format!("etcdctl user grant-role {user} {user}"));
    let mut notes = vec![format!(
        "put a password in the place of {PASSWORD}; etcdctl auth enable makes it count"
    )];
    if all {
        notes.push("the namespace is empty: locks may be anywhere, and so may this user".into());
    }
    notes.push("dlock doctor sees the members with the role root only".into());
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
    fn versions_that_revoke_renewed_leases_are_known() {
        for (text, severity) in [
            ("3.3.27", Severity::Warn),
            ("3.4.23", Severity::Warn),
            ("3.4.31", Severity::Ok),
            ("3.5.0", Severity::Warn),
            ("3.5.12", Severity::Warn),
            ("3.5.13", Severity::Ok),
            ("3.6.0-rc.1", Severity::Ok),
            ("4.0.0", Severity::Ok),
        ] {
            assert_eq!(version(text).severity, severity, "{text}");
        }
    }

    #[test]
    fn a_history_without_compaction_is_reported() {
        let status = |revision| StatusResponse {
            header: Some(Header { revision }),
            db_size: 3 << 20,
            ..StatusResponse::default()
        };
        assert_eq!(all_kept(&status(50)).severity, Severity::Ok);
        let reported = all_kept(&status(50_000));
        assert_eq!(
            (reported.severity, reported.text.as_str()),
            (
                Severity::Warn,
                "all 50000 changes since the cluster began are kept, in 3 MB"
            )
        );
    }

    #[test]
    fn alarms_and_members_are_counted() {
        let alarm = |kind| AlarmMember { member: 7, kind };
        assert_eq!(raised(&[alarm(1)]).severity, Severity::Unsafe);
        assert!(raised(&[alarm(1), alarm(2)]).text.starts_with("CORRUPT"));
        assert_eq!(raised(&[alarm(9)]).severity, Severity::Warn);
        let of = |voters: usize| vec![Member { learner: false }; voters];
        assert_eq!(members_of(&of(3), 1).text, "3 members, 1 may fail");
        assert_eq!(
            members_of(&[of(2), vec![Member { learner: true }]].concat(), 1).severity,
            Severity::Warn
        );
        assert_eq!(members_of(&of(5), 0).severity, Severity::Unsafe);
    }
}
