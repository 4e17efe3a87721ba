//! What a Python object opened, until it is closed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use crate::{Error, Result};

/// Something that can be closed while others are in the middle of using it: with the last call that still does, its mappings
/// and descriptors go.
#[derive(Debug)]
pub(crate) struct Closable<T> {
    kept: Mutex<Option<Arc<T>>>,
    /// The same, reached without a lock.
    open: Weak<T>,
    closed: AtomicBool,
}

impl<T> Closable<T> {
    pub(crate) fn new(open: Arc<T>) -> Self {
        Closable {
            open: Arc::downgrade(&open),
            kept: Mutex::new(Some(open)),
            closed: AtomicBool::new(false),
        }
    }

    /// One that was closed before it was made.
    pub(crate) fn closed() -> Self {
        Closable {
            open: Weak::new(),
            kept: Mutex::new(None),
            closed: AtomicBool::new(true),
        }
    }

    /// For one call.
    #[inline]
    pub(crate) fn get(&self) -> Result<Arc<T>> {
        self.open.upgrade().filter(|_| !self.is_closed()).ok_or(Error::Closed)
    }

    /// For those who wait: an error once somebody has closed it.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_closed() { Err(Error::Closed) } else { Ok(()) }
    }

    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Closes it; gives what was open to the first one to do so.
    pub(crate) fn close(&self) -> Option<Arc<T>> {
        self.closed.store(true, Ordering::Relaxed);
        // Held only by somebody who closes: right now, or (in a forked child) for ever at the moment of the fork.
        self.kept.try_lock().ok().and_then(|mut kept| kept.take())
    }
}
