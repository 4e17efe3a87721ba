//! Consuming: the first message, moving the head, leaving a chunk for the next one.
//!
//! There is one consumer, and only it moves heads, changes the head file away from a chunk, and removes chunks. The last
//! entry of a chunk that has a successor is consumed by the head file's change alone; the chunk is removed after that.

use std::sync::Arc;

use super::checks::{Checks, Cursor};
use super::chunk::Chunk;
use super::layout::{ChunkId, FIRST_ENTRY, LENGTH_BYTES, MAX_CHUNKS, Pointers};
use super::records::{Check, Cover, End, Table};
use super::store::Store;
use crate::{Error, Result};

/// Without syncs, consumed chunks are removed in groups, after one sync of the head file: else a power cut could leave a head
/// file that names a removed chunk.
const REMOVED_TOGETHER: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct Reader {
    chunk: Option<Arc<Chunk>>,
    checks: Option<ChunkChecks>,
    /// Consumed, not yet removed.
    consumed: Vec<ChunkId>,
    /// Whether the head file was found to lead to every chunk that it should.
    has_looked: bool,
    /// Changes whenever another message may have come to the place of the first one.
    moves: u64,
}

/// The checksums of the chunk being read, as far as they are read.
#[derive(Debug)]
struct ChunkChecks {
    file: Checks,
    table: Table,
    cursor: Cursor,
    /// What lies before this was forgotten.
    floor: u32,
}

/// An entry that lies before the tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Which chunk it is in.
    pub(crate) chunk: ChunkId,
    /// Where its length is.
    pub(crate) offset: u32,
    /// Bytes of the message.
    pub(crate) length: u32,
}

impl Entry {
    pub(crate) fn end(self) -> u32 {
        self.offset + LENGTH_BYTES + self.length
    }
}

impl Reader {
    /// The first message, if there is one, in the chunk that it lies in.
    #[inline]
    pub(crate) fn front(&mut self, store: &Store) -> Result<Option<Entry>> {
        let Some(pointers) = self.unread(store)? else {
            return Ok(None);
        };
        let chunk = self.chunk.as_ref().expect("found by `unread`");
        let length = chunk.entry_length(pointers.head, pointers.tail)?;
        Ok(Some(Entry {
            chunk: chunk.id(),
            offset: pointers.head,
            length,
        }))
    }

    /// The pointers of the first chunk that has something to read.
    #[inline]
    fn unread(&mut self, store: &Store) -> Result<Option<Pointers>> {
        for _ in 0..=MAX_CHUNKS {
            let Some(chunk) = self.current(store)? else {
                return Ok(None);
            };
            let Some(pointers) = chunk.pointers()? else {
                self.forget();
                continue;
            };
            if !pointers.is_exhausted() && !store.sealed_only {
                return Ok(Some(pointers));
            }
            let Some(next) = chunk.next()? else {
                self.refuse_other_end(store)?;
                return Ok(None);
            };
            // Sealed from here on, but entries may have come between the two looks.
            match chunk.pointers()? {
                Some(pointers) if pointers.is_exhausted() => self.advance(store, next)?,
                Some(pointers) => return Ok(Some(pointers)),
                None => self.forget(),
            }
        }
        Err(Error::Corrupt(format!(
            "the chunks of {} refer to each other in a circle",
            store.shown()
        )))
    }

    /// Whether taking the first message leaves its chunk, for which the disk is needed.
    #[inline]
    pub(crate) fn is_at_border(&mut self, store: &Store) -> Result<bool> {
        let Some(entry) = self.front(store)? else {
            return Ok(false);
        };
        self.leaves_chunk(entry)
    }

    /// Whether whoever takes this entry of the current chunk has to go on to the next one.
    #[inline]
    pub(crate) fn leaves_chunk(&self, entry: Entry) -> Result<bool> {
        let chunk = self.chunk();
        Ok(entry.end() == chunk.raw_pointers()?.tail && chunk.next()?.is_some())
    }

    #[inline]
    fn current(&mut self, store: &Store) -> Result<Option<&Arc<Chunk>>> {
        if self.chunk.is_none() && store.crc && !self.has_looked {
            if let Some(id) = store.unreached()? {
                return Err(Error::Corrupt(format!(
                    "{} does not lead to the chunk {}, which was closed with messages in it; repair() puts that right",
                    store.shown(),
                    store.names.chunk(id).display()
                )));
            }
            self.has_looked = true;
        }
        if self.chunk.is_none()
            && let Some(id) = store.head.first()?
        {
            let (chunk, checks) = open(store, id)?;
            (self.chunk, self.checks) = (Some(chunk), checks);
        }
        Ok(self.chunk.as_ref())
    }

    /// The chunk that [`Self::front`] found.
    #[inline]
    pub(crate) fn chunk(&self) -> &Chunk {
        self.chunk.as_ref().expect("only asked for after `front`")
    }

    /// Checks a message against its checksum, where it should have one.
    pub(crate) fn check(&mut self, store: &Store, entry: Entry, bytes: &[u8]) -> Result<()> {
        let Some(checks) = &mut self.checks else {
            return Ok(());
        };
        let own = Check::of(entry.offset, bytes);
        let wrong = match checks.find(entry.offset, own)? {
            Cover::Checked(check) if check == own => return Ok(()),
            Cover::Unchecked => return Ok(()),
            Cover::Checked(_) => "does not have its checksum",
            Cover::Missing => "has no checksum, and should have one",
        };
        Err(Error::Corrupt(format!(
            "the message of {} bytes at offset {} of {} {wrong}; repair() steps over it",
            entry.length,
            entry.offset,
            store.names.chunk(entry.chunk).display()
        )))
    }

    /// The entry behind another one in the same chunk.
    pub(crate) fn following(&self, entry: Entry) -> Result<Option<Entry>> {
        let Some(pointers) = self.chunk().pointers()? else {
            return Ok(None);
        };
        let offset = entry.end();
        if offset >= pointers.tail {
            return Ok(None);
        }
        let length = self.chunk().entry_length(offset, pointers.tail)?;
        Ok(Some(Entry {
            offset,
            length,
            ..entry
        }))
    }

    /// How often the head has moved: a place tells nothing of a message, since chunks start over and ids come again.
    pub(crate) fn moves(&self) -> u64 {
        self.moves
    }

    /// Consumes everything up to the end of `entry`, which is in the current chunk.
    #[inline]
    pub(crate) fn consume(&mut self, store: &Store, entry: Entry) -> Result<()> {
        self.moves += 1;
        loop {
            let chunk = self.chunk();
            let old = chunk.raw_pointers()?;
            let new = Pointers {
                head: entry.end(),
                tail: old.tail,
            };
            if new.is_exhausted()
                && let Some(next) = chunk.next()?
            {
                // No tail changes once there is a next chunk; one that changed just before has more to read.
                if chunk.raw_pointers()?.tail == new.tail {
                    return self.advance(store, next);
                }
                continue;
            }
            if chunk.swap_pointers(&store.disk, old, new)? {
                return Ok(());
            }
        }
    }

    /// Consumes everything in the current chunk, which is the last one; the caller holds the append lock.
    pub(crate) fn skip_all(&mut self, store: &Store) -> Result<()> {
        self.moves += 1;
        let old = self.chunk().raw_pointers()?;
        let new = Pointers { head: old.tail, ..old };
        // Neither a producer nor another consumer can be there.
        self.chunk().swap_pointers(&store.disk, old, new).map(drop)
    }

    /// Makes `next` the first chunk and removes the current one, all of which is consumed.
    pub(crate) fn advance(&mut self, store: &Store, next: ChunkId) -> Result<()> {
        self.moves += 1;
        let (id, tail) = {
            let chunk = self.chunk();
            (chunk.id(), chunk.tail()?)
        };
        // Before anything changes: entries that a wrong tail hides must not go with their chunk, and a reference to nothing
        // must not become the head.
        self.refuse_other_end(store)?;
        let (opened, checks) = open(store, next)?;
        let durable = store.sync.is_durable();
        let bytes = u64::from(tail - FIRST_ENTRY);
        store.with_positions(|positions| positions.move_first(&store.disk, Some(id), Some(next), bytes, durable))?;
        store.head.set(&store.disk, Some(next))?;
        (self.chunk, self.checks) = (Some(opened), checks);
        self.consumed.push(id);
        if durable || self.consumed.len() >= REMOVED_TOGETHER {
            // The message is consumed, so an error would lose it for the caller. What stays is removed with the next chunk, or
            // by the close, which tells of the error.
            let _ = self.remove_consumed(store);
        }
        Ok(())
    }

    /// Compares the end of the current chunk, of which nothing is left to read, with what its checksums say of it.
    fn refuse_other_end(&mut self, store: &Store) -> Result<()> {
        let Some(checks) = &mut self.checks else {
            return Ok(());
        };
        // It is noted after the reference to the next chunk was stored, so whoever sees the note sees the reference.
        let Some(end) = checks.end()? else { return Ok(()) };
        let chunk = self.chunk();
        let (tail, next) = (chunk.raw_pointers()?.tail, chunk.next()?);
        if tail == end.tail && next == ChunkId::from_ref(end.next) {
            return Ok(());
        }
        Err(Error::Corrupt(format!(
            "the entries of {} end at {tail} and go on in chunk {}, but its checksums say {} and {}; repair() steps over it",
            store.names.chunk(chunk.id()).display(),
            next.map_or(0, ChunkId::reference),
            end.tail,
            end.next
        )))
    }

    /// Removes consumed chunks, oldest first, once the head file is on the disk.
    pub(crate) fn remove_consumed(&mut self, store: &Store) -> Result<()> {
        if self.consumed.is_empty() {
            return Ok(());
        }
        store.head.sync(&store.disk)?;
        while let Some(&id) = self.consumed.first() {
            store.disk.unlink(&store.names.checks(id))?;
            store.disk.unlink(&store.names.chunk(id))?;
            self.consumed.remove(0);
        }
        Ok(())
    }

    /// Removes what a killed consumer left: chunks in front of the first one that lead into it.
    pub(crate) fn remove_left_over(&mut self, store: &Store) -> Result<()> {
        let found = store.consumed_chunks()?;
        if found.is_empty() || !self.is_in_front(store, &found)? || store.unreached()?.is_some() {
            return Ok(());
        }
        self.consumed.extend(found.into_iter().rev());
        self.remove_consumed(store)
    }

    /// Whether none of the chunks belongs to the chain (as it would when all ids are in use).
    fn is_in_front(&self, store: &Store, ids: &[ChunkId]) -> Result<bool> {
        match store.chain() {
            Ok(chain) => Ok(!chain.iter().any(|link| ids.contains(&link.id))),
            // A damaged chain is left for `repair`.
            Err(Error::Corrupt(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Forgets what is open, so that it is opened again.
    pub(crate) fn forget(&mut self) {
        (self.chunk, self.checks) = (None, None);
    }

    /// As [`Self::forget`], after a repair.
    pub(crate) fn start_anew(&mut self) {
        self.moves += 1;
        self.forget();
    }

    pub(crate) fn sync_first(&self, store: &Store) -> Result<()> {
        match &self.chunk {
            Some(chunk) => chunk.sync(&store.disk),
            None => Ok(()),
        }
    }
}

impl ChunkChecks {
    fn open(store: &Store, chunk: &Chunk) -> Result<Option<Self>> {
        if !store.crc {
            return Ok(None);
        }
        let Some(file) = Checks::open(&store.names.checks(chunk.id()))? else {
            return Ok(None);
        };
        file.refuse_damaged(chunk)?;
        Ok(Some(ChunkChecks {
            file: file.mapped_for(store.access),
            table: Table::new(FIRST_ENTRY),
            cursor: Cursor::default(),
            floor: FIRST_ENTRY,
        }))
    }

    /// What is known of the entry at `offset`, which looks like `own`.
    fn find(&mut self, offset: u32, own: Check) -> Result<Cover> {
        if offset < self.floor {
            self.cursor = Cursor::default();
        }
        self.table.forget_before(offset);
        self.floor = offset;
        if self.cursor == Cursor::default() {
            self.file.follow(&mut self.cursor, &mut self.table)?;
        }
        let is_sound = |cover: Cover| cover == Cover::Unchecked || cover == Cover::Checked(own);
        let mut cover = self.table.find(offset);
        if !is_sound(cover) {
            self.file.follow(&mut self.cursor, &mut self.table)?;
            cover = self.table.find(offset);
        }
        if !is_sound(cover) {
            // A killed process may have left a record that another one has overwritten since.
            self.cursor = Cursor::default();
            self.file.follow(&mut self.cursor, &mut self.table)?;
            cover = self.table.find(offset);
        }
        Ok(cover)
    }

    /// Where the entries of the chunk, which has a successor, must end.
    fn end(&mut self) -> Result<Option<End>> {
        self.file.follow(&mut self.cursor, &mut self.table)?;
        Ok(self.table.end)
    }
}

fn open(store: &Store, id: ChunkId) -> Result<(Arc<Chunk>, Option<ChunkChecks>)> {
    let chunk = match store.open_chunk(id) {
        Err(Error::NotFound(_)) => return Err(store.missing(id)),
        opened => opened?,
    };
    let checks = ChunkChecks::open(store, &chunk)?;
    Ok((chunk, checks))
}
