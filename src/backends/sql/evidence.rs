//! What proves that the session of a hold lives: the server's own view of its sessions.
//!
//! A hold's session is written as the server that has it, since that server's start, and the
//! session's number there: a restarted server numbers its sessions anew. A server that is restarted
//! or fails over frees the locks of its sessions at once, and a holder may not notice: its hold then
//! lasts until the holder knows by its own clock that the lease is over.

use crate::lock::document::{Document, HolderEntry, SessionState};

/// A server since its start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::backends) struct Server {
    /// What no other server has, and a promotion changes.
    pub identity: String,
    /// Its start, in µs by its own clock.
    pub started_us: i64,
}

impl Server {
    /// Returns how a session of this server is written.
    pub fn session(&self, number: i64) -> String {
        format!("{}/{}#{number}", self.identity, self.started_us)
    }

    /// Returns the number of a session, if this server has or had it since its start.
    pub fn number(&self, session: &str) -> Option<i64> {
        let (server, number) = session.rsplit_once('#')?;
        let (identity, started) = server.rsplit_once('/')?;
        (identity == self.identity && started.parse() == Ok(self.started_us))
            .then(|| number.parse().ok())?
    }

    /// Tells a document which of its sessions have the lock at `now`, in ms by the server's clock:
    /// `has` knows it of this server's.
    pub fn witness(
        &self,
        document: &mut Document,
        now: u64,
        has: impl Fn(&HolderEntry, i64) -> bool,
    ) {
        document.witness_sessions(now, |holder, session| match self.number(session) {
            Some(number) if has(holder, number) => SessionState::Has,
            Some(_) => SessionState::Gone,
            None => SessionState::Left(self.left(holder, session, now)),
        });
    }

    /// Returns until when a hold of another server lasts. No renewal on this server is later than
    /// its start. On another one no renewal is known: the whole lease counts, from when the hold is
    /// found. A clock that was set back makes no lease longer.
    fn left(&self, holder: &HolderEntry, session: &str, now: u64) -> u64 {
        let ttl = holder.holds.values().map(|hold| hold.ttl).max();
        let identity = session.rsplit_once('/').map(|(identity, _)| identity);
        let renewed = if identity == Some(&*self.identity) {
            let started = u64::try_from(self.started_us / 1000).unwrap_or_default();
            holder.renewed.max(started).min(now)
        } else {
            now
        };
        renewed.saturating_add(ttl.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::lock::{Fence, Key, Request, Ttl};

    fn server(identity: &str, started_us: i64) -> Server {
        Server {
            identity: identity.into(),
            started_us,
        }
    }

    #[test]
    fn a_session_is_its_servers_since_the_start() {
        let (server, later) = (server("a/1", 5_000), server("a/1", 6_000));
        let session = server.session(7);
        assert_eq!(server.number(&session), Some(7));
        assert_eq!(later.number(&session), None);
        assert_eq!(server.number("a/1#7"), None);
    }

    #[test]
    fn a_hold_of_a_server_that_is_gone_lasts_for_its_lease() {
        let request = Request::new(
            Key::new("job").unwrap(),
            Ttl::new(Duration::from_secs(10)).unwrap(),
        );
        let held = |session: String| {
            let mut document = Document::default();
            document.grant(&request, Fence(1), 1_000);
            document.attach(&request.token, &session);
            document
        };
        let here = server("a", 2_000_000);
        for (session, now, lasts, has) in [
            (here.session(7), 50_000, Some(50_001), true),
            (here.session(7), 50_000, Some(11_000), false),
            // Restarted at 2 s: renewed by then at the latest.
            (server("a", 1_000).session(7), 5_000, Some(12_000), true),
            // The clock was set back since.
            (server("a", 1_000).session(7), 1_500, Some(11_500), true),
            // Another server: from now on.
            (server("b", 1_000).session(7), 50_000, Some(60_000), true),
        ] {
            let mut document = held(session);
            here.witness(&mut document, now, |_, _| has);
            assert_eq!(document.lasts(&request.token), lasts);
            document.expire(now);
            assert_eq!(document.has_holders(), lasts > Some(now));
        }
    }
}
