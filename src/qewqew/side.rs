//! `NAME.signal`: what the processes that have the queue open share in memory.
//!
//! - two owner-tagged locks that survivors take over: the append lock (held for a copy) and the commit lock (held for a sync)
//! - two wake-up words
//! - two stages for messages that are acknowledged against process death but not yet against a power cut
//!
//! # Stages
//! A message of a durable mode is first copied into the active stage. A commit makes the other stage the active one, writes
//! the full one to the chunk with its syncs, and empties it: meanwhile others go on staging, and all of them share the next
//! commit. Each stage says where its bytes belong (chunk and offset) and how many there are, with their CRC32C, in one word
//! that is stored last: a kill at any instruction leaves a stage that is wholly there or wholly not. Whoever opens the queue
//! next (or takes over the commit lock) commits what the dead left. The CRC tells a stage from what a power cut left of one.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::layout::{ChunkId, signal};
use crate::os::clock::boot_id;
use crate::os::file::{self, Unlinked};
use crate::shared::lock::{Guard, Lock};
use crate::shared::region::Region;
use crate::shared::roster::{Roster, Table};
use crate::shared::signal::{Signal, Wait};
use crate::shared::sync::{AtomicU32, AtomicU64, Ordering};
use crate::{Error, Result};

/// This file is nobody's but ours: a lock word that no participant has signed is damage, and is broken after this time.
const DAMAGE_PATIENCE: Duration = Duration::from_millis(200);

const TABLE: Table = Table::at(signal::ROSTER);
const BYTES: usize = signal::ROSTER + TABLE.length();

#[derive(Debug)]
pub(crate) struct Side {
    path: PathBuf,
    region: Arc<Region>,
    roster: Roster,
}

/// In the place of a chunk size. None is as large.
const SEVERAL: u32 = u32::MAX;

/// Holds one of the two locks.
pub(crate) type Held<'a> = Guard<'a, fn(u64), true>;

/// There is nothing to repair: everything that the locks protect changes in single stores.
fn nothing_to_repair(_dead_holder: u64) {}

/// Bytes that wait for a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Staged {
    pub(crate) chunk: ChunkId,
    pub(crate) offset: u32,
    pub(crate) bytes: Vec<u8>,
}

impl Staged {
    /// Behind the last byte.
    pub(crate) fn end(&self) -> u64 {
        u64::from(self.offset) + self.bytes.len() as u64
    }
}

/// A stage that is being committed.
#[derive(Debug)]
pub(crate) struct ToCommit {
    pub(crate) stage: usize,
    pub(crate) staged: Staged,
    /// Everything that was staged before is in it or committed.
    pub(crate) was_active: bool,
}

impl Side {
    /// Creates the file anew; nobody else has the queue open.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let unlinked = Unlinked::create(path, BYTES as u64)?;
        let region = Region::map(file::reopen(unlinked.as_fd())?, Some(path))?;
        region.u32(signal::VERSION_AT).store(signal::VERSION, Ordering::Relaxed);
        region
            .u32(signal::STAGE_BYTES_AT)
            .store(signal::STAGE_BYTES as u32, Ordering::Relaxed);
        region.copy_in(signal::BOOT_ID, &boot_id()?);
        region.u64(signal::MAGIC_AT).store(signal::MAGIC, Ordering::Release);
        unlinked.publish_unsynced()?;
        Side::join(region, path)
    }

    /// Joins those who have the queue open.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let region = Region::open(path)?;
        check(&region, path)?;
        Side::join(region, path)
    }

    fn join(region: Region, path: &Path) -> Result<Self> {
        let region = Arc::new(region);
        let roster = Roster::join(&region, TABLE, None)?;
        Ok(Side {
            path: path.to_owned(),
            region,
            roster,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// What a dead session left uncommitted, in order; nothing when the file is of another boot or damaged.
    pub(crate) fn salvage(path: &Path) -> Result<Vec<Staged>> {
        let region = match Region::open(path) {
            Ok(region) => region,
            Err(Error::NotFound(_) | Error::Format(_)) => return Ok(Vec::new()),
            Err(e) => return Err(e),
        };
        let mut boot = [0; 16];
        if check(&region, path).is_err() {
            return Ok(Vec::new());
        }
        region.copy_out(signal::BOOT_ID, &mut boot);
        if boot != boot_id()? {
            return Ok(Vec::new());
        }
        let mut left: Vec<Staged> = (0..2).filter_map(|stage| read_stage(&region, stage)).collect();
        left.sort_by_key(|staged| staged.offset);
        Ok(left)
    }

    #[inline]
    pub(crate) fn append_lock(&self, wait: Wait) -> Result<Held<'_>> {
        self.lock(signal::APPEND_LOCK, wait)
    }

    pub(crate) fn commit_lock(&self, wait: Wait) -> Result<Held<'_>> {
        self.lock(signal::COMMIT_LOCK, wait)
    }

    #[inline]
    fn lock(&self, word: usize, wait: Wait) -> Result<Held<'_>> {
        Lock::new(self.region.u64(word), &self.roster)
            .members_only()
            .break_foreign_after(Some(DAMAGE_PATIENCE))
            .acquire(wait, nothing_to_repair as fn(u64))
    }

    /// Tells of the chunk size of a producer. The first one with another size ends notes for everybody; a commit that is leaving
    /// one has done so before anybody makes the chunk longer, which takes the commit lock.
    pub(crate) fn agree_on(&self, chunk_size: u32) {
        let word = self.region.u32(signal::CHUNK_SIZE);
        let agreed = word.compare_exchange(0, chunk_size, Ordering::SeqCst, Ordering::SeqCst);
        if agreed.is_err_and(|known| known != chunk_size) {
            // SYNC: chunk sizes (with `is_agreed`), ordered by the commit lock.
            word.store(SEVERAL, Ordering::SeqCst);
        }
    }

    /// Whether all producers have the same chunk size; as long as it is so, no chunk is made longer under the commit lock.
    #[inline]
    pub(crate) fn is_agreed(&self) -> bool {
        // SYNC: chunk sizes (with `agree_on`)
        self.region.u32(signal::CHUNK_SIZE).load(Ordering::SeqCst) != SEVERAL
    }

    /// Tells that a producer has come that syncs nothing.
    pub(crate) fn add_unsynced_producer(&self) {
        self.region
            .u32(signal::UNSYNCED)
            .fetch_or(signal::UNSYNCED_PRODUCER, Ordering::SeqCst);
    }

    /// Whether there is or was a producer that syncs nothing: appends may depend on what is not on the disk.
    #[inline]
    pub(crate) fn has_unsynced_producer(&self) -> bool {
        self.region.u32(signal::UNSYNCED).load(Ordering::SeqCst) & signal::UNSYNCED_PRODUCER != 0
    }

    /// Whether chunks in front of what comes next, or references to them, may not be on the disk.
    #[inline]
    pub(crate) fn has_unsynced_past(&self) -> bool {
        self.region.u32(signal::UNSYNCED).load(Ordering::SeqCst) & signal::UNSYNCED_PAST != 0
    }

    /// Tells whether it is so; the caller holds the append lock, or nobody else has the queue open.
    pub(crate) fn set_unsynced_past(&self, is_so: bool) {
        let word = self.region.u32(signal::UNSYNCED);
        match is_so {
            true => word.fetch_or(signal::UNSYNCED_PAST, Ordering::SeqCst),
            false => word.fetch_and(!signal::UNSYNCED_PAST, Ordering::SeqCst),
        };
    }

    /// Where waiting for messages happens.
    #[inline]
    pub(crate) fn arrivals(&self) -> Signal<'_> {
        Signal::new(self.region.u32(signal::ARRIVALS))
    }

    /// Where waiting for room happens.
    #[inline]
    pub(crate) fn room(&self) -> Signal<'_> {
        Signal::new(self.region.u32(signal::ROOM))
    }

    /// Changes when a chunk that somebody may hold open as the last one disappears.
    #[inline]
    pub(crate) fn epoch(&self) -> &AtomicU32 {
        self.region.u32(signal::EPOCH)
    }

    /// Not 0 once positions are in use: then chunks are not started over.
    #[inline]
    pub(crate) fn positions(&self) -> &AtomicU32 {
        self.region.u32(signal::POSITIONS)
    }

    #[inline]
    pub(crate) fn counter(&self, offset: usize) -> &AtomicU64 {
        self.region.u64(offset)
    }

    /// Everybody who has the queue open: process number, and whether it lives.
    pub(crate) fn members(&self) -> Result<Vec<(u32, bool)>> {
        let members = self.roster.members()?;
        Ok(members
            .into_iter()
            .map(|(member, alive)| (member.pid(), alive))
            .collect())
    }

    /// Whether anything waits for a commit. A moment's view, without the lock.
    #[inline]
    pub(crate) fn has_staged(&self) -> bool {
        // SYNC: staged (with `stage`)
        (0..2).any(|stage| fill(&self.region, stage).load(Ordering::SeqCst) != 0)
    }

    /// Bytes that wait for a commit; the caller holds the append lock.
    pub(crate) fn staged_bytes(&self) -> u64 {
        (0..2)
            .map(|stage| u64::from(split(fill(&self.region, stage).load(Ordering::Acquire)).0))
            .sum()
    }

    /// What waits for a commit, oldest first. A moment's view.
    pub(crate) fn staged(&self) -> Vec<Staged> {
        let mut all: Vec<Staged> = (0..2).filter_map(|stage| read_stage(&self.region, stage)).collect();
        all.sort_by_key(|staged| staged.offset);
        all
    }

    /// Behind the last staged byte, if there is any; the caller holds the append lock.
    pub(crate) fn staged_end(&self) -> Option<u32> {
        (0..2)
            .filter_map(|stage| {
                let (length, _) = split(fill(&self.region, stage).load(Ordering::Acquire));
                let (_, offset) = split(place(&self.region, stage).load(Ordering::Acquire));
                (length != 0).then(|| offset.saturating_add(length))
            })
            .max()
    }

    /// Adds `bytes` to the active stage, to be written at `offset` of `chunk`; false when they do not fit. The caller holds
    /// the append lock.
    pub(crate) fn stage(&self, chunk: ChunkId, offset: u32, bytes: &[u8]) -> bool {
        let stage = self.active();
        let (length, crc) = split(fill(&self.region, stage).load(Ordering::Acquire));
        let length = length as usize;
        if length + bytes.len() > signal::STAGE_BYTES || length > signal::STAGE_BYTES {
            return false;
        }
        if length == 0 {
            let here = u64::from(chunk.reference()) << 32 | u64::from(offset);
            place(&self.region, stage).store(here, Ordering::Release);
        }
        self.region.copy_in(data(stage) + length, bytes);
        let crc = crc32c::crc32c_append(if length == 0 { 0 } else { crc }, bytes);
        let filled = ((length + bytes.len()) as u64) << 32 | u64::from(crc);
        // SYNC: staged (with `has_staged` and `read_stage`)
        fill(&self.region, stage).store(filled, Ordering::SeqCst);
        true
    }

    /// The stage to write next: what a dead committer left, or else the active one, after which new messages go to the other.
    /// The caller holds both locks. `None`: nothing is staged.
    pub(crate) fn next_to_commit(&self) -> Result<Option<ToCommit>> {
        let active = self.active();
        for stage in [1 - active, active] {
            if fill(&self.region, stage).load(Ordering::Acquire) == 0 {
                continue;
            }
            let Some(staged) = read_stage(&self.region, stage) else {
                return Err(Error::Corrupt(format!(
                    "the messages that wait for a commit in {} are damaged",
                    self.path.display()
                )));
            };
            if stage == active {
                self.region
                    .u32(signal::ACTIVE)
                    .store(1 - active as u32, Ordering::Release);
            }
            return Ok(Some(ToCommit {
                stage,
                staged,
                was_active: stage == active,
            }));
        }
        Ok(None)
    }

    /// Empties a stage that was written (or that `clear` throws away). The caller holds the commit lock.
    pub(crate) fn empty_stage(&self, stage: usize) {
        fill(&self.region, stage).store(0, Ordering::Release);
    }

    fn active(&self) -> usize {
        (self.region.u32(signal::ACTIVE).load(Ordering::Acquire) & 1) as usize
    }
}

fn check(region: &Region, path: &Path) -> Result<()> {
    if region.length() != BYTES {
        return Err(Error::Format(format!(
            "{} has {} bytes, not {BYTES}",
            path.display(),
            region.length()
        )));
    }
    let magic = region.u64(signal::MAGIC_AT).load(Ordering::Acquire);
    let version = region.u32(signal::VERSION_AT).load(Ordering::Relaxed);
    let stage_bytes = region.u32(signal::STAGE_BYTES_AT).load(Ordering::Relaxed);
    if (magic, version, stage_bytes as usize) != (signal::MAGIC, signal::VERSION, signal::STAGE_BYTES) {
        return Err(Error::Format(format!(
            "{} is not the signal file of a qewqew queue of version {}",
            path.display(),
            signal::VERSION
        )));
    }
    Ok(())
}

fn place(region: &Region, stage: usize) -> &AtomicU64 {
    region.u64(signal::STAGES + stage * signal::STAGE_STEP)
}

fn fill(region: &Region, stage: usize) -> &AtomicU64 {
    region.u64(signal::STAGES + stage * signal::STAGE_STEP + 8)
}

fn data(stage: usize) -> usize {
    signal::DATA + stage * signal::STAGE_BYTES
}

fn split(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

/// A stage whose bytes are what its word says.
fn read_stage(region: &Region, stage: usize) -> Option<Staged> {
    // SYNC: staged (with `stage`)
    let (length, crc) = split(fill(region, stage).load(Ordering::SeqCst));
    let (chunk, offset) = split(place(region, stage).load(Ordering::Acquire));
    if length == 0 || length as usize > signal::STAGE_BYTES {
        return None;
    }
    let mut bytes = Vec::new();
    region.append_to(data(stage), length as usize, &mut bytes);
    let chunk = ChunkId::from_ref(u16::try_from(chunk).ok()?)?;
    (crc32c::crc32c(&bytes) == crc).then_some(Staged { chunk, offset, bytes })
}
