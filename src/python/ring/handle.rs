//! What a Python ring object keeps: the ring until it is closed, and what can still be asked afterwards; and how its calls wait.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use super::super::wait::{Timeout, waiting};
use crate::ring::{Message, Options, Queue};
use crate::shared::signal::Wait;
use crate::{Error, Result};

/// How long one such wait lasts before signals are looked at.
const SLICE: Duration = Duration::from_millis(50);
/// A ring that can be closed while others are in the middle of using it.
#[derive(Debug)]
pub(super) struct Handle {
    /// Gone when the handle is closed, and with the last call that uses it this participant, the mapping and the descriptors.
    queue: Mutex<Option<Arc<Queue>>>,
    /// The same, reached without a lock.
    open: Weak<Queue>,
    closed: AtomicBool,
    pub(super) path: Option<PathBuf>,
    pub(super) options: Options,
    pub(super) max_len: u32,
    pub(super) msg_size: u32,
    pub(super) message_bytes: usize,
}

impl Handle {
    pub(super) fn new(queue: Queue, path: Option<PathBuf>) -> Self {
        let queue = Arc::new(queue);
        Handle {
            open: Arc::downgrade(&queue),
            closed: AtomicBool::new(false),
            path,
            options: queue.options(),
            max_len: queue.max_len(),
            msg_size: queue.msg_size(),
            message_bytes: queue.message_bytes(),
            queue: Mutex::new(Some(queue)),
        }
    }

    /// The ring, unless the handle was closed.
    #[inline]
    pub(super) fn open(&self) -> Result<Arc<Queue>> {
        self.open.upgrade().filter(|_| !self.is_closed()).ok_or(Error::Closed)
    }

    /// For those who wait: an error once somebody has closed the handle.
    pub(super) fn check(&self) -> Result<()> {
        if self.is_closed() { Err(Error::Closed) } else { Ok(()) }
    }

    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        // Held only by somebody who closes: right now, or (in a forked child) for ever at the moment of the fork.
        let queue = self.queue.try_lock().ok().and_then(|mut queue| queue.take());
        drop(queue);
    }

    #[inline]
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }
    #[inline]
    pub(super) fn put_within(
        &self,
        py: Python<'_>,
        queue: &Queue,
        message: &[u8],
        patience: &mut Patience,
    ) -> PyResult<()> {
        match queue.enqueue_within(message, Wait::No) {
            Ok(_) => Ok(()),
            Err(error @ (Error::TimedOut | Error::Full(_))) => {
                self.put_slowly(py, queue, message, patience.wait(), error)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Somebody is in the way: waits detached, in slices between which signals and `close` are seen.
    #[cold]
    fn put_slowly(&self, py: Python<'_>, queue: &Queue, message: &[u8], wait: Wait, first: Error) -> PyResult<()> {
        waiting(py, |idle| {
            let mut last = first;
            while let Some(slice) = wait.remaining(SLICE) {
                match queue.enqueue_within(message, Wait::Until(Instant::now() + slice)) {
                    Err(error @ (Error::TimedOut | Error::Full(_))) => last = error,
                    done => return done.map(drop),
                }
                idle()?;
                self.check()?;
            }
            Err(match last {
                Error::TimedOut => Error::Full("a living participant keeps the header locked".into()),
                last => last,
            })
        })
    }

    #[cold]
    pub(super) fn wait_for_message(
        &self,
        py: Python<'_>,
        queue: &Queue,
        timeout: Option<Timeout>,
    ) -> PyResult<Message> {
        let wait = Patience::new(timeout).wait();
        if wait == Wait::No {
            return Err(Error::Empty.into());
        }
        waiting(py, |idle| {
            let mut data = vec![0; queue.message_bytes()];
            let look_around = || {
                idle()?;
                self.check()
            };
            let sequence = queue.dequeue_into(&mut data, wait, look_around)?;
            Ok(Message { sequence, data })
        })
    }
}

/// The time that a call may take, however many messages it has: runs from the first wait on, because most calls have none.
pub(super) struct Patience {
    timeout: Timeout,
    wait: Option<Wait>,
}

impl Patience {
    /// None is for ever.
    #[inline]
    pub(super) fn new(timeout: Option<Timeout>) -> Self {
        Patience {
            timeout: timeout.unwrap_or(Timeout::FOREVER),
            wait: None,
        }
    }

    pub(super) fn wait(&mut self) -> Wait {
        *self.wait.get_or_insert_with(|| self.timeout.wait())
    }
}
