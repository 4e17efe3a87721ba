//! The allocating queue: many producers, one consumer, and the items live in the queue's own memory.
//!
//! A writer *claims* memory in the ring, writes into it and *commits* it; the reader *retrieves* items and *releases* them. No
//! step waits for anybody else: two compare-and-swaps make a put. Whatever a killed writer was doing is handed out as an
//! incomplete item, and a snapshot shows everything that is in the ring at one moment, released items included.
//!
//! The format is that of the public AQ library, to the byte; programs that use it and this crate work on one region at once.
//! What it lacks lives in a trailer behind the region: who owns a claim and whether it lives, how often the ring has turned,
//! and words to sleep on. Without a trailer (a region that another program formatted, a caller's buffer) the commit timeout
//! alone decides.
//!
//! | file | one idea |
//! |---|---|
//! | [`layout`] | every offset |
//! | [`control`] | the bits of control words and references |
//! | `queue` | the handle: create, open, format, count |
//! | `memory` | a formatted region as the algorithms see it |
//! | `writer`, `item` | claim and commit; writing into a claim |
//! | `run` | many messages in one claim |
//! | `reader`, `walk`, `pending` | retrieve and release; what comes next, what is free, what is not committed yet |
//! | `role` | there is one reader |
//! | `take`, `take_many` | messages out in one call, in batches |
//! | `extend` | items of several segments |
//! | `owners` | who owns a claim |
//! | `snapshot` | a copy of everything |

pub mod control;
mod extend;
mod frontier;
mod item;
pub mod layout;
mod memory;
mod owners;
mod pending;
#[cfg(test)]
mod preemption_tests;
mod queue;
mod reader;
mod retrieved;
mod role;
mod run;
#[cfg(test)]
mod run_tests;
mod snapshot;
mod take;
mod take_many;
mod testpoint;
mod walk;
mod writer;

pub use item::Claim;
#[cfg(feature = "python")]
pub(crate) use item::ClaimData;
pub use layout::{Format, Geometry, Options};
pub use queue::{Info, Queue};
pub use reader::Reader;
pub use retrieved::Item;
pub use snapshot::{Snapshot, SnapshotItem};
pub use take::{Taken, Verdict};
pub use writer::Writer;
