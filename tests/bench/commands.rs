//! What a Redis server has to do for one hand-over, by its own count, with few and with many waiters.

use crate::{
    drain::Crowd,
    lockers::{Locker, Stores},
    table,
};

const SIZES: [usize; 3] = [1, 20, 100];

/// What clients send; the rest of the server's count is what scripts call.
const FROM_CLIENTS: [&str; 9] = ["eval", "evalsha", "blpop", "hello", "auth", "select", "client", "ping", "script"];

pub fn run(stores: &Stores) {
    let mut rows = Vec::new();
    for size in SIZES {
        let crowd = Crowd::gather(stores, Locker::Redis, &format!("commands-{size}"), size);
        stores.redis.command(&["CONFIG", "RESETSTAT"]);
        let ms = crowd.drain();
        let calls: Vec<_> = stores.redis.calls().into_iter().filter(|(name, _)| !name.starts_with("config") && name != "info").collect();
        let sent: u64 = calls.iter().filter(|(name, _)| FROM_CLIENTS.contains(&name.split('|').next().unwrap_or(name))).map(|c| c.1).sum();
        let all: u64 = calls.iter().map(|call| call.1).sum();
        let each = |count: u64| format!("{:.2}", count as f64 / size as f64);
        let mut sent_words: Vec<_> = calls.iter().filter(|(name, _)| FROM_CLIENTS.contains(&name.as_str())).collect();
        sent_words.sort_by_key(|call| std::cmp::Reverse(call.1));
        let words: Vec<_> = sent_words.iter().map(|(name, count)| format!("{name} {}", each(*count))).collect();
        rows.push(vec![size.to_string(), each(sent), each(all), format!("{:.2}", ms / size as f64), words.join(", ")]);
    }
    let head = ["waiters", "sent per hand-over", "with scripts' own", "ms per hand-over", "of these"];
    table::print("Commands per hand-over, from INFO commandstats", &head, &rows);
    println!("from the holder's release on; with what each waiter had asked before, to join the queue and to block, it is 2 more of them");
}
