//! A ring of fixed slots that overwrites its oldest message when it is full: the latest N of something, writers never wait.
//!
//! The document gives a header lock, START and LEN, and a lock in every slot; a program that knows only "0 is free" works
//! beside us. Our lock words carry their owner, so that a survivor can take over what a dead one held.
//!
//! - [`layout`]: every byte of the file
//! - `memory`: the words of a file by name
//! - `header`: the header lock, and noticing what foreign programs did
//! - `intent`: what the holder of the header is about to do, for whoever finds it dead
//! - `recover`: undoing or finishing that, and freeing the slots of the dead
//! - `suspects`: who holds a slot that is not free
//! - `write`, `read`, `snapshot`: enqueue, dequeue, looking without taking
//! - `batch`: many enqueues or dequeues under one hold of the header
//! - [`queue`]: the handle
//!
//! # Who may take whose slot
//! Slots are taken only under the header lock, and nobody waits for one while holding it. A writer takes a slot away from a
//! reader (which notices when it has copied, and throws its copy away), never from a living writer: that one keeps its slot,
//! and START moves on once more. A slot whose holder is dead is freed by whoever needs it: a writer's message counts as
//! abandoned, a reader's as lost in its hands. A holder that we cannot ask about is waited for, up to a deadline. Whoever holds
//! the slots of a batch waits for nobody, and lets them go in their order.

pub mod layout;
pub mod queue;

mod batch;
mod header;
mod intent;
mod memory;
#[cfg(all(test, not(loom)))]
mod pictures;
mod read;
mod recover;
mod snapshot;
mod suspects;
mod write;

pub use batch::ReadBatch;
pub use queue::{Counters, Message, Options, Queue};
pub use read::ReadHold;
