//! Many messages in one claim: one swap of the head, one record, one commit, for a run of messages that follow each other in
//! the ring.
//!
//! ```text
//! 1 claim      |C-- all pages                    |0       |0       |     as any claim of so many bytes
//! 2 messages   |C-- all pages                    |CM- 2nd |CM- 3rd |     interior words: nobody looks at them
//! 3 commit     |CM- 1st                          |CM- 2nd |CM- 3rd |     one swap: it ends where the second begins
//! ```
//!
//! Up to the swap there is one uncommitted claim for everybody who looks, and what becomes of it when its writer dies or is
//! late is what becomes of any claim; with the swap all messages are there at once, in their order.
//!
//! Only where owners are known. A reader that looks before the claim is written down goes on page by page and can come upon
//! the second message before it has seen the first: ours notices ([`super::pending`]), that of another program would deliver
//! them in another order. And the pages of a late writer's claim must not be reused before it is done with the words in them.

use super::control::{Control, NO_IDENTIFIER, Reference, SIZE_LIMIT};
use super::memory::Memory;
use super::testpoint::{Point, reach};
use super::writer::{Writer, mark_claim};
use crate::Result;
use crate::shared::sync::{Ordering, fence};

/// The most messages of a run: the reader sees none of them before all are written.
const MOST_MESSAGES: usize = 32;
/// The most bytes, for the same reason.
const MOST_BYTES: u32 = 16 << 10;
/// The most pages, as a part of the ring: the messages of a run are also given out as incomplete together.
const MOST_OF_RING: u32 = 4;

/// The messages at the beginning of a batch that are put in one claim.
#[derive(Clone, Copy, Debug)]
struct Run {
    messages: usize,
    pages: u32,
}

impl Run {
    /// As many of `messages` as fit into `room` pages and into one run.
    #[inline]
    fn of(memory: &Memory, messages: &[&[u8]], room: u32) -> Self {
        let geometry = &memory.geometry;
        let most = (MOST_BYTES >> geometry.shift)
            .min(geometry.page_count / MOST_OF_RING)
            .min(room);
        let mut run = Run { messages: 0, pages: 0 };
        for message in messages {
            let pages = match u32::try_from(message.len()) {
                Ok(size @ 1..=SIZE_LIMIT) => geometry.pages(size),
                // Not a message at all: the error is that of putting it alone.
                _ => break,
            };
            if pages > most - run.pages {
                break;
            }
            run.messages += 1;
            run.pages += pages;
        }
        run
    }
}

impl Writer {
    /// Puts as many of `messages` as there is room for, and says how many those were.
    pub fn try_put_many<'b>(&self, messages: impl IntoIterator<Item = &'b [u8]>) -> Result<usize> {
        let mut messages = messages.into_iter();
        let mut batch = [&[][..]; MOST_MESSAGES];
        let mut count = 0;
        loop {
            let mut filled = 0;
            for (place, message) in batch.iter_mut().zip(&mut messages) {
                *place = message;
                filled += 1;
            }
            let (put, outcome) = self.put_batch(&batch[..filled]);
            count += put;
            outcome?;
            if put < filled || filled < MOST_MESSAGES {
                return Ok(count);
            }
        }
    }

    fn put_batch(&self, messages: &[&[u8]]) -> (usize, Result<()>) {
        let mut put = 0;
        let mut outcome = Ok(());
        while put < messages.len() {
            match self.put_some(&messages[put..]) {
                Ok(0) => break,
                Ok(count) => put += count,
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        if put > 0 {
            self.memory.commit_signal().notify_all_fenced();
        }
        (put, outcome)
    }

    /// Puts a run of messages, or the first alone; 0 when there is no room.
    fn put_some(&self, messages: &[&[u8]]) -> Result<usize> {
        if messages.len() > 1 && !self.memory.geometry.options.extendable && self.memory.trailer.is_some() {
            self.memory.check()?;
            loop {
                match self.put_run(messages)? {
                    Some(0) => break,
                    Some(count) => return Ok(count),
                    // Lost to the reader: the messages are not in the queue, so they are put again.
                    None => {}
                }
            }
        }
        Ok(usize::from(self.put_quietly(messages[0])?))
    }

    /// How many messages were put in one claim: 0 when no two fit at the head; `None` when the claim was lost.
    fn put_run(&self, messages: &[&[u8]]) -> Result<Option<usize>> {
        let memory = &*self.memory;
        let geometry = &memory.geometry;
        let record = self.lines.record(memory)?;
        if !record.is_kept() {
            return Ok(Some(0));
        }
        let mut head_word = memory.head_word().load(Ordering::Relaxed);
        let (place, run) = loop {
            let head = memory.checked(head_word, "head")?;
            // SYNC: free (with `Reader::publish_tail`): the reader is done with the pages in front of the tail.
            let tail = memory.checked(memory.tail_word().load(Ordering::Acquire), "tail")?;
            let run = Run::of(
                memory,
                messages,
                room_at(head.index(), tail.index(), geometry.page_count),
            );
            if run.messages < 2 {
                record.clear(&memory.region);
                return Ok(Some(0));
            }
            let next = head.advance(run.pages, geometry.page_count);
            record.intend(memory, head, run.pages << geometry.shift);
            reach(Point::BeforeHead);
            // SYNC: record (with `Walk::head`): the record is visible to whoever sees the head beyond it.
            let swapped = memory
                .head_word()
                .compare_exchange(head_word, next.0, Ordering::AcqRel, Ordering::Relaxed);
            match swapped {
                Ok(_) => break (head, run),
                Err(seen) => {
                    memory.contention().fetch_add(1, Ordering::Relaxed);
                    head_word = seen;
                }
            }
        };
        let size = run.pages << geometry.shift;
        record.won(memory, place, size);
        // SYNC: snapshot (with `Snapshot::take`): who sees a store to the pages sees the head beyond them.
        fence(Ordering::Release);
        reach(Point::BeforeControl);
        mark_claim(memory, place, size);
        let first = self.write_run(place, &messages[..run.messages]);
        reach(Point::BeforeCommit);
        // SYNC: commit (with `Memory::control`): all messages and their words are there before the first is committed.
        let committed = memory
            .control_word(place.index())
            .compare_exchange(
                Control::claimed(place, size).0,
                first.0,
                Ordering::Release,
                Ordering::Relaxed,
            )
            .is_ok();
        if committed {
            // SYNC: sleep (with `Memory::wait_for_commit`)
            memory.commit_counter().fetch_add(run.messages as u32, Ordering::SeqCst);
        }
        record.clear(&memory.region);
        Ok(committed.then_some(run.messages))
    }

    /// Writes the messages and the words of all but the first, whose committed word is returned.
    #[inline]
    fn write_run(&self, first: Reference, messages: &[&[u8]]) -> Control {
        let memory = &*self.memory;
        let mut place = first;
        for message in messages {
            let size = message.len() as u32;
            memory.region.copy_in(memory.geometry.page(place.index()), message);
            self.write_words(place, size, NO_IDENTIFIER);
            if place != first {
                let committed = Control::claimed(place, size).with_commit();
                // SYNC: run (with `Walk::written_since`), SYNC: commit (with `Memory::control`)
                memory.control_word(place.index()).store(committed.0, Ordering::Release);
            }
            // Within one turn: a run does not go around the end of the ring.
            place = Reference(place.0.wrapping_add(memory.geometry.pages(size)));
        }
        Control::claimed(first, messages[0].len() as u32).with_commit()
    }
}

/// Free pages from the head on, without going around the end of the ring; one page of the ring always stays free.
fn room_at(head: u32, tail: u32, count: u32) -> u32 {
    if head < tail {
        tail - head - 1
    } else {
        count - head - u32::from(tail == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::room_at;

    /// Facts 1.5, UtClaim: (head, tail) of a ring of 11 pages, the most that is claimed without going around.
    #[test]
    fn room_at_the_head() {
        let table = [
            ((0, 0), 10),
            ((1, 1), 10),
            ((7, 7), 4),
            ((8, 0), 2),
            ((8, 1), 3),
            ((0, 8), 7),
            ((0, 10), 9),
            ((10, 3), 1),
            ((4, 5), 0),
        ];
        for ((head, tail), pages) in table {
            assert_eq!(room_at(head, tail, 11), pages, "({head}, {tail})");
        }
    }
}
