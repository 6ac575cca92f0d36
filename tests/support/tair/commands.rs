//! The effect and the reply of each command.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    time::{Duration, Instant},
};

pub struct Entry {
    pub content: Content,
    pub ends: Option<Instant>,
}

pub enum Content {
    Text(Vec<u8>),
    Versioned(Vec<u8>, i64),
    Hash(BTreeMap<String, Vec<u8>>),
    Sorted(BTreeMap<String, i64>),
    /// A list, head first.
    List(VecDeque<Vec<u8>>),
}

pub enum Reply {
    Ok,
    Status(&'static str),
    Int(i64),
    Bulk(Vec<u8>),
    Nil,
    List(Vec<Reply>),
    Error(&'static str),
}

const WRONGTYPE: Reply =
    Reply::Error("WRONGTYPE Operation against a key holding the wrong kind of value");
const SYNTAX: Reply = Reply::Error("ERR syntax error");

impl Content {
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Text(_) => "string",
            Self::Versioned(..) => "exstrtype",
            Self::Hash(_) => "hash",
            Self::Sorted(_) => "zset",
            Self::List(_) => "list",
        }
    }
}

/// Whether a replica refuses the command.
pub fn writes(command: &str) -> bool {
    !matches!(
        command,
        "COMMAND"
            | "TIME"
            | "TYPE"
            | "PTTL"
            | "EXISTS"
            | "SCAN"
            | "GET"
            | "GETRANGE"
            | "EXGET"
            | "ZRANK"
            | "ZRANGE"
            | "LRANGE"
            | "HGET"
            | "HGETALL"
            | "HLEN"
    )
}

/// The options of write commands.
#[derive(Default)]
pub struct Options {
    ends: Option<Instant>,
    only_new: bool,
    version: Option<i64>,
    wrong: bool,
}

impl Options {
    pub fn read(words: &[String]) -> Self {
        let mut options = Self::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut number = || words.next().and_then(|word| word.parse::<u64>().ok());
            match word.to_ascii_uppercase().as_str() {
                "NX" => options.only_new = true,
                "PX" => match number() {
                    Some(ms) if ms > 0 => {
                        options.ends = Some(Instant::now() + Duration::from_millis(ms));
                    }
                    _ => options.wrong = true,
                },
                "ABS" => options.version = number().and_then(|version| i64::try_from(version).ok()),
                _ => options.wrong = true,
            }
        }
        options
    }
}

pub type Data = HashMap<String, Entry>;

pub fn plain(
    data: &mut Data,
    command: &str,
    key: String,
    words: &[Vec<u8>],
    text: &[String],
    options: &dyn Fn(usize) -> Options,
) -> Reply {
    let stored = match data.get_mut(&key) {
        Some(Entry {
            content: Content::Text(value),
            ..
        }) => Some(value),
        // SET replaces any type; with NX a key of any type blocks it.
        Some(_) if command != "SET" => return WRONGTYPE,
        Some(_) if options(3).only_new => return Reply::Nil,
        _ => None,
    };
    match (command, stored) {
        ("GET" | "GETRANGE", None) => {
            if command == "GET" {
                Reply::Nil
            } else {
                Reply::Bulk(Vec::new())
            }
        }
        ("GET", Some(value)) => Reply::Bulk(value.clone()),
        ("GETRANGE", Some(value)) => {
            let end: usize = text[3].parse().expect("an end");
            Reply::Bulk(value[..value.len().min(end + 1)].to_vec())
        }
        ("SET", stored) => {
            let options = options(3);
            if options.wrong {
                return SYNTAX;
            }
            if stored.is_some() && options.only_new {
                return Reply::Nil;
            }
            data.insert(
                key,
                Entry {
                    content: Content::Text(words[2].clone()),
                    ends: options.ends,
                },
            );
            Reply::Ok
        }
        ("INCRBY", stored) => {
            let before: Option<i64> = stored.as_ref().map_or(Some(0), |value| {
                std::str::from_utf8(value).ok()?.parse().ok()
            });
            let Some(sum) = before.and_then(|before| before.checked_add(text[2].parse().ok()?))
            else {
                return Reply::Error("ERR value is not an integer or out of range");
            };
            match stored {
                Some(value) => *value = sum.to_string().into_bytes(),
                None => drop(data.insert(
                    key,
                    Entry {
                        content: Content::Text(sum.to_string().into_bytes()),
                        ends: None,
                    },
                )),
            }
            Reply::Int(sum)
        }
        (_, None) => Reply::Int(-1),
        (_, Some(value)) if *value != words[2] => Reply::Int(0),
        ("CAD", Some(_)) => {
            data.remove(&key);
            Reply::Int(1)
        }
        // A write without an expiry removes the old expiry.
        (_, Some(_)) => {
            let options = options(4);
            if options.wrong {
                return SYNTAX;
            }
            data.insert(
                key,
                Entry {
                    content: Content::Text(words[3].clone()),
                    ends: options.ends,
                },
            );
            Reply::Int(1)
        }
    }
}

pub fn versioned(
    data: &mut Data,
    command: &str,
    key: String,
    words: &[Vec<u8>],
    text: &[String],
    options: &dyn Fn(usize) -> Options,
) -> Reply {
    let stored = match data.get(&key) {
        Some(Entry {
            content: Content::Versioned(value, version),
            ..
        }) => Some((value.clone(), *version)),
        Some(_) => return WRONGTYPE,
        None => None,
    };
    match (command, stored) {
        ("EXGET", None) => Reply::Nil,
        ("EXGET", Some((value, version))) => {
            Reply::List(vec![Reply::Bulk(value), Reply::Int(version)])
        }
        ("EXSET", stored) => {
            let options = options(3);
            if options.wrong {
                return SYNTAX;
            }
            if stored.is_some() && options.only_new {
                return Reply::Nil;
            }
            let version = options
                .version
                .unwrap_or_else(|| stored.map_or(1, |(_, version)| version + 1));
            data.insert(
                key,
                Entry {
                    content: Content::Versioned(words[2].clone(), version),
                    ends: options.ends,
                },
            );
            Reply::Ok
        }
        (_, None) => Reply::Int(-1),
        ("EXCAD", Some((_, version))) => {
            if text[2].parse() != Ok(version) {
                return Reply::Int(0);
            }
            data.remove(&key);
            Reply::Int(1)
        }
        (_, Some((value, version))) => {
            let options = options(4);
            if options.wrong {
                return SYNTAX;
            }
            if text[3].parse() != Ok(version) {
                return Reply::List(vec![
                    Reply::Status("CAS_FAILED"),
                    Reply::Bulk(value),
                    Reply::Int(version),
                ]);
            }
            data.insert(
                key,
                Entry {
                    content: Content::Versioned(words[2].clone(), version + 1),
                    ends: options.ends,
                },
            );
            Reply::List(vec![Reply::Ok, Reply::Status(""), Reply::Int(version + 1)])
        }
    }
}

pub fn sorted(data: &mut Data, command: &str, key: &str, text: &[String]) -> Reply {
    let make = command == "ZADD";
    if make {
        data.entry(key.to_owned()).or_insert(Entry {
            content: Content::Sorted(BTreeMap::new()),
            ends: None,
        });
    }
    let members = match data.get_mut(key).map(|entry| &mut entry.content) {
        Some(Content::Sorted(members)) => members,
        Some(_) => return WRONGTYPE,
        None => {
            return if command == "ZRANGE" {
                Reply::List(Vec::new())
            } else if command == "ZREM" {
                Reply::Int(0)
            } else {
                Reply::Nil
            };
        }
    };
    let mut order: Vec<(i64, String)> = members
        .iter()
        .map(|(member, score)| (*score, member.clone()))
        .collect();
    order.sort();
    match command {
        "ZADD" => {
            members
                .entry(text[4].clone())
                .or_insert_with(|| text[3].parse().expect("a score"));
            Reply::Int(1)
        }
        "ZRANK" => order
            .iter()
            .position(|(_, member)| *member == text[2])
            .map_or(Reply::Nil, |place| {
                Reply::Int(i64::try_from(place).expect("small"))
            }),
        "ZRANGE" => {
            let most = if text[3] == "-1" { order.len() } else { 1 };
            let scores = text.len() > 4;
            let bulk = |text: String| Reply::Bulk(text.into_bytes());
            let one = |(score, member): (i64, String)| {
                if scores {
                    vec![bulk(member), bulk(score.to_string())]
                } else {
                    vec![bulk(member)]
                }
            };
            Reply::List(order.into_iter().take(most).flat_map(one).collect())
        }
        _ => {
            let removed = members.remove(&text[2]).is_some();
            if members.is_empty() {
                data.remove(key);
            }
            Reply::Int(i64::from(removed))
        }
    }
}

pub fn hash(
    data: &mut Data,
    command: &str,
    key: &str,
    words: &[Vec<u8>],
    text: &[String],
) -> Reply {
    if matches!(command, "HSET" | "HSETNX" | "HINCRBY") {
        data.entry(key.to_owned()).or_insert(Entry {
            content: Content::Hash(BTreeMap::new()),
            ends: None,
        });
    }
    let fields = match data.get_mut(key).map(|entry| &mut entry.content) {
        Some(Content::Hash(fields)) => fields,
        Some(_) => return WRONGTYPE,
        None => {
            return if command == "HGETALL" {
                Reply::List(Vec::new())
            } else if matches!(command, "HDEL" | "HLEN") {
                Reply::Int(0)
            } else {
                Reply::Nil
            };
        }
    };
    match command {
        "HSET" => Reply::Int(i64::from(
            fields.insert(text[2].clone(), words[3].clone()).is_none(),
        )),
        "HSETNX" if fields.contains_key(&text[2]) => Reply::Int(0),
        "HSETNX" => {
            fields.insert(text[2].clone(), words[3].clone());
            Reply::Int(1)
        }
        "HINCRBY" => {
            let value = fields
                .entry(text[2].clone())
                .or_insert_with(|| b"0".to_vec());
            let before = std::str::from_utf8(value)
                .ok()
                .and_then(|value| value.parse::<i64>().ok());
            let Some(sum) = before.and_then(|before| before.checked_add(text[3].parse().ok()?))
            else {
                return Reply::Error("ERR hash value is not an integer");
            };
            *value = sum.to_string().into_bytes();
            Reply::Int(sum)
        }
        "HLEN" => Reply::Int(i64::try_from(fields.len()).expect("small")),
        "HGET" => fields
            .get(&text[2])
            .map_or(Reply::Nil, |value| Reply::Bulk(value.clone())),
        "HGETALL" => Reply::List(
            fields
                .iter()
                .flat_map(|(field, value)| {
                    [
                        Reply::Bulk(field.clone().into()),
                        Reply::Bulk(value.clone()),
                    ]
                })
                .collect(),
        ),
        _ => {
            let removed = text[2..]
                .iter()
                .filter(|field| fields.remove(*field).is_some())
                .count();
            if fields.is_empty() {
                data.remove(key);
            }
            Reply::Int(i64::try_from(removed).expect("small"))
        }
    }
}

pub fn list(
    data: &mut Data,
    command: &str,
    key: &str,
    words: &[Vec<u8>],
    text: &[String],
) -> Reply {
    if command == "LPUSH" {
        data.entry(key.to_owned()).or_insert(Entry {
            content: Content::List(VecDeque::new()),
            ends: None,
        });
    }
    let items = match data.get_mut(key).map(|entry| &mut entry.content) {
        Some(Content::List(items)) => items,
        Some(_) => return WRONGTYPE,
        None if command == "LRANGE" => return Reply::List(Vec::new()),
        None if command == "LREM" => return Reply::Int(0),
        None => return Reply::Ok,
    };
    match command {
        "LPUSH" => {
            items.push_front(words[2].clone());
            Reply::Int(i64::try_from(items.len()).expect("small"))
        }
        // Removes the first equal item.
        "LREM" => {
            let at = items.iter().position(|item| *item == words[3]);
            at.and_then(|at| items.remove(at));
            if items.is_empty() {
                data.remove(key);
            }
            Reply::Int(i64::from(at.is_some()))
        }
        // Keeps the items from the head on.
        "LTRIM" => {
            items.truncate(text[3].parse::<usize>().expect("an end") + 1);
            Reply::Ok
        }
        // Returns the whole list.
        _ => Reply::List(items.iter().cloned().map(Reply::Bulk).collect()),
    }
}

/// Returns all keys at once. Patterns here are an escaped literal prefix and a star.
pub fn scan(data: &Data, text: &[String]) -> Reply {
    let after = |word: &str| {
        text.iter()
            .position(|w| w.eq_ignore_ascii_case(word))
            .and_then(|at| text.get(at + 1))
    };
    let mut start = String::new();
    let mut pattern = after("MATCH")
        .map(|pattern| pattern.strip_suffix('*').unwrap_or(pattern).chars())
        .into_iter()
        .flatten();
    while let Some(c) = pattern.next() {
        start.push(if c == '\\' {
            pattern.next().unwrap_or(c)
        } else {
            c
        });
    }
    let found = data.iter().filter(|(name, entry)| {
        name.starts_with(&start) && after("TYPE").is_none_or(|kind| kind == entry.content.kind())
    });
    Reply::List(vec![
        Reply::Bulk(b"0".to_vec()),
        Reply::List(
            found
                .map(|(name, _)| Reply::Bulk(name.clone().into()))
                .collect(),
        ),
    ])
}
