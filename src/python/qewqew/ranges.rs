//! Reading ranges without consuming and without a lock.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple, PyType};

use crate::python::arrow::{BatchBuilder, MessageBatch};
use crate::python::number::whole;
use crate::python::wait::waiting;
use crate::qewqew as core;

/// Reads ranges of a queue that others have open; needs nothing but its files.
///
/// >>> import os, tempfile
/// >>> from tailrace import qewqew
/// >>> path = os.path.join(tempfile.mkdtemp(), "spool")
/// >>> with qewqew.DurableQueue(path, sync="never") as spool:
/// ...     _ = spool.enqueue_many([b"first", b"second"])
/// ...     _ = spool.head_position  # from here on positions are kept
/// ...     reader = qewqew.RangeReader(path)
/// ...     reader.read_range(reader.head_position, reader.tail_position)
/// [b'first', b'second']
#[pyclass(frozen, module = "tailrace.qewqew", name = "RangeReader")]
#[derive(Debug)]
pub(crate) struct RangeReader {
    path: PathBuf,
    network: bool,
    reader: core::RangeReader,
}

impl RangeReader {
    pub(crate) fn of(queue: &core::DurableQueue, reader: core::RangeReader) -> Self {
        RangeReader {
            path: queue.path().to_owned(),
            network: queue.options().network,
            reader,
        }
    }
}

#[pymethods]
impl RangeReader {
    /// For the queue whose head file is, or was, `path`.
    #[new]
    #[pyo3(signature = (path, network=false))]
    fn new(py: Python<'_>, path: PathBuf, network: bool) -> PyResult<Self> {
        let reader = waiting(py, |_| core::RangeReader::open(&path, network))?;
        Ok(RangeReader { path, network, reader })
    }

    /// Where the head file is.
    #[getter]
    fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// The identity of the queue: positions of another one mean nothing here.
    #[getter]
    fn uuid(&self, py: Python<'_>) -> PyResult<String> {
        let bytes = waiting(py, |_| self.reader.uuid())?;
        Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// The position of the first unread message.
    #[getter]
    fn head_position(&self, py: Python<'_>) -> PyResult<u64> {
        waiting(py, |_| self.reader.head_position())
    }

    /// The position behind the last message.
    #[getter]
    fn tail_position(&self, py: Python<'_>) -> PyResult<u64> {
        waiting(py, |_| self.reader.tail_position())
    }

    /// The messages from position start up to end.
    fn read_range<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = whole)] start: u64,
        #[pyo3(from_py_with = whole)] end: u64,
    ) -> PyResult<Bound<'py, PyList>> {
        read_range(py, &self.reader, start, end)
    }

    /// The same as one Arrow array.
    fn read_range_arrow<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = whole)] start: u64,
        #[pyo3(from_py_with = whole)] end: u64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let batch = waiting(py, |_| {
            let bytes = usize::try_from(end.saturating_sub(start)).unwrap_or(0);
            let mut builder = BatchBuilder::with_capacity(0, bytes);
            self.reader
                .read_range_with(start, end, |message| builder.append(message))?;
            builder.finish()
        })?;
        MessageBatch::to_pyarrow(&Bound::new(py, batch)?)
    }

    /// The same in arrays of up to so many messages, and about so many bytes, each with the position of its first message.
    fn _batches(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = whole)] start: u64,
        #[pyo3(from_py_with = whole)] end: u64,
        rows: usize,
        size: usize,
    ) -> PyResult<RangeBatches> {
        let walk = waiting(py, |_| self.reader.walk(start, end))?;
        Ok(RangeBatches {
            walk: Mutex::new(walk),
            rows,
            size,
        })
    }

    /// The range cut where the chunks are: pieces that can be read at the same time.
    fn chunk_ranges(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = whole)] start: u64,
        #[pyo3(from_py_with = whole)] end: u64,
    ) -> PyResult<Vec<(u64, u64)>> {
        waiting(py, |_| self.reader.chunk_ranges(start, end))
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyType>, Bound<'py, PyTuple>)> {
        let this = slf.get();
        Ok((
            slf.get_type(),
            (this.path.clone(), this.network).into_pyobject(slf.py())?,
        ))
    }

    fn __repr__(&self) -> String {
        format!("<tailrace.qewqew.RangeReader {:?}>", self.path.display().to_string())
    }
}

/// A range on its way into Arrow arrays.
#[pyclass(frozen, module = "tailrace.qewqew", name = "_RangeBatches")]
#[derive(Debug)]
pub(crate) struct RangeBatches {
    walk: Mutex<core::Walk>,
    rows: usize,
    size: usize,
}

#[pymethods]
impl RangeBatches {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<(u64, Bound<'py, PyAny>)>> {
        let filled = waiting(py, |_| {
            let mut walk = self.walk.lock().unwrap_or_else(PoisonError::into_inner);
            let position = walk.position();
            let mut builder = BatchBuilder::with_capacity(0, self.size);
            let mut bytes = 0;
            while builder.len() < self.rows && bytes < self.size {
                let Some(message) = walk.next()? else { break };
                builder.append(message)?;
                bytes += message.len();
            }
            match builder.len() {
                0 => Ok(None),
                _ => builder.finish().map(|batch| Some((position, batch))),
            }
        })?;
        let Some((position, batch)) = filled else {
            return Ok(None);
        };
        Ok(Some((position, MessageBatch::to_pyarrow(&Bound::new(py, batch)?)?)))
    }
}

/// The messages of a range as a list of bytes.
pub(super) fn read_range<'py>(
    py: Python<'py>,
    reader: &core::RangeReader,
    start: u64,
    end: u64,
) -> PyResult<Bound<'py, PyList>> {
    let messages = waiting(py, |_| reader.read_range(start, end))?;
    PyList::new(py, messages.iter().map(|message| PyBytes::new(py, message)))
}
