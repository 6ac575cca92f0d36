//! A row of a lock table, and what it means.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

use super::names::locked_by;
use crate::lock::{
    self, Break, End, Error, Fence, Holder, Kind, LockState, Metadata, Mode, Past, Release, Renewal, Result, Scope, Stage, Token, Ttl,
    Waiter,
};

/// The layout that this version writes: its major number by a hundred, and its minor one.
pub const LAYOUT: i16 = 100;
/// From here on a layout is a newer major one, which must not be touched.
pub const LAYOUT_REFUSED: i16 = 200;

/// When a lock that was given back ended, in µs since 1970: 2000, before any clock's now.
pub const ENDED_US: i64 = 946_684_800_000_000;

/// One row, with the time by the server's clock when it was read. Times are microseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The lock's name in the table.
    pub name: String,
    /// When it was read.
    pub now_us: i64,
    /// ShedLock's: held until then, whoever holds it.
    pub lock_until_us: i64,
    /// ShedLock's: when it was taken.
    pub locked_at_us: i64,
    /// ShedLock's: by whom.
    pub locked_by: String,
    /// The layout of what follows; `None` if no dlock ever had the lock.
    pub layout: Option<i16>,
    /// What we wrote into `locked_by`: what follows counts only while both are the same.
    pub owner: Option<String>,
    /// The hold that the lock was taken with, until it is given back.
    pub root: Option<String>,
    /// The TTL in ms that it was taken with.
    pub ttl_ms: i64,
    /// The holds, if there are others than the one that the lock was taken with.
    pub holds: Option<String>,
    /// The last fence given out; 0 for none.
    pub fence: i64,
    /// Taken by `acquire`.
    pub detached: bool,
    /// When it was last extended.
    pub renewed_us: i64,
    /// Who, as JSON.
    pub metadata: Option<String>,
    /// Who is breaking the hold, as JSON, and whether its holder knows.
    pub mark: Option<String>,
    /// See `mark`.
    pub seen: bool,
    /// Its readers, permits and fair waiters, as [`Document`](crate::lock::document::Document) writes them; `None` if there are none.
    pub document: Option<String>,
    /// Somebody waits for the whole lock who is not in there.
    pub waited: bool,
    /// The mode that the lock is kept in, if it is another one than `mode=lease`.
    pub mode: Option<String>,
    /// Counts the changes: whoever writes a row back must find it as it was read.
    pub revision: i64,
    /// The starts that later runs go by.
    pub starts: lock::Record,
}

/// One hold of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// The TTL in ms that it was taken with.
    pub ttl: i64,
    /// When it ends, in µs.
    pub ends: i64,
}

/// An owner's holds by their text form: what the column `holds` has as JSON, `{"<16 hex digits>": {"ttl": ms, "ends": µs}}`.
/// Fields that a later version adds are passed over.
pub type Holds = BTreeMap<String, Hold>;

impl Record {
    /// Whether somebody has the lock. One that was given back may be kept for a while for others than dlock.
    pub fn is_held(&self) -> bool {
        self.lock_until_us > self.now_us && !self.is_given_back()
    }

    /// Whether the last hold was ours, and was given back.
    fn is_given_back(&self) -> bool {
        self.is_ours() && self.root.is_none() && self.holds.is_none()
    }

    /// Refuses a lock that sessions keep.
    ///
    /// # Errors
    /// The mode that it is kept in.
    pub fn check_mode(&self) -> Result<()> {
        self.mode.as_deref().map_or(Ok(()), |mode| Err(other_mode(mode)))
    }

    /// Whether a dlock was the last to take it, so that our columns speak of that hold.
    pub fn is_ours(&self) -> bool {
        self.owner.as_deref() == Some(&*self.locked_by)
    }

    /// Whether this token's owner has the lock.
    pub fn is_held_by(&self, token: &Token) -> bool {
        self.is_held() && self.is_ours() && self.locked_by == locked_by(token)
    }

    /// Who is breaking the hold.
    pub fn broken(&self) -> Option<Break> {
        let mark: Break = serde_json::from_str(self.mark.as_deref()?).ok()?;
        Some(Break { seen: self.seen, ..mark })
    }

    /// What is remembered of a hold of ours that was never given back; `None` if the last one was, or somebody has the lock.
    pub fn vanished(&self) -> Option<Past> {
        if self.is_held() || !self.is_ours() || self.is_given_back() || self.lock_until_us <= ENDED_US {
            return None;
        }
        let mark = self.broken();
        let (end, why) = mark.as_ref().map_or((End::Expired, None), Into::into);
        Some(self.past(self.lock_until_us, end, why))
    }

    /// What is remembered of the hold that our columns speak of.
    pub fn past(&self, ended_us: i64, end: End, why: Option<String>) -> Past {
        let ms = |us: i64| u64::try_from(us / 1000).ok();
        Past {
            fence: Some(self.fence()),
            started_ms: ms(self.locked_at_us),
            ended_ms: ms(ended_us),
            end,
            why,
            metadata: self.metadata.as_deref().and_then(|json| serde_json::from_str(json).ok()),
        }
    }

    /// Takes the lock away from all holds of its owner.
    pub fn evict(&mut self) {
        self.put(&Holds::new());
    }

    /// Refuses what a newer dlock wrote.
    ///
    /// # Errors
    /// [`Kind::Layout`].
    pub fn check_layout(&self) -> Result<()> {
        match self.layout {
            Some(layout) if layout >= LAYOUT_REFUSED => Err(Error::new(
                Kind::Layout,
                format!("the lock was taken by a newer dlock, whose layout {}.{} this one can't read", layout / 100, layout % 100),
            )
            .hint("update dlock on this machine")),
            _ => Ok(()),
        }
    }

    /// The owner's holds whose leases run.
    ///
    /// # Errors
    /// [`Kind::Data`] if that is not what dlock writes.
    pub fn live_holds(&self) -> Result<Holds> {
        let mut holds = match (&self.holds, &self.root) {
            (Some(json), _) => serde_json::from_str::<Holds>(json)
                .map_err(|error| Error::new(Kind::Data, "the holds in the lock's row are not what dlock writes").source(error))?,
            (None, Some(root)) => Holds::from([(root.clone(), Hold { ttl: self.ttl_ms, ends: self.lock_until_us })]),
            (None, None) => Holds::new(),
        };
        holds.retain(|_, hold| hold.ends > self.now_us);
        Ok(holds)
    }

    /// Enters or repeats a hold of the owner, who has the lock; how many holds that makes. Never moves an end backwards.
    ///
    /// # Errors
    /// As [`Record::live_holds`].
    pub fn enter(&mut self, token: &Token, ttl: Ttl) -> Result<u32> {
        let mut holds = self.live_holds()?;
        let (ttl, hold) = (ms(ttl), token.hold_text());
        let ends = self.in_ms(ttl).max(holds.get(&hold).map_or(0, |hold| hold.ends));
        holds.insert(hold, Hold { ttl, ends });
        self.put(&holds);
        Ok(count(&holds))
    }

    /// Extends a hold.
    ///
    /// # Errors
    /// As [`Record::live_holds`].
    pub fn renew(&mut self, token: &Token, ttl: Option<Ttl>) -> Result<Renewal> {
        let mut holds = self.live_holds()?;
        let Some(hold) = holds.get_mut(&token.hold_text()) else { return Ok(Renewal::NotHeld) };
        let length = ttl.map_or(hold.ttl, ms);
        let ends = self.in_ms(length);
        if ends < hold.ends {
            return Ok(Renewal::Kept { expires_in: Some(micros(hold.ends - self.now_us)) });
        }
        hold.ends = ends;
        self.put(&holds);
        Ok(Renewal::Renewed { ttl: Ttl::new(micros(length * 1000)).unwrap_or(Ttl::DEFAULT), fence: self.fence() })
    }

    /// Gives a hold back, and with the first one of a tree all others.
    ///
    /// # Errors
    /// As [`Record::live_holds`].
    pub fn release(&mut self, token: &Token, scope: Scope, undone: Option<Stage>) -> Result<Release> {
        let mut holds = self.live_holds()?;
        let hold = token.hold_text();
        if holds.remove(&hold).is_none() {
            return Ok(Release::NotHeld);
        }
        // Who entered whom is not recorded: only the first hold is known to enclose all others.
        if scope == Scope::Tree && self.root.as_deref() == Some(&*hold) {
            holds.clear();
        }
        self.put(&holds);
        if !holds.is_empty() {
            return Ok(Release::StillHeld(count(&holds)));
        }
        // For ShedLock too it is kept from the others for as long as its run is to count at least.
        let paced = self.starts.paced.as_ref().filter(|paced| paced.fence == self.fence() && undone != Some(Stage::Undone));
        let kept = paced.map_or(0, |paced| paced.at_ms.saturating_add(paced.at_least_ms).saturating_mul(1000));
        self.lock_until_us = ENDED_US.max(i64::try_from(kept).unwrap_or(ENDED_US));
        Ok(Release::Released)
    }

    /// The last fence given out.
    pub fn fence(&self) -> Fence {
        Fence(u64::try_from(self.fence).unwrap_or_default())
    }

    /// Who has the lock for itself alone, if anybody has.
    ///
    /// # Errors
    /// As [`Record::check_layout`] and [`Record::live_holds`].
    pub fn holder(&self) -> Result<Option<Holder>> {
        if !self.is_held() || self.is_shared() {
            return Ok(None);
        }
        let foreign = Holder {
            permit: None,
            mode: Mode::Exclusive,
            // By default ShedLock writes its host's name.
            metadata: Some(Metadata { host: Some(self.locked_by.clone()), ..Metadata::default() }),
            fence: None,
            foreign: true,
            detached: false,
            held_for: Some(micros(self.now_us - self.locked_at_us)),
            renewed_ago: None,
            expires_in: Some(self.expires_in()),
            holds: 1,
            broken: None,
        };
        if !self.is_ours() {
            return Ok(Some(foreign));
        }
        self.check_layout()?;
        Ok(Some(Holder {
            // What can't be read is left out, since no decision hangs on it.
            metadata: self.metadata.as_deref().and_then(|json| serde_json::from_str(json).ok()),
            fence: Some(self.fence()),
            foreign: false,
            detached: self.detached,
            renewed_ago: Some(micros(self.now_us - self.renewed_us)),
            holds: count(&self.live_holds()?).max(1),
            broken: self.broken(),
            ..foreign
        }))
    }

    /// All that is known of the lock, with those who wait for it beside those in its row.
    ///
    /// # Errors
    /// As [`Record::holder`].
    pub fn state(&self, key: crate::lock::Key, mut waiters: Vec<Waiter>) -> Result<LockState> {
        self.check_mode()?;
        let (document, _) = self.document()?;
        waiters.extend(document.waiters(self.now_ms()).into_iter().map(|(_, waiter)| waiter));
        waiters.sort_by_key(|waiter| std::cmp::Reverse(waiter.waiting_for));
        Ok(LockState {
            key,
            stored_as: self.name.clone(),
            holders: self.holder()?.into_iter().chain(document.holders(self.now_ms())).collect(),
            waiters,
            last_fence: (self.fence > 0).then(|| self.fence()),
            nodes: Vec::new(),
        })
    }

    /// What is left of the lease.
    pub fn expires_in(&self) -> Duration {
        micros(self.lock_until_us - self.now_us)
    }

    /// So many ms from now.
    fn in_ms(&self, ms: i64) -> i64 {
        self.now_us.saturating_add(ms.saturating_mul(1000))
    }

    /// Writes the holds down: in full only if there are others than the first one.
    fn put(&mut self, holds: &Holds) {
        self.renewed_us = self.now_us;
        self.lock_until_us = holds.values().map(|hold| hold.ends).max().unwrap_or(ENDED_US);
        // Given back or over, it encloses nothing any more.
        self.root.take_if(|root| !holds.contains_key(root));
        let root = self.root.as_ref().and_then(|root| holds.get(root));
        self.holds = match (holds.len(), root) {
            (0, _) => None,
            (1, Some(root)) => {
                self.ttl_ms = root.ttl;
                None
            }
            // A map of numbers can always be written.
            _ => serde_json::to_string(holds).ok(),
        };
    }
}

/// The lock is kept in another mode, so that holds of either would not exclude each other.
pub fn other_mode(mode: &str) -> Error {
    Error::new(Kind::Config, format!("the lock is kept in mode={mode}, which does not exclude holds of other modes"))
        .hint(format!("?mode={mode} in the URL; or, once no holder is left, dlock init with the mode that all are to use"))
}

/// A TTL in ms, as columns have it.
pub fn ms(ttl: Ttl) -> i64 {
    i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX)
}

fn count(holds: &Holds) -> u32 {
    u32::try_from(holds.len()).unwrap_or(u32::MAX)
}

/// Not below zero: a clock that was set back makes times lie in the future.
pub fn micros(us: i64) -> Duration {
    Duration::from_micros(u64::try_from(us).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000;

    fn ttl(seconds: u64) -> Ttl {
        Ttl::new(Duration::from_secs(seconds)).unwrap()
    }

    /// Taken at second 100 for a minute, read at second 110.
    fn record(token: &Token) -> Record {
        Record {
            name: "dlock:job".into(),
            now_us: 110 * SECOND,
            lock_until_us: 160 * SECOND,
            locked_at_us: 100 * SECOND,
            locked_by: locked_by(token),
            layout: Some(LAYOUT),
            owner: Some(locked_by(token)),
            root: Some(token.hold_text()),
            ttl_ms: 60_000,
            holds: None,
            fence: 7,
            detached: false,
            renewed_us: 100 * SECOND,
            metadata: Some(r#"{"host":"web1","new":1}"#.into()),
            mark: None,
            seen: false,
            document: None,
            waited: false,
            mode: None,
            revision: 1,
            starts: lock::Record::default(),
        }
    }

    #[test]
    fn nested_holds_are_counted_and_end_by_themselves() {
        let token = Token::random();
        let mut row = record(&token);
        let (one, two) = (token.nested(), token.nested());
        assert_eq!(row.enter(&one, ttl(5)).unwrap(), 2);
        assert_eq!(row.enter(&one, ttl(5)).unwrap(), 2);
        assert_eq!(row.enter(&two, ttl(100)).unwrap(), 3);
        assert_eq!(row.lock_until_us, 210 * SECOND);
        row.now_us = 116 * SECOND;
        assert_eq!(row.renew(&one, None).unwrap(), Renewal::NotHeld);
        assert_eq!(row.release(&two, Scope::Tree, None).unwrap(), Release::StillHeld(1));
        // The first one alone needs no list.
        assert_eq!((row.holds.clone(), row.lock_until_us, row.ttl_ms), (None, 160 * SECOND, 60_000));
        assert_eq!(row.enter(&one, ttl(5)).unwrap(), 2);
        assert_eq!(row.release(&token, Scope::Hold, None).unwrap(), Release::StillHeld(1));
        assert_eq!(row.lock_until_us, 121 * SECOND);
        assert_eq!((row.release(&token, Scope::Tree, None).unwrap(), &row.root), (Release::NotHeld, &None));
        assert_eq!(row.release(&one, Scope::Hold, None).unwrap(), Release::Released);
        assert_eq!(row.lock_until_us, ENDED_US);
    }

    #[test]
    fn renewals_never_shorten_and_keep_the_first_ttl() {
        let token = Token::random();
        let mut row = record(&token);
        assert_eq!(row.renew(&token, Some(ttl(30))).unwrap(), Renewal::Kept { expires_in: Some(Duration::from_secs(50)) });
        assert_eq!(row.renew(&token, Some(ttl(300))).unwrap(), Renewal::Renewed { ttl: ttl(300), fence: Fence(7) });
        assert!(matches!(row.renew(&token, None).unwrap(), Renewal::Kept { .. }));
        assert_eq!(row.enter(&token, ttl(60)).unwrap(), 1);
        assert_eq!((row.lock_until_us, row.ttl_ms), (410 * SECOND, 60_000));
        assert_eq!(row.renew(&token.nested(), None).unwrap(), Renewal::NotHeld);
    }

    #[test]
    fn a_tree_is_given_back_by_its_first_hold_only() {
        let token = Token::random();
        let mut row = record(&token);
        let inner = token.nested();
        row.enter(&inner, ttl(60)).unwrap();
        let mut other = row.clone();
        assert_eq!(other.release(&inner, Scope::Tree, None).unwrap(), Release::StillHeld(1));
        assert_eq!(row.release(&token, Scope::Tree, None).unwrap(), Release::Released);
    }

    #[test]
    fn what_shedlock_left_or_took_says_nothing_of_our_hold() {
        let token = Token::random();
        let mut row = record(&token);
        assert!(row.is_held_by(&token));
        row.locked_by = "web7".into();
        assert!(!row.is_held_by(&token));
        let holder = row.holder().unwrap().unwrap();
        assert_eq!((holder.foreign, holder.fence, holder.metadata.unwrap().host.as_deref()), (true, None, Some("web7")));
        row.now_us = row.lock_until_us;
        assert!(row.holder().unwrap().is_none());
    }

    #[test]
    fn newer_minor_layouts_are_read_and_newer_majors_refused() {
        let token = Token::random();
        let mut row = Record { layout: Some(107), holds: Some(r#"{"a":{"ttl":5,"ends":999000000,"by":"x"}}"#.into()), ..record(&token) };
        assert_eq!(row.holder().unwrap().unwrap().holds, 1);
        row.holds = Some("[1]".into());
        assert_eq!(row.holder().unwrap_err().kind, Kind::Data);
        row.layout = Some(200);
        assert_eq!(row.holder().unwrap_err().kind, Kind::Layout);
    }
}
