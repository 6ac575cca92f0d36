//! Tests with a real `redis-server`, started for each test on a free port in a temporary folder.

mod faults;
mod foreign;
mod holds;
mod looking;
#[path = "../../../../tests/support/ports.rs"]
mod ports;
mod server;
mod shares;
mod waiting;
