//! What can be told of the algorithm without a server.

mod ordering;
