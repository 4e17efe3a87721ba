//! The queue driver: the memory of one queue system, and the lock under which everything in it changes.
//!
//! "Only the MCP may access a queue directly": here the monitor stands in for it. [`Driver::inside`] takes the one lock of the
//! system and hands out an [`Inside`], on which all operations on queues, pools and users are defined (in the files named after
//! them). Nobody does I/O or sleeps inside; whatever needs either leaves, does it, and enters again. When the holder of the
//! lock dies, the next one repairs (`repair.rs`) before it goes on.

use std::sync::Arc;
use std::time::Duration;

use super::geometry::Geometry;
use super::layout::{BLOCK, BLOCK_UNITS, MAGIC, Span, UNIT, VERSION, descriptor, head};
use super::memory::Memory;
use super::records::{Fields, Message, Queue, User};
use crate::shared::lock::Lock;
use crate::shared::region::Region;
use crate::shared::roster::Roster;
use crate::shared::signal::{Signal, Wait};
use crate::shared::sync::Ordering;
use crate::{Error, Result};

/// How long a call that must not block may still wait for the lock of the system.
pub(super) const LOCK_PATIENCE: Duration = Duration::from_secs(1);
/// How long one attempt of a call waits that makes several, and looks around between them: a process that was stopped inside
/// keeps the lock for as long as it likes.
const ATTEMPT_PATIENCE: Duration = Duration::from_millis(5);
/// A word that no participant can have written is damage: after so long the lock is taken and everything repaired.
const FOREIGN: Duration = Duration::from_millis(200);

/// Why work inside had to stop.
#[derive(Debug)]
pub(super) enum Stop {
    /// For good.
    Failed(Error),
    /// Until there is another segment with room for so many units.
    Grow(u32),
}

/// How long to wait for the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// As long as a call may that must not block on messages (a holder that dies is found in 1 ms). Looks at no clock when the
    /// lock is free.
    Soon,
    /// As one attempt of several.
    Attempt,
    /// As a caller says.
    As(Wait),
}

impl Entry {
    /// For the attempts of a call that waits like this for messages or room.
    #[inline]
    pub(super) fn of_attempt(wait: Wait) -> Self {
        match wait {
            Wait::No => Entry::Soon,
            _ => Entry::Attempt,
        }
    }
}

impl From<Wait> for Entry {
    fn from(wait: Wait) -> Self {
        Entry::As(wait)
    }
}

/// What work inside comes to.
pub(super) type Attempt<T> = std::result::Result<T, Stop>;

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Stop::Failed(error)
    }
}

/// The memory of a queue system and this process's part in it.
#[derive(Debug)]
pub(super) struct Driver {
    pub(super) region: Arc<Region>,
    pub(super) geometry: Geometry,
    pub(super) roster: Roster,
    pub(super) memory: Memory,
}

impl Driver {
    /// Writes the head of a new system.
    pub(super) fn format(region: &Region, geometry: &Geometry, system: u64) {
        let put = |at: usize, value: u32| region.u32(at).store(value, Ordering::Relaxed);
        put(head::VERSION, VERSION);
        put(head::QUEUES, geometry.queues);
        put(head::USERS, geometry.users);
        put(head::PARTICIPANTS, geometry.roster.slots);
        put(head::BLOCKS, geometry.blocks);
        put(head::UNITS, geometry.units);
        region
            .u64(head::MEMORY_LIMIT)
            .store(geometry.memory_limit, Ordering::Relaxed);
        region.u64(head::SYSTEM).store(system, Ordering::Relaxed);
        put(head::SEGMENTS, 1);
        put(head::FRESH, 1);
        region.u64(head::MAGIC).store(MAGIC, Ordering::Relaxed);
    }

    /// Reads the head of a system file, once, and checks it against the length that was mapped.
    pub(super) fn geometry_of(region: &Region) -> Result<Geometry> {
        if region.length() < head::END {
            return Err(Error::Format(format!(
                "{} bytes are too few for a queue system",
                region.length()
            )));
        }
        let get = |at: usize| region.u32(at).load(Ordering::Relaxed);
        let magic = region.u64(head::MAGIC).load(Ordering::Relaxed);
        if magic != MAGIC {
            return Err(Error::Format(format!(
                "the magic is {magic:#018x}, not that of a queue system"
            )));
        }
        if get(head::VERSION) != VERSION {
            return Err(Error::Format(format!(
                "the queue system has version {}, this is {VERSION}",
                get(head::VERSION)
            )));
        }
        let limit = region.u64(head::MEMORY_LIMIT).load(Ordering::Relaxed);
        let geometry = Geometry::from_numbers(
            get(head::QUEUES),
            get(head::USERS),
            get(head::PARTICIPANTS),
            get(head::BLOCKS),
            get(head::UNITS),
            limit,
        )?;
        if geometry.length() != region.length() {
            return Err(Error::Corrupt(format!(
                "the queue system has {} bytes, its head says {}",
                region.length(),
                geometry.length()
            )));
        }
        Ok(geometry)
    }

    /// Takes part in a formatted system.
    pub(super) fn join(region: Arc<Region>, memory: Memory) -> Result<Self> {
        let geometry = Driver::geometry_of(&region)?;
        let roster = Roster::join(&region, geometry.roster, None)?;
        Ok(Driver {
            region,
            geometry,
            roster,
            memory,
        })
    }

    /// Enters the monitor, runs `work` there and leaves; again and again while `work` asks for more memory.
    /// [`Error::TimedOut`] when a living holder does not leave in time.
    #[inline(always)]
    pub(super) fn inside<T>(
        &self,
        entry: impl Into<Entry>,
        mut work: impl FnMut(&Inside<'_>) -> Attempt<T>,
    ) -> Result<T> {
        let entry = entry.into();
        loop {
            let inside = Inside { driver: self };
            let lock = Lock::new(self.region.u64(head::LOCK), &self.roster)
                .members_only()
                .break_foreign_after(Some(FOREIGN));
            let repair = |_| inside.repair();
            let guard = match entry {
                Entry::Soon => lock.acquire_within(LOCK_PATIENCE, repair)?,
                Entry::Attempt => lock.acquire_within(ATTEMPT_PATIENCE, repair)?,
                Entry::As(wait) => lock.acquire(wait, repair)?,
            };
            // Here, not before: this line of memory is the lock's, and a look at it would fetch it twice.
            let segments = inside.get(head::SEGMENTS);
            if !self.memory.knows(segments) {
                drop(guard);
                self.memory.attach(segments)?;
                continue;
            }
            match work(&inside) {
                Ok(value) => return Ok(value),
                Err(Stop::Failed(error)) => return Err(error),
                Err(Stop::Grow(units)) => {
                    drop(guard);
                    self.grow(units)?;
                }
            }
        }
    }

    /// A word outside of the lock: a hint.
    #[inline]
    pub(super) fn word(&self, at: usize) -> u32 {
        self.region.u32(at).load(Ordering::Relaxed)
    }

    /// A word of a queue descriptor outside of the lock: a hint.
    #[inline]
    pub(super) fn queue_word(&self, slot: u32, field: usize) -> u32 {
        self.word(self.geometry.queue(slot) + field)
    }

    /// The signal in a word of a queue descriptor.
    pub(super) fn queue_signal(&self, slot: u32, field: usize) -> Signal<'_> {
        Signal::new(self.region.u32(self.geometry.queue(slot) + field))
    }

    /// The signal of all inserts.
    pub(super) fn any_insert(&self) -> Signal<'_> {
        Signal::new(self.region.u32(head::ANY_INSERT))
    }
}

/// What may be done by whoever holds the lock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inside<'a> {
    pub(super) driver: &'a Driver,
}

impl<'a> Inside<'a> {
    #[inline]
    pub(super) fn get(&self, at: usize) -> u32 {
        self.driver.word(at)
    }

    #[inline]
    pub(super) fn set(&self, at: usize, value: u32) {
        self.driver.region.u32(at).store(value, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn add(&self, at: usize, by: i32) {
        self.set(at, self.get(at).wrapping_add_signed(by));
    }

    /// Counts an event in a 64-bit word.
    #[inline]
    pub(super) fn count(&self, at: usize) {
        let word = self.driver.region.u64(at);
        word.store(word.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// The queue descriptor in `slot`, which was checked when the file was opened.
    #[inline]
    pub(super) fn queue(&self, slot: u32) -> Queue<'a> {
        Queue {
            slot,
            fields: Fields {
                region: &self.driver.region,
                at: self.driver.geometry.queue(slot),
            },
        }
    }

    pub(super) fn user(&self, index: u32) -> User<'a> {
        User(Fields {
            region: &self.driver.region,
            at: self.driver.geometry.user(index),
        })
    }

    /// The message descriptor with this number (from 1 on).
    #[inline(always)]
    pub(super) fn message(&self, number: u32) -> Result<Message<'a>> {
        self.find_message(number)
            .ok_or_else(|| Error::Corrupt(format!("there is no message descriptor {number}")))
    }

    #[inline(always)]
    fn find_message(&self, number: u32) -> Option<Message<'a>> {
        let index = number.checked_sub(1)?;
        let block = index / BLOCK;
        if block >= self.driver.geometry.blocks {
            return None;
        }
        let span = Span::from_word(self.get(self.driver.geometry.directory(block)))?;
        let (region, at) = self.driver.memory_at(span, BLOCK_UNITS)?;
        let at = at + UNIT + (index % BLOCK) as usize * descriptor::LENGTH;
        Some(Message {
            number,
            fields: Fields { region, at },
        })
    }
}

impl Driver {
    /// The memory of `units` units at `span`; `None` when they are not all inside their segment.
    #[inline(always)]
    pub(super) fn memory_at(&self, span: Span, units: u32) -> Option<(&Region, usize)> {
        let end = span.unit.checked_add(units)?;
        if span.segment == 0 {
            return (end <= self.geometry.units).then(|| (&*self.region, self.geometry.unit(span.unit)));
        }
        let region = self.memory.segment(span.segment)?;
        (end as usize * UNIT <= region.length()).then(|| (region, span.unit as usize * UNIT))
    }

    /// Units of a segment, the never used unit 0 included.
    pub(super) fn segment_units(&self, segment: u32) -> u32 {
        match segment {
            0 => self.geometry.units,
            _ => self
                .memory
                .segment(segment)
                .map_or(0, |region| (region.length() / UNIT) as u32),
        }
    }
}
