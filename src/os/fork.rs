//! Descriptors that must not outlive a fork.
//!
//! A lock of an open file description lives as long as any copy of its descriptor. A forked child that kept its parent's
//! descriptors would keep a dead parent "alive" for ever, so a `pthread_atfork` handler closes them in the child at once
//! (closing a copy releases nothing in the parent; unlocking would). Between opening a descriptor and registering it, and
//! between taking it out and closing it, the gate keeps a fork of another thread away ([`undivided`]).
//!
//! A lock that another thread holds when this one forks is held for ever in the child, where that thread does not exist. So
//! what a process has once is reached through the gate, which a child always finds open, and never by waiting for a thread.
//!
//! The child notices by [`generation`] that it has to take part anew.

use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering};

use crate::{Error, Result};

/// How many queue handles one process can have open at a time.
const CAPACITY: usize = 1 << 16;

/// Descriptor + 1 of each registered descriptor; 0 is a free place (so that the table costs no file space).
static DESCRIPTORS: [AtomicI32; CAPACITY] = [const { AtomicI32::new(0) }; CAPACITY];
/// No place at or above this was ever used.
static HIGH_WATER: AtomicUsize = AtomicUsize::new(0);
static GATE: AtomicBool = AtomicBool::new(false);
static GENERATION: AtomicU32 = AtomicU32::new(0);
static JOINING: AtomicBool = AtomicBool::new(false);
static INSTALLED: AtomicBool = AtomicBool::new(false);
/// The thread that forks and has closed the gate for that, in the way of [`this_thread`]; 0 is nobody.
static FORKING: AtomicUsize = AtomicUsize::new(0);

/// How many forks lie between this process and the one that loaded the library.
#[inline]
pub fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Runs `join` while no other thread of this process does, in a way that a fork in the middle cannot leave locked.
pub fn one_at_a_time<T>(join: impl FnOnce() -> T) -> T {
    lock(&JOINING);
    let _unlock = Unlock(&JOINING);
    join()
}

/// Runs `action` while no thread of this process forks, so that a child never finds it half done. It is short, and neither opens
/// nor closes a [`ForkClosed`].
pub fn undivided<T>(action: impl FnOnce() -> T) -> T {
    install();
    lock(&GATE);
    let _unlock = Unlock(&GATE);
    action()
}

/// A descriptor that a forked child closes before it runs anything else.
#[derive(Debug)]
pub struct ForkClosed {
    place: AtomicUsize,
    /// The generation in which `place` was filled; written after it.
    generation: AtomicU32,
}

impl ForkClosed {
    /// Opens a descriptor and registers it; no fork can happen in between.
    pub fn open(open: impl FnOnce() -> Result<OwnedFd>) -> Result<Self> {
        let place = undivided(|| register(open))?;
        Ok(ForkClosed {
            place: AtomicUsize::new(place),
            generation: AtomicU32::new(generation()),
        })
    }

    /// Opens a new descriptor in a forked child, where the inherited one is closed; the caller keeps other threads away.
    pub fn renew(&self, open: impl FnOnce() -> Result<OwnedFd>) -> Result<()> {
        debug_assert!(self.raw().is_none());
        self.place.store(undivided(|| register(open))?, Ordering::Relaxed);
        // SYNC: renewed descriptor (with `raw`)
        self.generation.store(generation(), Ordering::Release);
        Ok(())
    }

    /// The descriptor, or `None` in a forked child.
    #[inline]
    pub fn raw(&self) -> Option<RawFd> {
        // SYNC: renewed descriptor (with `renew`)
        if self.generation.load(Ordering::Acquire) != generation() {
            return None;
        }
        Some(DESCRIPTORS[self.place.load(Ordering::Relaxed)].load(Ordering::Relaxed) - 1)
    }
}

impl Drop for ForkClosed {
    fn drop(&mut self) {
        undivided(|| {
            // In a child the handler emptied the place, and it may belong to somebody else by now.
            if *self.generation.get_mut() == generation() {
                let descriptor = DESCRIPTORS[*self.place.get_mut()].swap(0, Ordering::Relaxed) - 1;
                close(descriptor);
            }
        });
    }
}

/// Opens a descriptor and finds it a place, with the gate closed.
fn register(open: impl FnOnce() -> Result<OwnedFd>) -> Result<usize> {
    let used = HIGH_WATER.load(Ordering::Relaxed);
    let free = (0..CAPACITY.min(used + 1)).find(|&i| DESCRIPTORS[i].load(Ordering::Relaxed) == 0);
    let Some(place) = free else {
        return Err(Error::Invalid(format!(
            "more than {CAPACITY} queue handles in one process"
        )));
    };
    let descriptor = open()?.into_raw_fd();
    DESCRIPTORS[place].store(descriptor + 1, Ordering::Relaxed);
    HIGH_WATER.store(used.max(place + 1), Ordering::Relaxed);
    Ok(place)
}

#[allow(unsafe_code)]
fn close(descriptor: RawFd) {
    // SAFETY: the descriptor came from `IntoRawFd` in `open`, and taking it out of the table made us its only owner.
    let owned = unsafe { OwnedFd::from_raw_fd(descriptor) };
    debug_assert!(owned.as_raw_fd() >= 0);
}

fn lock(flag: &AtomicBool) {
    while flag.swap(true, Ordering::Acquire) {
        std::thread::yield_now();
    }
}

struct Unlock(&'static AtomicBool);

impl Drop for Unlock {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Registers the handlers, at the first use. Nobody waits here for another thread that is at it: a child that is forked
/// meanwhile would wait for ever. So they may be registered more than once, and of several calls in one fork one counts.
fn install() {
    if !INSTALLED.load(Ordering::Acquire) {
        register_handlers();
        INSTALLED.store(true, Ordering::Release);
    }
}

#[cold]
#[allow(unsafe_code)]
fn register_handlers() {
    extern "C" fn before() {
        if FORKING.load(Ordering::Relaxed) != this_thread() {
            lock(&GATE);
            FORKING.store(this_thread(), Ordering::Relaxed);
        }
    }
    extern "C" fn in_parent() {
        if is_first_after_the_fork() {
            GATE.store(false, Ordering::Release);
        }
    }
    extern "C" fn in_child() {
        if !is_first_after_the_fork() {
            return;
        }
        for place in &DESCRIPTORS[..HIGH_WATER.load(Ordering::Relaxed)] {
            let descriptor = place.swap(0, Ordering::Relaxed) - 1;
            if descriptor >= 0 {
                close(descriptor);
            }
        }
        GENERATION.fetch_add(1, Ordering::Relaxed);
        JOINING.store(false, Ordering::Relaxed);
        GATE.store(false, Ordering::Release);
    }
    fn is_first_after_the_fork() -> bool {
        let me = this_thread();
        FORKING
            .compare_exchange(me, 0, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }
    // SAFETY: the handlers touch only statics, `pthread_self` and `close(2)`, which are safe between fork and exec.
    let failed = unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    assert_eq!(failed, 0, "pthread_atfork has no memory left");
}

/// A number that no other living thread of this process has, and that the thread keeps in a forked child; never 0.
#[allow(unsafe_code)]
fn this_thread() -> usize {
    // SAFETY: it takes nothing and cannot fail.
    let thread = unsafe { libc::pthread_self() };
    thread as usize
}
