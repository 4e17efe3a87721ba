//! The records in a system's memory, as the holder of the lock sees them: queue descriptors, users, message descriptors.

use std::ops::Deref;

use super::layout::{MessageState, Place, QueueState, descriptor, queue, user};
use crate::shared::region::Region;
use crate::shared::sync::{AtomicU32, AtomicU64, Ordering, in_program_order};

/// Stores a word that is the truth. Whoever is killed here has done all that stands before and nothing that stands after:
/// the processor keeps program order at the moment of death, and the compiler must, too.
#[inline]
pub(super) fn commit(store: impl FnOnce()) {
    in_program_order();
    store();
    in_program_order();
}

/// A record in shared memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'a> {
    pub(super) region: &'a Region,
    pub(super) at: usize,
}

impl<'a> Fields<'a> {
    #[inline]
    fn narrow(&self, field: usize) -> &'a AtomicU32 {
        self.region.u32(self.at + field)
    }

    #[inline]
    pub(super) fn get(&self, field: usize) -> u32 {
        self.narrow(field).load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn set(&self, field: usize, value: u32) {
        self.narrow(field).store(value, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn add(&self, field: usize, by: i32) {
        self.set(field, self.get(field).wrapping_add_signed(by));
    }

    fn wide(&self, field: usize) -> &'a AtomicU64 {
        self.region.u64(self.at + field)
    }

    #[inline]
    pub(super) fn get_wide(&self, field: usize) -> u64 {
        self.wide(field).load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn set_wide(&self, field: usize, value: u64) {
        self.wide(field).store(value, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn count(&self, field: usize) {
        self.set_wide(field, self.get_wide(field).wrapping_add(1));
    }

    /// A 64-bit number in two words, which only the holder of the lock reads and writes.
    #[inline]
    pub(super) fn get_pair(&self, field: usize) -> u64 {
        u64::from(self.get(field)) | u64::from(self.get(field + 4)) << 32
    }

    #[inline]
    pub(super) fn set_pair(&self, field: usize, value: u64) {
        self.set(field, value as u32);
        self.set(field + 4, (value >> 32) as u32);
    }
}

/// A queue descriptor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queue<'a> {
    pub(super) slot: u32,
    pub(super) fields: Fields<'a>,
}

impl<'a> Deref for Queue<'a> {
    type Target = Fields<'a>;

    fn deref(&self) -> &Fields<'a> {
        &self.fields
    }
}

impl Queue<'_> {
    pub(super) fn state(&self) -> QueueState {
        QueueState::from_word(self.get(queue::STATE))
    }

    pub(super) fn set_state(&self, state: QueueState) {
        commit(|| self.set(queue::STATE, state as u32));
    }

    /// Whether messages that do not fit into the buffers go to disk (behaviour 16).
    pub(super) fn spills(&self) -> bool {
        self.get(queue::BUFFERS) < self.get(queue::MAX_MESSAGES)
    }
}

/// A user record.
#[derive(Clone, Copy, Debug)]
pub(super) struct User<'a>(pub(super) Fields<'a>);

impl<'a> Deref for User<'a> {
    type Target = Fields<'a>;

    fn deref(&self) -> &Fields<'a> {
        &self.0
    }
}

impl User<'_> {
    pub(super) fn identity(&self) -> u64 {
        self.get_wide(user::IDENTITY)
    }
}

/// A message descriptor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message<'a> {
    pub(super) number: u32,
    pub(super) fields: Fields<'a>,
}

impl<'a> Deref for Message<'a> {
    type Target = Fields<'a>;

    fn deref(&self) -> &Fields<'a> {
        &self.fields
    }
}

impl Message<'_> {
    #[inline]
    pub(super) fn state(&self) -> MessageState {
        MessageState::from_word(self.get(descriptor::STATE))
    }

    #[inline]
    pub(super) fn set_state(&self, state: MessageState) {
        commit(|| self.set(descriptor::STATE, state.word()));
    }

    #[inline]
    pub(super) fn place(&self) -> Place {
        Place::from_word(self.get(descriptor::PLACE))
    }

    #[inline]
    pub(super) fn set_place(&self, place: Place) {
        commit(|| self.set(descriptor::PLACE, place.word()));
    }

    #[inline]
    pub(super) fn stamp(&self) -> u64 {
        self.get_pair(descriptor::STAMP)
    }
}
