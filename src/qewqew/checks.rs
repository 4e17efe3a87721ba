//! `NAME.<id>.crc`: a CRC32C for each entry of a chunk, and in the durable modes the log that makes one sync enough.
//!
//! The format has no checksum, so damaged payload is noticed only with this file. Records are appended in the order of the
//! entries, always before the entry can be seen. In a durable mode a record carries the entry's bytes and is synced *before*
//! the chunk is touched: after a power cut the entries are written again from it, whatever part of the chunk had reached the
//! disk. The chunk itself is synced when it is left and when the queue is closed.
//!
//! # What has no checksum
//! Once a chunk has this file, whoever of us appends to it appends to this file, too, with or without `crc`. So an entry
//! without a record is one of these, and the file says which:
//! - it lies in front of the first covered entry: checksums began later;
//! - another program wrote it while nobody of us had the queue open. The last to close notes the pointers and the time of the
//!   last write; the next to open compares. When the chunk was written since, entries behind the noted tail are taken as that
//!   program's and noted as such; so are all, when none of the old ones is left (it has started the chunk over). When it was
//!   not written since and is different all the same, it is damaged, and says so until it is repaired;
//! - it is damage: the reader reports it. No power cut looks like this in a durable mode, because no entry is in a chunk
//!   before its record is on the disk. With `never` a cut may leave entries without their records: they are reported, too.

mod log;
mod settle;

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) use self::log::Cursor;
use self::log::End;
use super::chunk::{Access, Chunk};
use super::disk::{Disk, Step};
use super::layout::{ChunkId, FIRST_ENTRY, LENGTH_BYTES};
use super::records::{self, Check, HEADER, Header, RECORD, Record, Seen, State, Table, VERSION};
use crate::os::file::{self, Unlinked};
use crate::{Error, Result};

/// A log longer than this begins anew when its chunk starts over.
const LONG: u64 = 1 << 20;
/// The log grows by steps of written zeros: within a step a sync has no length and no blocks to record, and a mapping has all
/// that it needs.
const LONGEST_STEP: u64 = 256 << 10;
const SHORTEST_STEP: u64 = 4 << 10;

/// The checksums of one chunk.
#[derive(Debug)]
pub(crate) struct Checks {
    path: PathBuf,
    file: File,
    is_mapped: bool,
    end: Mutex<End>,
}

impl Checks {
    /// Creates the file for a chunk whose entries from `start` on are covered, with the records of `framed` entries there,
    /// in place of any file of this name.
    pub(crate) fn create(disk: &Disk, path: &Path, start: u32, framed: &[u8], durable: bool) -> Result<Self> {
        Checks::replace(
            disk,
            path,
            start,
            |out, seed| record_all(start, framed, out, seed),
            durable,
        )
    }

    /// Makes the complete file for a chunk with these entries, to be published; [`Self::open_prepared`] opens it.
    pub(crate) fn prepare(path: &Path, framed: &[u8], durable: bool) -> Result<(Unlinked, Cursor)> {
        Checks::write_new(
            path,
            FIRST_ENTRY,
            |out, seed| record_all(FIRST_ENTRY, framed, out, seed),
            durable,
        )
    }

    /// Opens a file that has just been published; `end` is where its records end.
    pub(crate) fn open_prepared(path: &Path, end: Cursor) -> Result<Self> {
        let checks = Checks::open(path)?.ok_or_else(|| Error::no_file(path))?;
        checks.locked().cursor = end;
        Ok(checks)
    }

    /// A complete file without a name, and where its records end.
    fn write_new(
        path: &Path,
        start: u32,
        records: impl FnOnce(&mut Vec<u8>, u32),
        durable: bool,
    ) -> Result<(Unlinked, Cursor)> {
        let doing = |e| Error::io(format!("creating {}", path.display()), e);
        let seed = new_seed()?;
        let state = State::Open;
        let mut bytes = Header { seed, start, state }.encode().to_vec();
        records(&mut bytes, seed);
        let unlinked = Unlinked::create(path, bytes.len() as u64)?;
        let raw: File = unlinked.as_fd().try_clone_to_owned().map_err(doing)?.into();
        raw.write_all_at(&bytes, 0).map_err(doing)?;
        let end = Cursor {
            seed,
            at: bytes.len() as u64,
            needs_chunk: !durable,
        };
        Ok((unlinked, end))
    }

    /// Puts a complete file with these records in the place of any file of this name, in one step.
    fn replace(
        disk: &Disk,
        path: &Path,
        start: u32,
        records: impl FnOnce(&mut Vec<u8>, u32),
        durable: bool,
    ) -> Result<Self> {
        // Another name on the way only where one has to go: a kill leaves it behind.
        if path.symlink_metadata().is_err() {
            let (unlinked, end) = Checks::write_new(path, start, records, durable)?;
            disk.publish(vec![unlinked], durable)?;
            return Checks::open_prepared(path, end);
        }
        let name = fresh_name(path);
        disk.unlink(&name)?;
        let (unlinked, end) = Checks::write_new(&name, start, records, durable)?;
        disk.replace(unlinked, path, durable)?;
        Checks::open_prepared(path, end)
    }

    /// Opens the file, if there is one.
    pub(crate) fn open(path: &Path) -> Result<Option<Self>> {
        Checks::of_file(file::open(path), path)
    }

    /// As [`Self::open`], only to be read.
    pub(crate) fn open_to_read(path: &Path) -> Result<Option<Self>> {
        Checks::of_file(file::open_to_read(path), path)
    }

    fn of_file(opened: Result<OwnedFd>, path: &Path) -> Result<Option<Self>> {
        let file = match opened {
            Ok(file) => File::from(file),
            Err(Error::NotFound(_)) => return Ok(None),
            Err(e) => return Err(e),
        };
        let checks = Checks {
            path: path.to_owned(),
            file,
            is_mapped: false,
            end: Mutex::default(),
        };
        checks.header()?;
        Ok(Some(checks))
    }

    /// Lets records be read and written through a mapping where nobody waits for the disk.
    pub(crate) fn mapped_for(mut self, access: Access) -> Self {
        self.is_mapped = access.mapped && !access.durable;
        self
    }

    pub(crate) fn is_mapped(&self) -> bool {
        self.is_mapped
    }

    /// What is in front of the records, as another process may have changed it since.
    pub(crate) fn header(&self) -> Result<Header> {
        let mut bytes = [0; HEADER];
        let read = self.file.read_exact_at(&mut bytes, 0);
        read.ok().and_then(|()| Header::decode(&bytes)).ok_or_else(|| {
            Error::Corrupt(format!(
                "{} is not a checksum file of version {VERSION}",
                self.path.display()
            ))
        })
    }

    /// [`Error::Corrupt`] when the chunk is not as it was closed.
    pub(crate) fn refuse_damaged(&self, chunk: &Chunk) -> Result<()> {
        let State::Damaged(seen) = self.header()?.state else {
            return Ok(());
        };
        let now = chunk.raw_pointers()?;
        Err(Error::Corrupt(format!(
            "the chunk {} was closed with its head at {}, its tail at {} and {} as its next chunk; nobody wrote to it, and now \
             they are {}, {} and {}; repair() goes back to the former",
            chunk.path().display(),
            seen.pointers.head,
            seen.pointers.tail,
            seen.next,
            now.head as i32,
            now.tail as i32,
            chunk.next()?.map_or(0, ChunkId::reference)
        )))
    }

    pub(crate) fn set_state(&self, disk: &Disk, state: State) -> Result<()> {
        let header = Header {
            state,
            ..self.header()?
        };
        self.write(disk, 0, &header.encode())
    }

    /// Appends the records of framed entries that will lie at `offset` of `chunk`; with `durable` they are on the disk then,
    /// and the chunk need not be. The append or the commit lock makes this the only writer.
    pub(crate) fn append(&self, disk: &Disk, chunk: &Chunk, offset: u32, framed: &[u8], durable: bool) -> Result<()> {
        let mut end = self.end()?;
        let End { cursor, length, .. } = &mut *end;
        if durable && cursor.needs_chunk {
            chunk.sync(disk)?;
            cursor.needs_chunk = false;
            self.shorten(disk, cursor, offset)?;
        }
        let mut out = Vec::with_capacity(framed.len() * 2 + RECORD);
        for check in checks_of(offset, framed) {
            if durable {
                out.extend_from_slice(&Record::WithBytes(check).encode(cursor.seed));
                let start = (check.offset - offset + LENGTH_BYTES) as usize;
                out.extend_from_slice(&framed[start..start + usize::from(check.length)]);
            } else {
                out.extend_from_slice(&Record::Checksum(check).encode(cursor.seed));
            }
        }
        if durable {
            self.grow(length, cursor.at + out.len() as u64, chunk.length())?;
        }
        self.write(disk, cursor.at, &out)?;
        if durable {
            self.sync(disk)?;
        }
        cursor.at += out.len() as u64;
        cursor.needs_chunk |= !durable;
        Ok(())
    }

    /// Where the next record goes: behind what others have appended since we last looked.
    fn end(&self) -> Result<MutexGuard<'_, End>> {
        let mut end = self.locked();
        let End { cursor, map, .. } = &mut *end;
        let mut needs_chunk = false;
        // A killed process may have left a record without all of its bytes: the next one goes over it.
        self.scan(map, cursor, true, &mut |record, _| {
            needs_chunk |= !matches!(record, Record::WithBytes(_) | Record::End(_));
        })?;
        cursor.needs_chunk |= needs_chunk;
        Ok(end)
    }

    fn locked(&self) -> MutexGuard<'_, End> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn length(&self) -> Result<u64> {
        file::length(&self.file).map_err(|e| Error::io(format!("looking at {}", self.path.display()), e))
    }

    /// Makes the file as long as needed; `known` is how long it is, as far as this handle knows.
    fn grow(&self, known: &mut u64, needed: u64, chunk_size: u32) -> Result<()> {
        if needed <= *known {
            return Ok(());
        }
        *known = self.length()?;
        if needed <= *known {
            return Ok(());
        }
        let step = (u64::from(chunk_size) / 4).clamp(SHORTEST_STEP, LONGEST_STEP);
        let zeros = vec![0; (needed.next_multiple_of(step) - *known) as usize];
        self.write_at(*known, &zeros)?;
        *known += zeros.len() as u64;
        Ok(())
    }

    fn write(&self, disk: &Disk, at: u64, bytes: &[u8]) -> Result<()> {
        self.write_at(at, bytes)?;
        disk.note(Step::Stored, &self.path);
        Ok(())
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> Result<()> {
        let written = self.file.write_all_at(bytes, at);
        written.map_err(|e| Error::io(format!("writing {}", self.path.display()), e))
    }

    /// Waits until all records are on the disk.
    pub(crate) fn sync(&self, disk: &Disk) -> Result<()> {
        disk.sync(&self.file, &self.path)
    }

    /// Notes that the chunk starts over, to be called before its pointers change: else a killed process would bring consumed
    /// entries back. Nothing is synced: as long as nothing follows this record, the chunk is empty whatever its pointers
    /// are, and before anything durable follows they are synced.
    pub(crate) fn start_over(&self, disk: &Disk, durable: bool) -> Result<()> {
        let mut end = self.end()?;
        let cursor = &mut end.cursor;
        if !durable && cursor.at >= LONG {
            // In one write, which no kill can split: without syncs `append` does not shorten it.
            let header = Header {
                seed: new_seed()?,
                start: FIRST_ENTRY,
                state: State::Open,
            };
            let record = Record::StartOver.encode(header.seed);
            self.write(disk, 0, &[&header.encode()[..], &record].concat())?;
            *cursor = Cursor::at_start(header.seed);
        } else {
            self.write(disk, cursor.at, &Record::StartOver.encode(cursor.seed))?;
        }
        cursor.at += RECORD as u64;
        cursor.needs_chunk = true;
        Ok(())
    }

    /// Begins a long log anew when the chunk begins anew, with its empty pointers on the disk.
    fn shorten(&self, disk: &Disk, end: &mut Cursor, offset: u32) -> Result<()> {
        if end.at < LONG || offset != FIRST_ENTRY {
            return Ok(());
        }
        let header = Header {
            seed: new_seed()?,
            start: FIRST_ENTRY,
            state: State::Open,
        };
        self.write(disk, 0, &header.encode())?;
        // Else a cut could leave the old seed with the records of the new one over some of its own.
        self.sync(disk)?;
        *end = Cursor::at_start(header.seed);
        Ok(())
    }

    /// Notes where the entries of a chunk end that has got a successor (or, after a repair, has none any more).
    pub(crate) fn finish(&self, disk: &Disk, tail: u32, next: Option<ChunkId>) -> Result<()> {
        let mut end = self.end()?;
        let cursor = &mut end.cursor;
        let next = next.map_or(0, ChunkId::reference);
        let record = Record::End(records::End { tail, next });
        self.write(disk, cursor.at, &record.encode(cursor.seed))?;
        cursor.at += RECORD as u64;
        Ok(())
    }

    /// Notes how the chunk is left by the last handle; all of the chunk is on the disk.
    pub(crate) fn close(&self, disk: &Disk, chunk: &Chunk) -> Result<()> {
        match self.header()?.state {
            State::Open => self.set_state(disk, State::Closed(seen(chunk)?)),
            State::Closed(_) | State::Damaged(_) => Ok(()),
        }
    }

    /// Everything that the log says.
    pub(crate) fn read(&self) -> Result<Table> {
        let mut table = Table::new(self.header()?.start);
        self.follow(&mut Cursor::default(), &mut table)?;
        Ok(table)
    }

    /// Reads what was appended behind `cursor` into `table`. A log that has begun anew is read from its start.
    pub(crate) fn follow(&self, cursor: &mut Cursor, table: &mut Table) -> Result<()> {
        let map = &mut self.locked().map;
        if !self.is_within(map.as_ref(), *cursor)? {
            (*cursor, *table) = (Cursor::default(), Table::new(self.header()?.start));
        }
        self.scan(map, cursor, false, &mut |record, at| table.add(record, at))
    }
}

fn seen(chunk: &Chunk) -> Result<Seen> {
    Ok(Seen {
        pointers: chunk.raw_pointers()?,
        next: chunk.next()?.map_or(0, ChunkId::reference),
        written: chunk.written()?,
    })
}

/// When a file was last written to, in nanoseconds.
pub(crate) fn written(file: &File) -> std::io::Result<u64> {
    let meta = file.metadata()?;
    Ok((meta.mtime() as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(meta.mtime_nsec() as u64))
}

/// The checksums of framed entries that begin at `offset`.
fn checks_of(offset: u32, framed: &[u8]) -> impl Iterator<Item = Check> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let (length, rest) = framed.get(at..)?.split_first_chunk::<2>()?;
        let bytes = rest.get(..usize::from(u16::from_be_bytes(*length)))?;
        let check = Check::of(offset + at as u32, bytes);
        at += LENGTH_BYTES as usize + bytes.len();
        Some(check)
    })
}

/// The checksums of framed entries that begin at `offset`, as records.
fn record_all(offset: u32, framed: &[u8], out: &mut Vec<u8>, seed: u32) {
    for check in checks_of(offset, framed) {
        out.extend_from_slice(&Record::Checksum(check).encode(seed));
    }
}

fn new_seed() -> Result<u32> {
    let [a, b, c, d, ..] = crate::os::clock::random_id()?;
    Ok(u32::from_le_bytes([a, b, c, d]))
}

/// The name of a file that will replace `path`.
pub(crate) fn fresh_name(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    PathBuf::from(name)
}
