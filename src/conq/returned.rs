//! Phase 3: messages that came back, least recently expired first; a linked list through the slots.
//!
//! Derived from the state words and used only by the holder of the lock.

use super::layout::{Slot, header};
use super::space::{Space, damaged};
use super::state::State;
use crate::Result;
use crate::shared::sync::Ordering::Relaxed;

/// The list of expired messages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Returned<'a>(pub(super) &'a Space);

impl Returned<'_> {
    #[inline]
    pub(super) fn len(&self) -> u32 {
        self.0.narrow(header::EXPIRED).load(Relaxed)
    }

    /// The message to be delivered next, and how often it was delivered.
    #[inline(always)]
    pub(super) fn first(&self) -> Result<Option<(Slot, u32)>> {
        let Some(slot) = self.end(header::EXPIRED_FIRST)? else {
            return Ok(None);
        };
        match self.0.load_state(slot)? {
            State::Expired(delivery) => Ok(Some((slot, delivery))),
            other => Err(damaged("state of an expired message", other.word().into())),
        }
    }

    /// Takes the first out, after its state has changed.
    pub(super) fn leave_first(&self, first: Slot) {
        let next = self.0.link(first).load(Relaxed);
        self.0.narrow(header::EXPIRED_FIRST).store(next, Relaxed);
        if next == 0 {
            self.0.narrow(header::EXPIRED_LAST).store(0, Relaxed);
        }
        let len = self.len().saturating_sub(1);
        self.0.narrow(header::EXPIRED).store(len, Relaxed);
    }

    /// Adds a message at the end, after its state has changed.
    pub(super) fn append(&self, slot: Slot) -> Result<()> {
        let last = self.end(header::EXPIRED_LAST)?;
        let number = slot.number() + 1;
        self.0.link(slot).store(0, Relaxed);
        match last {
            Some(last) => self.0.link(last).store(number, Relaxed),
            None => self.0.narrow(header::EXPIRED_FIRST).store(number, Relaxed),
        }
        self.0.narrow(header::EXPIRED_LAST).store(number, Relaxed);
        self.0
            .narrow(header::EXPIRED)
            .store(self.len().wrapping_add(1), Relaxed);
        Ok(())
    }

    /// Makes the list anew from messages in their order.
    pub(super) fn rebuild(&self, sorted: &[(u64, u64, Slot)]) -> Result<()> {
        for word in [header::EXPIRED, header::EXPIRED_FIRST, header::EXPIRED_LAST] {
            self.0.narrow(word).store(0, Relaxed);
        }
        sorted.iter().try_for_each(|(_, _, slot)| self.append(*slot))
    }

    /// Whether it holds so many messages, all of them expired.
    pub(super) fn is_sound(&self, messages: u64) -> bool {
        let Ok(slots) = self.slots() else { return false };
        let expired = |slot: &Slot| matches!(self.0.load_state(*slot), Ok(State::Expired(_)));
        slots.len() as u64 == messages
            && u64::from(self.len()) == messages
            && slots.iter().all(expired)
            && self
                .end(header::EXPIRED_LAST)
                .is_ok_and(|last| last == slots.last().copied())
    }

    /// Every slot of the list, at most as many as a queue can have.
    pub(super) fn slots(&self) -> Result<Vec<Slot>> {
        let mut slots = Vec::new();
        let mut next = self.0.narrow(header::EXPIRED_FIRST).load(Relaxed);
        while let Some(number) = next.checked_sub(1) {
            if slots.len() >= self.0.geometry.max_messages as usize {
                return Err(damaged("link of an expired message", next.into()));
            }
            let slot = self.0.slot(number)?;
            slots.push(slot);
            next = self.0.link(slot).load(Relaxed);
        }
        Ok(slots)
    }

    fn end(&self, word: usize) -> Result<Option<Slot>> {
        let number = self.0.narrow(word).load(Relaxed);
        number.checked_sub(1).map(|number| self.0.slot(number)).transpose()
    }
}
