//! Retrieve and release: the one reader of a queue.
//!
//! What was retrieved is the reader's private knowledge: when it dies, its successor is handed everything again that was not
//! released. Releasing is what makes a delivery final; only the reader moves the tail.

use std::sync::Arc;

use super::control::Control;
use super::extend::{Collector, Fed};
use super::memory::Memory;
use super::retrieved::{Item, Part, Position};
use super::role::Role;
use super::take::Owed;
use super::testpoint::{Point, reach};
use super::walk::{Stop, Walk};
use crate::os::clock::Clock;
use crate::shared::signal::Wait;
use crate::shared::sync::Ordering;
use crate::{Error, Result};

/// Takes items out of a queue. There is one at a time on the host.
///
/// ```
/// use tailrace::aq::{Format, Queue};
///
/// let queue = Queue::heap(4096, &Format::default())?;
/// queue.writer()?.try_put(b"hello")?;
/// let mut reader = queue.reader()?;
/// let item = reader.retrieve()?.expect("one item");
/// assert_eq!(reader.to_vec(&item), b"hello");
/// reader.release(item)?;
/// assert!(reader.retrieve()?.is_none());
/// # tailrace::Result::Ok(())
/// ```
#[derive(Debug)]
pub struct Reader {
    pub(super) memory: Arc<Memory>,
    role: Role,
    clock: Clock,
    pub(super) walk: Walk,
    chains: Collector,
    /// What was taken and released, but not freed yet.
    pub(super) owed: Owed,
}

impl Reader {
    pub(super) fn new(memory: Arc<Memory>, role: Role, clock: Clock) -> Result<Self> {
        let walk = Walk::new(&memory)?;
        Ok(Reader {
            memory,
            role,
            clock,
            walk,
            chains: Collector::default(),
            owed: Owed::default(),
        })
    }

    /// The next item, if there is one: the lowest in the ring that is committed and was not retrieved yet, or an incomplete
    /// one whose writer is dead, or took longer than the commit timeout while less than a quarter of the ring is free.
    #[inline]
    pub fn retrieve(&mut self) -> Result<Option<Item>> {
        self.next_item(true)
    }

    /// As [`Reader::retrieve`], waiting for an item; `idle` runs at each turn of the wait.
    pub fn retrieve_within(&mut self, wait: Wait, idle: impl FnMut() -> Result<()>) -> Result<Option<Item>> {
        self.wait_for_commit(wait, idle, |reader| reader.retrieve())
    }

    pub(super) fn wait_for_commit<T>(
        &mut self,
        wait: Wait,
        idle: impl FnMut() -> Result<()>,
        mut attempt: impl FnMut(&mut Self) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let memory = self.memory.clone();
        memory.wait_for_commit(wait, idle, || attempt(self))
    }

    // The way of a message that is there is inlined whole, everything else is not: an item that is returned through several
    // calls is stored in pieces and loaded as a whole at each, which stalls the processor for longer than all the rest.
    #[inline(always)]
    pub(super) fn next_item(&mut self, verify: bool) -> Result<Option<Item>> {
        if self.memory.geometry.options.extendable {
            return self.next_chain();
        }
        self.memory.check()?;
        self.keep_role()?;
        let head = self.walk.head(&self.memory)?;
        let found = match self.walk.next_in_order(&self.memory, head) {
            Some(found) => Some(found),
            None => self.walk_on(head)?,
        };
        Ok(found.map(|(at, control)| Item::single(self.part(at, control, verify), &self.memory.geometry)))
    }

    fn next_chain(&mut self) -> Result<Option<Item>> {
        loop {
            let Some(part) = self.next_part()? else {
                return self.broken_chain();
            };
            match self
                .chains
                .feed(part, &self.memory.geometry, self.walk.oldest_pending())
            {
                Fed::Item(item) => return Ok(Some(item)),
                Fed::Kept => {}
                Fed::Orphan(part) => self.discard(&part)?,
            }
        }
    }

    fn next_part(&mut self) -> Result<Option<Part>> {
        self.memory.check()?;
        self.keep_role()?;
        let head = self.walk.head(&self.memory)?;
        let found = match self.walk.next_in_order(&self.memory, head) {
            Some(found) => Some(found),
            None => self.walk_on(head)?,
        };
        Ok(found.map(|(at, control)| self.part(at, control, true)))
    }

    /// What comes next where that is not simply the item at the cursor.
    #[cold]
    fn walk_on(&mut self, head: Position) -> Result<Option<(Position, Control)>> {
        if self.walk.is_idle(head) {
            return Ok(None);
        }
        let now_ms = self.now_ms();
        let low = self.walk.is_low(&self.memory, head);
        let before = self.walk.tail;
        let (freed, _) = self.walk.free(&self.memory, head, low, Some(now_ms))?;
        self.publish_tail(before, freed);
        self.walk.next(&self.memory, head, low, now_ms)
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.clock.now() / 1_000_000
    }

    /// A forked child takes the role anew, if its parent gave it up, and knows nothing of what the parent retrieved.
    #[inline(always)]
    pub(super) fn keep_role(&mut self) -> Result<()> {
        if self.role.is_held() { Ok(()) } else { self.renew_role() }
    }

    #[cold]
    fn renew_role(&mut self) -> Result<()> {
        if self.role.renew(&self.memory)? {
            self.walk = Walk::new(&self.memory)?;
            self.chains = Collector::default();
            self.owed = Owed::default();
        }
        Ok(())
    }

    #[inline(always)]
    pub(super) fn part(&self, at: Position, control: Control, verify: bool) -> Part {
        let memory = &*self.memory;
        let link = memory.link(at.index);
        let sum_at = memory.geometry.crc(at.index).filter(|_| verify);
        let checksum_valid = sum_at.is_none_or(|sum_at| {
            let stored = memory.region.u32(sum_at).load(Ordering::Relaxed);
            stored == memory.checksum(at.index, at.reference().identifier(), control.size(), link)
        });
        Part {
            at,
            control,
            // The link of a claim that was not committed is that of an earlier item.
            link: link.filter(|_| control.is_committed()),
            used: control.size(),
            checksum_valid,
        }
    }

    /// At the end of a walk: segments and chains of which the rest can no longer come.
    fn broken_chain(&mut self) -> Result<Option<Item>> {
        if self.chains.is_empty() {
            return Ok(None);
        }
        for part in self.chains.orphans(self.walk.oldest_pending()) {
            self.discard(&part)?;
        }
        let head = self.walk.head(&self.memory)?;
        let walk = &self.walk;
        Ok(self
            .chains
            .broken(&self.memory.geometry, |next| walk.can_come(next, head)))
    }

    /// Gives an item back to the queue: its pages are free for new claims once everything before it is released, too.
    ///
    /// `false` when the writer committed the item after it was retrieved as incomplete.
    #[inline(always)]
    pub fn release(&mut self, item: Item) -> Result<bool> {
        self.keep_role()?;
        let mut as_retrieved = true;
        for part in item.parts() {
            as_retrieved &= self.mark_released(part)?;
        }
        self.free()?;
        Ok(as_retrieved)
    }

    /// Marks a part as released; `false` when it was committed in between.
    #[inline(always)]
    pub(super) fn mark_released(&mut self, part: &Part) -> Result<bool> {
        let word = self.memory.control_word(part.at.index);
        let retrieved = part.control;
        if retrieved.is_committed() {
            // Only the reader changes a committed word, and there is one reader.
            if word.load(Ordering::Relaxed) != retrieved.0 {
                return Err(not_retrieved(part));
            }
            word.store(retrieved.with_discard().0, Ordering::Relaxed);
            return Ok(true);
        }
        self.mark_incomplete_released(part)
    }

    #[cold]
    fn mark_incomplete_released(&mut self, part: &Part) -> Result<bool> {
        let memory = self.memory.clone();
        let word = memory.control_word(part.at.index);
        let retrieved = part.control;
        let swap = |from: Control| {
            word.compare_exchange(from.0, from.with_discard().0, Ordering::AcqRel, Ordering::Acquire)
                .map_err(Control)
        };
        match swap(retrieved) {
            Ok(_) => Ok(true),
            // The first message of a run is shorter than the claim of them all.
            Err(seen)
                if seen == Control::claimed(part.at.reference(), seen.size()).with_commit()
                    && seen.size() <= retrieved.size() =>
            {
                reach(Point::ReleaseAgain);
                swap(seen).map_err(|_| not_retrieved(part))?;
                let pages = memory.geometry.pages(seen.size());
                let others = memory.geometry.pages(retrieved.size()).saturating_sub(pages);
                if others > 0 {
                    let next = part.at.advance(pages, memory.geometry.page_count);
                    self.walk.put_back(next, others, self.now_ms());
                }
                Ok(false)
            }
            // Its writer gave it up meanwhile.
            Err(seen) if seen == retrieved.with_discard() => Ok(true),
            Err(_) => Err(not_retrieved(part)),
        }
    }

    /// Releases a part that nobody is to be handed; one that was committed in the last moment is kept.
    pub(super) fn discard(&mut self, part: &Part) -> Result<()> {
        if self.discard_exactly(part) {
            self.memory.incomplete().fetch_add(1, Ordering::Relaxed);
            self.free()?;
        } else {
            self.put_parts_back([part]);
        }
        Ok(())
    }

    /// Releases a part if it still is as it was retrieved.
    pub(super) fn discard_exactly(&self, part: &Part) -> bool {
        let word = self.memory.control_word(part.at.index);
        let discarded = part.control.with_discard().0;
        match word.compare_exchange(part.control.0, discarded, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => true,
            Err(seen) => seen == discarded,
        }
    }

    /// Puts the parts of an item back, as if it had not been retrieved.
    pub(super) fn put_back(&mut self, item: &Item) {
        self.put_parts_back(item.parts());
    }

    pub(super) fn put_parts_back<'a>(&mut self, parts: impl IntoIterator<Item = &'a Part>) {
        let now_ms = self.now_ms();
        for part in parts {
            let pages = self.memory.geometry.pages(part.control.size());
            self.walk.put_back(part.at, pages, now_ms);
        }
    }

    /// Moves the tail over everything that is released.
    #[inline(always)]
    pub(super) fn free(&mut self) -> Result<()> {
        let head = self.walk.head(&self.memory)?;
        let before = self.walk.tail;
        // With the time unknown, whether there is little room makes no difference.
        let (mut freed, stop) = self.walk.free(&self.memory, head, false, None)?;
        if stop == Stop::Unwritten {
            freed += self.free_expired(head, before)?;
        }
        self.publish_tail(before, freed);
        Ok(())
    }

    #[cold]
    fn free_expired(&mut self, head: Position, before: Position) -> Result<u32> {
        let now_ms = self.now_ms();
        let low = self.walk.is_low_from(&self.memory, before, head);
        Ok(self.walk.free(&self.memory, head, low, Some(now_ms))?.0)
    }

    #[inline(always)]
    pub(super) fn publish_tail(&mut self, before: Position, freed: u32) {
        self.owed = Owed::default();
        if freed == 0 {
            return;
        }
        let memory = &*self.memory;
        let tail = self.walk.tail;
        // SYNC: free (with `Writer::claim_segment`): the reader is done with the pages.
        memory.tail_word().store(tail.reference().0, Ordering::Release);
        if let (true, Some(trailer)) = (tail.turn != before.turn, &memory.trailer) {
            memory
                .region
                .u64(trailer.layout.laps())
                .store(tail.turn, Ordering::Relaxed);
        }
        // SYNC: sleep (with `Memory::wait_for_room`)
        memory.free_counter().fetch_add(freed, Ordering::SeqCst);
        memory.free_signal().notify_all_fenced();
    }

    /// Gives up every claim that has expired or whose owner is dead, however much room there is, and frees what can be
    /// freed; for idle queues, where the quarter rule never comes to bear. Says how many claims that were.
    ///
    /// The time of a claim runs from the moment at which this reader saw it first.
    pub fn reap(&mut self) -> Result<usize> {
        self.memory.check()?;
        self.keep_role()?;
        let mut reaped = 0;
        let now_ms = self.now_ms();
        loop {
            let head = self.walk.head(&self.memory)?;
            let Some((at, control)) = self.walk.next_expired(&self.memory, head, now_ms)? else {
                break;
            };
            let part = self.part(at, control, false);
            if self.discard_exactly(&part) {
                reaped += 1;
            } else {
                self.put_parts_back([&part]);
            }
        }
        self.memory.incomplete().fetch_add(reaped as u64, Ordering::Relaxed);
        let head = self.walk.head(&self.memory)?;
        let before = self.walk.tail;
        let (freed, _) = self.walk.free(&self.memory, head, true, Some(now_ms))?;
        self.publish_tail(before, freed);
        Ok(reaped)
    }

    /// The lowest place of a segment whose item is not complete yet.
    pub(super) fn oldest_collected(&self) -> Option<Position> {
        self.chains.oldest()
    }

    /// The bytes of an item.
    pub fn to_vec(&self, item: &Item) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(item.size());
        self.append_to(item, &mut bytes);
        bytes
    }

    /// Appends the bytes of an item.
    pub fn append_to(&self, item: &Item, out: &mut Vec<u8>) {
        for part in item.parts() {
            let at = self.memory.geometry.page(part.at.index);
            self.memory.region.append_to(at, part.used as usize, out);
        }
    }

    /// Offset in the region and length of each run of an item's bytes.
    #[cfg(feature = "python")]
    pub(crate) fn spans(&self, item: &Item) -> Vec<(usize, usize)> {
        item.parts()
            .map(|part| (self.memory.geometry.page(part.at.index), part.used as usize))
            .collect()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // The next reader would do it, too; but writers may need the room before there is one.
        if self.role.is_held() {
            let _ = self.give_back();
        }
    }
}

#[cold]
fn not_retrieved(part: &Part) -> Error {
    not_at(part.at)
}

#[cold]
pub(super) fn not_at(place: Position) -> Error {
    Error::Invalid(format!(
        "the item {:#x} is not retrieved: it was released before, or belongs to an earlier turn of the ring",
        place.reference().identifier()
    ))
}
