//! Head and tail as the one 64-bit word that they are for us.
//!
//! The consumer moves the head, whoever holds the append lock moves the tail or starts an exhausted chunk over; each by
//! compare-and-swap of the whole word, so that neither undoes what the other did a moment ago. An entry is written before the
//! tail moves over it, and read before the head does.

use super::layout::Pointers;
use crate::shared::sync::{AtomicU64, Ordering};

/// The pointers of a mapped chunk.
#[derive(Clone, Copy, Debug)]
pub struct Word<'a>(pub &'a AtomicU64);

impl Word<'_> {
    /// Both pointers, as they are.
    #[inline]
    pub fn load(self) -> Pointers {
        // SYNC: published entry (with `swap`, and with the kernel's copy in `Chunk::write_tail`); SeqCst because a sleeper's
        // last look must come after its fence.
        Pointers::from_bytes(self.0.load(Ordering::SeqCst).to_le_bytes())
    }

    /// Replaces both if they still are `old`.
    #[inline]
    pub fn swap(self, old: Pointers, new: Pointers) -> bool {
        let (old, new) = (u64::from_le_bytes(old.to_bytes()), u64::from_le_bytes(new.to_bytes()));
        // SYNC: published entry (with `load`)
        self.0
            .compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }

    /// Moves the tail, whatever the head does meanwhile; the caller holds the append lock.
    #[inline]
    pub fn move_tail(self, tail: u32) {
        loop {
            let old = self.load();
            if self.swap(old, Pointers { tail, ..old }) {
                return;
            }
        }
    }
}
