//! The two words on which everything rests; pure.
//!
//! The state word of a slot is the only truth about its message:
//!
//! ```text
//!  31   29 28                                  0
//! +-------+-------------------------------------+
//! | phase |  owner tag (29) or delivery (29)    |
//! +-------+-------------------------------------+
//!   0  free      nobody's                       0
//!   1  filling   being written by a producer    its tag
//!   2  ready     phase 1: never read            its producer's tag
//!   3  leased    phase 2: in somebody's hands   how often it was delivered
//!   4  expired   phase 3: came back             how often it was delivered
//!
//!   free -> filling -> ready -> leased -> free
//!              |                 ^  |
//!              v                 |  v
//!             free             expired
//! ```
//!
//! A producer alone makes a slot filling and ready (or free again), one word at a time and without a lock. Every other step
//! is made by the holder of the queue's lock.
//!
//! A place of the ring names the slot that holds a ticket:
//!
//! ```text
//!  63                          28 27                0
//! +------------------------------+-------------------+
//! |  lap: ticket / places (36)   |  slot + 1, 0 none |
//! +------------------------------+-------------------+
//! ```
//!
//! The lap makes an old value never equal a new one: a producer that slept for a whole round cannot fill a wrong place.

use super::layout::SLOT_BITS;
use crate::shared::identity::Identity;

const VALUE_BITS: u32 = 29;
const VALUE_MASK: u32 = (1 << VALUE_BITS) - 1;
const NONCE_BITS: u32 = 17;

/// Who fills a slot: the place in the roster and the low bits of the nonce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tag(u32);

impl Tag {
    /// The tag of a participant.
    #[inline]
    pub fn of(identity: Identity) -> Self {
        Tag(identity.slot() << NONCE_BITS | identity.nonce() & ((1 << NONCE_BITS) - 1))
    }

    /// The place in the roster that it names.
    pub fn roster_slot(self) -> u32 {
        self.0 >> NONCE_BITS
    }
}

/// What a state word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nobody's.
    Free,
    /// Being written.
    Filling(Tag),
    /// Phase 1: enqueued, never read.
    Ready(Tag),
    /// Phase 2: delivered for the nth time, not finished.
    Leased(u32),
    /// Phase 3: back after its nth delivery.
    Expired(u32),
}

/// The word of a free slot: zeroed memory is free.
pub const FREE: u32 = 0;

impl State {
    /// The word as stored.
    #[inline]
    pub fn word(self) -> u32 {
        match self {
            State::Free => FREE,
            State::Filling(owner) => 1 << VALUE_BITS | owner.0,
            State::Ready(owner) => 2 << VALUE_BITS | owner.0,
            State::Leased(delivery) => 3 << VALUE_BITS | delivery & VALUE_MASK,
            State::Expired(delivery) => 4 << VALUE_BITS | delivery & VALUE_MASK,
        }
    }

    /// Reads a word found in a file; `None` for what nobody writes.
    #[inline]
    pub fn from_word(word: u32) -> Option<Self> {
        let value = word & VALUE_MASK;
        match word >> VALUE_BITS {
            0 if value == 0 => Some(State::Free),
            1 => Some(State::Filling(Tag(value))),
            2 => Some(State::Ready(Tag(value))),
            3 => Some(State::Leased(value)),
            4 => Some(State::Expired(value)),
            _ => None,
        }
    }
}

/// The number of the delivery after this one; from 1, and from 1 again after 2^29 - 1.
#[inline]
pub fn next_delivery(delivery: u32) -> u32 {
    if delivery >= VALUE_MASK { 1 } else { delivery + 1 }
}

/// What a word of the ring says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    lap: u64,
    slot: u32,
}

const SLOT_MASK: u64 = (1 << SLOT_BITS) - 1;
const LAP_MASK: u64 = (1 << (64 - SLOT_BITS)) - 1;

impl Place {
    /// Waiting for the ticket of this lap.
    #[inline]
    pub fn empty(lap: u64) -> Self {
        Place {
            lap: lap & LAP_MASK,
            slot: 0,
        }
    }

    /// Holding a slot.
    #[inline]
    pub fn filled(lap: u64, slot: u32) -> Self {
        Place {
            lap: lap & LAP_MASK,
            slot: slot + 1,
        }
    }

    /// The word as stored.
    #[inline]
    pub fn word(self) -> u64 {
        self.lap << SLOT_BITS | u64::from(self.slot)
    }

    /// Every word can be read.
    #[inline]
    pub fn from_word(word: u64) -> Self {
        Place {
            lap: word >> SLOT_BITS,
            slot: (word & SLOT_MASK) as u32,
        }
    }

    /// Whether it is of this lap.
    #[inline]
    pub fn is_of(self, lap: u64) -> bool {
        self.lap == lap & LAP_MASK
    }

    /// The number of the slot that it holds.
    #[inline]
    pub fn slot(self) -> Option<u32> {
        self.slot.checked_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_come_back_and_other_words_are_refused() {
        let tag = Tag::of(Identity::new(4095, (1 << 28) - 1, 77));
        assert_eq!(tag.roster_slot(), 4095);
        for state in [
            State::Free,
            State::Filling(tag),
            State::Ready(tag),
            State::Leased(1),
            State::Expired(VALUE_MASK),
        ] {
            assert_eq!(State::from_word(state.word()), Some(state));
        }
        for word in [1, VALUE_MASK, 5 << VALUE_BITS, u32::MAX] {
            assert_eq!(State::from_word(word), None, "{word:#x}");
        }
    }

    #[test]
    fn owners_with_different_nonces_have_different_tags() {
        assert_ne!(Tag::of(Identity::new(3, 8, 1)), Tag::of(Identity::new(3, 9, 1)));
        assert_ne!(Tag::of(Identity::new(3, 8, 1)), Tag::of(Identity::new(4, 8, 1)));
    }

    #[test]
    fn deliveries_never_become_zero() {
        assert_eq!(next_delivery(0), 1);
        assert_eq!(next_delivery(VALUE_MASK - 1), VALUE_MASK);
        assert_eq!(next_delivery(VALUE_MASK), 1);
    }

    #[test]
    fn places_tell_laps_and_slots_apart() {
        assert_eq!(Place::empty(0).word(), 0, "zeroed memory waits for the first lap");
        let largest = (1 << SLOT_BITS) - 2;
        for place in [Place::empty(7), Place::filled(7, 0), Place::filled(LAP_MASK, largest)] {
            assert_eq!(Place::from_word(place.word()), place);
        }
        assert!(Place::filled(7, 3).is_of(7) && !Place::filled(7, 3).is_of(8));
        assert!(Place::empty(LAP_MASK + 1).is_of(0), "laps start over");
        assert_eq!((Place::empty(7).slot(), Place::filled(7, 3).slot()), (None, Some(3)));
    }
}
