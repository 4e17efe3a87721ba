//! Time that every process of the host agrees on, and that a test can set.
//!
//! Algorithms never call this: they are handed `now`. Only the outermost layer of a queue reads a [`Clock`].

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::{Error, Result};

/// Nanoseconds since some fixed moment of this boot.
///
/// ```
/// use std::time::Duration;
/// use tailrace::os::clock::Clock;
///
/// let clock = Clock::manual();
/// let before = clock.now();
/// clock.advance(Duration::from_millis(3));
/// assert_eq!(clock.now() - before, 3_000_000);
/// ```
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    Kernel(ClockId),
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// `CLOCK_MONOTONIC`: stands still while the host is suspended. For patience with living peers.
    pub fn monotonic() -> Self {
        Clock(Source::Kernel(ClockId::Monotonic))
    }

    /// `CLOCK_BOOTTIME`: goes on while the host is suspended. For leases that are written to a file.
    pub fn boottime() -> Self {
        Clock(Source::Kernel(ClockId::Boottime))
    }

    /// A clock that only [`Clock::advance`] moves; its clones move with it.
    pub fn manual() -> Self {
        Clock(Source::Manual(Arc::new(AtomicU64::new(1_000_000_000))))
    }

    /// Nanoseconds, the same in all processes of one boot and one time namespace.
    #[inline]
    pub fn now(&self) -> u64 {
        match &self.0 {
            Source::Kernel(id) => nanos(clock_gettime(*id)),
            Source::Manual(now) => now.load(Ordering::SeqCst),
        }
    }

    /// A moment that is not after [`Clock::now`], and before it by little more than a tick of the kernel (1 to 10 ms): cheaper,
    /// where nothing is measured by the millisecond.
    #[inline]
    pub fn recent(&self) -> u64 {
        match &self.0 {
            Source::Kernel(ClockId::Boottime) => recent_boottime(),
            _ => self.now(),
        }
    }

    /// Moves a manual clock forward; the kernel's clocks cannot be moved.
    pub fn advance(&self, by: Duration) {
        match &self.0 {
            Source::Manual(now) => {
                now.fetch_add(saturating_nanos(by), Ordering::SeqCst);
            }
            Source::Kernel(_) => panic!("only a manual clock can be advanced"),
        }
    }
}

/// The kernel has no coarse `CLOCK_BOOTTIME`: the exact one is read once for each tick of the coarse `CLOCK_MONOTONIC`, which
/// ticks on after a suspension, too.
#[inline]
fn recent_boottime() -> u64 {
    static TICK: AtomicU64 = AtomicU64::new(0);
    static TIME: AtomicU64 = AtomicU64::new(0);
    let tick = nanos(clock_gettime(ClockId::MonotonicCoarse));
    // SYNC: tick: whoever sees the tick sees the time that was read after it, or a later one.
    if TICK.load(Ordering::Acquire) == tick {
        return TIME.load(Ordering::Relaxed);
    }
    let time = nanos(clock_gettime(ClockId::Boottime));
    TIME.fetch_max(time, Ordering::Relaxed);
    // SYNC: tick (with the load above)
    TICK.store(tick, Ordering::Release);
    time
}

#[inline]
fn nanos(time: rustix::time::Timespec) -> u64 {
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A duration in nanoseconds, cut at `u64::MAX` (584 years).
pub fn saturating_nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The kernel's random identity of this boot: times stored under another one mean nothing now.
pub fn boot_id() -> Result<[u8; 16]> {
    kernel_uuid("/proc/sys/kernel/random/boot_id")
}

/// A new random identity, different at each call.
pub fn random_id() -> Result<[u8; 16]> {
    kernel_uuid("/proc/sys/kernel/random/uuid")
}

fn kernel_uuid(path: &str) -> Result<[u8; 16]> {
    let text = fs::read_to_string(path).map_err(|e| Error::io(format!("reading {path}"), e))?;
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let mut id = [0u8; 16];
    if digits.len() != 32 {
        return Err(Error::Format(format!("{path} holds {text:?}, not a uuid")));
    }
    for (byte, pair) in id.iter_mut().zip(digits.chunks(2)) {
        let pair = std::str::from_utf8(pair).expect("hex digits are ASCII");
        *byte = u8::from_str_radix(pair, 16).expect("checked to be hex digits");
    }
    Ok(id)
}

/// The inode of this process's time namespace: two processes with different ones disagree about `now`.
pub fn time_namespace() -> Result<u64> {
    const PATH: &str = "/proc/self/ns/time";
    match fs::metadata(PATH) {
        Ok(meta) => Ok(meta.ino()),
        // Kernels without time namespaces have but one clock.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(0),
        Err(e) => Err(Error::io(format!("reading {PATH}"), e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_clocks_move_forward() {
        for clock in [Clock::monotonic(), Clock::boottime()] {
            let before = clock.now();
            std::thread::sleep(Duration::from_millis(2));
            assert!(clock.now() >= before + 2_000_000);
        }
    }

    #[test]
    fn recent_is_never_late_and_never_long_ago() {
        for clock in [Clock::monotonic(), Clock::boottime(), Clock::manual()] {
            let mut last = 0;
            for _ in 0..200 {
                let (before, recent, after) = (clock.now(), clock.recent(), clock.now());
                assert!(last <= recent && recent <= after, "{last} {recent} {after}");
                // The thread that keeps the kernel's time may have to wait for a processor.
                assert!(before.saturating_sub(recent) < 1_000_000_000, "{before} {recent}");
                last = recent;
                std::thread::sleep(Duration::from_micros(300));
            }
        }
    }

    #[test]
    fn the_boot_has_one_identity() {
        assert_eq!(boot_id().unwrap(), boot_id().unwrap());
        assert_ne!(boot_id().unwrap(), [0; 16]);
    }

    #[test]
    fn durations_saturate() {
        assert_eq!(saturating_nanos(Duration::MAX), u64::MAX);
    }
}
