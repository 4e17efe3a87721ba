//! Taking many messages in one call: all are copied, then all are released, and the tail moves once.
//!
//! Messages that follow each other in the ring need no list of their places: they are found again by walking from the first to
//! the last. Where something else lies between them (a claim that is not committed, waste, segments of a chain, a checksum to
//! be checked) each is kept with its parts.

use super::control::{Control, State};
use super::reader::{Reader, not_at};
use super::retrieved::{Item, Part, Position};
use super::take::{Taken, Verdict};
use crate::Result;
use crate::shared::sync::Ordering;

/// Messages that were offered and taken, without anything in between.
#[derive(Clone, Copy, Debug)]
struct InOrder {
    from: Position,
    until: Position,
    count: usize,
    /// No more are wanted.
    full: bool,
}

impl Reader {
    /// Takes up to `most` messages, as many as there are now; says how many those were. All are released together at the
    /// end: when `read` fails, none is.
    pub fn take_many(&mut self, most: usize, mut read: impl FnMut(&Taken<'_>) -> Result<Verdict>) -> Result<usize> {
        let run = self.offer_in_order(most, &mut read)?;
        let mut parts = Vec::new();
        let mut count = run.count;
        // What was offered in order ended with a look at the head, unless nothing is offered so at all.
        let seen_all = self.offers_in_order() && self.walk.is_at_seen();
        if !run.full && !seen_all {
            match self.offer_others(most - count, &mut parts, &mut read) {
                Ok(others) => count += others,
                Err(error) => {
                    self.put_parts_back(&parts);
                    self.put_run_back(run);
                    return Err(error);
                }
            }
        }
        self.release_in_order(run)?;
        for part in &parts {
            self.mark_released(part)?;
        }
        if !parts.is_empty() {
            self.free()?;
        }
        Ok(count)
    }

    /// Where a message is one item whose bytes are copied as they are.
    fn offers_in_order(&self) -> bool {
        let options = self.memory.geometry.options;
        !options.extendable && !options.crc32
    }

    fn offer_in_order(&mut self, most: usize, read: &mut impl FnMut(&Taken<'_>) -> Result<Verdict>) -> Result<InOrder> {
        self.give_back()?;
        self.keep_role()?;
        let from = self.walk.cursor;
        let mut run = InOrder {
            from,
            until: from,
            count: 0,
            full: most == 0,
        };
        if !self.offers_in_order() {
            return Ok(run);
        }
        while !run.full {
            let known = self.walk.next_known(&self.memory);
            let Some((at, control)) = (match known {
                Some(known) => Some(known),
                None => self.next_at_head()?,
            }) else {
                break;
            };
            let item = Item::single(self.part(at, control, false), &self.memory.geometry);
            match read(&Taken::unchecked(&self.memory, &item)) {
                Ok(Verdict::Taken) => {
                    run.count += 1;
                    run.until = self.walk.cursor;
                    run.full = run.count == most;
                }
                Ok(Verdict::NoRoom) => {
                    self.walk.cursor = at;
                    run.full = true;
                }
                Err(error) => {
                    self.walk.cursor = from;
                    return Err(error);
                }
            }
        }
        Ok(run)
    }

    /// The item at the cursor, after another look at the head.
    fn next_at_head(&mut self) -> Result<Option<(Position, Control)>> {
        self.memory.check()?;
        let head = self.walk.head(&self.memory)?;
        Ok(self.walk.next_in_order(&self.memory, head))
    }

    /// The count of messages that were taken; their parts are in `parts`.
    fn offer_others(
        &mut self,
        most: usize,
        parts: &mut Vec<Part>,
        read: &mut impl FnMut(&Taken<'_>) -> Result<Verdict>,
    ) -> Result<usize> {
        let mut count = 0;
        let mut bytes = Vec::new();
        while count < most {
            let Some(item) = self.next_message()? else {
                break;
            };
            bytes.clear();
            let Some(taken) = self.message(&item, &mut bytes)? else {
                continue;
            };
            match read(&taken) {
                Ok(Verdict::Taken) => {
                    parts.extend(item.parts());
                    count += 1;
                }
                Ok(Verdict::NoRoom) => {
                    self.put_back(&item);
                    break;
                }
                Err(error) => {
                    self.put_back(&item);
                    return Err(error);
                }
            }
        }
        Ok(count)
    }

    /// Releases what was taken in order. Where it lies at the tail the pages are freed in the same go: a released word is
    /// freed a moment later anyway, and a reader that finds a freed one in front of the tail passes over it.
    fn release_in_order(&mut self, run: InOrder) -> Result<()> {
        if run.count == 0 {
            return Ok(());
        }
        let at_tail = self.walk.tail == run.from;
        let memory = self.memory.clone();
        self.visit_run(run, |at, control| {
            let released = control.with_discard();
            let word = if at_tail { released.freed() } else { released };
            // Only the reader changes a committed word, and there is one reader.
            memory.control_word(at.index).store(word.0, Ordering::Relaxed);
        })?;
        if at_tail {
            self.walk.tail = run.until;
            self.publish_tail(run.from, run.count as u32);
            Ok(())
        } else {
            self.free()
        }
    }

    fn put_run_back(&mut self, run: InOrder) {
        let mut places = Vec::new();
        // What is not as it was any more cannot be put back.
        let _ = self.visit_run(run, |at, control| places.push((at, control)));
        let now_ms = self.now_ms();
        for (at, control) in places {
            self.walk
                .put_back(at, self.memory.geometry.pages(control.size()), now_ms);
        }
    }

    fn visit_run(&self, run: InOrder, mut visit: impl FnMut(Position, Control)) -> Result<()> {
        let geometry = &self.memory.geometry;
        let mut at = run.from;
        while at < run.until {
            let control = Control(self.memory.control_word(at.index).load(Ordering::Relaxed));
            if control.state() != State::Committed || !control.is_of_turn(at.reference()) {
                return Err(not_at(at));
            }
            visit(at, control);
            at = at.advance(geometry.pages(control.size()).max(1), geometry.page_count);
        }
        Ok(())
    }
}
