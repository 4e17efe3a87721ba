//! Sleeping until something changes, and waking the sleepers: one word of a region per thing that can change.
//!
//! ```text
//!  31                                   1   0
//! +--------------------------------------+-----+
//! |  sequence: +1 with every wake-up     |asleep|
//! +--------------------------------------+-----+
//! ```
//!
//! # Why no wake-up is lost
//! A waiter sets the `asleep` bit, passes a full fence, tries once more, and only then sleeps, on the exact value of the word
//! that it saw. A notifier changes the condition, passes a full fence, and then looks at the bit. Of the two fences one comes
//! first: if the waiter's does, the notifier sees the bit; if the notifier's does, the waiter's last try sees the change.
//! A notifier that sees the bit changes the word before it wakes, so a waiter that is not asleep yet does not fall asleep.
//!
//! # Why a killed sleeper costs nothing
//! Nobody counts sleepers: a notifier that wakes nobody clears the bit (and then wakes once more, for whoever fell asleep in
//! between). A wake-up that dies with its notifier costs the sleeper one [`Turn`], because every sleep is that short.

use std::time::{Duration, Instant};

use super::sync::{AtomicU32, Ordering, fence, futex};
use crate::Result;

const ASLEEP: u32 = 1;
const STEP: u32 = 2;

/// How long a call may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    No,
    /// As long as it takes.
    Forever,
    /// Up to this moment.
    Until(Instant),
}

impl Wait {
    /// `None` is for ever, zero is not at all; a time too far away to express is for ever.
    pub fn from_timeout(timeout: Option<Duration>) -> Self {
        match timeout {
            None => Wait::Forever,
            Some(Duration::ZERO) => Wait::No,
            Some(timeout) => Instant::now().checked_add(timeout).map_or(Wait::Forever, Wait::Until),
        }
    }

    /// Sleeps for `limit` at most, where there is no word to sleep on; `false` when the time is up.
    pub fn pause(self, limit: Duration) -> bool {
        let slice = self.remaining(limit);
        if let Some(slice) = slice {
            std::thread::sleep(slice);
        }
        slice.is_some()
    }

    /// The time left, at most `limit`; `None` when it is up.
    pub fn remaining(self, limit: Duration) -> Option<Duration> {
        match self {
            Wait::No => None,
            Wait::Forever => Some(limit),
            Wait::Until(end) => {
                let left = end.saturating_duration_since(Instant::now());
                (!left.is_zero()).then(|| left.min(limit))
            }
        }
    }
}

/// How long somebody has been seen to be in the way.
#[derive(Clone, Copy, Debug)]
pub struct Since(Instant);

impl Since {
    /// From now on.
    pub fn now() -> Self {
        Since(Instant::now())
    }

    /// Whether so much time has passed.
    pub fn is_over(self, limit: Duration) -> bool {
        self.0.elapsed() >= limit
    }
}

/// The longest single sleep: after it the caller looks around even if nobody woke it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// 25 ms, where the death of a peer must be noticed.
    PeerMatters,
    /// 1 ms, where those who change things may not know of the signal at all.
    Polling,
    /// 100 ms, where only signals and foreign writers (which wake nobody) have to be.
    Patient,
}

impl Turn {
    fn limit(self) -> Duration {
        match self {
            Turn::Polling => Duration::from_millis(1),
            Turn::PeerMatters => Duration::from_millis(25),
            Turn::Patient => Duration::from_millis(100),
        }
    }
}

/// A word to sleep on.
#[derive(Clone, Copy, Debug)]
pub struct Signal<'a> {
    word: &'a AtomicU32,
}

impl<'a> Signal<'a> {
    /// The signal that lives in `word`, which nothing else uses.
    pub fn new(word: &'a AtomicU32) -> Self {
        Signal { word }
    }

    /// Whether somebody sleeps or is about to, at a glance: for a change that can also be made a little later.
    #[inline]
    pub fn is_awaited(&self) -> bool {
        self.word.load(Ordering::Relaxed) & ASLEEP != 0
    }

    /// Wakes everybody who waits for the change that the caller has just made.
    #[inline]
    pub fn notify_all(&self) {
        // SYNC: sleep (the notifier's fence, with `wait_for`)
        fence(Ordering::SeqCst);
        self.notify_all_fenced();
    }

    /// As [`Signal::notify_all`], for a caller whose change was itself a `SeqCst` read-modify-write, which the waiters' attempt
    /// reads with a `SeqCst` load: those stand in for the fence.
    #[inline]
    pub fn notify_all_fenced(&self) {
        #[cfg(loom)]
        fence(Ordering::SeqCst);
        let seen = self.word.load(Ordering::SeqCst);
        if seen & ASLEEP != 0 {
            self.wake_all(seen);
        }
    }

    /// Wakes one of those who wait, for a change that only one of them can use.
    #[inline]
    pub fn notify_one(&self) {
        // SYNC: sleep (the notifier's fence, with `wait_for`)
        fence(Ordering::SeqCst);
        let seen = self.word.load(Ordering::SeqCst);
        if seen & ASLEEP != 0 {
            self.wake_one();
        }
    }

    /// As [`Signal::notify_one`], for a caller whose change was a `SeqCst` read-modify-write; see
    /// [`Signal::notify_all_fenced`].
    #[inline]
    pub fn notify_one_fenced(&self) {
        #[cfg(loom)]
        fence(Ordering::SeqCst);
        let seen = self.word.load(Ordering::SeqCst);
        if seen & ASLEEP != 0 {
            self.wake_one();
        }
    }

    #[cold]
    fn wake_all(&self, mut seen: u32) {
        while seen & ASLEEP != 0 {
            let next = seen.wrapping_add(STEP) & !ASLEEP;
            match self
                .word
                .compare_exchange(seen, next, Ordering::SeqCst, Ordering::SeqCst)
            {
                Ok(_) => {
                    futex::wake(self.word, i32::MAX as u32);
                    return;
                }
                Err(now) => seen = now,
            }
        }
    }

    #[cold]
    fn wake_one(&self) {
        let changed = self.word.fetch_add(STEP, Ordering::SeqCst).wrapping_add(STEP);
        if futex::wake(self.word, 1) == 0 {
            // Nobody slept: the bit is a dead waiter's, or of one that is on its way.
            self.wake_all(changed);
        }
    }

    /// Turns a non-blocking `attempt` into a waiting one: `Ok(None)` when the time is up.
    ///
    /// `idle` is called after every sleep, at least each `turn`; its error ends the wait.
    pub fn wait_for<T>(
        &self,
        wait: Wait,
        turn: Turn,
        mut idle: impl FnMut() -> Result<()>,
        mut attempt: impl FnMut() -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let mut spins = Spins::default();
        loop {
            if let Some(value) = attempt()? {
                return Ok(Some(value));
            }
            if wait == Wait::No {
                return Ok(None);
            }
            if spins.again() {
                continue;
            }
            let asleep = self.word.fetch_or(ASLEEP, Ordering::SeqCst) | ASLEEP;
            // SYNC: sleep (the waiter's fence, with `notify_*`)
            fence(Ordering::SeqCst);
            if let Some(value) = attempt()? {
                return Ok(Some(value));
            }
            let Some(slice) = wait.remaining(turn.limit()) else {
                return Ok(None);
            };
            futex::wait(self.word, asleep, slice);
            idle()?;
        }
    }
}

/// A short while of trying again before the kernel is asked to put us to sleep.
#[derive(Debug, Default)]
struct Spins {
    #[cfg(not(loom))]
    backoff: crossbeam_utils::Backoff,
}

impl Spins {
    #[cfg(not(loom))]
    fn again(&mut self) -> bool {
        let again = !self.backoff.is_completed();
        self.backoff.snooze();
        again
    }

    #[cfg(loom)]
    fn again(&mut self) -> bool {
        false
    }
}
