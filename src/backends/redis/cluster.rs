//! A Redis Cluster: the node of each slot, and the other nodes to ask.
//!
//! Worst cases: a node of the URL is gone (the next is asked meanwhile); nodes disagree during a
//! failover or a partition (the target of a wrong redirection refuses, and the next call begins
//! with another node); a slot is being moved (moved keys are asked for at the new node; a request
//! whose keys are on both nodes is refused for the moment).

use redis::Value;

use super::{
    connection::{RedisConnection, ServerConnection},
    failure,
    options::{Address, RedisOptions},
    race, reply, slot,
};
use crate::lock::{Effect, Error, Kind, Result};

pub(super) struct Cluster {
    /// The nodes of the URL. They are always asked, since their names may point to new machines.
    seeds: Vec<Address>,
    /// The other known nodes.
    others: Vec<Address>,
    /// Whether `others` is complete.
    learned: bool,
    /// The node to ask first.
    first: usize,
    /// The known nodes of slots.
    owners: Vec<(u16, Address)>,
}

/// The node of a slot.
pub(super) enum SlotLocation {
    /// The node at the other end of this connection.
    Here(ServerConnection),
    /// The node that another node named.
    At(Address),
}

/// A node's redirection of a request for a slot that it doesn't have.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Redirect {
    /// From now on.
    Moved(Address),
    /// For this request only.
    Ask(Address),
}

/// The cluster's nodes, as one node reports them.
struct ClusterMap {
    masters: Vec<Address>,
    all: Vec<Address>,
    /// Whether every slot has a node.
    whole: bool,
}

impl Cluster {
    pub(super) fn new(seeds: Vec<Address>) -> Self {
        Self {
            seeds,
            others: Vec::new(),
            learned: false,
            first: 0,
            owners: Vec::new(),
        }
    }

    /// Removes and returns the lock's known node. Call [`Cluster::set_owner`] once the node has
    /// confirmed it.
    pub(super) fn take_owner(&mut self, name: &str) -> Option<Address> {
        let slot = slot::of(name);
        let at = self.owners.iter().position(|(owned, _)| *owned == slot)?;
        Some(self.owners.swap_remove(at).1)
    }

    pub(super) fn set_owner(&mut self, name: &str, node: Address) {
        self.take_owner(name);
        if !self.seeds.contains(&node) && !self.others.contains(&node) {
            self.others.push(node.clone());
            // A new node: the cluster has changed, so there may be more new nodes.
            self.learned = false;
        }
        self.owners.push((slot::of(name), node));
    }

    /// Asks the nodes for the lock's node.
    pub(super) async fn find(
        &mut self,
        options: &RedisOptions,
        name: &str,
    ) -> Result<SlotLocation> {
        let mut question = redis::pipe();
        question.cmd("EXISTS").arg(name);
        let probe = async |node: Address| {
            let (connection, answers) =
                RedisConnection::open_and(&options.at(&node), &question).await?;
            match answers.first() {
                Some(answer @ Value::ServerError(error)) => match redirect(answer, &node) {
                    Some(Redirect::Moved(owner)) => Ok(SlotLocation::At(owner)),
                    Some(Redirect::Ask(_)) => Ok(SlotLocation::Here(ServerConnection::to_node(
                        connection, node,
                    ))),
                    None => Err(failure::refused(error)),
                },
                _ => Ok(SlotLocation::Here(ServerConnection::to_node(
                    connection, node,
                ))),
            }
        };
        self.any_node(probe).await
    }

    /// Asks the nodes for all masters.
    pub(super) async fn find_masters(&mut self, options: &RedisOptions) -> Result<Vec<Address>> {
        let mut question = redis::pipe();
        question.cmd("CLUSTER").arg("SLOTS");
        let ask = async |node: Address| {
            let (_, answers) = RedisConnection::open_and(&options.at(&node), &question).await?;
            match answers.first() {
                Some(Value::ServerError(error)) => Err(failure::refused(error)),
                Some(answer) => read_map(answer, &node).ok_or_else(failure::unreadable),
                None => Err(failure::unreadable()),
            }
        };
        let map = self.any_node(ask).await?;
        if !map.whole {
            return Err(
                Error::new(Kind::Unavailable, "some slots of the cluster have no node")
                    .hint("`redis-cli --cluster check` says what it lacks"),
            );
        }
        self.learn(map.all);
        Ok(map.masters)
    }

    /// Asks the node at the other end for all others, unless they are known. Without the right to
    /// ask, they stay unknown.
    pub(super) async fn learn_over(&mut self, conn: &mut ServerConnection) -> Result<()> {
        if self.learned {
            return Ok(());
        }
        let question = redis::cmd("CLUSTER").arg("SLOTS").get_packed_command();
        let answer = conn
            .connection
            .ask(&question)
            .await
            .map_err(|error| error.effect(Effect::NotApplied))?;
        match conn.node.as_ref().and_then(|node| read_map(&answer, node)) {
            Some(map) => self.learn(map.all),
            None => self.learned = true,
        }
        Ok(())
    }

    fn learn(&mut self, all: Vec<Address>) {
        self.learned = true;
        self.others = all
            .into_iter()
            .filter(|node| !self.seeds.contains(node))
            .collect();
    }

    /// Returns the first answer of any node.
    async fn any_node<T>(&mut self, ask: impl AsyncFn(Address) -> Result<T>) -> Result<T> {
        let nodes: Vec<&Address> = self.seeds.iter().chain(&self.others).collect();
        let (count, first) = (nodes.len(), self.first);
        // If this call is dropped, or this node's answer is wrong, the next call begins with
        // another node.
        self.first += 1;
        let ask = &ask;
        let questions = (0..count).map(|nth| {
            let node = nodes[(first + nth) % count];
            async move {
                ask(node.clone())
                    .await
                    .map_err(|error| failure::of("node", node, error))
            }
        });
        let failures = match race::first(questions).await {
            Ok(answer) => return Ok(answer),
            Err(failures) => failures,
        };
        let error = failures
            .into_iter()
            .max_by_key(|error| !error.is_transient());
        let mut error = error.unwrap_or_else(|| Error::new(Kind::Config, "no node is named"));
        if error.is_transient() && count > 1 {
            error.message = format!("none of {count} nodes can tell; {}", error.message);
        }
        Err(error)
    }
}

impl ServerConnection {
    /// Returns the redirection in the reply, if there is one.
    pub(super) fn redirect(&self, reply: &Value) -> Option<Redirect> {
        self.node.as_ref().and_then(|node| redirect(reply, node))
    }
}

/// Returns the redirection in a reply of `from`.
fn redirect(reply: &Value, from: &Address) -> Option<Redirect> {
    let Value::ServerError(error) = reply else {
        return None;
    };
    let (_slot, node) = error.details()?.split_once(' ')?;
    let (host, port) = node.trim().rsplit_once(':')?;
    let node = address(host, port.parse().ok()?, from)?;
    match error.code() {
        "MOVED" => Some(Redirect::Moved(node)),
        "ASK" => Some(Redirect::Ask(node)),
        _ => None,
    }
}

/// Reads an address in a node's reply: an empty host is the replying node's, `?` is unknown.
fn address(host: &str, port: u16, from: &Address) -> Option<Address> {
    match host {
        "?" => None,
        "" => Some(Address {
            host: from.host.clone(),
            port,
        }),
        host => Some(Address {
            host: host.to_owned(),
            port,
        }),
    }
}

/// Reads the reply to `CLUSTER SLOTS`: `[first, last, master, replica…]…`, each node as `[host,
/// port, id, …]`.
fn read_map(reply: &Value, from: &Address) -> Option<ClusterMap> {
    let mut map = ClusterMap {
        masters: Vec::new(),
        all: Vec::new(),
        whole: false,
    };
    let mut slots = 0;
    for range in reply::items(reply)? {
        let [first, last, nodes @ ..] = reply::items(range)? else {
            return None;
        };
        slots += reply::int(last)? - reply::int(first)? + 1;
        for (nth, node) in nodes.iter().enumerate() {
            let [host, port, ..] = reply::items(node)? else {
                return None;
            };
            let host = if *host == Value::Nil {
                String::new()
            } else {
                reply::text(host)?
            };
            let Some(node) = address(&host, reply::int(port)?.try_into().ok()?, from) else {
                continue;
            };
            if nth == 0 && !map.masters.contains(&node) {
                map.masters.push(node.clone());
            }
            if !map.all.contains(&node) {
                map.all.push(node);
            }
        }
    }
    map.whole = slots == i64::from(slot::SLOTS);
    Some(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(host: &str, port: u16) -> Address {
        Address {
            host: host.into(),
            port,
        }
    }

    fn value(text: &str) -> Value {
        redis::parse_redis_value(text.as_bytes()).unwrap()
    }

    #[test]
    fn redirections_are_read_with_every_kind_of_host() {
        let from = node("10.0.0.1", 6379);
        let read = |reply: &str| redirect(&value(&format!("-{reply}\r\n")), &from);
        assert_eq!(
            read("MOVED 3999 127.0.0.1:6381"),
            Some(Redirect::Moved(node("127.0.0.1", 6381)))
        );
        assert_eq!(
            read("ASK 3999 r2.example:6381"),
            Some(Redirect::Ask(node("r2.example", 6381)))
        );
        assert_eq!(
            read("MOVED 3999 fd00::7:6381"),
            Some(Redirect::Moved(node("fd00::7", 6381)))
        );
        assert_eq!(
            read("MOVED 3999 :6381"),
            Some(Redirect::Moved(node("10.0.0.1", 6381)))
        );
        for other in [
            "MOVED 3999 ?:6381",
            "MOVED 3999",
            "MOVED x y z",
            "TRYAGAIN Multiple keys request during rehashing",
            "ERR 1 a:2",
        ] {
            assert_eq!(read(other), None, "{other}");
        }
        assert_eq!(redirect(&Value::Okay, &from), None);
    }

    #[test]
    fn a_slot_map_has_masters_all_nodes_and_its_completeness() {
        let from = node("seed", 7000);
        let low =
            "*4\r\n:0\r\n:8000\r\n*3\r\n$1\r\na\r\n:1\r\n$1\r\nx\r\n*3\r\n$-1\r\n:2\r\n$1\r\ny\r\n";
        let high = "*3\r\n:8001\r\n:16383\r\n*4\r\n$1\r\nb\r\n:3\r\n$1\r\nz\r\n*0\r\n";
        let map = read_map(&value(&format!("*2\r\n{low}{high}")), &from).unwrap();
        assert_eq!(map.masters, [node("a", 1), node("b", 3)]);
        assert_eq!(map.all, [node("a", 1), node("seed", 2), node("b", 3)]);
        assert!(map.whole);
        assert!(
            !read_map(&value(&format!("*1\r\n{low}")), &from)
                .unwrap()
                .whole
        );
        assert!(read_map(&value("*1\r\n*1\r\n:0\r\n"), &from).is_none());
    }

    #[test]
    fn a_taken_owner_is_unknown_until_it_is_set_again() {
        let mut cluster = Cluster::new(vec![node("seed", 1)]);
        cluster.set_owner("{job}:a", node("a", 1));
        assert_eq!(cluster.take_owner("job"), Some(node("a", 1)));
        assert_eq!((cluster.take_owner("job"), cluster.others.len()), (None, 1));
    }
}
