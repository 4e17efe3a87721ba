//! Queue disk: allocated when the queue is created, in segments of 180 bytes, one place for each message (section 2.3).
//!
//! All members of a family share one file, so an open queue file needs one descriptor for each of its modes, at most two
//! (behaviour 19). Writes go through the page cache: the kernel brings them to the disk while everybody works on, and its
//! read-ahead fetches what is read in sequence. Nothing is ever synced: a queue disk does not survive its users.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::layout::{DISK_SEGMENT, disk_segments};
use super::parameters::FileParameters;
use super::users::Mode;
use crate::os::file::{self, Unlinked};
use crate::{Error, Result};

/// The open queue disk of one queue file.
#[derive(Debug)]
pub(super) struct QueueDisk {
    path: PathBuf,
    input: Option<File>,
    output: Option<File>,
    max_messages: u64,
    record_size: u32,
}

impl QueueDisk {
    /// Allocates the file.
    pub(super) fn create(path: &Path, parameters: &FileParameters) -> Result<()> {
        for attempt in 0.. {
            match Unlinked::create(path, parameters.disk_bytes())?.publish_unsynced() {
                // Left by somebody who died between the file and the descriptor.
                Err(Error::Exists(_)) if attempt == 0 => remove(path),
                other => return other,
            }
        }
        unreachable!("the second attempt returns")
    }

    /// Opens it, once for each mode.
    pub(super) fn open(path: &Path, parameters: &FileParameters, mode: Option<Mode>) -> Result<Self> {
        let length = parameters.disk_bytes();
        let open = || -> Result<File> {
            let file = file::open(path)?;
            let found = file::length(&file).map_err(|e| Error::io(format!("opening {}", path.display()), e))?;
            if found != length {
                return Err(Error::Corrupt(format!(
                    "the queue disk {} has {found} bytes, not {length}",
                    path.display()
                )));
            }
            Ok(File::from(file))
        };
        Ok(QueueDisk {
            path: path.to_owned(),
            input: mode.is_none_or(Mode::reads).then(open).transpose()?,
            output: mode.is_none_or(Mode::writes).then(open).transpose()?,
            max_messages: parameters.max_messages.into(),
            record_size: parameters.record_size,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// How many descriptors it has open.
    pub(super) fn descriptors(&self) -> usize {
        usize::from(self.input.is_some()) + usize::from(self.output.is_some())
    }

    /// Writes a message to its place, in whole segments.
    pub(super) fn write(&self, member: usize, slot: u32, text: &[u8]) -> Result<()> {
        let mut segments = text.to_vec();
        segments.resize(text.len().next_multiple_of(DISK_SEGMENT as usize), 0);
        let file = self.output.as_ref().or(self.input.as_ref()).expect("one is open");
        let at = self.offset(member, slot, text.len())?;
        file.write_all_at(&segments, at).map_err(|e| self.failed("writing", e))
    }

    /// Appends the `size` bytes of the message in this place.
    pub(super) fn read(&self, member: usize, slot: u32, size: usize, out: &mut Vec<u8>) -> Result<()> {
        let at = self.offset(member, slot, size)?;
        let file = self.input.as_ref().or(self.output.as_ref()).expect("one is open");
        let start = out.len();
        out.resize(start + size, 0);
        file.read_exact_at(&mut out[start..], at).map_err(|e| {
            out.truncate(start);
            self.failed("reading", e)
        })
    }

    fn offset(&self, member: usize, slot: u32, size: usize) -> Result<u64> {
        if u64::from(slot) >= self.max_messages || size > self.record_size as usize {
            return Err(Error::Corrupt(format!(
                "a message of {size} bytes cannot be in place {slot} of the queue disk {}",
                self.path.display()
            )));
        }
        let place = member as u64 * self.max_messages + u64::from(slot);
        Ok(place * disk_segments(self.record_size) * DISK_SEGMENT)
    }

    fn failed(&self, doing: &str, error: std::io::Error) -> Error {
        Error::io(format!("{doing} the queue disk {}", self.path.display()), error)
    }
}

/// Returns the disk space; a file that is gone already is as good.
pub(super) fn remove(path: &Path) {
    let _ = std::fs::remove_file(path);
}
