//! The head file: two bytes that name the first chunk, always changed in place.
//!
//! Locks belong to the inode, so the file is never replaced by another one under the same name.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::disk::{Disk, Step};
use super::layout::{ChunkId, HEAD_BYTES};
use crate::os::file::{self, Unlinked};
use crate::{Error, Result};

#[derive(Debug)]
pub(crate) struct Head {
    path: PathBuf,
    file: File,
}

impl Head {
    /// Opens the head file; [`Error::NotFound`] when there is none.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        Head::of_file(file::open(path)?, path)
    }

    /// As [`Self::open`], only to be read.
    pub(crate) fn open_to_read(path: &Path) -> Result<Self> {
        Head::of_file(file::open_to_read(path)?, path)
    }

    fn of_file(file: OwnedFd, path: &Path) -> Result<Self> {
        let file = File::from(file);
        let length = file::length(&file).map_err(|e| Error::io(format!("opening {}", path.display()), e))?;
        if length > HEAD_BYTES {
            return Err(Error::Format(format!(
                "{} has {length} bytes; the head file of a qewqew queue has {HEAD_BYTES}",
                path.display()
            )));
        }
        Ok(Head {
            path: path.to_owned(),
            file,
        })
    }

    /// Opens the head file, or creates that of an empty queue.
    pub(crate) fn open_or_create(disk: &Disk, path: &Path, durable: bool) -> Result<Self> {
        loop {
            match Head::open(path) {
                Err(Error::NotFound(_)) => {}
                opened => return opened,
            }
            let unlinked = Unlinked::create(path, HEAD_BYTES)?;
            match disk.publish(vec![unlinked], durable) {
                Err(Error::Exists(_)) => {}
                published => published?,
            }
        }
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Whether the file still has its name: an empty close may have removed it before we had our lock.
    pub(crate) fn is_still_named(&self) -> Result<bool> {
        file::is_still_named(&self.file, &self.path)
    }

    /// The first chunk; bytes that are missing count as zeros, as they do for the original.
    pub(crate) fn first(&self) -> Result<Option<ChunkId>> {
        let mut bytes = [0; HEAD_BYTES as usize];
        let mut filled = 0;
        while filled < bytes.len() {
            match self.file.read_at(&mut bytes[filled..], filled as u64) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(Error::io(format!("reading {}", self.path.display()), e)),
            }
        }
        Ok(ChunkId::from_ref(u16::from_be_bytes(bytes)))
    }

    /// Names another first chunk (one `pwrite`, which no kill can split).
    pub(crate) fn set(&self, disk: &Disk, first: Option<ChunkId>) -> Result<()> {
        let bytes = first.map_or(0, ChunkId::reference).to_be_bytes();
        self.file
            .write_all_at(&bytes, 0)
            .map_err(|e| Error::io(format!("writing {}", self.path.display()), e))?;
        disk.note(Step::Stored, &self.path);
        Ok(())
    }

    /// Waits until everything that anybody has written to the file system is on the disk.
    pub(crate) fn sync_file_system(&self) -> Result<()> {
        file::sync_file_system(&self.file)
            .map_err(|e| Error::io(format!("syncing the file system of {}", self.path.display()), e))
    }

    pub(crate) fn sync(&self, disk: &Disk) -> Result<()> {
        disk.sync(&self.file, &self.path)
    }
}
