//! Putting a chunk and its checksums in order when the queue is opened: after a kill or a power cut, and after another program.
//! Nobody else has the queue open meanwhile.

use std::os::unix::fs::FileExt;

use super::log::{Cursor, LONGEST_WINDOW};
use super::{Checks, seen};
use crate::os::file;
use crate::qewqew::chunk::Chunk;
use crate::qewqew::disk::Disk;
use crate::qewqew::layout::{FIRST_ENTRY, LENGTH_BYTES};
use crate::qewqew::records::{Check, Cover, Record, Seen, State, Table};
use crate::{Error, Result};

impl Checks {
    /// The end of a session that was not closed, by a kill or a power cut: entries that are in the log and not in the chunk
    /// are written again. Nobody else has the queue open. Returns how many entries were written.
    pub(crate) fn replay(&self, disk: &Disk, chunk: &Chunk) -> Result<usize> {
        // What a killed process has written may be in memory alone, and the chunk must not be ahead of its log.
        self.sync(disk)?;
        let header = self.header()?;
        let mut table = Table::new(header.start);
        let mut cursor = Cursor::default();
        self.scan(&mut None, &mut cursor, true, &mut |record, at| table.add(record, at))?;
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
        let mut rest = vec![0; LONGEST_WINDOW];
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
        let is_open = self.header()?.state == State::Open;
        let ends = table
            .end
            .is_none_or(|end| end.tail == pointers.tail && end.next == then.next);
        if is_open && ends && has_ours && entries.iter().all(is_ours) {
            return Ok(());
        }
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
                let cover = table.find(check.offset);
                // What such a program wrote an earlier time has no checksum either.
                let theirs = started_over || check.offset >= old.tail || cover == Cover::Unchecked;
                let record = match cover {
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
