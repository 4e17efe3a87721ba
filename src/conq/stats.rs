//! What a queue holds at a moment.

use super::arrivals::Arrivals;
use super::layout::header;
use super::queue::Queue;
use super::returned::Returned;
use super::timetable::Timetable;
use crate::Result;
use crate::shared::sync::Ordering::{Acquire, Relaxed};

/// A moment's view of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Never read.
    pub ready: u64,
    /// In somebody's hands.
    pub leased: u64,
    /// Came back, to be read first.
    pub expired: u64,
    /// Nanoseconds since the oldest of all of them was enqueued.
    pub oldest_age: Option<u64>,
    /// How many were ever enqueued.
    pub enqueued: u64,
    /// How often a survivor repaired what a dead process left in the middle of an operation.
    pub repairs: u32,
}

impl Queue {
    /// What the queue holds; looks at everything that was ever read and not finished.
    pub fn stats(&self, now: u64) -> Result<Stats> {
        self.check_usable()?;
        let mut stats = self.locked(now, |now| {
            self.maintain(now, u32::MAX)?;
            let space = &self.space;
            let mut slots = Timetable(space).slots()?;
            slots.extend(Returned(space).slots()?);
            slots.extend(Arrivals(space).first()?);
            let oldest = slots.iter().map(|slot| space.enqueued(*slot).load(Relaxed)).min();
            Ok(Stats {
                ready: Arrivals(space).count(),
                leased: Timetable(space).len()?.into(),
                expired: Returned(space).len().into(),
                oldest_age: oldest.map(|oldest| now.saturating_sub(oldest)),
                enqueued: 0,
                repairs: space.narrow(header::REPAIRS).load(Relaxed),
            })
        })?;
        stats.enqueued = self.space.wide(header::TAIL).load(Relaxed);
        Ok(stats)
    }

    /// How many messages it holds, in all phases, as far as one look can tell.
    pub fn len(&self) -> u64 {
        let removed = self.space.wide(header::REMOVED).load(Acquire);
        let tail = self.space.wide(header::TAIL).load(Acquire);
        tail.saturating_sub(removed)
            .min(self.space.geometry.max_messages.into())
    }

    /// Whether it holds no message in any phase.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// When the next lease ends, on the queue's clock: a hint for sleepers.
    pub fn next_expiry(&self) -> Option<u64> {
        let first = Timetable(&self.space).first().ok().flatten();
        first.map(|(deadline, _)| deadline)
    }
}
