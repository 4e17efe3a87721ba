//! `tailrace.conq`: the managers and their messages. The queue with the habits of `queue.Queue` is in `conq_queue`.

use std::path::PathBuf;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use super::buffer::{Payload, message_bytes};
use super::conq_queue::Queue;
use super::number::{whole, whole_or_none};
use crate::conq as core;
use crate::conq::layout::{MAX_MESSAGE_SIZE, MAX_MESSAGES};
use crate::conq::queue::{Lease, Receipt};
use crate::conq::{DeadLetter, Manager, NamedQueue, Options};
use crate::{Error, Result};

/// The native part of `tailrace.conq`.
#[pymodule]
pub(crate) mod conq {
    #[pymodule_export]
    use super::super::conq_queue::{Delivery, Queue};
    #[pymodule_export]
    use super::super::conq_room::{_room_mark, _wait_room};
    #[pymodule_export]
    use super::super::conq_tokens::{_copy, _dequeue, _extend, _lease, _look};
    #[pymodule_export]
    use super::{_message, Message, QueueManager, Stats};
}

/// How long a message is in the reader's hands: a positive number of seconds, however large.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeaseTime(pub(super) u64);

impl<'a, 'py> FromPyObject<'a, 'py> for LeaseTime {
    type Error = PyErr;

    fn extract(value: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let described = || {
            value
                .repr()
                .map_or_else(|_| "this object".to_owned(), |text| text.to_string())
        };
        let seconds: f64 = match value.extract() {
            Ok(seconds) => seconds,
            Err(error) if error.is_instance_of::<pyo3::exceptions::PyOverflowError>(value.py()) => f64::INFINITY,
            Err(_) => {
                return Err(PyTypeError::new_err(format!(
                    "timeout must be a number of seconds, not {}",
                    described()
                )));
            }
        };
        if seconds <= 0.0 || seconds.is_nan() {
            return Err(PyValueError::new_err(format!(
                "the timeout of a read must be more than 0 seconds, not {}: the message would never be anybody's",
                described()
            )));
        }
        // Cut at u64::MAX nanoseconds, which no clock reaches.
        Ok(LeaseTime(((seconds * 1e9) as u64).max(1)))
    }
}

/// A message in the reader's hands until its timeout: finish it with ``dequeue``.
///
/// >>> import tempfile
/// >>> from tailrace import conq
/// >>> m = conq.QueueManager.open(tempfile.mkdtemp())
/// >>> jobs = m.create_queue("jobs")
/// >>> m.enqueue(jobs, b"resize")
/// >>> message = m.read(jobs, timeout=30.0)
/// >>> message.data, message.delivery
/// (b'resize', 1)
#[pyclass(frozen, module = "tailrace.conq")]
#[derive(Debug)]
pub(crate) struct Message {
    pub(super) queue_id: u64,
    pub(super) receipt: Receipt,
    data: Py<PyBytes>,
}

#[pymethods]
impl Message {
    /// The id of the message in its queue; the same at every delivery.
    #[getter]
    fn id(&self) -> String {
        self.receipt.id.to_string()
    }

    /// The id of its queue.
    #[getter]
    fn queue_id(&self) -> String {
        self.queue_id.to_string()
    }

    /// The bytes.
    #[getter]
    fn data(&self, py: Python<'_>) -> Py<PyBytes> {
        self.data.clone_ref(py)
    }

    /// How often it has been delivered, this time included: from 1.
    #[getter]
    fn delivery(&self) -> u32 {
        self.receipt.delivery
    }

    fn __len__(&self, py: Python<'_>) -> usize {
        self.data.bind(py).as_bytes().len()
    }

    fn __bytes__(&self, py: Python<'_>) -> Py<PyBytes> {
        self.data.clone_ref(py)
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        let same = |other: &Message| (self.queue_id, self.receipt) == (other.queue_id, other.receipt);
        other.cast::<Message>().is_ok_and(|other| same(other.get()))
    }

    fn __hash__(&self) -> u64 {
        self.receipt.id ^ u64::from(self.receipt.delivery) << 40
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let length = self.data.bind(py).as_bytes().len();
        let Receipt { id, delivery, .. } = self.receipt;
        let queue = self.queue_id;
        format!("<Message id='{id}' queue_id='{queue}' delivery={delivery} of {length} bytes>")
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Travelling)> {
        let make = py.import("tailrace.conq")?.getattr("_message")?;
        let Receipt { id, delivery, slot } = self.receipt;
        Ok((make, (self.queue_id, id, delivery, slot, self.data.clone_ref(py))))
    }
}

/// Queue, id, delivery, slot and data: a message as a pickle.
type Travelling = (u64, u64, u32, u32, Py<PyBytes>);

/// A message that travelled as a pickle.
#[pyfunction]
fn _message(queue_id: u64, id: u64, delivery: u32, slot: u32, data: Py<PyBytes>) -> Message {
    Message {
        queue_id,
        receipt: Receipt { id, delivery, slot },
        data,
    }
}

impl Message {
    /// Copies a lease out; `None` when it is somebody else's by now.
    #[inline]
    pub(super) fn of(py: Python<'_>, queue: &core::Queue, lease: &Lease) -> PyResult<Option<Self>> {
        let bytes = queue.bytes_of(lease);
        let data = message_bytes(py, &bytes)?;
        Ok(bytes.were_held().then(|| Message {
            queue_id: queue.id(),
            receipt: lease.receipt,
            data: data.unbind(),
        }))
    }
}

/// What a queue holds at a moment.
///
/// >>> import tempfile
/// >>> from tailrace import conq
/// >>> m = conq.QueueManager.open(tempfile.mkdtemp())
/// >>> jobs = m.create_queue("jobs")
/// >>> m.enqueue(jobs, b"one"), m.enqueue(jobs, b"two")
/// (None, None)
/// >>> _ = m.read(jobs, timeout=30.0)
/// >>> stats = m.stats(jobs)
/// >>> stats.ready, stats.leased, stats.expired
/// (1, 1, 0)
#[pyclass(frozen, get_all, module = "tailrace.conq")]
#[derive(Debug)]
pub(crate) struct Stats {
    /// Messages that were never read.
    ready: u64,
    /// Messages in somebody's hands.
    leased: u64,
    /// Messages that came back and are read next.
    expired: u64,
    /// Seconds since the oldest of all of them was enqueued, or None.
    oldest_age: Option<f64>,
    /// How many messages were ever enqueued.
    enqueued: u64,
    /// How often a survivor repaired what a killed process left.
    repairs: u32,
}

#[pymethods]
impl Stats {
    fn __repr__(&self) -> String {
        let Stats {
            ready, leased, expired, ..
        } = self;
        let age = self.oldest_age.map_or("None".to_owned(), |age| format!("{age:.3}"));
        format!("<Stats ready={ready} leased={leased} expired={expired} oldest_age={age}>")
    }
}

impl Stats {
    /// Messages that a read would find.
    pub(super) fn readable(&self) -> u64 {
        self.ready + self.expired
    }
}

impl From<core::Stats> for Stats {
    fn from(stats: core::Stats) -> Self {
        Stats {
            ready: stats.ready,
            leased: stats.leased,
            expired: stats.expired,
            oldest_age: stats.oldest_age.map(|age| age as f64 / 1e9),
            enqueued: stats.enqueued,
            repairs: stats.repairs,
        }
    }
}

/// Queues by name: those of this process, or with ``open`` those of this host.
///
/// >>> import tempfile
/// >>> from tailrace import conq
/// >>> m = conq.QueueManager.open(tempfile.mkdtemp())
/// >>> jobs = m.create_queue("jobs")
/// >>> m.enqueue(jobs, b"resize")
/// >>> message = m.read(jobs, timeout=30.0)  # ours for 30 seconds, then it comes back
/// >>> m.dequeue(jobs, message)
/// >>> m.read(jobs, timeout=30.0) is None
/// True
#[pyclass(frozen, module = "tailrace.conq")]
#[derive(Debug)]
pub(crate) struct QueueManager {
    manager: Manager,
}

#[pymethods]
impl QueueManager {
    /// The manager that everybody in this process shares. In a forked child it starts empty.
    #[new]
    fn new() -> Self {
        QueueManager {
            manager: Manager::of_this_process(),
        }
    }

    /// The manager of a directory, shared by every process of this host that opens it; the directory is made if missing.
    #[staticmethod]
    fn open(py: Python<'_>, directory: PathBuf) -> PyResult<Self> {
        let manager = py.detach(|| Manager::open(&directory))?;
        Ok(QueueManager { manager })
    }

    /// Where the queues are, or None for those of this process.
    #[getter]
    fn directory(&self) -> Option<PathBuf> {
        self.manager.directory().map(PathBuf::from)
    }

    /// Make a queue and return its id; QueueExists when the name is taken.
    #[pyo3(signature = (name, *, max_messages=1_000_000, max_message_size=65_536, max_bytes=1_073_741_824, max_deliveries=None, dead_letter=None))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn create_queue(
        &self,
        py: Python<'_>,
        name: &str,
        #[pyo3(from_py_with = whole)] max_messages: u64,
        #[pyo3(from_py_with = whole)] max_message_size: u64,
        #[pyo3(from_py_with = whole)] max_bytes: u64,
        #[pyo3(from_py_with = whole_or_none)] max_deliveries: Option<u32>,
        dead_letter: Option<String>,
    ) -> PyResult<String> {
        let dead_letter = match (max_deliveries, dead_letter) {
            (None, None) => None,
            (Some(max_deliveries), Some(queue)) => Some(DeadLetter { max_deliveries, queue }),
            _ => {
                return Err(PyValueError::new_err(
                    "max_deliveries and dead_letter belong together: give both or neither",
                ));
            }
        };
        // The core sees to the limits, of numbers that it can be told.
        let narrow = |name: &str, value: u64, most: u32| {
            let error = || Error::Invalid(format!("{name} must be between 1 and {most}, not {value}"));
            u32::try_from(value).map_err(|_| error())
        };
        let options = Options {
            max_messages: narrow("max_messages", max_messages, MAX_MESSAGES)?,
            max_message_size: narrow("max_message_size", max_message_size, MAX_MESSAGE_SIZE)?,
            max_bytes,
            dead_letter,
            ..Options::default()
        };
        let id = py.detach(|| self.manager.create_queue(name, &options))?;
        Ok(id.to_string())
    }

    /// The id of the queue of this name; QueueNotFound when there is none.
    fn get_queue(&self, name: &str) -> PyResult<String> {
        Ok(self.manager.get_queue(name)?.to_string())
    }

    /// Delete a queue with all its messages, for everybody who uses it.
    fn delete_queue(&self, py: Python<'_>, queue_id: &str) -> PyResult<()> {
        let id = number(queue_id)?;
        Ok(py.detach(|| self.manager.delete_queue(id))?)
    }

    /// The names of all queues, sorted.
    fn names(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        Ok(py.detach(|| self.manager.names())?)
    }

    /// The queue of this name, with put, get and what else queue.Queue has.
    fn queue(&self, py: Python<'_>, name: &str) -> PyResult<Queue> {
        let named = py.detach(|| NamedQueue::open(&self.manager, name))?;
        Ok(Queue::new(named))
    }

    /// Add a copy of the data to a queue; never waits, QueueFull when there is no room.
    fn enqueue(&self, queue_id: &str, data: Payload<'_>) -> PyResult<()> {
        let queue = self.manager.numbered(number(queue_id)?)?;
        queue.enqueue(data.as_bytes(), self.manager.recently())?;
        Ok(())
    }

    /// Take the next message for ``timeout`` seconds, or None when there is none; never waits.
    fn read(&self, py: Python<'_>, queue_id: &str, timeout: LeaseTime) -> PyResult<Option<Message>> {
        let queue = self.manager.numbered(number(queue_id)?)?;
        while let Some(lease) = self.manager.lease(&queue, timeout.0)? {
            if let Some(message) = Message::of(py, &queue, &lease)? {
                return Ok(Some(message));
            }
        }
        Ok(None)
    }

    /// Finish a message: it is gone for good. MessageNotFound when it is no longer in the reader's hands.
    fn dequeue(&self, queue_id: &str, message: &Message) -> PyResult<()> {
        let id = number(queue_id)?;
        if id != message.queue_id {
            return Err(Error::MessageNotFound(format!(
                "message {} is one of queue {}, not of queue {id}",
                message.receipt.id, message.queue_id
            ))
            .into());
        }
        let queue = self.manager.numbered(id)?;
        Ok(queue.dequeue(&message.receipt, self.manager.time_to_finish(&queue))?)
    }

    /// Make the timeout of a message end ``timeout`` seconds from now, for long work.
    fn extend(&self, message: &Message, timeout: LeaseTime) -> PyResult<()> {
        let queue = self.manager.numbered(message.queue_id)?;
        Ok(queue.extend(&message.receipt, timeout.0, self.manager.now())?)
    }

    /// Give a message back now: it is read next, after those that came back before.
    fn release(&self, message: &Message) -> PyResult<()> {
        Ok(self.manager.release(message.queue_id, &message.receipt)?)
    }

    /// What a queue holds: ready, leased, expired, oldest_age.
    fn stats(&self, queue_id: &str) -> PyResult<Stats> {
        Ok(self.manager.stats(number(queue_id)?)?.into())
    }

    fn __repr__(&self) -> String {
        match self.manager.directory() {
            Some(directory) => format!("QueueManager.open({:?})", directory.display().to_string()),
            None => "QueueManager()".to_owned(),
        }
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
        let py = slf.py();
        let class = slf.get_type().into_any();
        match slf.get().manager.directory() {
            Some(directory) => Ok((class.getattr("open")?, (directory,).into_pyobject(py)?.into_any())),
            None => Ok((class, pyo3::types::PyTuple::empty(py).into_any())),
        }
    }
}

impl QueueManager {
    pub(super) fn of(manager: Manager) -> Self {
        QueueManager { manager }
    }
}

/// The number that an id stands for; an id that no queue can have is that of no queue.
#[inline]
fn number(queue_id: &str) -> Result<u64> {
    // Not `parse` alone: it takes a sign.
    let number = match queue_id.as_bytes() {
        [b'0'..=b'9', ..] => queue_id.parse().ok(),
        _ => None,
    };
    number.ok_or_else(|| Error::NotFound(format!("queue {queue_id:?}")))
}

/// What `info()` tells of a queue.
pub(super) fn describe<'py>(py: Python<'py>, named: &NamedQueue, url: Option<String>) -> PyResult<Bound<'py, PyDict>> {
    let (queue, manager) = (named.queue(), named.manager());
    let (stats, members) =
        py.detach(|| -> Result<_> { Ok((queue.stats(manager.now())?, queue.roster().members()?)) })?;
    let geometry = queue.geometry();
    let host_wide = manager.directory().is_some();

    let parameters = PyDict::new(py);
    parameters.set_item("max_messages", geometry.max_messages)?;
    parameters.set_item("max_message_size", geometry.max_message_size)?;
    let segment = u64::from(geometry.unit) * u64::from(geometry.units);
    parameters.set_item("max_bytes", segment * u64::from(geometry.segments))?;
    let dead = queue.dead_letter();
    parameters.set_item("max_deliveries", dead.map(|dead| dead.max_deliveries))?;
    parameters.set_item("dead_letter", dead.map(|dead| dead.queue.clone()))?;

    let counters = PyDict::new(py);
    counters.set_item("ready", stats.ready)?;
    counters.set_item("leased", stats.leased)?;
    counters.set_item("expired", stats.expired)?;
    counters.set_item("oldest_age", stats.oldest_age.map(|age| age as f64 / 1e9))?;
    counters.set_item("enqueued", stats.enqueued)?;
    counters.set_item("repairs", stats.repairs)?;

    let participants = PyDict::new(py);
    let alive = members.iter().filter(|(_, alive)| *alive).count();
    participants.set_item("alive", alive)?;
    participants.set_item("dead", members.len() - alive)?;

    let info = PyDict::new(py);
    info.set_item("kind", "conq")?;
    info.set_item("url", url)?;
    info.set_item("path", queue.region().path().map(PathBuf::from))?;
    info.set_item("format", core::layout::VERSION)?;
    info.set_item("id", queue.id().to_string())?;
    info.set_item("name", named.name())?;
    info.set_item("parameters", parameters)?;
    info.set_item("counters", counters)?;
    info.set_item("participants", participants)?;
    info.set_item(
        "promises",
        [
            "every message whose enqueue returned is delivered until it is dequeued",
            "an unfinished message comes back after its timeout, before anything new",
            "a stale delivery never finishes somebody else's",
            if host_wide {
                "a process killed at any instruction neither loses a message nor stops the others"
            } else {
                "the queue ends with its process"
            },
        ],
    )?;
    Ok(info)
}
