//! What this process knows of the addresses of hosts: the resolver's last answer, and which address
//! worked.
//!
//! A lookup is a thread of its own, which nothing waits for at the end of the process. All that ask
//! for a name share its lookup. A resolver that does not answer costs one caller [`RESOLVES`], and
//! the later ones nothing until it answers.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs as _},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use tokio::sync::watch;

use crate::lock::{Error, Kind, Origin, Result};

/// How long an address may take before the next one is tried too (RFC 8305 recommends this time).
pub(super) const HEAD_START: Duration = Duration::from_millis(250);
/// How long the resolver may take if no address is known.
const RESOLVES: Duration = Duration::from_secs(1);

/// A host and a port.
type Place = (String, u16);

/// The answer of the resolver, once there is one.
type Answer = Option<Result<Vec<IpAddr>, Arc<io::Error>>>;

static PLACES: Mutex<BTreeMap<Place, Known>> = Mutex::new(BTreeMap::new());

/// What is known of a place.
#[derive(Default)]
struct Known {
    /// The resolver's last answer.
    addresses: Vec<IpAddr>,
    /// The address that was connected to last.
    worked: Option<IpAddr>,
    /// The addresses that did not connect, or were left, since they last worked; the latest is the
    /// last.
    failed: Vec<IpAddr>,
    lookup: Option<Lookup>,
}

/// A lookup that has no answer yet.
struct Lookup {
    answer: watch::Receiver<Answer>,
    began: Instant,
}

fn places() -> MutexGuard<'static, BTreeMap<Place, Known>> {
    PLACES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn with<T>(host: &str, port: u16, work: impl FnOnce(&mut Known) -> T) -> T {
    work(places().entry((host.to_owned(), port)).or_default())
}

impl Known {
    /// Returns the addresses, with the one that worked last first, and those that failed last.
    fn in_order(&self) -> Vec<IpAddr> {
        let mut addresses = self.addresses.clone();
        let rank = |address: &IpAddr| {
            let failed = self
                .failed
                .iter()
                .position(|other| other == address)
                .map_or(0, |at| at + 1);
            (failed, self.worked != Some(*address))
        };
        addresses.sort_by_key(rank);
        addresses
    }

    fn fail(&mut self, address: IpAddr) {
        self.worked.take_if(|worked| *worked == address);
        self.failed.retain(|other| *other != address);
        self.failed.push(address);
    }
}

/// Returns the addresses to try, in this order. A known address is not kept waiting by the
/// resolver.
pub(super) async fn of(host: &str, port: u16) -> Result<Vec<IpAddr>> {
    if let Some(fixed) = fixed(host) {
        return Ok(with(host, port, |known| {
            known.addresses = fixed;
            known.in_order()
        }));
    }
    let (known, mut answer, began) = look_up(host, port)?;
    let limit = if known { HEAD_START } else { RESOLVES };
    let answer = tokio::select! {
        biased;
        answer = answer.wait_for(Option::is_some) => answer.ok().and_then(|answer| answer.clone()),
        () = rest(limit.saturating_sub(began.elapsed())) => None,
    };
    match answer {
        Some(Ok(found)) if found.is_empty() => {
            Err(unresolved("the resolver knows no address of it"))
        }
        Some(Err(error)) if !known => Err(Error::new(Kind::Unavailable, UNRESOLVED)
            .origin(Origin::Resolver)
            .source(error)),
        Some(_) => Ok(with(host, port, |known| known.in_order())),
        None if known => Ok(with(host, port, |known| known.in_order())),
        None => Err(unresolved("the resolver does not answer")),
    }
}

/// Records that this address was connected to.
pub(super) fn worked(host: &str, port: u16, address: IpAddr) {
    with(host, port, |known| {
        known.failed.retain(|other| *other != address);
        known.worked = Some(address);
    });
}

/// Records that this address did not connect.
pub(super) fn failed(host: &str, port: u16, address: IpAddr) {
    with(host, port, |known| known.fail(address));
}

/// Records that the server behind the name is the wrong one, or does not answer: the next call
/// prefers another address, if there is one.
pub(in crate::backends) fn leave(host: &str, port: u16) {
    with(host, port, |known| {
        if let Some(address) = known.worked {
            known.fail(address);
        }
    });
}

/// Returns the addresses of a host that needs no resolver.
fn fixed(host: &str) -> Option<Vec<IpAddr>> {
    if host.eq_ignore_ascii_case("localhost") {
        return Some(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
    }
    Some(vec![host.parse().ok()?])
}

/// Begins a lookup, unless there is one. Returns also whether an address is known, and when the
/// lookup began.
fn look_up(host: &str, port: u16) -> Result<(bool, watch::Receiver<Answer>, Instant)> {
    let mut places = places();
    let known = places.entry((host.to_owned(), port)).or_default();
    let has_address = !known.addresses.is_empty();
    if let Some(lookup) = &known.lookup {
        return Ok((has_address, lookup.answer.clone(), lookup.began));
    }
    let (tell, answer) = watch::channel(None);
    let place = (host.to_owned(), port);
    let work = move || {
        let found = resolve(&place);
        with(&place.0, place.1, |known| {
            known.lookup = None;
            if let Ok(found) = &found
                && !found.is_empty()
            {
                known.addresses.clone_from(found);
                known.failed.retain(|address| found.contains(address));
            }
        });
        // All callers may be gone by then.
        let _ = tell.send(Some(found.map_err(Arc::new)));
    };
    let started = thread::Builder::new().name("resolver".into()).spawn(work);
    started.map_err(|error| {
        Error::new(Kind::Unavailable, UNRESOLVED)
            .origin(Origin::Resolver)
            .source(error)
    })?;
    let began = now();
    known.lookup = Some(Lookup {
        answer: answer.clone(),
        began,
    });
    Ok((has_address, answer, began))
}

/// Asks the system's resolver, which may block for long.
fn resolve((host, port): &Place) -> io::Result<Vec<IpAddr>> {
    let mut found = Vec::new();
    for address in (host.as_str(), *port).to_socket_addrs()? {
        if !found.contains(&address.ip()) {
            found.push(address.ip());
        }
    }
    Ok(found)
}

const UNRESOLVED: &str = "the server's name can't be resolved";

fn unresolved(why: &str) -> Error {
    Error::new(Kind::Unavailable, format!("{UNRESOLVED}: {why}")).origin(Origin::Resolver)
}

#[allow(clippy::disallowed_methods)] // the resolver's time is no lease's
fn now() -> Instant {
    Instant::now()
}

#[allow(clippy::disallowed_methods)] // a silent resolver or file system must not delay what is known
pub(super) async fn rest(time: Duration) {
    tokio::time::sleep(time).await;
}
