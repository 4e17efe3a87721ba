//! What every part of an open queue works with: names, head file, side files, and how chunks are reached.

use std::collections::HashSet;
use std::fs;
use std::sync::{Arc, Mutex};

use super::checks::Checks;
use super::chunk::{Access, Chunk};
use super::disk::{Disk, Step};
use super::head::Head;
use super::layout::{self, ChunkId, HEAD_BYTES, MAX_CHUNKS, Names};
use super::options::SyncMode;
use super::positions::Positions;
use super::records::State;
use super::side::Side;
use crate::os::file;
use crate::shared::signal::Wait;
use crate::shared::sync::Ordering;
use crate::{Error, Result};

/// More chunks than this are synced with their whole file system: each sync may wait for the disk, however little it has to do.
const SYNCED_ALONE: usize = 64;

#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) names: Names,
    pub(crate) disk: Disk,
    pub(crate) head: Head,
    /// `None` with network=True.
    pub(crate) side: Option<Side>,
    pub(crate) positions: Mutex<Option<Positions>>,
    pub(crate) chunk_size: u32,
    pub(crate) sync: SyncMode,
    pub(crate) crc: bool,
    pub(crate) access: Access,
    /// Leave the last chunk alone: its bytes may be stale in this host's cache.
    pub(crate) sealed_only: bool,
}

/// A chunk in the chain, as a walk found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) id: ChunkId,
    pub(crate) pointers: layout::Pointers,
    pub(crate) next: Option<ChunkId>,
}

impl Store {
    pub(crate) fn shown(&self) -> String {
        self.names.head().display().to_string()
    }

    /// Opens a chunk of the chain; [`Error::NotFound`] when it is not there.
    pub(crate) fn open_chunk(&self, id: ChunkId) -> Result<Arc<Chunk>> {
        Chunk::open(self.names.chunk(id), id, self.access).map(Arc::new)
    }

    /// As [`Self::open_chunk`], only to look at: without a mapping.
    pub(crate) fn glance(&self, id: ChunkId) -> Result<Chunk> {
        let access = Access {
            mapped: false,
            ..self.access
        };
        Chunk::open(self.names.chunk(id), id, access)
    }

    /// Changes when cached chunks may be gone.
    #[inline]
    pub(crate) fn epoch(&self) -> u32 {
        self.side
            .as_ref()
            .map_or(0, |side| side.epoch().load(Ordering::Acquire))
    }

    /// Whether commits may leave notes: they lie where everybody knows, and lead to every tail.
    #[inline]
    pub(crate) fn leaves_notes(&self) -> bool {
        let can = |side: &Side| side.is_agreed() && !side.has_unsynced_producer();
        self.side.as_ref().is_some_and(can)
    }

    /// Whether somebody may append to the chain without syncs, before what this handle promises to keep.
    pub(crate) fn is_mixed(&self) -> bool {
        self.sync.is_durable() && self.side.as_ref().is_some_and(Side::has_unsynced_producer)
    }

    /// Before something durable is appended: what it depends on. The caller holds the append lock.
    #[inline]
    pub(crate) fn sync_past(&self) -> Result<()> {
        let durable = self.side.as_ref().filter(|_| self.sync.is_durable());
        match durable.filter(|side| side.has_unsynced_past()) {
            Some(side) => self.sync_chain().map(|()| side.set_unsynced_past(false)),
            None => Ok(()),
        }
    }

    /// Brings chunks and their checksums to the disk, with their names and the head file: what is behind them can be found
    /// after a power cut. The caller holds the append lock, or nobody else has the queue open.
    pub(crate) fn sync_chunks(&self, ids: &[ChunkId]) -> Result<()> {
        let mut left = Vec::new();
        let together = ids.len() > SYNCED_ALONE;
        if together {
            self.head.sync_file_system()?;
        }
        self.disk.sync_directory()?;
        // The last one first: what has not been synced is not referred to from what has.
        for id in ids.iter().rev() {
            match self.glance(*id) {
                Ok(chunk) => {
                    match together {
                        true => self.disk.note(Step::Synced, chunk.path()),
                        false => chunk.sync(&self.disk)?,
                    }
                    left.extend(chunk.next()?.map(|_| chunk));
                }
                // Consumed meanwhile.
                Err(Error::NotFound(_)) => {}
                Err(error) => return Err(error),
            }
            // Damaged ones are reported by whoever needs them.
            if let Ok(Some(checks)) = Checks::open(&self.names.checks(*id)) {
                match together {
                    true => self.disk.note(Step::Synced, &self.names.checks(*id)),
                    false => checks.sync(&self.disk)?,
                }
            }
        }
        self.head.sync(&self.disk)?;
        // A producer may have been killed between the last two steps of leaving them.
        left.iter().try_for_each(|chunk| chunk.clear_notes(&self.disk))
    }

    /// [`Self::sync_chunks`] of all that can be reached.
    pub(crate) fn sync_chain(&self) -> Result<()> {
        let links = match self.chain() {
            Err(Error::Corrupt(_) | Error::Format(_)) => self.reachable()?,
            links => links?,
        };
        let ids: Vec<ChunkId> = links.iter().map(|link| link.id).collect();
        self.sync_chunks(&ids)
    }

    /// Whether an exhausted chunk must be left as it is, because positions count its bytes.
    #[inline]
    pub(crate) fn keeps_positions(&self) -> bool {
        match &self.side {
            Some(side) => side.positions().load(Ordering::Acquire) != 0,
            None => self.positions.lock().expect("no panic under it").is_some(),
        }
    }

    /// The positions file, if there is one by now.
    pub(crate) fn with_positions<T>(&self, then: impl FnOnce(&Positions) -> Result<T>) -> Result<Option<T>> {
        if !self.keeps_positions() {
            return Ok(None);
        }
        let mut positions = self.positions.lock().expect("no panic under it");
        if positions.is_none() {
            *positions = Positions::open(&self.names.positions())?;
        }
        positions.as_ref().map(then).transpose()
    }

    /// The whole chain, first chunk first. The consumer may remove chunks meanwhile: then the walk starts over.
    pub(crate) fn chain(&self) -> Result<Vec<Link>> {
        walk(|| self.head.first(), |id| self.glance(id))
    }

    /// The beginning of a damaged chain, as far as it can be followed.
    pub(crate) fn reachable(&self) -> Result<Vec<Link>> {
        let mut links: Vec<Link> = Vec::new();
        let mut at = self.head.first()?;
        while let Some(id) = at.filter(|id| links.iter().all(|link| link.id != *id)) {
            let Ok(chunk) = self.glance(id) else { break };
            let (pointers, next) = (chunk.raw_pointers()?, chunk.next()?);
            links.push(Link { id, pointers, next });
            at = next;
        }
        Ok(links)
    }

    /// Chunks in front of the first one that lead into it: consumed and not yet removed, newest first.
    pub(crate) fn consumed_chunks(&self) -> Result<Vec<ChunkId>> {
        let mut found = Vec::new();
        let Some(first) = self.head.first()? else {
            return Ok(found);
        };
        let mut successor = first;
        while found.len() < MAX_CHUNKS {
            let id = successor.previous();
            match self.glance(id).and_then(|chunk| chunk.next()) {
                Ok(Some(next)) if next == successor && id != first => found.push(id),
                _ => break,
            }
            successor = id;
        }
        Ok(found)
    }

    /// Every chunk file there is.
    pub(crate) fn present(&self) -> Result<Vec<ChunkId>> {
        let directory = file::directory_of(self.names.head());
        let doing = |e| Error::io(format!("reading the directory {}", directory.display()), e);
        let mut found = Vec::new();
        for entry in fs::read_dir(directory).map_err(doing)? {
            let entry = entry.map_err(doing)?;
            let Some(id) = self.names.chunk_of(&entry.file_name()) else {
                continue;
            };
            // Not the head file of a queue that has such a name.
            if entry.metadata().is_ok_and(|meta| meta.len() != HEAD_BYTES) {
                found.push(id);
            }
        }
        found.sort_by_key(|id| id.number());
        Ok(found)
    }

    /// Every chunk that there are checksums of.
    pub(crate) fn covered(&self) -> Result<HashSet<ChunkId>> {
        let directory = file::directory_of(self.names.head());
        let doing = |e| Error::io(format!("reading the directory {}", directory.display()), e);
        let mut found = HashSet::new();
        for entry in fs::read_dir(directory).map_err(doing)? {
            found.extend(self.names.checks_of(&entry.map_err(doing)?.file_name()));
        }
        Ok(found)
    }

    /// A chunk that was closed with messages in it and that the head file does not lead to: then that is damaged. Only
    /// checksum files can tell such a chunk from one that was consumed.
    pub(crate) fn unreached(&self) -> Result<Option<ChunkId>> {
        let Ok(chain) = self.chain() else {
            return Ok(None);
        };
        let in_chain: Vec<ChunkId> = chain.iter().map(|link| link.id).collect();
        self.first_outside(&in_chain, |id, _| {
            let Ok(Some(checks)) = Checks::open(&self.names.checks(id)) else {
                return false;
            };
            let header = checks.header();
            header.is_ok_and(|h| matches!(h.state, State::Closed(seen) if !seen.pointers.is_exhausted()))
        })
    }

    /// The first chunk outside of the chain that holds what is `wanted`, and that none of the others leads to.
    pub(crate) fn first_outside(
        &self,
        in_chain: &[ChunkId],
        wanted: impl Fn(ChunkId, &Chunk) -> bool,
    ) -> Result<Option<ChunkId>> {
        let (mut found, mut followers) = (Vec::new(), Vec::new());
        for id in self.present()?.into_iter().filter(|id| !in_chain.contains(id)) {
            let Ok(chunk) = self.glance(id) else { continue };
            followers.extend(chunk.next()?);
            if wanted(id, &chunk) {
                found.push(id);
            }
        }
        Ok(found.into_iter().find(|id| !followers.contains(id)))
    }

    /// The error of a reference to a chunk that is not there.
    pub(crate) fn missing(&self, id: ChunkId) -> Error {
        missing(&self.names, id)
    }

    /// How long to wait for another process that holds a lock; a dead one's is taken over long before.
    pub(crate) fn patience() -> Wait {
        Wait::from_timeout(Some(std::time::Duration::from_secs(30)))
    }
}

pub(crate) fn missing(names: &Names, id: ChunkId) -> Error {
    Error::Corrupt(format!("the chunk {} is missing", names.chunk(id).display()))
}

/// Follows the chain from the first chunk on.
pub(crate) fn walk(
    first: impl Fn() -> Result<Option<ChunkId>>,
    open: impl Fn(ChunkId) -> Result<Chunk>,
) -> Result<Vec<Link>> {
    let mut missed = None;
    loop {
        let start = first()?;
        match walk_from(start, &open) {
            Ok(links) => return Ok(links),
            Err(Broken::Missing(id)) => {
                // Removed by the consumer while we walked: then the head file has moved on.
                if missed == Some((start, id)) {
                    return Err(Error::Corrupt(format!("chunk {id} is missing")));
                }
                missed = Some((start, id));
            }
            Err(Broken::Other(error)) => return Err(error),
        }
    }
}

enum Broken {
    Missing(ChunkId),
    Other(Error),
}

fn walk_from(
    start: Option<ChunkId>,
    open: &impl Fn(ChunkId) -> Result<Chunk>,
) -> std::result::Result<Vec<Link>, Broken> {
    let mut links = Vec::new();
    let mut at = start;
    while let Some(id) = at {
        if links.len() == MAX_CHUNKS {
            return Err(Broken::Other(Error::Corrupt(format!(
                "the chain of chunks goes in a circle at chunk {id}"
            ))));
        }
        let chunk = match open(id) {
            Ok(chunk) => chunk,
            Err(Error::NotFound(_)) => return Err(Broken::Missing(id)),
            Err(error) => return Err(Broken::Other(error)),
        };
        let next = chunk.next().map_err(Broken::Other)?;
        let pointers = chunk
            .pointers()
            .map_err(Broken::Other)?
            .expect("just opened at its full length");
        links.push(Link { id, pointers, next });
        at = next;
    }
    Ok(links)
}
