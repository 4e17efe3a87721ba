//! What a survivor does with the header and the slots of the dead.
//!
//! Everything here can be repeated: a rescuer that dies is rescued in the same way, from wherever it was.

use super::intent::{Fate, Intent, Kind};
use super::layout::{Counter, Range, Stamp};
use super::queue::Queue;
use super::suspects::LOOKING;
use crate::Result;
use crate::shared::identity::{Identity, Purpose};
use crate::shared::roster::Holder;
use crate::shared::signal::Wait;
use crate::shared::sync::Ordering;

/// What somebody was doing in a slot.
enum Errand {
    /// Copying a message that stays in the queue.
    Looking,
    /// Copying a message that it has taken out.
    Taking,
    /// Copying a message in.
    Writing,
}

impl Queue {
    /// Undoes or finishes what the last holder of the header was doing. Runs with the header held.
    pub(super) fn repair(&self) {
        let Some(intent) = self.memory.intended() else {
            return self.memory.settle();
        };
        match intent.kind {
            Kind::Move => self.undo_move(&intent),
            Kind::Skip => self.finish_skip(&intent),
            Kind::Abandon => self.finish_abandon(&intent),
            Kind::Lost => self.finish_lost(&intent),
        }
        self.memory.settle();
    }

    /// A move is undone whole, because nothing was copied into the slot yet. What cannot be undone is that a living reader
    /// lost its slot, if it did: it may have noticed already.
    fn undo_move(&self, intent: &Intent) {
        let lock = self.memory.lock(intent.slot);
        let taken = lock.load(Ordering::Relaxed) == intent.owner;
        match intent.fate {
            Fate::Discarded if taken => self.set(Counter::Discarded, intent.count),
            Fate::Overwritten => self.set(Counter::Overwritten, intent.count),
            Fate::Discarded | Fate::Kept => {}
        }
        self.set(Counter::Enqueued, intent.enqueued);
        self.move_to(intent.range);
        if taken {
            self.free(intent.slot, intent.owner);
        }
    }

    /// Moves START past an abandoned slot, whose mark then serves no more.
    pub(super) fn skip(&self, slot: u32, after: Range) {
        let intent = self.announce(Kind::Skip, slot, 0, after, 0);
        self.finish_skip(&intent);
        self.memory.settle();
    }

    fn finish_skip(&self, intent: &Intent) {
        self.move_to(intent.range);
        self.memory.set_stamp(intent.slot, Stamp::UNKNOWN);
    }

    /// Frees a slot of the queue whose writer is dead: half a message becomes none. Needs the header.
    pub(super) fn abandon(&self, slot: u32, owner: u64, range: Range) {
        let count = self.get(Counter::Abandoned).wrapping_add(1);
        let intent = self.announce(Kind::Abandon, slot, owner, range, count);
        self.finish_abandon(&intent);
        self.memory.settle();
    }

    fn finish_abandon(&self, intent: &Intent) {
        if self.memory.holder(intent.slot) == intent.owner {
            self.memory.zero(intent.slot);
            self.memory.set_stamp(intent.slot, Stamp::ABANDONED);
            self.set(Counter::Abandoned, intent.count);
            self.free(intent.slot, intent.owner);
        }
    }

    /// Frees a slot whose message died with its reader. Needs the header.
    pub(super) fn lose(&self, slot: u32, owner: u64, range: Range) {
        let count = self.get(Counter::LostInHands).wrapping_add(1);
        let intent = self.announce(Kind::Lost, slot, owner, range, count);
        self.finish_lost(&intent);
        self.memory.settle();
    }

    fn finish_lost(&self, intent: &Intent) {
        if self.memory.holder(intent.slot) == intent.owner {
            if intent.range.covers(intent.slot, self.memory.max_len()) {
                // A foreign writer has published the slot again and not come to lock it: what is in it is not its message.
                self.memory.zero(intent.slot);
                self.memory.set_stamp(intent.slot, Stamp::ABANDONED);
            }
            self.set(Counter::LostInHands, intent.count);
            self.free(intent.slot, intent.owner);
        }
    }

    /// Frees a slot whose holder is dead, whatever it was doing there. Needs the header.
    pub(super) fn rescue(&self, slot: u32, owner: u64, range: Range) {
        match self.errand(slot, owner, range) {
            // The message never left the queue.
            Errand::Looking => self.free(slot, owner),
            Errand::Taking => self.lose(slot, owner, range),
            Errand::Writing => self.abandon(slot, owner, range),
        }
    }

    /// What the holder of a slot was doing there. Ours say so in their words, because the queue cannot: a foreign program may
    /// have published or taken the slot again in the meantime. Of a foreign holder the queue is all that there is to ask.
    fn errand(&self, slot: u32, owner: u64, range: Range) -> Errand {
        let foreign = matches!(self.roster.holder(owner), Ok(Holder::Foreign));
        match Identity::from_word(owner).filter(|_| !foreign).map(Identity::purpose) {
            Some(LOOKING) => Errand::Looking,
            Some(Purpose::Read) => Errand::Taking,
            Some(Purpose::Work) => Errand::Writing,
            _ if range.covers(slot, self.memory.max_len()) => Errand::Writing,
            _ => Errand::Taking,
        }
    }

    /// Frees every slot that a dead participant holds, so that the counters are exact. Returns how many there were.
    ///
    /// Needed by nobody in daily work: whoever needs a slot frees it. [`Queue::open`] and [`Queue::counters`] call it.
    pub fn recover(&self) -> Result<u64> {
        let held = self.memory.header_lock().load(Ordering::Relaxed);
        if self.roster.holder(held)? == Holder::Dead {
            drop(self.header(self.patience())?);
        }
        let mut freed = 0;
        for slot in 0..self.memory.max_len() {
            let word = self.memory.holder(slot);
            if self.roster.holder(word)? != Holder::Dead {
                continue;
            }
            let _header = self.header(self.patience())?;
            if self.memory.holder(slot) == word {
                self.rescue(slot, word, self.memory.range()?);
                freed += 1;
            }
        }
        Ok(freed)
    }

    /// A foreign program holds the header, perhaps because it waits there for the slot of one of our dead. They are freed
    /// beside it; whoever wins the compare-and-swap counts. A death in here can count one message twice.
    #[cold]
    pub(super) fn rescue_beside_foreign(&self) -> Result<()> {
        let range = self.memory.range()?;
        let me = self.roster.me()?.with(Purpose::Recover);
        for slot in 0..self.memory.max_len() {
            let lock = self.memory.lock(slot);
            let word = lock.load(Ordering::Relaxed);
            if self.roster.holder(word)? != Holder::Dead {
                continue;
            }
            // SYNC: slot (with `Queue::free`)
            let won = lock.compare_exchange(word, me.word(), Ordering::Acquire, Ordering::Relaxed);
            if won.is_err() {
                continue;
            }
            match self.errand(slot, word, range) {
                Errand::Looking => {}
                Errand::Taking => self.count_one(Counter::LostInHands),
                Errand::Writing => {
                    self.memory.zero(slot);
                    self.memory.set_stamp(slot, Stamp::ABANDONED);
                    self.count_one(Counter::Abandoned);
                }
            }
            self.free(slot, me.word());
        }
        Ok(())
    }

    fn count_one(&self, counter: Counter) {
        self.memory.counter(counter).fetch_add(1, Ordering::Relaxed);
    }

    /// The patience of calls that do not wait for messages, only for others to get out of the way.
    pub(super) fn patience(&self) -> Wait {
        Wait::from_timeout(Some(super::queue::PATIENCE))
    }

    pub(super) fn get(&self, counter: Counter) -> u64 {
        self.memory.counter(counter).load(Ordering::Relaxed)
    }

    pub(super) fn set(&self, counter: Counter, value: u64) {
        self.memory.counter(counter).store(value, Ordering::Relaxed);
    }

    /// Unlocks a slot, unless somebody has taken it in the meantime.
    pub(super) fn free(&self, slot: u32, owner: u64) {
        // SYNC: slot (with `Queue::lock_slot`)
        let _ = self
            .memory
            .lock(slot)
            .compare_exchange(owner, 0, Ordering::Release, Ordering::Relaxed);
    }

    fn announce(&self, kind: Kind, slot: u32, owner: u64, range: Range, count: u64) -> Intent {
        let intent = Intent {
            kind,
            fate: Fate::Kept,
            slot,
            owner,
            range,
            enqueued: 0,
            count,
        };
        self.memory.intend(&intent);
        intent
    }
}
