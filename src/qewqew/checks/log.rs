//! The records of a checksum file, read and appended: by system calls, or through a mapping where nobody waits for the disk.
//!
//! A mapping shows what all processes have written, however they did, and a record stored through it stays when its writer
//! is killed: the same bytes for a tenth of the time. It covers the file as it was when it was mapped; what lies behind is
//! read by system calls until the file has grown by a good piece.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::MutexGuard;

use super::{Checks, SHORTEST_STEP};
use crate::qewqew::disk::{Disk, Step};
use crate::qewqew::records::{Check, HEADER, RECORD, Record, SEED};
use crate::shared::region::Region;
use crate::shared::sync::Ordering;
use crate::{Error, Result};

/// Bytes that are read at a time: first few, for the one record that is new, then many.
const WINDOWS: [usize; 2] = [4 << 10, LONGEST_WINDOW];
pub(super) const LONGEST_WINDOW: usize = 64 << 10;

/// A place in the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    pub(super) seed: u32,
    pub(super) at: u64,
    /// Whether there are entries on the way that are in the chunk alone, or pointers that are: no sync of the log is enough
    /// for what comes behind them.
    pub(super) needs_chunk: bool,
}

impl Cursor {
    pub(super) fn at_start(seed: u32) -> Self {
        Cursor {
            seed,
            at: HEADER as u64,
            needs_chunk: false,
        }
    }
}

/// Where the next record goes, as far as this handle knows, and what it has mapped.
#[derive(Debug, Default)]
pub(super) struct End {
    pub(super) cursor: Cursor,
    pub(super) map: Option<Region>,
    /// The file is at least so long. Asking each time is not free: the time of the next write would be noted so precisely that
    /// its sync has to write the inode, too, which made it a third slower here.
    pub(super) length: u64,
}

/// Appends the checksums of entries that are about to be stored.
pub(crate) struct Appender<'a> {
    checks: &'a Checks,
    end: MutexGuard<'a, End>,
}

impl Appender<'_> {
    /// Adds a checksum to the log; `chunk_size` is for its growth.
    #[inline]
    pub(crate) fn add(&mut self, disk: &Disk, check: Check, chunk_size: u32) -> Result<()> {
        let End { cursor, map, length } = &mut *self.end;
        let behind = cursor.at + RECORD as u64;
        if !covers(map.as_ref(), behind) {
            self.checks.grow(length, behind, chunk_size)?;
            *map = Some(self.checks.mapping()?);
        }
        let map = map.as_ref().filter(|map| covers(Some(map), behind));
        let record = Record::Checksum(check).encode(cursor.seed);
        match map {
            Some(map) => {
                map.copy_in(cursor.at as usize, &record);
                disk.note(Step::Stored, &self.checks.path);
            }
            // Cut short by another program.
            None => self.checks.write(disk, cursor.at, &record)?,
        }
        (cursor.at, cursor.needs_chunk) = (behind, true);
        Ok(())
    }
}

impl Checks {
    /// For checksums that go through a mapping. The append lock makes this the only writer.
    pub(crate) fn appender(&self) -> Result<Appender<'_>> {
        Ok(Appender {
            checks: self,
            end: self.end()?,
        })
    }

    /// Moves `cursor` to the end of the log and hands over each record on the way, with the place of its trailing bytes.
    pub(super) fn scan(
        &self,
        map: &mut Option<Region>,
        cursor: &mut Cursor,
        verify: bool,
        found: &mut dyn FnMut(Record, u64),
    ) -> Result<()> {
        if !self.is_within(map.as_ref(), *cursor)? {
            *cursor = Cursor::at_start(self.header()?.seed);
        }
        while let Some(bytes) = self.mapped_record(map, cursor.at)? {
            let Some(record) = Record::decode(cursor.seed, &bytes) else {
                return Ok(());
            };
            if record.trailing() > 0 {
                break;
            }
            cursor.at += RECORD as u64;
            found(record, cursor.at);
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

    /// Whether the log still is the one that the cursor is in.
    #[inline]
    pub(super) fn is_within(&self, map: Option<&Region>, cursor: Cursor) -> Result<bool> {
        let seed = match map.filter(|map| map.length() >= HEADER) {
            Some(map) => u32::from_le(map.u32(SEED).load(Ordering::Relaxed)),
            None => self.header()?.seed,
        };
        Ok(cursor.at >= HEADER as u64 && cursor.seed == seed)
    }

    /// The bytes at a place where a record may be; `None` when they have to be read from the file.
    #[inline]
    fn mapped_record(&self, map: &mut Option<Region>, at: u64) -> Result<Option<[u8; RECORD]>> {
        if !covers(map.as_ref(), at + RECORD as u64) && !self.map_more(map)? {
            return Ok(None);
        }
        Ok(map
            .as_ref()
            .filter(|map| covers(Some(map), at + RECORD as u64))
            .map(|map| {
                let mut bytes = [0; RECORD];
                map.copy_out(at as usize, &mut bytes);
                bytes
            }))
    }

    /// Maps the file again if it has grown by so much that it pays.
    #[cold]
    fn map_more(&self, map: &mut Option<Region>) -> Result<bool> {
        let covered = map.as_ref().map_or(0, Region::length) as u64;
        if !self.is_mapped || self.length()? < covered + SHORTEST_STEP {
            return Ok(false);
        }
        *map = Some(self.mapping()?);
        Ok(true)
    }

    fn mapping(&self) -> Result<Region> {
        let file = self.file.try_clone();
        let file = file.map_err(|e| Error::io(format!("opening {}", self.path.display()), e))?;
        Region::map(file.into(), Some(&self.path))
    }
}

#[inline]
fn covers(map: Option<&Region>, end: u64) -> bool {
    map.is_some_and(|map| end <= map.length() as u64)
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
