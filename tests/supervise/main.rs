//! Supervision, seen from outside: processes are killed, frozen and left behind.
//!
//! The program executes itself as a small dlock without a lock (`role.rs`), because only a
//! single-threaded process can fork a guardian.
#![allow(clippy::disallowed_methods)] // the test's own clock
#![allow(clippy::unwrap_used, clippy::exit, clippy::print_stderr)] // a test says what it found and ends

mod ending;
mod keys;
mod lease;
mod loss;
mod max_runtime;
mod rights;
mod role;
mod running;
mod sandbox;
mod starved;
mod terminal;
mod world;

use libtest_mimic::{Arguments, Trial};

/// Makes a list of trials from functions, with their names.
#[macro_export]
macro_rules! trials {
    ($($name:ident),* $(,)?) => {
        /// Returns the cases of this file.
        pub fn trials() -> Vec<libtest_mimic::Trial> {
            vec![$(libtest_mimic::Trial::test(stringify!($name), || { $name(); Ok(()) })),*]
        }
    };
}

fn main() {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|first| first == world::ROLE) {
        role::live(&arguments.collect::<Vec<_>>());
    }
    let all: Vec<Trial> = [
        running::trials(),
        lease::trials(),
        loss::trials(),
        ending::trials(),
        max_runtime::trials(),
        rights::trials(),
        sandbox::trials(),
        terminal::trials(),
        starved::trials(),
        keys::trials(),
    ]
    .into_iter()
    .flatten()
    .collect();
    let mut arguments = Arguments::from_args();
    // The trials mostly wait, but too many at once would miss the deadlines.
    arguments.test_threads.get_or_insert(4);
    libtest_mimic::run(&arguments, all).exit();
}
