//! `tailrace.qewqew`: the durable queue.

mod batches;
mod describe;
mod ranges;
mod staging;

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};

use self::batches::filled;
use self::ranges::RangeReader;
use super::arrow::{BatchBuilder, MessageBatch, pyarrow};
use super::buffer::Payload;
use super::closable::Closable;
use super::messages::Messages;
use super::number::{whole, whole_or_none};
use super::wait::{Timeout, waiting};
use crate::qewqew::{self as core, Change, Options};
use crate::shared::signal::Wait;
use crate::{Error, Result};

/// The durable queue.
#[pymodule]
pub(crate) mod qewqew {
    #[pymodule_export]
    use super::DurableQueue;
    #[pymodule_export]
    use super::ranges::{RangeBatches, RangeReader};
    #[pymodule_export]
    use super::staging::{_adopt, _publish_chunk, _publish_framed, _unframed, Stage};
}

/// The most messages whose places a batch reserves in advance; more come as they come.
const RESERVE: usize = 1 << 16;

/// A first-in-first-out queue that outlives the process, the reboot and the power cut.
///
/// >>> import os, tempfile
/// >>> from tailrace import qewqew
/// >>> path = os.path.join(tempfile.mkdtemp(), "spool")
/// >>> with qewqew.DurableQueue(path) as spool:
/// ...     spool.enqueue(b"first")
/// ...     spool.enqueue(b"second")
/// >>> with qewqew.DurableQueue(path) as spool:
/// ...     spool.peek(), spool.dequeue(), spool.dequeue(), spool.dequeue()
/// (b'first', b'first', b'second', None)
#[pyclass(frozen, module = "tailrace.qewqew", name = "DurableQueue")]
#[derive(Debug)]
pub(crate) struct DurableQueue {
    queue: Closable<core::DurableQueue>,
    path: PathBuf,
    options: Options,
    chunk_size: u32,
    max_element_size: u32,
    waits_when_full: bool,
}

#[pymethods]
impl DurableQueue {
    /// Opens the queue whose head file is `path`, or creates it.
    #[new]
    #[pyo3(signature = (path, chunk_size=1048576, sync="always", role="both", *, crc=false, network=false, max_bytes=None, when_full="refuse", create=true))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of a Python constructor")]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        #[pyo3(from_py_with = whole)] chunk_size: u64,
        sync: &str,
        role: &str,
        crc: bool,
        network: bool,
        #[pyo3(from_py_with = whole_or_none)] max_bytes: Option<u64>,
        when_full: &str,
        create: bool,
    ) -> PyResult<Self> {
        let options = Options {
            chunk_size,
            sync: one_of("sync", sync, &describe::SYNC_MODES)?,
            role: one_of("role", role, &describe::ROLES)?,
            crc,
            network,
            max_bytes,
            create,
            observer: None,
        };
        let waits_when_full = one_of("when_full", when_full, &[("refuse", false), ("wait", true)])?;
        let own = options.clone();
        let queue = waiting(py, |idle| core::DurableQueue::open_with(&path, own, idle))?;
        Ok(DurableQueue {
            chunk_size: queue.chunk_size(),
            max_element_size: queue.max_element_size(),
            queue: Closable::new(Arc::new(queue)),
            path,
            options,
            waits_when_full,
        })
    }

    /// Where the head file is.
    #[getter]
    fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// Bytes of new chunk files.
    #[getter]
    fn chunk_size(&self) -> u32 {
        self.chunk_size
    }

    /// Bytes of the longest message.
    #[getter]
    fn max_element_size(&self) -> u32 {
        self.max_element_size
    }

    /// Appends a message.
    fn enqueue(&self, py: Python<'_>, data: Payload<'_>) -> PyResult<()> {
        let queue = self.queue()?;
        if queue.try_enqueue_now(data.as_bytes()).or_else(self.maybe_later())? {
            return Ok(());
        }
        self.append(py, &[data.as_bytes()], self.policy())
    }

    /// Appends messages in order, with as few syncs as possible.
    fn enqueue_many(&self, py: Python<'_>, messages: Messages<'_>) -> PyResult<()> {
        self.append_all(py, &messages, self.policy())
    }

    /// The first message, which stays; None when there is none within the timeout.
    #[pyo3(signature = (timeout=Timeout::ZERO), text_signature = "($self, timeout=0)")]
    fn peek<'py>(&self, py: Python<'py>, timeout: Timeout) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let found = self.wait_for(py, timeout, |queue| queue.peek())?;
        Ok(found.map(|message| PyBytes::new(py, &message)))
    }

    /// Removes and returns the first message; None when there is none within the timeout.
    #[pyo3(signature = (timeout=Timeout::ZERO), text_signature = "($self, timeout=0)")]
    fn dequeue<'py>(&self, py: Python<'py>, timeout: Timeout) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let (mut message, mut raised) = (None, None);
        let done = self.queue()?.try_dequeue_now(1, |length, fill| {
            message = filled(py, length, fill, &mut raised)?;
            Ok(message.is_some())
        })?;
        if let Some(error) = raised {
            return Err(error);
        }
        match done {
            Some(1..) => Ok(message),
            Some(0) if timeout == Timeout::ZERO => Ok(None),
            _ => {
                let found = self.wait_for(py, timeout, |queue| queue.dequeue())?;
                Ok(found.map(|message| PyBytes::new(py, &message)))
            }
        }
    }

    /// Removes and returns the first message if the predicate holds for it; None when it does not, or none came in time.
    #[pyo3(signature = (predicate, timeout=Timeout::ZERO), text_signature = "($self, predicate, timeout=0)")]
    fn dequeue_if<'py>(
        &self,
        py: Python<'py>,
        predicate: &Bound<'py, PyAny>,
        timeout: Timeout,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        if !predicate.is_callable() {
            return Err(PyTypeError::new_err("predicate must be callable"));
        }
        let wait = Wait::from_timeout(timeout.0);
        loop {
            let found = self.wait_until(py, wait, |queue| {
                let mut message = Vec::new();
                let peeked = queue.peek_with(|length, fill| {
                    message.resize(length, 0);
                    fill(&mut message)
                })?;
                Ok(peeked.map(|peeked| (peeked, message)))
            })?;
            let Some((peeked, message)) = found else {
                return Ok(None);
            };
            let message = PyBytes::new(py, &message);
            // No lock is held: the predicate may do anything, even use the queue.
            if !predicate.call1((&message,))?.is_truthy()? {
                return Ok(None);
            }
            if self.detached(py, |queue| queue.dequeue_peeked(peeked))? {
                return Ok(Some(message));
            }
        }
    }

    /// Removes and returns up to n messages, those that are there.
    fn dequeue_many<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = whole)] n: usize,
    ) -> PyResult<Bound<'py, PyList>> {
        Ok(self.take(py, n, Timeout::ZERO)?.unwrap_or_else(|| PyList::empty(py)))
    }

    /// Removes all messages; False when there were none.
    fn clear(&self, py: Python<'_>) -> PyResult<bool> {
        self.detached(py, core::DurableQueue::clear)
    }

    /// Whether there is no message.
    fn is_empty(&self) -> PyResult<bool> {
        Ok(self.queue()?.is_empty()?)
    }

    /// How many chunk files hold the queue; 0 when it is empty.
    fn count_chunks(&self, py: Python<'_>) -> PyResult<usize> {
        self.detached(py, core::DurableQueue::count_chunks)
    }

    /// Makes everything that was enqueued before this call survive a power cut.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.detached(py, core::DurableQueue::sync)
    }

    /// Closes the handle; the last one to close an empty queue removes its files.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        match self.queue.close() {
            Some(queue) => waiting(py, |idle| queue.close_with(idle)),
            None => Ok(()),
        }
    }

    /// The position of the first unread message.
    #[getter]
    fn head_position(&self, py: Python<'_>) -> PyResult<u64> {
        self.detached(py, core::DurableQueue::head_position)
    }

    /// The position behind the last message.
    #[getter]
    fn tail_position(&self, py: Python<'_>) -> PyResult<u64> {
        self.detached(py, core::DurableQueue::tail_position)
    }

    /// The messages from position start up to end, which stay.
    fn read_range<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = whole)] start: u64,
        #[pyo3(from_py_with = whole)] end: u64,
    ) -> PyResult<Bound<'py, PyList>> {
        ranges::read_range(py, &self.detached(py, core::DurableQueue::ranges)?, start, end)
    }

    /// A reader of ranges for the same files: it takes no lock, and it can be pickled.
    fn ranges(&self, py: Python<'_>) -> PyResult<RangeReader> {
        let queue = self.queue()?;
        waiting(py, |_| queue.ranges()).map(|reader| RangeReader::of(&queue, reader))
    }

    /// Consumes everything before a position; whole consumed chunks are removed.
    fn commit(&self, py: Python<'_>, #[pyo3(from_py_with = whole)] position: u64) -> PyResult<()> {
        self.detached(py, |queue| queue.commit(position))
    }

    /// Looks at every message and checksum, and changes nothing.
    fn verify<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let report = self.detached(py, core::DurableQueue::verify)?;
        describe::report(py, &report)
    }

    /// Takes what is damaged out of the queue and puts it aside, so that the rest can be read.
    fn repair<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let report = self.detached(py, core::DurableQueue::repair)?;
        describe::report(py, &report)
    }

    /// What there is to know about the queue.
    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let queue = self.queue()?;
        let info = waiting(py, |_| queue.info())?;
        describe::info(py, &queue, &info)
    }

    /// Appends a message; waits for room below max_bytes.
    #[pyo3(signature = (data, timeout=Timeout::FOREVER), text_signature = "($self, data, timeout=None)")]
    fn put(&self, py: Python<'_>, data: Payload<'_>, timeout: Timeout) -> PyResult<()> {
        let queue = self.queue()?;
        if queue.try_enqueue_now(data.as_bytes()).or_else(later_when_full)? {
            return Ok(());
        }
        self.append(py, &[data.as_bytes()], timeout)
    }

    /// Removes and returns the first message; waits for one.
    #[pyo3(signature = (timeout=Timeout::FOREVER), text_signature = "($self, timeout=None)")]
    fn get<'py>(&self, py: Python<'py>, timeout: Timeout) -> PyResult<Bound<'py, PyBytes>> {
        Ok(self.dequeue(py, timeout)?.ok_or(Error::Empty)?)
    }

    /// Appends messages in order, as many at a time as there is room for below max_bytes.
    #[pyo3(signature = (messages, timeout=Timeout::FOREVER), text_signature = "($self, messages, timeout=None)")]
    fn put_many(&self, py: Python<'_>, messages: Messages<'_>, timeout: Timeout) -> PyResult<()> {
        self.append_all(py, &messages, timeout)
    }

    /// Removes and returns up to n messages: waits for the first like get, and takes the others that are there.
    #[pyo3(signature = (n, timeout=Timeout::FOREVER), text_signature = "($self, n, timeout=None)")]
    fn get_many<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = whole)] n: usize,
        timeout: Timeout,
    ) -> PyResult<Bound<'py, PyList>> {
        Ok(self.take(py, n, timeout)?.ok_or(Error::Empty)?)
    }

    /// As get_many, as one Arrow array.
    #[pyo3(signature = (n, timeout=Timeout::FOREVER), text_signature = "($self, n, timeout=None)")]
    fn get_arrow<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = whole)] n: usize,
        timeout: Timeout,
    ) -> PyResult<Bound<'py, PyAny>> {
        pyarrow(py)?;
        let fill = |queue: &core::DurableQueue| {
            let mut builder = BatchBuilder::with_capacity(n.min(RESERVE), 0);
            let count = queue.dequeue_many_with(n, |length, fill| {
                if length > builder.room() {
                    return Ok(false);
                }
                builder.append_with(length, |bytes| fill(bytes)).map(|()| true)
            })?;
            builder.truncate(count);
            Ok((n == 0 || builder.len() > 0).then_some(builder))
        };
        let builder = self.wait_for(py, timeout, fill)?.ok_or(Error::Empty)?;
        MessageBatch::to_pyarrow(&Bound::new(py, builder.finish()?)?)
    }

    /// How many messages there are, by counting them.
    fn qsize(&self, py: Python<'_>) -> PyResult<u64> {
        self.detached(py, core::DurableQueue::len)
    }

    /// Waits until there may be a message, and takes none: for asyncio.
    fn _wait_readable(&self, py: Python<'_>, timeout: Timeout) -> PyResult<bool> {
        let arrived = self.wait_for(py, timeout, |queue| Ok((!queue.is_empty()?).then_some(())))?;
        Ok(arrived.is_some())
    }

    /// Whether there is no message.
    fn empty(&self) -> PyResult<bool> {
        self.is_empty()
    }

    /// Whether not even an empty message has room below max_bytes.
    fn full(&self, py: Python<'_>) -> PyResult<bool> {
        let Some(limit) = self.options.max_bytes else {
            self.queue()?.is_empty()?;
            return Ok(false);
        };
        let unread = self.detached(py, core::DurableQueue::unread_bytes)?;
        Ok(unread.saturating_add(2) > limit)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    /// The next message; the iteration ends when the queue is empty.
    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        self.dequeue(py, Timeout::ZERO)
    }

    /// Handles travel as what they were opened with; one queue has one consumer, wherever that is.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let reopen = py.import("tailrace.qewqew")?.getattr("_reopen")?;
        let options = describe::options(py, &self.options, self.waits_when_full)?;
        let path = self.path.clone();
        Ok((reopen, (path, options).into_pyobject(py)?))
    }

    fn __repr__(&self) -> String {
        let options = &self.options;
        let (sync, role) = (
            describe::name_of(options.sync, &describe::SYNC_MODES),
            describe::name_of(options.role, &describe::ROLES),
        );
        format!(
            "<tailrace.qewqew.DurableQueue {:?} sync={sync:?} role={role:?}>",
            self.path.display().to_string()
        )
    }
}

impl DurableQueue {
    /// The queue, for one call.
    #[inline]
    fn queue(&self) -> Result<Arc<core::DurableQueue>> {
        self.queue.get()
    }

    /// Runs one operation without the GIL.
    fn detached<T: Send>(
        &self,
        py: Python<'_>,
        operation: impl FnOnce(&core::DurableQueue) -> Result<T> + Send,
    ) -> PyResult<T> {
        let queue = self.queue()?;
        waiting(py, |_| operation(&queue))
    }

    /// How long the document's own verbs wait for room.
    fn policy(&self) -> Timeout {
        if self.waits_when_full {
            Timeout::FOREVER
        } else {
            Timeout::ZERO
        }
    }

    fn maybe_later(&self) -> impl FnOnce(Error) -> Result<bool> {
        let waits = self.waits_when_full;
        move |error| if waits { later_when_full(error) } else { Err(error) }
    }

    fn append(&self, py: Python<'_>, messages: &[&[u8]], timeout: Timeout) -> PyResult<()> {
        let wait = Wait::from_timeout(timeout.0);
        let queue = &*self.queue()?;
        waiting(py, |idle| append_in_time(queue, wait, idle, messages))
    }

    /// Makes one attempt, and then waits for messages without the GIL.
    fn wait_for<T: Send>(
        &self,
        py: Python<'_>,
        timeout: Timeout,
        attempt: impl FnMut(&core::DurableQueue) -> Result<Option<T>> + Send,
    ) -> PyResult<Option<T>> {
        self.wait_until(py, Wait::from_timeout(timeout.0), attempt)
    }

    fn wait_until<T: Send>(
        &self,
        py: Python<'_>,
        wait: Wait,
        mut attempt: impl FnMut(&core::DurableQueue) -> Result<Option<T>> + Send,
    ) -> PyResult<Option<T>> {
        let queue = &*self.queue()?;
        waiting(py, |idle| queue.waiting(Change::Arrival, wait, idle, || attempt(queue)))
    }
}

/// Appends messages, all or none, as soon as there is room.
fn append_in_time(
    queue: &core::DurableQueue,
    wait: Wait,
    idle: &mut dyn FnMut() -> Result<()>,
    messages: &[&[u8]],
) -> Result<()> {
    let mut full = None;
    let done = queue.waiting(Change::Room, wait, idle, || match queue.enqueue_many(messages) {
        Err(Error::Full(text)) => {
            full = Some(text);
            Ok(None)
        }
        done => done.map(Some),
    })?;
    done.ok_or_else(|| Error::Full(full.unwrap_or_default()))
}

/// Full now is a reason to wait, not to fail.
fn later_when_full(error: Error) -> Result<bool> {
    match error {
        Error::Full(_) => Ok(false),
        other => Err(other),
    }
}

/// The value with this name, or an error that lists the names.
fn one_of<T: Copy>(argument: &str, given: &str, values: &[(&str, T)]) -> PyResult<T> {
    values
        .iter()
        .find(|(name, _)| *name == given)
        .map(|(_, value)| *value)
        .ok_or_else(|| {
            let names: Vec<String> = values.iter().map(|(name, _)| format!("{name:?}")).collect();
            PyValueError::new_err(format!("{argument} must be one of {}, not {given:?}", names.join(", ")))
        })
}
