//! The memory of a queue seen through its layout: each word by name.
//!
//! Nothing here decides anything. Numbers read from the memory are checked by the layout before they become slots.

use std::sync::Arc;

use super::layout::{Geometry, Slot, header, slot};
use super::state::State;
use crate::shared::region::Region;
use crate::shared::sync::{AtomicU32, AtomicU64, Ordering};
use crate::{Error, Result};

/// A region together with its checked geometry.
#[derive(Debug)]
pub(super) struct Space {
    pub(super) region: Arc<Region>,
    pub(super) geometry: Geometry,
}

impl Space {
    #[inline]
    pub(super) fn narrow(&self, offset: usize) -> &AtomicU32 {
        self.region.u32(offset)
    }

    #[inline]
    pub(super) fn wide(&self, offset: usize) -> &AtomicU64 {
        self.region.u64(offset)
    }

    #[inline]
    pub(super) fn state(&self, slot: Slot) -> &AtomicU32 {
        self.region.u32(self.geometry.state(slot))
    }

    /// What the state word says now; a word that nobody writes is damage.
    #[inline]
    pub(super) fn load_state(&self, slot: Slot) -> Result<State> {
        // SYNC: message (with the stores of `Ready`, `Leased` and `Expired`)
        let word = self.state(slot).load(Ordering::Acquire);
        State::from_word(word).ok_or_else(|| damaged("state word", word.into()))
    }

    #[inline]
    pub(super) fn length(&self, slot: Slot) -> &AtomicU32 {
        self.region.u32(self.geometry.field(slot, slot::LENGTH))
    }

    #[inline]
    pub(super) fn link(&self, slot: Slot) -> &AtomicU32 {
        self.region.u32(self.geometry.field(slot, slot::LINK))
    }

    #[inline]
    pub(super) fn id(&self, slot: Slot) -> &AtomicU64 {
        self.region.u64(self.geometry.field(slot, slot::ID))
    }

    #[inline]
    pub(super) fn enqueued(&self, slot: Slot) -> &AtomicU64 {
        self.region.u64(self.geometry.field(slot, slot::ENQUEUED))
    }

    #[inline]
    pub(super) fn deadline(&self, slot: Slot) -> &AtomicU64 {
        self.region.u64(self.geometry.field(slot, slot::DEADLINE))
    }

    /// A slot whose number was found in the memory.
    #[inline]
    pub(super) fn slot(&self, number: u32) -> Result<Slot> {
        self.geometry
            .slot(number)
            .ok_or_else(|| damaged("slot number", number.into()))
    }

    /// The size class of a segment; `None` while it has none, or changes it.
    #[inline]
    pub(super) fn class_of(&self, segment: u32) -> Option<usize> {
        let word = self.narrow(self.geometry.table_word(segment)).load(Ordering::SeqCst);
        let class = (word as usize).checked_sub(1)?;
        (class < self.geometry.classes()).then_some(class)
    }

    /// Every slot that its segment's size class makes, in use or not.
    pub(super) fn slots(&self) -> impl Iterator<Item = Slot> + '_ {
        (0..self.geometry.segments)
            .filter_map(move |segment| Some((segment, self.class_of(segment)?)))
            .flat_map(move |(segment, class)| {
                (0..self.geometry.slots_in_segment(class))
                    .map(move |index| self.geometry.slot_at(segment, class, index))
            })
    }

    /// Gives the ring, the heap or whatever else starts at `offset(0)` its space up to entry `index`, in steps of some pages.
    /// `allocated` counts the entries that have it.
    #[inline]
    pub(super) fn allocate_up_to(
        &self,
        allocated: usize,
        index: u64,
        entries: u64,
        offset: impl Fn(u64) -> usize,
    ) -> Result<()> {
        const STEP: u64 = 4096;
        let word = self.narrow(allocated);
        if index < u64::from(word.load(Ordering::Relaxed)) {
            return Ok(());
        }
        let end = (index + 1).next_multiple_of(STEP).min(entries);
        let (first, last) = (offset(index / STEP * STEP), offset(end - 1));
        self.region.allocate(first, last - first + 16)?;
        // Somebody else may have given more by now.
        word.fetch_max(end as u32, Ordering::Release);
        Ok(())
    }

    pub(super) fn is_deleted(&self) -> bool {
        self.narrow(header::DELETED).load(Ordering::Relaxed) != 0
    }
}

/// Damage that shows in one word.
#[cold]
pub(super) fn damaged(what: &str, value: u64) -> Error {
    Error::Corrupt(format!("{value:#x} is no {what}"))
}
