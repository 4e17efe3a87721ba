//! The pools that all queues share: message buffers by size, message descriptors in blocks of ten (sections 2.4, 2.5).
//!
//! Empty buffers stand in lists, one for each size, in the order of size: the first list that is not empty and whose buffers
//! are large enough is first fit and best fit at once. When there is none, memory that was never handed out is used, and
//! when that is gone a further segment is fetched (GETSPACE). Buffers of a removed message go back to their list.
//!
//! Nothing here is the truth: a buffer or descriptor that no message descriptor names is free, whatever the lists say.

use super::driver::{Attempt, Inside, Stop};
use super::layout::{
    BLOCK, BLOCK_CLASS, BLOCK_UNITS, CLASSES, MessageState, Place, Span, UNIT, class_for, class_units, descriptor,
    head, units_for,
};
use super::records::Message;
use crate::shared::region::Region;
use crate::shared::sync::Ordering;
use crate::{Error, Result};

/// A buffer is split when it is four times too large and has at least this many units.
const SPLIT: u32 = 64;

/// A piece of S-memory with its size class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Buffer {
    pub(super) span: Span,
    pub(super) class: u32,
}

impl<'a> Inside<'a> {
    /// Memory of `units` units, from the pool or never used before.
    #[inline(always)]
    pub(super) fn take_memory(&self, units: u32) -> Attempt<Buffer> {
        let class = class_for(units).ok_or(Stop::Grow(units))?;
        if let Some(found) = self.first_list_from(class) {
            return Ok(self.take_from_list(found, class)?);
        }
        self.take_fresh(class).ok_or(Stop::Grow(units))
    }

    /// A message buffer for `bytes` bytes.
    #[inline(always)]
    pub(super) fn take_buffer(&self, bytes: usize) -> Attempt<Buffer> {
        let buffer = self.take_memory(units_for(bytes))?;
        self.add(head::BUFFERS_IN_USE, 1);
        Ok(buffer)
    }

    /// A message buffer goes back to the pool.
    #[inline(always)]
    pub(super) fn return_buffer(&self, buffer: Buffer) -> Result<()> {
        self.add(head::BUFFERS_IN_USE, -1);
        self.return_memory(buffer)
    }

    #[inline(always)]
    pub(super) fn return_memory(&self, buffer: Buffer) -> Result<()> {
        if buffer.class >= CLASSES {
            return Err(Error::Corrupt(format!("no buffer has size class {}", buffer.class)));
        }
        let (region, at) = self.memory_of(buffer)?;
        let list = head::POOL + 4 * buffer.class as usize;
        region.u32(at).store(self.get(list), Ordering::Relaxed);
        self.set(list, buffer.span.word());
        self.mark_list(buffer.class, true);
        self.add(head::BUFFERS_IN_POOL, 1);
        Ok(())
    }

    #[inline(always)]
    pub(super) fn memory_of(&self, buffer: Buffer) -> Result<(&'a Region, usize)> {
        self.driver
            .memory_at(buffer.span, class_units(buffer.class))
            .ok_or_else(|| Error::Corrupt(format!("no buffer of class {} is at {:?}", buffer.class, buffer.span)))
    }

    #[inline(always)]
    fn first_list_from(&self, class: u32) -> Option<u32> {
        let mask = |half: u32| {
            let word = self.driver.region.u64(head::POOL_MASK + 8 * half as usize);
            word.load(Ordering::Relaxed)
        };
        let low = if class < 64 { mask(0) & (u64::MAX << class) } else { 0 };
        let high = mask(1) & if class < 64 { u64::MAX } else { u64::MAX << (class - 64) };
        let found = match (low, high) {
            (0, 0) => return None,
            (0, high) => 64 + high.trailing_zeros(),
            (low, _) => low.trailing_zeros(),
        };
        (found < CLASSES).then_some(found)
    }

    #[inline(always)]
    fn mark_list(&self, class: u32, filled: bool) {
        let word = self.driver.region.u64(head::POOL_MASK + 8 * (class / 64) as usize);
        let bit = 1 << (class % 64);
        let mask = word.load(Ordering::Relaxed);
        word.store(if filled { mask | bit } else { mask & !bit }, Ordering::Relaxed);
    }

    #[inline(always)]
    fn take_from_list(&self, found: u32, wanted: u32) -> Result<Buffer> {
        let list = head::POOL + 4 * found as usize;
        let word = self.get(list);
        let span = Span::from_word(word).ok_or_else(|| Error::Corrupt(format!("the pool names a buffer {word:#x}")))?;
        let buffer = Buffer { span, class: found };
        let (region, at) = self.memory_of(buffer)?;
        let next = region.u32(at).load(Ordering::Relaxed);
        self.set(list, next);
        if next == 0 {
            self.mark_list(found, false);
        }
        self.add(head::BUFFERS_IN_POOL, -1);
        let (units, needed) = (class_units(found), class_units(wanted));
        if units < SPLIT || units / 4 < needed {
            return Ok(buffer);
        }
        let rest = Span {
            segment: span.segment,
            unit: span.unit + needed,
        };
        self.return_span(rest, units - needed)?;
        Ok(Buffer { span, class: wanted })
    }

    /// Gives a piece of any length to the pool, cut into buffers of full size classes.
    pub(super) fn return_span(&self, mut span: Span, mut units: u32) -> Result<()> {
        while units > 0 {
            let class = match class_for(units) {
                Some(class) if class_units(class) == units => class,
                Some(class) => class - 1,
                None => CLASSES - 1,
            };
            self.return_memory(Buffer { span, class })?;
            span.unit += class_units(class);
            units -= class_units(class);
        }
        Ok(())
    }

    fn take_fresh(&self, class: u32) -> Option<Buffer> {
        let needed = class_units(class);
        let segments = self.get(head::SEGMENTS).min(super::layout::SEGMENTS);
        (0..segments).rev().find_map(|segment| {
            let fresh = head::FRESH + 4 * segment as usize;
            let unit = self.get(fresh).max(1);
            let end = unit.checked_add(needed)?;
            if end > self.driver.segment_units(segment) {
                return None;
            }
            self.set(fresh, end);
            let span = Span { segment, unit };
            Some(Buffer { span, class })
        })
    }

    /// A zeroed-out message descriptor, marked as being filled by `user`.
    #[inline(always)]
    pub(super) fn take_descriptor(&self, user: u32) -> Attempt<Message<'a>> {
        if self.get(head::FREE_DESCRIPTOR) == 0 {
            self.add_block()?;
        }
        let message = self.message(self.get(head::FREE_DESCRIPTOR))?;
        if message.state() != MessageState::Free {
            return Err(Error::Corrupt(format!("message descriptor {} is free and in use", message.number)).into());
        }
        self.set(head::FREE_DESCRIPTOR, message.get(descriptor::NEXT));
        self.add(head::DESCRIPTORS_IN_USE, 1);
        let stamp = self.driver.region.u64(head::STAMP);
        let number = stamp.load(Ordering::Relaxed);
        stamp.store(number.wrapping_add(1), Ordering::Relaxed);
        message.set_pair(descriptor::STAMP, number);
        message.set_place(Place::Nowhere);
        message.set(descriptor::OTHER, 0);
        message.set_state(MessageState::Filling(user));
        Ok(message)
    }

    /// The descriptor is free again; what it named must have been returned.
    #[inline(always)]
    pub(super) fn return_descriptor(&self, message: &Message<'_>) {
        message.set_state(MessageState::Free);
        message.set(descriptor::NEXT, self.get(head::FREE_DESCRIPTOR));
        self.set(head::FREE_DESCRIPTOR, message.number);
        self.add(head::DESCRIPTORS_IN_USE, -1);
    }

    pub(super) fn block_memory(&self, block: u32) -> Option<(&'a Region, usize)> {
        let span = Span::from_word(self.get(self.driver.geometry.directory(block)))?;
        self.driver.memory_at(span, BLOCK_UNITS)
    }

    /// Fetches another block of ten.
    #[cold]
    fn add_block(&self) -> Attempt<()> {
        let used = self.blocks_used();
        let hole = match self.get(head::BLOCK_HOLES) {
            0 => None,
            _ => (0..used).find(|&block| self.get(self.driver.geometry.directory(block)) == 0),
        };
        let block = hole.unwrap_or(used);
        if block >= self.driver.geometry.blocks {
            return Err(Error::Full(format!(
                "the queue system holds {} messages, its limit",
                self.driver.geometry.blocks * BLOCK
            ))
            .into());
        }
        let buffer = self.take_memory(BLOCK_UNITS)?;
        let (region, at) = self.memory_of(buffer)?;
        region.fill(at, BLOCK_UNITS as usize * UNIT, 0);
        region.u32(at + BLOCK_CLASS).store(buffer.class, Ordering::Relaxed);
        self.set(self.driver.geometry.directory(block), buffer.span.word());
        if hole.is_some() {
            self.add(head::BLOCK_HOLES, -1);
        } else {
            self.set(head::BLOCKS_USED, block + 1);
        }
        for number in (block * BLOCK + 1..=block * BLOCK + BLOCK).rev() {
            let message = self.message(number)?;
            message.set(descriptor::NEXT, self.get(head::FREE_DESCRIPTOR));
            self.set(head::FREE_DESCRIPTOR, number);
        }
        Ok(())
    }

    /// Blocks of ten in memory.
    pub(super) fn blocks(&self) -> u32 {
        self.get(head::BLOCKS_USED).saturating_sub(self.get(head::BLOCK_HOLES))
    }

    /// Gives blocks without a used descriptor back, all but one (behaviour 21).
    pub(super) fn survey_blocks(&self) -> Result<()> {
        let mut kept = self.blocks();
        let mut freed = false;
        for block in (0..self.blocks_used()).rev() {
            let entry = self.driver.geometry.directory(block);
            let span = Span::from_word(self.get(entry));
            let memory = span.and_then(|span| Some((span, self.driver.memory_at(span, BLOCK_UNITS)?)));
            let Some((span, (region, at))) = memory else {
                continue;
            };
            if kept <= 1 || self.descriptors_of(block).any(|m| m.state() != MessageState::Free) {
                continue;
            }
            let class = region.u32(at + BLOCK_CLASS).load(Ordering::Relaxed);
            self.set(entry, 0);
            self.add(head::BLOCK_HOLES, 1);
            self.return_memory(Buffer { span, class })?;
            kept -= 1;
            freed = true;
        }
        if freed {
            self.list_free_descriptors();
        }
        Ok(())
    }

    /// Makes the list of free descriptors anew, and the count of used ones.
    pub(super) fn list_free_descriptors(&self) {
        let (mut first, mut in_use) = (0, 0);
        for block in (0..self.blocks_used()).rev() {
            for message in self.descriptors_of(block).rev() {
                if message.state() == MessageState::Free {
                    message.set(descriptor::NEXT, first);
                    first = message.number;
                } else {
                    in_use += 1;
                }
            }
        }
        self.set(head::FREE_DESCRIPTOR, first);
        self.set(head::DESCRIPTORS_IN_USE, in_use);
    }

    /// Directory entries that may name a block.
    pub(super) fn blocks_used(&self) -> u32 {
        self.get(head::BLOCKS_USED).min(self.driver.geometry.blocks)
    }

    fn descriptors_of(&self, block: u32) -> impl DoubleEndedIterator<Item = Message<'a>> + use<'a> {
        let this = *self;
        (block * BLOCK + 1..=block * BLOCK + BLOCK).filter_map(move |number| this.message(number).ok())
    }

    /// Every message descriptor there is.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = Message<'a>> + use<'a> {
        let this = *self;
        (0..self.blocks_used()).flat_map(move |block| this.descriptors_of(block))
    }
}
