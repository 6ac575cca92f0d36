//! Extending a hold, and whether a token has one.

use std::time::Duration;

use super::{
    super::{Fence, Intent, Renewal, Token, Ttl},
    Document,
};

impl Document {
    /// Extends a hold. Never re-creates one, and never moves its end backwards.
    pub fn renew(&mut self, token: &Token, intent: Intent, now: u64) -> Renewal {
        if intent == Intent::Probe {
            return self.verify(token, now);
        }
        let Some(holder) = self.holder_mut(token) else {
            return Renewal::NotHeld;
        };
        let Some(hold) = holder.holds.get_mut(&token.hold_text()) else {
            return Renewal::NotHeld;
        };
        if let Some(mark) = &mut holder.mark {
            if matches!(intent, Intent::Extend(_)) {
                return Renewal::Broken(mark.clone());
            }
            mark.seen = true;
        }
        let ttl = intent.ttl().map_or(hold.ttl, Ttl::as_millis);
        let ends = now.saturating_add(ttl);
        if ends < hold.ends {
            return Renewal::Kept {
                expires_in: Some(Duration::from_millis(hold.ends - now)),
            };
        }
        hold.ends = ends;
        if holder.session.is_some() {
            // The server ends the session once it is silent for this long.
            hold.ttl = ttl;
        }
        holder.renewed = now;
        Renewal::Renewed {
            ttl: Ttl::new(Duration::from_millis(ttl)).unwrap_or(Ttl::DEFAULT),
            fence: Fence(holder.fence),
        }
    }

    /// Whether a token has a hold.
    pub fn verify(&self, token: &Token, now: u64) -> Renewal {
        match self
            .holder(token)
            .and_then(|holder| holder.holds.get(&token.hold_text()))
        {
            Some(hold) => Renewal::Kept {
                expires_in: Some(Duration::from_millis(hold.ends.saturating_sub(now))),
            },
            None => Renewal::NotHeld,
        }
    }
}
