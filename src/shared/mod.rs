//! What five queues have in common; knows no queue.
//!
//! - [`region`]: mapped, anonymous or heap memory, reached only through atomics and bounded copies
//! - [`roster`]: who takes part, and who of them is alive
//! - [`lock`]: lock words that name their owner and are taken over when it is dead
//! - [`signal`]: sleeping until something changes, and waking the sleepers
//! - [`sync`]: the only source of atomics, so that loom can replace them

pub mod identity;
pub mod lock;
#[cfg(not(loom))]
pub mod region;
#[cfg(loom)]
#[path = "region_model.rs"]
pub mod region;
pub mod roster;
pub mod signal;
pub mod sync;
