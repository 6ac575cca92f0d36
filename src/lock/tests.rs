//! Small facts that users and stores rely on.

use std::time::Duration;

use super::{
    Break, Error, Excludes, Fence, Finding, Intent, Key, Kind, Library, Metadata, Mode, Namespace,
    Role, Severity, Ttl,
};

#[test]
fn names_are_printed_as_typed() {
    assert_eq!(
        (Key::new("a job").unwrap().to_string(), Fence(7).to_string()),
        ("a job".to_owned(), "7".to_owned())
    );
    assert_eq!(
        (
            Namespace::default().as_str(),
            Namespace::new("").unwrap().as_str()
        ),
        ("dlock", "")
    );
    let mark = Break {
        by: "ann@desk".into(),
        why: None,
        seen: false,
    };
    assert_eq!(mark.to_string(), "by ann@desk");
    assert_eq!(
        Break {
            why: Some("stuck".into()),
            ..mark
        }
        .to_string(),
        "by ann@desk: \"stuck\""
    );
}

#[test]
fn a_hold_covers_nested_runs_that_want_no_more() {
    let modes = [Mode::Exclusive, Mode::Shared, Mode::Permits(2)];
    let covered = modes.map(|outer| modes.map(|inner| outer.check_nested(inner).is_ok()));
    assert_eq!(
        covered,
        [
            [true, true, false],
            [false, true, false],
            [false, false, true]
        ]
    );
    assert!(Mode::Permits(2).covers(Mode::Permits(3)));
}

#[test]
fn a_place_is_a_boot_of_a_machine_and_a_pid_namespace() {
    let host = Metadata {
        host: Some("web1".into()),
        pid_ns: Some(7),
        ..Metadata::default()
    };
    assert_eq!(host.place(), "web1/7");
    assert_eq!(
        Metadata {
            boot_id: Some("b".into()),
            pid_ns: None,
            ..host
        }
        .place(),
        "b/0"
    );
}

#[test]
fn findings_have_their_severity_and_risk() {
    let found = [
        Finding::ok("a", "x"),
        Finding::warn("a", "x", "y"),
        Finding::not_safe("a", "x", "y"),
        Finding::unchecked("a", "x", "y"),
    ];
    assert_eq!(
        found.each_ref().map(|one| one.severity),
        [
            Severity::Ok,
            Severity::Warn,
            Severity::Unsafe,
            Severity::Warn
        ]
    );
    assert_eq!(
        found.map(|one| one.risk.is_some()),
        [false, true, true, false]
    );
    let roles = [Role::Run, Role::View, Role::Break];
    assert_eq!(
        roles.map(|role| (role.user(), role.writes())),
        [
            ("dlock-run", true),
            ("dlock-view", false),
            ("dlock-break", true)
        ]
    );
    assert_eq!(Library::strange("a", "b").excludes, Excludes::No);
}

#[test]
fn a_renewal_asks_for_its_ttl_and_a_year_is_the_longest() {
    assert_eq!(
        [
            Intent::Extend(Some(Ttl::DEFAULT)),
            Intent::Drain,
            Intent::Probe
        ]
        .map(Intent::ttl),
        [Some(Ttl::DEFAULT), None, None]
    );
    assert_eq!(Ttl::MAX, Duration::from_secs(31_536_000));
}

#[test]
fn an_error_keeps_its_cause() {
    let cause = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
    let error = Error::new(Kind::Unavailable, "x").source(cause);
    assert_eq!(
        std::error::Error::source(&error).map(ToString::to_string),
        Some("broken pipe".into())
    );
}
