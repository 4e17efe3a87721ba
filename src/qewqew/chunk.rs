//! One chunk file: opened with suspicion, read through a mapping (or `pread`), written as its mode demands.
//!
//! - Head and tail are one 64-bit word that only changes by compare-and-swap: the consumer moves the head, whoever holds the
//!   append lock moves the tail, and neither can undo the other.
//! - Everything else is written under the append lock: entries behind the tail (nobody reads there), and the reference to
//!   the next chunk (one aligned 32-bit store that leaves the neighbouring bytes as they are).
//! - Durable modes write by `pwrite`: measured here, two ordered pwrite+fdatasync run 3,300 times a second, the same through
//!   a mapping 1,500 times, because each first store into a clean page is a fault that has to ask the file system.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::disk::{Disk, Step};
use super::layout::{self, ChunkId, FIRST_ENTRY, LENGTH_BYTES, NEXT, POINTERS, Pointers, TAIL};
use super::notes::Note;
use super::word::Word;
use crate::os::file::{self, Unlinked};
use crate::shared::region::Region;
use crate::shared::sync::{Ordering, PrivateU32};
use crate::{Error, Result};

/// Zeros are written ahead in steps of this size, so that a queue with few messages stays a small one.
/// - Where syncs matter: a block that was only allocated costs the file system a journal entry when it is first written.
/// - In front of stores through a mapping: pages that a write has made come in groups, with their blocks, and one fault maps a
///   group. Without that each page is a fault of its own that asks the file system: measured here 3 us for each of 256 pages
///   of a MiB, against 0.2 ms for all of it.
const STEP: u32 = 128 << 10;
/// One write of so many bytes is not worth writing its blocks twice.
const LARGE: usize = 32 << 10;

#[derive(Debug)]
pub(crate) struct Chunk {
    id: ChunkId,
    path: PathBuf,
    file: File,
    map: Option<Region>,
    /// Bytes of the file when it was opened; others may have made it longer since.
    length: u32,
    /// Up to here the blocks were written, as far as we know.
    primed: PrivateU32,
    /// Bytes to write ahead; 0 in a chunk that somebody else has created, whose left over bytes stay.
    step: u32,
}

/// How chunk files are reached and created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) mapped: bool,
    pub(crate) durable: bool,
    /// Entries are synced in the log of their checksums: no sync of the chunk is waited for while it fills.
    pub(crate) logged: bool,
}

impl Access {
    /// Where commits to a chunk of this length leave notes, if they do.
    fn notes_at(self, length: u32) -> Option<u32> {
        let are_left = self.durable && self.mapped && !self.logged;
        layout::notes_at(length).filter(|_| are_left)
    }
}

/// A chunk that is complete and has no name yet.
#[derive(Debug)]
pub(crate) struct Prepared {
    unlinked: Unlinked,
    id: ChunkId,
    access: Access,
    primed: u32,
    step: u32,
}

impl Prepared {
    /// Makes it visible, behind the files that have to be there before it; [`Error::Exists`] when the name is taken.
    pub(crate) fn publish(self, disk: &Disk, before: Option<Unlinked>) -> Result<Chunk> {
        let path = self.unlinked.path().to_owned();
        let files = before.into_iter().chain([self.unlinked]).collect();
        disk.publish(files, self.access.durable)?;
        let mut chunk = Chunk::open(path, self.id, self.access)?;
        (chunk.primed, chunk.step) = (PrivateU32::new(self.primed), self.step);
        Ok(chunk)
    }
}

impl Chunk {
    /// Opens a chunk; [`Error::NotFound`] when there is no such file.
    pub(crate) fn open(path: PathBuf, id: ChunkId, access: Access) -> Result<Self> {
        let file = file::open(&path)?;
        Chunk::of_file(file, path, id, access.mapped)
    }

    /// Opens a chunk for `pread` alone.
    pub(crate) fn open_to_read(path: PathBuf, id: ChunkId) -> Result<Self> {
        let file = file::open_to_read(&path)?;
        Chunk::of_file(file, path, id, false)
    }

    fn of_file(file: OwnedFd, path: PathBuf, id: ChunkId, is_mapped: bool) -> Result<Self> {
        let length = file::length(&file).map_err(|e| Error::io(format!("opening {}", path.display()), e))?;
        let fits = u32::try_from(length)
            .ok()
            .filter(|l| (FIRST_ENTRY..=layout::MAX_CHUNK).contains(l));
        let Some(length) = fits else {
            return Err(Error::Corrupt(format!(
                "the chunk {} has {length} bytes; a chunk has {FIRST_ENTRY} to {}",
                path.display(),
                layout::MAX_CHUNK
            )));
        };
        let file = File::from(file);
        let map = match is_mapped {
            true => {
                let copy = file
                    .try_clone()
                    .map_err(|e| Error::io(format!("opening {}", path.display()), e))?;
                // Word accesses need whole words: a file of 10 or 11 bytes holds no entry and is read without a map.
                (length >= layout::MIN_CHUNK)
                    .then(|| Region::map(copy.into(), Some(&path)))
                    .transpose()?
            }
            false => None,
        };
        Ok(Chunk {
            id,
            path,
            file,
            map,
            length,
            primed: PrivateU32::new(length),
            step: 0,
        })
    }

    /// Makes a complete chunk that begins with `entries` (framed), to be published.
    pub(crate) fn prepare(path: &Path, id: ChunkId, size: u32, entries: &[u8], access: Access) -> Result<Prepared> {
        let doing = || format!("creating {}", path.display());
        let unlinked = Unlinked::create(path, size.into())?;
        let file: File = unlinked
            .as_fd()
            .try_clone_to_owned()
            .map_err(|e| Error::io(doing(), e))?
            .into();
        let tail = FIRST_ENTRY + entries.len() as u32;
        let pointers = Pointers {
            head: FIRST_ENTRY,
            tail,
        };
        let step = match access {
            Access {
                durable: true,
                logged: true,
                ..
            } => 0,
            Access { durable: true, .. } | Access { mapped: true, .. } => STEP,
            _ => 0,
        };
        let write = |bytes: &[u8], at: u32| file.write_all_at(bytes, at.into()).map_err(|e| Error::io(doing(), e));
        let primed = match step {
            0 => size,
            _ if access.durable && entries.len() >= LARGE => tail,
            _ => prime(&file, 0, step, size).map_err(|e| Error::io(doing(), e))?,
        };
        write(&layout::chunk_header(pointers, 0), 0)?;
        write(entries, FIRST_ENTRY)?;
        if let Some(at) = access.notes_at(size).filter(|at| !entries.is_empty() && tail <= *at) {
            write(&Note::of_new_chunk(entries).encode(id), at)?;
        }
        Ok(Prepared {
            unlinked,
            id,
            access,
            primed,
            step,
        })
    }

    pub(crate) fn id(&self) -> ChunkId {
        self.id
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn length(&self) -> u32 {
        self.length
    }

    /// Makes the file at least `size` bytes long, all of them allocated; true when it grew (and must be opened again).
    pub(crate) fn extend(&self, size: u32) -> Result<bool> {
        if self.length >= size {
            return Ok(false);
        }
        let now = file::length(&self.file).map_err(|e| self.failed("reading the length of", e))?;
        if now < u64::from(size) {
            grow(&self.file, now, size.into()).map_err(|e| self.failed("extending", e))?;
        }
        Ok(true)
    }

    /// Head and tail, checked against the file; `None` when the file has grown since and must be opened again.
    #[inline]
    pub(crate) fn pointers(&self) -> Result<Option<Pointers>> {
        let pointers = self.raw_pointers()?;
        if pointers.are_within(self.length) {
            return Ok(Some(pointers));
        }
        self.outside(pointers)
    }

    /// The tail alone, checked as [`Self::pointers`] are, of a chunk that does not grow any more.
    pub(crate) fn tail(&self) -> Result<u32> {
        let pointers = self.pointers()?;
        pointers
            .map(|pointers| pointers.tail)
            .ok_or_else(|| Error::Corrupt(format!("the chunk {} changes its length", self.path.display())))
    }

    #[cold]
    fn outside(&self, pointers: Pointers) -> Result<Option<Pointers>> {
        let now = file::length(&self.file).map_err(|e| self.failed("reading the length of", e))?;
        let now = u32::try_from(now).unwrap_or(u32::MAX);
        if now > self.length && pointers.are_within(now) {
            return Ok(None);
        }
        Err(Error::Corrupt(format!(
            "the chunk {} of {now} bytes has its head at {} and its tail at {}",
            self.path.display(),
            pointers.head as i32,
            pointers.tail as i32
        )))
    }

    /// Head and tail as they are in the file.
    #[inline]
    pub(crate) fn raw_pointers(&self) -> Result<Pointers> {
        if let Some(map) = &self.map {
            return Ok(Word(map.u64(POINTERS)).load());
        }
        let mut bytes = [0; 8];
        self.read(POINTERS as u32, &mut bytes)?;
        Ok(Pointers::from_bytes(bytes))
    }

    /// Replaces head and tail if they still are `old`.
    #[inline]
    pub(crate) fn swap_pointers(&self, disk: &Disk, old: Pointers, new: Pointers) -> Result<bool> {
        let swapped = match &self.map {
            Some(map) => Word(map.u64(POINTERS)).swap(old, new),
            // Without a mapping every writer of this chunk is in this process, under its mutex.
            None => {
                let same = self.raw_pointers()? == old;
                if same && old.tail == new.tail {
                    self.write_unseen(0, &new.to_bytes()[..TAIL])?;
                } else if same {
                    self.write_unseen(0, &new.to_bytes())?;
                }
                same
            }
        };
        if swapped {
            disk.note(Step::Stored, &self.path);
        }
        Ok(swapped)
    }

    /// Moves the tail, whatever the head does meanwhile; the caller holds the append lock.
    pub(crate) fn store_tail(&self, disk: &Disk, tail: u32) -> Result<()> {
        if let Some(map) = &self.map {
            Word(map.u64(POINTERS)).move_tail(tail);
            disk.note(Step::Stored, &self.path);
            return Ok(());
        }
        loop {
            let old = self.raw_pointers()?;
            if self.swap_pointers(disk, old, Pointers { tail, ..old })? {
                return Ok(());
            }
        }
    }

    /// As [`Self::store_tail`], by `pwrite` of the four bytes alone: no page of the mapping has to become writable.
    pub(crate) fn write_tail(&self, disk: &Disk, tail: u32) -> Result<()> {
        self.write(disk, TAIL as u32, &tail.to_be_bytes())
    }

    /// Makes the chunk one without entries; nobody else has the queue open.
    pub(crate) fn write_empty(&self, disk: &Disk) -> Result<()> {
        self.write(disk, POINTERS as u32, &Pointers::EMPTY.to_bytes())
    }

    /// When the file was last written to, in nanoseconds.
    pub(crate) fn written(&self) -> Result<u64> {
        super::checks::written(&self.file).map_err(|e| self.failed("looking at", e))
    }

    /// The reference to the next chunk.
    #[inline]
    pub(crate) fn next(&self) -> Result<Option<ChunkId>> {
        let bytes = match &self.map {
            // SYNC: linked chunk (with `set_next`)
            Some(map) => map.u32(NEXT).load(Ordering::SeqCst).to_le_bytes(),
            None => {
                let mut bytes = [0; 4];
                self.read(NEXT as u32, &mut bytes[..2])?;
                bytes
            }
        };
        Ok(ChunkId::from_ref(u16::from_be_bytes([bytes[0], bytes[1]])))
    }

    /// Refers to the next chunk, which is complete; the caller holds the append lock.
    pub(crate) fn set_next(&self, disk: &Disk, next: Option<ChunkId>) -> Result<()> {
        let reference = next.map_or(0, ChunkId::reference).to_be_bytes();
        match &self.map {
            Some(map) => {
                let word = map.u32(NEXT);
                let [_, _, a, b] = word.load(Ordering::Relaxed).to_le_bytes();
                // SYNC: linked chunk (with `next`)
                word.store(u32::from_le_bytes([reference[0], reference[1], a, b]), Ordering::SeqCst);
                disk.note(Step::Stored, &self.path);
                Ok(())
            }
            None => self.write(disk, NEXT as u32, &reference),
        }
    }

    /// The length of the entry at `at`, if all of it lies before `tail`.
    #[inline]
    pub(crate) fn entry_length(&self, at: u32, tail: u32) -> Result<u32> {
        if tail - at >= LENGTH_BYTES {
            let mut length = [0; 2];
            self.read(at, &mut length)?;
            let length = u32::from(u16::from_be_bytes(length));
            if length <= tail - at - LENGTH_BYTES {
                return Ok(length);
            }
        }
        Err(Error::Corrupt(format!(
            "the entry at offset {at} of the chunk {} reaches beyond the tail at {tail}",
            self.path.display()
        )))
    }

    /// Copies bytes out; the caller has checked the range against the pointers.
    #[inline]
    pub(crate) fn read(&self, at: u32, bytes: &mut [u8]) -> Result<()> {
        match &self.map {
            Some(map) => map.copy_out(at as usize, bytes),
            None => self
                .file
                .read_exact_at(bytes, at.into())
                .map_err(|e| self.failed("reading", e))?,
        }
        Ok(())
    }

    /// Appends bytes to `out`.
    #[inline]
    pub(crate) fn append_to(&self, at: u32, length: u32, out: &mut Vec<u8>) -> Result<()> {
        match &self.map {
            Some(map) => map.append_to(at as usize, length as usize, out),
            None => {
                let start = out.len();
                out.resize(start + length as usize, 0);
                self.read(at, &mut out[start..])?;
            }
        }
        Ok(())
    }

    /// Stores bytes behind the tail without asking the kernel, where there is a mapping.
    #[inline]
    pub(crate) fn store(&self, disk: &Disk, at: u32, bytes: &[u8]) -> Result<()> {
        match &self.map {
            Some(map) => {
                self.prime(at, bytes.len())?;
                map.copy_in(at as usize, bytes);
                disk.note(Step::Stored, &self.path);
                Ok(())
            }
            None => self.write(disk, at, bytes),
        }
    }

    /// Writes bytes with one `pwrite`.
    pub(crate) fn write(&self, disk: &Disk, at: u32, bytes: &[u8]) -> Result<()> {
        if bytes.len() < LARGE {
            self.prime(at, bytes.len())?;
        } else if self.step > 0 {
            let end = at + bytes.len() as u32;
            self.primed
                .store(end.max(self.primed.load(Ordering::Relaxed)), Ordering::Relaxed);
        }
        self.write_far(disk, at, bytes)
    }

    /// As [`Self::write`], for what does not lie where entries come next.
    pub(crate) fn write_far(&self, disk: &Disk, at: u32, bytes: &[u8]) -> Result<()> {
        self.write_unseen(at, bytes)?;
        disk.note(Step::Stored, &self.path);
        Ok(())
    }

    /// Writes zeros ahead where the blocks for bytes at `at` were not written yet.
    #[inline]
    fn prime(&self, at: u32, length: usize) -> Result<()> {
        let primed = self.primed.load(Ordering::Relaxed);
        if self.step == 0 || at + length as u32 <= primed {
            return Ok(());
        }
        self.prime_from(primed.max(at))
    }

    /// Never in front of the place where the caller goes on, the tail: other producers have written there, of which this
    /// handle knows nothing.
    #[cold]
    fn prime_from(&self, at: u32) -> Result<()> {
        let primed = prime(&self.file, at, self.step, self.length).map_err(|e| self.failed("writing", e))?;
        self.primed.store(primed, Ordering::Relaxed);
        Ok(())
    }

    fn write_unseen(&self, at: u32, bytes: &[u8]) -> Result<()> {
        self.file
            .write_all_at(bytes, at.into())
            .map_err(|e| self.failed("writing", e))
    }

    /// Waits until everything is on the disk.
    pub(crate) fn sync(&self, disk: &Disk) -> Result<()> {
        disk.sync(&self.file, &self.path)
    }

    fn failed(&self, doing: &str, error: std::io::Error) -> Error {
        Error::io(format!("{doing} {}", self.path.display()), error)
    }
}

/// Writes zeros over the next allocated but unwritten blocks, all behind the tail of a new chunk and in front of its notes;
/// returns where they end, at a multiple of the step: pages come in larger groups where those are aligned.
fn prime(file: &File, from: u32, step: u32, size: u32) -> std::io::Result<u32> {
    static ZEROS: [u8; STEP as usize] = [0; STEP as usize];
    let behind = layout::notes_at(size).unwrap_or(size);
    let end = (from / step + 1).saturating_mul(step).min(behind).max(from);
    file.write_all_at(&ZEROS[..(end - from) as usize], from.into())?;
    Ok(end)
}

/// Allocates the bytes from `from` to `to`; on an error the file is as long as before.
fn grow(file: &File, from: u64, to: u64) -> std::io::Result<()> {
    // Bytes that are written are allocated, whatever the file system can do; the file is small.
    let zeros = [0; 1 << 16];
    let mut at = from;
    while at < to {
        let part = (to - at).min(zeros.len() as u64) as usize;
        if let Err(error) = file.write_all_at(&zeros[..part], at) {
            file.set_len(from)?;
            return Err(error);
        }
        at += part as u64;
    }
    Ok(())
}
