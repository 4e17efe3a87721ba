//! One queue: enqueue, read, dequeue and what belongs to them. Nothing here waits for a message or reads a clock.
//!
//! Enqueueing takes no lock. Everything else is a short section under the queue's lock, which a survivor takes over and
//! repairs ([`super::recover`]). Inside a section the derived structures are changed before the state word where they can be
//! rebuilt from it (time table, list), and after it where they cannot (the ring); so a death anywhere leaves every message in
//! exactly one phase.

mod snapshot;

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::arrivals::Arrivals;
use super::layout::{DeadLetter, Geometry, Slot, header};
use super::recover;
use super::returned::Returned;
use super::slots::Slots;
use super::space::{Space, damaged};
use super::state::{State, Tag, next_delivery};
pub use super::stats::Stats;
use super::timetable::Timetable;
use crate::os::fork;
use crate::shared::lock::{Guard, Lock};
use crate::shared::region::Region;
use crate::shared::roster::Roster;
use crate::shared::signal::Signal;
use crate::shared::sync::Ordering::{Acquire, Relaxed, Release, SeqCst};
use crate::shared::sync::{AtomicU32, AtomicU64, fence};
use crate::{Error, Result};

pub use snapshot::Unfinished;

/// How long a call bears a lock that a living process holds: sections last microseconds, so it has been stopped.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);
/// No other program writes this format: a lock word that no participant signed is damage, not a foreign holder.
const DAMAGE_PATIENCE: Duration = Duration::from_millis(5);
/// Expired leases that one call moves at most; the next calls move the rest, and nobody can tell the difference.
pub(super) const MOVES_PER_CALL: u32 = 256;
/// Times of living processes of one boot differ by less: a later one in the file is damage.
const CLOCK_TOLERANCE: u64 = 1_000_000_000;

/// What a reader holds of a message: a stale one is refused, whatever happened to the message meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Receipt {
    /// Of the message in its queue.
    pub id: u64,
    /// The how manieth delivery of it, from 1.
    pub delivery: u32,
    /// Where it lies; only its queue can use it.
    pub slot: u32,
}

/// A message in the caller's hands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// To finish it with.
    pub receipt: Receipt,
    /// Bytes of the message.
    pub length: usize,
}

/// One queue in shared memory.
#[derive(Debug)]
pub struct Queue {
    pub(super) space: Space,
    pub(super) roster: Roster,
    id: u64,
    dead_letter: Option<DeadLetter>,
    /// The last count of removed messages that this handle saw; the true one is never smaller.
    removed_seen: AtomicU64,
    /// Memory of one process is nobody's in a forked child.
    pub(super) private_to: Option<u32>,
    /// The dead whose remains this handle has swept.
    pub(super) swept: Mutex<HashSet<u64>>,
    /// Not 0 when there may be remains that nobody can find by the roster: this participant took the place of a dead one, say.
    pub(super) inherited: Arc<AtomicU32>,
}

impl Queue {
    /// Takes part in the queue that `space` holds.
    pub(super) fn join(space: Space, id: u64, dead_letter: Option<DeadLetter>) -> Result<Self> {
        let private_to = space.region.descriptor().is_none().then(fork::generation);
        let inherited = Arc::new(AtomicU32::new(0));
        let (flag, table) = (inherited.clone(), space.geometry.roster());
        let look = move |region: &Region, slot: u32| {
            let before = region.u64(table.offset + 8 + 8 * slot as usize).load(Relaxed);
            flag.fetch_or((before != 0).into(), Relaxed);
        };
        let roster = Roster::join(&space.region, table, Some(Box::new(look)))?;
        Ok(Queue {
            space,
            roster,
            id,
            dead_letter,
            removed_seen: AtomicU64::new(0),
            private_to,
            swept: Mutex::default(),
            inherited,
        })
    }

    /// The queue's number in its manager.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// How it was made.
    pub fn geometry(&self) -> &Geometry {
        &self.space.geometry
    }

    /// Where messages go that nobody can finish.
    pub fn dead_letter(&self) -> Option<&DeadLetter> {
        self.dead_letter.as_ref()
    }

    /// The memory that it lives in.
    pub fn region(&self) -> &Arc<Region> {
        &self.space.region
    }

    /// Who takes part.
    pub fn roster(&self) -> &Roster {
        &self.roster
    }

    /// Adds a message; without a lock, in constant time. Returns its id.
    #[inline]
    pub fn enqueue(&self, bytes: &[u8], now: u64) -> Result<u64> {
        let id = self.enqueue_quietly(bytes, now)?;
        // Filling the place was sequentially consistent, and so is a reader's look at it.
        self.arrived().notify_one_fenced();
        Ok(id)
    }

    /// As [`Queue::enqueue`], for a caller that wakes the waiting readers itself.
    #[inline]
    pub fn enqueue_quietly(&self, bytes: &[u8], now: u64) -> Result<u64> {
        self.check_size(bytes.len())?;
        self.check_usable()?;
        let space = &self.space;
        let owner = Tag::of(self.roster.me()?);
        let slot = match Slots(space).claim(bytes.len(), owner)? {
            Some(slot) => slot,
            None => self.claim_after_all(bytes.len(), owner, now)?,
        };
        // SYNC: overwritten (with `still_held`)
        fence(Release);
        space.length(slot).store(bytes.len() as u32, Relaxed);
        space.enqueued(slot).store(now, Relaxed);
        let filled = space
            .geometry
            .bytes(slot, bytes.len() as u32)
            .map(|offset| space.region.copy_in(offset, bytes));
        debug_assert!(filled.is_some(), "the class is large enough");
        // SYNC: message (with `Space::load_state`): from here on it exists.
        space.state(slot).store(State::Ready(owner).word(), Release);
        match Arrivals(space).append(slot, |ticket| self.has_room(ticket)) {
            Ok(Some(id)) => Ok(id),
            Ok(None) => {
                Slots(space).free(slot);
                Err(self.full(now))
            }
            Err(error) => {
                Slots(space).free(slot);
                Err(error)
            }
        }
    }

    /// Wakes readers that wait for messages enqueued quietly.
    pub fn announce_arrivals(&self) {
        self.arrived().notify_all();
    }

    #[inline]
    fn has_room(&self, ticket: u64) -> bool {
        let limit = u64::from(self.space.geometry.max_messages);
        if ticket.saturating_sub(self.removed_seen.load(Relaxed)) < limit {
            return true;
        }
        // SYNC: removed (with `remove`)
        let removed = self.space.wide(header::REMOVED).load(SeqCst);
        self.removed_seen.store(removed, Relaxed);
        ticket.saturating_sub(removed) < limit
    }

    #[cold]
    fn full(&self, now: u64) -> Error {
        // A message in the hands of the dead may be what is missing. Whatever comes of it, this call found the queue full.
        let _ = self.sweep_if_due(now);
        let limit = self.space.geometry.max_messages;
        Error::Full(format!(
            "it holds {limit} messages, the most it was made for (max_messages)"
        ))
    }

    /// All memory is in use, or by other size classes, or its free slots are hidden: worth a look under the lock.
    #[cold]
    fn claim_after_all(&self, length: usize, owner: Tag, now: u64) -> Result<Slot> {
        self.sweep_if_due(now)?;
        let slots = Slots(&self.space);
        let mut slot = slots.claim(length, owner)?;
        if slot.is_none() && self.locked(now, |_| Ok(slots.reassign_segment(length)))? {
            slot = slots.claim(length, owner)?;
        }
        if slot.is_none() {
            slot = slots.claim_larger(length, owner)?;
        }
        slot.ok_or_else(|| {
            let geometry = &self.space.geometry;
            let bytes = u64::from(geometry.segments) * u64::from(geometry.units) * u64::from(geometry.unit);
            Error::Full(format!(
                "its {bytes} bytes of memory (max_bytes) have no room for {length} bytes"
            ))
        })
    }

    /// Takes the next message into the caller's hands for `timeout` nanoseconds; `None` when there is none.
    #[inline(always)]
    pub fn read(&self, timeout: u64, now: u64) -> Result<Option<Lease>> {
        check_timeout(timeout)?;
        self.check_usable()?;
        if self.looks_empty(now) {
            self.sweep_if_due(now)?;
            return Ok(None);
        }
        self.locked(now, |now| {
            self.maintain(now, MOVES_PER_CALL)?;
            self.lease_next(now.saturating_add(timeout))
        })
    }

    /// Finishes a message: it is gone for good.
    #[inline]
    pub fn dequeue(&self, receipt: &Receipt, now: u64) -> Result<()> {
        self.check_usable()?;
        self.locked(now, |now| {
            self.maintain(now, MOVES_PER_CALL)?;
            self.remove(receipt, now)
        })?;
        // Counting it as removed was sequentially consistent, and so is a producer's look at the count.
        self.room().notify_one_fenced();
        Ok(())
    }

    /// Makes a lease end `timeout` nanoseconds from now instead.
    pub fn extend(&self, receipt: &Receipt, timeout: u64, now: u64) -> Result<()> {
        check_timeout(timeout)?;
        self.check_usable()?;
        self.locked(now, |now| {
            self.maintain(now, MOVES_PER_CALL)?;
            let slot = self.held(receipt, now)?;
            let deadline = now.saturating_add(timeout);
            Timetable(&self.space).change(slot, deadline)?;
            self.space.deadline(slot).store(deadline, Relaxed);
            Ok(())
        })
    }

    /// Gives a message back now: it is delivered next, after those that came back before.
    pub fn release(&self, receipt: &Receipt, now: u64) -> Result<()> {
        self.check_usable()?;
        self.locked(now, |now| {
            self.maintain(now, MOVES_PER_CALL)?;
            let slot = self.held(receipt, now)?;
            self.space.deadline(slot).store(now, Relaxed);
            self.give_back(slot, receipt.delivery)
        })?;
        self.arrived().notify_one();
        Ok(())
    }

    /// Wakes when a message arrived or was given back.
    pub fn arrived(&self) -> Signal<'_> {
        Signal::new(self.space.narrow(header::ARRIVED))
    }

    /// Wakes when a message was finished.
    pub fn room(&self) -> Signal<'_> {
        Signal::new(self.space.narrow(header::ROOM))
    }

    /// Marks the queue as deleted: all its messages are gone, and every call from now on says so. True for the one caller
    /// that did it.
    pub fn delete(&self) -> bool {
        let word = self.space.narrow(header::DELETED);
        let deleted = word.compare_exchange(0, 1, SeqCst, SeqCst).is_ok();
        self.arrived().notify_all();
        self.room().notify_all();
        deleted
    }

    /// Whether it was deleted, by anybody.
    pub fn is_deleted(&self) -> bool {
        self.space.is_deleted()
    }

    /// [`Error::TooLarge`] for a message that never fits, whatever state the queue is in.
    #[inline(always)]
    pub fn check_size(&self, length: usize) -> Result<()> {
        let limit = self.geometry().max_message_size;
        if length <= limit as usize {
            return Ok(());
        }
        Err(Error::TooLarge {
            size: length as u64,
            limit: limit.into(),
        })
    }

    /// [`Error::NotFound`] when it was deleted, or belongs to the process that this one was forked from.
    #[inline(always)]
    pub fn check_usable(&self) -> Result<()> {
        if self.space.is_deleted() {
            return Err(Error::NotFound(format!("queue {} was deleted", self.id)));
        }
        match self.private_to {
            Some(generation) if generation != fork::generation() => Err(Error::NotFound(format!(
                "queue {} belongs to the process that this one was forked from",
                self.id
            ))),
            _ => Ok(()),
        }
    }

    /// Moves messages whose lease has ended to phase 3, in the order in which they ended.
    #[inline(always)]
    pub(super) fn maintain(&self, now: u64, limit: u32) -> Result<()> {
        match Timetable(&self.space).first()? {
            Some((deadline, _)) if deadline < now => self.expire(now, limit),
            _ => Ok(()),
        }
    }

    #[cold]
    fn expire(&self, now: u64, limit: u32) -> Result<()> {
        for _ in 0..limit {
            match Timetable(&self.space).first()? {
                Some((deadline, slot)) if deadline < now => {
                    let State::Leased(delivery) = self.space.load_state(slot)? else {
                        return Err(damaged("lease", slot.number().into()));
                    };
                    self.give_back(slot, delivery)?;
                }
                _ => break,
            }
        }
        Ok(())
    }

    fn give_back(&self, slot: Slot, delivery: u32) -> Result<()> {
        Timetable(&self.space).remove(slot)?;
        Returned(&self.space).append(slot)?;
        // SYNC: message (with `Space::load_state`)
        let expired = State::Expired(delivery).word();
        self.space.state(slot).store(expired, Release);
        Ok(())
    }

    #[inline(always)]
    pub(super) fn lease_next(&self, deadline: u64) -> Result<Option<Lease>> {
        let space = &self.space;
        let returned = Returned(space).first()?;
        let (slot, before) = match returned {
            Some(found) => found,
            None => match Arrivals(space).first()? {
                Some(slot) => (slot, 0),
                None => return Ok(None),
            },
        };
        let length = space.length(slot).load(Relaxed);
        if space.geometry.bytes(slot, length).is_none() {
            return Err(damaged("length of a message", length.into()));
        }
        let delivery = next_delivery(before);
        Timetable(space).make_room()?;
        if returned.is_some() {
            // The link is about to become the place in the time table.
            Returned(space).leave_first(slot);
        }
        space.deadline(slot).store(deadline, Relaxed);
        Timetable(space).push(deadline, slot)?;
        // SYNC: message (with `Space::load_state`)
        space.state(slot).store(State::Leased(delivery).word(), Release);
        if returned.is_none() {
            Arrivals(space).leave_first();
        }
        let receipt = Receipt {
            id: space.id(slot).load(Relaxed),
            delivery,
            slot: slot.number(),
        };
        Ok(Some(Lease {
            receipt,
            length: length as usize,
        }))
    }

    #[inline(always)]
    pub(super) fn remove(&self, receipt: &Receipt, now: u64) -> Result<()> {
        let slot = self.held(receipt, now)?;
        Timetable(&self.space).remove(slot)?;
        Slots(&self.space).free(slot);
        // SYNC: removed (with `has_room`)
        self.space.wide(header::REMOVED).fetch_add(1, SeqCst);
        Ok(())
    }

    /// The slot of a message that is in the hands of the receipt's owner, and of nobody else.
    #[inline(always)]
    fn held(&self, receipt: &Receipt, now: u64) -> Result<Slot> {
        if let Some(slot) = self.space.geometry.slot(receipt.slot) {
            let space = &self.space;
            let held = space.state(slot).load(Acquire) == State::Leased(receipt.delivery).word()
                && space.id(slot).load(Relaxed) == receipt.id
                && space.deadline(slot).load(Relaxed) >= now;
            if held {
                return Ok(slot);
            }
        }
        Err(Error::MessageNotFound(format!(
            "message {} of queue {}, delivery {}: its lease has ended, or it was dequeued",
            receipt.id, self.id, receipt.delivery
        )))
    }

    /// Whether there is nothing to read and nothing to maintain, seen without the lock: exact while nobody is in a section.
    #[inline]
    pub(super) fn looks_empty(&self, now: u64) -> bool {
        let space = &self.space;
        Arrivals(space).nothing_waits()
            && space.narrow(header::EXPIRED).load(Relaxed) == 0
            && self.next_expiry().is_none_or(|deadline| deadline >= now)
            && space.wide(header::LOCK).load(Acquire) == 0
    }

    /// Runs `operation` under the lock, with a time that is not before anybody else's. Damage to what is derived is repaired
    /// once, for which `operation` fails before it changes any state.
    #[inline(always)]
    pub(super) fn locked<T>(&self, now: u64, operation: impl Fn(u64) -> Result<T>) -> Result<T> {
        let _guard = self.lock()?;
        let now = self.latest(now);
        self.repairing(|| operation(now))
    }

    #[inline(always)]
    pub(super) fn repairing<T>(&self, operation: impl Fn() -> Result<T>) -> Result<T> {
        let mut repaired = false;
        loop {
            match operation() {
                Err(Error::Corrupt(_)) if !repaired => self.repair()?,
                outcome => return outcome,
            }
            repaired = true;
        }
    }

    #[inline(always)]
    pub(super) fn lock(&self) -> Result<Guard<'_, impl Fn(u64), true>> {
        let word = self.space.wide(header::LOCK);
        let lock = Lock::new(word, &self.roster)
            .members_only()
            .break_foreign_after(Some(DAMAGE_PATIENCE));
        lock.acquire_within(LOCK_PATIENCE, |_| {
            // Damage that cannot be repaired shows in the operation that follows.
            let _ = self.repair();
        })
    }

    #[cold]
    pub(super) fn repair(&self) -> Result<()> {
        let repairs = self.space.narrow(header::REPAIRS);
        repairs.store(repairs.load(Relaxed).wrapping_add(1), Relaxed);
        recover::rebuild(&self.space)
    }

    /// Makes time never run backwards from one holder of the lock to the next.
    #[inline(always)]
    pub(super) fn latest(&self, now: u64) -> u64 {
        let last = self.space.wide(header::LAST_NOW);
        let seen = last.load(Relaxed);
        if seen > now && seen - now < CLOCK_TOLERANCE {
            return seen;
        }
        last.store(now, Relaxed);
        now
    }
}

pub(super) fn check_timeout(timeout: u64) -> Result<()> {
    if timeout == 0 {
        return Err(Error::Invalid(
            "a read timeout of 0 is not allowed: the message would never be anybody's".into(),
        ));
    }
    Ok(())
}
