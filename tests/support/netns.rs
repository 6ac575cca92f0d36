//! A separate network namespace: another host as far as the network goes, connected to this one by
//! a cable that can be cut.
//!
//! Unlike with a proxy, the kernel itself is silent: packets are lost without an error, and
//! connections time out.

use std::{
    net::Ipv4Addr,
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

/// The other host. The host and the cable end with this value.
pub struct Netns {
    name: String,
    /// This host's end of the cable.
    cable: String,
    /// This host's address, as the other host reaches it.
    pub host: Ipv4Addr,
}

impl Netns {
    /// Makes a namespace. Without root rights returns `None`, and reports the test as skipped.
    pub fn make(test: &str) -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        if !rustix::process::geteuid().is_root() {
            super::skip(test, "only root can make a network namespace");
            return None;
        }
        if !super::have(test, &["ip"]) {
            return None;
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let pid = std::process::id();
        let name = format!("dlock-{pid}-{number}");
        let cable = format!("dl{}x{number}", pid % 1_000_000);
        let far = format!("dr{}x{number}", pid % 1_000_000);
        // Each cable has a network of four addresses, in the range that is reserved for network
        // tests.
        let place = (pid.wrapping_mul(97).wrapping_add(number) % 32_000) * 4;
        let base = u32::from(Ipv4Addr::new(198, 18, 0, 0)) + place;
        let (host, other) = (Ipv4Addr::from(base + 1), Ipv4Addr::from(base + 2));
        let made = Self { name, cable, host };
        // A killed process may have had this number, and left its namespace behind.
        let _ = Command::new("ip")
            .args(["netns", "del", &made.name])
            .output();
        ip(&["netns", "add", &made.name]);
        ip(&[
            "link",
            "add",
            &made.cable,
            "type",
            "veth",
            "peer",
            "name",
            &far,
        ]);
        ip(&["link", "set", &far, "netns", &made.name]);
        ip(&["addr", "add", &format!("{host}/30"), "dev", &made.cable]);
        ip(&["link", "set", &made.cable, "up"]);
        ip(&[
            "-n",
            &made.name,
            "addr",
            "add",
            &format!("{other}/30"),
            "dev",
            &far,
        ]);
        ip(&["-n", &made.name, "link", "set", &far, "up"]);
        ip(&["-n", &made.name, "link", "set", "lo", "up"]);
        Some(made)
    }

    /// Returns the prefix of a command line that runs on the other host. The process id stays the
    /// same.
    pub fn prefix(&self) -> [&str; 4] {
        ["ip", "netns", "exec", &self.name]
    }

    /// Cuts the cable.
    pub fn cut(&self) {
        ip(&["link", "set", &self.cable, "down"]);
    }

    /// Reconnects the cable.
    pub fn heal(&self) {
        ip(&["link", "set", &self.cable, "up"]);
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        let _ = Command::new("ip")
            .args(["link", "del", &self.cable])
            .status();
        let _ = Command::new("ip")
            .args(["netns", "del", &self.name])
            .status();
    }
}

#[track_caller]
fn ip(args: &[&str]) {
    let output = Command::new("ip").args(args).output().expect("ip");
    assert!(
        output.status.success(),
        "ip {}: {}",
        args.join(" "),
        String::from_utf8_lossy(&output.stderr)
    );
}
