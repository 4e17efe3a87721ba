//! Sleeping on a word of shared memory.
//!
//! The futexes are the *shared* kind: with the private flag (as in `std` and most crates) the kernel keys the sleepers by
//! address space, and a waker in another process would never find them.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::thread::futex::{self, Flags, Timespec};

/// Sleeps while `word` holds `expected`, at most for `limit`. Returns early for any reason, signals included: the caller
/// looks at its condition again.
pub fn wait(word: &AtomicU32, expected: u32, limit: Duration) {
    let limit = Timespec {
        tv_sec: limit.as_secs().min(i64::MAX as u64) as i64,
        tv_nsec: limit.subsec_nanos().into(),
    };
    // EAGAIN (changed), EINTR (signal), ETIMEDOUT: all mean "look again".
    let _ = futex::wait(word, Flags::empty(), expected, Some(&limit));
}

/// Wakes at most `count` sleepers and says how many there were.
pub fn wake(word: &AtomicU32, count: u32) -> usize {
    futex::wake(word, Flags::empty(), count).unwrap_or(0)
}
