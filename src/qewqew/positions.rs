//! `NAME.positions`: what makes the place of a message an absolute number that never changes.
//!
//! A position is an epoch (16 bits) and a count of entry bytes (48 bits) since the epoch began. The file says which position
//! the first entry of the first chunk has. The head file and this one cannot change in one step, so there are two slots, each
//! with the id of the chunk it is true for: the new one is written first, and the head file's change makes it the one that
//! counts. When another program has worked on the queue nothing is known about old positions any more: a new epoch begins,
//! and a reader that comes with a position of an old one is told so.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::disk::{Disk, Step};
use super::layout::ChunkId;
use crate::os::file::{self, Unlinked};
use crate::{Error, Result};

const MAGIC: u64 = u64::from_le_bytes(*b"QWplaces");
const VERSION: u32 = 1;
const UUID: u64 = 16;
const SLOTS: [u64; 2] = [64, 128];
const SLOT_BYTES: usize = 16;
const CLEAN: u64 = 192;
const SEEN: u64 = 200;
const BYTES: u64 = 208;

/// Bits of a position below the epoch.
pub const EPOCH_SHIFT: u32 = 48;

#[derive(Debug)]
pub(crate) struct Positions {
    path: PathBuf,
    file: File,
    uuid: [u8; 16],
}

impl Positions {
    /// Opens the file, if there is one.
    pub(crate) fn open(path: &Path) -> Result<Option<Self>> {
        Positions::of_file(file::open(path), path)
    }

    /// As [`Self::open`], only to be read.
    pub(crate) fn open_to_read(path: &Path) -> Result<Option<Self>> {
        Positions::of_file(file::open_to_read(path), path)
    }

    fn of_file(opened: Result<OwnedFd>, path: &Path) -> Result<Option<Self>> {
        let file = match opened {
            Ok(file) => File::from(file),
            Err(Error::NotFound(_)) => return Ok(None),
            Err(e) => return Err(e),
        };
        let mut positions = Positions {
            path: path.to_owned(),
            file,
            uuid: [0; 16],
        };
        let (mut head, mut uuid) = ([0; 16], [0; 16]);
        let foreign = || {
            Error::Format(format!(
                "{} is not a positions file of version {VERSION}; if it is damaged, remove it: it holds no message, and \
                 positions begin anew",
                path.display()
            ))
        };
        let length = positions
            .file
            .metadata()
            .map_err(|e| positions.failed("reading", e))?
            .len();
        if length != BYTES {
            return Err(foreign());
        }
        positions.read(0, &mut head)?;
        positions.read(UUID, &mut uuid)?;
        if head[..8] != MAGIC.to_le_bytes() || head[8..12] != VERSION.to_le_bytes() {
            return Err(foreign());
        }
        positions.uuid = uuid;
        Ok(Some(positions))
    }

    /// Begins counting: the first entry of `first` gets position 0.
    pub(crate) fn create(disk: &Disk, path: &Path, first: Option<ChunkId>, durable: bool) -> Result<Self> {
        let unlinked = Unlinked::create(path, BYTES)?;
        let doing = |e| Error::io(format!("creating {}", path.display()), e);
        let raw: File = unlinked.as_fd().try_clone_to_owned().map_err(doing)?.into();
        raw.write_all_at(&MAGIC.to_le_bytes(), 0).map_err(doing)?;
        raw.write_all_at(&VERSION.to_le_bytes(), 8).map_err(doing)?;
        raw.write_all_at(&new_uuid()?, UUID).map_err(doing)?;
        raw.write_all_at(&slot(first, 0), SLOTS[0]).map_err(doing)?;
        disk.publish(vec![unlinked], durable)?;
        Positions::open(path)?.ok_or_else(|| Error::no_file(path))
    }

    /// The identity of the queue whose positions these are.
    pub(crate) fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    /// The position of the first entry of `first`; `None` when the file knows nothing of this chunk.
    pub(crate) fn base(&self, first: Option<ChunkId>) -> Result<Option<u64>> {
        for at in SLOTS {
            if let Some((id, base)) = self.slot(at)?
                && id == first
            {
                return Ok(Some(base));
            }
        }
        Ok(None)
    }

    /// To be called before the head file changes from one chunk to another, `bytes` of entries further on.
    pub(crate) fn move_first(
        &self,
        disk: &Disk,
        from: Option<ChunkId>,
        to: Option<ChunkId>,
        bytes: u64,
        durable: bool,
    ) -> Result<()> {
        let Some(base) = self.base(from)? else {
            return Err(Error::Corrupt(format!(
                "{} does not know the first chunk of the queue; remove it: it holds no message, and positions begin anew",
                self.path.display()
            )));
        };
        self.write_slot(disk, from, to, base + bytes, durable)
    }

    /// Begins a new epoch for a queue on which another program has worked.
    pub(crate) fn new_epoch(&self, disk: &Disk, first: Option<ChunkId>, durable: bool) -> Result<()> {
        let mut newest = 0;
        for at in SLOTS {
            newest = newest.max(self.slot(at)?.map_or(0, |(_, base)| base >> EPOCH_SHIFT));
        }
        let base = (newest + 1) << EPOCH_SHIFT;
        self.set_seen(0)?;
        // Both: an old slot that happens to name the same chunk would be as wrong as any.
        for at in SLOTS {
            self.write(disk, at, &slot(first, base))?;
        }
        if durable {
            disk.sync(&self.file, &self.path)
        } else {
            Ok(())
        }
    }

    /// What the files looked like when the last handle closed; 0 when it did not get to close.
    pub(crate) fn clean(&self) -> Result<u64> {
        self.word(CLEAN)
    }

    pub(crate) fn set_clean(&self, digest: u64) -> Result<()> {
        self.file
            .write_all_at(&digest.to_le_bytes(), CLEAN)
            .map_err(|e| self.failed("writing", e))
    }

    /// The tail position that somebody was told.
    pub(crate) fn seen(&self) -> Result<u64> {
        self.word(SEEN)
    }

    pub(crate) fn set_seen(&self, tail: u64) -> Result<()> {
        self.file
            .write_all_at(&tail.to_le_bytes(), SEEN)
            .map_err(|e| self.failed("writing", e))
    }

    fn write_slot(
        &self,
        disk: &Disk,
        now: Option<ChunkId>,
        id: Option<ChunkId>,
        base: u64,
        durable: bool,
    ) -> Result<()> {
        let counts = |at: u64| Ok::<_, Error>(self.slot(at)?.is_some_and(|(id, _)| id == now));
        let free = if counts(SLOTS[0])? { SLOTS[1] } else { SLOTS[0] };
        self.write(disk, free, &slot(id, base))?;
        if durable {
            disk.sync(&self.file, &self.path)
        } else {
            Ok(())
        }
    }

    fn slot(&self, at: u64) -> Result<Option<(Option<ChunkId>, u64)>> {
        let mut bytes = [0; SLOT_BYTES];
        self.read(at, &mut bytes)?;
        let id = u16::from_le_bytes([bytes[0], bytes[1]]);
        let base = u64::from_le_bytes(bytes[8..].try_into().expect("8 bytes"));
        let id = ChunkId::from_ref(id);
        Ok((bytes == slot(id, base)).then_some((id, base)))
    }

    fn word(&self, at: u64) -> Result<u64> {
        let mut bytes = [0; 8];
        self.read(at, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn read(&self, at: u64, bytes: &mut [u8]) -> Result<()> {
        self.file
            .read_exact_at(bytes, at)
            .map_err(|e| self.failed("reading", e))
    }

    fn write(&self, disk: &Disk, at: u64, bytes: &[u8]) -> Result<()> {
        self.file
            .write_all_at(bytes, at)
            .map_err(|e| self.failed("writing", e))?;
        disk.note(Step::Stored, &self.path);
        Ok(())
    }

    fn failed(&self, doing: &str, error: std::io::Error) -> Error {
        Error::io(format!("{doing} {}", self.path.display()), error)
    }
}

fn slot(id: Option<ChunkId>, base: u64) -> [u8; SLOT_BYTES] {
    let mut bytes = [0; SLOT_BYTES];
    bytes[..2].copy_from_slice(&id.map_or(0, ChunkId::reference).to_le_bytes());
    bytes[2] = 1;
    bytes[8..].copy_from_slice(&base.to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[..2]), &bytes[8..]);
    bytes[4..8].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fn new_uuid() -> Result<[u8; 16]> {
    crate::os::clock::random_id()
}
