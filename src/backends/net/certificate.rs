//! The one map from a failed TLS handshake to words: why a certificate is refused, and what helps.

use std::{
    io,
    time::{Duration, SystemTime},
};

use rustls::{AlertDescription as Alert, CertificateError as Why, pki_types::UnixTime};

use super::dial::unreachable;
use crate::lock::{Error, Kind};

/// What a store's users write for TLS.
#[derive(Debug)]
pub(in crate::backends) struct TlsWords {
    /// Names the authorities to trust.
    pub authority: &'static str,
    /// Names dlock's own certificate.
    pub identity: &'static str,
    /// Encrypts and verifies nothing, where the store has that.
    pub unverified: Option<&'static str>,
    /// Connects without TLS.
    pub in_clear: &'static str,
    /// The protocol that the handshake asks for (ALPN), if it has to ask.
    pub protocol: Option<&'static [u8]>,
}

impl TlsWords {
    /// Returns the words of a store whose URL's scheme says whether TLS is used.
    pub(in crate::backends) const fn of_scheme(in_clear: &'static str) -> Self {
        Self {
            authority: "?cacert=FILE",
            identity: "?cert=FILE&key=FILE",
            unverified: None,
            in_clear,
            protocol: None,
        }
    }

    /// Returns the error of a connection that failed before a request was sent.
    pub(in crate::backends) fn failure(&self, error: io::Error) -> Error {
        let cause = error.get_ref().and_then(|inner| inner.downcast_ref());
        let failure = match cause {
            None => return unreachable(error),
            Some(rustls::Error::InvalidCertificate(why)) => self.refused(why),
            Some(rustls::Error::AlertReceived(alert)) => self.alerted(*alert),
            Some(rustls::Error::InvalidMessage(_)) => self.no_tls(),
            Some(rustls::Error::PeerIncompatible(_)) => {
                Error::new(Kind::Config, "the server and dlock have no TLS in common")
                    .hint("dlock needs TLS 1.2 at least")
            }
            Some(_) => Error::new(Kind::Unavailable, "the TLS handshake failed"),
        };
        failure.source(error)
    }

    /// Like [`TlsWords::failure`], in the handshake itself.
    pub(super) fn handshake(&self, error: io::Error) -> Error {
        let failure = self.failure(error);
        if failure.is_transient() && failure.hint.is_none() {
            let in_clear = self.in_clear;
            return failure.hint(format!("does it speak TLS there? {in_clear} does without"));
        }
        failure
    }

    /// Returns the error that the server doesn't speak TLS.
    pub(in crate::backends) fn no_tls(&self) -> Error {
        Error::new(Kind::Config, "the server doesn't speak TLS on this port")
            .hint(format!("{} connects without TLS", self.in_clear))
    }

    fn alerted(&self, alert: Alert) -> Error {
        let what = match alert {
            Alert::CertificateRequired
            | Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA => "the server wants a client certificate that it trusts",
            Alert::ProtocolVersion => "the server and dlock have no TLS version in common",
            _ => "the server ended the TLS handshake",
        };
        Error::new(Kind::Denied, what).hint(format!(
            "if it asks for a client certificate, {} give it",
            self.identity
        ))
    }

    fn refused(&self, why: &Why) -> Error {
        let (authority, is) = (self.authority, |what: &str| {
            format!("the server's certificate {what}")
        });
        let other = |why: &rustls::OtherError| match why.0.downcast_ref() {
            Some(webpki::Error::CaUsedAsEndEntity) => (
                is("is an authority's, not a server's"),
                "make the server one that is CA:FALSE, as openssl req -x509 does with \
                 -addext basicConstraints=CA:FALSE"
                    .into(),
            ),
            Some(webpki::Error::UnsupportedCertVersion) => (
                is("has an old form"),
                "make the server one of X.509 version 3".into(),
            ),
            _ => (is("is not valid"), "-v says more".into()),
        };
        let clock = "give the server a new one; or is this host's clock wrong?".to_owned();
        let (message, hint) = match why {
            Why::ExpiredContext { not_after, .. } => {
                (is(&format!("expired on {}", date(*not_after))), clock)
            }
            Why::NotValidYetContext { not_before, .. } => {
                let from = date(*not_before);
                (is(&format!("is not valid before {from}")), clock)
            }
            Why::NotValidForNameContext {
                expected,
                presented,
            } => {
                let host = expected.to_str();
                let what = match names(presented) {
                    None => format!("names no host, so not {host}"),
                    Some(names) => format!("is for {names}, not {host}"),
                };
                let hint = "name the host as the certificate does, or make the server one whose \
                            subjectAltName has this name";
                (is(&what), hint.into())
            }
            Why::UnknownIssuer | Why::BadSignature => (
                "no authority that is trusted here has signed the server's certificate".into(),
                format!("{authority} names a file with its authority's certificate"),
            ),
            Why::InvalidPurpose | Why::InvalidPurposeContext { .. } => (
                is("is not for servers"),
                "make the server one whose extendedKeyUsage is serverAuth".into(),
            ),
            // By our verifier.
            Why::ApplicationVerificationFailure => (
                is("is self-signed"),
                format!("{authority} trusts it, if FILE is a copy of it"),
            ),
            Why::Other(why) => other(why),
            _ => (is("is not valid"), "-v says more".into()),
        };
        let only = self.unverified.map(|unverified| {
            // The encrypted connection may still be to an impostor.
            format!("; {unverified} encrypts only, and verifies nothing")
        });
        Error::new(Kind::Denied, message).hint(hint + &only.unwrap_or_default())
    }
}

/// Returns the day in UTC.
fn date(time: UnixTime) -> String {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(time.as_secs());
    let text = humantime::format_rfc3339_seconds(time).to_string();
    text.split('T').next().unwrap_or_default().to_owned()
}

/// Returns a certificate's names, which rustls gives as `DnsName("db1")` or `IpAddress(10.0.0.1)`.
fn names(presented: &[String]) -> Option<String> {
    const SHOWN: usize = 3;
    let plain = |name: &String| {
        let inner = name.split_once('(').map_or(&**name, |(_, rest)| rest);
        let inner = inner.trim_end_matches(')').trim_matches('"');
        inner.chars().take(100).collect::<String>()
    };
    let shown: Vec<_> = presented.iter().take(SHOWN).map(plain).collect();
    let more = match presented.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (!shown.is_empty()).then(|| shown.join(", ") + &more)
}

#[cfg(test)]
mod tests;
