//! The least rights that dlock needs, as an `ACL SETUSER` command.

use crate::{
    backends::redis::names::prefix,
    lock::{Grants, Namespace, PASSWORD, Role},
};

/// The commands that a backend uses on its servers.
#[allow(clippy::struct_excessive_bools)] // independent of each other
pub(in crate::backends) struct Needs<'a> {
    pub namespace: &'a Namespace,
    /// Commands, also of scripts, that change a lock.
    pub writes: &'static [&'static str],
    /// Commands that read a lock.
    pub reads: &'static [&'static str],
    /// Whether releases notify Redisson's clients.
    pub publishes: bool,
    pub select: bool,
    pub replicas: bool,
    pub all_replicas: bool,
    pub sentinel: bool,
    pub cluster: bool,
}

impl<'a> Needs<'a> {
    /// Returns the needs of a single Redis server.
    pub(in crate::backends) fn scripts_and_lists(namespace: &'a Namespace) -> Self {
        Self {
            namespace,
            writes: &[
                "hset",
                "hdel",
                "hget",
                "hmget",
                "incr",
                "set",
                "del",
                "pexpire",
                "pexpireat",
                "zadd",
                "zrem",
                "zrank",
                "zscore",
                "zcount",
                "zrangebyscore",
                "hmget",
                "lpush",
                "ltrim",
                "blpop",
                "publish",
            ],
            // Verifying a token runs a script too, and each command of a script needs its own
            // right.
            reads: &[
                "evalsha",
                "eval",
                "time",
                "type",
                "exists",
                "hexists",
                "hrandfield",
                "hlen",
                "pttl",
                "hget",
                "hgetall",
                "hkeys",
                "hvals",
                "zrange",
                "lrange",
                "get",
                "scan",
            ],
            publishes: true,
            select: false,
            replicas: false,
            all_replicas: false,
            sentinel: false,
            cluster: false,
        }
    }

    /// Returns the command and notes on it. Patterns of keys and of channels are those of
    /// [`crate::backends::redis::names::RedisNames`].
    pub(in crate::backends) fn grants(&self, role: Role, user: &str) -> Grants {
        let start = prefix(self.namespace);
        // Redis 6.2 leaves all channels to a user after `reset`, and refuses more patterns then.
        let mut words = vec![format!(
            "ACL SETUSER {} reset resetchannels on >{PASSWORD}",
            user
        )];
        // A lock's keys begin with the namespace, except the fence counter, whose name is Redisson's.
        words.push(format!("~{start}*"));
        if !start.is_empty() {
            words.push(format!("~redisson_lock_token:{{{start}*}}"));
        }
        if self.publishes && role.writes() {
            // The leases of Redisson's and dlock's readers, and the queue of Redisson's fair lock.
            words.push(format!(
                "~{{{start}*}}:*:rwlock_timeout:* ~redisson_lock_queue:{{{start}*}}"
            ));
            words.push(format!(
                "&redisson_lock__channel:{{{start}*}}* &redisson_rwlock:{{{start}*}}"
            ));
        }
        let mut commands = self.reads.to_vec();
        if role.writes() {
            commands.extend(self.writes);
        }
        for (wanted, names) in [
            (self.select, &["select"] as &[&str]),
            (self.replicas && role.writes(), &["wait"]),
            (
                self.sentinel || self.all_replicas && role.writes() && !self.cluster,
                &["role"],
            ),
            (
                self.all_replicas && role.writes() && self.cluster,
                &["cluster|nodes"],
            ),
            (self.cluster, &["cluster|slots", "asking", "exists"]),
            (
                self.cluster && self.publishes && role.writes(),
                &["spublish"],
            ),
        ] {
            commands.extend(names.iter().filter(|_| wanted));
        }
        commands.sort_unstable();
        commands.dedup();
        words.extend(commands.iter().map(|command| format!("+{command}")));
        let mut notes = vec![
            format!(
                "put a password in the place of {PASSWORD}; ACL SAVE, or the same line in users.acl, keeps the user over a restart"
            ),
            format!(
                "dlock doctor sees more with {}+config|get, which no other command needs",
                if commands.contains(&"info") {
                    ""
                } else {
                    "+info and "
                }
            ),
        ];
        if self.sentinel {
            notes.insert(
                0,
                "on the master and on every replica, since any of them may be the master one day"
                    .to_owned(),
            );
            let theirs = "+sentinel|get-master-addr-by-name +sentinel|masters +sentinel|master +sentinel|ckquorum";
            notes.push(format!(
                "where sentinels have users, theirs needs no keys: ACL SETUSER {user} reset resetchannels on >{PASSWORD} {theirs}"
            ));
        }
        if self.cluster {
            notes.insert(
                0,
                "on every node; before Redis 7 leave +spublish out, which it doesn't know"
                    .to_owned(),
            );
        }
        Grants {
            text: words.join(" ") + "\n",
            notes,
        }
    }
}
