//! Looking at the queue without taking anything out of it.
//!
//! A looker locks one slot after the other like a reader, without moving START: each message is whole, also beside foreign
//! programs, and whoever needs the slot takes it away as from any reader. The header is held only for a moment per message,
//! so a snapshot is not of one instant: it is those messages of the moment it began that were still there when it came by.

use super::layout::Range;
use super::queue::{Message, Queue};
use super::read::ReadHold;
use super::suspects::{LOOKING, Suspects, Verdict};
use crate::Result;
use crate::shared::sync::Ordering;

/// So many different holders in the way of one look are enough.
const ROUNDS: u32 = 100;

impl Queue {
    /// A copy of the messages in the queue, oldest first, without taking them. Never torn; messages that are being written
    /// and those that went away in the meantime are not in it.
    pub fn snapshot(&self) -> Result<Vec<Message>> {
        let (range, newer) = {
            let _header = self.header(self.patience())?;
            (self.memory.range()?, self.enqueued())
        };
        let mut messages = Vec::with_capacity(range.len.min(1 << 16) as usize);
        for place in 0..range.len {
            let slot = range.nth(place, self.memory.max_len());
            if let Some(message) = self.peek(slot)? {
                // A slot that was used again in the meantime holds what came after the beginning.
                if message.sequence.is_none_or(|sequence| sequence < newer) {
                    messages.push(message);
                }
            }
        }
        // The message of a writer that was overtaken stays in its slot, among newer ones.
        if messages.iter().all(|message| message.sequence.is_some()) {
            messages.sort_by_key(|message| message.sequence);
        }
        Ok(messages)
    }

    /// A copy of the newest message that is there in full, without taking it.
    pub fn latest(&self) -> Result<Option<Message>> {
        for _ in 0..ROUNDS {
            let (range, newer) = {
                let _header = self.header(self.patience())?;
                (self.memory.range()?, self.enqueued())
            };
            if range.len == 0 {
                return Ok(None);
            }
            let mut overtaken: Option<Message> = None;
            for place in (0..range.len).rev() {
                let Some(message) = self.peek(range.nth(place, self.memory.max_len()))? else {
                    continue;
                };
                // That of a writer that a whole turn of the ring went past is where a new one would be.
                let late = |sequence: u64| sequence.saturating_add(self.memory.max_len().into()) < newer;
                if !message.sequence.is_some_and(late) {
                    return Ok(Some(message));
                }
                if overtaken.as_ref().is_none_or(|other| other.sequence < message.sequence) {
                    overtaken = Some(message);
                }
            }
            if overtaken.is_some() {
                return Ok(overtaken);
            }
        }
        Ok(None)
    }

    /// Copies the message in a slot, if it is part of the queue and complete.
    fn peek(&self, slot: u32) -> Result<Option<Message>> {
        let mut suspects = Suspects::default();
        for _ in 0..ROUNDS {
            let header = self.header(self.patience())?;
            let range = self.memory.range()?;
            if !range.covers(slot, self.memory.max_len()) {
                return Ok(None);
            }
            let seen = self.memory.holder(slot);
            if seen != 0 {
                match suspects.verdict(slot, seen) {
                    None => {
                        drop(header);
                        suspects.look(self, slot, seen)?;
                        continue;
                    }
                    Some(Verdict::Writer | Verdict::Foreign) => return Ok(None),
                    Some(Verdict::Dead) => {
                        self.rescue(slot, seen, range);
                        continue;
                    }
                    // Another looker, still at it after our patience: its lock serves us as well as it serves itself, once.
                    Some(Verdict::Reader) => {}
                }
            }
            if self.memory.is_abandoned(slot) {
                return Ok(None);
            }
            let Some(hold) = self.hold_in_place(slot, seen)? else {
                continue;
            };
            drop(header);
            let mut data = vec![0; self.message_bytes()];
            self.memory.read(slot, &mut data);
            // Taken away: somebody has it now, or has overwritten it.
            return Ok(hold.finish().map(|sequence| Message { sequence, data }));
        }
        Ok(None)
    }

    /// With the header held: locks a slot for reading and leaves it where it is.
    fn hold_in_place(&self, slot: u32, seen: u64) -> Result<Option<ReadHold<'_>>> {
        let word = self.reader_word(LOOKING)?;
        let sequence = self.memory.stamp(slot).sequence();
        // SYNC: slot, message (with `WriteHold::unlock`, `WriteBatch::deliver`)
        let locked = self
            .memory
            .lock(slot)
            .compare_exchange(seen, word, Ordering::AcqRel, Ordering::Relaxed);
        Ok(locked.is_ok().then_some(ReadHold {
            queue: self,
            slot,
            word,
            sequence,
        }))
    }
}

impl Range {
    /// How many messages there are.
    pub(super) fn count(self) -> usize {
        self.len as usize
    }
}
