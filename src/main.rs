//! The `dlock` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    dlock::run()
}
