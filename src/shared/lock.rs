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

/// A lock on a word of a region. `MEMBERS` says that only participants ever use the word ([`Lock::members_only`]).
#[derive(Clone, Copy, Debug)]
pub struct Lock<'a, const MEMBERS: bool = false> {
    word: &'a AtomicU64,
    roster: &'a Roster,
    foreign_timeout: Option<Duration>,
}

impl<'a> Lock<'a> {
    /// The lock in `word`, among the participants of `roster`.
    pub fn new(word: &'a AtomicU64, roster: &'a Roster) -> Self {
        Lock {
            word,
            roster,
            foreign_timeout: None,
        }
    }

    /// Says that only participants ever use the word: none of them touches the word of a living owner, so letting go needs no
    /// compare-and-swap.
    pub fn members_only(self) -> Lock<'a, true> {
        Lock {
            word: self.word,
            roster: self.roster,
            foreign_timeout: self.foreign_timeout,
        }
    }
}

impl<'a, const MEMBERS: bool> Lock<'a, MEMBERS> {
    /// Breaks a lock that a foreign program (whose life cannot be asked for) has held for so long. `None` never does.
    pub fn break_foreign_after(mut self, timeout: Option<Duration>) -> Self {
        self.foreign_timeout = timeout;
        self
    }

    /// Takes the lock if it is free right now; one compare-and-swap.
    #[inline(always)]
    pub fn try_acquire<R: Fn(u64)>(&self, repair: R) -> Option<Guard<'a, R, MEMBERS>> {
        let me = self.roster.me().ok()?;
        self.try_swap(0, me).then(|| self.guard(me, repair))
    }

    /// Takes the lock, waiting as long as `wait` allows (with [`Wait::No`] for some spins); [`Error::TimedOut`] after that.
    /// Taking over from a dead holder needs a millisecond, so callers that promise not to block still allow a second here.
    ///
    /// `repair` puts what the lock protects back in order: it runs before the guard is returned when the last holder died, with
    /// that holder's word, and when the guard is dropped by a panic.
    #[inline(always)]
    pub fn acquire<R: Fn(u64)>(&self, wait: Wait, repair: R) -> Result<Guard<'a, R, MEMBERS>> {
        let me = self.roster.me()?;
        let held = match self.try_swap(0, me) {
            true => me,
            false => self.acquire_contended(me, wait, &repair)?,
        };
        Ok(self.guard(held, repair))
    }

    /// As [`Lock::acquire`] with a wait of at most `limit`; the clock is read only when the lock is not free.
    #[inline(always)]
    pub fn acquire_within<R: Fn(u64)>(&self, limit: Duration, repair: R) -> Result<Guard<'a, R, MEMBERS>> {
        let me = self.roster.me()?;
        let held = match self.try_swap(0, me) {
            true => me,
            false => self.acquire_contended(me, Wait::from_timeout(Some(limit)), &repair)?,
        };
        Ok(self.guard(held, repair))
    }

    /// Gives what stands in the word when the lock is taken.
    #[cold]
    fn acquire_contended(&self, me: Identity, wait: Wait, repair: &dyn Fn(u64)) -> Result<Identity> {
        let mut patience = Patience::new();
        loop {
            let seen = self.word.load(Ordering::Relaxed);
            if seen == 0 {
                if self.try_swap(0, me) {
                    return Ok(me);
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
                    // Held by this guard while `repair` may panic, and by the caller's after that.
                    let guard = self.guard(recovering, repair);
                    repair(seen);
                    std::mem::forget(guard);
                    return Ok(recovering);
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

    #[inline(always)]
    fn guard<R: Fn(u64)>(&self, held: Identity, repair: R) -> Guard<'a, R, MEMBERS> {
        Guard {
            word: self.word,
            held: held.word(),
            repair,
        }
    }
}

/// Holds a [`Lock`] until it is dropped.
pub struct Guard<'a, R: Fn(u64), const MEMBERS: bool = false> {
    word: &'a AtomicU64,
    held: u64,
    repair: R,
}

impl<R: Fn(u64), const MEMBERS: bool> Guard<'_, R, MEMBERS> {
    /// Whether the holder before died, so that `repair` has run.
    pub fn recovered(&self) -> bool {
        Identity::from_word(self.held).is_some_and(|held| held.purpose() == Purpose::Recover)
    }
}

impl<R: Fn(u64), const MEMBERS: bool> Drop for Guard<'_, R, MEMBERS> {
    #[inline]
    fn drop(&mut self) {
        if std::thread::panicking() {
            (self.repair)(self.held);
        }
        if MEMBERS {
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

impl<R: Fn(u64), const MEMBERS: bool> std::fmt::Debug for Guard<'_, R, MEMBERS> {
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
