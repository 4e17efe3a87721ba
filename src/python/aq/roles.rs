//! `Writer` and `Reader`: the document's verbs.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::super::number::whole;
use super::super::wait::Timeout;
use super::handle::Handle;
use super::item::Item;
use crate::Error;

/// Claims memory for items and commits them; any number of them, in any number of threads and processes.
///
/// >>> from tailrace import aq
/// >>> q = aq.Queue.anonymous(size=1 << 16)
/// >>> with q.writer().claim(5) as item:  # committed at the end, given up if the block raises
/// ...     item.write(b"hello")
/// True
/// >>> q.get(timeout=1)
/// b'hello'
#[pyclass(frozen, module = "tailrace.aq", name = "Writer")]
#[derive(Debug)]
pub(crate) struct Writer {
    handle: Arc<Handle>,
}

impl Writer {
    pub(super) fn new(handle: &Arc<Handle>) -> PyResult<Self> {
        handle.with_writer(|_| Ok(()))?;
        Ok(Writer { handle: handle.clone() })
    }
}

#[pymethods]
impl Writer {
    /// Claims memory for an item of `n` bytes. QueueFull when there is no room, and none came free within `timeout`.
    #[pyo3(signature = (n, timeout=Timeout::ZERO), text_signature = "($self, n, timeout=0)")]
    fn claim(&self, py: Python<'_>, #[pyo3(from_py_with = whole)] n: i64, timeout: Timeout) -> PyResult<Py<Item>> {
        let n = usize::try_from(n).map_err(|_| PyValueError::new_err(format!("an item cannot have {n} bytes")))?;
        let mut claimed = self.handle.with_writer(|writer| writer.claim_data(n))?;
        if claimed.is_none() {
            self.handle.give_back()?;
            claimed = self.handle.with_writer(|writer| writer.claim_data(n))?;
        }
        if claimed.is_none() && timeout != Timeout::ZERO {
            claimed = self.handle.wait_for_room(py, timeout, |writer| writer.claim_data(n))?;
        }
        match claimed {
            Some(data) => Item::claimed(py, &self.handle, data),
            None => Err(self
                .handle
                .with_writer(|writer| Err::<(), _>(writer.full(n)))
                .unwrap_err()
                .into()),
        }
    }

    /// Hands a claimed item to the reader. False when the claim had expired and was given out as incomplete before.
    /// BufferError while memoryviews of the item are in use.
    fn commit(&self, item: &Bound<'_, Item>) -> PyResult<bool> {
        self.handle.open()?;
        Item::check_is_of(item, &self.handle)?;
        Item::commit(item)
    }

    /// +1 with every freed run of pages: something to wait on.
    #[getter]
    fn free_counter(&self) -> PyResult<u32> {
        Ok(self.handle.open()?.free_counter()?)
    }
}

/// Retrieves items and releases them. There is one on the host.
///
/// >>> from tailrace import aq
/// >>> q = aq.Queue.anonymous(size=1 << 16)
/// >>> q.put(b"hello")
/// >>> with q.reader() as reader:
/// ...     item = reader.retrieve(timeout=1)
/// ...     bytes(item), reader.release(item), reader.retrieve()
/// (b'hello', True, None)
#[pyclass(frozen, module = "tailrace.aq", name = "Reader")]
#[derive(Debug)]
pub(crate) struct Reader {
    handle: Arc<Handle>,
    closed: std::sync::atomic::AtomicBool,
}

impl Reader {
    pub(super) fn new(handle: &Arc<Handle>) -> PyResult<Self> {
        handle.open_reader()?;
        Ok(Reader {
            handle: handle.clone(),
            closed: false.into(),
        })
    }

    pub(super) fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }

    fn check(&self) -> PyResult<()> {
        if self.closed.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(Error::Closed.into());
        }
        Ok(())
    }
}

#[pymethods]
impl Reader {
    /// The next item, or None when none came within `timeout`. Unlike `get` it shows incomplete items, too.
    #[pyo3(signature = (timeout=Timeout::ZERO), text_signature = "($self, timeout=0)")]
    fn retrieve(&self, py: Python<'_>, timeout: Timeout) -> PyResult<Option<Py<Item>>> {
        self.check()?;
        let attempt = |reader: &mut crate::aq::Reader| {
            let item = reader.retrieve()?;
            Ok(item.map(|item| {
                let spans = reader.spans(&item);
                (item, spans)
            }))
        };
        let mut found = self.handle.with_reader(attempt)?;
        if found.is_none() && timeout != Timeout::ZERO {
            found = self.handle.wait_for_commit(py, timeout, attempt)?;
        }
        found
            .map(|(item, spans)| Item::retrieved(py, &self.handle, item, &spans))
            .transpose()
    }

    /// Gives an item back: its memory is free for new claims once everything before it is released, too. False when its
    /// writer committed it after it was retrieved as incomplete. BufferError while memoryviews of the item are in use.
    fn release(&self, item: &Bound<'_, Item>) -> PyResult<bool> {
        self.check()?;
        Item::check_is_of(item, &self.handle)?;
        Item::release(item)
    }

    /// As `Queue.reap`.
    fn reap(&self) -> PyResult<usize> {
        self.check()?;
        Ok(self.handle.with_reader(crate::aq::Reader::reap)?)
    }

    /// +1 with every committed segment: something to wait on.
    #[getter]
    fn commit_counter(&self) -> PyResult<u32> {
        self.check()?;
        Ok(self.handle.open()?.commit_counter()?)
    }

    /// Gives up the role: what was not released is retrieved again by the next reader.
    fn close(&self) {
        if !self.closed.swap(true, std::sync::atomic::Ordering::Relaxed) {
            self.handle.close_reader();
        }
    }

    fn __enter__<'py>(slf: &Bound<'py, Self>) -> Bound<'py, Self> {
        slf.clone()
    }

    fn __exit__(&self, _kind: &Bound<'_, PyAny>, _error: &Bound<'_, PyAny>, _traceback: &Bound<'_, PyAny>) {
        self.close();
    }

    fn __iter__<'py>(slf: &Bound<'py, Self>) -> Bound<'py, Self> {
        slf.clone()
    }

    /// The items that are there, one after the other; each must be released.
    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Py<Item>>> {
        self.retrieve(py, Timeout::ZERO)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.close();
    }
}
