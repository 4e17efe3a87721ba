//! Claim and commit: any number of writers, in any number of threads and processes, without locks.
//!
//! A claim moves the head by one compare-and-swap and then owns the pages in between; a commit is one compare-and-swap of the
//! control word from exactly the claimed value, so that a claim which the reader has given out as incomplete, or which is of
//! an earlier turn, cannot be committed any more.

use std::sync::Arc;

use super::control::{Control, Link, NO_IDENTIFIER, Reference, SIZE_LIMIT};
use super::item::{Claim, ClaimData, Segment};
use super::memory::Memory;
use super::owners::Lines;
use super::testpoint::{Point, reach};
use crate::shared::signal::Wait;
use crate::shared::sync::{Ordering, fence};
use crate::{Error, Result};

/// Puts items into a queue. One per thread: it is cheap, and its records of claims are its own.
///
/// ```
/// use tailrace::aq::{Format, Queue};
///
/// let queue = Queue::heap(4096, &Format::default())?;
/// let writer = queue.writer()?;
/// let mut claim = writer.try_claim(5)?.expect("there is room");
/// claim.write(None, b"hello")?;
/// assert!(claim.commit()?);
/// # tailrace::Result::Ok(())
/// ```
#[derive(Debug)]
pub struct Writer {
    pub(super) memory: Arc<Memory>,
    pub(super) lines: Lines,
}

impl Writer {
    pub(super) fn new(memory: Arc<Memory>) -> Self {
        Writer {
            memory,
            lines: Lines::default(),
        }
    }

    /// Claims memory for an item of `size` bytes; `None` when there is no room now.
    ///
    /// In an extendable queue `size` is rounded up to whole pages, at least one, and is only a beginning.
    #[inline]
    pub fn try_claim(&self, size: usize) -> Result<Option<Claim<'_>>> {
        let data = self.claim_data(size)?;
        Ok(data.map(|data| Claim { writer: self, data }))
    }

    /// As [`Writer::try_claim`], waiting for room; [`Error::Full`] when the time is up. `idle` runs at each turn of the wait.
    pub fn claim(&self, size: usize, wait: Wait, idle: impl FnMut() -> Result<()>) -> Result<Claim<'_>> {
        let data = self.claim_data_within(size, wait, idle)?;
        Ok(Claim { writer: self, data })
    }

    /// Copies `bytes` into an item of its own and commits it; `false` when there is no room now.
    ///
    /// A claim that was lost (the reader gave it out as incomplete before the commit) is made anew: `true` always means that
    /// the bytes are in the queue.
    #[inline]
    pub fn try_put(&self, bytes: &[u8]) -> Result<bool> {
        let put = self.put_quietly(bytes)?;
        if put {
            self.memory.commit_signal().notify_all_fenced();
        }
        Ok(put)
    }

    /// As [`Writer::try_put`], waiting for room; [`Error::Full`] when the time is up.
    pub fn put(&self, bytes: &[u8], wait: Wait, idle: impl FnMut() -> Result<()>) -> Result<()> {
        self.check_fits(bytes.len())?;
        let put = self.memory.wait_for_room(wait, idle, || {
            let put = self.try_put(bytes)?;
            if !put && wait != Wait::No {
                self.make_room(bytes.len())?;
            }
            Ok(put.then_some(()))
        })?;
        put.ok_or_else(|| self.full(bytes.len()))
    }

    #[inline]
    pub(super) fn put_quietly(&self, bytes: &[u8]) -> Result<bool> {
        if self.memory.geometry.options.extendable {
            return self.put_extendable(bytes);
        }
        let memory = &*self.memory;
        memory.check()?;
        loop {
            let Some(segment) = self.claim_segment(bytes.len())? else {
                return Ok(false);
            };
            memory
                .region
                .copy_in(memory.geometry.page(segment.place.index()), bytes);
            let committed = self.commit_segment(&segment, NO_IDENTIFIER);
            segment.record.clear(&memory.region);
            if committed {
                return Ok(true);
            }
            // Lost to the reader: the bytes are not in the queue, so they are put again.
        }
    }

    fn put_extendable(&self, bytes: &[u8]) -> Result<bool> {
        loop {
            let Some(mut data) = self.claim_data(bytes.len())? else {
                return Ok(false);
            };
            let written = self.write(&mut data, None, bytes);
            match written {
                Ok(true) if self.commit_quietly(&mut data)? => return Ok(true),
                // Lost to the reader: the bytes are not in the queue, so they are put again.
                Ok(true) => {}
                Ok(false) => {
                    self.give_up(&mut data);
                    return Ok(false);
                }
                Err(error) => {
                    self.give_up(&mut data);
                    return Err(error);
                }
            }
        }
    }

    /// Refuses what can never fit into this queue, naming the limit.
    pub fn check_fits(&self, size: usize) -> Result<()> {
        let geometry = &self.memory.geometry;
        let extendable = geometry.options.extendable;
        if size == 0 && !extendable {
            return Err(invalid_size(0));
        }
        let most = (geometry.page_count as usize - 1) << geometry.shift;
        // A message is claimed in one piece, which extendable queues round up to whole pages.
        let piece = if extendable {
            SIZE_LIMIT >> geometry.shift << geometry.shift
        } else {
            SIZE_LIMIT
        };
        let limit = most.min(piece as usize);
        if size > limit {
            return Err(Error::TooLarge {
                size: size as u64,
                limit: limit as u64,
            });
        }
        Ok(())
    }

    /// An empty ring whose head stands in the middle has no run as long as a large message needs, and never will: the pages
    /// up to its end are claimed and given up, and the reader lets head and tail meet at the start.
    pub(crate) fn make_room(&self, size: usize) -> Result<()> {
        let memory = &*self.memory;
        let tail = memory.checked(memory.tail_word().load(Ordering::Acquire), "tail")?;
        let head = memory.checked(memory.head_word().load(Ordering::Relaxed), "head")?;
        let pages = (size as u64).div_ceil(1 << memory.geometry.shift);
        let available = memory.available_pages(head.index(), tail.index());
        if head != tail || head.index() == 0 || pages <= u64::from(available) {
            return Ok(());
        }
        let rest = (memory.geometry.page_count - head.index()) as usize;
        let most = (SIZE_LIMIT >> memory.geometry.shift).max(1) as usize;
        let filler = (rest.min(most) << memory.geometry.shift).min(SIZE_LIMIT as usize);
        if let Some(mut data) = self.claim_data(filler)? {
            self.give_up(&mut data);
        }
        Ok(())
    }

    pub(crate) fn claim_data_within(
        &self,
        size: usize,
        wait: Wait,
        idle: impl FnMut() -> Result<()>,
    ) -> Result<ClaimData> {
        let claimed = self.memory.wait_for_room(wait, idle, || self.claim_data(size))?;
        claimed.ok_or_else(|| self.full(size))
    }

    /// The error of a queue that has no room for `size` bytes.
    #[cold]
    pub(crate) fn full(&self, size: usize) -> Error {
        let available = self.memory.available_bytes().unwrap_or(0);
        Error::Full(format!(
            "{size} bytes were asked for, {available} bytes are free in one piece"
        ))
    }

    /// [`Writer::try_claim`] without the guard.
    #[inline]
    pub(crate) fn claim_data(&self, size: usize) -> Result<Option<ClaimData>> {
        self.memory.check()?;
        let extendable = self.memory.geometry.options.extendable;
        let Some(first) = self.claim_segment(size)? else {
            return Ok(None);
        };
        Ok(Some(ClaimData::new(first, extendable)))
    }

    /// Moves the head over the pages of one segment.
    #[inline(always)]
    pub(super) fn claim_segment(&self, size: usize) -> Result<Option<Segment>> {
        let memory = &*self.memory;
        let geometry = &memory.geometry;
        let size = if geometry.options.extendable {
            size.max(1).next_multiple_of(geometry.page_size())
        } else {
            size
        };
        let Ok(size) = u32::try_from(size) else {
            return Err(invalid_size(size));
        };
        if !(1..=SIZE_LIMIT).contains(&size) {
            return Err(invalid_size(size as usize));
        }
        let pages = geometry.pages(size);
        let record = self.lines.record(memory)?;
        let mut head_word = memory.head_word().load(Ordering::Relaxed);
        loop {
            let head = memory.checked(head_word, "head")?;
            // SYNC: free (with `Reader::publish_tail`): the reader is done with the pages in front of the tail.
            let tail = memory.checked(memory.tail_word().load(Ordering::Acquire), "tail")?;
            let Some(place) = find_room(head.index(), tail.index(), pages, geometry.page_count) else {
                record.clear(&memory.region);
                return Ok(None);
            };
            let start = if place == Place::NextTurn {
                head.next_turn()
            } else {
                head
            };
            let next = start.advance(pages, geometry.page_count);
            record.intend(memory, head, size);
            reach(Point::BeforeHead);
            // SYNC: record (with `Reader::ends`): the record is visible to whoever sees the head beyond it.
            let swapped = memory
                .head_word()
                .compare_exchange(head_word, next.0, Ordering::AcqRel, Ordering::Relaxed);
            match swapped {
                Ok(_) => {
                    record.won(memory, head, size);
                    // SYNC: snapshot (with `Snapshot::take`): who sees a store to the pages sees the head beyond them.
                    fence(Ordering::Release);
                    reach(Point::BeforeControl);
                    if place == Place::NextTurn {
                        mark_waste(memory, head);
                    }
                    mark_claim(memory, start, size);
                    return Ok(Some(Segment::new(start, size, record)));
                }
                Err(seen) => {
                    memory.contention().fetch_add(1, Ordering::Relaxed);
                    head_word = seen;
                }
            }
        }
    }

    /// Hands the item to the reader; `false` when the claim was lost.
    #[inline]
    pub(crate) fn commit_data(&self, data: &mut ClaimData) -> Result<bool> {
        let committed = self.commit_quietly(data)?;
        self.memory.commit_signal().notify_all_fenced();
        Ok(committed)
    }

    #[inline]
    fn commit_quietly(&self, data: &mut ClaimData) -> Result<bool> {
        data.check_open()?;
        data.close();
        let memory = &*self.memory;
        let committed = if memory.geometry.options.extendable {
            self.commit_chain(data)
        } else {
            self.commit_segment(&data.first, data.link)
        };
        data.segments().for_each(|segment| segment.record.clear(&memory.region));
        data.committed = committed;
        Ok(committed)
    }

    /// First to last, up to the first that fails: the reader sees a chain grow, and never a tail without its beginning.
    fn commit_chain(&self, data: &ClaimData) -> bool {
        let mut left = data.size;
        let mut segments = data.segments().enumerate().peekable();
        while let Some((index, segment)) = segments.next() {
            let link = match segments.peek() {
                Some((_, next)) => Link::to_next(index == 0, next.place.identifier()),
                None => Link::last(index == 0, left as u32),
            };
            left = left.saturating_sub(segment.capacity as usize);
            if !self.commit_segment(segment, link.0) {
                return false;
            }
        }
        true
    }

    #[inline(always)]
    fn commit_segment(&self, segment: &Segment, link: u32) -> bool {
        let memory = &*self.memory;
        self.write_words(segment.place, segment.capacity, link);
        let claimed = Control::claimed(segment.place, segment.capacity);
        // SYNC: commit (with `Memory::control`): the item's bytes, link and CRC are there before it is committed.
        let committed = memory
            .control_word(segment.place.index())
            .compare_exchange(claimed.0, claimed.with_commit().0, Ordering::Release, Ordering::Relaxed)
            .is_ok();
        if committed {
            // SYNC: sleep (with `Memory::wait_for_commit`)
            memory.commit_counter().fetch_add(1, Ordering::SeqCst);
        }
        committed
    }

    /// Writes the link and the CRC of an item whose bytes are written, where the queue keeps them.
    #[inline(always)]
    pub(super) fn write_words(&self, place: Reference, capacity: u32, link: u32) {
        let memory = &*self.memory;
        let link_at = memory.geometry.link(place.index());
        if let Some(at) = link_at {
            memory.region.u32(at).store(link, Ordering::Relaxed);
        }
        if let Some(at) = memory.geometry.crc(place.index()) {
            let sum = memory.checksum(place.index(), place.identifier(), capacity, link_at.map(|_| link));
            memory.region.u32(at).store(sum, Ordering::Relaxed);
        }
    }

    /// Leaves the claim to the reader as an incomplete item that is released already: nobody will ever be handed it.
    pub(crate) fn give_up(&self, data: &mut ClaimData) {
        if !data.is_mine() {
            return;
        }
        data.close();
        let memory = &*self.memory;
        for segment in data.segments() {
            let claimed = Control::claimed(segment.place, segment.capacity);
            let word = memory.control_word(segment.place.index());
            // SYNC: give up: whatever was written is written before the pages can be reused.
            let _ = word.compare_exchange(
                claimed.0,
                claimed.with_discard().0,
                Ordering::Release,
                Ordering::Relaxed,
            );
            segment.record.clear(&memory.region);
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.lines.give_back(&self.memory);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    AtHead,
    /// At the first page, with the pages up to the end wasted.
    NextTurn,
}

/// Where `pages` pages fit. One page always stays free: the head never catches up with the tail.
#[inline]
fn find_room(head: u32, tail: u32, pages: u32, count: u32) -> Option<Place> {
    if head < tail {
        return (pages < tail - head).then_some(Place::AtHead);
    }
    let end = count - head - u32::from(tail == 0);
    if pages <= end {
        Some(Place::AtHead)
    } else {
        (tail > pages).then_some(Place::NextTurn)
    }
}

/// Writes the control words of the waste between `head` and the end of the ring.
pub(super) fn mark_waste(memory: &Memory, head: Reference) {
    let count = memory.geometry.page_count;
    for page in head.index() + 1..count {
        memory.control_word(page).store(0, Ordering::Relaxed);
    }
    let bytes = (count - head.index()) << memory.geometry.shift;
    let waste = Control::waste(head, bytes);
    // SYNC: claim (with `Memory::control`)
    memory.control_word(head.index()).store(waste.0, Ordering::Release);
}

/// Writes the control words of a claim.
#[inline(always)]
pub(super) fn mark_claim(memory: &Memory, place: Reference, size: u32) {
    let first = place.index();
    for page in first + 1..first + memory.geometry.pages(size) {
        memory.control_word(page).store(0, Ordering::Relaxed);
    }
    // SYNC: claim (with `Memory::control`): the interior words are 0 before the item can be seen.
    memory
        .control_word(first)
        .store(Control::claimed(place, size).0, Ordering::Release);
}

#[cold]
fn invalid_size(size: usize) -> Error {
    Error::Invalid(format!(
        "an item has 1 to {SIZE_LIMIT} bytes in one piece, {size} were asked for"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Facts 1.5, UtClaim: (head, tail) of a ring of 11 pages, the pages asked for, where they go.
    #[test]
    fn geometry_of_claims() {
        let at = Some(Place::AtHead);
        let next = Some(Place::NextTurn);
        let table = [
            ((0, 0), vec![(10, at), (11, None)]),
            ((1, 1), vec![(10, at), (11, None)]),
            ((2, 2), vec![(9, at), (10, None)]),
            ((6, 6), vec![(5, at), (6, None)]),
            ((7, 7), vec![(4, at), (5, next), (6, next), (7, None)]),
            ((8, 0), vec![(2, at), (3, None)]),
            ((8, 1), vec![(3, at), (4, None)]),
            ((0, 8), vec![(7, at), (8, None)]),
            ((1, 8), vec![(6, at), (7, None)]),
            ((0, 10), vec![(9, at), (10, None)]),
            ((1, 10), vec![(8, at), (9, None)]),
            ((9, 9), vec![(3, next)]),
            ((4, 9), vec![(4, at), (5, None)]),
            ((9, 3), vec![(3, None)]),
            ((10, 3), vec![(3, None)]),
        ];
        for ((head, tail), requests) in table {
            for (pages, expected) in requests {
                assert_eq!(
                    find_room(head, tail, pages, 11),
                    expected,
                    "({head}, {tail}): {pages} pages"
                );
            }
        }
    }
}
