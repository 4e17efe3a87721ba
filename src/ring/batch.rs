//! Many messages under one hold of the header, which otherwise travels from core to core twice for each of them.
//!
//! ```text
//! lock header -> (lock slot -> move START and LEN) x N -> unlock header -> copy N -> unlock N slots -> wake readers once
//! ```
//!
//! Only the hold of the header and the wake-up are shared. Each slot is taken by a move of its own with its own intent, so a
//! death among them leaves whole moves behind and at most one to undo: recovery cannot tell a batch from so many single calls.
//!
//! A batch ends where anything at all is in the way, and at most at a quarter of the ring: a writer never comes around to its
//! own slots. What is in the way is dealt with by the single calls, with nothing in hand. The slots of a batch lie one behind
//! the other and so do their sequence numbers, therefore a few words describe all of them.

use super::header::LOOKS_FOR_BATCH;
use super::layout::{Range, Stamp};
use super::queue::{Message, Queue};
use super::read::{self, ReadHold};
use super::suspects::Suspects;
use super::write::{self, WriteHold};
use crate::shared::identity::Purpose;
use crate::shared::signal::Wait;
use crate::shared::sync::{Ordering, fence};
use crate::{Error, Result};

/// The most messages that one call has in hand: as many can die with it, and so long others wait for the header.
const MOST: usize = 32;
/// The most bytes, unless a single message has more: slots are held for microseconds.
const MOST_BYTES: usize = 64 << 10;
/// For how many messages room is made in advance; more come as they come.
const RESERVE: usize = 1 << 16;

impl Queue {
    /// Puts all messages into the queue, in their order, as [`Queue::enqueue`] does each. Up to 32 at a time, and up to a
    /// quarter of the ring, cost the header only once.
    ///
    /// A message that is too large is refused before any is put. After another error the first ones may be in the queue;
    /// [`Queue::try_enqueue_many`] says how many.
    pub fn enqueue_many(&self, messages: &[&[u8]]) -> Result<()> {
        let mut rest = messages;
        while let Some(first) = rest.first() {
            let mut put = self.try_enqueue_many(rest)?;
            if put == 0 {
                self.enqueue_within(first, self.patience())?;
                put = 1;
            }
            rest = &rest[put..];
        }
        Ok(())
    }

    /// As [`Queue::enqueue_many`], as many as go without waiting for anybody, and says how many that are. An error comes only
    /// where nothing was put.
    pub fn try_enqueue_many(&self, messages: &[&[u8]]) -> Result<usize> {
        for message in messages {
            self.check_fits(message)?;
        }
        let most = self.batch_limit();
        let mut rest = messages;
        while let Some(first) = rest.first() {
            let put = match self.claim_many(most.min(rest.len())) {
                Some(batch) => batch.deliver(rest),
                // Somebody is in the way, and usually not for long.
                None => match self.enqueue_within(first, Wait::No) {
                    Ok(_) => 1,
                    Err(Error::TimedOut | Error::Full(_)) => break,
                    Err(error) if rest.len() == messages.len() => return Err(error),
                    Err(_) => break,
                },
            };
            rest = &rest[put..];
        }
        Ok(messages.len() - rest.len())
    }

    /// Takes up to `n` of the messages that are there, oldest first; waits for nobody. An error comes only where nothing was
    /// taken.
    pub fn try_dequeue_many(&self, n: usize) -> Result<Vec<Message>> {
        let size = self.message_bytes();
        let mut messages = Vec::with_capacity(n.min(self.len()).min(RESERVE));
        while messages.len() < n {
            let before = messages.len();
            let batch = match self.try_take_many(n - before) {
                Err(error) if before == 0 => return Err(error),
                taken => taken.unwrap_or_else(|_| self.nothing_taken()),
            };
            for hold in batch {
                let mut data = Vec::with_capacity(size);
                hold.append_to(&mut data);
                messages.extend(hold.finish().map(|sequence| Message { sequence, data }));
            }
            if messages.len() == before {
                // There is none, or writers took all of them away: a single call is stubborn.
                match self.try_dequeue() {
                    Ok(Some(message)) => messages.push(message),
                    Err(error) if before == 0 => return Err(error),
                    Ok(None) | Err(_) => break,
                }
            }
        }
        Ok(messages)
    }

    /// Takes up to `n` of the oldest messages out of the queue without copying them yet, for whoever has a place of its own to
    /// copy them to; at most [`Queue::batch_limit`] at a time. Nothing when there is nothing now; waits for nobody.
    ///
    /// To be copied at once and in their order: writers that need the slots take them away after a moment.
    #[inline]
    pub fn try_take_many(&self, n: usize) -> Result<ReadBatch<'_>> {
        // SYNC: sleep (with `WriteHold::unlock`, `WriteBatch::deliver`): what a waiting reader looks at.
        if n == 0 || Range::from_word(self.memory.range_word().load(Ordering::SeqCst)).len == 0 {
            return Ok(self.nothing_taken());
        }
        if let Some(batch) = self.take_many_quickly(self.batch_limit().min(n)) {
            return Ok(batch);
        }
        let mut batch = self.nothing_taken();
        if let Some(hold) = self.take_oldest(&mut Suspects::default())? {
            batch.begin(hold.slot, hold.word, hold.sequence);
            std::mem::forget(hold);
        }
        Ok(batch)
    }

    /// The most messages that are taken, or put, under one hold of the header: 32, fewer in small rings and of large messages.
    #[inline]
    pub fn batch_limit(&self) -> usize {
        let by_bytes = MOST_BYTES / self.message_bytes();
        let by_slots = self.max_len() as usize / 4;
        by_bytes.min(by_slots).clamp(1, MOST)
    }

    /// Takes up to `most` slots for writing where nothing at all is in the way.
    pub(super) fn claim_many(&self, most: usize) -> Option<WriteBatch<'_>> {
        let word = self.roster.me().ok()?.with(Purpose::Work).word();
        // Lives longer than the hold of the header: whoever drops it takes that again.
        let mut batch = WriteBatch::nothing(self, word);
        {
            let _header = self.header_now(LOOKS_FOR_BATCH)?;
            let nobody = Suspects::default();
            while batch.left < most {
                let Ok(write::Choice::Take(taking)) = self.choose(&nobody) else {
                    break;
                };
                if batch.left > 0 && taking.slot != batch.end() {
                    break;
                }
                let Some(sequence) = self.take(&taking, word) else {
                    break;
                };
                if batch.left == 0 {
                    (batch.slot, batch.sequence) = (taking.slot, sequence);
                }
                batch.left += 1;
            }
        }
        (batch.left > 0).then_some(batch)
    }

    /// Takes up to `most` messages for reading where nothing at all is in the way.
    fn take_many_quickly(&self, most: usize) -> Option<ReadBatch<'_>> {
        // Lives longer than the hold of the header, as above.
        let mut batch = self.nothing_taken();
        {
            let _header = self.header_now(LOOKS_FOR_BATCH)?;
            let nobody = Suspects::default();
            // One for all of them: it only has to differ from the next one in the same slot.
            let word = self.reader_word(Purpose::Read).ok()?;
            while batch.left < most {
                let Ok(read::Choice::Take(taking)) = self.choose_message(&nobody) else {
                    break;
                };
                // Known only under the header: a foreign writer may publish the slot again while we copy.
                let sequence = self.memory.stamp(taking.slot).sequence();
                if batch.left > 0 && (taking.slot, sequence) != batch.end() {
                    break;
                }
                if self.take(&taking, word).is_none() {
                    break;
                }
                if batch.left == 0 {
                    batch.begin(taking.slot, word, sequence);
                } else {
                    batch.left += 1;
                }
            }
        }
        (batch.left > 0).then_some(batch)
    }

    fn nothing_taken(&self) -> ReadBatch<'_> {
        ReadBatch {
            queue: self,
            word: 0,
            slot: 0,
            sequence: None,
            left: 0,
        }
    }

    /// The slot so many behind another.
    #[inline(always)]
    fn slot_behind(&self, slot: u32, steps: usize) -> u32 {
        let range = Range { start: slot, len: 0 };
        range.nth(steps as u32, self.memory.max_len())
    }
}

/// Slots in a writer's hands. Dropped before they are unlocked (by a panic), their messages count as abandoned.
#[derive(Debug)]
pub(super) struct WriteBatch<'a> {
    queue: &'a Queue,
    word: u64,
    /// The first one, and how many there are.
    slot: u32,
    left: usize,
    sequence: u64,
}

impl<'a> WriteBatch<'a> {
    fn nothing(queue: &'a Queue, word: u64) -> Self {
        WriteBatch {
            queue,
            word,
            slot: 0,
            left: 0,
            sequence: 0,
        }
    }

    /// The slot behind them.
    #[inline(always)]
    fn end(&self) -> u32 {
        self.queue.slot_behind(self.slot, self.left)
    }

    /// Writes as many of the messages as there are slots, unlocks them, and says how many those were.
    ///
    /// All are copied before the first is unlocked: a lock is a store that waits for all before it, and the slots come from
    /// other cores one after the other that way.
    #[inline(always)]
    fn deliver(self, messages: &[&[u8]]) -> usize {
        let (queue, count) = (self.queue, self.left);
        // SYNC: overwrite (with `ReadHold::finish`): a reader that sees any of this data sees that its slot was taken. All
        // slots were, before this.
        fence(Ordering::Release);
        for (place, message) in messages[..count].iter().enumerate() {
            let slot = queue.slot_behind(self.slot, place);
            let sequence = self.sequence.wrapping_add(place as u64);
            queue.memory.set_stamp(slot, Stamp::of(sequence));
            queue.memory.write(slot, message);
        }
        // In their order: `Queue::choose_oldest` counts on it.
        for hold in self {
            // SYNC: slot (with `Queue::lock_slot`)
            // SYNC: message (with `Queue::lock_slot`)
            queue.memory.lock(hold.slot).store(0, Ordering::Release);
            std::mem::forget(hold);
        }
        // SYNC: sleep (with `Signal::wait_for`): START, LEN and the locks were stored before the fence in here.
        queue.memory.arrivals().notify_all();
        count
    }
}

impl<'a> Iterator for WriteBatch<'a> {
    type Item = WriteHold<'a>;

    #[inline(always)]
    fn next(&mut self) -> Option<WriteHold<'a>> {
        self.left = self.left.checked_sub(1)?;
        let hold = WriteHold {
            queue: self.queue,
            slot: self.slot,
            word: self.word,
            sequence: self.sequence,
        };
        self.slot = self.queue.slot_behind(self.slot, 1);
        self.sequence = self.sequence.wrapping_add(1);
        Some(hold)
    }
}

impl Drop for WriteBatch<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.for_each(drop);
    }
}

/// Messages in a reader's hands, oldest first. Those that are dropped before they are finished count as lost.
#[derive(Debug)]
pub struct ReadBatch<'a> {
    queue: &'a Queue,
    word: u64,
    /// The first one, and how many there are.
    slot: u32,
    left: usize,
    sequence: Option<u64>,
}

impl ReadBatch<'_> {
    #[inline(always)]
    fn begin(&mut self, slot: u32, word: u64, sequence: Option<u64>) {
        (self.slot, self.word, self.sequence, self.left) = (slot, word, sequence, 1);
    }

    /// What a further message must have: the slot, and the sequence number, behind them.
    #[inline(always)]
    fn end(&self) -> (u32, Option<u64>) {
        let sequence = self.sequence.map(|first| first.wrapping_add(self.left as u64));
        (self.queue.slot_behind(self.slot, self.left), sequence)
    }
}

impl<'a> Iterator for ReadBatch<'a> {
    type Item = ReadHold<'a>;

    #[inline(always)]
    fn next(&mut self) -> Option<ReadHold<'a>> {
        self.left = self.left.checked_sub(1)?;
        let hold = ReadHold {
            queue: self.queue,
            slot: self.slot,
            word: self.word,
            sequence: self.sequence,
        };
        self.slot = self.queue.slot_behind(self.slot, 1);
        self.sequence = self.sequence.map(|number| number.wrapping_add(1));
        Some(hold)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for ReadBatch<'_> {}

impl Drop for ReadBatch<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.for_each(drop);
    }
}
