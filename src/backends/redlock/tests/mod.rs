//! Tests of the algorithm without a server.

mod damaged;
mod forgetting;
mod ordering;
