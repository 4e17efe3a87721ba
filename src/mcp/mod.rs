//! Queue files as in MCPII 5.1 (D. Stearns, Burroughs, 11 February 1976): named, bounded queues between programs.
//!
//! A [`QueueFile`] is opened by name in a [`System`] (a directory). Many write, many read; a full or empty queue blocks or
//! takes the INCOMPLETE.IO branch; messages beyond Q.BUFFERS go to disk; and when the last writer closes or dies, every reader
//! sees the end.
//!
//! | file | one idea |
//! |---|---|
//! | `layout`, `geometry` | every offset and bit |
//! | `driver`, `records` | the memory of a system and its one lock |
//! | `memory`, `pool` | S-memory, buffers by size, descriptors in blocks of ten |
//! | `queue` | one member: insert, remove, hold, move between memory and disk |
//! | `users`, `lifecycle` | who uses a queue; creation and end of queues |
//! | `repair` | everything derived, computed anew after a death inside |
//! | `system`, `join`, `file` | opening, closing, end of file |
//! | `write`, `read`, `hold`, `family`, `events`, `reclaim` | the verbs |
//! | `disk` | queue disk |
//! | `audit` | the books of a system, checked |
//! | `parameters`, `name`, `fpb`, `notation` | what a program says about its file, in four notations |
//!
//! ```
//! use tailrace::mcp::*;
//! use tailrace::shared::signal::Wait;
//!
//! let directory = tempfile::tempdir()?;
//! let system = System::open(directory.path(), &SystemParameters::default())?;
//! let parameters = notation::card::parse("?FI MY.Q QUEUE Q.MAX.MESSAGES=20 BUFFERS=3 RECORD.SIZE=80;")?.remove(0);
//! let writer = QueueFile::open(&system, &parameters, Mode::Output, &OpenOptions::default())?;
//! let reader = QueueFile::open(&system, &parameters, Mode::Input, &OpenOptions::default())?;
//! writer.write(None, b"hello", End::Back, Wait::Forever, || Ok(()))?;
//! writer.close()?;
//! let mut batch = Batch::new();
//! assert_eq!(reader.read(None, 1, &mut batch, Wait::Forever, || Ok(()))?, Took::Messages(1));
//! assert_eq!(batch.bytes(), b"hello");
//! assert_eq!(reader.read(None, 1, &mut batch, Wait::Forever, || Ok(()))?, Took::End);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod audit;
#[cfg(not(loom))]
mod disk;
#[cfg(loom)]
#[path = "disk_model.rs"]
mod disk;
mod driver;
mod events;
mod family;
mod file;
mod fpb;
mod geometry;
mod hold;
#[cfg(not(loom))]
mod join;
mod layout;
mod lifecycle;
#[cfg(not(loom))]
mod memory;
#[cfg(loom)]
#[path = "memory_model.rs"]
mod memory;
#[cfg(loom)]
mod model;
mod name;
pub mod notation;
mod parameters;
mod pool;
mod queue;
mod read;
mod reclaim;
mod records;
mod repair;
mod room;
mod snapshot;
mod system;
mod users;
mod write;

pub use audit::Audit;
pub use events::wait;
pub use family::FileCounters;
pub use file::{OpenOptions, QueueFile};
pub use fpb::FPB_BITS;
pub use geometry::SystemParameters;
pub use hold::Hold;
pub use name::Name;
pub use parameters::{DEFAULT_BUFFERS, Device, FileParameters, STRICT_LIMIT};
pub use queue::End;
pub use read::{Batch, Took};
pub use system::{QueueSummary, System, SystemCounters};
pub use users::Mode;
