//! Preparing messages for a queue without touching it: chunk files with other names, which
//! [`DurableQueue::publish_chunk`](super::DurableQueue::publish_chunk) makes part of the queue by a rename and one store.
//!
//! Whether a staged chunk was published can be told at any time, whatever was killed and whoever else appends meanwhile: its
//! file is still under its staged name, or it is not.

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::layout::{self, FIRST_ENTRY, Pointers, entry_bytes, max_element_size};
use crate::os::file::{self, Unlinked};
use crate::{Error, Result};

/// Entries are written in pieces of this size: what was just copied together is still in the processor's cache then.
const PIECE: usize = 256 << 10;
/// So many files wait for their sync, which finds most of its work done when the next ones are filled.
const UNSYNCED: usize = 16;

/// Messages on their way into files.
#[derive(Debug)]
pub struct Stage {
    prefix: PathBuf,
    chunk_size: u32,
    durable: bool,
    /// Entries that are not in a file yet.
    framed: Vec<u8>,
    /// The chunk that is being filled, once there is more than a piece of it.
    open: Option<Open>,
    files: Vec<PathBuf>,
    unsynced: VecDeque<File>,
}

/// A file without a name, and how far it is filled.
#[derive(Debug)]
struct Open {
    unlinked: Unlinked,
    file: File,
    end: u32,
}

impl Stage {
    /// Files whose names begin with `prefix`, for a queue with chunks of this size. `durable`: with their syncs.
    pub fn new(prefix: &Path, chunk_size: u32, durable: bool) -> Result<Self> {
        if !(layout::MIN_CHUNK..=layout::MAX_CHUNK).contains(&chunk_size) {
            return Err(Error::Invalid(format!(
                "a chunk has {} to {} bytes, not {chunk_size}",
                layout::MIN_CHUNK,
                layout::MAX_CHUNK
            )));
        }
        Ok(Stage {
            prefix: prefix.to_owned(),
            chunk_size,
            durable,
            framed: Vec::new(),
            open: None,
            files: Vec::new(),
            unsynced: VecDeque::new(),
        })
    }

    /// Adds a message.
    pub fn add(&mut self, message: &[u8]) -> Result<()> {
        let limit = max_element_size(self.chunk_size);
        if message.len() > limit as usize {
            return Err(Error::TooLarge {
                size: message.len() as u64,
                limit: limit.into(),
            });
        }
        let filled = self.open.as_ref().map_or(FIRST_ENTRY, |open| open.end);
        let end = u64::from(filled) + self.framed.len() as u64 + entry_bytes(message.len());
        if end > self.chunk_size.into() {
            self.finish_chunk()?;
        } else if self.framed.len() >= PIECE {
            self.write_piece()?;
        }
        layout::frame(message, &mut self.framed);
        Ok(())
    }

    /// Writes the rest, and names the files: `.chunk` files in order, or one `.rows` file with bare entries when all of them
    /// have no more than `small` bytes.
    pub fn finish(mut self, small: usize) -> Result<Vec<PathBuf>> {
        let is_first = self.files.is_empty() && self.open.is_none();
        if is_first && self.framed.len() <= small && !self.framed.is_empty() {
            let path = self.named("rows");
            let mut open = self.create(&path, self.framed.len() as u64)?;
            open.end = 0;
            open.append(&self.framed, &path)?;
            self.publish(open, path)?;
        } else if self.open.is_some() || !self.framed.is_empty() {
            self.finish_chunk()?;
        }
        while !self.unsynced.is_empty() {
            self.sync_oldest()?;
        }
        if self.durable && !self.files.is_empty() {
            file::sync_directory(file::directory_of(&self.prefix))?;
        }
        Ok(self.files)
    }

    /// Moves the entries so far to the chunk that is being filled.
    fn write_piece(&mut self) -> Result<()> {
        let path = self.next_chunk();
        let mut open = match self.open.take() {
            Some(open) => open,
            None => self.create(&path, self.chunk_size.into())?,
        };
        let start = open.append(&self.framed, &path)?;
        if self.durable {
            // The disk works on it while the next piece is filled.
            file::begin_to_write(&open.file, start.into(), self.framed.len() as u64);
        }
        self.framed.clear();
        self.open = Some(open);
        Ok(())
    }

    fn finish_chunk(&mut self) -> Result<()> {
        self.write_piece()?;
        let Some(open) = self.open.take() else {
            return Ok(());
        };
        let path = self.next_chunk();
        let pointers = Pointers {
            head: FIRST_ENTRY,
            tail: open.end,
        };
        let written = open.file.write_all_at(&layout::chunk_header(pointers, 0), 0);
        written.map_err(|error| failed(&path, error))?;
        self.publish(open, path)
    }

    fn create(&self, path: &Path, length: u64) -> Result<Open> {
        let unlinked = Unlinked::create(path, length)?;
        let file = unlinked.as_fd().try_clone_to_owned();
        Ok(Open {
            file: file.map_err(|error| failed(path, error))?.into(),
            unlinked,
            end: FIRST_ENTRY,
        })
    }

    /// Gives a complete file its name, before it is on the disk: nobody looks at it before [`Self::finish`] has returned.
    fn publish(&mut self, open: Open, path: PathBuf) -> Result<()> {
        open.unlinked.publish_unsynced()?;
        self.files.push(path);
        if self.durable {
            self.unsynced.push_back(open.file);
            if self.unsynced.len() > UNSYNCED {
                self.sync_oldest()?;
            }
        }
        Ok(())
    }

    fn sync_oldest(&mut self) -> Result<()> {
        let Some(file) = self.unsynced.pop_front() else {
            return Ok(());
        };
        file::sync_all(&file).map_err(|error| Error::io(format!("syncing files of {}", self.prefix.display()), error))
    }

    fn next_chunk(&self) -> PathBuf {
        self.named(&format!("{}.chunk", self.files.len()))
    }

    fn named(&self, end: &str) -> PathBuf {
        let mut name = self.prefix.clone().into_os_string();
        name.push(".");
        name.push(end);
        name.into()
    }
}

impl Open {
    /// Adds entries; returns where they begin.
    fn append(&mut self, framed: &[u8], path: &Path) -> Result<u32> {
        let start = self.end;
        let written = self.file.write_all_at(framed, start.into());
        written.map_err(|error| failed(path, error))?;
        self.end += framed.len() as u32;
        Ok(start)
    }
}

fn failed(path: &Path, error: std::io::Error) -> Error {
    Error::io(format!("writing {}", path.display()), error)
}
