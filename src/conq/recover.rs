//! What a survivor does with what the dead left; everything derived is made anew from the state words.
//!
//! - [`rebuild`] after the death of a holder of the lock: the time table, the list of expired messages, the counters. The ring
//!   needs no repair: its head passes by itself what was read already.
//! - [`sweep`] for producers that died: slots that they were filling are free again, messages that were complete but not yet
//!   in the ring (their enqueue never returned) enter it.
//! - [`adopt`] after a reboot: no lease can be held any more, and nobody else uses the queue yet.
//!
//! Each can be interrupted by a death at any point and repeated by the next survivor.

use std::collections::{HashMap, HashSet};

use super::arrivals::Arrivals;
use super::layout::{Slot, header};
use super::returned::Returned;
use super::slots::Slots;
use super::space::{Space, damaged};
use super::state::{State, Tag};
use super::timetable::Timetable;
use crate::Result;
use crate::shared::roster::Roster;
use crate::shared::sync::Ordering::{Relaxed, Release};

/// Times further than any ticket can be given are not tickets.
const LAST_TICKET: u64 = 1 << 60;

/// Makes everything that the lock protects agree with the state words; the caller holds the lock.
pub(super) fn rebuild(space: &Space) -> Result<()> {
    Slots(space).settle_segments();
    let (mut leased, mut expired) = (Vec::new(), Vec::new());
    for slot in space.slots() {
        match space.load_state(slot)? {
            State::Leased(_) => leased.push(dated(space, slot)),
            State::Expired(_) => expired.push(dated(space, slot)),
            State::Free => Slots(space).refresh_hints(slot),
            State::Filling(_) | State::Ready(_) => {}
        }
    }
    settle(space, &mut leased, &mut expired)
}

/// Ends every lease now: where words were damaged nobody can say when they should, and delivering again is what the queue may
/// do. The caller holds the lock and rebuilds.
pub(super) fn end_leases(space: &Space, now: u64) -> Result<()> {
    for slot in space.slots() {
        if matches!(space.load_state(slot)?, State::Leased(_)) {
            let deadline = space.deadline(slot);
            deadline.store(deadline.load(Relaxed).min(now), Relaxed);
        }
    }
    Ok(())
}

/// Sorts both lists into their places and counts what is gone.
fn settle(space: &Space, leased: &mut [(u64, u64, Slot)], expired: &mut [(u64, u64, Slot)]) -> Result<()> {
    let held = leased.len() + expired.len();
    if held > space.geometry.max_messages as usize {
        return Err(damaged("number of messages", held as u64));
    }
    leased.sort_unstable_by_key(|(deadline, id, _)| (*deadline, *id));
    expired.sort_unstable_by_key(|(deadline, id, _)| (*deadline, *id));
    Timetable(space).rebuild(leased)?;
    Returned(space).rebuild(expired)?;
    Arrivals(space).first()?;
    let head = space.wide(header::HEAD).load(Relaxed);
    // SYNC: removed (with `Queue::has_room`)
    space
        .wide(header::REMOVED)
        .store(head.saturating_sub(held as u64), Release);
    Ok(())
}

/// Clears away what dead producers left; the caller holds the lock.
pub(super) fn sweep(space: &Space, roster: &Roster) -> Result<()> {
    let mut alive: HashMap<Tag, bool> = HashMap::new();
    let mut orphans = Vec::new();
    for slot in space.slots() {
        match space.load_state(slot)? {
            State::Filling(owner) if !lives(roster, owner, &mut alive)? => Slots(space).free(slot),
            State::Ready(owner) if !lives(roster, owner, &mut alive)? => orphans.push(slot),
            State::Free => Slots(space).refresh_hints(slot),
            _ => {}
        }
    }
    if orphans.is_empty() {
        return Ok(());
    }
    let listed: HashSet<Slot> = Arrivals(space).listed().into_iter().map(|(_, slot)| slot).collect();
    orphans.retain(|slot| !listed.contains(slot));
    orphans.sort_by_key(|slot| space.id(*slot).load(Relaxed));
    let removed = space.wide(header::REMOVED).load(Relaxed);
    for slot in orphans {
        // In a full queue the rest waits for the next sweep.
        Arrivals(space).append(slot, |ticket| ticket.saturating_sub(removed) < space.geometry.places)?;
    }
    Ok(())
}

fn lives(roster: &Roster, owner: Tag, known: &mut HashMap<Tag, bool>) -> Result<bool> {
    if let Some(alive) = known.get(&owner) {
        return Ok(*alive);
    }
    let occupant = roster.occupant(owner.roster_slot())?;
    let alive = occupant.is_some_and(|identity| Tag::of(identity) == owner);
    known.insert(owner, alive);
    Ok(alive)
}

/// Takes over a queue of another boot: every lease has ended, every time starts at `now`. The caller holds the lock, and
/// nobody works on a queue before it is adopted.
pub(super) fn adopt(space: &Space, now: u64) -> Result<()> {
    Slots(space).settle_segments();
    let (mut ready, mut expired) = (Vec::new(), Vec::new());
    let mut newest = space.wide(header::TAIL).load(Relaxed);
    for slot in space.slots() {
        let state = space.load_state(slot)?;
        match state {
            State::Free => Slots(space).refresh_hints(slot),
            State::Filling(_) => Slots(space).free(slot),
            State::Ready(_) => ready.push((space.id(slot).load(Relaxed), slot)),
            State::Leased(delivery) | State::Expired(delivery) => {
                space.state(slot).store(State::Expired(delivery).word(), Release);
                expired.push(dated(space, slot));
            }
        }
        if state != State::Free {
            newest = newest.max(space.id(slot).load(Relaxed));
            space.enqueued(slot).store(now, Relaxed);
        }
    }
    expired.sort_unstable_by_key(|(deadline, id, _)| (*deadline, *id));
    for (rank, (deadline, _, slot)) in expired.iter_mut().enumerate() {
        // Long ago, in the order in which they would have ended; whoever has to do this again finds the same order.
        *deadline = rank as u64;
        space.deadline(*slot).store(rank as u64, Relaxed);
    }
    ready.sort_unstable_by_key(|(id, _)| *id);
    let ready: Vec<Slot> = ready.into_iter().map(|(_, slot)| slot).collect();
    if newest >= LAST_TICKET {
        return Err(damaged("ticket", newest));
    }
    Arrivals(space).refill(&ready, newest)?;
    space.wide(header::LAST_NOW).store(now, Relaxed);
    space.wide(header::LAST_SWEEP).store(now, Relaxed);
    settle(space, &mut [], &mut expired)
}

fn dated(space: &Space, slot: Slot) -> (u64, u64, Slot) {
    let deadline = space.deadline(slot).load(Relaxed);
    (deadline, space.id(slot).load(Relaxed), slot)
}
