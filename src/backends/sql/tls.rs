//! The modes of TLS, as libpq and MySQL's clients name them.

use super::{SqlOptions, SqlServer, TlsMode};
use crate::{
    backends::net::tls::{Handshake, TlsWords, Trust},
    lock::Result,
};

impl SqlOptions {
    /// Returns the TLS handshake with a server on the network, if the mode wants one. `checks`: a
    /// named authority is checked in every mode, as libpq does.
    ///
    /// # Errors
    /// A file that can't be read, or contains no certificate or key.
    pub(in crate::backends) fn handshake(
        &self,
        checks: bool,
        words: &'static TlsWords,
    ) -> Result<Option<Handshake>> {
        let SqlServer::Tcp { host, .. } = &self.server else {
            return Ok(None);
        };
        let trust = match self.tls {
            TlsMode::Disable => return Ok(None),
            TlsMode::Prefer | TlsMode::Require if !checks || self.files.ca_file.is_none() => {
                Trust::Any
            }
            TlsMode::Prefer | TlsMode::Require | TlsMode::VerifyCa => Trust::Authority,
            TlsMode::VerifyFull => Trust::Name,
        };
        Handshake::new(&self.files, trust, host, words).map(Some)
    }
}
