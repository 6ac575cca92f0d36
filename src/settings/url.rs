//! Parses backend URLs, and redacts them for messages.
//!
//! Parse errors never repeat a URL's text: a password that is not properly encoded may be anywhere
//! in it.

use percent_encoding::percent_decode_str;

/// A URL's parts, percent-decoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Url {
    /// Lower case, without the colon.
    pub scheme: String,
    /// The user, before the `@`.
    pub user: Option<String>,
    /// The password, after the user's colon.
    pub password: Option<String>,
    /// Names or addresses (without brackets) and ports.
    pub hosts: Vec<(String, Option<u16>)>,
    /// The path, which begins with the first slash after the hosts.
    pub path: String,
    /// The parameters after the question mark, in the given order.
    pub query: Vec<(String, String)>,
}

/// Returns the text's scheme in lower case, if it has one.
pub fn scheme(text: &str) -> Option<String> {
    let (scheme, _) = text.split_once(':')?;
    let plain = scheme
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b));
    (plain
        && scheme
            .bytes()
            .next()
            .is_some_and(|b| b.is_ascii_alphabetic()))
    .then(|| scheme.to_ascii_lowercase())
}

/// Whether a URL, well-formed or not, may hold a password.
pub fn has_password(text: &str) -> bool {
    let rest = text.split_once("://").map_or(text, |(_, rest)| rest);
    text.contains(':')
        && rest
            .rsplit_once('@')
            .is_some_and(|(before, _)| before.contains(':'))
}

/// Returns the URL without anything that may be secret, for messages. The URL may be malformed.
pub fn redacted(text: &str) -> String {
    let (scheme, rest) = text
        .split_once("://")
        .map_or(("", text), |(scheme, rest)| (scheme, rest));
    let rest = rest.split('?').next().unwrap_or_default();
    let shown = match text.rsplit_once('@') {
        // Split at the last @: a password before it may contain another one.
        Some((_, after)) => {
            // A user without a password may be a misplaced password.
            let user = rest
                .split_once(':')
                .map(|(user, _)| user)
                .filter(|user| !user.is_empty() && !user.contains(['@', '/']));
            let user = user.map(|user| format!("{user}:")).unwrap_or_default();
            format!("{user}***@{}", after.split('?').next().unwrap_or_default())
        }
        None => rest.to_owned(),
    };
    let joint = if text.contains("://") { "://" } else { "" };
    super::setting::short(&format!("{scheme}{joint}{shown}"))
}

impl Url {
    /// Parses a URL.
    ///
    /// # Errors
    /// Why the URL is invalid, without repeating any of its text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let scheme = scheme(text).ok_or("it has no scheme such as redis://")?;
        if text.chars().any(char::is_control) {
            return Err("it has control characters".into());
        }
        let rest = &text[scheme.len() + 1..];
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        if rest.contains('#') || query.contains('#') {
            return Err("it has a # that is not written as %23".into());
        }
        let mut url = Self {
            scheme,
            ..Self::default()
        };
        if let Some(rest) = rest.strip_prefix("//") {
            let slash = rest.find('/').unwrap_or(rest.len());
            let (authority, path) = rest.split_at(slash);
            url.path = decode(path)?;
            url.authority(authority)?;
        } else {
            url.path = decode(rest)?;
        }
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair
                .split_once('=')
                .ok_or("a parameter has no value: it is written name=value")?;
            url.query.push((decode(name)?, decode(value)?));
        }
        Ok(url)
    }

    fn authority(&mut self, authority: &str) -> Result<(), String> {
        let hosts = match authority.rsplit_once('@') {
            Some((who, hosts)) => {
                let (user, password) = who
                    .split_once(':')
                    .map_or((who, None), |(user, password)| (user, Some(password)));
                if user.contains('@') || password.is_some_and(|p| p.contains(['@', ':'])) {
                    return Err("its user or password has characters that must be percent-encoded (@ is %40, : is %3A, / is %2F)".into());
                }
                self.user = Some(decode(user)?).filter(|user| !user.is_empty());
                self.password = password
                    .map(decode)
                    .transpose()?
                    .filter(|password| !password.is_empty());
                hosts
            }
            None => authority,
        };
        for host in hosts.split(',').filter(|_| !hosts.is_empty()) {
            self.hosts.push(host_and_port(host)?);
        }
        Ok(())
    }
}

fn host_and_port(text: &str) -> Result<(String, Option<u16>), String> {
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (address, rest) = rest
            .split_once(']')
            .ok_or("an IPv6 address has no closing bracket")?;
        address
            .parse::<std::net::Ipv6Addr>()
            .map_err(|_| "what stands in brackets is no IPv6 address")?;
        match rest.strip_prefix(':') {
            Some(port) => (address.to_owned(), Some(port)),
            None if rest.is_empty() => (address.to_owned(), None),
            None => return Err("something stands between an IPv6 address and its port".into()),
        }
    } else {
        let (host, port) = text
            .split_once(':')
            .map_or((text, None), |(host, port)| (host, Some(port)));
        if port.is_some_and(|port| port.contains(':')) {
            return Err("its host has too many colons: an IPv6 address stands in brackets, a password before an @".into());
        }
        let host = decode(host)?;
        if host.is_empty() {
            return Err("it has no host".into());
        }
        if !host
            .chars()
            .all(|c| c.is_alphanumeric() || "-_.".contains(c))
        {
            return Err("its host has characters that no host has".into());
        }
        (host, port)
    };
    let port = port
        .map(|port| {
            port.parse()
                .ok()
                .filter(|port| *port != 0)
                .ok_or("its port is no number from 1 to 65535")
        })
        .transpose()?;
    Ok((host, port))
}

fn decode(text: &str) -> Result<String, String> {
    let mut rest = text;
    while let Some(at) = rest.find('%') {
        rest = &rest[at + 1..];
        if !rest
            .as_bytes()
            .get(..2)
            .is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
        {
            return Err("it has a % that is not written as %25".into());
        }
    }
    let decoded = percent_decode_str(text)
        .decode_utf8()
        .map_err(|_| "it is not UTF-8 once it is decoded")?;
    if decoded.chars().any(char::is_control) {
        return Err("it has control characters".into());
    }
    Ok(decoded.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::damage;

    #[test]
    fn a_url_is_parsed() {
        let url = Url::parse(
            "REDISS://ana:p%40ss%2F@r1:6380,[::1]:1,[fe80::2]/3?ttl=60s&cacert=%2Fetc%2Fca.pem",
        )
        .unwrap();
        assert_eq!(
            url,
            Url {
                scheme: "rediss".into(),
                user: Some("ana".into()),
                password: Some("p@ss/".into()),
                hosts: vec![
                    ("r1".into(), Some(6380)),
                    ("::1".into(), Some(1)),
                    ("fe80::2".into(), None)
                ],
                path: "/3".into(),
                query: vec![
                    ("ttl".into(), "60s".into()),
                    ("cacert".into(), "/etc/ca.pem".into())
                ],
            }
        );
        assert_eq!(Url::parse("sqlite:///a%20b").unwrap().path, "/a b");
        assert_eq!(
            Url::parse("redis://:pw@h").unwrap().password.as_deref(),
            Some("pw")
        );
        assert_eq!(Url::parse("redis://:pw@h").unwrap().user, None);
    }

    #[test]
    fn malformed_urls_are_refused_without_their_text() {
        for text in [
            "redis://u:hunter2@h:x",
            "redis://u:hunter2/@h",
            "redis://u:hunter2:@h",
            "redis://hunter2@2@h",
            "redis://h:hunter2:1",
            "redis://[hunter2]",
            "redis://[::1]hunter2",
            "redis://h:99999",
            "redis://h:0",
            "redis://,h",
            "redis://h?hunter2",
            "redis://h/%zz",
            "redis://h/%ff",
            "redis://h/%00",
            "redis://h#hunter2",
            "redis://hun ter2",
            "hunter2",
            "//hunter2",
            ":hunter2",
        ] {
            let why = Url::parse(text).unwrap_err();
            assert!(!why.contains("hunter2"), "{text}: {why}");
        }
    }

    #[test]
    fn redacted_urls_have_no_secret() {
        assert_eq!(
            redacted("redis://u:hunter2@h:1/0?x=hunter2"),
            "redis://u:***@h:1/0"
        );
        assert_eq!(redacted("redis://u:hun@ter2@h"), "redis://u:***@h");
        assert_eq!(redacted("redis://u:hunt/er2@h"), "redis://u:***@h");
        assert_eq!(redacted("redis://u:hunt?er2@h"), "redis://u:***@h");
        assert_eq!(redacted("redis://hunter2@h:1"), "redis://***@h:1");
        assert_eq!(redacted("redis://:hunter2@h"), "redis://***@h");
        assert_eq!(redacted("u:hunter2@h"), "u:***@h");
        assert_eq!(redacted("redis://h"), "redis://h");
        assert!(
            has_password("redis://u:p@h")
                && has_password("redis://:p@h")
                && has_password("redis:u:p@h")
        );
        assert!(
            !has_password("redis://u@h")
                && !has_password("redis://h:6379")
                && !has_password("prod")
        );
    }

    #[test]
    fn damaged_urls_never_panic_or_reveal_the_password() {
        let whole = [
            "redis-sentinel://ana:hunter2@r1:6380,[::1]:1,[fe80::2]/3?ttl=60s&cacert=%2Fetc%2Fca.pem",
            "postgres://ana:hunter2@db/locks?mode=advisory&pg_key=7",
            "sqlite:///var/lib/dlock/a%20b.db",
        ];
        damage::each(|dice| {
            let text = damage::text(whole[dice.below(whole.len())], dice);
            if let Err(error) = Url::parse(&text) {
                assert!(!error.contains("hunter2"), "{text}: {error}");
            }
            let _ = (redacted(&text), has_password(&text));
        });
    }
}
