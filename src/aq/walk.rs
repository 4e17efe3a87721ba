//! The reader's walk over the ring, from the tail to the head: what to give out next, what to free.
//!
//! The rule is the document's: of the items that are committed and were not given out yet, the one lowest in the ring comes
//! first; a claim that stays uncommitted too long is given out as incomplete when less than a quarter of the ring is free.
//! The walk does not start over each time: everything below a private *cursor* was given out, or is *pending* (not committed
//! when it was seen), and only the pending places are looked at again.

use std::collections::VecDeque;

use super::control::{Control, Reference, State};
use super::memory::Memory;
use super::owners::Owner;
use super::pending::{Look, Pending};
use super::retrieved::Position;
use crate::shared::sync::Ordering;
use crate::{Error, Result};

/// No ring ever turns so often: such a number is damage, and positions computed from it would overflow.
const MOST_LAPS: u64 = 1 << 40;

/// What is at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// No control word of this turn: claimed, but the writer did not get to it yet.
    Unwritten,
    /// A claim that is not committed, with its pages.
    Claimed(Control, u32),
    /// An item to give out.
    Committed(Control, u32),
    /// Released, given up or wasted.
    Over(Control, u32),
    /// Freed, but the reader that did it died before it moved the tail.
    Freed(u32),
}

/// Why freeing stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// At the head, at an item that is not released, or at one whose owner may still write to it.
    Settled,
    /// At a place without a control word.
    Unwritten,
}

/// The private state of the one reader.
#[derive(Debug)]
pub(super) struct Walk {
    pub(super) tail: Position,
    pub(super) cursor: Position,
    /// The head when it was last looked at.
    seen: Position,
    pub(super) pending: VecDeque<Pending>,
    /// When the owner at the tail was last asked for, and where that was.
    quarantine: Option<(Position, u64)>,
}

impl Walk {
    /// Starts at the tail: what a former reader did not release comes again.
    pub(super) fn new(memory: &Memory) -> Result<Self> {
        let tail = memory.checked(memory.tail_word().load(Ordering::Acquire), "tail")?;
        let tail = Position {
            turn: laps(memory, tail),
            index: tail.index(),
        };
        Ok(Walk {
            tail,
            cursor: tail,
            seen: tail,
            pending: VecDeque::new(),
            quarantine: None,
        })
    }

    /// The head, after a check that the tail is where we left it.
    #[inline(always)]
    pub(super) fn head(&mut self, memory: &Memory) -> Result<Position> {
        let tail = memory.tail_word().load(Ordering::Relaxed);
        if tail != self.tail.reference().0 {
            self.start_over(memory)?;
        }
        // SYNC: record (with `Writer::claim_segment`)
        let head = memory.checked(memory.head_word().load(Ordering::Acquire), "head")?;
        let turns = head.sequence().wrapping_sub(self.tail.turn as u32) & 0xFFF;
        let ahead = match turns {
            0 => head.index() >= self.tail.index,
            1 => head.index() < self.tail.index,
            _ => false,
        };
        if !ahead {
            return Err(self.astray(head));
        }
        self.seen = Position {
            turn: self.tail.turn + u64::from(turns),
            index: head.index(),
        };
        Ok(self.seen)
    }

    #[cold]
    fn start_over(&mut self, memory: &Memory) -> Result<()> {
        *self = Walk::new(memory)?;
        Ok(())
    }

    #[cold]
    fn astray(&self, head: Reference) -> Error {
        Error::Corrupt(format!(
            "the head {:#010x} is not within one turn of the tail {:#010x}",
            head.0,
            self.tail.reference().0
        ))
    }

    #[inline(always)]
    pub(super) fn examine(&self, memory: &Memory, at: Position, head: Position) -> Seen {
        let control = memory.control(at.index);
        let state = control.state();
        if state == State::Unused || !control.is_of_turn(at.reference()) {
            return Seen::Unwritten;
        }
        // Whoever wrote the word: an item lies between here and the head, and waste ends the ring.
        let count = memory.geometry.page_count;
        let end = if head.turn == at.turn { head.index } else { count };
        let pages = memory.geometry.pages(control.size());
        let is_waste = matches!(state, State::Waste | State::FreedWaste);
        let fits = pages > 0 && pages <= end.saturating_sub(at.index) && (!is_waste || at.index + pages == count);
        match state {
            _ if !fits => Seen::Unwritten,
            State::Claimed => Seen::Claimed(control, pages),
            State::Committed => Seen::Committed(control, pages),
            State::Released | State::GivenUp | State::Waste => Seen::Over(control, pages),
            _ => Seen::Freed(pages),
        }
    }

    /// The item at the cursor, if nothing pending comes before it: needs no clock.
    #[inline(always)]
    pub(super) fn next_in_order(&mut self, memory: &Memory, head: Position) -> Option<(Position, Control)> {
        if !self.pending.is_empty() || self.cursor >= head {
            return None;
        }
        let at = self.cursor;
        match self.examine(memory, at, head) {
            Seen::Committed(control, pages) => {
                self.cursor = at.advance(pages, memory.geometry.page_count);
                Some((at, control))
            }
            _ => None,
        }
    }

    /// As [`Walk::next_in_order`], without a look at the head: writers change that word with every claim, and each look at it
    /// takes its cache line away from them.
    #[inline]
    pub(super) fn next_known(&mut self, memory: &Memory) -> Option<(Position, Control)> {
        self.next_in_order(memory, self.seen)
    }

    /// Whether nothing was there to be seen beyond the cursor, and nothing is pending.
    #[inline]
    pub(super) fn is_at_seen(&self) -> bool {
        self.pending.is_empty() && self.cursor == self.seen
    }

    /// Whether, as far as is known, more items wait and half of the ring was free at the last look.
    #[inline]
    pub(super) fn is_roomy(&self, page_count: u32) -> bool {
        let turns = if self.seen.turn == self.tail.turn {
            0
        } else {
            page_count
        };
        let used = self.seen.index + turns - self.tail.index;
        self.cursor < self.seen && self.pending.is_empty() && used <= page_count / 2
    }

    /// True when a walk could not find anything, whatever the time is.
    #[inline]
    pub(super) fn is_idle(&self, head: Position) -> bool {
        self.pending.is_empty() && self.cursor == head && self.tail == head
    }

    /// Less than a quarter of the ring is free in one piece.
    pub(super) fn is_low(&self, memory: &Memory, head: Position) -> bool {
        self.is_low_from(memory, self.tail, head)
    }

    /// As [`Walk::is_low`], with the tail where it was.
    pub(super) fn is_low_from(&self, memory: &Memory, tail: Position, head: Position) -> bool {
        let available = memory.available_pages(head.index, tail.index);
        available < memory.geometry.page_count.div_ceil(4)
    }

    /// The next item to give out: its place and control word, which may be an uncommitted one.
    pub(super) fn next(
        &mut self,
        memory: &Memory,
        head: Position,
        low: bool,
        now_ms: u64,
    ) -> Result<Option<(Position, Control)>> {
        let mut look = Look {
            head,
            low,
            now_ms,
            idle: false,
            committed: true,
        };
        if let Some(found) = self.next_pending(memory, look)? {
            return Ok(Some(found));
        }
        let count = memory.geometry.page_count;
        // Each turn finds another place written; the count is for words that somebody changes to and fro.
        let mut turning_back = count;
        while self.cursor < head {
            let at = self.cursor;
            let pages = match self.examine(memory, at, head) {
                Seen::Committed(control, pages) => {
                    let places = self.pending.len();
                    if let Some(index) = self.written_since(memory, places, at, head)
                        && turning_back > 0
                    {
                        turning_back -= 1;
                        self.turn_back(index);
                        continue;
                    }
                    self.cursor = at.advance(pages, count);
                    return Ok(Some((at, control)));
                }
                Seen::Over(_, pages) | Seen::Freed(pages) => pages,
                Seen::Claimed(_, pages) => {
                    self.remember(at, pages, now_ms);
                    pages
                }
                Seen::Unwritten => {
                    self.remember(at, 0, now_ms);
                    1
                }
            };
            self.cursor = at.advance(pages, count);
        }
        // Nothing is committed: now there is time to ask whether somebody will never commit.
        look.idle = true;
        self.next_pending(memory, look)
    }

    /// The next claim that has expired or whose owner is dead, however much room there is; committed items stay.
    pub(super) fn next_expired(
        &mut self,
        memory: &Memory,
        head: Position,
        now_ms: u64,
    ) -> Result<Option<(Position, Control)>> {
        let count = memory.geometry.page_count;
        while self.cursor < head {
            let at = self.cursor;
            let pages = match self.examine(memory, at, head) {
                Seen::Over(_, pages) | Seen::Freed(pages) => pages,
                Seen::Committed(_, pages) | Seen::Claimed(_, pages) => {
                    self.remember(at, pages, now_ms);
                    pages
                }
                Seen::Unwritten => {
                    self.remember(at, 0, now_ms);
                    1
                }
            };
            self.cursor = at.advance(pages, count);
        }
        let look = Look {
            head,
            low: true,
            now_ms,
            idle: true,
            committed: false,
        };
        self.next_pending(memory, look)
    }

    /// Frees what is released at the tail; the caller publishes the new tail. `now_ms` lets places expire that were never
    /// written to.
    pub(super) fn free(
        &mut self,
        memory: &Memory,
        head: Position,
        low: bool,
        now_ms: Option<u64>,
    ) -> Result<(u32, Stop)> {
        let count = memory.geometry.page_count;
        let mut freed = 0;
        while self.tail < head {
            let at = self.tail;
            let pages = match self.examine(memory, at, head) {
                Seen::Over(control, pages) if control.state() == State::GivenUp => {
                    if self.is_quarantined(memory, control, now_ms)? {
                        return Ok((freed, Stop::Settled));
                    }
                    clear_interior(memory, at.index, pages);
                    pages
                }
                Seen::Over(control, pages) => {
                    // Nobody else changes a word of a released item: no swap is needed.
                    memory
                        .control_word(at.index)
                        .store(control.freed().0, Ordering::Relaxed);
                    pages
                }
                Seen::Freed(pages) => pages,
                Seen::Unwritten => match now_ms {
                    None => return Ok((freed, Stop::Unwritten)),
                    Some(now_ms) if self.is_abandoned(memory, head, now_ms, low)? => 1,
                    Some(_) => return Ok((freed, Stop::Unwritten)),
                },
                Seen::Claimed(..) | Seen::Committed(..) => return Ok((freed, Stop::Settled)),
            };
            self.tail = at.advance(pages, count);
            freed += 1;
            self.cursor = self.cursor.max(self.tail);
            while self.pending.front().is_some_and(|pending| pending.at < self.tail) {
                self.pending.pop_front();
            }
        }
        Ok((freed, Stop::Settled))
    }

    /// An incomplete item whose owner lives and may still write to its pages: they are not reused until it lets go.
    fn is_quarantined(&mut self, memory: &Memory, control: Control, now_ms: Option<u64>) -> Result<bool> {
        if memory.trailer.is_none() {
            return Ok(false);
        }
        // Without the time nobody is asked twice; a walk, which knows it, asks again.
        if let Some((at, asked)) = self.quarantine
            && at == self.tail
            && now_ms.is_none_or(|now| now < asked + 1)
        {
            return Ok(true);
        }
        let place = self.tail.reference();
        if memory.owner_of_item(place, control)? == Owner::Alive {
            self.quarantine = Some((self.tail, now_ms.unwrap_or(0)));
            return Ok(true);
        }
        memory.forget_owner(place);
        self.quarantine = None;
        Ok(false)
    }

    /// Whether the place at the tail, to which nothing was written, has expired with nobody left who could write to it.
    fn is_abandoned(&mut self, memory: &Memory, head: Position, now_ms: u64, low: bool) -> Result<bool> {
        let place = self.tail;
        match self.pending.front() {
            Some(pending) if pending.at == place => {
                let expired = now_ms.saturating_sub(pending.seen_ms) > u64::from(memory.geometry.commit_timeout_ms);
                let ownerless = expired && low && memory.owner_of_place(place.reference())? != Owner::Alive;
                // An owner whose record is gone may have committed since the place was looked at.
                Ok(ownerless && self.examine(memory, place, head) == Seen::Unwritten)
            }
            _ if self.cursor == place => {
                // Seen here for the first time: its time runs from now on.
                self.remember(place, 0, now_ms);
                self.cursor = place.advance(1, memory.geometry.page_count);
                Ok(false)
            }
            _ => Ok(false),
        }
    }

    /// Shows the state of every item between tail and head.
    pub(super) fn visit(&self, memory: &Memory, head: Position, mut show: impl FnMut(State)) {
        let mut at = self.tail;
        while at < head {
            let pages = match self.examine(memory, at, head) {
                Seen::Unwritten => 1,
                Seen::Freed(pages) => pages,
                Seen::Claimed(control, pages) | Seen::Committed(control, pages) | Seen::Over(control, pages) => {
                    show(control.state());
                    pages
                }
            };
            at = at.advance(pages, memory.geometry.page_count);
        }
    }

    /// The lowest place that is not committed yet.
    pub(super) fn oldest_pending(&self) -> Option<Position> {
        self.pending.front().map(|pending| pending.at)
    }

    /// Whether a segment with this identifier may still be given out.
    pub(super) fn can_come(&self, identifier: u32, head: Position) -> bool {
        let place = Reference::new(identifier >> 20, identifier & 0xF_FFFF);
        let same = |at: Position| at.reference().identifier() == identifier;
        if self.pending.iter().any(|pending| same(pending.at)) {
            return true;
        }
        let (mut at, until) = (self.cursor, head);
        if at.turn != until.turn && place.index() < until.index {
            at = Position {
                turn: until.turn,
                index: 0,
            };
        }
        at.turn == (at.turn & !0x1FF | u64::from(place.sequence() & 0x1FF))
            && place.index() >= at.index
            && (at.turn < until.turn || place.index() < until.index)
    }
}

/// Clears what a run that was never committed left in its interior words: a later turn of the ring would show it.
fn clear_interior(memory: &Memory, first: u32, pages: u32) {
    for page in first + 1..first + pages {
        let word = memory.control_word(page);
        if word.load(Ordering::Relaxed) != 0 {
            word.store(0, Ordering::Relaxed);
        }
    }
}

/// The full number of turns behind `tail`, of whose sequence the ring keeps 12 bits.
pub(super) fn laps(memory: &Memory, tail: Reference) -> u64 {
    let Some(trailer) = &memory.trailer else {
        return u64::from(tail.sequence());
    };
    let stored = memory.region.u64(trailer.layout.laps()).load(Ordering::Relaxed);
    let sequence = u64::from(tail.sequence());
    if stored > MOST_LAPS {
        return sequence;
    }
    // A reader that died between the tail and the laps left them a turn apart.
    let ahead = tail.sequence().wrapping_sub(stored as u32) & 0xFFF;
    if ahead < 0x800 {
        stored + u64::from(ahead)
    } else {
        stored.checked_sub(u64::from(0x1000 - ahead)).unwrap_or(sequence)
    }
}
