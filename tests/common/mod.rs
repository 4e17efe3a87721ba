//! Test machinery shared by every queue: real processes, real kills, one oracle.
//!
//! | file | one idea |
//! |---|---|
//! | [`dirs`] | temporary directories: the queue's files apart from the test's own files |
//! | [`worker`] | real worker processes: spawn, ready, go, kill -9, stop/continue, wait with a deadline |
//! | [`journal`] | what a worker was doing, in a private mapped file that survives kill -9 |
//! | [`payload`] | messages that describe and check themselves |
//! | [`oracle`] | journals + what is left -> lost, unexpected, duplicates, order, CRC |
//! | [`watchdog`] | a hang becomes a failure with stacks |
//! | [`image`] | every file of a queue as bytes: read, write, compare |
//! | [`stepkill`] | kill at every instruction boundary and recover each distinct image (x86-64) |
//! | `tracee`, `live_files`, `stepkill_report` | its parts: ptrace, the files while they change, the figures |
//! | [`cuts`] | file writes cut between and inside |
//! | [`corrupt`] | every bit flip, truncation and boundary value, opened in sacrificial processes (`mutation`, `corrupt_report` are its parts) |
//! | [`hostile`] | a peer that scribbles over metadata while the victim works |
//! | [`aq_ring`], [`ring_scene`] | what the tests of one queue share |
//! | [`mapped`], [`process`] | the two homes of `unsafe`: mapped words, fork |
//!
//! A kill test from end to end (`tests/testkit_selftest.rs` has it in full):
//!
//! ```ignore
//! mod common;
//! use common::{dirs::TestDir, oracle::{Oracle, Promise}, payload, watchdog::Watchdog, worker::{self, Args, Spawn}};
//! #[test] fn worker_main() { worker::dispatch(&[("producer", producer)]) }       // once per test file
//! fn producer(args: &Args) {                                                    // runs in a process of its own
//!     let (queue, mut journal) = (Queue::open(&args.path("queue")), args.journal());
//!     args.ready();
//!     for sequence in 0.. {
//!         let message = payload::make(args.get("id"), sequence, 100);
//!         let ticket = journal.attempt_put(0, &message);
//!         match queue.enqueue(&message) { Ok(()) => journal.acknowledged(ticket), Err(_) => journal.failed(ticket) }
//!     }
//! }
//! #[test] fn a_killed_producer_loses_nothing() {
//!     let (dir, _dog) = (TestDir::shm(), Watchdog::start("killed producer", Duration::from_secs(60)));
//!     let mut p = Spawn::new(&dir, "producer").arg("queue", dir.queue().join("q").display()).arg("id", 1).journal(100_000).start();
//!     p.wait_ready(); sleep(Duration::from_millis(5)); p.kill();
//!     Oracle::new(Promise::exactly_once()).journal(&p.journal()).left(0, drain_what_is_left()).check().assert_ok("one producer");
//! }
//! ```
//!
//! `Spawn::new(..).start_forked(|args| ...)` runs a closure in a forked child instead: no `worker_main`, captures what it
//! likes, several times cheaper. Such a child must not print (it panics to report) and must not touch handles of the parent.

// Each test binary uses a part of this tree, and all of it is private to that binary.
#![allow(dead_code, unreachable_pub, missing_debug_implementations)]

pub mod aq_ring;
pub mod corrupt;
mod corrupt_report;
pub mod cuts;
pub mod dirs;
pub mod hostile;
pub mod image;
pub mod journal;
mod live_files;
pub mod mapped;
pub mod mutation;
pub mod oracle;
pub mod payload;
pub mod process;
pub mod ring_scene;
pub mod stepkill;
mod stepkill_report;
pub mod tracee;
pub mod watchdog;
pub mod worker;

use std::time::Duration;

/// True in the long tier (`make soak`, environment variable `TAILRACE_SOAK=1`).
pub fn soak() -> bool {
    std::env::var_os("TAILRACE_SOAK").is_some_and(|value| !value.is_empty() && value != "0")
}

/// The number of rounds for this tier.
pub fn rounds(quick: u64, full: u64) -> u64 {
    if soak() { full } else { quick }
}

/// The time to spend in this tier.
pub fn period(quick: Duration, full: Duration) -> Duration {
    if soak() { full } else { quick }
}

/// True when this process may mount, unshare and change owners.
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// `if skip_without_root("loop mounts") { return; }`: skips visibly, never silently.
pub fn skip_without_root(reason: &str) -> bool {
    if is_root() {
        return false;
    }
    announce(&format!("SKIPPED, needs root: {reason}"));
    true
}

/// A line that libtest does not capture: figures and skips must be seen in a passing run too.
pub fn announce(line: &str) {
    process::write_stderr(&format!("[testkit] {line}\n"));
}

/// Polls until `ready` holds; false when the time is up. For conditions, never for timing assertions.
pub fn wait_until(limit: Duration, mut ready: impl FnMut() -> bool) -> bool {
    let start = std::time::Instant::now();
    let mut turns = 0_u32;
    loop {
        if ready() {
            return true;
        }
        if start.elapsed() >= limit {
            return ready();
        }
        turns += 1;
        match turns {
            0..50 => std::thread::yield_now(),
            50..500 => std::thread::sleep(Duration::from_micros(50)),
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// CLOCK_MONOTONIC in nanoseconds: comparable between the processes of one test.
pub fn now_ns() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(t.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(t.tv_nsec).unwrap_or(0)
}
