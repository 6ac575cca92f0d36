//! Lock libraries from their registries, in folders below `target` that outlive a run: pinned, and
//! installed once for each list.

use std::{
    env,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use sha2::{Digest as _, Sha256};

use super::zookeeper::jar;

/// The folder of the package lists, and of the programs that use the libraries.
pub const DRIVERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../interop/drivers");

const JARS: [&str; 14] = [
    "curator-client.jar",
    "curator-framework.jar",
    "curator-recipes.jar",
    "guava.jar",
    "zookeeper.jar",
    "slf4j-api.jar",
    "slf4j-nop.jar",
    "netty-common.jar",
    "netty-buffer.jar",
    "netty-transport.jar",
    "netty-handler.jar",
    "netty-codec.jar",
    "netty-resolver.jar",
    "failureaccess.jar",
];

const SYSTEM_CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";

type Made = Result<PathBuf, String>;

/// Returns a Python with the libraries of `requirements.txt`, or why there is none.
pub fn python() -> Made {
    static MADE: OnceLock<Made> = OnceLock::new();
    let make = |folder: &Path, list: &Path| {
        let python = folder.join("bin/python");
        run("python3", &["-m", "venv", "--clear", text(folder)])?;
        run(
            text(&python),
            &[
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                "-r",
                text(list),
            ],
        )
    };
    let made = MADE.get_or_init(|| installed("requirements.txt", make));
    made.clone().map(|folder| folder.join("bin/python"))
}

/// Returns the `node_modules` with the libraries of `package.json`, or why there are none.
pub fn node_modules() -> Made {
    static MADE: OnceLock<Made> = OnceLock::new();
    let make = |folder: &Path, list: &Path| {
        fs::copy(list, folder.join("package.json")).map_err(|error| error.to_string())?;
        let quick = [
            "--fetch-retry-mintimeout=1000",
            "--fetch-retry-maxtimeout=5000",
            "--fetch-timeout=60000",
        ];
        let quiet = [
            "--no-audit",
            "--no-fund",
            "--no-package-lock",
            "--loglevel=error",
        ];
        run(
            "npm",
            &[&["install", "--prefix", text(folder)][..], &quick, &quiet].concat(),
        )
    };
    let made = MADE.get_or_init(|| installed("package.json", make));
    made.clone().map(|folder| folder.join("node_modules"))
}

/// Returns the class path of Debian's Curator and of the program that uses it, or why there is
/// none.
pub fn curator() -> Result<String, String> {
    static MADE: OnceLock<Made> = OnceLock::new();
    if !jar("curator-recipes.jar").is_file() {
        return Err("Curator is not installed".into());
    }
    let jars: Vec<_> = JARS
        .iter()
        .map(|name| jar(name))
        .filter(|jar| jar.is_file())
        .map(|jar| jar.display().to_string())
        .collect();
    let jars = jars.join(":");
    let make = |folder: &Path, source: &Path| {
        run("javac", &["-d", text(folder), "-cp", &jars, text(source)])
    };
    let classes = MADE
        .get_or_init(|| installed("Driver.java", make))
        .clone()?;
    Ok(format!("{}:{jars}", classes.display()))
}

/// Returns a folder for this content of the list, which `make` fills once.
fn installed(list: &str, make: impl Fn(&Path, &Path) -> Result<(), String>) -> Made {
    let source = Path::new(DRIVERS).join(list);
    let content = fs::read(&source).map_err(|error| format!("{}: {error}", source.display()))?;
    let print = Sha256::digest(&content)
        .iter()
        .take(6)
        .fold(String::new(), |digits, byte| {
            digits + &format!("{byte:02x}")
        });
    let folder = super::kept().join(format!("{list}-{print}"));
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let done = folder.join("installed");
    // Another test program may be installing the same list.
    let lock = File::create(folder.with_extension("lock")).map_err(|error| error.to_string())?;
    lock.lock().map_err(|error| error.to_string())?;
    if !done.exists() {
        super::say(&format!("installing {list} into {}", folder.display()));
        make(&folder, &source)?;
        File::create(&done).map_err(|error| error.to_string())?;
    }
    Ok(folder)
}

fn run(program: &str, args: &[&str]) -> Result<(), String> {
    let mut command = Command::new(program);
    // Node has its own certificates, and only the system's may include that of an HTTPS proxy.
    if env::var_os("NODE_EXTRA_CA_CERTS").is_none() && Path::new(SYSTEM_CERTIFICATES).is_file() {
        command.env("NODE_EXTRA_CA_CERTS", SYSTEM_CERTIFICATES);
    }
    let output = command
        .args(args)
        .output()
        .map_err(|error| format!("{program}: {error}"))?;
    let said = || String::from_utf8_lossy(&output.stderr).trim().to_owned();
    output
        .status
        .success()
        .then_some(())
        .ok_or_else(|| format!("{program} {}: {}", args.join(" "), said()))
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}
