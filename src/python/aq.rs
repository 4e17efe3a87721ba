//! `tailrace.aq`: the allocating queue.

mod arguments;
mod batches;
mod handle;
mod in_hand;
mod info;
mod item;
mod roles;
mod room;

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple, PyType};

use self::arguments::{absolute, format};
use self::batches::copied;
use self::handle::Handle;
use self::item::Item;
use self::roles::{Reader, Writer};
use super::buffer::{Payload, message_bytes, region_over};
use super::messages::Messages;
use super::number::{whole, whole_or_none};
use super::wait::{Timeout, waiting};
use crate::Error;
use crate::aq as core;
use crate::shared::region::Region;
use crate::shared::signal::Wait;

/// The allocating queue.
#[pymodule]
pub(crate) mod aq {
    #[pymodule_export]
    use super::Queue;
    #[pymodule_export]
    use super::in_hand::{_look, InHand};
    #[pymodule_export]
    use super::item::Item;
    #[pymodule_export]
    use super::roles::{Reader, Writer};
    #[pymodule_export]
    use super::room::{_room_mark, _wait_room};
}

/// A multi-producer, single-consumer queue whose items live in the queue's own memory.
///
/// >>> from tailrace import aq
/// >>> with aq.Queue.anonymous(size=1 << 16) as q:
/// ...     q.put(b"hello")
/// ...     q.qsize(), q.get(timeout=1)
/// (1, b'hello')
#[pyclass(frozen, module = "tailrace.aq", name = "Queue")]
#[derive(Debug)]
pub(crate) struct Queue {
    handle: Arc<Handle>,
    /// How to say that it cannot be pickled.
    kind: &'static str,
}

#[pymethods]
impl Queue {
    /// Creates the file at `path` with a queue of `size` bytes; its owner record comes on top.
    #[classmethod]
    #[pyo3(signature = (path, size=1048576, page_size=64, commit_timeout=0.5, crc32=false, link_identifier=false, extendable=false))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of a Python constructor")]
    fn create(
        _class: &Bound<'_, PyType>,
        py: Python<'_>,
        path: PathBuf,
        #[pyo3(from_py_with = whole)] size: usize,
        #[pyo3(from_py_with = whole)] page_size: u64,
        commit_timeout: f64,
        crc32: bool,
        link_identifier: bool,
        extendable: bool,
    ) -> PyResult<Self> {
        let format = format(page_size, commit_timeout, crc32, link_identifier, extendable)?;
        let path = absolute(path)?;
        let queue = py.detach(|| core::Queue::create(&path, size, &format))?;
        Ok(Queue::new(queue, Some(path), "file"))
    }

    /// Opens an existing queue file, whoever formatted it.
    #[classmethod]
    fn open(_class: &Bound<'_, PyType>, py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let path = absolute(path)?;
        let queue = py.detach(|| core::Queue::open(&path))?;
        Ok(Queue::new(queue, Some(path), "file"))
    }

    /// Memory without a name, for the threads of this process and its forked children.
    #[classmethod]
    #[pyo3(signature = (size=1048576, page_size=64, commit_timeout=0.5, crc32=false, link_identifier=false, extendable=false))]
    fn anonymous(
        _class: &Bound<'_, PyType>,
        #[pyo3(from_py_with = whole)] size: usize,
        #[pyo3(from_py_with = whole)] page_size: u64,
        commit_timeout: f64,
        crc32: bool,
        link_identifier: bool,
        extendable: bool,
    ) -> PyResult<Self> {
        let format = format(page_size, commit_timeout, crc32, link_identifier, extendable)?;
        Ok(Queue::new(core::Queue::anonymous(size, &format)?, None, "anonymous"))
    }

    /// Memory of this process alone.
    #[classmethod]
    #[pyo3(signature = (size=1048576, page_size=64, commit_timeout=0.5, crc32=false, link_identifier=false, extendable=false))]
    fn heap(
        _class: &Bound<'_, PyType>,
        #[pyo3(from_py_with = whole)] size: usize,
        #[pyo3(from_py_with = whole)] page_size: u64,
        commit_timeout: f64,
        crc32: bool,
        link_identifier: bool,
        extendable: bool,
    ) -> PyResult<Self> {
        let format = format(page_size, commit_timeout, crc32, link_identifier, extendable)?;
        Ok(Queue::new(core::Queue::heap(size, &format)?, None, "heap"))
    }

    /// A queue in a writable buffer of the caller's. Formats it when a format is given, else attaches to what is in it.
    #[classmethod]
    #[pyo3(signature = (buffer, *, page_size=None, commit_timeout=None, crc32=None, link_identifier=None, extendable=None))]
    fn over(
        _class: &Bound<'_, PyType>,
        buffer: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = whole_or_none)] page_size: Option<u64>,
        commit_timeout: Option<f64>,
        crc32: Option<bool>,
        link_identifier: Option<bool>,
        extendable: Option<bool>,
    ) -> PyResult<Self> {
        let given = page_size.is_some()
            || commit_timeout.is_some()
            || [crc32, link_identifier, extendable].iter().any(Option::is_some);
        let format = format(
            page_size.unwrap_or(64),
            commit_timeout.unwrap_or(0.5),
            crc32.unwrap_or(false),
            link_identifier.unwrap_or(false),
            extendable.unwrap_or(false),
        )?;
        let region: Region = region_over(buffer)?;
        let queue = core::Queue::over(region)?;
        if given {
            queue.format(&format)?;
        }
        Ok(Queue::new(queue, None, "buffer"))
    }

    /// Formats the region anew: whatever was in it is gone. Needs the reader's role; no writer may be at work. BufferError
    /// while memoryviews of items are in use.
    #[pyo3(signature = (page_size=64, commit_timeout=0.5, crc32=false, link_identifier=false, extendable=false))]
    fn format(
        &self,
        #[pyo3(from_py_with = whole)] page_size: u64,
        commit_timeout: f64,
        crc32: bool,
        link_identifier: bool,
        extendable: bool,
    ) -> PyResult<()> {
        let format = format(page_size, commit_timeout, crc32, link_identifier, extendable)?;
        self.handle.format(&format)
    }

    /// Whether the region holds a queue.
    #[getter]
    fn is_formatted(&self) -> PyResult<bool> {
        Ok(self.handle.open()?.is_formatted())
    }

    /// Bytes of a page; 0 when the region is not formatted.
    #[getter]
    fn page_size(&self) -> PyResult<usize> {
        Ok(self
            .handle
            .open()?
            .geometry()
            .map_or(0, |geometry| geometry.page_size()))
    }

    /// Pages in the ring; 0 when the region is not formatted.
    #[getter]
    fn page_count(&self) -> PyResult<u32> {
        Ok(self.handle.open()?.geometry().map_or(0, |geometry| geometry.page_count))
    }

    /// Bytes of the region.
    #[getter]
    fn memory_size(&self) -> PyResult<usize> {
        Ok(self.handle.open()?.memory_size())
    }

    /// Bytes of the largest claim that would succeed now.
    #[getter]
    fn available_size(&self) -> PyResult<usize> {
        self.handle.give_back()?;
        Ok(self.handle.open()?.available_size()?)
    }

    /// Whether items can grow.
    #[getter]
    fn is_extendable(&self) -> PyResult<bool> {
        Ok(self.handle.open()?.geometry()?.options.extendable)
    }

    /// Seconds until an uncommitted claim counts as expired.
    #[getter]
    fn commit_timeout(&self) -> PyResult<f64> {
        Ok(f64::from(self.handle.open()?.geometry()?.commit_timeout_ms) / 1000.0)
    }

    /// How often writers lost a race for the head.
    #[getter]
    fn claim_contention_count(&self) -> PyResult<u32> {
        Ok(self.handle.open()?.claim_contention_count()?)
    }

    /// +1 with every committed segment; wraps at 32 bits.
    #[getter]
    fn commit_counter(&self) -> PyResult<u32> {
        Ok(self.handle.open()?.commit_counter()?)
    }

    /// +1 with every freed run of pages; wraps at 32 bits.
    #[getter]
    fn free_counter(&self) -> PyResult<u32> {
        self.handle.give_back()?;
        Ok(self.handle.open()?.free_counter()?)
    }

    /// Incomplete items that were skipped by `get` or reaped.
    #[getter]
    fn incomplete_count(&self) -> PyResult<u64> {
        Ok(self.handle.open()?.incomplete_count()?)
    }

    /// Items that were skipped by `get` because their checksum was wrong.
    #[getter]
    fn corrupt_count(&self) -> PyResult<u64> {
        Ok(self.handle.open()?.corrupt_count()?)
    }

    /// Where the queue file is; None for memory without a name.
    #[getter]
    fn path(&self) -> Option<PathBuf> {
        self.handle.path.clone()
    }

    /// A writer; there can be any number.
    fn writer(&self) -> PyResult<Writer> {
        Writer::new(&self.handle)
    }

    /// The reader, of which there is one on the host: AlreadyOpen.
    fn reader(&self) -> PyResult<Reader> {
        Reader::new(&self.handle)
    }

    /// A complete copy of what is in the ring: items, oldest first.
    fn snapshot<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let queue = self.handle.open()?;
        let snapshot = py.detach(|| queue.snapshot())?;
        let items: Vec<Py<Item>> = snapshot
            .items()
            .iter()
            .map(|shown| Item::of_snapshot(py, &self.handle, shown))
            .collect::<PyResult<_>>()?;
        PyTuple::new(py, items)
    }

    /// Gives up every claim that has expired or whose writer is dead, however much room there is, and frees what can be
    /// freed. Says how many claims that were. Takes the reader's role.
    fn reap(&self) -> PyResult<usize> {
        Ok(self.handle.with_reader(core::Reader::reap)?)
    }

    /// Puts a message. Waits for room; QueueFull when the time is up, MessageTooLarge when it can never fit.
    #[pyo3(signature = (data, timeout=Timeout::FOREVER), text_signature = "($self, data, timeout=None)")]
    fn put(&self, py: Python<'_>, data: Payload<'_>, timeout: Timeout) -> PyResult<()> {
        let bytes = data.as_bytes();
        if self
            .handle
            .with_writer(|writer| writer.try_put(bytes))
            .map_err(|error| self.clearer(error, bytes.len()))?
        {
            return Ok(());
        }
        self.put_waiting(py, bytes, timeout)
    }

    /// Puts all messages in one call. Waits for room as `put` does; says how many were put, which is all of them unless the
    /// time was up. QueueFull when not even the first could be put. Up to 32 messages or 16 KiB of them are claimed and
    /// committed together: a writer that is killed meanwhile leaves one incomplete item in their place.
    #[pyo3(signature = (messages, timeout=Timeout::FOREVER), text_signature = "($self, messages, timeout=None)")]
    fn put_many(&self, py: Python<'_>, messages: Messages<'_>, timeout: Timeout) -> PyResult<usize> {
        self.put_all(py, &messages.as_slices(), timeout)
    }

    /// Takes the oldest message. Waits for one; QueueEmpty when the time is up. Incomplete items are skipped and counted.
    #[pyo3(signature = (timeout=Timeout::FOREVER), text_signature = "($self, timeout=None)")]
    fn get<'py>(&self, py: Python<'py>, timeout: Timeout) -> PyResult<Bound<'py, PyBytes>> {
        match self.take_one(py)? {
            Some(message) => Ok(message),
            None => self.get_waiting(py, timeout),
        }
    }

    /// Takes up to `n` messages: waits for the first as `get` does, then takes whatever is there.
    #[pyo3(signature = (n, timeout=Timeout::FOREVER), text_signature = "($self, n, timeout=None)")]
    fn get_many<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = whole)] n: usize,
        timeout: Timeout,
    ) -> PyResult<Bound<'py, PyList>> {
        self.take_list(py, n, timeout)
    }

    /// As `get_many`, as a pyarrow array that was filled without a Python object for any message.
    #[pyo3(signature = (n, timeout=Timeout::FOREVER), text_signature = "($self, n, timeout=None)")]
    fn get_arrow<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = whole)] n: usize,
        timeout: Timeout,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.take_array(py, n, timeout)
    }

    /// Messages that wait: a moment's view.
    fn qsize(&self) -> PyResult<usize> {
        Ok(self.handle.open()?.len()?)
    }

    /// Waits until there may be a message, and takes none: for asyncio.
    fn _wait_readable(&self, py: Python<'_>, timeout: Timeout) -> PyResult<bool> {
        let wait = Wait::from_timeout(timeout.0);
        waiting(py, |idle| {
            let queue = self.handle.open()?;
            let arrived = queue.wait_for_commit(wait, idle, || {
                let is_empty = self.handle.open()?.is_empty()?;
                Ok((!is_empty).then_some(()))
            })?;
            Ok(arrived.is_some())
        })
    }

    /// Whether no message waits: a moment's view.
    fn empty(&self) -> PyResult<bool> {
        Ok(self.handle.open()?.is_empty()?)
    }

    /// Whether not even one page is free: a moment's view.
    fn full(&self) -> PyResult<bool> {
        self.handle.give_back()?;
        Ok(self.handle.open()?.available_size()? == 0)
    }

    /// Gives up the reader's role and the memory. BufferError while memoryviews of items are in use.
    fn close(&self) -> PyResult<()> {
        self.handle.close()
    }

    /// What is known about the queue, for people and metrics.
    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.described(py)
    }

    fn __len__(&self) -> PyResult<usize> {
        self.qsize()
    }

    /// A queue is true even when it is empty.
    fn __bool__(&self) -> bool {
        true
    }

    /// Iterates over the messages that are there, taking each.
    fn __iter__<'py>(slf: &Bound<'py, Self>) -> Bound<'py, Self> {
        slf.clone()
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        self.take_one(py)
    }

    fn __enter__<'py>(slf: &Bound<'py, Self>) -> Bound<'py, Self> {
        slf.clone()
    }

    fn __exit__(
        &self,
        _kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.close()
    }

    /// Travels as (open, path).
    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, (PathBuf,))> {
        let this = slf.get();
        let Some(path) = this.handle.path.clone() else {
            return Err(PyTypeError::new_err(format!(
                "a queue in {} memory has no path and cannot be pickled: create it in a file to hand it to other processes",
                this.kind
            )));
        };
        Ok((slf.get_type().getattr("open")?, (path,)))
    }

    fn __repr__(&self) -> String {
        match &self.handle.path {
            Some(path) => format!("<tailrace.aq.Queue {:?}>", path.display().to_string()),
            None => format!("<tailrace.aq.Queue in {} memory>", self.kind),
        }
    }
}

impl Queue {
    fn new(queue: core::Queue, path: Option<PathBuf>, kind: &'static str) -> Self {
        Queue {
            handle: Handle::new(queue, path),
            kind,
        }
    }

    #[inline]
    fn take_one<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let mut failed = None;
        let taken = self.handle.with_reader(|reader| {
            reader.take_lazily(|message| {
                message_bytes(py, message).map_err(|error| {
                    failed = Some(error);
                    Error::Interrupted
                })
            })
        });
        match failed {
            Some(error) => Err(error),
            None => Ok(taken?),
        }
    }

    #[cold]
    fn get_waiting<'py>(&self, py: Python<'py>, timeout: Timeout) -> PyResult<Bound<'py, PyBytes>> {
        if timeout == Timeout::ZERO {
            return Err(Error::Empty.into());
        }
        let waited = self
            .handle
            .wait_for_commit(py, timeout, |reader| reader.take_lazily(copied))?;
        let bytes = waited.ok_or(Error::Empty)?;
        Ok(PyBytes::new(py, &bytes))
    }

    #[cold]
    fn put_waiting(&self, py: Python<'_>, bytes: &[u8], timeout: Timeout) -> PyResult<()> {
        self.handle.with_writer(|writer| writer.check_fits(bytes.len()))?;
        self.handle.give_back()?;
        if self.handle.with_writer(|writer| writer.try_put(bytes))? {
            return Ok(());
        }
        let full = || self.handle.with_writer(|writer| Err(writer.full(bytes.len())));
        if timeout == Timeout::ZERO {
            return Ok(full()?);
        }
        let put = self.handle.wait_for_room(py, timeout, |writer| {
            let put = writer.try_put(bytes)?;
            if !put {
                writer.make_room(bytes.len())?;
            }
            Ok(put.then_some(()))
        })?;
        match put {
            Some(()) => Ok(()),
            None => Ok(full()?),
        }
    }

    /// A size that no claim can have is a message that is too large.
    #[cold]
    fn clearer(&self, error: Error, size: usize) -> Error {
        match error {
            Error::Invalid(_) => {
                let checked = self.handle.with_writer(|writer| writer.check_fits(size));
                checked.err().unwrap_or(error)
            }
            other => other,
        }
    }
}
