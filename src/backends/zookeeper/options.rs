//! The options of a connection, already decoded: nothing here parses a URL or opens a connection.

use crate::{
    backends::net::{
        secret::Secret,
        tls::{Tls, TlsWords},
    },
    lock::{Error, Kind, Namespace, Result},
};

pub(super) static TLS: TlsWords = TlsWords::of_scheme("zookeeper://");

/// The servers of a ZooKeeper ensemble, and how to connect to them.
#[derive(Clone, Debug)]
pub struct ZooKeeperOptions {
    /// Its servers: names or addresses (IPv6 without brackets) and ports. Any of them serves.
    pub hosts: Vec<(String, u16)>,
    /// The node that serves as the root: empty, or like `/apps/one`.
    pub chroot: String,
    /// TLS. Without TLS all data, including the password, crosses the network unencrypted.
    pub tls: Option<Tls>,
    /// The user and password of the `digest` scheme. Nodes are then made for that user alone.
    pub login: Option<(String, Secret)>,
    /// The namespace that every key's path begins with.
    pub namespace: Namespace,
}

impl ZooKeeperOptions {
    /// The port of servers without one in the URL.
    pub const PORT: u16 = 2181;

    /// Returns options for an ensemble, unencrypted, without a login, in the namespace `dlock`.
    pub fn new(hosts: Vec<(String, u16)>) -> Self {
        Self {
            hosts,
            chroot: String::new(),
            tls: None,
            login: None,
            namespace: Namespace::default(),
        }
    }

    /// Returns the URL without user and password.
    pub fn redacted_url(&self) -> String {
        let host = |(host, port): &(String, u16)| match (host.contains(':'), *port) {
            (true, port) => format!("[{host}]:{port}"),
            (false, Self::PORT) => host.clone(),
            (false, port) => format!("{host}:{port}"),
        };
        let scheme = if self.tls.is_some() {
            "zookeepers"
        } else {
            "zookeeper"
        };
        format!(
            "{scheme}://{}{}",
            self.hosts.iter().map(host).collect::<Vec<_>>().join(","),
            self.chroot
        )
    }

    /// Whether these options name a place for locks.
    ///
    /// # Errors
    /// [`Kind::Usage`] for a namespace or a chroot that can't be.
    pub fn check(&self) -> Result<()> {
        let namespace = self.namespace.as_str();
        if namespace.strip_suffix(".meta").is_some() {
            return Err(Error::new(
                Kind::Usage,
                "in ZooKeeper a namespace can't end in .meta, where dlock keeps what belongs to another one",
            ));
        }
        if self.chroot.is_empty() && namespace == "zookeeper" {
            return Err(Error::new(
                Kind::Usage,
                "in ZooKeeper the namespace can't be zookeeper, which the server keeps for itself",
            ));
        }
        let bad = |part: &str| {
            part.is_empty()
                || part == "."
                || part == ".."
                || part.chars().any(super::names::is_forbidden)
        };
        if !self.chroot.is_empty()
            && (!self.chroot.starts_with('/') || self.chroot[1..].split('/').any(bad))
        {
            return Err(Error::new(
                Kind::Usage,
                "the path in the URL is no path of a ZooKeeper node",
            )
            .hint("it is like /apps/one, or nothing"));
        }
        if self.chroot == "/zookeeper" || self.chroot.starts_with("/zookeeper/") {
            return Err(Error::new(
                Kind::Usage,
                "what lies under /zookeeper the server keeps for itself",
            )
            .hint("take another path"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_addresses_are_refused() {
        let at = |chroot: &str, namespace: &str| ZooKeeperOptions {
            chroot: chroot.into(),
            namespace: Namespace::new(namespace).unwrap(),
            ..ZooKeeperOptions::new(vec![("h".into(), 2181)])
        };
        for (chroot, namespace) in [
            ("", "dlock"),
            ("", ""),
            ("/a", "zookeeper"),
            ("/a/b", ""),
            ("/zoo", ""),
        ] {
            at(chroot, namespace).check().unwrap();
        }
        for (chroot, namespace) in [
            ("", "zookeeper"),
            ("", "a.meta"),
            ("/", ""),
            ("/a/", ""),
            ("/a//b", ""),
            ("/..", ""),
            ("/zookeeper", ""),
            ("/zookeeper/a", ""),
        ] {
            assert_eq!(
                at(chroot, namespace).check().unwrap_err().kind,
                Kind::Usage,
                "{chroot} {namespace}"
            );
        }
    }

    #[test]
    fn the_url_is_shown_without_its_secret() {
        let options = ZooKeeperOptions {
            chroot: "/a".into(),
            login: Some(("ana".into(), Secret::new("hunter2"))),
            ..ZooKeeperOptions::new(vec![("h1".into(), 2181), ("::1".into(), 2182)])
        };
        assert_eq!(options.redacted_url(), "zookeeper://h1,[::1]:2182/a");
        assert!(!format!("{options:?}").contains("hunter2"));
    }
}
