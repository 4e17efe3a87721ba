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

/// So many files wait for their sync, so that the disk works on them while the next ones are filled.
const UNSYNCED: usize = 16;

/// Messages on their way into files.
#[derive(Debug)]
pub struct Stage {
    prefix: PathBuf,
    chunk_size: u32,
    durable: bool,
    framed: Vec<u8>,
    files: Vec<PathBuf>,
    unsynced: VecDeque<File>,
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
        let end = u64::from(FIRST_ENTRY) + self.framed.len() as u64 + entry_bytes(message.len());
        if end > self.chunk_size.into() {
            self.flush()?;
        }
        layout::frame(message, &mut self.framed);
        Ok(())
    }

    /// Writes the rest, and names the files: `.chunk` files in order, or one `.rows` file with bare entries when all of them
    /// have no more than `small` bytes.
    pub fn finish(mut self, small: usize) -> Result<Vec<PathBuf>> {
        if self.files.is_empty() && self.framed.len() <= small && !self.framed.is_empty() {
            let path = self.named("rows");
            self.write(path, self.framed.len() as u64, |file, framed| {
                file.write_all_at(framed, 0)
            })?;
        } else if !self.framed.is_empty() {
            self.flush()?;
        }
        while !self.unsynced.is_empty() {
            self.sync_oldest()?;
        }
        if self.durable && !self.files.is_empty() {
            file::sync_directory(file::directory_of(&self.prefix))?;
        }
        Ok(self.files)
    }

    fn flush(&mut self) -> Result<()> {
        let path = self.named(&format!("{}.chunk", self.files.len()));
        self.write(path, self.chunk_size.into(), |file, framed| {
            let pointers = Pointers {
                head: FIRST_ENTRY,
                tail: FIRST_ENTRY + framed.len() as u32,
            };
            file.write_all_at(&layout::chunk_header(pointers, 0), 0)?;
            file.write_all_at(framed, FIRST_ENTRY.into())
        })
    }

    /// Writes the messages so far to a file. It has its name before it is on the disk: nobody looks at it before
    /// [`Self::finish`] has returned.
    fn write(
        &mut self,
        path: PathBuf,
        length: u64,
        write: impl FnOnce(&File, &[u8]) -> std::io::Result<()>,
    ) -> Result<()> {
        let unlinked = Unlinked::create(&path, length)?;
        let doing = |error| Error::io(format!("writing {}", path.display()), error);
        let file: File = unlinked.as_fd().try_clone_to_owned().map_err(doing)?.into();
        write(&file, &self.framed).map_err(doing)?;
        unlinked.publish_unsynced()?;
        self.framed.clear();
        self.files.push(path);
        if self.durable {
            self.unsynced.push_back(file);
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

    fn named(&self, end: &str) -> PathBuf {
        let mut name = self.prefix.clone().into_os_string();
        name.push(".");
        name.push(end);
        name.into()
    }
}
