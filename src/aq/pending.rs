//! The places that the reader's walk has passed although they were not committed: looked at again until something comes of
//! them, or of their owners.
//!
//! A place is kept with the pages that were skipped there. A claim of several messages ([`super::run`]) becomes shorter when
//! it is committed: what it was taken for then falls into its first message and the pages behind it, which the walk has not
//! seen yet.

use super::control::Control;
use super::memory::Memory;
use super::owners::{Owner, Record};
use super::retrieved::Position;
use super::testpoint::{Point, reach};
use super::walk::{Seen, Walk};
use super::writer::{mark_claim, mark_waste};
use crate::Result;
use crate::shared::sync::spin;

/// A living owner is asked for again after this time.
const ASK_AGAIN_MS: u64 = 10;
/// A place that a dead writer may have lost to a writer without records: that one has so long to write its control word.
const SUSPICION_MS: u64 = 100;
/// Spins before the kernel is asked about the owner of a claim that was seen just now: most are committed by then.
const PATIENCE: u32 = if cfg!(loom) { 0 } else { 32 };

/// A place that was not committed when the walk came by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub(super) at: Position,
    /// The pages that were skipped; 0 where nothing was written, so that the walk went on with the next page.
    pages: u32,
    pub(super) seen_ms: u64,
    asked_ms: Option<u64>,
}

impl Pending {
    fn new(at: Position, pages: u32, seen_ms: u64) -> Self {
        Pending {
            at,
            pages,
            seen_ms,
            asked_ms: None,
        }
    }
}

/// What a look at the pending places is for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub(super) head: Position,
    /// Little room: expired claims are given out.
    pub(super) low: bool,
    pub(super) now_ms: u64,
    /// Nothing else is to be given out: ask for the owners.
    pub(super) idle: bool,
    /// Committed items are wanted.
    pub(super) committed: bool,
}

impl Walk {
    /// Keeps a place in mind at which `pages` pages are skipped: 0 where nothing was written.
    pub(super) fn remember(&mut self, at: Position, pages: u32, now_ms: u64) {
        self.pending.push_back(Pending::new(at, pages, now_ms));
        reach(Point::PastUncommitted);
    }

    /// Puts a place back that was given out with so many pages, so that it is given out again.
    pub(super) fn put_back(&mut self, at: Position, pages: u32, now_ms: u64) {
        let place = self.pending.partition_point(|pending| pending.at < at);
        self.pending.insert(place, Pending::new(at, pages, now_ms));
    }

    pub(super) fn next_pending(&mut self, memory: &Memory, look: Look) -> Result<Option<(Position, Control)>> {
        let Look {
            head,
            low,
            now_ms,
            idle,
            committed,
        } = look;
        let mut index = 0;
        let mut turning_back = self.pending.len();
        while let Some(&pending) = self.pending.get(index) {
            let mut seen = self.examine(memory, pending.at, head);
            let age = now_ms.saturating_sub(pending.seen_ms);
            let expired = age > u64::from(memory.geometry.commit_timeout_ms);
            let asked_again = pending.asked_ms.is_none_or(|asked| now_ms >= asked + ASK_AGAIN_MS);
            let ask = (idle && pending.asked_ms.is_none()) || (asked_again && age >= 1);
            if ask && matches!(seen, Seen::Claimed(..) | Seen::Unwritten) {
                self.pending[index].asked_ms = Some(now_ms);
                let (looked, dead) = self.ask(memory, pending, seen, head, age)?;
                seen = looked;
                if let (true, Seen::Claimed(control, pages)) = (dead, seen) {
                    self.take_pending(memory, index, pages);
                    return Ok(Some((pending.at, control)));
                }
            }
            if matches!(seen, Seen::Committed(..))
                && turning_back > 0
                && let Some(before) = self.written_since(memory, index, pending.at, head)
            {
                // Each turn finds another place written; the count is for words that somebody changes to and fro.
                turning_back -= 1;
                index = before;
                continue;
            }
            match seen {
                Seen::Committed(_, pages) if !committed => {
                    self.skip_pending(memory, index, pages);
                    index += 1;
                }
                Seen::Committed(control, pages) => {
                    self.take_pending(memory, index, pages);
                    return Ok(Some((pending.at, control)));
                }
                Seen::Claimed(control, pages) if expired && low => {
                    self.take_pending(memory, index, pages);
                    return Ok(Some((pending.at, control)));
                }
                Seen::Over(_, pages) | Seen::Freed(pages) => self.take_pending(memory, index, pages),
                Seen::Claimed(_, pages) => {
                    self.skip_pending(memory, index, pages);
                    index += 1;
                }
                Seen::Unwritten => index += 1,
            }
        }
        Ok(None)
    }

    /// The walk goes page by page over a claim that is not written down yet, so the committed item that it finds at `at` may be
    /// a message inside of one that was written down since: then the index of that place, from where to look again. `index`
    /// is that of the first pending place from `at` on.
    pub(super) fn written_since(&self, memory: &Memory, index: usize, at: Position, head: Position) -> Option<usize> {
        let (mut first, mut next) = (None, at);
        for before in (0..index).rev() {
            let pending = self.pending[before];
            if pending.pages > 0 || pending.at.turn != next.turn || pending.at.index + 1 != next.index {
                break;
            }
            // SYNC: run (with `Writer::put_run`): a message inside of a claim is committed after the claim is written down.
            if self.examine(memory, pending.at, head) != Seen::Unwritten {
                first = Some(before);
            }
            next = pending.at;
        }
        first
    }

    /// Forgets the pending places from `index` on: the walk comes by them again.
    pub(super) fn turn_back(&mut self, index: usize) {
        self.cursor = self.pending[index].at;
        self.pending.truncate(index);
    }

    /// A pending place stays one, with as many pages as it has now.
    fn skip_pending(&mut self, memory: &Memory, index: usize, pages: u32) {
        let pending = self.pending[index];
        self.pending[index].pages = pages;
        self.settle_extent(memory, index + 1, pending, pages);
    }

    /// Removes a pending place.
    fn take_pending(&mut self, memory: &Memory, index: usize, pages: u32) {
        let pending = self.pending.remove(index).expect("the caller found it");
        self.settle_extent(memory, index, pending, pages);
    }

    /// What was at `pending` turned out to have `pages` pages: more than it was taken for, when nothing was written yet, and
    /// then the interior pages that were taken for places are none; or less, and then the rest is to be looked at. `next` is
    /// the index of the first place behind it.
    fn settle_extent(&mut self, memory: &Memory, next: usize, pending: Pending, pages: u32) {
        let count = memory.geometry.page_count;
        let end = pending.at.advance(pages, count);
        while self.pending.get(next).is_some_and(|pending| pending.at < end) {
            self.pending.remove(next);
        }
        let skipped = pending.at.advance(pending.pages, count);
        if pending.pages <= pages {
            self.cursor = self.cursor.max(end);
        } else if self.cursor == skipped && next == self.pending.len() {
            self.cursor = end;
        } else {
            let rest = Pending::new(end, pending.pages - pages, pending.seen_ms);
            self.pending.insert(next, rest);
        }
    }

    /// Asks whether the owner of a pending place is dead. A claim that a dead writer had won but not written down is written
    /// in its name. Returns what is at the place now.
    fn ask(&self, memory: &Memory, pending: Pending, seen: Seen, head: Position, age: u64) -> Result<(Seen, bool)> {
        if memory.trailer.is_none() {
            return Ok((seen, false));
        }
        for _ in 0..PATIENCE {
            let looked = self.examine(memory, pending.at, head);
            if looked != seen {
                return Ok((looked, false));
            }
            spin();
        }
        let place = pending.at.reference();
        let owner = match seen {
            Seen::Claimed(control, _) => memory.owner_of_item(place, control)?,
            _ => memory.owner_of_place(place)?,
        };
        let record = match owner {
            Owner::Dead(record) => record,
            Owner::Suspected(record) if age >= SUSPICION_MS => record,
            _ => return Ok((seen, false)),
        };
        if !record.is_between(self.tail.reference(), head.reference(), &memory.geometry) {
            return Ok((seen, false));
        }
        // Dead: what it stored is visible now, a commit too.
        let mut seen = self.examine(memory, pending.at, head);
        if seen == Seen::Unwritten {
            self.write_claim_of_dead(memory, record, head);
            seen = self.examine(memory, pending.at, head);
        }
        Ok((seen, true))
    }

    /// Writes the words that a dead writer would have written next.
    fn write_claim_of_dead(&self, memory: &Memory, record: Record, head: Position) {
        record.settle(memory);
        let (place, waste) = record.place(&memory.geometry);
        if waste > 0 && record.head_before.is_between(self.tail.reference(), head.reference()) {
            mark_waste(memory, record.head_before);
        }
        mark_claim(memory, place, record.size);
    }
}
