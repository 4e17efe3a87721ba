//! The one source of atomics for everything that lives in a region.
//!
//! Under `--cfg loom` the same names are loom's, which explores every legal interleaving and reordering of them. Loom treats
//! `SeqCst` accesses as acquire/release, so whatever needs a total order says so with a `fence(SeqCst)`.

#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// A word of this process alone, outside of every region: not part of any protocol that loom explores.
pub use std::sync::atomic::{AtomicBool as PrivateFlag, AtomicU32 as PrivateU32, AtomicU64 as PrivateU64};

/// Sleeping on a word: the kernel's futex, or loom's model of it.
pub mod futex {
    #[cfg(not(loom))]
    pub use crate::os::futex::{wait, wake};

    #[cfg(loom)]
    pub use model::{wait, wake};

    /// The sleepers on the one word of a model share a condition variable. Time never passes, so a lost wake-up shows as a
    /// deadlock.
    #[cfg(loom)]
    mod model {
        use super::super::{AtomicU32, Ordering};
        use loom::sync::{Condvar, Mutex};
        use std::time::Duration;

        loom::lazy_static! {
            static ref SLEEPERS: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());
        }

        /// Sleeps while `word` holds `expected`; the kernel checks and sleeps in one step, and so does this.
        pub fn wait(word: &AtomicU32, expected: u32, _limit: Duration) {
            let mut sleepers = SLEEPERS.0.lock().unwrap();
            if word.load(Ordering::SeqCst) == expected {
                *sleepers += 1;
                drop(SLEEPERS.1.wait(sleepers).unwrap());
            }
        }

        /// Wakes at most `count` sleepers (of any word: a model has one) and says how many.
        pub fn wake(_word: &AtomicU32, count: u32) -> usize {
            let mut sleepers = SLEEPERS.0.lock().unwrap();
            let woken = (*sleepers).min(count as usize);
            for _ in 0..woken {
                SLEEPERS.1.notify_one();
            }
            *sleepers -= woken;
            woken
        }
    }
}

/// Keeps the compiler from moving memory accesses across this point. For the order in which the stores of one thread are
/// found after its death: the processor stops between two instructions, so program order is all that is needed.
#[inline]
pub fn in_program_order() {
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
}

/// A hint to the processor (or to loom) that this loop waits for another thread.
pub fn spin() {
    #[cfg(not(loom))]
    std::hint::spin_loop();
    #[cfg(loom)]
    loom::thread::yield_now();
}
