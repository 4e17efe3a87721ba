//! A durable first-in-first-out queue in a chain of chunk files, byte-compatible with the original QewQew.
//!
//! Implements the QewQew document: a head file names the first chunk, each chunk names the next, consumed chunks are removed,
//! an empty queue removes its files when it is closed. What the files look like is in [`layout`]. What is added lives in
//! side files that the original does not look at.
//!
//! - `head`, `chunk`, [`layout`]: the documented files
//! - `roles`: one consumer, many producers, and the original, kept apart by byte locks of the head file
//! - `side`: locks, wake-up words and stages shared by the processes that have the queue open
//! - `enqueue`, `dequeue`, `queue`: what people call; `writer`, `reader`: the two ends; `store`, `session`: what holds them together
//! - `positions`, `ranges`: reading without consuming
//! - `records`, `checks`, `verify`: checksums, the one-sync log, damage
//! - `notes`: why one sync is enough for a commit
//! - `disk`: every step on the disk, visible to tests that cut the power
//!
//! # The order of things
//! A process can die after any instruction and the power can fail after any step: sectors that were stored and not synced
//! may then be old or new, each by itself. This is what each step leaves, and who sees to it. *Durable* means the sync modes
//! `always` and `group`; syncs in brackets are theirs alone.
//!
//! | operation | step | killed or cut after it | who sees to it |
//! |---|---|---|---|
//! | enqueue, durable | 1 bytes into a stage of `NAME.signal` | killed: acknowledged or not, the bytes are there with their CRC | next commit, or next open (`Session::recover`) |
//! | | | cut: as if it had not begun (stages of another boot do not count) | nobody |
//! | | 2 entries behind the tail, 3 a note of them at the end of the chunk, sync | old tail; after the sync the note leads to the new one | overwritten by the next commit, or `Chunk::roll_forward` |
//! | | 4 tail | done; it reaches the disk with the next sync | `Chunk::roll_forward` |
//! | | 5 stage emptied | | a stage whose end is the tail is known to be done |
//! | the same where no note can be left | 2 entries, sync, 3 tail, sync | as above | overwritten by the next commit |
//! | place of the notes is needed | sync, notes to zeros | tail and entries are on the disk | |
//! | enqueue, `crc` | 1 stage, 2 record with the bytes into `NAME.<id>.crc`, [sync] | the record is the message: written again at open | `Checks::replay` |
//! | | 3 entries, 4 tail, not synced | any mixture of both, all of it in the log | `Checks::replay` |
//! | enqueue, `never` | 1 entries, 2 tail | killed: before 2 nothing, after 2 done. Cut: no promise | |
//! | into an exhausted chunk | 0 pointers back to the start, [sync] | empty; nothing is overwritten before this is on the disk | |
//! | the same, `crc` | 0a record that the chunk starts over, 0b pointers back, [sync of the chunk] | a log that ends with 0a means an empty chunk; without 0a consumed messages may be delivered again after a cut | `Checks::replay` |
//! | new chunk | 1 complete files without names, the chunk and with `crc` its `.crc`, [sync of each] | nothing to see | the kernel |
//! | | 2 `crc`: the name of the `.crc` file | checksums of nothing | next open, or replaced |
//! | | 3 the name of the chunk, [sync of the directory, for both] | a chunk that nothing refers to, after a cut perhaps without its `.crc` | adopted (it is complete) by the next open or spill |
//! | | 4 next-ref of the last chunk, or head file: *the message exists*, [sync] | done | |
//! | dequeue | head pointer | done; after a cut it may be delivered again | |
//! | dequeue, last of a chunk | 1 position slot of the next chunk, [sync] | the slot that the head file names still counts | |
//! | | 2 head file names the next chunk: *the message is consumed* | done | |
//! | | 3 sync of the head file | | |
//! | | 4 chunk removed (`never`: 16 at a time, so that 3 is rare) | a chunk that leads into the first | next consumer (`remove_left_over`) |
//! | clear | as dequeue, chunk by chunk; then the last chunk's head to its tail | what was not reached is still there | |
//! | | sync of the directory and of the last chunk; head file names no chunk, sync; last chunk removed | an empty chunk that nothing refers to | next open, or replaced |
//! | close, last, `crc` | 1 sync of the first and the last chunk, 2 their pointers into their `.crc` files | a session that was not closed | `Checks::replay` finds nothing to do |
//! | first durable enqueue of a session, or behind a producer that died at 4 of *new chunk* | sync of all chunks, of the directory and of the head file | what somebody has left unsynced is in front of nothing durable | |
//! | open, `crc` | the note of the close is taken back, sync; then the chunks may change | closed, as before | next open |
//! | close, last and empty | 1 sync of the directory and the chunk, position slot, sync; 2 head file names no chunk, sync; 3 chunks, 4 signal file, 5 head file removed | as after clear | next open |
//!
//! The two loss windows of the original (its order was: next-ref, then the chunk; unlink, then the head file) are closed by
//! the order of *new chunk* and of *dequeue, last of a chunk*.

mod checks;
mod chunk;
mod dequeue;
mod disk;
mod enqueue;
mod head;
mod info;
pub mod layout;
mod notes;
mod options;
mod positions;
mod publish;
mod queue;
mod ranges;
mod reader;
mod records;
mod roles;
mod session;
mod side;
mod stage;
mod store;
mod verify;
pub mod word;
mod writer;

pub use dequeue::{Fill, Peeked};
pub use disk::{Observer, Step};
pub use info::Info;
pub use options::{Options, Role, SyncMode};
pub use positions::EPOCH_SHIFT;
pub use publish::framed_messages;
pub use queue::{Change, DurableQueue};
pub use ranges::{RangeReader, Walk};
pub use stage::Stage;
pub use verify::{Problem, Report};
