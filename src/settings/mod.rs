//! The text of a setting, its origin, and the parsers of everything that people write: durations,
//! URLs, words, files with a password.

pub mod duration;
pub mod env;
pub mod secret_file;
pub mod setting;
pub mod suggest;
pub mod url;
pub mod words;
