//! Whether a queue that is opened is what its words say: everything derived against the state words, the counters against both.
//!
//! A death under the lock explains every disagreement, and the lock tells of it. Where nobody died, what is derived is made
//! anew, and messages that are counted but not there are reported: their state words were damaged.

use super::arrivals::Arrivals;
use super::layout::header;
use super::returned::Returned;
use super::space::Space;
use super::state::State;
use super::timetable::Timetable;
use crate::Result;
use crate::shared::sync::Ordering::Relaxed;

/// What was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Findings {
    /// Time table, list and counters agree with the state words.
    pub(super) sound: bool,
    /// Messages that are counted, but in no slot.
    pub(super) missing: u64,
    /// Complete messages that are not in the ring: their producers are about to list them, or died.
    pub(super) unlisted: u64,
}

/// Looks at everything; the caller holds the lock.
pub(super) fn audit(space: &Space) -> Result<Findings> {
    let (mut ready, mut leased, mut expired) = (0, 0, 0);
    for slot in space.slots() {
        match space.load_state(slot)? {
            State::Ready(_) => ready += 1,
            State::Leased(_) => leased += 1,
            State::Expired(_) => expired += 1,
            State::Free | State::Filling(_) => {}
        }
    }
    let listed = Arrivals(space).listed();
    let mut waiting = 0;
    for (ticket, slot) in &listed {
        let there = matches!(space.load_state(*slot)?, State::Ready(_));
        waiting += u64::from(there && space.id(*slot).load(Relaxed) == *ticket);
    }
    let head = space.wide(header::HEAD).load(Relaxed);
    let removed = space.wide(header::REMOVED).load(Relaxed);
    let held = leased + expired;
    let counted = head.saturating_sub(removed);
    Ok(Findings {
        sound: counted == held && Timetable(space).is_sound(leased) && Returned(space).is_sound(expired),
        missing: listed.len() as u64 - waiting + counted.saturating_sub(held),
        unlisted: u64::saturating_sub(ready, waiting),
    })
}
