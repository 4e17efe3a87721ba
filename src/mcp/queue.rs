//! One member queue: a list of messages, added at the back or at the top, removed from the front (section 1.0, 6.2).
//!
//! A message is added in two steps, so that no text is ever copied or written to disk that others can see half-made:
//! [`Inside::begin`] takes a descriptor and a place and marks them as being filled, [`Inside::finish`] puts it into the list.
//! It is removed by one store: its state word becomes free. Everything else follows (see `layout.rs`).

use super::driver::{Attempt, Inside};
use super::layout::{BLOCK, MessageState, Place, QueueState, Span, UNIT, class_units, descriptor, head, queue};
use super::pool::Buffer;
use super::records::{Message, Queue};
use crate::shared::region::Region;
use crate::shared::sync::Ordering;
use crate::{Error, Result};

/// Where the order of messages begins; there is room for 2^63 at the back and as many at the top.
pub(super) const FIRST_ORDER: u64 = 1 << 63;

/// The Q-key of behaviour 11: which queue, and which use of its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct QKey {
    /// Number of the queue descriptor.
    pub(super) slot: u32,
    /// Tells this queue from others that had the slot before.
    pub(super) generation: u32,
}

/// One use of a message descriptor by one user: what a two-step operation keeps while it is outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ticket {
    /// Number of the descriptor.
    pub(super) number: u32,
    /// Tells this use of it from all others.
    pub(super) stamp: u64,
}

/// The end at which a message is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The normal one.
    Back,
    /// WRITE ... TOP.
    Top,
}

/// What a reader finds.
#[derive(Debug)]
pub(super) enum Next<'a> {
    /// The message to take.
    Message(Message<'a>),
    /// It is on its way between memory and disk: look again in a moment.
    Moving,
    /// Nothing that is not in somebody's hands.
    Nothing,
}

impl<'a> Inside<'a> {
    /// The queue behind a Q-key.
    #[inline(always)]
    pub(super) fn live(&self, key: QKey) -> Result<Queue<'a>> {
        let queue = self.queue(key.slot);
        let same = queue.state() == QueueState::Live && queue.get(queue::GENERATION) == key.generation;
        if same { Ok(queue) } else { Err(gone(key)) }
    }

    /// Takes a descriptor and a place for a message of `size` bytes. `spill` asks for a place on the queue disk.
    #[inline(always)]
    pub(super) fn begin(&self, q: &Queue<'_>, user: u32, size: usize, spill: bool) -> Attempt<Message<'a>> {
        // Before anything changes: what can fail for want of memory comes first, and is complete in itself.
        let buffer = if spill { None } else { Some(self.take_buffer(size)?) };
        let message = match self.take_descriptor(user) {
            Ok(message) => message,
            Err(stop) => {
                if let Some(buffer) = buffer {
                    self.return_buffer(buffer)?;
                }
                return Err(stop);
            }
        };
        message.set(descriptor::QUEUE, q.slot);
        message.set(descriptor::GENERATION, q.get(queue::GENERATION));
        message.set(descriptor::SIZE, size as u32);
        match buffer {
            Some(buffer) => {
                message.set(descriptor::CLASS, buffer.class);
                message.set_place(Place::Memory(buffer.span));
                q.add(queue::IN_MEMORY, 1);
            }
            None => message.set_place(Place::Disk(self.take_disk_slot(q)?)),
        }
        q.add(queue::OCCUPIED, 1);
        Ok(message)
    }

    /// Puts a filled message into the list, for anybody to read.
    #[inline(always)]
    pub(super) fn finish(&self, q: &Queue<'_>, message: &Message<'_>, end: End) -> Result<()> {
        let counter = if end == End::Back { queue::BACK } else { queue::TOP };
        let order = q.get_wide(counter);
        let next = if end == End::Back {
            order.wrapping_add(1)
        } else {
            order.wrapping_sub(1)
        };
        q.set_wide(counter, next);
        message.set_pair(descriptor::ORDER, order);
        message.set_state(MessageState::Queued);
        let (first, last) = (q.get(queue::FIRST), q.get(queue::LAST));
        let (previous, next) = if end == End::Back { (last, 0) } else { (0, first) };
        message.set(descriptor::PREVIOUS, previous);
        message.set(descriptor::NEXT, next);
        match previous {
            0 => q.set(queue::FIRST, message.number),
            _ => self.message(previous)?.set(descriptor::NEXT, message.number),
        }
        match next {
            0 => q.set(queue::LAST, message.number),
            _ => self.message(next)?.set(descriptor::PREVIOUS, message.number),
        }
        if end == End::Top || q.get(queue::CURSOR) == 0 {
            q.set(queue::CURSOR, message.number);
        }
        q.add(queue::AVAILABLE, 1);
        q.count(queue::WRITTEN);
        Ok(())
    }

    /// The first message that is in nobody's hands.
    #[inline(always)]
    pub(super) fn next(&self, q: &Queue<'_>) -> Result<Next<'a>> {
        let mut number = q.get(queue::CURSOR);
        for _ in 0..=self.most_messages(q) {
            if number == 0 {
                q.set(queue::CURSOR, 0);
                return Ok(Next::Nothing);
            }
            let message = self.message(number)?;
            match message.state() {
                MessageState::Queued => {
                    q.set(queue::CURSOR, number);
                    return Ok(Next::Message(message));
                }
                MessageState::Moving(_) => return Ok(Next::Moving),
                MessageState::Held(_) => number = message.get(descriptor::NEXT),
                other => return Err(bad_list(q.slot, number, &format!("is {other:?}"))),
            }
        }
        Err(bad_list(q.slot, number, "comes twice"))
    }

    /// Takes a message out of the queue for good; this is the moment at which it is read.
    #[inline(always)]
    pub(super) fn remove(&self, q: &Queue<'_>, message: &Message<'_>) -> Result<()> {
        let (state, place) = (message.state(), message.place());
        message.set_state(MessageState::Free);
        self.unlink(q, message)?;
        match state {
            MessageState::Held(_) => q.add(queue::HELD, -1),
            _ => q.add(queue::AVAILABLE, -1),
        }
        q.count(queue::READ);
        self.discard(q, message, place)
    }

    /// Frees a descriptor that is in no list, with its place.
    #[inline(always)]
    pub(super) fn discard(&self, q: &Queue<'_>, message: &Message<'_>, place: Place) -> Result<()> {
        message.set_state(MessageState::Free);
        q.add(queue::OCCUPIED, -1);
        match place {
            Place::Memory(span) => {
                q.add(queue::IN_MEMORY, -1);
                let class = message.get(descriptor::CLASS);
                self.return_buffer(Buffer { span, class })?;
            }
            Place::Disk(slot) => self.return_disk_slot(q, slot)?,
            Place::Nowhere => {}
        }
        self.return_descriptor(message);
        Ok(())
    }

    #[inline(always)]
    fn unlink(&self, q: &Queue<'_>, message: &Message<'_>) -> Result<()> {
        let (previous, next) = (message.get(descriptor::PREVIOUS), message.get(descriptor::NEXT));
        match previous {
            0 => q.set(queue::FIRST, next),
            _ => self.message(previous)?.set(descriptor::NEXT, next),
        }
        match next {
            0 => q.set(queue::LAST, previous),
            _ => self.message(next)?.set(descriptor::PREVIOUS, previous),
        }
        if q.get(queue::CURSOR) == message.number {
            q.set(queue::CURSOR, next);
        }
        Ok(())
    }

    /// Marks a message as in the hands of `user`; it keeps its place in the list.
    #[inline]
    pub(super) fn hold(&self, q: &Queue<'_>, message: &Message<'_>, user: u32) {
        message.set_state(MessageState::Held(user));
        q.add(queue::AVAILABLE, -1);
        q.add(queue::HELD, 1);
        if q.get(queue::CURSOR) == message.number {
            q.set(queue::CURSOR, message.get(descriptor::NEXT));
        }
    }

    /// A message in somebody's hands is anybody's again, in its old place.
    pub(super) fn give_back(&self, q: &Queue<'_>, message: &Message<'_>) -> Result<()> {
        message.set_state(MessageState::Queued);
        q.add(queue::AVAILABLE, 1);
        q.add(queue::HELD, -1);
        q.count(queue::GIVEN_BACK);
        let cursor = q.get(queue::CURSOR);
        let order = message.get_pair(descriptor::ORDER);
        if cursor == 0 || order < self.message(cursor)?.get_pair(descriptor::ORDER) {
            q.set(queue::CURSOR, message.number);
        }
        Ok(())
    }

    /// The message of a ticket, if it still is what it was when the ticket was made.
    pub(super) fn redeem(&self, ticket: Ticket, state: MessageState) -> Option<Message<'a>> {
        let message = self.message(ticket.number).ok()?;
        (message.state() == state && message.stamp() == ticket.stamp).then_some(message)
    }

    /// The memory of a message's text, after checking that it is all there.
    #[inline(always)]
    pub(super) fn text(&self, message: &Message<'_>, span: Span, class: u32) -> Result<(&'a Region, usize, usize)> {
        let size = message.get(descriptor::SIZE) as usize;
        let (region, at) = self.memory_of(Buffer { span, class })?;
        if size > class_units(class) as usize * UNIT {
            return Err(bad_list(
                message.get(descriptor::QUEUE),
                message.number,
                "is longer than its buffer",
            ));
        }
        Ok((region, at, size))
    }

    /// No list is longer than this, whatever its words say.
    #[inline(always)]
    fn most_messages(&self, q: &Queue<'_>) -> u32 {
        q.get(queue::OCCUPIED).min(self.driver.geometry.blocks * BLOCK)
    }

    /// Whether another message fits.
    #[inline(always)]
    pub(super) fn has_room(&self, q: &Queue<'_>) -> bool {
        q.get(queue::OCCUPIED) < q.get(queue::MAX_MESSAGES)
    }

    fn take_disk_slot(&self, q: &Queue<'_>) -> Result<u32> {
        let slots = q.get(queue::MAX_MESSAGES).max(1);
        let words = slots.div_ceil(32);
        let (region, at) = self.disk_map(q, slots)?;
        let start = q.get(queue::MAP_CURSOR) % words;
        for word in (start..words).chain(0..start) {
            let bits = region.u32(at + 4 * word as usize);
            let free = bits.load(Ordering::Relaxed).trailing_ones();
            let slot = word * 32 + free;
            if free < 32 && slot < slots {
                bits.store(bits.load(Ordering::Relaxed) | 1 << free, Ordering::Relaxed);
                q.set(queue::MAP_CURSOR, word);
                return Ok(slot);
            }
        }
        Err(Error::Corrupt(format!(
            "queue {} has no free place on its disk",
            q.slot
        )))
    }

    pub(super) fn return_disk_slot(&self, q: &Queue<'_>, slot: u32) -> Result<()> {
        self.mark_disk_slot(q, slot, false)
    }

    pub(super) fn mark_disk_slot(&self, q: &Queue<'_>, slot: u32, used: bool) -> Result<()> {
        let slots = q.get(queue::MAX_MESSAGES);
        if slot >= slots {
            return Err(Error::Corrupt(format!(
                "queue {} has no place {slot} on its disk",
                q.slot
            )));
        }
        let (region, at) = self.disk_map(q, slots)?;
        let bits = region.u32(at + 4 * (slot / 32) as usize);
        let (old, bit) = (bits.load(Ordering::Relaxed), 1 << (slot % 32));
        bits.store(if used { old | bit } else { old & !bit }, Ordering::Relaxed);
        Ok(())
    }

    /// The disk map; large enough for so many slots.
    pub(super) fn disk_map(&self, q: &Queue<'_>, slots: u32) -> Result<(&'a Region, usize)> {
        let class = q.get(queue::MAP_CLASS);
        let bytes = map_bytes(slots);
        let span = Span::from_word(q.get(queue::MAP));
        let found = span.and_then(|span| self.memory_of(Buffer { span, class }).ok());
        match found {
            Some(found) if class < super::layout::CLASSES && bytes <= class_units(class) as usize * UNIT => Ok(found),
            _ => Err(Error::Corrupt(format!("the disk map of queue {} is damaged", q.slot))),
        }
    }

    /// Takes a spill of `message` to disk in hand; the caller writes the text to the slot and then calls `finish_move`.
    pub(super) fn begin_spill(&self, q: &Queue<'_>, message: &Message<'_>, user: u32) -> Result<u32> {
        let slot = self.take_disk_slot(q)?;
        message.set(descriptor::OTHER, Place::Disk(slot).word());
        message.set_state(MessageState::Moving(user));
        Ok(slot)
    }

    /// Takes the reading of `message` from disk in hand; the caller fills the buffer and then calls `finish_move`.
    pub(super) fn begin_load(&self, q: &Queue<'_>, message: &Message<'_>, user: u32) -> Attempt<Buffer> {
        let buffer = self.take_buffer(message.get(descriptor::SIZE) as usize)?;
        message.set(descriptor::OTHER_CLASS, buffer.class);
        message.set(descriptor::OTHER, Place::Memory(buffer.span).word());
        message.set_state(MessageState::Moving(user));
        q.add(queue::IN_MEMORY, 1);
        Ok(buffer)
    }

    /// The text is in its new place as well: from this store on it is there and nowhere else.
    pub(super) fn finish_move(&self, q: &Queue<'_>, message: &Message<'_>) -> Result<()> {
        let old = message.place();
        let new = Place::from_word(message.get(descriptor::OTHER));
        let old_class = message.get(descriptor::CLASS);
        if let Place::Memory(_) = new {
            message.set(descriptor::CLASS, message.get(descriptor::OTHER_CLASS));
        }
        message.set_place(new);
        message.set(descriptor::OTHER, 0);
        message.set_state(MessageState::Queued);
        match old {
            Place::Memory(span) => {
                q.add(queue::IN_MEMORY, -1);
                q.count(queue::SPILLS);
                self.count(head::SPILLS);
                self.return_buffer(Buffer { span, class: old_class })
            }
            Place::Disk(slot) => {
                q.count(queue::LOOK_AHEADS);
                self.count(head::LOOK_AHEADS);
                self.return_disk_slot(q, slot)
            }
            Place::Nowhere => Ok(()),
        }
    }

    /// The move is not made: the text stays where it was.
    pub(super) fn cancel_move(&self, q: &Queue<'_>, message: &Message<'_>) -> Result<()> {
        let other = Place::from_word(message.get(descriptor::OTHER));
        let class = message.get(descriptor::OTHER_CLASS);
        message.set(descriptor::OTHER, 0);
        message.set_state(MessageState::Queued);
        match other {
            Place::Memory(span) => {
                q.add(queue::IN_MEMORY, -1);
                self.return_buffer(Buffer { span, class })
            }
            Place::Disk(slot) => self.return_disk_slot(q, slot),
            Place::Nowhere => Ok(()),
        }
    }

    /// The tail-most message that is in memory and in nobody's hands (behaviour 15).
    pub(super) fn tail_most_in_memory(&self, q: &Queue<'_>) -> Result<Option<Message<'a>>> {
        let mut found = None;
        let mut number = q.get(queue::FIRST);
        let mut left = q.get(queue::IN_MEMORY);
        // Messages in memory stand at the front, but for a few: the walk ends with the last of them.
        for _ in 0..self.most_messages(q) {
            if number == 0 || left == 0 {
                break;
            }
            let message = self.message(number)?;
            if let Place::Memory(_) = message.place() {
                left -= 1;
                if message.state() == MessageState::Queued {
                    found = Some(message);
                }
            }
            number = message.get(descriptor::NEXT);
        }
        Ok(found)
    }
}

/// Bytes of a disk map.
pub(super) fn map_bytes(max_messages: u32) -> usize {
    max_messages.div_ceil(32) as usize * 4
}

pub(super) fn gone(key: QKey) -> Error {
    Error::NotFound(format!("the queue in slot {} is gone", key.slot))
}

fn bad_list(slot: u32, number: u32, what: &str) -> Error {
    Error::Corrupt(format!(
        "message descriptor {number} in the list of queue {slot} {what}"
    ))
}
