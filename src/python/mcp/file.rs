//! `QueueFile`: the document's verbs, and around them those of Python's own queues.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};

use super::super::arrow::{BatchBuilder, MessageBatch, pyarrow};
use super::super::buffer::Payload;
use super::super::error::QueueFull;
use super::super::messages::Messages;
use super::super::number::whole;
use super::super::wait::{Timeout, waiting};
use super::held::{HeldMessage, Holds};
use super::{describe, mode_name, mode_named, open_system};
use crate::mcp::{self, Batch, Device, End, FileParameters, OpenOptions, Took};
use crate::shared::signal::Wait;

/// The procedures of ``use_for``.
#[derive(Debug, Default)]
struct Procedures {
    q_empty: Option<Py<PyAny>>,
    q_full: Option<Py<PyAny>>,
}

/// An open queue file: a single queue, or a family of them.
///
/// ``open`` links to the queue of that name in the system, or creates it; the first opener binds the parameters.
///
/// >>> import tempfile
/// >>> from tailrace import mcp
/// >>> with tempfile.TemporaryDirectory() as d:
/// ...     reader = mcp.QueueFile.open("MY.Q", "input", system=d)
/// ...     with mcp.QueueFile.open("MY.Q", "output", system=d) as writer:
/// ...         _ = writer.write(b"hello")
/// ...         _ = writer.write(b"world")
/// ...     list(reader)
/// ...     reader.close()
/// [b'hello', b'world']
#[pyclass(frozen, module = "tailrace.mcp")]
#[derive(Debug)]
pub(crate) struct QueueFile {
    pub(super) file: Box<mcp::QueueFile>,
    procedures: Mutex<Procedures>,
}

impl QueueFile {
    pub(super) fn open_with(
        py: Python<'_>,
        parameters: &FileParameters,
        mode: &str,
        system: Option<PathBuf>,
        options: &OpenOptions,
    ) -> PyResult<Self> {
        parameters.check(options.strict)?;
        let mode = mode_named(mode)?;
        let file = waiting(py, |idle| {
            mcp::QueueFile::open_waiting(&open_system(system)?, parameters, mode, options, idle)
        })?;
        Ok(QueueFile {
            file: Box::new(file),
            procedures: Mutex::default(),
        })
    }

    fn procedure(&self, py: Python<'_>, which: fn(&Procedures) -> &Option<Py<PyAny>>) -> Option<Py<PyAny>> {
        let procedures = self.procedures.lock().unwrap_or_else(PoisonError::into_inner);
        which(&procedures).as_ref().map(|procedure| procedure.clone_ref(py))
    }
}

#[pymethods]
impl QueueFile {
    /// Opens a queue file by name: ``mode`` is "input", "output" or "input_output".
    ///
    /// ``system`` is the directory of the queue system (this user's own where none is named). ``keep`` lets the queue outlive
    /// its users, ``strict`` holds to the limits of 1976, ``disk`` is a directory for the queue disk, ``device`` 62 makes it an
    /// old queue file, ``sdl_keys`` counts members from 0.
    ///
    /// >>> import tempfile
    /// >>> from tailrace import mcp
    /// >>> with tempfile.TemporaryDirectory() as d, mcp.QueueFile.open("MY.QFF", "input_output", d, family_size=3) as f:
    /// ...     f.write(b"to the second", key=2), f.message_count(), f.read(key=0)
    /// (True, [0, 1, 0], b'to the second')
    #[staticmethod]
    #[pyo3(signature = (name, mode="input", system=None, max_messages=20, buffers=2, record_size=80, family_size=0,
        keep=false, strict=false, disk=None, device=61, sdl_keys=false))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn open(
        py: Python<'_>,
        name: String,
        mode: &str,
        system: Option<PathBuf>,
        #[pyo3(from_py_with = whole)] max_messages: u32,
        #[pyo3(from_py_with = whole)] buffers: u32,
        #[pyo3(from_py_with = whole)] record_size: u32,
        #[pyo3(from_py_with = whole)] family_size: u32,
        keep: bool,
        strict: bool,
        disk: Option<PathBuf>,
        #[pyo3(from_py_with = whole)] device: u32,
        sdl_keys: bool,
    ) -> PyResult<Self> {
        let parameters = FileParameters {
            name,
            max_messages,
            buffers,
            record_size,
            family_size,
            device: Device::from_number(device)?,
        };
        let options = OpenOptions {
            keep,
            strict,
            disk,
            sdl_keys,
        };
        QueueFile::open_with(py, &parameters, mode, system, &options)
    }

    /// READ: removes and returns the first message, waiting for it; ``timeout=0`` does not wait (INCOMPLETE.IO).
    ///
    /// Raises ``QueueEmpty`` when the time is up, ``EndOfFile`` when the queue is empty and the last writer is gone, and
    /// ``InvalidKey``. In a family ``key`` names the member; 0 (or none) takes the first that is not empty. With a
    /// ``use_for(q_empty=...)`` procedure an empty queue calls it instead, and its result is returned.
    #[pyo3(signature = (key=None, timeout=Timeout::FOREVER), text_signature = "($self, key=None, timeout=None)")]
    fn read<'py>(&self, py: Python<'py>, key: Option<i64>, timeout: Timeout) -> PyResult<Bound<'py, PyAny>> {
        let procedure = self.procedure(py, |procedures| &procedures.q_empty);
        let mut wait = Wait::from_timeout(timeout.0);
        if procedure.is_some() && wait == Wait::Forever {
            wait = Wait::No;
        }
        match self.take(py, key, 1, wait, |batch| Ok(PyBytes::new(py, batch.bytes()).into_any()))? {
            Ok(message) => Ok(message),
            Err(Took::Nothing) if procedure.is_some() => procedure.expect("just seen").into_bound(py).call0(),
            Err(took) => Err(self.nothing(took)),
        }
    }

    /// WRITE: puts a record into the queue, waiting for room; ``timeout=0`` does not wait (INCOMPLETE.IO).
    ///
    /// ``top=True`` puts it at the front. Raises ``QueueFull`` when the time is up, ``MessageTooLarge`` and ``InvalidKey``.
    /// True when it was written; with a ``use_for(q_full=...)`` procedure a full queue calls it instead and gives False.
    #[pyo3(signature = (data, key=None, top=false, timeout=Timeout::FOREVER), text_signature = "($self, data, key=None, top=False, timeout=None)")]
    fn write(
        &self,
        py: Python<'_>,
        data: Payload<'_>,
        key: Option<i64>,
        top: bool,
        timeout: Timeout,
    ) -> PyResult<bool> {
        let procedure = self.procedure(py, |procedures| &procedures.q_full);
        let mut wait = Wait::from_timeout(timeout.0);
        if procedure.is_some() && wait == Wait::Forever {
            wait = Wait::No;
        }
        let end = if top { End::Top } else { End::Back };
        if self.put_one(py, data.as_bytes(), key, end, wait)? {
            return Ok(true);
        }
        match procedure {
            Some(procedure) => procedure.call0(py).map(|_| false),
            None => Err(self.refused()),
        }
    }

    /// WRITE ... TOP: puts a record at the front of the queue.
    #[pyo3(signature = (data, key=None, timeout=Timeout::FOREVER), text_signature = "($self, data, key=None, timeout=None)")]
    fn write_top(&self, py: Python<'_>, data: Payload<'_>, key: Option<i64>, timeout: Timeout) -> PyResult<bool> {
        self.write(py, data, key, true, timeout)
    }

    /// MESSAGE.COUNT: the messages that can be read, plus one for an end of file that was not taken; a list for a family.
    fn message_count<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let counts = py.detach(|| self.file.message_count())?;
        if self.file.is_family() {
            return Ok(PyList::new(py, counts)?.into_any());
        }
        Ok(counts[0].into_pyobject(py)?.into_any())
    }

    /// MESSAGE.COUNT as the communicate's result field of ``bits`` bits: 24 bits a member, binary or decimal digits.
    ///
    /// >>> import tempfile
    /// >>> from tailrace import mcp
    /// >>> with tempfile.TemporaryDirectory() as d, mcp.QueueFile.open("Q", "input_output", d, family_size=2) as f:
    /// ...     f.put(b"x", key=2)
    /// ...     f.message_count_field(48), f.message_count_field(40, decimal=True)
    /// (b'\x00\x00\x00\x00\x00\x01', b'00000')
    #[pyo3(signature = (bits, decimal=false))]
    fn message_count_field<'py>(&self, py: Python<'py>, bits: usize, decimal: bool) -> PyResult<Bound<'py, PyBytes>> {
        let field = py.detach(|| self.file.message_count_field(bits, decimal))?;
        Ok(PyBytes::new(py, &field))
    }

    /// Sets the procedures that handle an empty and a full queue, as ``USE FOR Q-EMPTY`` and ``Q-FULL`` do in COBOL.
    ///
    /// ``read`` and ``write`` do not wait then, unless they are given a timeout. ``None`` takes a procedure away.
    #[pyo3(signature = (*, q_empty=None, q_full=None))]
    fn use_for(&self, q_empty: Option<Py<PyAny>>, q_full: Option<Py<PyAny>>) {
        let mut procedures = self.procedures.lock().unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::replace(&mut *procedures, Procedures { q_empty, q_full });
        // Their last reference may run Python code, which may come back here.
        drop(procedures);
        drop(old);
    }

    /// Closes the file: what it holds is given back, and the last writer's close is the end of file.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        waiting(py, |idle| self.file.close_idling(idle))
    }

    /// Takes up to ``n`` messages in hand, waiting for the first. They stay in the queue, unseen by others, until
    /// ``acknowledge`` or ``give_back``; closing the file or dying gives them back in order.
    #[pyo3(signature = (n=1, key=None, timeout=Timeout::FOREVER), text_signature = "($self, n=1, key=None, timeout=None)")]
    fn hold(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = whole)] n: usize,
        key: Option<i64>,
        timeout: Timeout,
    ) -> PyResult<Vec<HeldMessage>> {
        let mut batch = Batch::new();
        let wait = Wait::from_timeout(timeout.0);
        let (took, holds) = waiting(py, |idle| self.file.hold(key, n, &mut batch, wait, idle))?;
        match took {
            Took::Messages(_) => {
                let held = holds.into_iter().zip(batch.iter());
                Ok(held.map(|(hold, data)| HeldMessage::new(py, hold, data)).collect())
            }
            other => Err(self.nothing(other)),
        }
    }

    /// Removes held messages for good: one, or any iterable of them (or of their tokens). All or none.
    fn acknowledge(&self, py: Python<'_>, held: Holds) -> PyResult<()> {
        Ok(py.detach(|| self.file.acknowledge(&held.0))?)
    }

    /// Puts held messages back in their places: one, or any iterable of them (or of their tokens). All or none.
    fn give_back(&self, py: Python<'_>, held: Holds) -> PyResult<()> {
        Ok(py.detach(|| self.file.give_back(&held.0))?)
    }

    /// Lets a kept queue disappear with its last user.
    fn forget(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| self.file.forget())?)
    }

    /// As ``write``, with the habits of ``queue.Queue``.
    #[pyo3(signature = (data, timeout=Timeout::FOREVER, key=None), text_signature = "($self, data, timeout=None, key=None)")]
    fn put(&self, py: Python<'_>, data: Payload<'_>, timeout: Timeout, key: Option<i64>) -> PyResult<()> {
        let wait = Wait::from_timeout(timeout.0);
        let written = self.put_one(py, data.as_bytes(), key, End::Back, wait)?;
        if written { Ok(()) } else { Err(self.refused()) }
    }

    /// As ``read``, with the habits of ``queue.Queue``.
    #[pyo3(signature = (timeout=Timeout::FOREVER, key=None), text_signature = "($self, timeout=None, key=None)")]
    fn get<'py>(&self, py: Python<'py>, timeout: Timeout, key: Option<i64>) -> PyResult<Bound<'py, PyAny>> {
        let wait = Wait::from_timeout(timeout.0);
        let make = |batch: &Batch| Ok(PyBytes::new(py, batch.bytes()).into_any());
        self.take(py, key, 1, wait, make)?.map_err(|took| self.nothing(took))
    }

    /// Writes all records, in order, waiting for room; ``QueueFull`` says how many were written when the time is up.
    #[pyo3(signature = (items, timeout=Timeout::FOREVER, key=None), text_signature = "($self, items, timeout=None, key=None)")]
    fn put_many(&self, py: Python<'_>, items: Messages<'_>, timeout: Timeout, key: Option<i64>) -> PyResult<()> {
        let texts = items.as_slices();
        let wait = Wait::from_timeout(timeout.0);
        let written = waiting(py, |idle| self.file.write_many(key, &texts, End::Back, wait, idle))?;
        if written == texts.len() {
            return Ok(());
        }
        let name = &self.file.parameters().name;
        Err(QueueFull::new_err(format!(
            "{name} is full: {written} of {} records were written",
            texts.len()
        )))
    }

    /// Up to ``n`` messages: waits for the first as ``get`` does, then takes what is there.
    #[pyo3(signature = (n, timeout=Timeout::FOREVER, key=None), text_signature = "($self, n, timeout=None, key=None)")]
    fn get_many<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = whole)] n: usize,
        timeout: Timeout,
        key: Option<i64>,
    ) -> PyResult<Bound<'py, PyList>> {
        let wait = Wait::from_timeout(timeout.0);
        let make = |batch: &Batch| PyList::new(py, batch.iter().map(|text| PyBytes::new(py, text)).collect::<Vec<_>>());
        self.take(py, key, n, wait, make)?.map_err(|took| self.nothing(took))
    }

    /// Up to ``n`` messages as a ``pyarrow.BinaryArray``: waits for the first as ``get`` does, then takes what is there.
    #[pyo3(signature = (n, timeout=Timeout::FOREVER, key=None), text_signature = "($self, n, timeout=None, key=None)")]
    fn get_arrow<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = whole)] n: usize,
        timeout: Timeout,
        key: Option<i64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        pyarrow(py)?;
        let wait = Wait::from_timeout(timeout.0);
        let make = |batch: &Batch| {
            let mut builder = BatchBuilder::with_capacity(batch.len(), batch.bytes().len());
            batch.iter().try_for_each(|text| builder.append(text))?;
            MessageBatch::to_pyarrow(&Bound::new(py, builder.finish()?)?)
        };
        // No more than fits into one array is taken out of the queue.
        let room = i32::MAX as usize / (self.file.parameters().record_size as usize).max(1);
        let limit = n.min(room.max(1));
        self.take(py, key, limit, wait, make)?
            .map_err(|took| self.nothing(took))
    }

    /// Messages that can be read, in all members.
    fn qsize(&self) -> PyResult<u64> {
        self.file.check_open()?;
        Ok(self.file.len())
    }

    /// Whether there is nothing to read.
    fn empty(&self) -> PyResult<bool> {
        Ok(self.qsize()? == 0)
    }

    /// Whether no record could be written now.
    fn full(&self) -> PyResult<bool> {
        self.file.check_open()?;
        Ok(self.file.is_full())
    }

    /// Whether Q.INSERT.OCCURRED is there: a message, or an end of file that was not taken.
    #[getter]
    fn insert_occurred(&self, py: Python<'_>) -> PyResult<bool> {
        self.file.check_open()?;
        Ok(py.detach(|| self.file.insert_occurred())?)
    }

    /// Whether a writer of this file ended without closing it.
    #[getter]
    fn abended(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(py.detach(|| self.file.abended())?)
    }

    /// MFID/FID.
    #[getter]
    fn name(&self) -> &str {
        &self.file.parameters().name
    }

    /// How it was opened.
    #[getter]
    fn mode(&self) -> &'static str {
        mode_name(self.file.mode())
    }

    /// The directory of the queue system.
    #[getter]
    fn path(&self) -> PathBuf {
        self.file.system().directory().to_owned()
    }

    /// The parameters that are bound, with this opener's device.
    #[getter]
    fn parameters(&self) -> super::parameters::FileParameters {
        super::parameters::FileParameters {
            inner: self.file.parameters().clone(),
        }
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.file.is_closed()
    }

    /// What happened to the queues of this file, and what is in them.
    #[getter]
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.file.check_open()?;
        describe::counters(py, &self.file)
    }

    /// Everything about the file: kind, path, parameters, counters, participants, and what can be relied on.
    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.file.check_open()?;
        let info = describe::info(py, &self.file)?;
        info.set_item("message_count", self.message_count(py)?)?;
        info.set_item("abended", self.abended(py)?)?;
        Ok(info)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// Reads to the end of file.
    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        match self.take(py, None, 1, Wait::Forever, |batch| Ok(PyBytes::new(py, batch.bytes())))? {
            Ok(message) => Ok(Some(message)),
            Err(_) => Ok(None),
        }
    }

    fn __len__(&self) -> PyResult<usize> {
        Ok(self.qsize()? as usize)
    }

    fn __bool__(&self) -> bool {
        true
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let this = slf.get();
        let p = this.file.parameters();
        let disk = this.file.disk().0.parent().map(PathBuf::from);
        let elsewhere = disk.filter(|disk| disk != this.file.system().directory());
        let arguments = (
            &p.name,
            this.mode(),
            this.path(),
            p.max_messages,
            p.buffers,
            p.record_size,
            p.family_size,
            this.file.keeps(),
            false,
            elsewhere,
            p.device.number(),
            this.file.counts_from_zero(),
        );
        Ok((slf.get_type().getattr("open")?, arguments.into_pyobject(slf.py())?))
    }

    fn __repr__(&self) -> String {
        let p = self.file.parameters();
        let state = if self.file.is_closed() {
            "closed"
        } else {
            mode_name(self.file.mode())
        };
        format!(
            "<QueueFile {:?} {state} in {:?}>",
            p.name,
            self.file.system().directory()
        )
    }
}
