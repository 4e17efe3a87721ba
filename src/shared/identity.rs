//! The 64-bit word by which a participant signs what it holds.
//!
//! ```text
//!  63          52 51                       24 23                  2 1   0
//! +--------------+---------------------------+---------------------+-----+
//! |   slot (12)  |        nonce (28)         |      pid (22)       |purp.|
//! +--------------+---------------------------+---------------------+-----+
//! ```
//!
//! `slot` is the byte whose file lock says whether the owner lives, `nonce` tells successive owners of a slot apart (so a
//! stale word never equals a new one), `pid` is for people who read dumps, `purpose` says what the word's owner is doing.
//! Zero is nobody: a pid is never 0. A nonce is never 0 either, so small numbers, the lock words that a foreign program
//! would choose (1, its process number), are nobody's signature.

use std::fmt;

/// How many participants a region can have at a time.
pub const SLOTS: u32 = 1 << SLOT_BITS;

const SLOT_BITS: u32 = 12;
const NONCE_BITS: u32 = 28;
const PID_BITS: u32 = 22;
const PURPOSE_BITS: u32 = 2;

const PID_SHIFT: u32 = PURPOSE_BITS;
const NONCE_SHIFT: u32 = PID_SHIFT + PID_BITS;
const SLOT_SHIFT: u32 = NONCE_SHIFT + NONCE_BITS;

/// Nonces count joins and start over after this many.
pub(crate) const NONCE_MASK: u32 = (1 << NONCE_BITS) - 1;
const PURPOSE_MASK: u64 = (1 << PURPOSE_BITS) - 1;

/// A participant's signature.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Identity(u64);

/// What the owner of a word is doing with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Purpose {
    /// Holding a lock, or writing.
    Work = 0,
    /// Reading: a writer may take the word away.
    Read = 1,
    /// Repairing what a dead owner left behind.
    Recover = 2,
    /// Free for a queue's own use.
    Other = 3,
}

impl Identity {
    /// Composes a signature; the parts are cut to their widths.
    pub fn new(slot: u32, nonce: u32, pid: u32) -> Self {
        let slot = u64::from(slot & (SLOTS - 1));
        let nonce = u64::from(nonce & NONCE_MASK);
        let pid = u64::from(pid) & ((1 << PID_BITS) - 1);
        Identity(slot << SLOT_SHIFT | nonce << NONCE_SHIFT | pid << PID_SHIFT)
    }

    /// Reads a word found in a region; `None` for 0 and for words that no participant of ours can have written.
    pub fn from_word(word: u64) -> Option<Self> {
        let identity = Identity(word);
        (identity.pid() != 0).then_some(identity)
    }

    /// The word as stored.
    pub fn word(self) -> u64 {
        self.0
    }

    /// The slot whose file lock the owner holds while it lives.
    pub fn slot(self) -> u32 {
        (self.0 >> SLOT_SHIFT) as u32
    }

    /// Which owner of that slot it is.
    pub fn nonce(self) -> u32 {
        (self.0 >> NONCE_SHIFT) as u32 & NONCE_MASK
    }

    /// The process number at the time of joining: for people, never for decisions.
    pub fn pid(self) -> u32 {
        (self.0 >> PID_SHIFT) as u32 & ((1 << PID_BITS) - 1)
    }

    /// What the owner is doing.
    pub fn purpose(self) -> Purpose {
        match self.0 & PURPOSE_MASK {
            0 => Purpose::Work,
            1 => Purpose::Read,
            2 => Purpose::Recover,
            _ => Purpose::Other,
        }
    }

    /// The same owner, doing something else.
    pub fn with(self, purpose: Purpose) -> Self {
        Identity(self.0 & !PURPOSE_MASK | purpose as u64)
    }

    /// The same owner with a number of its choice in place of the process number, so that two words which threads of one
    /// participant write at different times differ. Numbers repeat after 2^22 - 1.
    pub fn numbered(self, number: u64) -> Self {
        const PID_MASK: u64 = (1 << PID_BITS) - 1;
        let number = number % PID_MASK + 1;
        Identity(self.0 & !(PID_MASK << PID_SHIFT) | number << PID_SHIFT)
    }

    /// Whether both words are signed by the same participant, whatever the purpose and the number.
    pub fn same_owner(self, other: Identity) -> bool {
        self.0 >> NONCE_SHIFT == other.0 >> NONCE_SHIFT
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (slot, nonce, pid) = (self.slot(), self.nonce(), self.pid());
        write!(f, "slot {slot} nonce {nonce} pid {pid} {:?}", self.purpose())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_back_at_their_limits() {
        for (slot, nonce, pid) in [
            (0, 0, 1),
            (SLOTS - 1, NONCE_MASK, (1 << 22) - 1),
            (7, 1 << 27, 4_194_303),
        ] {
            for purpose in [Purpose::Work, Purpose::Read, Purpose::Recover, Purpose::Other] {
                let id = Identity::new(slot, nonce, pid).with(purpose);
                assert_eq!(
                    (id.slot(), id.nonce(), id.pid(), id.purpose()),
                    (slot, nonce, pid, purpose)
                );
                assert_eq!(Identity::from_word(id.word()), Some(id));
                assert!(id.same_owner(Identity::new(slot, nonce, pid)));
            }
        }
    }

    #[test]
    fn a_numbered_word_still_names_its_owner() {
        let owner = Identity::new(7, 9, 4711);
        for number in [0, 1, (1 << 22) - 2, u64::MAX] {
            let numbered = owner.numbered(number).with(Purpose::Read);
            assert!(numbered.same_owner(owner) && Identity::from_word(numbered.word()).is_some());
            assert_ne!(numbered.pid(), owner.numbered(number ^ 1).pid());
        }
        assert!(!owner.same_owner(Identity::new(7, 8, 4711)) && !owner.same_owner(Identity::new(6, 9, 4711)));
    }

    #[test]
    fn free_and_foreign_words_are_nobody() {
        assert_eq!(Identity::from_word(0), None);
        assert_eq!(Identity::from_word(1), None, "a foreign program's plain 1");
    }
}
