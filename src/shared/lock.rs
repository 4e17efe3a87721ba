//! Lock words that name their owner and are taken over when it is dead.
//!
//! A word is 0 (free) or its holder's [`Identity`]. Threads that share a handle share its signature, so "it is my word" never
//! means "I hold it": holding is the [`Guard`]. Whoever finds the same word for a millisecond asks the roster about its owner;
//! if that is dead, one survivor wins the compare-and-swap to its own signature with the purpose `Recover`, repairs what the
//! lock protects, and goes on as the holder. A rescuer that dies is rescued in the same way, so a repair can be repeated.
//!
//! Critical sections are short and nobody sleeps in one, so waiting is spinning, yielding, and then sleeping for moments.

use std::time::Duration;

use super::identity::{Identity, Purpose};
use super::roster::{Holder, Roster};
use super::signal::Wait;
use super::sync::{AtomicU64, Ordering};
use crate::{Error, Result};

/// A lock on a word of a region.
#[derive(Clone, Copy, Debug)]
pub struct Lock<'a> {
    word: &'a AtomicU64,
    roster: &'a Roster,
    foreign_timeout: Option<Duration>,
    members_only: bool,
}

impl<'a> Lock<'a> {
    /// The lock in `word`, among the participants of `roster`.
    pub fn new(word: &'a AtomicU64, roster: &'a Roster) -> Self {
        Lock {
            word,
            roster,
            foreign_timeout: None,
            members_only: false,
        }
    }

    /// Says that only participants ever use the word: none of them touches the word of a living owner, so letting go needs no
    /// compare-and-swap.
    pub fn members_only(mut self) -> Self {
        self.members_only = true;
        self
    }

    /// Breaks a lock that a foreign program (whose life cannot be asked for) has held for so long. `None` never does.
    pub fn break_foreign_after(mut self, timeout: Option<Duration>) -> Self {
        self.foreign_timeout = timeout;
        self
    }

    /// Takes the lock if it is free right now; one compare-and-swap.
    #[inline(always)]
    pub fn try_acquire<R: Fn(u64)>(&self, repair: R) -> Option<Guard<'a, R>> {
        let me = self.roster.me().ok()?;
        self.try_swap(0, me).then(|| self.guard(me, repair))
    }

    /// Takes the lock, waiting as long as `wait` allows (with [`Wait::No`] for some spins); [`Error::TimedOut`] after that.
    /// Taking over from a dead holder needs a millisecond, so callers that promise not to block still allow a second here.
    ///
    /// `repair` puts what the lock protects back in order: it runs before the guard is returned when the last holder died, with
    /// that holder's word, and when the guard is dropped by a panic.
    pub fn acquire<R: Fn(u64)>(&self, wait: Wait, repair: R) -> Result<Guard<'a, R>> {
        let me = self.roster.me()?;
        if self.try_swap(0, me) {
            return Ok(self.guard(me, repair));
        }
        self.acquire_contended(me, wait, repair)
    }

    /// As [`Lock::acquire`] with a wait of at most `limit`; the clock is read only when the lock is not free.
    #[inline]
    pub fn acquire_within<R: Fn(u64)>(&self, limit: Duration, repair: R) -> Result<Guard<'a, R>> {
        let me = self.roster.me()?;
        if self.try_swap(0, me) {
            return Ok(self.guard(me, repair));
        }
        self.acquire_contended(me, Wait::from_timeout(Some(limit)), repair)
    }

    #[cold]
    fn acquire_contended<R: Fn(u64)>(&self, me: Identity, wait: Wait, repair: R) -> Result<Guard<'a, R>> {
        let mut patience = Patience::new();
        loop {
            let seen = self.word.load(Ordering::Relaxed);
            if seen == 0 {
                if self.try_swap(0, me) {
                    return Ok(self.guard(me, repair));
                }
                continue;
            }
            let held_for = patience.same_word(seen);
            if held_for < SUSPICION {
                if patience.wait(wait) {
                    continue;
                }
                // The time is up. It may have gone by while this thread did not run: whoever may wait gives up on nobody
                // before the owner was asked for.
                if wait == Wait::No || patience.has_asked() {
                    return Err(Error::TimedOut);
                }
            }
            if self.may_take(seen, held_for)? {
                let recovering = me.with(Purpose::Recover);
                if self.try_swap(seen, recovering) {
                    let guard = self.guard(recovering, repair);
                    (guard.repair)(seen);
                    return Ok(guard);
                }
                continue;
            }
            patience.asked();
            if !patience.wait(wait) {
                return Err(Error::TimedOut);
            }
        }
    }

    fn may_take(&self, seen: u64, held_for: Duration) -> Result<bool> {
        Ok(match self.roster.holder(seen)? {
            Holder::Dead => true,
            Holder::Foreign => self.foreign_timeout.is_some_and(|limit| held_for >= limit),
            Holder::Alive | Holder::Nobody => false,
        })
    }

    #[inline]
    fn try_swap(&self, from: u64, to: Identity) -> bool {
        // SYNC: lock (with `Guard::drop`): the holder sees all that the one before it did.
        self.word
            .compare_exchange(from, to.word(), Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    #[inline]
    fn guard<R: Fn(u64)>(&self, held: Identity, repair: R) -> Guard<'a, R> {
        Guard {
            word: self.word,
            held: held.word(),
            members_only: self.members_only,
            repair,
        }
    }
}

/// Holds a [`Lock`] until it is dropped.
pub struct Guard<'a, R: Fn(u64)> {
    word: &'a AtomicU64,
    held: u64,
    members_only: bool,
    repair: R,
}

impl<R: Fn(u64)> Guard<'_, R> {
    /// Whether the holder before died, so that `repair` has run.
    pub fn recovered(&self) -> bool {
        Identity::from_word(self.held).is_some_and(|held| held.purpose() == Purpose::Recover)
    }
}

impl<R: Fn(u64)> Drop for Guard<'_, R> {
    #[inline]
    fn drop(&mut self) {
        if std::thread::panicking() {
            (self.repair)(self.held);
        }
        if self.members_only {
            // A word that is not ours is damage, and perhaps somebody has repaired it by now.
            if self.word.load(Ordering::Relaxed) == self.held {
                // SYNC: lock (with `Lock::try_swap`)
                self.word.store(0, Ordering::Release);
            }
            return;
        }
        // SYNC: lock (with `Lock::try_swap`). Never over another word: a foreign program may have broken ours.
        let _ = self
            .word
            .compare_exchange(self.held, 0, Ordering::Release, Ordering::Relaxed);
    }
}

impl<R: Fn(u64)> std::fmt::Debug for Guard<'_, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guard")
            .field("held", &Identity::from_word(self.held))
            .finish_non_exhaustive()
    }
}

/// A living holder is done long before this; asking the kernel earlier would only cost.
#[cfg(not(loom))]
const SUSPICION: Duration = Duration::from_millis(1);
#[cfg(loom)]
const SUSPICION: Duration = Duration::ZERO;

#[cfg(not(loom))]
const SHORTEST_SLEEP: Duration = Duration::from_micros(100);
#[cfg(not(loom))]
const LONGEST_SLEEP: Duration = Duration::from_millis(4);

/// How long one word has been seen without a change.
#[cfg(not(loom))]
struct Patience {
    backoff: crossbeam_utils::Backoff,
    seen: u64,
    /// Since when, and when its owner was last asked for; not before the spins are over, because most locks are free by then
    /// and looking at the clock costs as much as some of the spins.
    since: Option<(std::time::Instant, std::time::Instant)>,
    has_asked: bool,
    /// The next sleep: longer each time, because hundreds of waiters that all look often leave the holder no time to finish.
    sleep: Duration,
}

#[cfg(not(loom))]
impl Patience {
    fn new() -> Self {
        Patience {
            backoff: crossbeam_utils::Backoff::new(),
            seen: 0,
            since: None,
            has_asked: false,
            sleep: SHORTEST_SLEEP,
        }
    }

    fn same_word(&mut self, seen: u64) -> Duration {
        if seen != self.seen {
            (self.seen, self.since, self.has_asked) = (seen, None, false);
            self.backoff.reset();
        }
        if !self.backoff.is_completed() {
            return Duration::ZERO;
        }
        let now = std::time::Instant::now();
        let (since, asked) = *self.since.get_or_insert((now, now));
        if now.duration_since(asked) < SUSPICION {
            return Duration::ZERO;
        }
        now.duration_since(since)
    }

    /// The owner lives: ask again only after another while.
    fn asked(&mut self) {
        let now = std::time::Instant::now();
        self.since.get_or_insert((now, now)).1 = now;
        self.has_asked = true;
    }

    fn has_asked(&self) -> bool {
        self.has_asked
    }

    fn wait(&mut self, wait: Wait) -> bool {
        if !self.backoff.is_completed() {
            self.backoff.snooze();
            return true;
        }
        match wait.remaining(self.sleep) {
            None => false,
            Some(slice) => {
                std::thread::sleep(slice);
                self.sleep = LONGEST_SLEEP.min(self.sleep * 2);
                true
            }
        }
    }
}

#[cfg(loom)]
struct Patience;

#[cfg(loom)]
impl Patience {
    fn new() -> Self {
        Patience
    }

    fn same_word(&mut self, _seen: u64) -> Duration {
        SUSPICION
    }

    fn asked(&mut self) {}

    fn has_asked(&self) -> bool {
        true
    }

    fn wait(&mut self, _wait: Wait) -> bool {
        super::sync::spin();
        true
    }
}
