//! Appending: finding the last chunk, filling it, going on to a new one.
//!
//! Everything here runs under the append lock (and the handle's mutex). Only appenders move a tail, set a reference to a next
//! chunk or start an exhausted chunk over; the consumer only moves heads.

mod leftover;
mod publish;

use std::sync::Arc;

use super::checks::{Checks, Cursor};
use super::chunk::Chunk;
use super::layout::{self, ChunkId, FIRST_ENTRY, IDS, LENGTH_BYTES, MAX_CHUNKS, Pointers, entry_bytes};
use super::records::Check;
use super::side::{Side, Staged};
use super::store::Store;
use crate::os::file::Unlinked;
use crate::shared::sync::Ordering;
use crate::{Error, Result};

#[derive(Debug, Default)]
pub(crate) struct Writer {
    last: Option<Last>,
    epoch: u32,
    buffer: Vec<u8>,
}

#[derive(Clone, Debug)]
struct Last {
    chunk: Arc<Chunk>,
    checks: Option<Arc<Checks>>,
}

/// Why staging stopped before the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It did not: all messages are staged.
    Done,
    /// The stage is full: commit, then go on.
    StageFull,
    /// The chunk is full, too short, or there is none: commit, then make it longer or start a new one.
    ChunkFull,
}

impl Writer {
    /// The last chunk of the chain; `None` when there is no chunk at all.
    fn locate(&mut self, store: &Store) -> Result<Option<&Last>> {
        self.locate_with(store, 0)
    }

    /// The same, ready to be appended to: as long as the chunks of this handle. Nothing is staged, or the caller holds the
    /// commit lock, too: a commit may be writing where the notes are.
    fn locate_whole(&mut self, store: &Store) -> Result<Option<&Last>> {
        self.locate_with(store, store.chunk_size)
    }

    fn locate_with(&mut self, store: &Store, length: u32) -> Result<Option<&Last>> {
        store.sync_past()?;
        let epoch = store.epoch();
        if self.epoch != epoch {
            (self.last, self.epoch) = (None, epoch);
        }
        let known_last = match &self.last {
            // A handle with larger chunks may have made it longer, and written there.
            Some(last) => {
                let is_last = last.chunk.next()?.is_none() && last.chunk.length() >= length;
                is_last && last.chunk.pointers()?.is_some()
            }
            None => false,
        };
        if !known_last {
            self.last = self.walk(store, length)?;
        }
        Ok(self.last.as_ref())
    }

    #[cold]
    fn walk(&mut self, store: &Store, length: u32) -> Result<Option<Last>> {
        let mut missed = None;
        let mut start = self.last.take().map(|last| last.chunk.id());
        loop {
            let first = store.head.first()?;
            let Some(mut id) = start.take().or(first) else {
                return Ok(None);
            };
            let (mut steps, mut passed) = (0, Vec::new());
            let gone = loop {
                if store.is_mixed() {
                    passed.push(id);
                }
                match store.glance(id).and_then(|chunk| chunk.next()) {
                    Ok(None) => match self.open_last(store, id, length) {
                        Err(Error::NotFound(_)) => break id,
                        opened => {
                            if !passed.is_empty() {
                                store.sync_chunks(&passed)?;
                            }
                            return opened.map(Some);
                        }
                    },
                    Ok(Some(next)) => id = next,
                    Err(Error::NotFound(_)) => break id,
                    Err(error) => return Err(error),
                }
                steps += 1;
                if steps > MAX_CHUNKS {
                    return Err(Error::Corrupt(format!(
                        "the chunks of {} refer to each other in a circle",
                        store.shown()
                    )));
                }
            };
            // The consumer has removed it while we walked, and moved the head on; or it is missing.
            if missed == Some((first, gone)) {
                return Err(store.missing(gone));
            }
            missed = Some((first, gone));
        }
    }

    fn open_last(&mut self, store: &Store, id: ChunkId, length: u32) -> Result<Last> {
        let mut chunk = store.open_chunk(id)?;
        if chunk.length() < length {
            // They would be somewhere in the middle.
            chunk.settle_notes(&store.disk)?;
        }
        if chunk.extend(length)? {
            chunk = store.open_chunk(id)?;
        }
        let path = store.names.checks(id);
        let checks = match Checks::open(&path)? {
            Some(checks) => {
                checks.refuse_damaged(&chunk)?;
                Some(checks)
            }
            None if store.crc => {
                let staged = store.side.as_ref().and_then(Side::staged_end);
                let start = chunk.raw_pointers()?.tail.max(staged.unwrap_or(0));
                let checks = Checks::create(&store.disk, &path, start, &[], store.sync.is_durable())?;
                // Whoever has the chunk open appends checksums, too, from here on.
                if let Some(side) = &store.side {
                    self.epoch = side.epoch().fetch_add(1, Ordering::AcqRel).wrapping_add(1);
                }
                Some(checks)
            }
            None => None,
        };
        Ok(Last {
            chunk,
            checks: checks.map(|checks| Arc::new(checks.mapped_for(store.access))),
        })
    }

    /// Stages messages for the next commit. Returns how many, and why not all.
    pub(crate) fn stage(&mut self, store: &Store, side: &Side, messages: &[&[u8]]) -> Result<(usize, Stop)> {
        let limit = store.chunk_size;
        let mut buffer = std::mem::take(&mut self.buffer);
        // One of a handle with smaller chunks is made longer under both locks.
        let Some(last) = self.locate(store)?.filter(|last| last.chunk.length() >= limit) else {
            return Ok((0, Stop::ChunkFull));
        };
        let mut end = match side.staged_end() {
            Some(end) => end,
            None => last.ready(store)?.tail,
        };
        let (mut count, mut stop) = (0, Stop::Done);
        for message in messages {
            let bytes = entry_bytes(message.len());
            if u64::from(end) + bytes > limit.into() {
                stop = Stop::ChunkFull;
                break;
            }
            buffer.clear();
            layout::frame(message, &mut buffer);
            if !side.stage(last.chunk.id(), end, &buffer) {
                stop = Stop::StageFull;
                break;
            }
            end += bytes as u32;
            count += 1;
        }
        self.buffer = buffer;
        Ok((count, stop))
    }

    /// Whether a message fits into the last chunk as it is now, made as long as the chunks of this handle.
    pub(crate) fn has_room(&mut self, store: &Store, length: usize) -> Result<bool> {
        let limit = store.chunk_size;
        Ok(match self.locate_whole(store)? {
            Some(last) => u64::from(last.ready(store)?.tail) + entry_bytes(length) <= limit.into(),
            None => false,
        })
    }

    /// [`Error::Full`] when there are not enough chunk ids for all of the messages: then none of them is appended.
    pub(crate) fn check_ids(&mut self, store: &Store, messages: &[&[u8]]) -> Result<()> {
        let last = self.locate(store)?;
        let mut end = match last {
            Some(last) => {
                let staged = store.side.as_ref().and_then(Side::staged_end);
                staged.unwrap_or(last.chunk.raw_pointers()?.tail).into()
            }
            None => u64::from(store.chunk_size),
        };
        let mut needed = 0;
        for message in messages {
            let bytes = entry_bytes(message.len());
            end += bytes;
            if end > store.chunk_size.into() {
                (needed, end) = (needed + 1, u64::from(FIRST_ENTRY) + bytes);
            }
        }
        let used = match (needed, last) {
            (0, _) | (_, None) => 0,
            (_, Some(last)) => {
                let id = last.chunk.id();
                store.head.first()?.map_or(0, |first| first.steps_to(id)) + 1
            }
        };
        if needed > IDS - used {
            return Err(Error::Full(format!(
                "not enough chunk ids of {} are free",
                store.shown()
            )));
        }
        Ok(())
    }

    /// What a commit needs to write staged bytes; not under the append lock, so that others go on staging.
    pub(crate) fn target(&mut self, store: &Store, staged: &Staged) -> Result<Target> {
        let is_behind = |last: &Last| staged.end() > last.chunk.length().into();
        // Staged by a handle with larger chunks, which has made the file longer since it was opened here.
        if self.locate(store)?.is_some_and(is_behind) {
            self.last = self.walk(store, 0)?;
        }
        match &self.last {
            Some(last) if last.chunk.id() == staged.chunk => Ok(Target(last.clone())),
            _ => Err(Error::Corrupt(format!(
                "messages wait to be written to chunk {}, which is not the last one of {}",
                staged.chunk,
                store.shown()
            ))),
        }
    }

    /// Appends messages without staging them; all of them. `durable`: with their syncs.
    pub(crate) fn append(&mut self, store: &Store, messages: &[&[u8]], durable: bool) -> Result<()> {
        let mut rest = messages;
        while !rest.is_empty() {
            let done = match self.locate_whole(store)? {
                Some(last) => last.fill(store, rest, durable)?,
                None => 0,
            };
            rest = &rest[done..];
            if !rest.is_empty() {
                let created = self.go_on(store, rest)?;
                rest = &rest[created..];
            }
        }
        Ok(())
    }

    /// Starts a new chunk that begins with as many of the messages as fit, and links it to the chain.
    pub(crate) fn go_on(&mut self, store: &Store, messages: &[&[u8]]) -> Result<usize> {
        let previous = self.locate(store)?.cloned();
        let id = previous.as_ref().map_or(ChunkId::FIRST, |last| last.chunk.id().next());
        let mut framed = Vec::new();
        let mut count = 0;
        for message in messages {
            if u64::from(FIRST_ENTRY) + framed.len() as u64 + entry_bytes(message.len()) > store.chunk_size.into() {
                break;
            }
            layout::frame(message, &mut framed);
            count += 1;
        }
        let path = store.names.chunk(id);
        if path.symlink_metadata().is_ok() {
            self.settle_leftover(store, previous.as_ref(), id)?;
            return Ok(0);
        }
        // Its checksums first, so that a chunk that is there has them.
        let checks = self.prepare_checks(store, id, &framed)?;
        let chunk = Chunk::prepare(&path, id, store.chunk_size, &framed, store.access)?;
        let (before, end) = checks.unzip();
        let chunk = chunk.publish(&store.disk, before)?;
        let opened = end.map(|end| Checks::open_prepared(&store.names.checks(id), end));
        let checks = opened
            .transpose()?
            .map(|checks| Arc::new(checks.mapped_for(store.access)));
        self.link(store, previous.as_ref(), id)?;
        self.last = Some(Last {
            chunk: Arc::new(chunk),
            checks,
        });
        if let Some(previous) = &previous {
            previous.finish_checks(store, id)?;
        }
        Ok(count)
    }

    /// The checksums of a chunk that is about to be there with these entries, in place of any that are there.
    fn prepare_checks(&self, store: &Store, id: ChunkId, framed: &[u8]) -> Result<Option<(Unlinked, Cursor)>> {
        let path = store.names.checks(id);
        store.disk.unlink(&path)?;
        let prepared = store
            .crc
            .then(|| Checks::prepare(&path, framed, store.sync.is_durable()));
        prepared.transpose()
    }

    /// Makes a complete chunk part of the chain: the one store that decides whether its messages exist.
    fn link(&self, store: &Store, previous: Option<&Last>, id: ChunkId) -> Result<()> {
        let durable = store.sync.is_durable();
        let side = store.side.as_ref().filter(|_| durable);
        if let Some(side) = side {
            // Others see the reference at once, and whoever is killed here does not sync it.
            side.set_unsynced_past(true);
        }
        match previous {
            Some(last) => {
                // Entries that are only in the log must be in the chunk once it is not the last one. Others are on the disk;
                // the tail goes there with the reference.
                if let Some(checks) = last.checks.as_ref().filter(|_| durable) {
                    last.chunk.sync(&store.disk)?;
                    if store.is_mixed() {
                        checks.sync(&store.disk)?;
                    }
                } else if !durable {
                    // Of another handle, whose commits must not depend on what is not synced here.
                    last.chunk.settle_notes(&store.disk)?;
                }
                let set_next = || last.chunk.set_next(&store.disk, Some(id));
                set_next()?;
                if durable {
                    // The kernel takes for written what it failed to write.
                    let synced = last.chunk.sync(&store.disk);
                    synced.or_else(|error| set_next().and(Err(error)))?;
                    last.chunk.clear_notes(&store.disk)?;
                }
            }
            None => {
                store.with_positions(|positions| positions.move_first(&store.disk, None, Some(id), 0, durable))?;
                let set_first = || store.head.set(&store.disk, Some(id));
                set_first()?;
                if durable {
                    let synced = store.head.sync(&store.disk);
                    synced.or_else(|error| set_first().and(Err(error)))?;
                }
            }
        }
        if let Some(side) = side {
            side.set_unsynced_past(false);
        }
        Ok(())
    }

    /// Forgets cached chunks.
    pub(crate) fn forget(&mut self) {
        self.last = None;
    }

    /// Syncs the last chunk, if one is open here.
    pub(crate) fn sync_last(&self, store: &Store) -> Result<()> {
        match &self.last {
            Some(last) => last.chunk.sync(&store.disk),
            None => Ok(()),
        }
    }
}

impl Last {
    /// Notes where the entries of this chunk end, now that it has a successor.
    fn finish_checks(&self, store: &Store, next: ChunkId) -> Result<()> {
        if let Some(checks) = &self.checks {
            // The messages are enqueued; without this note one kind of damage goes unnoticed, and that is all.
            let _ = checks.finish(&store.disk, self.chunk.raw_pointers()?.tail, Some(next));
        }
        Ok(())
    }

    /// The pointers, after an exhausted chunk was started over as the original does it.
    #[inline]
    fn ready(&self, store: &Store) -> Result<Pointers> {
        let Some(pointers) = self.chunk.pointers()? else {
            return Err(Error::Corrupt(format!(
                "{} changes its length",
                self.chunk.path().display()
            )));
        };
        if pointers.is_exhausted() && pointers.tail != FIRST_ENTRY && !store.keeps_positions() {
            return self.start_over(store, pointers);
        }
        Ok(pointers)
    }

    /// Nothing is synced here, and nothing overwritten: `write` does both, in this order.
    fn start_over(&self, store: &Store, old: Pointers) -> Result<Pointers> {
        if let Some(checks) = &self.checks {
            checks.start_over(&store.disk, store.sync.is_durable())?;
        }
        self.chunk.clear_consumed_notes(&store.disk)?;
        // Nobody else changes the pointers of an exhausted chunk.
        self.chunk.swap_pointers(&store.disk, old, Pointers::EMPTY)?;
        Ok(Pointers::EMPTY)
    }

    /// Appends as many of the messages as fit, in order; says how many.
    fn fill(&self, store: &Store, messages: &[&[u8]], durable: bool) -> Result<usize> {
        let start = self.ready(store)?;
        let mut end = start.tail;
        let mut count = 0;
        if durable || self.checks.as_ref().is_some_and(|checks| !checks.is_mapped()) {
            let mut framed = Vec::new();
            for message in messages {
                let bytes = entry_bytes(message.len());
                if u64::from(end) + bytes > store.chunk_size.into() {
                    break;
                }
                layout::frame(message, &mut framed);
                end += bytes as u32;
                count += 1;
            }
            if count > 0 {
                self.write(store, start.tail, &framed, durable)?;
            }
            return Ok(count);
        }
        let mut log = self.checks.as_ref().map(|checks| checks.appender()).transpose()?;
        for message in messages {
            let bytes = entry_bytes(message.len());
            if u64::from(end) + bytes > store.chunk_size.into() {
                break;
            }
            self.chunk.make_room(&store.disk, end + bytes as u32)?;
            if let Some(log) = &mut log {
                log.add(&store.disk, Check::of(end, message), self.chunk.length())?;
            }
            let length = (message.len() as u16).to_be_bytes();
            self.chunk.store(&store.disk, end, &length)?;
            self.chunk.store(&store.disk, end + LENGTH_BYTES, message)?;
            end += bytes as u32;
            count += 1;
        }
        if count > 0 {
            self.chunk.store_tail(&store.disk, end)?;
        }
        Ok(count)
    }

    /// Writes framed entries behind the tail at `offset`, then the tail, in the order of the mode.
    fn write(&self, store: &Store, offset: u32, framed: &[u8], durable: bool) -> Result<()> {
        let disk = &store.disk;
        let end = offset + framed.len() as u32;
        match &self.checks {
            Some(checks) => {
                self.chunk.make_room(disk, end)?;
                checks.append(disk, &self.chunk, offset, framed, durable)?;
                self.chunk.write(disk, offset, framed)?;
                self.chunk.write_tail(disk, end)
            }
            None if durable => self.chunk.commit(disk, offset, framed, store.leaves_notes()),
            None => {
                self.chunk.make_room(disk, end)?;
                self.chunk.write(disk, offset, framed)?;
                self.chunk.write_tail(disk, end)
            }
        }
    }
}

/// Where staged bytes are to be written.
#[derive(Debug)]
pub(crate) struct Target(Last);

impl Target {
    /// Writes staged bytes with their syncs; again and to the end where a dead process had begun.
    pub(crate) fn commit(&self, store: &Store, staged: &Staged) -> Result<()> {
        let chunk = &self.0.chunk;
        let end = staged.end();
        // Nothing goes into a damaged chunk, which a repair takes out of the queue.
        let tail = chunk.tail()?;
        if u64::from(tail) == end {
            return chunk.sync(&store.disk);
        }
        if tail != staged.offset || end > chunk.length().into() || !layout::is_framed(&staged.bytes) {
            return Err(Error::Corrupt(format!(
                "messages wait to be written at offset {} of {}, whose tail is at {tail}",
                staged.offset,
                chunk.path().display()
            )));
        }
        self.0.write(store, staged.offset, &staged.bytes, true)
    }
}
