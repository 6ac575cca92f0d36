//! Everything about a lease that is the same for all backends.

mod budget;
mod clock;

pub use budget::Budget;
pub use clock::{BootClock, Clock};
