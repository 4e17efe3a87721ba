//! How a queue is opened.

use std::fmt;
use std::sync::Arc;

use super::disk::Observer;
use super::layout::{self, LENGTH_BYTES};
use crate::{Error, Result};

/// What an enqueue that returned has survived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncMode {
    /// A power cut.
    Always,
    /// The death of any process; a power cut as of the last [`sync`](super::DurableQueue::sync) or group commit.
    Group,
    /// The death of any process.
    Never,
}

impl SyncMode {
    /// Whether anything is ever synced.
    pub(crate) fn is_durable(self) -> bool {
        self != SyncMode::Never
    }
}

/// What a handle may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Enqueue and dequeue; there is one consumer at a time.
    Both,
    /// Enqueue, beside any number of others.
    Producer,
    /// Dequeue; there is one consumer at a time.
    Consumer,
}

impl Role {
    /// Whether it may enqueue.
    pub fn produces(self) -> bool {
        self != Role::Consumer
    }

    /// Whether it may dequeue.
    pub fn consumes(self) -> bool {
        self != Role::Producer
    }
}

/// How to open a queue; `..Options::default()` for what does not matter.
#[derive(Clone)]
pub struct Options {
    /// Bytes of a chunk file.
    pub chunk_size: u64,
    /// What an enqueue that returned has survived.
    pub sync: SyncMode,
    /// What the handle may do.
    pub role: Role,
    /// Keep a CRC32C of every entry in a side file, and check it when reading.
    pub crc: bool,
    /// Map nothing: for file systems that other hosts write to.
    pub network: bool,
    /// The most bytes of unread messages (each with its 2-byte length).
    pub max_bytes: Option<u64>,
    /// Whether a queue that does not exist is created.
    pub create: bool,
    /// Sees every step that the queue takes on the disk. For tests that cut the power.
    pub observer: Option<Arc<dyn Observer>>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            chunk_size: 1 << 20,
            sync: SyncMode::Always,
            role: Role::Both,
            crc: false,
            network: false,
            max_bytes: None,
            create: true,
            observer: None,
        }
    }
}

impl Options {
    pub(crate) fn check(&self) -> Result<u32> {
        if let Some(bytes) = self.max_bytes.filter(|bytes| *bytes < u64::from(LENGTH_BYTES)) {
            return Err(Error::Invalid(format!(
                "max_bytes must be at least {LENGTH_BYTES}, the bytes of an empty message, not {bytes}"
            )));
        }
        layout::check_chunk_size(self.chunk_size)
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("chunk_size", &self.chunk_size)
            .field("sync", &self.sync)
            .field("role", &self.role)
            .field("crc", &self.crc)
            .field("network", &self.network)
            .field("max_bytes", &self.max_bytes)
            .finish_non_exhaustive()
    }
}
