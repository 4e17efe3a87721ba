//! S-memory beyond the first segment: further files, mapped by each process when it needs them.
//!
//! A segment is created before it is counted, and counted under the lock: whoever dies in between leaves a complete file that
//! the next one takes into use. Segments are never given back while the system exists (an address in one stays good), so
//! "returned" memory goes to the pool, not to the operating system.

use std::path::PathBuf;
use std::sync::OnceLock;

use super::driver::{Driver, Inside};
use super::layout::{SEGMENT_MAGIC, SEGMENTS, UNIT, class_for, class_units, head};
use crate::shared::region::Region;
use crate::shared::signal::Wait;
use crate::shared::sync::{AtomicU32, Ordering};
use crate::{Error, Result};

/// The largest segment that is fetched ahead of need.
const LARGEST: u64 = 64 << 20;

/// The segments that this process has mapped.
#[derive(Debug)]
pub(super) struct Memory {
    /// Their path without the number.
    stem: PathBuf,
    segments: Box<[OnceLock<Region>]>,
    /// How many segments, the first included, are mapped.
    known: AtomicU32,
}

impl Memory {
    /// Segments beside the system file, named `STEM.memory.N`.
    pub(super) fn beside(stem: PathBuf) -> Self {
        Memory {
            stem,
            segments: (1..SEGMENTS).map(|_| OnceLock::new()).collect(),
            known: AtomicU32::new(1),
        }
    }

    #[inline]
    pub(super) fn knows(&self, count: u32) -> bool {
        count <= self.known.load(Ordering::Acquire)
    }

    pub(super) fn segment(&self, number: u32) -> Option<&Region> {
        self.segments.get(number.checked_sub(1)? as usize)?.get()
    }

    /// Maps every segment below `count`.
    #[inline]
    pub(super) fn attach(&self, count: u32) -> Result<()> {
        if self.knows(count) {
            return Ok(());
        }
        self.attach_missing(count)
    }

    #[cold]
    fn attach_missing(&self, count: u32) -> Result<()> {
        if count > SEGMENTS {
            return Err(Error::Corrupt(format!(
                "the queue system says that it has {count} segments"
            )));
        }
        for number in self.known.load(Ordering::Acquire)..count {
            self.keep(number, open(&self.path(number), number)?);
        }
        Ok(())
    }

    fn keep(&self, number: u32, region: Region) {
        // Another thread may have mapped the same file first.
        let _ = self.segments[number as usize - 1].set(region);
        self.known.fetch_max(number + 1, Ordering::AcqRel);
    }

    fn path(&self, number: u32) -> PathBuf {
        let mut path = self.stem.clone().into_os_string();
        path.push(format!(".memory.{number}"));
        path.into()
    }
}

impl Driver {
    /// Bytes of S-memory.
    pub(super) fn memory_bytes(&self) -> u64 {
        let count = self.word(head::SEGMENTS).min(SEGMENTS);
        (0..count)
            .map(|segment| u64::from(self.segment_units(segment)) * UNIT as u64)
            .sum()
    }

    /// Fetches a segment with room for `units` units; not inside.
    #[cold]
    pub(super) fn grow(&self, units: u32) -> Result<()> {
        let number = self.word(head::SEGMENTS);
        if number == 0 {
            return Err(Error::Corrupt("the queue system says that it has no memory".into()));
        }
        self.memory.attach(number)?;
        let used = self.memory_bytes();
        let class = class_for(units).unwrap_or(u32::MAX);
        let needed = u64::from(class_units(class.min(super::layout::CLASSES - 1))) + 1;
        let wanted = (used.min(LARGEST)).max(needed * UNIT as u64);
        let length = wanted.min(self.geometry.memory_limit.saturating_sub(used));
        if number >= SEGMENTS || length < needed * UNIT as u64 {
            return Err(Error::Full(format!(
                "the {used} bytes of memory of the queue system are used up, the limit is {} bytes",
                self.geometry.memory_limit
            )));
        }
        let path = self.memory.path(number);
        let (region, _) = Region::open_or_create(&path, length / UNIT as u64 * UNIT as u64, |region| {
            region.u64(0).store(SEGMENT_MAGIC, Ordering::Relaxed);
            region.u32(8).store(number, Ordering::Relaxed);
            Ok(())
        })?;
        self.memory.keep(number, checked(region, number)?);
        self.inside(Wait::Forever, |inside| {
            inside.take_segment(number);
            Ok(())
        })
    }
}

impl Inside<'_> {
    fn take_segment(&self, number: u32) {
        if self.get(head::SEGMENTS) == number {
            self.set(head::FRESH + 4 * number as usize, 1);
            self.set(head::SEGMENTS, number + 1);
        }
    }
}

fn open(path: &std::path::Path, number: u32) -> Result<Region> {
    checked(Region::open(path)?, number)
}

fn checked(region: Region, number: u32) -> Result<Region> {
    let sane = (2 * UNIT..1 << 30).contains(&region.length())
        && region.u64(0).load(Ordering::Relaxed) == SEGMENT_MAGIC
        && region.u32(8).load(Ordering::Relaxed) == number;
    if sane {
        return Ok(region);
    }
    let shown = region.path().map(|p| p.display().to_string()).unwrap_or_default();
    Err(Error::Corrupt(format!(
        "{shown} is not segment {number} of a queue system"
    )))
}
