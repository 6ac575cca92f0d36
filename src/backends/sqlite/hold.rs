//! Extending a hold and giving it back.

use std::sync::Arc;

use super::{
    Sqlite,
    lock_file::LockFile,
    opened, ours,
    store::{Locked, Whose},
};
use crate::lock::{Effect, Intent, Key, Release, ReleaseInfo, Renewal, Result, Scope, Token};

/// What the lock file says of a hold.
#[allow(clippy::struct_excessive_bools)] // independent facts
struct Standing {
    /// This process has the hold, and the kernel confirms its bytes.
    ours: bool,
    /// Others have bytes of this key.
    others: bool,
    /// This process has the bytes for a grant of this owner whose answer it has not seen.
    unsure: bool,
    /// Which lock file it is that others would take; zero, which no file has, if there is none.
    file: i64,
    /// Our lock file is that one.
    current: bool,
}

impl Standing {
    fn locked(&self) -> Locked {
        Locked { locked: self.ours || self.others || self.unsure, file: self.file }
    }
}

impl Sqlite {
    /// What the lock file says, without creating one.
    fn standing(&mut self, key: &Key, token: &Token) -> Result<Standing> {
        let path = LockFile::path_for(&self.options.path);
        let file = LockFile::id_at(&path).unwrap_or_default();
        let failed = |error: std::io::Error| ours(&error);
        if let Some(slot) = self.slots.get(key) {
            let confirmed = slot.has(token) && slot.confirm(token).map_err(failed)?;
            let others = slot.file.others_have(slot.bytes.all()).map_err(failed)?;
            let with_us = slot.mine_of(token).is_some_and(|mine| mine.holds.len() > usize::from(slot.has(token)));
            let unsure = slot.mine.is_none() && slot.unsure == Some(token.owner);
            return Ok(Standing { ours: confirmed, others: others || with_us, unsure, file, current: slot.file.is_current() });
        }
        let bytes = self.bytes(key);
        let looked = match &self.file {
            Some(file) if file.is_current() => Some(Arc::clone(file)),
            _ => LockFile::open_to_look(&self.options.path).map_err(failed)?.map(Arc::new),
        };
        let others = looked.map_or(Ok(false), |file| file.others_have(bytes.all())).map_err(failed)?;
        Ok(Standing { ours: false, others, unsure: false, file, current: true })
    }

    /// An attached hold of this process stands as long as its bytes are ours and the row names no other owner.
    /// A row that can't be written (a full disk, a frozen writer, a database that was removed) does not end what the
    /// kernel still guarantees: it only tells others less.
    pub(super) async fn extend(&mut self, key: &Key, token: &Token, intent: Intent) -> Result<Renewal> {
        self.place()?;
        if self.is_removed(key, token) {
            return Ok(Renewal::NotHeld);
        }
        if self.slots.get(key).is_some_and(|slot| slot.share_of(token).is_some()) {
            return self.extend_share(key, token, intent).await;
        }
        let standing = self.standing(key, token)?;
        // If the lock file was removed, the row that others will find is all that protects us.
        let guaranteed = standing.ours && standing.current;
        let whose = Whose { namespace: &self.options.namespace, key, token };
        let lock = standing.locked();
        let answer = async {
            if !self.options.path.exists() {
                return Ok((!guaranteed).then_some(Renewal::NotHeld));
            }
            let (store, _) = opened(&mut self.store, &self.options.path).await?;
            store.renew(whose, intent, lock, !standing.ours, standing.ours).await
        };
        let answer = answer.await;
        let mine = self.slots.get(key).and_then(|slot| slot.mine_of(token));
        match (answer, mine) {
            // Perhaps it is a share.
            (Ok(Some(Renewal::NotHeld)), None) => self.extend_share(key, token, intent).await,
            (Ok(Some(answer)), _) => Ok(answer),
            (Ok(None), Some(mine)) if guaranteed => Ok(Renewal::Renewed { ttl: intent.ttl().unwrap_or(mine.ttl), fence: mine.fence }),
            (Ok(None), _) => Ok(Renewal::NotHeld),
            (Err(error), Some(mine)) if guaranteed => {
                let renewed = Renewal::Renewed { ttl: intent.ttl().unwrap_or(mine.ttl), fence: mine.fence };
                self.give_up_on(&error);
                Ok(renewed)
            }
            (Err(error), _) => {
                self.give_up_on(&error);
                Err(error)
            }
        }
    }

    /// The row first, then the bytes, so that the next holder finds the row free. If the row can't be written, the bytes of an attached
    /// hold are given back all the same, unless the row must tell how the hold ended: then the release fails, and keeps them
    /// ([`Sqlite::let_go_of`]).
    pub(super) async fn hand_back(&mut self, key: &Key, token: &Token, info: &ReleaseInfo) -> Result<Release> {
        self.place()?;
        if self.slots.get(key).is_some_and(|slot| slot.share_of(token).is_some()) {
            return self.hand_back_share(key, token, info).await;
        }
        let standing = self.standing(key, token)?;
        let all = info.scope == Scope::Tree;
        let slot = self.slots.get_mut(key);
        let had_left = slot.and_then(|slot| slot.mine.as_mut()).filter(|mine| mine.owner == token.owner).map(|mine| {
            let before = mine.leaving;
            mine.leaving = true;
            before
        });
        let whose = Whose { namespace: &self.options.namespace, key, token };
        let lock = standing.locked();
        let answer = async {
            if !self.options.path.exists() {
                return Ok(None);
            }
            let (store, _) = opened(&mut self.store, &self.options.path).await?;
            store.release(whose, info, lock, standing.ours, standing.others).await
        };
        let answer = answer.await;
        let without_row = if standing.others && !all { Release::StillHeld(1) } else { Release::Released };
        let answer = match answer {
            Ok(Some(Release::NotHeld)) if standing.ours && had_left == Some(true) => Ok(without_row),
            Ok(Some(answer)) => Ok(answer),
            Ok(None) if standing.ours => Ok(without_row),
            Ok(None) => Ok(Release::NotHeld),
            Err(error) => {
                self.give_up_on(&error);
                if standing.ours && standing.current && !info.is_worth_telling() { Ok(without_row) } else { Err(error) }
            }
        };
        let answer = match answer {
            // Perhaps it is a share.
            Ok(Release::NotHeld) if !standing.ours && !standing.unsure => self.hand_back_share(key, token, info).await,
            answer => answer,
        };
        let settled = answer.is_ok();
        if let Some(slot) = self.slots.get_mut(key) {
            if settled || (standing.ours && !info.is_worth_telling()) {
                slot.remove(token, all);
            }
            if settled && slot.mine.is_none() && slot.unsure == Some(token.owner) {
                slot.give_back();
            }
        }
        // If it was ours, it was an attached hold, which is not watched.
        if !standing.ours && answer.as_ref().is_ok_and(|answer| *answer == Release::Released) {
            self.lock_file()?.ring();
        }
        if let Some(store) = &mut self.store {
            store.tidy(&self.options.path, self.contended).await;
        }
        answer
    }

    /// Gives the bytes back, whatever the row says; whether that freed the lock.
    pub(super) fn let_go_of(&mut self, key: &Key, token: &Token) -> bool {
        let Some(slot) = self.slots.get_mut(key) else { return false };
        if slot.share_of(token).is_some() {
            slot.remove_share(token, true);
            slot.file.ring();
        } else if slot.mine_of(token).is_some() {
            slot.remove(token, true);
        } else {
            return false;
        }
        // Behind a lock file that was removed, the row counts.
        slot.file.is_current()
    }

    /// Opens the database anew next time, if this one may be broken.
    pub(super) fn give_up_on(&mut self, error: &crate::lock::Error) {
        if error.effect == Effect::Unknown
            && let Some(store) = self.store.take()
        {
            store.close();
        }
    }
}
