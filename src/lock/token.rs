//! What identifies a hold: the secret token and the public fence.

use std::{fmt, str::FromStr};

use uuid::Uuid;

use super::{Error, Kind, Result};

/// The secret that a hold is renewed and released with.
///
/// It names an owner and, below it, one hold: a nested `dlock run` of the same key has the outer one's
/// owner and a hold of its own, so that each is counted once however often its request is repeated.
/// The text form is `<uuid>.<16 hex digits>`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token {
    /// Random, unique per lease.
    pub owner: Uuid,
    /// Random, unique per hold of that lease.
    pub hold: u64,
}

impl Token {
    /// A token that nobody has.
    pub fn random() -> Self {
        Self { owner: uuid::Builder::from_random_bytes(random_bytes()).into_uuid(), hold: random() }
    }

    /// A token for another hold of the same owner.
    #[must_use]
    pub fn nested(self) -> Self {
        Self { hold: random(), ..self }
    }

    /// The hold as stores write it: 16 hexadecimal digits.
    pub fn hold_text(&self) -> String {
        format!("{:016x}", self.hold)
    }

    /// The text form, which is a secret: only for whoever has to renew and release.
    pub fn reveal(&self) -> String {
        format!("{}.{}", self.owner, self.hold_text())
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

impl FromStr for Token {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parse = || {
            let (owner, hold) = text.split_once('.')?;
            let hold = (hold.len() == 16).then(|| u64::from_str_radix(hold, 16).ok())??;
            let owner = (owner.len() == 36).then(|| Uuid::try_parse(owner).ok())??;
            Some(Self { owner, hold })
        };
        parse().ok_or_else(|| {
            Error::new(Kind::Data, "this is not a token of dlock")
                .hint("a token is what `dlock acquire` printed, or DLOCK_TOKEN inside of `dlock run`")
        })
    }
}

/// The fencing token: strictly increasing over all holds of a key, below 2^53, public.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(pub u64);

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// 64 random bits from the operating system.
pub fn random() -> u64 {
    u64::from_ne_bytes(random_bytes())
}

/// From the kernel itself: a static binary's usual way is /dev/urandom, which a bare container may lack.
fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    loop {
        match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
            Ok(read) if read == N => return bytes,
            // So few come all at once once the kernel has any.
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("the kernel gives no random numbers: {error}"),
        }
    }
}

/// A short, stable name for a store, for telling whether two processes mean the same one (FNV-1a, 64 bits).
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
    fn tokens_come_back_from_text_and_stay_out_of_debug() {
        let token = Token::random();
        assert_eq!(token.reveal().parse::<Token>().unwrap(), token);
        assert!(!format!("{token:?}").contains(&token.hold_text()));
        for bad in ["", "x", "0.0", &token.reveal()[1..], &format!("{} ", token.reveal())] {
            assert_eq!(bad.parse::<Token>().unwrap_err().kind, Kind::Data);
        }
    }

    #[test]
    fn a_fingerprint_keeps_its_parts_apart() {
        assert_ne!(fingerprint(&["ab", "c"]), fingerprint(&["a", "bc"]));
    }
}
