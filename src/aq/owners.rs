//! Who owns a claim: records in the trailer, written before the head is moved.
//!
//! A writer keeps its claims in *lines* of its own: its identity and seven claim words. A claim word is stored before the swap
//! that moves the head (an *intent*: another writer may win), marked as *won* right after it, and cleared when the claim is
//! committed or the writer can no longer touch the pages.
//!
//! ```text
//! claim word   63   62      52 51         32 31              0
//!             +----+----------+-------------+----------------+
//!             |won |    0     |    bytes    |  head before   |   0 = no claim
//!             +----+----------+-------------+----------------+
//! ```
//!
//! The reader asks for the owner of a place that is not committed. A won record is certain. An intent counts only where no
//! control word was written yet: it may be that of a writer which lost the race for the place and died before it took notice,
//! while the winner is a program that keeps no records; so a dead writer's intent is merely *suspected*.

use std::cell::{Cell, RefCell};

use super::control::{Control, Reference};
use super::layout::{CLAIMS_PER_LINE, Geometry, LINE, TrailerLayout};
use super::memory::{Memory, Trailer};
use crate::Result;
use crate::os::fork;
use crate::shared::region::Region;
use crate::shared::roster::Holder;
use crate::shared::sync::{AtomicU64, Ordering, fence};

const WON: u64 = 1 << 63;
const SIZE_SHIFT: u32 = 32;
const SIZE_MASK: u64 = 0xF_FFFF;

/// What a claim word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) head_before: Reference,
    pub(super) size: u32,
    won: bool,
    /// Offset of the claim word.
    at: usize,
}

impl Record {
    fn from_word(word: u64, at: usize) -> Option<Self> {
        let size = (word >> SIZE_SHIFT & SIZE_MASK) as u32;
        (size > 0).then_some(Record {
            head_before: Reference(word as u32),
            size,
            won: word & WON != 0,
            at,
        })
    }

    /// Settles that the dead writer had won: what is written in its name from now on is known to be its own.
    pub(super) fn settle(&self, memory: &Memory) {
        memory.region.u64(self.at).fetch_or(WON, Ordering::Relaxed);
    }

    /// The place of the item and the pages wasted before it: a claim that does not fit at the end starts the next turn.
    pub(super) fn place(&self, geometry: &Geometry) -> (Reference, u32) {
        let end = geometry.page_count.saturating_sub(self.head_before.index());
        if geometry.pages(self.size) <= end {
            (self.head_before, 0)
        } else {
            (self.head_before.next_turn(), end)
        }
    }

    /// Whether the pages of its item lie between tail and head, as those of every honest record do. The waste before them may
    /// be free already.
    pub(super) fn is_between(&self, tail: Reference, head: Reference, geometry: &Geometry) -> bool {
        let (place, _) = self.place(geometry);
        let end = if place.sequence() == head.sequence() {
            head.index()
        } else {
            geometry.page_count
        };
        place.is_between(tail, head) && geometry.pages(self.size) <= end.saturating_sub(place.index())
    }

    fn covers(&self, place: Reference, geometry: &Geometry) -> bool {
        let (start, waste) = self.place(geometry);
        let within = |from: Reference, pages: u32| {
            from.sequence() == place.sequence() && place.index() >= from.index() && place.index() - from.index() < pages
        };
        within(start, geometry.pages(self.size)) || within(self.head_before, waste)
    }
}

/// What is known about the owner of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// No record: a writer that keeps none, or one that can no longer touch the claim.
    Unknown,
    /// It lives, and may still write.
    Alive,
    /// It died.
    Dead(Record),
    /// A dead writer meant to claim here; it may have lost the place to a writer without records.
    Suspected(Record),
}

impl Memory {
    /// Who owns the item at `place`, whose control word was written.
    pub(super) fn owner_of_item(&self, place: Reference, control: Control) -> Result<Owner> {
        let geometry = &self.geometry;
        self.owner(|record| record.won && record.size == control.size() && record.place(geometry).0 == place)
    }

    /// Who owns `place`, where no control word of this turn is.
    pub(super) fn owner_of_place(&self, place: Reference) -> Result<Owner> {
        self.owner(|record| record.covers(place, &self.geometry))
    }

    /// Callers have read the head before, so that every record of a claim below it is visible.
    fn owner(&self, matches: impl Fn(&Record) -> bool) -> Result<Owner> {
        let Some(trailer) = &self.trailer else {
            return Ok(Owner::Unknown);
        };
        let mut found = Owner::Unknown;
        for line in 0..self.lines_used(trailer) {
            let identity = self.region.u64(trailer.layout.line(line)).load(Ordering::Relaxed);
            if identity == 0 {
                continue;
            }
            for claim in 0..CLAIMS_PER_LINE {
                // SYNC: claim over (with `ClaimRecord::clear`): an owner without a record does not write any more.
                let at = claim_at(trailer.layout, line, claim);
                let word = self.region.u64(at).load(Ordering::Acquire);
                let Some(record) = Record::from_word(word, at).filter(&matches) else {
                    continue;
                };
                let alive = matches!(trailer.roster.holder(identity)?, Holder::Alive);
                match (record.won, alive) {
                    (true, true) => return Ok(Owner::Alive),
                    (true, false) => return Ok(Owner::Dead(record)),
                    (false, true) => found = Owner::Alive,
                    (false, false) if found == Owner::Unknown => found = Owner::Suspected(record),
                    (false, false) => {}
                }
            }
        }
        Ok(found)
    }

    /// Clears the record of the item at `place`, whose pages are about to be free.
    pub(super) fn forget_owner(&self, place: Reference) {
        let Some(trailer) = &self.trailer else { return };
        for line in 0..self.lines_used(trailer) {
            for claim in 0..CLAIMS_PER_LINE {
                let at = claim_at(trailer.layout, line, claim);
                let word = self.region.u64(at);
                let seen = word.load(Ordering::Relaxed);
                if Record::from_word(seen, at).is_some_and(|record| record.place(&self.geometry).0 == place) {
                    let _ = word.compare_exchange(seen, 0, Ordering::Relaxed, Ordering::Relaxed);
                }
            }
        }
    }

    fn lines_used(&self, trailer: &Trailer) -> u32 {
        let used = self.region.u32(trailer.layout.lines_used()).load(Ordering::Relaxed);
        used.min(trailer.layout.lines)
    }
}

/// Clears all records: the claims went with what was formatted over.
pub(super) fn forget_all(region: &Region, layout: TrailerLayout) {
    let used = region.u32(layout.lines_used()).load(Ordering::Relaxed);
    for line in 0..used.min(layout.lines) {
        for claim in 0..CLAIMS_PER_LINE {
            region.u64(claim_at(layout, line, claim)).store(0, Ordering::Relaxed);
        }
    }
}

fn claim_at(layout: TrailerLayout, line: u32, claim: usize) -> usize {
    layout.line(line) + 8 + 8 * claim
}

fn claim_word(memory: &Memory, layout: TrailerLayout, line: u32, claim: usize) -> &AtomicU64 {
    memory.region.u64(claim_at(layout, line, claim))
}

/// The place of a claim's record in the region; `None` where there is none.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ClaimRecord(Option<usize>);

impl ClaimRecord {
    /// Whether the reader can know the owner of the claim.
    #[inline]
    pub(super) fn is_kept(self) -> bool {
        self.0.is_some()
    }

    #[inline]
    pub(super) fn intend(self, memory: &Memory, head: Reference, size: u32) {
        if let Some(at) = self.0 {
            let word = u64::from(head.0) | u64::from(size) << SIZE_SHIFT;
            memory.region.u64(at).store(word, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(super) fn won(self, memory: &Memory, head: Reference, size: u32) {
        if let Some(at) = self.0 {
            let word = WON | u64::from(head.0) | u64::from(size) << SIZE_SHIFT;
            memory.region.u64(at).store(word, Ordering::Relaxed);
        }
    }

    /// The caller will not touch the pages of the claim any more.
    #[inline]
    pub(super) fn clear(self, region: &Region) {
        if let Some(at) = self.0 {
            // SYNC: claim over (with `Memory::owner`)
            region.u64(at).store(0, Ordering::Release);
        }
    }
}

/// The claim lines of one writer, taken as they are needed.
#[derive(Debug, Default)]
pub(super) struct Lines {
    taken: RefCell<Vec<u32>>,
    /// Offset of the claim word that was used last, most likely free again; 0 is none.
    favourite: Cell<usize>,
    generation: Cell<u32>,
}

impl Lines {
    /// A free claim word; none when there is no trailer or no line left in it.
    #[inline]
    pub(super) fn record(&self, memory: &Memory) -> Result<ClaimRecord> {
        let Some(trailer) = &memory.trailer else {
            return Ok(ClaimRecord(None));
        };
        let favourite = self.favourite.get();
        let same_process = self.generation.get() == fork::generation();
        if favourite != 0 && same_process && memory.region.u64(favourite).load(Ordering::Relaxed) == 0 {
            return Ok(ClaimRecord(Some(favourite)));
        }
        self.search(memory, trailer)
    }

    #[cold]
    fn search(&self, memory: &Memory, trailer: &Trailer) -> Result<ClaimRecord> {
        let mut taken = self.taken.borrow_mut();
        if self.generation.replace(fork::generation()) != fork::generation() {
            // The lines of the process that forked stay its own.
            taken.clear();
            self.favourite.set(0);
        }
        let free_word = |line: u32| {
            let mut words = (0..CLAIMS_PER_LINE).map(|claim| claim_at(trailer.layout, line, claim));
            words.find(|&at| memory.region.u64(at).load(Ordering::Relaxed) == 0)
        };
        let found = match taken.iter().copied().find_map(free_word) {
            Some(at) => Some(at),
            None => match take_line(memory, trailer)? {
                Some(line) => {
                    taken.push(line);
                    free_word(line)
                }
                None => None,
            },
        };
        self.favourite.set(found.unwrap_or(0));
        Ok(ClaimRecord(found))
    }

    /// Gives the lines back that hold no claim; the others stay this participant's until it leaves.
    pub(super) fn give_back(&self, memory: &Memory) {
        let Some(trailer) = &memory.trailer else { return };
        if self.generation.get() != fork::generation() {
            return;
        }
        for line in self.taken.take() {
            let idle = (0..CLAIMS_PER_LINE)
                .all(|claim| claim_word(memory, trailer.layout, line, claim).load(Ordering::Relaxed) == 0);
            if idle {
                memory.region.u64(trailer.layout.line(line)).store(0, Ordering::Release);
            }
        }
    }
}

/// A line that nobody owns, or one of a dead owner without any claim that matters still.
fn take_line(memory: &Memory, trailer: &Trailer) -> Result<Option<u32>> {
    let me = trailer.roster.me()?.word();
    let layout = trailer.layout;
    for line in 0..layout.lines {
        let owner = memory.region.u64(layout.line(line));
        let seen = owner.load(Ordering::Relaxed);
        let vacant = seen == 0 || is_dead_and_done(memory, trailer, line, seen)?;
        let taken = vacant
            && owner
                .compare_exchange(seen, me, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
        if taken {
            for claim in 0..CLAIMS_PER_LINE {
                claim_word(memory, layout, line, claim).store(0, Ordering::Relaxed);
            }
            let used = memory.region.u32(layout.lines_used());
            used.fetch_max(line + 1, Ordering::Relaxed);
            return Ok(Some(line));
        }
    }
    Ok(None)
}

fn is_dead_and_done(memory: &Memory, trailer: &Trailer, line: u32, identity: u64) -> Result<bool> {
    if matches!(trailer.roster.holder(identity)?, Holder::Alive) {
        return Ok(false);
    }
    fence(Ordering::Acquire);
    // The tail first: what is behind it now is behind any later tail.
    let tail = Reference(memory.tail_word().load(Ordering::Acquire));
    let head = Reference(memory.head_word().load(Ordering::Acquire));
    Ok((0..CLAIMS_PER_LINE).all(|claim| {
        let at = claim_at(trailer.layout, line, claim);
        let word = memory.region.u64(at).load(Ordering::Relaxed);
        Record::from_word(word, at).is_none_or(|record| {
            let (place, _) = record.place(&memory.geometry);
            !record.head_before.is_between(tail, head) && !place.is_between(tail, head)
        })
    }))
}

const _: () = assert!(LINE == 8 * (1 + CLAIMS_PER_LINE));
