//! Phase 1: the order of arrival, a ring of slots that producers append to without a lock.
//!
//! A ticket is taken and filled in one step: the compare-and-swap of its place from empty to the slot. There is no moment in
//! which a ticket is taken but empty, so a producer that dies or sleeps holds up nobody. The tail is only a hint that
//! everybody helps along: a filled or emptied place says by itself that its ticket is gone.
//!
//! The ring holds every message that may wait, so a place is never filled twice without having been emptied.

use super::layout::{Slot, header};
use super::space::{Space, damaged};
use super::state::{Place, State};
use crate::Result;
use crate::shared::sync::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

/// More lost races than any honest crowd of producers can cause in a row.
const PATIENCE: u32 = 1 << 24;

/// The order of arrival.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrivals<'a>(pub(super) &'a Space);

impl Arrivals<'_> {
    /// Appends a ready slot, whose id becomes its ticket. `may` is asked for every ticket that is tried; `None` when it says
    /// no.
    #[inline(always)]
    pub(super) fn append(&self, slot: Slot, may: impl Fn(u64) -> bool) -> Result<Option<u64>> {
        let geometry = &self.0.geometry;
        let tail = self.0.wide(header::TAIL);
        let number = slot.number();
        for _ in 0..PATIENCE {
            let ticket = tail.load(Acquire);
            if !may(ticket) {
                return Ok(None);
            }
            self.allocate(ticket)?;
            let lap = geometry.lap(ticket);
            let place = self.0.wide(geometry.place(ticket));
            let seen = Place::from_word(place.load(Acquire));
            if seen == Place::empty(lap) {
                self.0.id(slot).store(ticket, Relaxed);
                let filled = Place::filled(lap, number).word();
                // SYNC: arrival (with `first`): whoever finds the slot finds the message in it.
                if place.compare_exchange(seen.word(), filled, SeqCst, Relaxed).is_ok() {
                    self.help_tail(ticket);
                    return Ok(Some(ticket));
                }
            } else if seen.is_of(lap) || seen.is_of(lap + 1) {
                self.help_tail(ticket);
            } else if tail.load(Acquire) == ticket {
                return Err(damaged("word of the ring", seen.word()));
            }
        }
        Err(damaged("tail of the ring", tail.load(Relaxed)))
    }

    #[inline]
    fn help_tail(&self, ticket: u64) {
        let _ = self
            .0
            .wide(header::TAIL)
            .compare_exchange(ticket, ticket.wrapping_add(1), AcqRel, Relaxed);
    }

    #[inline]
    fn allocate(&self, ticket: u64) -> Result<()> {
        let geometry = &self.0.geometry;
        if geometry.lap(ticket) > 0 {
            return Ok(());
        }
        let place = |ticket| geometry.place(ticket);
        self.0
            .allocate_up_to(header::RING_ALLOCATED, ticket, geometry.places, place)
    }

    /// Whether the place has its space on disk: one that has not was never filled.
    #[inline]
    fn reached(&self, ticket: u64) -> bool {
        let allocated = || self.0.narrow(header::RING_ALLOCATED).load(Acquire);
        self.0.geometry.lap(ticket) > 0 || ticket < u64::from(allocated())
    }

    /// Whether no message waits, seen without the lock.
    #[inline]
    pub(super) fn nothing_waits(&self) -> bool {
        let geometry = &self.0.geometry;
        let head = self.0.wide(header::HEAD).load(Acquire);
        let empty = Place::empty(geometry.lap(head)).word();
        // SYNC: arrival (with `append`)
        let waits = || self.0.wide(geometry.place(head)).load(SeqCst) != empty;
        !self.reached(head) || !waits() && head >= self.0.wide(header::TAIL).load(Relaxed)
    }

    /// The oldest ready message; places that were read already are left behind on the way. The
    /// caller holds the lock.
    #[inline(always)]
    pub(super) fn first(&self) -> Result<Option<Slot>> {
        let geometry = &self.0.geometry;
        let head = self.0.wide(header::HEAD);
        for _ in 0..=geometry.places {
            let ticket = head.load(Relaxed);
            if !self.reached(ticket) {
                return Ok(None);
            }
            let lap = geometry.lap(ticket);
            // SYNC: arrival (with `append`)
            let seen = Place::from_word(self.0.wide(geometry.place(ticket)).load(SeqCst));
            if seen.is_of(lap) {
                let Some(number) = seen.slot() else {
                    // The tail passes a place only when it is filled.
                    return match ticket < self.0.wide(header::TAIL).load(Acquire) {
                        true => Err(damaged("word of the ring", seen.word())),
                        false => Ok(None),
                    };
                };
                if let Some(slot) = geometry.slot(number) {
                    let ready = matches!(self.0.load_state(slot)?, State::Ready(_));
                    if ready && self.0.id(slot).load(Relaxed) == ticket {
                        return Ok(Some(slot));
                    }
                }
                self.leave(ticket);
            } else if seen.is_of(lap + 1) {
                head.store(ticket.wrapping_add(1), Relaxed);
            } else {
                return Err(damaged("word of the ring", seen.word()));
            }
        }
        Err(damaged("head of the ring", head.load(Relaxed)))
    }

    /// Empties the place of the message that [`Arrivals::first`] gave, after its state has changed: a death before this leaves
    /// a place that `first` passes by itself.
    #[inline]
    pub(super) fn leave_first(&self) {
        self.leave(self.0.wide(header::HEAD).load(Relaxed));
    }

    #[inline(always)]
    fn leave(&self, ticket: u64) {
        let geometry = &self.0.geometry;
        let next = Place::empty(geometry.lap(ticket) + 1).word();
        // SYNC: emptied (with the load of a place in `append`). Release also keeps it behind the change of state.
        self.0.wide(geometry.place(ticket)).store(next, Release);
        self.0.wide(header::HEAD).store(ticket.wrapping_add(1), Release);
    }

    /// Helps the tail past tickets whose producers died, or are slow, between filling the place and moving it.
    fn settle_tail(&self) {
        let geometry = &self.0.geometry;
        for _ in 0..geometry.places {
            let ticket = self.0.wide(header::TAIL).load(Acquire);
            if !self.reached(ticket) {
                break;
            }
            let (lap, place) = (geometry.lap(ticket), self.0.wide(geometry.place(ticket)));
            let seen = Place::from_word(place.load(Acquire));
            if !(seen.is_of(lap) && seen.slot().is_some() || seen.is_of(lap + 1)) {
                break;
            }
            self.help_tail(ticket);
        }
    }

    /// How many wait, as far as one look can tell.
    pub(super) fn count(&self) -> u64 {
        self.settle_tail();
        let head = self.0.wide(header::HEAD).load(Relaxed);
        let tail = self.0.wide(header::TAIL).load(Relaxed);
        tail.saturating_sub(head)
    }

    /// The tickets in the ring with their slots; the caller holds the lock, so that none leaves meanwhile.
    pub(super) fn listed(&self) -> Vec<(u64, Slot)> {
        let geometry = &self.0.geometry;
        let head = self.0.wide(header::HEAD).load(Relaxed);
        let mut slots = Vec::new();
        for ticket in head..head.saturating_add(geometry.places) {
            if !self.reached(ticket) {
                break;
            }
            let seen = Place::from_word(self.0.wide(geometry.place(ticket)).load(Acquire));
            match seen.slot() {
                Some(number) if seen.is_of(geometry.lap(ticket)) => {
                    slots.extend(geometry.slot(number).map(|slot| (ticket, slot)));
                }
                _ if seen.is_of(geometry.lap(ticket) + 1) => {}
                _ => break,
            }
        }
        slots
    }

    /// Starts the ring anew with these slots, oldest first, behind every ticket that was ever given. Nobody else may be using
    /// the queue.
    pub(super) fn refill(&self, slots: &[Slot], after: u64) -> Result<()> {
        let geometry = &self.0.geometry;
        let last = geometry.places - 1;
        self.0
            .region
            .allocate(geometry.place(0), geometry.place(last) + 8 - geometry.place(0))?;
        self.0
            .narrow(header::RING_ALLOCATED)
            .store(geometry.places as u32, Relaxed);
        // A whole lap further, so that no ticket is given twice.
        let base = (geometry.lap(after) + 1) * geometry.places;
        for ticket in base..=base + last {
            let empty = Place::empty(geometry.lap(ticket)).word();
            self.0.wide(geometry.place(ticket)).store(empty, Relaxed);
        }
        self.0.wide(header::HEAD).store(base, Relaxed);
        self.0.wide(header::TAIL).store(base, Release);
        for slot in slots.iter().take(geometry.places as usize) {
            self.append(*slot, |_| true)?;
        }
        Ok(())
    }
}
