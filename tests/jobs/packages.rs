//! The packages: the crate from cargo, the Debian package and the RPM, each tested on a system of
//! its own.

use std::{fs, path::Path, process::Command, time::Duration};

use crate::support::{
    self, dlock,
    process::{self, Ended, Process},
};

const LIMIT: Duration = Duration::from_secs(120);
/// Compiling takes long.
const LONG: Duration = Duration::from_secs(1800);

fn cargo(arguments: &[&str]) -> Command {
    let mut command = process::command(env!("CARGO"));
    command
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(arguments);
    command
}

fn succeeds(command: Command, limit: Duration) -> Ended {
    let ended = Process::collect(command).wait(limit);
    assert_eq!(ended.code(), 0, "{}{}", ended.stdout, ended.stderr);
    ended
}

#[test]
fn the_crate_has_exactly_the_needed_files() {
    let listed = succeeds(
        cargo(&["package", "--list", "--allow-dirty", "--offline"]),
        LIMIT,
    )
    .stdout;
    let files: Vec<&str> = listed.lines().collect();
    for needed in [
        "src/build.rs",
        "src/commands/man/run.md",
        "contrib/systemd/sms-job.service",
        "man/dlock.1",
        "LICENSE-MIT",
        "LICENSE-THIRD-PARTY",
    ] {
        assert!(files.contains(&needed), "{needed}");
    }
    let ours = [
        "src/",
        "man/",
        "completions/",
        "contrib/",
        "README.md",
        "CHANGELOG.md",
        "LICENSE-",
        "Cargo.",
        ".cargo_vcs_info.json",
    ];
    let junk: Vec<&&str> = files
        .iter()
        .filter(|file| !ours.iter().any(|start| file.starts_with(start)))
        .collect();
    assert!(junk.is_empty(), "{junk:?}");
}

#[test]
fn all_dependency_licences_are_included() {
    let arguments = [
        "tree",
        "--edges",
        "normal,no-proc-macro",
        "--prefix",
        "none",
        "--format",
        "{p}",
        "--locked",
        "--offline",
    ];
    let tree = succeeds(cargo(&arguments), LIMIT).stdout;
    let licences = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/LICENSE-THIRD-PARTY"))
        .expect("the licences");
    let mut crates = 0;
    for line in tree
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with("dlock-cli "))
    {
        let mut words = line.split(' ');
        let (name, version) = (
            words.next().expect("a name"),
            words.next().expect("a version").trim_start_matches('v'),
        );
        assert!(
            licences.contains(&format!("\n{name} {version}  (")),
            "contrib/licenses/collect > LICENSE-THIRD-PARTY: {line}"
        );
        crates += 1;
    }
    assert!(crates > 150, "{crates} crates");
}

/// README's instructions, with the packed crate outside of the repository.
#[test]
fn the_packed_crate_installs() {
    if !std::env::var("DLOCK_TEST_ALL").is_ok_and(|value| value == "1") {
        return support::say(
            "SKIPPED the_packed_crate_installs: it compiles everything, for tests/run --all",
        );
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("packed");
    let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let target = text(&folder);
    succeeds(
        cargo(&[
            "package",
            "--allow-dirty",
            "--no-verify",
            "--offline",
            "--target-dir",
            &target,
        ]),
        LIMIT,
    );
    let packed = format!(
        "{target}/package/dlock-cli-{}.crate",
        env!("CARGO_PKG_VERSION")
    );
    let mut unpack = process::command("tar");
    // Outside of the project's folders.
    let elsewhere = support::folder();
    // Unpacked with new timestamps: an earlier build in this folder must count as outdated.
    unpack.args(["-xzmf", &packed, "-C", &text(elsewhere.path())]);
    succeeds(unpack, LIMIT);
    let source = elsewhere
        .path()
        .join(format!("dlock-cli-{}", env!("CARGO_PKG_VERSION")));
    let arguments = [
        "install",
        "--debug",
        "--force",
        "--locked",
        "--offline",
        "--path",
        ".",
        "--root",
        &target,
        "--target-dir",
        &format!("{target}/built"),
    ];
    let mut install = cargo(&arguments);
    install.current_dir(&source);
    succeeds(install, LONG);
    let mut version = process::command(text(&folder.join("bin/dlock")));
    version.args(["--version", "--verbose"]);
    let report = succeeds(version, LIMIT).stdout;
    let noted = fs::read_to_string(source.join(".cargo_vcs_info.json")).expect("cargo's note");
    let commit = report
        .lines()
        .find_map(|line| line.strip_prefix("commit  "))
        .expect("a commit");
    assert!(noted.contains(&commit[..12]), "{report}: {noted}");
}

/// Runs `try` on an overlay system: the real one below, and a layer on top that takes all changes.
const SYSTEM: &str = r#"
set -e
cd "$1"
mount -t tmpfs none layer
mkdir layer/changes layer/work
mount -t overlay overlay -o lowerdir=/,upperdir=layer/changes,workdir=layer/work root
mount --rbind /proc root/proc
mount --rbind /dev root/dev
mkdir -p root/package
cp package/* root/package/
exec chroot root sh /package/try
"#;

const DEBIAN: &str = r#"
set -e
cd /
dpkg -i /package/*.deb
test "$(command -v dlock)" = /usr/bin/dlock
dlock --version
DLOCK_BACKEND=local dlock run -k packaged -- echo ran
test -e /var/lib/dlock/dlock.db
for page in /usr/share/man/man1/dlock.1.gz /usr/share/man/man1/dlock-run.1.gz /usr/share/man/man7/dlock-cron.7.gz; do test -s "$page"; done
for file in bash-completion/completions/dlock zsh/vendor-completions/_dlock fish/vendor_completions.d/dlock.fish; do
  test -s "/usr/share/$file"
done
test -s /etc/dlock/config.toml
test -s /usr/lib/tmpfiles.d/dlock.conf
test -s /usr/share/doc/dlock/copyright
dpkg -V dlock
echo '# changed' >> /etc/dlock/config.toml
dpkg --remove dlock
test -s /etc/dlock/config.toml
test ! -e /usr/bin/dlock
dpkg --purge dlock
test ! -e /etc/dlock
test ! -e /var/lib/dlock
echo purged
"#;

/// The host's RPM database is empty, so no package provides the shell for the package's script.
const RPM: &str = r#"
set -e
cd /
rpm -K --nosignature /package/*.rpm
test -z "$(rpm -qp --requires /package/*.rpm | grep -v -e '^/bin/sh$' -e '^rpmlib(' -e '^config(')"
rpm -i --nodeps /package/*.rpm
test "$(command -v dlock)" = /usr/bin/dlock
dlock --version
DLOCK_BACKEND=local dlock run -k packaged -- echo ran
test -e /var/lib/dlock/dlock.db
for page in man1/dlock.1 man1/dlock-run.1 man7/dlock-cron.7; do test -s "/usr/share/man/$page"; done
for file in bash-completion/completions/dlock zsh/site-functions/_dlock fish/vendor_completions.d/dlock.fish; do
  test -s "/usr/share/$file"
done
test -s /usr/lib/tmpfiles.d/dlock.conf
rpm -V --nodeps dlock
test "$(rpm -qc dlock)" = /etc/dlock/config.toml
echo '# changed' >> /etc/dlock/config.toml
rpm -e dlock
grep changed /etc/dlock/config.toml.rpmsave
test ! -e /usr/bin/dlock
echo erased
"#;

/// Whether this process can make an overlay system; otherwise skips the test.
fn can_make_a_system(name: &str) -> bool {
    let mut overlay = process::command("unshare");
    overlay.args(["--mount", "sh", "-c", "mount -t tmpfs none /mnt && mkdir /mnt/a /mnt/b /mnt/c && mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/a,workdir=/mnt/b /mnt/c"]);
    let can = Process::collect(overlay).wait(LIMIT).status.success();
    if !can {
        support::skip(name, "only root can make an overlay system");
    }
    can
}

/// Packs the tested program with a cargo tool, runs `script` on an overlay system with that
/// package, and returns the output.
fn on_a_system(tool: &str, options: &[&str], script: &str) -> String {
    let folder = support::folder();
    for inner in ["layer", "root", "package"] {
        fs::create_dir(folder.path().join(inner)).expect("a folder");
    }
    let package = folder.path().join("package");
    fs::write(package.join("try"), script).expect("a file");
    // target/TRIPLE/PROFILE/dlock.
    let binary = dlock::binary();
    let profile = binary.parent().expect("its profile");
    let triple = profile.parent().expect("its target");
    let of = |path: &Path| {
        path.file_name()
            .and_then(|name| name.to_str())
            .expect("a name")
            .to_owned()
    };
    let mut pack = cargo(&[
        tool,
        "--profile",
        &of(profile).replace("debug", "dev"),
        "--target",
        &of(triple),
    ]);
    pack.env(
        "CARGO_TARGET_DIR",
        triple.parent().expect("the folder of all targets"),
    );
    pack.args(options)
        .arg("--output")
        .arg(format!("{}/", package.display()));
    succeeds(pack, LIMIT);
    let mut install = process::command("unshare");
    install
        .args(["--mount", "sh", "-c", SYSTEM, "install"])
        .arg(folder.path());
    let ended = succeeds(install, LIMIT);
    assert!(
        ended.stdout.contains("\nran\n"),
        "{}{}",
        ended.stdout,
        ended.stderr
    );
    ended.stdout
}

#[test]
fn the_debian_package_installs_runs_and_uninstalls() {
    let name = "the_debian_package_installs_runs_and_uninstalls";
    if !support::have(name, &["dpkg", "unshare", "dpkg-deb"]) || !can_make_a_system(name) {
        return;
    }
    if !Process::collect(cargo(&["deb", "--version"]))
        .wait(LIMIT)
        .status
        .success()
    {
        return support::skip(name, "cargo-deb is not installed");
    }
    let printed = on_a_system("deb", &["--no-build", "--no-strip", "--fast"], DEBIAN);
    assert!(printed.ends_with("\npurged\n"), "{printed}");
}

#[test]
fn the_rpm_installs_runs_and_uninstalls() {
    let name = "the_rpm_installs_runs_and_uninstalls";
    if !support::have(name, &["rpm", "unshare"]) || !can_make_a_system(name) {
        return;
    }
    if !Process::collect(cargo(&["generate-rpm", "--version"]))
        .wait(LIMIT)
        .status
        .success()
    {
        return support::skip(name, "cargo-generate-rpm is not installed");
    }
    let printed = on_a_system("generate-rpm", &["--payload-compress", "none"], RPM);
    assert!(printed.ends_with("\nerased\n"), "{printed}");
}
