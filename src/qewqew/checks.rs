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

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::chunk::Chunk;
use super::disk::{Disk, Step};
use super::layout::{ChunkId, FIRST_ENTRY, LENGTH_BYTES};
use super::records::{Check, Cover, End, HEADER, Header, RECORD, Record, Seen, State, Table, VERSION};
use crate::os::file::{self, Unlinked};
use crate::{Error, Result};

/// A log longer than this begins anew when its chunk starts over.
const LONG: u64 = 1 << 20;
/// The log grows by steps of written zeros where syncs matter: within a step a sync has no length and no blocks to record.
const LONGEST_STEP: u64 = 256 << 10;
const SHORTEST_STEP: u64 = 4 << 10;
/// Bytes that are read at a time: first few, for the one record that is new, then many.
const WINDOWS: [usize; 2] = [4 << 10, 64 << 10];

/// The checksums of one chunk.
#[derive(Debug)]
pub(crate) struct Checks {
    path: PathBuf,
    file: File,
    /// Where the next record goes, as far as this handle knows.
    end: Mutex<Cursor>,
}

/// A place in the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    seed: u32,
    at: u64,
    /// Whether there are entries on the way that are in the chunk alone, or pointers that are: no sync of the log is enough
    /// for what comes behind them.
    needs_chunk: bool,
}

impl Checks {
    /// Creates the file for a chunk whose entries from `start` on are covered, with the records of `framed` entries there,
    /// in place of any file of this name.
    pub(crate) fn create(disk: &Disk, path: &Path, start: u32, framed: &[u8], durable: bool) -> Result<Self> {
        let records = |out: &mut Vec<u8>, seed: u32| {
            for check in checks_of(start, framed) {
                out.extend_from_slice(&Record::Checksum(check).encode(seed));
            }
        };
        Checks::replace(disk, path, start, records, durable)
    }

    /// Puts a complete file with these records in the place of any file of this name, in one step.
    fn replace(
        disk: &Disk,
        path: &Path,
        start: u32,
        records: impl FnOnce(&mut Vec<u8>, u32),
        durable: bool,
    ) -> Result<Self> {
        let doing = |e| Error::io(format!("creating {}", path.display()), e);
        let seed = new_seed()?;
        let state = State::Open;
        let mut bytes = Header { seed, start, state }.encode().to_vec();
        records(&mut bytes, seed);
        // Another name on the way only where one has to go: a kill leaves it behind.
        let replaces = path.symlink_metadata().is_ok();
        let name = if replaces { fresh_name(path) } else { path.to_owned() };
        if replaces {
            disk.unlink(&name)?;
        }
        let unlinked = Unlinked::create(&name, bytes.len() as u64)?;
        let raw: File = unlinked.as_fd().try_clone_to_owned().map_err(doing)?.into();
        raw.write_all_at(&bytes, 0).map_err(doing)?;
        match replaces {
            true => disk.replace(unlinked, &name, path, durable)?,
            false => disk.publish(unlinked, path, durable)?,
        }
        let checks = Checks::open(path)?.ok_or_else(|| Error::no_file(path))?;
        *checks.end.lock().unwrap_or_else(PoisonError::into_inner) = Cursor {
            seed,
            at: bytes.len() as u64,
            needs_chunk: !durable,
        };
        Ok(checks)
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
            end: Mutex::default(),
        };
        checks.header()?;
        Ok(Some(checks))
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
        if durable && end.needs_chunk {
            chunk.sync(disk)?;
            end.needs_chunk = false;
            self.shorten(disk, &mut end, offset)?;
        }
        let mut out = Vec::with_capacity(framed.len() * 2 + RECORD);
        for check in checks_of(offset, framed) {
            if durable {
                out.extend_from_slice(&Record::WithBytes(check).encode(end.seed));
                let start = (check.offset - offset + LENGTH_BYTES) as usize;
                out.extend_from_slice(&framed[start..start + usize::from(check.length)]);
            } else {
                out.extend_from_slice(&Record::Checksum(check).encode(end.seed));
            }
        }
        if durable {
            self.grow(end.at + out.len() as u64, chunk.length())?;
        }
        self.write(disk, end.at, &out)?;
        if durable {
            self.sync(disk)?;
        }
        end.at += out.len() as u64;
        end.needs_chunk |= !durable;
        Ok(())
    }

    /// Where the next record goes: behind what others have appended since we last looked.
    fn end(&self) -> Result<MutexGuard<'_, Cursor>> {
        let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        let mut needs_chunk = false;
        // A killed process may have left a record without all of its bytes: the next one goes over it.
        self.scan(&mut end, true, &mut |record, _| {
            needs_chunk |= !matches!(record, Record::WithBytes(_) | Record::End(_));
        })?;
        end.needs_chunk |= needs_chunk;
        Ok(end)
    }

    fn grow(&self, needed: u64, chunk_size: u32) -> Result<()> {
        let doing = |e| Error::io(format!("extending {}", self.path.display()), e);
        let length = self.file.metadata().map_err(doing)?.len();
        if needed <= length {
            return Ok(());
        }
        let step = (u64::from(chunk_size) / 4).clamp(SHORTEST_STEP, LONGEST_STEP);
        let zeros = vec![0; (needed.next_multiple_of(step) - length) as usize];
        self.file.write_all_at(&zeros, length).map_err(doing)
    }

    fn write(&self, disk: &Disk, at: u64, bytes: &[u8]) -> Result<()> {
        self.file
            .write_all_at(bytes, at)
            .map_err(|e| Error::io(format!("writing {}", self.path.display()), e))?;
        disk.note(Step::Stored, &self.path);
        Ok(())
    }

    fn sync(&self, disk: &Disk) -> Result<()> {
        disk.sync(&self.file, &self.path)
    }

    /// Notes that the chunk starts over, to be called before its pointers change: else a killed process would bring consumed
    /// entries back. Nothing is synced: as long as nothing follows this record, the chunk is empty whatever its pointers
    /// are, and before anything durable follows they are synced.
    pub(crate) fn start_over(&self, disk: &Disk) -> Result<()> {
        let mut end = self.end()?;
        self.write(disk, end.at, &Record::StartOver.encode(end.seed))?;
        end.at += RECORD as u64;
        end.needs_chunk = true;
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
        *end = Cursor {
            seed: header.seed,
            at: HEADER as u64,
            needs_chunk: false,
        };
        Ok(())
    }

    /// Notes where the entries of a chunk end that has got a successor (or, after a repair, has none any more).
    pub(crate) fn finish(&self, disk: &Disk, tail: u32, next: Option<ChunkId>) -> Result<()> {
        let mut end = self.end()?;
        let next = next.map_or(0, ChunkId::reference);
        self.write(disk, end.at, &Record::End(End { tail, next }).encode(end.seed))?;
        end.at += RECORD as u64;
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
        self.scan(&mut Cursor::default(), false, &mut |record, at| table.add(record, at))?;
        Ok(table)
    }

    /// Reads what was appended behind `cursor` into `table`. A log that has begun anew is read from its start.
    pub(crate) fn follow(&self, cursor: &mut Cursor, table: &mut Table) -> Result<()> {
        let header = self.header()?;
        if header.seed != cursor.seed || cursor.at == 0 {
            (*cursor, *table) = (Cursor::default(), Table::new(header.start));
        }
        self.scan(cursor, false, &mut |record, at| table.add(record, at))
    }

    /// Moves `cursor` to the end of the log and hands over each record on the way, with the place of its trailing bytes.
    fn scan(&self, cursor: &mut Cursor, verify: bool, found: &mut dyn FnMut(Record, u64)) -> Result<()> {
        let header = self.header()?;
        if cursor.seed != header.seed || cursor.at < HEADER as u64 {
            *cursor = Cursor {
                seed: header.seed,
                at: HEADER as u64,
                needs_chunk: false,
            };
        }
        let mut window = Window::default();
        while let Some(bytes) = window.view(&self.file, cursor.at, RECORD)? {
            let bytes = bytes.try_into().expect("as long as a record");
            let Some(record) = Record::decode(cursor.seed, bytes) else {
                break;
            };
            let place = cursor.at + RECORD as u64;
            if let Record::WithBytes(check) = record {
                // Of what others have just written only the record need be looked at.
                let length = usize::from(check.length);
                let Some(bytes) = window.view(&self.file, place, length)? else {
                    break;
                };
                if verify && Check::of(check.offset, bytes) != check {
                    break;
                }
            }
            found(record, place);
            cursor.at = place + record.trailing() as u64;
        }
        Ok(())
    }

    /// The end of a session that was not closed, by a kill or a power cut: entries that are in the log and not in the chunk
    /// are written again. Nobody else has the queue open. Returns how many entries were written.
    pub(crate) fn replay(&self, disk: &Disk, chunk: &Chunk) -> Result<usize> {
        let header = self.header()?;
        let mut table = Table::new(header.start);
        let mut cursor = Cursor::default();
        self.scan(&mut cursor, true, &mut |record, at| table.add(record, at))?;
        if table.is_fresh {
            // Everything was consumed; whatever pointers and entries are there are older than that.
            if !chunk.raw_pointers()?.is_exhausted() {
                chunk.write_empty(disk)?;
                chunk.sync(disk)?;
            }
            return self.clean_up(disk, cursor, &table, FIRST_ENTRY).map(|()| 0);
        }
        let Some(pointers) = chunk.pointers()? else {
            return Ok(0);
        };
        let (mut end, mut written) = (pointers.tail, 0);
        for known in table.iter() {
            let Some(check) = known.check else { continue };
            let is_behind = known.to > pointers.tail;
            if check.offset < pointers.head || known.to > chunk.length() || (is_behind && check.offset > end) {
                continue;
            }
            let mut there = vec![0; usize::from(check.length) + LENGTH_BYTES as usize];
            chunk.read(check.offset, &mut there)?;
            let is_there = there[..2] == check.length.to_be_bytes() && Check::of(check.offset, &there[2..]) == check;
            if let (Some(place), false) = (known.bytes, is_there) {
                there[..2].copy_from_slice(&check.length.to_be_bytes());
                self.file
                    .read_exact_at(&mut there[2..], place)
                    .map_err(|e| Error::io(format!("reading {}", self.path.display()), e))?;
                chunk.write(disk, check.offset, &there)?;
                written += 1;
            } else if !is_there {
                // Not in the log: what lies behind the tail was never finished, the rest is for the reader to report.
                continue;
            }
            end = end.max(known.to);
        }
        if written > 0 || end != pointers.tail {
            chunk.sync(disk)?;
            chunk.write_tail(disk, end)?;
            chunk.sync(disk)?;
        }
        self.clean_up(disk, cursor, &table, end)?;
        Ok(written)
    }

    /// After a replay: no record of an entry that is not there, and nothing behind the end of the log that a later record
    /// could make part of it.
    fn clean_up(&self, disk: &Disk, end: Cursor, table: &Table, tail: u32) -> Result<()> {
        let doing = |e| Error::io(format!("reading {}", self.path.display()), e);
        let mut rest = vec![0; WINDOWS[1]];
        let mut at = end.at;
        let is_clean = loop {
            match self.file.read_at(&mut rest, at).map_err(doing)? {
                0 => break true,
                n if rest[..n].iter().all(|byte| *byte == 0) => at += n as u64,
                _ => break false,
            }
        };
        if is_clean && table.iter().all(|known| known.to <= tail) {
            return Ok(());
        }
        let known: Vec<_> = table.iter().filter(|known| known.to <= tail).copied().collect();
        let start = if table.is_fresh {
            FIRST_ENTRY
        } else {
            self.header()?.start
        };
        self.rewrite(disk, start, |out, seed| {
            for known in known {
                let record = match known.check {
                    Some(check) => Record::Checksum(check),
                    None => Record::Unchecked {
                        from: known.from,
                        to: known.to,
                    },
                };
                out.extend_from_slice(&record.encode(seed));
            }
            out.extend(table.end.into_iter().flat_map(|end| Record::End(end).encode(seed)));
        })
    }

    /// Puts other records in the place of these; the chunk is on the disk.
    fn rewrite(&self, disk: &Disk, start: u32, records: impl FnOnce(&mut Vec<u8>, u32)) -> Result<()> {
        Checks::replace(disk, &self.path, start, records, true).map(drop)
    }

    /// Compares a closed chunk with what it was, and opens it. True when another program has worked on it.
    pub(crate) fn reopen(&self, disk: &Disk, chunk: &Chunk) -> Result<bool> {
        let State::Closed(then) = self.header()?.state else {
            return Ok(false);
        };
        let now = seen(chunk)?;
        let is_foreign = now != then
            && (now.written != then.written
                || !file::keeps_times(&self.file).map_err(|e| Error::io("asking for the file system", e))?);
        if now == then {
            self.set_state(disk, State::Open)?;
        } else if is_foreign {
            self.reconcile(disk, chunk, then)?;
        } else {
            self.set_state(disk, State::Damaged(then))?;
        }
        // Before the chunk changes: a cut must not leave it different from what it was when it was closed.
        self.sync(disk)?;
        Ok(is_foreign)
    }

    /// Another program has written to the chunk: its entries are taken without checksums, ours must be what they were.
    pub(crate) fn reconcile(&self, disk: &Disk, chunk: &Chunk, then: Seen) -> Result<()> {
        let pointers = chunk.raw_pointers()?;
        if !pointers.are_within(chunk.length()) {
            return self.set_state(disk, State::Damaged(then));
        }
        let table = self.read()?;
        let (mut entries, mut at) = (Vec::new(), pointers.head);
        while at < pointers.tail {
            let Ok(length) = chunk.entry_length(at, pointers.tail) else {
                break;
            };
            let mut bytes = vec![0; length as usize];
            chunk.read(at + LENGTH_BYTES, &mut bytes)?;
            entries.push(Check::of(at, &bytes));
            at += LENGTH_BYTES + length;
        }
        let is_ours = |check: &Check| table.find(check.offset) == Cover::Checked(*check);
        let old = then.pointers;
        let has_ours = entries.iter().any(is_ours);
        let overlap = entries.iter().any(|check| check.offset < old.tail) || pointers.tail < old.tail;
        let started_over = overlap && !has_ours;
        if !started_over && (pointers.tail < old.tail || pointers.head < old.head) {
            return self.set_state(disk, State::Damaged(then));
        }
        let start = if started_over {
            FIRST_ENTRY
        } else {
            self.header()?.start
        };
        self.rewrite(disk, start, |out, seed| {
            for check in entries {
                let theirs = started_over || check.offset >= old.tail;
                let record = match table.find(check.offset) {
                    _ if is_ours(&check) => Record::Checksum(check),
                    Cover::Checked(ours) if !theirs => Record::Checksum(ours),
                    _ if theirs => Record::Unchecked {
                        from: check.offset,
                        to: check.end(),
                    },
                    _ => continue,
                };
                out.extend_from_slice(&record.encode(seed));
            }
        })
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

/// Reads a file from front to back with few system calls.
#[derive(Default)]
struct Window {
    start: u64,
    bytes: Vec<u8>,
    reads: usize,
}

impl Window {
    /// Bytes of the file; `None` when it ends before.
    fn view(&mut self, file: &File, at: u64, length: usize) -> Result<Option<&[u8]>> {
        let have = at
            .checked_sub(self.start)
            .is_some_and(|skip| skip + length as u64 <= self.bytes.len() as u64);
        if !have {
            let size = WINDOWS[self.reads.min(WINDOWS.len() - 1)].max(length);
            self.reads += 1;
            self.bytes.resize(size, 0);
            self.start = at;
            let mut filled = 0;
            while filled < size {
                match file.read_at(&mut self.bytes[filled..], at + filled as u64) {
                    Ok(0) => break,
                    Ok(n) => filled += n,
                    Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(Error::io("reading checksums", e)),
                }
            }
            self.bytes.truncate(filled);
        }
        let skip = (at - self.start) as usize;
        Ok(self.bytes.get(skip..skip + length))
    }
}
