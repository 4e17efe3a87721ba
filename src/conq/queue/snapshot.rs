//! Looking at what is in a queue without taking anything: every message that nobody has finished, whoever has it in hand.

use super::{Acquire, Queue, Relaxed, SeqCst, fence, header};
use crate::Result;
use crate::conq::arrivals::Arrivals;
use crate::conq::layout::Slot;
use crate::conq::returned::Returned;
use crate::conq::space::Space;
use crate::conq::state::State;
use crate::conq::timetable::Timetable;

/// A message that was in the queue when somebody looked.
#[derive(Clone, Copy, Debug)]
pub struct Unfinished {
    /// Of the message in its queue.
    pub id: u64,
    /// Bytes of the message.
    pub length: usize,
    slot: Slot,
    enqueued: u64,
}

impl Queue {
    /// Every message that nobody has finished, oldest first: ready, leased and expired.
    pub fn unfinished(&self, now: u64) -> Result<Vec<Unfinished>> {
        self.check_usable()?;
        let space = &self.space;
        let mut found = self.locked(now, |_| {
            let mut slots = Timetable(space).slots()?;
            slots.extend(Returned(space).slots()?);
            slots.extend(Arrivals(space).listed().into_iter().map(|(_, slot)| slot));
            Ok(slots.into_iter().map(|slot| seen(space, slot)).collect::<Vec<_>>())
        })?;
        found.sort_unstable_by_key(|message| message.id);
        Ok(found)
    }

    /// How many messages were ever finished.
    pub fn removed(&self) -> u64 {
        self.space.wide(header::REMOVED).load(SeqCst)
    }

    /// Appends the bytes of a message to `out`; false, with `out` as it was, when it was finished meanwhile.
    pub fn append_unfinished(&self, message: &Unfinished, out: &mut Vec<u8>) -> bool {
        let space = &self.space;
        let length = u32::try_from(message.length).ok();
        let Some(offset) = length.and_then(|length| space.geometry.bytes(message.slot, length)) else {
            return false;
        };
        let before = out.len();
        space.region.append_to(offset, message.length, out);
        // SYNC: overwritten (with `enqueue_quietly`): whoever copied a byte of another message sees that the state changed.
        fence(Acquire);
        // SYNC: message (with `enqueue_quietly`): of a new message in the slot its time is seen, too.
        let state = space.state(message.slot).load(Acquire);
        let there = matches!(
            State::from_word(state),
            Some(State::Ready(_) | State::Leased(_) | State::Expired(_))
        );
        let same = seen(space, message.slot);
        let same = same.id == message.id && same.enqueued == message.enqueued && same.length == message.length;
        if !(there && same) {
            out.truncate(before);
        }
        there && same
    }
}

fn seen(space: &Space, slot: Slot) -> Unfinished {
    Unfinished {
        id: space.id(slot).load(Relaxed),
        length: space.length(slot).load(Relaxed) as usize,
        enqueued: space.enqueued(slot).load(Relaxed),
        slot,
    }
}
