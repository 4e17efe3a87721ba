//! Dequeue: take the oldest slot under the header lock, let the header go, copy, let the slot go.
//!
//! A writer that needs the slot does not wait for the copy: it takes the slot away, and the reader, which looks at the lock
//! word again after copying, throws its copy away and tries the next message.

use std::mem::MaybeUninit;

use super::header::LOOKS;
use super::intent::Fate;
use super::layout::Range;
use super::queue::{Message, Queue};
use super::suspects::{Suspects, Verdict};
use super::write::Move;
use crate::shared::identity::Purpose;
use crate::shared::signal::{Turn, Wait};
use crate::shared::sync::{Ordering, fence};
use crate::{Error, Result};

/// So many messages taken away from one reader, one after the other, are enough for one attempt.
const ROUNDS: u32 = 1_000;

/// What a reader can do now.
#[derive(Debug)]
pub(super) enum Choice {
    Nothing,
    Take(Move),
    Skip(u32, Range),
    Ask(u32, u64),
    Rescue(u32, u64, Range),
}

impl Queue {
    /// Takes the oldest message if there is one; waits for nobody.
    pub fn try_dequeue(&self) -> Result<Option<Message>> {
        let mut data = vec![0; self.message_bytes()];
        let sequence = self.try_dequeue_into(&mut data)?;
        Ok(sequence.map(|sequence| Message { sequence, data }))
    }

    /// As [`Queue::try_dequeue`], into `out`, which has the length of a message. `Some` holds the sequence number, where it
    /// is known.
    #[inline]
    pub fn try_dequeue_into(&self, out: &mut [u8]) -> Result<Option<Option<u64>>> {
        self.attempt(out, &mut Suspects::default())
    }

    /// Takes the oldest message, waiting for one; [`Error::Empty`] when the time is up.
    pub fn dequeue(&self, wait: Wait) -> Result<Message> {
        let mut data = vec![0; self.message_bytes()];
        let sequence = self.dequeue_into(&mut data, wait, || Ok(()))?;
        Ok(Message { sequence, data })
    }

    /// As [`Queue::dequeue`], into `out`. `idle` is called at least every 25 ms of waiting; its error ends the wait.
    pub fn dequeue_into(&self, out: &mut [u8], wait: Wait, idle: impl FnMut() -> Result<()>) -> Result<Option<u64>> {
        let mut suspects = Suspects::default();
        let attempt = || {
            suspects.forget();
            self.attempt(out, &mut suspects)
        };
        // Foreign writers wake nobody, and the writer of the oldest message may die: look around often.
        let arrived = self
            .memory
            .arrivals()
            .wait_for(wait, Turn::PeerMatters, idle, attempt)?;
        arrived.ok_or(Error::Empty)
    }

    /// Waits until there may be a message, and takes none; false when the time is up. `idle` as in [`Queue::dequeue_into`].
    pub fn wait_for_arrival(&self, wait: Wait, idle: impl FnMut() -> Result<()>) -> Result<bool> {
        let attempt = || {
            // SYNC: sleep (with `WriteHold::unlock`, `WriteBatch::deliver`): what a waiting reader looks at.
            let range = Range::from_word(self.memory.range_word().load(Ordering::SeqCst));
            Ok((range.len > 0).then_some(()))
        };
        let arrived = self
            .memory
            .arrivals()
            .wait_for(wait, Turn::PeerMatters, idle, attempt)?;
        Ok(arrived.is_some())
    }

    #[inline(always)]
    fn attempt(&self, out: &mut [u8], suspects: &mut Suspects) -> Result<Option<Option<u64>>> {
        let size = self.message_bytes();
        if out.len() != size {
            let given = out.len();
            return Err(Error::Invalid(format!(
                "a buffer of {given} bytes for messages of {size} bytes"
            )));
        }
        for _ in 0..ROUNDS {
            // SYNC: sleep (with `WriteHold::unlock`, `WriteBatch::deliver`): what a waiting reader looks at.
            if Range::from_word(self.memory.range_word().load(Ordering::SeqCst)).len == 0 {
                return Ok(None);
            }
            let hold = match self.take_quickly() {
                Some(hold) => hold,
                None => match self.take_oldest(suspects)? {
                    Some(hold) => hold,
                    None => return Ok(None),
                },
            };
            self.memory.read(hold.slot, out);
            if let Some(sequence) = hold.finish() {
                return Ok(Some(sequence));
            }
        }
        Ok(None)
    }

    /// Takes the oldest message's slot for reading where nothing at all is in the way, as is usual.
    #[inline(always)]
    fn take_quickly(&self) -> Option<ReadHold<'_>> {
        let _header = self.header_now(LOOKS)?;
        let Ok(Choice::Take(taking)) = self.choose_message(&Suspects::default()) else {
            return None;
        };
        self.hold_taken(&taking)
    }

    /// With the header held: takes what was chosen, unless its holder got done in the meantime.
    #[inline(always)]
    fn hold_taken(&self, taking: &Move) -> Option<ReadHold<'_>> {
        let word = self.reader_word(Purpose::Read).ok()?;
        let sequence = self.memory.stamp(taking.slot).sequence();
        self.take(taking, word)?;
        Some(ReadHold {
            queue: self,
            slot: taking.slot,
            word,
            sequence,
        })
    }

    /// Takes the oldest message's slot for reading; `None` when there is no message, or it is not written yet.
    #[cold]
    pub(super) fn take_oldest(&self, suspects: &mut Suspects) -> Result<Option<ReadHold<'_>>> {
        for _ in 0..ROUNDS.saturating_add(self.memory.max_len()) {
            let header = match self.header_watched(Wait::No, &mut suspects.header) {
                // A stopped or foreign holder; a dead one takes a millisecond to be known.
                Err(Error::TimedOut) => {
                    let glance = Wait::from_timeout(Some(super::queue::GLANCE));
                    self.header_watched(glance, &mut suspects.header)
                }
                header => header,
            };
            let header = match header {
                Err(Error::TimedOut) => return Ok(None),
                header => header?,
            };
            match self.choose_message(suspects)? {
                Choice::Nothing => return Ok(None),
                Choice::Take(taking) => {
                    if let Some(hold) = self.hold_taken(&taking) {
                        return Ok(Some(hold));
                    }
                }
                Choice::Skip(slot, after) => self.skip(slot, after),
                Choice::Rescue(slot, word, range) => self.rescue(slot, word, range),
                Choice::Ask(slot, word) => {
                    drop(header);
                    suspects.look(self, slot, word)?;
                }
            }
        }
        Ok(None)
    }

    /// With the header held: what to do with the oldest message.
    #[inline(always)]
    pub(super) fn choose_message(&self, suspects: &Suspects) -> Result<Choice> {
        let max_len = self.memory.max_len();
        let before = self.memory.range()?;
        if before.len == 0 {
            return Ok(Choice::Nothing);
        }
        let slot = before.start;
        let after = before.without_oldest(1, max_len);
        let seen = self.memory.holder(slot);
        if seen != 0 {
            match suspects.verdict(slot, seen) {
                None => return Ok(Choice::Ask(slot, seen)),
                Some(Verdict::Dead) => return Ok(Choice::Rescue(slot, seen, before)),
                Some(Verdict::Writer | Verdict::Foreign) => return Ok(Choice::Nothing),
                // Somebody only looks at it: the message is there.
                Some(Verdict::Reader) => {}
            }
        }
        if self.memory.is_abandoned(slot) {
            return Ok(Choice::Skip(slot, after));
        }
        Ok(Choice::Take(Move {
            slot,
            seen,
            fate: Fate::Kept,
            before,
            after,
            enqueues: 0,
        }))
    }

    /// Frees the slot of a message that will not be finished.
    #[cold]
    #[inline(never)]
    fn let_fall(&self, slot: u32, word: u64) {
        if let (Ok(_header), Ok(range)) = (self.header(self.patience()), self.memory.range()) {
            self.rescue(slot, word, range);
        }
    }

    /// The lock word of one more reader. Numbered, because a reader whose slot was taken away may meet the word of the next
    /// reader of the same handle there, and must not think that it is its own. Needs the header.
    #[inline(always)]
    pub(super) fn reader_word(&self, purpose: Purpose) -> Result<u64> {
        let number = self.readers.load(Ordering::Relaxed);
        self.readers.store(number.wrapping_add(1), Ordering::Relaxed);
        Ok(self.roster.me()?.numbered(number).with(purpose).word())
    }
}

/// A message in a reader's hands: taken out of the queue, still in its slot. Dropped before it is finished (by a panic), it
/// counts as lost.
#[derive(Debug)]
pub struct ReadHold<'a> {
    pub(super) queue: &'a Queue,
    pub(super) slot: u32,
    pub(super) word: u64,
    pub(super) sequence: Option<u64>,
}

impl ReadHold<'_> {
    /// Bytes of the message.
    #[inline(always)]
    pub fn size(&self) -> usize {
        self.queue.message_bytes()
    }

    /// Copies the message into `out`, which has its exact length and need not be initialised, but is afterwards. The copy is
    /// worth nothing before [`ReadHold::finish`] says so.
    #[inline(always)]
    pub fn copy_to(&self, out: &mut [MaybeUninit<u8>]) {
        assert_eq!(out.len(), self.size(), "room for exactly the message");
        self.queue.memory.read_uninit(self.slot, out);
    }

    /// As [`ReadHold::copy_to`], to the end of `out`.
    #[inline(always)]
    pub fn append_to(&self, out: &mut Vec<u8>) {
        self.queue.memory.append_to(self.slot, out);
    }

    /// Lets the slot go. `None` when a writer had taken it away: what was copied may be torn. `Some` holds the sequence number,
    /// where it is known.
    #[inline(always)]
    pub fn finish(self) -> Option<Option<u64>> {
        // SYNC: overwrite (with `WriteHold::write`, `WriteBatch::deliver`)
        fence(Ordering::Acquire);
        let lock = self.queue.memory.lock(self.slot);
        // SYNC: slot (with `Queue::lock_slot`): a writer comes after our copy.
        let mine = lock
            .compare_exchange(self.word, 0, Ordering::Release, Ordering::Relaxed)
            .is_ok();
        let sequence = self.sequence;
        std::mem::forget(self);
        mine.then_some(sequence)
    }
}

impl Drop for ReadHold<'_> {
    // Hands over values: a hold whose address is passed on lives in memory also where nothing panics.
    #[inline(always)]
    fn drop(&mut self) {
        self.queue.let_fall(self.slot, self.word);
    }
}
