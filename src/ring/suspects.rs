//! Who holds a slot that is not free: asked outside of the header lock, remembered for the rest of one call.

use super::queue::Queue;
use crate::Result;
use crate::shared::identity::{Identity, Purpose};
use crate::shared::roster::Holder;
use crate::shared::signal::Since;
use crate::shared::sync;

/// Moments in which a living holder usually gets done with so many bytes: about a microsecond, and the time of a slow copy.
/// Without it a writer that never rests would take every slot away from its reader.
#[cfg(not(loom))]
fn politeness(message_bytes: usize) -> usize {
    64 + message_bytes / 64
}

// In the model a spinning thread waits until the others have done something, so nobody would ever be taken by surprise.
#[cfg(loom)]
fn politeness(_message_bytes: usize) -> usize {
    0
}

/// The purpose in the lock word of somebody who copies a message and leaves it in the queue. One who takes it out says
/// [`Purpose::Read`], so that a death tells whether the message died, too.
pub(super) const LOOKING: Purpose = Purpose::Other;

/// What is known about the holder of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// A living reader of ours: notices when its slot is taken away.
    Reader,
    /// A living writer of ours: never disturbed.
    Writer,
    /// A program that we cannot ask about.
    Foreign,
    /// Gone.
    Dead,
}

/// A foreign word in the header lock, and since when it was seen there: longer than any single look at it lasts.
#[derive(Debug, Default)]
pub(super) struct HeaderWatch(Option<(u64, Since)>);

impl HeaderWatch {
    /// Whether the word has been there for longer than the user has patience with it.
    pub(super) fn is_overdue(&mut self, queue: &Queue, word: u64) -> bool {
        let Some(limit) = queue.options.foreign_timeout else {
            return false;
        };
        match self.0 {
            Some((seen, since)) if seen == word => since.is_over(limit),
            _ => {
                self.0 = Some((word, Since::now()));
                false
            }
        }
    }

    pub(super) fn forget(&mut self) {
        self.0 = None;
    }
}

/// The holders that one call has met.
#[derive(Debug, Default)]
pub(super) struct Suspects {
    pub(super) header: HeaderWatch,
    known: Vec<(u32, u64, Verdict)>,
    foreign_since: Option<(u32, u64, Since)>,
}

impl Suspects {
    /// What is known about the holder `word` of a slot.
    pub(super) fn verdict(&self, slot: u32, word: u64) -> Option<Verdict> {
        let same = |entry: &&(u32, u64, Verdict)| (entry.0, entry.1) == (slot, word);
        self.known.iter().find(same).map(|entry| entry.2)
    }

    /// Gives the holder a moment to get done, then asks who it is. Not to be called with the header held.
    #[cold]
    pub(super) fn look(&mut self, queue: &Queue, slot: u32, word: u64) -> Result<()> {
        for _ in 0..politeness(queue.message_bytes()) {
            if queue.memory.holder(slot) != word {
                return Ok(());
            }
            sync::spin();
        }
        let purpose = Identity::from_word(word).map(Identity::purpose);
        let reading = matches!(purpose, Some(Purpose::Read | LOOKING));
        let verdict = match queue.roster.holder(word)? {
            Holder::Nobody => return Ok(()),
            Holder::Dead => Verdict::Dead,
            Holder::Alive if reading => Verdict::Reader,
            Holder::Alive => Verdict::Writer,
            Holder::Foreign if self.is_overdue(queue, slot, word) => Verdict::Dead,
            Holder::Foreign => Verdict::Foreign,
        };
        self.known.push((slot, word, verdict));
        Ok(())
    }

    /// Whether a foreign holder has been seen in the slot for longer than the user has patience with it.
    fn is_overdue(&mut self, queue: &Queue, slot: u32, word: u64) -> bool {
        let Some(limit) = queue.options.foreign_timeout else {
            return false;
        };
        match self.foreign_since {
            Some((seen_slot, seen_word, since)) if (seen_slot, seen_word) == (slot, word) => since.is_over(limit),
            _ => {
                self.foreign_since = Some((slot, word, Since::now()));
                false
            }
        }
    }

    /// Time has passed: the living may have died, and the writers may be done.
    pub(super) fn forget(&mut self) {
        self.known.clear();
    }
}
