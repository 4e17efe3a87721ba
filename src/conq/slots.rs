//! Slots for messages: claimed by producers without a lock, given back, and the segments that hold them.
//!
//! The state word decides who has a slot: claiming is one compare-and-swap from free to filling. The bits that say where a
//! free slot might be are hints. A bit can be wrong after a death, and then costs a look or hides a slot until
//! [`Slots::refresh_hints`]; it never gives one slot to two.
//!
//! # How a hint is not lost
//! Whoever finds a group without a free slot says so one level up and then looks at the group once more; whoever frees a slot
//! sets its bit and then looks one level up. All four are sequentially consistent, so one of the two sees the other.
//!
//! # How a segment changes its class
//! The holder of the queue's lock marks it as retiring and then looks at all its state words; a producer that has claimed a
//! slot looks at the segment's word once more. Again one sees the other: either the segment stays, or the producer lets go.

use super::layout::{Geometry, RETIRING, Slot};
use super::space::Space;
use super::state::{FREE, State, Tag};
use crate::shared::sync::Ordering::{Relaxed, Release, SeqCst};
use crate::{Error, Result};

/// More failed looks than any honest race can cause.
const PATIENCE: u32 = 1 << 20;

/// The slots of a queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slots<'a>(pub(super) &'a Space);

impl Slots<'_> {
    /// Claims a slot of the right size for a message of `length` bytes; `None` when there is neither one free nor memory that
    /// was never used.
    #[inline(always)]
    pub(super) fn claim(&self, length: usize, owner: Tag) -> Result<Option<Slot>> {
        let class = self.class_for(length)?;
        for _ in 0..PATIENCE {
            if let Some(slot) = self.claim_in(class, owner) {
                return Ok(Some(slot));
            }
            if !self.add_segment(class)? {
                break;
            }
        }
        Ok(None)
    }

    /// Claims a larger slot than the message needs: better than none.
    pub(super) fn claim_larger(&self, length: usize, owner: Tag) -> Result<Option<Slot>> {
        let larger = self.class_for(length)? + 1..self.0.geometry.classes();
        Ok(larger.into_iter().find_map(|class| self.claim_in(class, owner)))
    }

    #[inline]
    fn class_for(&self, length: usize) -> Result<usize> {
        let geometry = &self.0.geometry;
        geometry.class_for(length).ok_or(Error::TooLarge {
            size: length as u64,
            limit: geometry.max_message_size.into(),
        })
    }

    #[inline(always)]
    fn claim_in(&self, class: usize, owner: Tag) -> Option<Slot> {
        let geometry = &self.0.geometry;
        for word in 0..geometry.open_words() {
            let open = self.0.wide(geometry.open_word(class, word));
            for _ in 0..PATIENCE {
                let hint = open.load(SeqCst);
                if hint == 0 {
                    break;
                }
                let bit = hint & hint.wrapping_neg();
                let segment = word as u32 * 64 + bit.trailing_zeros();
                if segment >= geometry.segments {
                    break;
                }
                if self.0.class_of(segment) == Some(class) {
                    if let Some(slot) = self.claim_in_segment(segment, class, owner) {
                        return Some(slot);
                    }
                    open.fetch_and(!bit, SeqCst);
                    if self.some_group(segment, class).is_none() {
                        continue;
                    }
                    open.fetch_or(bit, SeqCst);
                } else {
                    open.fetch_and(!bit, SeqCst);
                }
            }
        }
        None
    }

    #[inline(always)]
    fn claim_in_segment(&self, segment: u32, class: usize, owner: Tag) -> Option<Slot> {
        let geometry = &self.0.geometry;
        let claimed = State::Filling(owner).word();
        for _ in 0..PATIENCE {
            let group = self.some_group(segment, class)?;
            let taken = self.0.wide(geometry.taken(segment, group));
            let free = !taken.load(SeqCst) & group_mask(geometry, class, group);
            if free == 0 {
                let full = self.0.wide(geometry.full_groups(segment));
                full.fetch_or(1 << group, SeqCst);
                if !taken.load(SeqCst) & group_mask(geometry, class, group) != 0 {
                    full.fetch_and(!(1 << group), SeqCst);
                }
                continue;
            }
            let bit = free & free.wrapping_neg();
            if taken.fetch_or(bit, SeqCst) & bit != 0 {
                continue;
            }
            let slot = geometry.slot_at(segment, class, group * 64 + bit.trailing_zeros());
            // SYNC: slot (with `free`): the new owner sees that the last one is done with it.
            if self
                .0
                .state(slot)
                .compare_exchange(FREE, claimed, SeqCst, Relaxed)
                .is_err()
            {
                continue;
            }
            if self.0.class_of(segment) == Some(class) {
                return Some(slot);
            }
            self.0.state(slot).store(FREE, SeqCst);
            return None;
        }
        None
    }

    /// A group of the segment that may have a free slot.
    #[inline]
    fn some_group(&self, segment: u32, class: usize) -> Option<u32> {
        let geometry = &self.0.geometry;
        let full = self.0.wide(geometry.full_groups(segment)).load(SeqCst);
        let groups = geometry.slots_in_segment(class).div_ceil(64);
        let open = !full & low_bits(groups);
        (open != 0).then(|| open.trailing_zeros())
    }

    /// Gives a slot back: from now on its message does not exist. Only its owner may.
    #[inline(always)]
    pub(super) fn free(&self, slot: Slot) {
        // SYNC: slot (with `claim_in_segment`). No claimer has to see it before it sees the hint.
        self.0.state(slot).store(FREE, Release);
        if let Some(class) = self.0.class_of(self.0.geometry.segment_of(slot)) {
            self.offer(slot, class);
        }
    }

    /// Sets the hints for a free slot.
    #[inline(always)]
    fn offer(&self, slot: Slot, class: usize) {
        let geometry = &self.0.geometry;
        let Some(index) = geometry.index_of(slot, class) else {
            return;
        };
        let (segment, group) = (geometry.segment_of(slot), index / 64);
        self.0
            .wide(geometry.taken(segment, group))
            .fetch_and(!(1 << (index % 64)), SeqCst);
        let full = self.0.wide(geometry.full_groups(segment));
        if full.load(SeqCst) & 1 << group != 0 {
            full.fetch_and(!(1 << group), SeqCst);
        }
        self.open(segment, class);
    }

    #[inline]
    fn open(&self, segment: u32, class: usize) {
        let open = self.0.wide(self.0.geometry.open_word(class, segment as usize / 64));
        let bit = 1 << (segment % 64);
        if open.load(SeqCst) & bit == 0 {
            open.fetch_or(bit, SeqCst);
        }
    }

    /// Takes a segment into use for this class; false when all are in use. Zeroed memory is a segment of free slots, so
    /// whoever dies here leaves either nothing or a whole segment.
    #[cold]
    fn add_segment(&self, class: usize) -> Result<bool> {
        let geometry = &self.0.geometry;
        for segment in 0..geometry.segments {
            let word = self.0.narrow(geometry.table_word(segment));
            match word.load(Relaxed) {
                0 => {}
                // Somebody has just added it and not said so yet, or died before.
                used if used == class as u32 + 1 && self.some_group(segment, class).is_some() => {
                    self.open(segment, class);
                    return Ok(true);
                }
                _ => continue,
            }
            let (offset, length) = geometry.segment(segment);
            self.0.region.allocate(offset, length)?;
            let added = word.compare_exchange(0, class as u32 + 1, SeqCst, SeqCst);
            if added.is_ok() || added == Err(class as u32 + 1) {
                self.open(segment, class);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Gives a wholly free segment of another class to this one; the caller holds the queue's lock.
    pub(super) fn reassign_segment(&self, length: usize) -> bool {
        let geometry = &self.0.geometry;
        let Some(class) = geometry.class_for(length) else {
            return false;
        };
        for segment in 0..geometry.segments {
            let Some(before) = self.0.class_of(segment).filter(|before| *before != class) else {
                continue;
            };
            let word = self.0.narrow(geometry.table_word(segment));
            word.store((before as u32 + 1) | RETIRING, SeqCst);
            let slots = geometry.slots_in_segment(before);
            let unused = (0..slots).all(|index| {
                let slot = geometry.slot_at(segment, before, index);
                self.0.state(slot).load(SeqCst) == FREE
            });
            if !unused {
                word.store(before as u32 + 1, SeqCst);
                continue;
            }
            for group in 0..slots.div_ceil(64) {
                self.0.wide(geometry.taken(segment, group)).store(0, SeqCst);
            }
            self.0.wide(geometry.full_groups(segment)).store(0, SeqCst);
            word.store(class as u32 + 1, SeqCst);
            self.open(segment, class);
            return true;
        }
        false
    }

    /// Finishes what a dead `reassign_segment` began; the caller holds the queue's lock.
    pub(super) fn settle_segments(&self) {
        for segment in 0..self.0.geometry.segments {
            let word = self.0.narrow(self.0.geometry.table_word(segment));
            let seen = word.load(Relaxed);
            if seen & RETIRING != 0 {
                word.store(seen & !RETIRING, SeqCst);
            }
        }
    }

    /// Sets the hints of a slot that is free but may be hidden; harmless when it is not.
    pub(super) fn refresh_hints(&self, slot: Slot) {
        if let Some(class) = self.0.class_of(self.0.geometry.segment_of(slot)) {
            self.offer(slot, class);
        }
    }
}

#[inline]
fn group_mask(geometry: &Geometry, class: usize, group: u32) -> u64 {
    low_bits((geometry.slots_in_segment(class) - group * 64).min(64))
}

#[inline]
fn low_bits(count: u32) -> u64 {
    if count >= 64 { u64::MAX } else { (1 << count) - 1 }
}
