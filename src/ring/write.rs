//! Enqueue: take a slot under the header lock, let the header go, copy, let the slot go.
//!
//! ```text
//! lock header -> lock slot -> move START and LEN -> unlock header -> copy -> unlock slot
//! ```
//!
//! The slot is locked before START and LEN say that it is part of the queue: a death in between leaves a locked slot outside
//! of the queue, never an unlocked one with garbage inside.

use std::time::Duration;

use super::header::LOOKS;
use super::intent::{Fate, Intent, Kind};
use super::layout::{Counter, Range, Stamp};
use super::queue::Queue;
use super::suspects::{Suspects, Verdict};
use crate::shared::identity::Purpose;
use crate::shared::signal::Wait;
use crate::shared::sync::{self, Ordering, fence};
use crate::{Error, Result};

/// So many different holders in the way of one call are not honest.
const ROUNDS: u32 = 10_000;

/// How long one attempt to enqueue lasts while somebody is in the way.
const SLICE: Duration = Duration::from_millis(50);

/// A slot to take, and what that does to the queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Move {
    pub(super) slot: u32,
    /// The lock word that is to be replaced: 0, a reader's or a dead one's.
    pub(super) seen: u64,
    pub(super) fate: Fate,
    pub(super) before: Range,
    pub(super) after: Range,
    /// 1 for an enqueue, 0 for a dequeue.
    pub(super) enqueues: u64,
}

/// What a writer can do now.
#[derive(Debug)]
pub(super) enum Choice {
    Take(Move),
    /// Somebody unknown is in the way.
    Ask(u32, u64),
    /// A dead holder is in the way.
    Rescue(u32, u64, Range),
    /// Somebody who must not be disturbed is in the only slot that would do.
    Wait(u32, u64),
}

impl Queue {
    /// Puts a message into the queue, at the cost of the oldest one if it is full. Returns its sequence number.
    ///
    /// It never waits for readers, nor for slow writers as long as there are slots that none of them is in; see
    /// [`Queue::enqueue_within`] for what can be in the way.
    #[inline]
    pub fn enqueue(&self, message: &[u8]) -> Result<u64> {
        match self.enqueue_within(message, Wait::No) {
            Err(Error::TimedOut | Error::Full(_)) => self.enqueue_within(message, self.patience()),
            done => done,
        }
    }

    /// As [`Queue::enqueue`], waiting at most so long for what can be in the way: a living participant stopped in the few
    /// instructions under the header lock ([`Error::TimedOut`]); every slot in the hands of a living writer, or a foreign
    /// program in the next slot ([`Error::Full`]).
    #[inline]
    pub fn enqueue_within(&self, message: &[u8], wait: Wait) -> Result<u64> {
        self.check_fits(message)?;
        match self.claim_quickly() {
            Some(hold) => Ok(hold.deliver(message)),
            None => self.enqueue_slowly(message, wait),
        }
    }

    /// As [`Queue::enqueue_within`]. `idle` is called at least every 50 ms of waiting; its error ends the wait.
    pub fn enqueue_idling(&self, message: &[u8], wait: Wait, mut idle: impl FnMut() -> Result<()>) -> Result<u64> {
        let mut outcome = self.enqueue_within(message, Wait::No);
        // A foreign holder's time runs on from one attempt to the next.
        let mut suspects = Suspects::default();
        while let (Err(Error::TimedOut | Error::Full(_)), Some(slice)) = (&outcome, wait.remaining(SLICE)) {
            idle()?;
            suspects.forget();
            let claimed = self.claim_watched(Wait::from_timeout(Some(slice)), &mut suspects);
            outcome = claimed.map(|hold| hold.deliver(message));
        }
        outcome
    }

    /// Refuses a message that is longer than a slot.
    #[inline(always)]
    pub(super) fn check_fits(&self, message: &[u8]) -> Result<()> {
        let limit = self.memory.geometry().message_bytes();
        if message.len() > limit {
            let size = message.len() as u64;
            return Err(Error::TooLarge {
                size,
                limit: limit as u64,
            });
        }
        Ok(())
    }

    #[cold]
    fn enqueue_slowly(&self, message: &[u8], wait: Wait) -> Result<u64> {
        Ok(self.claim(wait)?.deliver(message))
    }

    /// Takes a slot for writing where nothing at all is in the way, as is usual.
    #[inline(always)]
    fn claim_quickly(&self) -> Option<WriteHold<'_>> {
        let _header = self.header_now(LOOKS)?;
        let Ok(Choice::Take(taking)) = self.choose(&Suspects::default()) else {
            return None;
        };
        let word = self.roster.me().ok()?.with(Purpose::Work).word();
        let sequence = self.take(&taking, word)?;
        Some(WriteHold {
            queue: self,
            slot: taking.slot,
            word,
            sequence,
        })
    }

    /// Takes a slot for writing.
    pub(super) fn claim(&self, wait: Wait) -> Result<WriteHold<'_>> {
        self.claim_watched(wait, &mut Suspects::default())
    }

    fn claim_watched(&self, wait: Wait, suspects: &mut Suspects) -> Result<WriteHold<'_>> {
        for _ in 0..ROUNDS {
            let header = self.header_watched(wait, &mut suspects.header)?;
            let choice = self.choose(suspects)?;
            if let Choice::Take(taking) = choice {
                let word = self.roster.me()?.with(Purpose::Work).word();
                if let Some(sequence) = self.take(&taking, word) {
                    return Ok(WriteHold {
                        queue: self,
                        slot: taking.slot,
                        word,
                        sequence,
                    });
                }
                continue;
            }
            if let Choice::Rescue(slot, word, range) = choice {
                self.rescue(slot, word, range);
                continue;
            }
            drop(header);
            self.stand_back(choice, suspects, wait)?;
        }
        Err(Error::TimedOut)
    }

    /// Frees the slot of a message that will not be written to its end.
    #[cold]
    #[inline(never)]
    fn give_up(&self, slot: u32, word: u64) {
        if let (Ok(_header), Ok(range)) = (self.header(self.patience()), self.memory.range()) {
            self.abandon(slot, word, range);
        }
    }

    /// With the header held: which slot a writer takes.
    #[inline(always)]
    pub(super) fn choose(&self, suspects: &Suspects) -> Result<Choice> {
        let max_len = self.memory.max_len();
        let before = self.memory.range()?;
        if before.len < max_len {
            let slot = before.end(max_len);
            let after = Range {
                len: before.len + 1,
                ..before
            };
            let taking = |seen, fate| {
                Choice::Take(Move {
                    slot,
                    seen,
                    fate,
                    before,
                    after,
                    enqueues: 1,
                })
            };
            let seen = self.memory.holder(slot);
            if seen == 0 {
                return Ok(taking(0, Fate::Kept));
            }
            return Ok(match suspects.verdict(slot, seen) {
                None => Choice::Ask(slot, seen),
                Some(Verdict::Dead) => Choice::Rescue(slot, seen, before),
                Some(Verdict::Reader) => taking(seen, Fate::Discarded),
                Some(Verdict::Writer | Verdict::Foreign) => Choice::Wait(slot, seen),
            });
        }
        Ok(self.choose_oldest(suspects, before))
    }

    /// The queue is full: the oldest slot, past those that living writers are in. Those keep their place in the ring, and so
    /// become nearly the newest.
    #[inline(always)]
    fn choose_oldest(&self, suspects: &Suspects, before: Range) -> Choice {
        let max_len = self.memory.max_len();
        let mut passed = 0;
        while passed < max_len {
            let slot = before.nth(passed, max_len);
            let seen = self.memory.holder(slot);
            match suspects.verdict(slot, seen) {
                None if seen != 0 => return Choice::Ask(slot, seen),
                Some(Verdict::Dead) => return Choice::Rescue(slot, seen, before),
                Some(Verdict::Writer | Verdict::Foreign) => {
                    passed += 1;
                    continue;
                }
                None | Some(Verdict::Reader) => {}
            }
            if passed > 0 && !self.are_all_held(suspects, before, passed) {
                passed = 0;
                continue;
            }
            let fate = if self.memory.is_abandoned(slot) {
                Fate::Kept
            } else {
                Fate::Overwritten
            };
            let after = Range {
                start: before.nth(passed + 1, max_len),
                len: max_len,
            };
            return Choice::Take(Move {
                slot,
                seen,
                fate,
                before,
                after,
                enqueues: 1,
            });
        }
        let slot = before.start;
        Choice::Wait(slot, self.memory.holder(slot))
    }

    /// Whether living writers are still in the `count` oldest slots, after a look at the one behind them.
    ///
    /// A writer lets the slots of a batch go in their order. One that was still held when it was passed, before one of the same
    /// batch that was free, is free by now: it must not become newer than those that come after it.
    #[cold]
    fn are_all_held(&self, suspects: &Suspects, range: Range, count: u32) -> bool {
        (0..count).all(|passed| {
            let slot = range.nth(passed, self.memory.max_len());
            let verdict = suspects.verdict(slot, self.memory.holder(slot));
            matches!(verdict, Some(Verdict::Writer | Verdict::Foreign))
        })
    }

    /// Without the header: finds out who is in the way, or gives them time.
    #[cold]
    fn stand_back(&self, choice: Choice, suspects: &mut Suspects, wait: Wait) -> Result<()> {
        match choice {
            Choice::Ask(slot, word) => suspects.look(self, slot, word),
            Choice::Wait(slot, word) => {
                suspects.forget();
                #[cfg(not(loom))]
                if !wait.pause(Duration::from_micros(200)) {
                    let who = if word == 0 {
                        "living writers".into()
                    } else {
                        format!("the word {word:#x}")
                    };
                    return Err(Error::Full(format!(
                        "slot {slot} and all that could serve instead are held by {who}"
                    )));
                }
                #[cfg(loom)]
                let _ = (wait, slot, word);
                sync::spin();
                Ok(())
            }
            Choice::Take(_) | Choice::Rescue(..) => Ok(()),
        }
    }

    /// With the header held: locks a slot and moves START and LEN, as one change. `None` when the holder of the slot got done
    /// in the meantime; the sequence number of the next message before the change otherwise.
    #[inline(always)]
    pub(super) fn take(&self, taking: &Move, word: u64) -> Option<u64> {
        let enqueued = self.lock_slot(taking, word)?;
        self.publish(taking, enqueued);
        Some(enqueued)
    }

    /// The first half of [`Queue::take`].
    #[inline(always)]
    pub(super) fn lock_slot(&self, taking: &Move, word: u64) -> Option<u64> {
        let enqueued = self.get(Counter::Enqueued);
        let count = match taking.fate {
            Fate::Kept => 0,
            Fate::Overwritten => self.get(Counter::Overwritten),
            Fate::Discarded => self.get(Counter::Discarded).wrapping_add(1),
        };
        self.memory.intend(&Intent {
            kind: Kind::Move,
            fate: taking.fate,
            slot: taking.slot,
            owner: word,
            range: taking.before,
            enqueued,
            count,
        });
        // SYNC: slot (with `Queue::free`, `WriteHold::unlock`, `WriteBatch::deliver`, `ReadHold::finish`): the one before is
        // done with the data.
        // SYNC: message (with `WriteHold::unlock`, `WriteBatch::deliver`): a reader sees it whole.
        let locked =
            self.memory
                .lock(taking.slot)
                .compare_exchange(taking.seen, word, Ordering::AcqRel, Ordering::Relaxed);
        if locked.is_err() {
            self.memory.settle();
            return None;
        }
        match taking.fate {
            Fate::Kept => {}
            Fate::Overwritten => self.set(Counter::Overwritten, count.wrapping_add(1)),
            Fate::Discarded => self.set(Counter::Discarded, count),
        }
        Some(enqueued)
    }

    /// The second half: START and LEN say so.
    #[inline(always)]
    pub(super) fn publish(&self, taking: &Move, enqueued: u64) {
        self.move_to(taking.after);
        self.set(Counter::Enqueued, enqueued.wrapping_add(taking.enqueues));
        self.memory.settle();
    }
}

/// A slot in a writer's hands. Dropped before it is unlocked (by a panic), its message counts as abandoned.
#[derive(Debug)]
pub(super) struct WriteHold<'a> {
    pub(super) queue: &'a Queue,
    pub(super) slot: u32,
    pub(super) word: u64,
    pub(super) sequence: u64,
}

impl WriteHold<'_> {
    /// Writes and unlocks.
    #[inline(always)]
    fn deliver(self, message: &[u8]) -> u64 {
        self.write(message);
        self.unlock()
    }

    /// Copies the message in.
    #[inline(always)]
    pub(super) fn write(&self, message: &[u8]) {
        // SYNC: overwrite (with `ReadHold::finish`): a reader that sees any of this data sees that its slot was taken.
        fence(Ordering::Release);
        let memory = &self.queue.memory;
        memory.set_stamp(self.slot, Stamp::of(self.sequence));
        memory.write(self.slot, message);
    }

    /// Hands the message over to the readers.
    #[inline(always)]
    pub(super) fn unlock(self) -> u64 {
        let memory = &self.queue.memory;
        // SYNC: slot (with `Queue::lock_slot`)
        // SYNC: message (with `Queue::lock_slot`)
        // SYNC: sleep (with `Signal::wait_for`): this read-modify-write is the notifier's fence. START and LEN were stored
        // before it, and the readers look at them and at the lock after theirs.
        memory.lock(self.slot).swap(0, Ordering::SeqCst);
        memory.arrivals().notify_all_fenced();
        let sequence = self.sequence;
        std::mem::forget(self);
        sequence
    }
}

impl Drop for WriteHold<'_> {
    // By value, as `ReadHold`.
    #[inline(always)]
    fn drop(&mut self) {
        self.queue.give_up(self.slot, self.word);
    }
}
