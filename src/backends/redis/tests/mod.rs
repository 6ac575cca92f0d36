//! Tests with a real `redis-server`, started for each test on a free port in a temporary folder.

mod faults;
mod foreign;
mod holds;
mod looking;
mod server;
mod shares;
mod waiting;
