//! The identifiers of a hold: the secret token and the public fence.

use std::{fmt, fmt::Write as _, str::FromStr};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Error, Kind, Result};

/// The secret that a hold is renewed and released with.
///
/// A token names an owner and one hold of that owner. A nested `dlock run` of the same key has the
/// outer run's owner and its own hold. So each hold is counted once, however often its request is
/// repeated. The text form is `<uuid>.<16 hex digits>`, and `.<48 hex digits>` more for a hold
/// whose session was handed over, or `.run` for the token that a command gets.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token {
    /// Random, unique per lease.
    pub owner: Uuid,
    /// Random, unique per hold of that lease.
    pub hold: u64,
    /// The store session that the hold belongs to, if another process needs it. Never in a token
    /// that a command gets.
    pub session: Option<StoreSession>,
    /// Whether a run keeps the hold, and releases it once its command's tree is gone: in the token
    /// that a command gets.
    pub kept_by_run: bool,
}

/// A store session that another process can take over.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct StoreSession {
    /// The session's number.
    pub id: i64,
    /// The session's secret.
    pub password: [u8; 16],
}

/// The end of the text form of a token that a command gets.
const KEPT_BY_RUN: &str = ".run";

impl fmt::Debug for StoreSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Session(…)")
    }
}

impl Token {
    /// Returns a new, unique token.
    pub fn random() -> Self {
        Self {
            owner: uuid::Builder::from_random_bytes(random_bytes()).into_uuid(),
            hold: random(),
            session: None,
            kept_by_run: false,
        }
    }

    /// Returns a token for another hold of the same owner, which will have its own session.
    #[must_use]
    pub fn nested(self) -> Self {
        Self {
            hold: random(),
            session: None,
            kept_by_run: false,
            ..self
        }
    }

    /// Returns the hold as stores write it: 16 hexadecimal digits.
    pub fn hold_text(&self) -> String {
        format!("{:016x}", self.hold)
    }

    /// Returns the text form. It is a secret, only for clients that renew and release the lock.
    pub fn reveal(&self) -> String {
        let mut text = format!("{}.{}", self.owner, self.hold_text());
        if let Some(StoreSession { id, password }) = self.session {
            // Writing to a String can't fail.
            let _ = write!(text, ".{id:016x}{:032x}", u128::from_be_bytes(password));
        }
        if self.kept_by_run {
            text.push_str(KEPT_BY_RUN);
        }
        text
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

impl StoreSession {
    fn parse(text: &str) -> Option<Self> {
        let (id, password) = (text.len() == 48).then(|| text.split_at_checked(16))??;
        let (high, low) = password.split_at_checked(16)?;
        let password = (u128::from(hex(high)?) << 64 | u128::from(hex(low)?)).to_be_bytes();
        Some(Self {
            id: hex(id)?.cast_signed(),
            password,
        })
    }
}

/// Parses sixteen hexadecimal digits.
fn hex(digits: &str) -> Option<u64> {
    let only_digits = digits.len() == 16 && digits.bytes().all(|b| b.is_ascii_hexdigit());
    only_digits.then(|| u64::from_str_radix(digits, 16).ok())?
}

impl FromStr for Token {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parse = || {
            let (text, kept_by_run) = text
                .strip_suffix(KEPT_BY_RUN)
                .map_or((text, false), |text| (text, true));
            let mut parts = text.split('.');
            let (owner, hold, session) = (parts.next()?, parts.next()?, parts.next());
            let owner = (owner.len() == 36).then(|| Uuid::try_parse(owner).ok())??;
            let session = match session {
                Some(text) => Some(StoreSession::parse(text)?),
                None => None,
            };
            parts.next().is_none().then_some(Self {
                owner,
                hold: hex(hold)?,
                session,
                kept_by_run,
            })
        };
        parse().ok_or_else(|| {
            Error::new(Kind::Data, "this is not a token of dlock").hint(
                "a token is what `dlock acquire` printed, or DLOCK_TOKEN inside of `dlock run`",
            )
        })
    }
}

/// The fencing token: strictly increasing over all holds of a key, below 2^53, public.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Fence(pub u64);

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Returns 64 random bits from the operating system.
pub fn random() -> u64 {
    u64::from_ne_bytes(random_bytes())
}

/// Reads random bytes from the kernel. A static binary's usual source is /dev/urandom, which a bare
/// container may lack.
fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    loop {
        match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
            Ok(read) if read == N => return bytes,
            // A short read can't happen for so few bytes; the loop covers it all the same.
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("the kernel gives no random numbers: {error}"),
        }
    }
}

/// Returns a short, stable identifier of a store (FNV-1a, 64 bits). It shows whether two processes
/// use the same store.
pub fn fingerprint(parts: &[&str]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for part in parts {
        for byte in part.bytes().chain([0]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_a_round_trip_and_are_hidden_in_debug_output() {
        let token = Token::random();
        assert_eq!(token.reveal().parse::<Token>().unwrap(), token);
        assert_eq!(format!("{token:?}"), "Token(…)");
        let handed_over = Token {
            session: Some(StoreSession {
                id: -7,
                password: *b"sixteen bytes ok",
            }),
            ..token
        };
        assert_eq!(handed_over.reveal().parse::<Token>().unwrap(), handed_over);
        assert_eq!(format!("{:?}", handed_over.session), "Some(Session(…))");
        assert_eq!(handed_over.nested().session, None, "it will have its own");
        let kept = Token {
            kept_by_run: true,
            ..token
        };
        assert!(kept.reveal().ends_with(KEPT_BY_RUN) && !kept.nested().kept_by_run);
        assert_eq!(kept.reveal().parse::<Token>().unwrap(), kept);
        for bad in [
            "",
            "x",
            "0.0",
            &handed_over.reveal()[..80],
            &format!("{}.0", handed_over.reveal()),
            &token.reveal()[1..],
            &format!("{} ", token.reveal()),
            &format!("{}.+{}", token.owner, &token.hold_text()[1..]),
        ] {
            assert_eq!(bad.parse::<Token>().unwrap_err().kind, Kind::Data);
        }
    }

    #[test]
    fn a_fingerprint_separates_its_parts() {
        assert_ne!(fingerprint(&["ab", "c"]), fingerprint(&["a", "bc"]));
        assert_eq!(
            fingerprint(&["a"]),
            0x089b_e207_b544_f1e4,
            "held locks are recognized across versions"
        );
    }
}
