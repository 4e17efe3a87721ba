//! The header lock: taking it, and noticing what foreign programs did while nobody of us held it.

use std::time::Duration;

use super::layout::{Range, Stamp};
use super::queue::Queue;
use super::suspects::HeaderWatch;
use crate::shared::lock::{Guard, Lock};
use crate::shared::roster::Holder;
use crate::shared::signal::Wait;
use crate::shared::sync::{self, Ordering};
use crate::{Error, Result};

/// How long one look at a held header lasts before the slots of the dead are looked at: a foreign holder may be waiting for
/// one of them, and would wait for ever.
const LOOK: Duration = Duration::from_millis(25);

/// Some microseconds.
#[cfg(not(loom))]
const SPINS: u32 = 200;
#[cfg(loom)]
const SPINS: u32 = 0;
/// Spins between two looks when the holder takes its time.
const PAUSE: u32 = 16;

/// How often a waiting participant looks at the header before it looks less often. A single call is done by then.
pub(super) const LOOKS: u32 = 10;
/// The same for whoever wants a batch: the others probably want one, too, and coming late costs little for each message.
pub(super) const LOOKS_FOR_BATCH: u32 = 2;

impl Queue {
    /// Takes the header lock if it is free right now, or gets free while somebody does what it usually takes.
    #[inline(always)]
    pub(super) fn header_now(&self, looks: u32) -> Option<Guard<'_, impl Fn(u64) + '_>> {
        let (mut spins, mut looks) = (SPINS, looks);
        // One place where the guard is made: what comes from two places meets in memory.
        loop {
            if let Some(guard) = self.header_word().try_acquire(self.repairer()) {
                self.notice_foreign();
                return Some(guard);
            }
            if !self.header_is_free_soon(&mut spins, &mut looks) {
                return None;
            }
        }
    }

    /// Spins until the header lock looks free: sleeping for a lock that is held for some nanoseconds would leave it to those who
    /// never let go of it for long. Less often after some looks: each takes the line with START and LEN away from the holder, who
    /// moves them once for each slot of a batch.
    #[cold]
    fn header_is_free_soon(&self, spins: &mut u32, looks: &mut u32) -> bool {
        while *spins > 0 {
            let pause = if *looks > 0 { 1 } else { PAUSE };
            *looks = looks.saturating_sub(1);
            (0..pause).for_each(|_| sync::spin());
            *spins = spins.saturating_sub(pause);
            if self.memory.header_lock().load(Ordering::Relaxed) == 0 {
                return true;
            }
        }
        false
    }

    /// Takes the header lock; what a dead holder was doing is repaired. [`Error::TimedOut`] when a living one keeps it.
    pub(super) fn header(&self, wait: Wait) -> Result<Guard<'_, impl Fn(u64) + '_>> {
        self.header_watched(wait, &mut HeaderWatch::default())
    }

    /// As [`Queue::header`], for calls that wait in several attempts: `watch` is theirs.
    pub(super) fn header_watched<'a>(
        &'a self,
        wait: Wait,
        watch: &mut HeaderWatch,
    ) -> Result<Guard<'a, impl Fn(u64) + use<'a>>> {
        let mut attempt = self.header_word().acquire(Wait::No, self.repairer());
        let mut looks = 0;
        while let Err(Error::TimedOut) = attempt {
            let (look, break_foreign) = self.next_look(wait, looks, watch)?;
            attempt = self
                .header_word()
                .break_foreign_after(break_foreign)
                .acquire(look, self.repairer());
            looks += 1;
        }
        let guard = attempt?;
        watch.forget();
        self.notice_foreign();
        Ok(guard)
    }

    #[inline(always)]
    fn header_word(&self) -> Lock<'_> {
        Lock::new(self.memory.header_lock(), &self.roster)
    }

    #[inline(always)]
    fn repairer<'a>(&'a self) -> impl Fn(u64) + Copy + use<'a> {
        |_| self.repair()
    }

    /// How long to look at the held lock next, and how old a foreign word in it must be to be broken.
    fn next_look(&self, wait: Wait, looks: u32, watch: &mut HeaderWatch) -> Result<(Wait, Option<Duration>)> {
        let held = self.memory.header_lock().load(Ordering::Relaxed);
        let ask = looks > 0 || self.options.foreign_timeout.is_some();
        let foreign = ask && self.roster.holder(held)? == Holder::Foreign;
        if looks > 0 && foreign {
            self.rescue_beside_foreign()?;
        }
        let overdue = foreign && watch.is_overdue(self, held);
        let look = wait.remaining(LOOK).ok_or(Error::TimedOut)?;
        Ok((Wait::from_timeout(Some(look)), overdue.then_some(Duration::ZERO)))
    }

    /// START and LEN that are not as one of us left them are a foreign program's doing: its messages have no stamps.
    ///
    /// Whole turns of the ring between two of our operations leave START and LEN as they were and are not noticed.
    #[inline(always)]
    fn notice_foreign(&self) {
        let found = self.memory.range_word().load(Ordering::Relaxed);
        let settled = self.memory.settled().load(Ordering::Relaxed);
        if found != settled {
            self.forget_stamps(Range::from_word(settled), Range::from_word(found));
        }
    }

    #[cold]
    fn forget_stamps(&self, settled: Range, found: Range) {
        let max_len = self.memory.max_len();
        if let (Ok(settled), Ok(found)) = (settled.checked(max_len), found.checked(max_len)) {
            let mut slot = settled.end(max_len);
            while slot != found.end(max_len) {
                self.memory.set_stamp(slot, Stamp::UNKNOWN);
                slot = (slot + 1) % max_len;
            }
        }
        self.memory.foreign().store(1, Ordering::Relaxed);
        // Last, so that a death before this line lets the next holder begin again.
        self.memory.settled().store(found.word(), Ordering::Release);
    }

    /// Stores START and LEN, and that it was us.
    #[inline(always)]
    pub(super) fn move_to(&self, range: Range) {
        self.memory.range_word().store(range.word(), Ordering::Release);
        self.memory.settled().store(range.word(), Ordering::Relaxed);
    }
}
