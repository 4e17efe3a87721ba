//! What the Python objects of one queue share: the queue, one writer, the reader's role, and whether it is closed.
//!
//! Both are behind locks that are held for the length of one attempt, never while waiting and never by somebody who waits for
//! the GIL: whoever holds the GIL may take them.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use pyo3::prelude::*;

use crate::aq::{Queue, Reader, Writer};
use crate::os::fork;
use crate::shared::signal::Wait;
use crate::{Error, Result};

use super::super::buffer::Exports;
use super::super::closable::Closable;
use super::super::wait::{Timeout, waiting};

/// The shared part of a queue's Python objects.
#[derive(Debug)]
pub(super) struct Handle {
    queue: Closable<Queue>,
    pub(super) path: Option<PathBuf>,
    /// Views of this queue's memory that are in use.
    exports: Mutex<Arc<Exports>>,
    writer: Mutex<Option<Writer>>,
    reader: Mutex<Option<Reader>>,
    reader_open: AtomicBool,
    generation: u32,
    /// The same for a forked child: a lock that some thread of the parent held at the fork stays locked for ever.
    child: OnceLock<Box<Handle>>,
}

impl Handle {
    pub(super) fn new(queue: Queue, path: Option<PathBuf>) -> Arc<Self> {
        Arc::new(Handle::over(Closable::new(Arc::new(queue)), path))
    }

    fn over(queue: Closable<Queue>, path: Option<PathBuf>) -> Self {
        Handle {
            queue,
            path,
            exports: Mutex::default(),
            writer: Mutex::default(),
            reader: Mutex::default(),
            reader_open: AtomicBool::new(false),
            generation: fork::generation(),
            child: OnceLock::new(),
        }
    }

    /// The handle of this very process.
    #[inline]
    fn here(&self) -> &Handle {
        if self.generation == fork::generation() {
            return self;
        }
        let child = self.child.get_or_init(|| {
            let queue = self.queue.get().map_or_else(|_| Closable::closed(), Closable::new);
            Box::new(Handle::over(queue, self.path.clone()))
        });
        child.here()
    }

    /// The queue, unless the handle was closed.
    #[inline]
    pub(super) fn open(&self) -> Result<Arc<Queue>> {
        self.here().queue.get()
    }

    /// Counts the views of the queue that is in the memory now.
    pub(super) fn exports(&self) -> Arc<Exports> {
        locked(&self.exports).clone()
    }

    /// Calls `use_it` with the writer of this process.
    #[inline]
    pub(super) fn with_writer<T>(&self, use_it: impl FnOnce(&Writer) -> Result<T>) -> Result<T> {
        let here = self.here();
        let mut writer = locked(&here.writer);
        if let Some(writer) = &*writer {
            return use_it(writer);
        }
        use_it(writer.insert(self.open()?.writer()?))
    }

    /// Calls `use_it` with the reader of this process, which takes the role if it has not got it.
    #[inline]
    pub(super) fn with_reader<T>(&self, use_it: impl FnOnce(&mut Reader) -> Result<T>) -> Result<T> {
        let here = self.here();
        let mut reader = locked(&here.reader);
        if let Some(reader) = &mut *reader {
            return use_it(reader);
        }
        use_it(reader.insert(self.open()?.reader()?))
    }

    /// Frees the room that the reader of this process still owes, if it is not at work right now.
    pub(super) fn give_back(&self) -> Result<()> {
        match self.here().reader.try_lock() {
            Ok(mut reader) => reader.as_mut().map_or(Ok(()), Reader::give_back),
            Err(_) => Ok(()),
        }
    }

    /// Takes the reader's role for a `Reader` object, of which there is one at a time.
    pub(super) fn open_reader(&self) -> Result<()> {
        self.with_reader(|_| Ok(()))?;
        if self.here().reader_open.swap(true, Ordering::Relaxed) {
            return Err(Error::AlreadyOpen("this handle has a reader: close it first".into()));
        }
        Ok(())
    }

    /// Gives the role up.
    pub(super) fn close_reader(&self) {
        let here = self.here();
        if here.reader_open.swap(false, Ordering::Relaxed) {
            locked(&here.reader).take();
        }
    }

    /// Forgets writer, reader and items, because the region is formatted anew. BufferError while memoryviews are in use.
    pub(super) fn format(&self, format: &crate::aq::Format) -> PyResult<()> {
        let queue = self.open()?;
        let mut exports = locked(&self.exports);
        let mut writer = locked(&self.here().writer);
        let mut reader = locked(&self.here().reader);
        exports.check_unused()?;
        let had_reader = reader.take().is_some();
        queue.format(format)?;
        // Still attached to the interpreter: no view was made in between.
        std::mem::take(&mut *exports).close_for_format();
        *writer = None;
        if had_reader {
            *reader = Some(queue.reader()?);
        }
        Ok(())
    }

    pub(super) fn close(&self) -> PyResult<()> {
        let here = self.here();
        locked(&self.exports).close()?;
        let queue = here.queue.close();
        locked(&here.writer).take();
        locked(&here.reader).take();
        drop(queue);
        Ok(())
    }

    /// Waits, detached, for what a commit may bring.
    pub(super) fn wait_for_commit<T: Send>(
        &self,
        py: Python<'_>,
        timeout: Timeout,
        mut attempt: impl FnMut(&mut Reader) -> Result<Option<T>> + Send,
    ) -> PyResult<Option<T>> {
        let wait = Wait::from_timeout(timeout.0);
        let queue = self.open()?;
        waiting(py, |idle| {
            queue.wait_for_commit(wait, idle, || self.with_reader(&mut attempt))
        })
    }

    /// Waits, detached, for room.
    pub(super) fn wait_for_room<T: Send>(
        &self,
        py: Python<'_>,
        timeout: Timeout,
        mut attempt: impl FnMut(&Writer) -> Result<Option<T>> + Send,
    ) -> PyResult<Option<T>> {
        let wait = Wait::from_timeout(timeout.0);
        let queue = self.open()?;
        waiting(py, |idle| {
            queue.wait_for_room(wait, idle, || {
                self.give_back()?;
                self.with_writer(&mut attempt)
            })
        })
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
