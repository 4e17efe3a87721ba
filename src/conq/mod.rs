//! Named queues whose unfinished messages come back: enqueue, read with a timeout, dequeue.
//!
//! The document is ConQ's. A message is in one of three phases: **ready** (never read), **leased** (read, and its timeout
//! runs), **expired** (its timeout ran out; it is read before anything new, least recently expired first).
//!
//! - [`layout`], [`state`]: every offset and bit, pure; `options`, `geometry`: what people choose, and where everything is then
//! - [`origin`]: which boot and time namespace the times belong to
//! - `space`: the memory seen through the layout
//! - `slots`: where messages lie; claimed without a lock
//! - `arrivals`, `timetable`, `returned`: phases 1, 2 and 3; derived from the state words
//! - [`queue`]: the operations on one queue; `many`: several at once; `stats`: how many there are; `open`: making and opening
//!   it; `upkeep`, `recover`: what survivors do; `audit`: what openers check
//! - [`manager`]: queues by name; `process`: those of one process; `directory`: those of a host; `recent`: the one used last;
//!   [`wait`]: calls that wait

mod arrivals;
mod audit;
#[cfg(not(loom))]
mod directory;
mod geometry;
pub mod layout;
#[cfg(not(loom))]
pub mod manager;
mod many;
mod model;
mod open;
mod options;
pub mod origin;
#[cfg(not(loom))]
mod per_process;
#[cfg(not(loom))]
mod process;
pub mod queue;
#[cfg(not(loom))]
mod recent;
mod recover;
mod returned;
mod slots;
mod space;
pub mod state;
mod stats;
mod timetable;
mod upkeep;
#[cfg(not(loom))]
pub mod wait;

pub use layout::{DeadLetter, Options};
#[cfg(not(loom))]
pub use manager::{Manager, Message};
pub use many::LeaseBytes;
pub use queue::{Lease, Queue, Receipt, Stats, Unfinished};
#[cfg(not(loom))]
pub use wait::NamedQueue;
