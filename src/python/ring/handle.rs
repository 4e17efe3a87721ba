//! What a Python ring object keeps: the ring until it is closed, and what can still be asked afterwards; and how its calls wait.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;

use super::super::closable::Closable;
use super::super::wait::{Timeout, waiting};
use crate::ring::{Message, Options, Queue};
use crate::shared::signal::Wait;
use crate::{Error, Result};

/// A ring that can be closed while others are in the middle of using it.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) queue: Closable<Queue>,
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
            path,
            options: queue.options(),
            max_len: queue.max_len(),
            msg_size: queue.msg_size(),
            message_bytes: queue.message_bytes(),
            queue: Closable::new(queue),
        }
    }

    /// The ring, unless the handle was closed.
    #[inline]
    pub(super) fn open(&self) -> Result<Arc<Queue>> {
        self.queue.get()
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
            Err(Error::TimedOut | Error::Full(_)) => self.put_slowly(py, queue, message, patience.wait()),
            Err(error) => Err(error.into()),
        }
    }

    /// Somebody is in the way: waits detached.
    #[cold]
    fn put_slowly(&self, py: Python<'_>, queue: &Queue, message: &[u8], wait: Wait) -> PyResult<()> {
        waiting(py, |idle| {
            let look_around = || {
                idle()?;
                self.queue.check()
            };
            match queue.enqueue_idling(message, wait, look_around) {
                Err(Error::TimedOut) => Err(Error::Full("a living participant keeps the header locked".into())),
                done => done.map(drop),
            }
        })
    }

    /// All of the messages, in batches. Those that somebody is in the way of are waited for one by one.
    pub(super) fn put_all(
        &self,
        py: Python<'_>,
        queue: &Queue,
        messages: &[&[u8]],
        patience: &mut Patience,
    ) -> PyResult<()> {
        let mut rest = messages;
        while let Some(first) = rest.first() {
            let mut put = queue.try_enqueue_many(rest)?;
            if put == 0 {
                self.put_slowly(py, queue, first, patience.wait())?;
                put = 1;
            }
            rest = &rest[put..];
        }
        Ok(())
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
                self.queue.check()
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
