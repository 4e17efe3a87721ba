//! What the holder of the header is about to do, written down first; see the table in [`super::layout`].
//!
//! Only the holder of the header lock touches these words, so they need no order towards other living participants. Towards
//! whoever finds the holder dead, a fence keeps each change behind the words that announce it.

use super::layout::{IntentWord, Range};
use super::memory::Memory;
use crate::shared::sync::{Ordering, fence};

/// Kind of an intent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Move = 1,
    Skip = 2,
    Abandon = 3,
    Lost = 4,
}

/// What becomes of the message that was in the slot of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It goes on in its reader's hands, or there was none.
    Kept = 0,
    /// It was the oldest in the queue and gives its slot to a new one.
    Overwritten = 1,
    /// A living reader was still copying it.
    Discarded = 2,
}

/// An announced change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Intent {
    pub(super) kind: Kind,
    pub(super) fate: Fate,
    pub(super) slot: u32,
    pub(super) owner: u64,
    pub(super) range: Range,
    pub(super) enqueued: u64,
    pub(super) count: u64,
}

impl Memory {
    /// Announces a change.
    #[inline(always)]
    pub(super) fn intend(&self, intent: &Intent) {
        let store = |word, value| self.intent(word).store(value, Ordering::Relaxed);
        store(IntentWord::Owner, intent.owner);
        store(IntentWord::Range, intent.range.word());
        store(IntentWord::Enqueued, intent.enqueued);
        store(IntentWord::Count, intent.count);
        let op = intent.kind as u64 | (intent.fate as u64) << 8 | u64::from(intent.slot) << 32;
        self.intent(IntentWord::Op).store(op, Ordering::Release);
        // Announced before anything of it is done.
        fence(Ordering::Release);
    }

    /// Strikes the announcement out: the change stands.
    #[inline]
    pub(super) fn settle(&self) {
        self.intent(IntentWord::Op).store(0, Ordering::Release);
    }

    /// The change that was announced and not struck out; nonsense is nothing.
    pub(super) fn intended(&self) -> Option<Intent> {
        let load = |word| self.intent(word).load(Ordering::Relaxed);
        let op = load(IntentWord::Op);
        let kind = match op as u8 {
            1 => Kind::Move,
            2 => Kind::Skip,
            3 => Kind::Abandon,
            4 => Kind::Lost,
            _ => return None,
        };
        let fate = match (op >> 8) as u8 {
            0 => Fate::Kept,
            1 => Fate::Overwritten,
            2 => Fate::Discarded,
            _ => return None,
        };
        let slot = (op >> 32) as u32;
        let range = Range::from_word(load(IntentWord::Range)).checked(self.max_len());
        Some(Intent {
            kind,
            fate,
            slot: (slot < self.max_len()).then_some(slot)?,
            owner: load(IntentWord::Owner),
            range: range.ok()?,
            enqueued: load(IntentWord::Enqueued),
            count: load(IntentWord::Count),
        })
    }
}
