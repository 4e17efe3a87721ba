//! `tailrace.ring`: fixed slots, the oldest message overwritten when all are full.

mod batches;
mod handle;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyType};

use self::handle::{Handle, Patience};
use super::arrow::{BatchBuilder, MessageBatch, pyarrow};
use super::buffer::Payload;
use super::messages::Messages;
use super::number::whole;
use super::wait::{Timeout, waiting};
use crate::ring::{self as core, Message, Options, layout};
use crate::shared::signal::Wait;
use crate::{Error, Result};

/// The ring.
#[pymodule]
pub(crate) mod ring {
    #[pymodule_export]
    use super::Queue;
}

/// How long `enqueue` waits for a participant that was stopped where it is in the way of everybody.
const PATIENCE: Duration = Duration::from_secs(1);

/// A ring of fixed slots in shared memory: the latest messages of any number of writers, for any number of readers.
///
/// >>> import os, tempfile
/// >>> from tailrace import ring
/// >>> with ring.Queue.create(os.path.join(tempfile.mkdtemp(), "prices"), max_len=2, msg_size=1) as q:
/// ...     q.put_many([b"%08d" % price for price in (1, 2, 3)])
/// ...     q.latest(), q.dequeue(), q.counters["overwritten"]
/// 3
/// (b'00000003', b'00000002', 1)
#[pyclass(frozen, module = "tailrace.ring", name = "Queue")]
#[derive(Debug)]
pub(crate) struct Queue {
    handle: Handle,
}

/// A sequence number, where it is known, and the message.
type Numbered<'py> = (Option<u64>, Bound<'py, PyBytes>);
/// Path and foreign_timeout.
type OpenArguments = (PathBuf, Option<f64>);

#[pymethods]
impl Queue {
    /// Creates the file at `path`: `max_len` slots for messages of `msg_size` 64-bit words.
    #[classmethod]
    #[pyo3(signature = (path, max_len=1024, msg_size=8, foreign_timeout=None))]
    fn create(
        _class: &Bound<'_, PyType>,
        py: Python<'_>,
        path: PathBuf,
        #[pyo3(from_py_with = whole)] max_len: u32,
        #[pyo3(from_py_with = whole)] msg_size: u32,
        foreign_timeout: Option<Timeout>,
    ) -> PyResult<Self> {
        let path = std::path::absolute(path)?;
        let options = Options {
            foreign_timeout: foreign_timeout.and_then(|limit| limit.0),
        };
        let queue = py.detach(|| core::Queue::create_with(&path, max_len, msg_size, options))?;
        Ok(Queue::new(queue, Some(path)))
    }

    /// Opens an existing ring, and puts in order what dead participants left behind.
    #[classmethod]
    #[pyo3(signature = (path, foreign_timeout=None))]
    fn open(
        _class: &Bound<'_, PyType>,
        py: Python<'_>,
        path: PathBuf,
        foreign_timeout: Option<Timeout>,
    ) -> PyResult<Self> {
        let path = std::path::absolute(path)?;
        let options = Options {
            foreign_timeout: foreign_timeout.and_then(|limit| limit.0),
        };
        let queue = py.detach(|| core::Queue::open_with(&path, options))?;
        Ok(Queue::new(queue, Some(path)))
    }

    /// A ring without a name, for the threads of this process and its forked children.
    #[classmethod]
    #[pyo3(signature = (max_len=1024, msg_size=8))]
    fn anonymous(
        _class: &Bound<'_, PyType>,
        #[pyo3(from_py_with = whole)] max_len: u32,
        #[pyo3(from_py_with = whole)] msg_size: u32,
    ) -> PyResult<Self> {
        Ok(Queue::new(core::Queue::anonymous(max_len, msg_size)?, None))
    }

    /// Slots of the ring.
    #[getter]
    fn max_len(&self) -> u32 {
        self.handle.max_len
    }

    /// 64-bit words of a message.
    #[getter]
    fn msg_size(&self) -> u32 {
        self.handle.msg_size
    }

    /// Bytes of a message: 8 * msg_size.
    #[getter]
    fn message_bytes(&self) -> usize {
        self.handle.message_bytes
    }

    /// The file of the ring, or None.
    #[getter]
    fn path(&self) -> Option<PathBuf> {
        self.handle.path.clone()
    }

    /// Puts a message in, at the cost of the oldest one if the ring is full. Shorter ones are padded with zeros,
    /// MessageTooLarge for longer ones.
    fn enqueue(&self, py: Python<'_>, data: Payload<'_>) -> PyResult<()> {
        self.put_one(py, data.as_bytes(), Some(Timeout(Some(PATIENCE))))
    }

    /// Takes the oldest message out. Waits for one; QueueEmpty when the time is up.
    #[pyo3(signature = (timeout=None))]
    fn dequeue<'py>(&self, py: Python<'py>, timeout: Option<Timeout>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(self.take(py, timeout)?.1)
    }

    /// As `dequeue`, with the sequence number of the message: a gap says how many messages this reader missed. None for the
    /// message of a foreign program.
    #[pyo3(signature = (timeout=None))]
    fn dequeue_with_sequence<'py>(&self, py: Python<'py>, timeout: Option<Timeout>) -> PyResult<Numbered<'py>> {
        self.take(py, timeout)
    }

    /// The messages in the queue with their sequence numbers, oldest first, none of them taken and none torn.
    fn snapshot<'py>(&self, py: Python<'py>) -> PyResult<Vec<Numbered<'py>>> {
        let messages = self.look(py)?;
        Ok(messages
            .iter()
            .map(|message| (message.sequence, PyBytes::new(py, &message.data)))
            .collect())
    }

    /// As `snapshot`, as a pyarrow array, and the sequence numbers as the bytes of so many 64-bit integers (-1 for the message
    /// of a foreign program).
    fn snapshot_arrow<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyBytes>)> {
        let messages = self.look(py)?;
        let bytes = messages.iter().map(|message| message.data.len()).sum();
        let mut batch = BatchBuilder::with_capacity(messages.len(), bytes);
        let mut sequences = Vec::with_capacity(messages.len() * 8);
        for message in &messages {
            batch.append(&message.data)?;
            let number = message.sequence.map_or(-1, |sequence| sequence as i64);
            sequences.extend_from_slice(&number.to_le_bytes());
        }
        let array = MessageBatch::to_pyarrow(&Bound::new(py, batch.finish()?)?)?;
        Ok((array, PyBytes::new(py, &sequences)))
    }

    /// The messages in the queue, oldest first, none of them taken and none torn.
    fn peek_all<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let messages = self.look(py)?;
        Ok(messages.iter().map(|message| PyBytes::new(py, &message.data)).collect())
    }

    /// The newest message that is there in full, not taken; None when there is none.
    fn latest<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let queue = self.open_queue()?;
        let latest = py.detach(|| queue.latest())?;
        Ok(latest.map(|message| PyBytes::new(py, &message.data)))
    }

    /// What became of the messages, exact also after deaths.
    #[getter]
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let queue = self.open_queue()?;
        let counters = py.detach(|| queue.counters())?;
        let dict = PyDict::new(py);
        dict.set_item("enqueued", counters.enqueued)?;
        dict.set_item("overwritten", counters.overwritten)?;
        dict.set_item("abandoned", counters.abandoned)?;
        dict.set_item("lost_in_hands", counters.lost_in_hands)?;
        dict.set_item("discarded", counters.discarded)?;
        dict.set_item("queued", counters.queued)?;
        Ok(dict)
    }

    /// Frees what dead participants hold, and says how many slots that were. Happens by itself where it matters.
    fn recover(&self, py: Python<'_>) -> PyResult<u64> {
        let queue = self.open_queue()?;
        Ok(py.detach(|| queue.recover())?)
    }

    /// As `enqueue`. A ring is never full: `timeout` bounds only the wait for a participant that was stopped in the way
    /// of everybody, QueueFull when that is up.
    #[pyo3(signature = (data, timeout=None))]
    fn put(&self, py: Python<'_>, data: Payload<'_>, timeout: Option<Timeout>) -> PyResult<()> {
        self.put_one(py, data.as_bytes(), timeout)
    }

    /// As `dequeue`.
    #[pyo3(signature = (timeout=None))]
    fn get<'py>(&self, py: Python<'py>, timeout: Option<Timeout>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(self.take(py, timeout)?.1)
    }

    /// Puts all messages in one call, after checking them all. Says how many they were.
    #[pyo3(signature = (messages, timeout=None))]
    fn put_many(&self, py: Python<'_>, messages: Messages<'_>, timeout: Option<Timeout>) -> PyResult<usize> {
        let limit = self.handle.message_bytes;
        let slices = messages.as_slices();
        if let Some(longer) = slices.iter().map(|message| message.len()).find(|&size| size > limit) {
            return Err(too_large(longer, limit).into());
        }
        let queue = self.open_queue()?;
        self.handle.put_all(py, &queue, &slices, &mut Patience::new(timeout))?;
        Ok(slices.len())
    }

    /// Takes up to `n` messages: waits for the first as `get` does, then takes whatever is there.
    #[pyo3(signature = (n, timeout=None))]
    fn get_many<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = whole)] n: usize,
        timeout: Option<Timeout>,
    ) -> PyResult<Bound<'py, PyList>> {
        let queue = self.open_queue()?;
        if n == 0 {
            return Ok(PyList::empty(py));
        }
        let mut taken = Vec::new();
        batches::take(py, &queue, n, &mut taken)?;
        if taken.is_empty() {
            taken.push(self.take(py, timeout)?.1);
            // What goes wrong after the first message shows at the next call: that one is taken already.
            let _ = batches::take(py, &queue, n, &mut taken);
        }
        // Made when no slot is held: making a list may run the garbage collector.
        PyList::new(py, taken)
    }

    /// As `get_many`, as a pyarrow array that was filled without a Python object for any message.
    #[pyo3(signature = (n, timeout=None))]
    fn get_arrow<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = whole)] n: usize,
        timeout: Option<Timeout>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let queue = self.open_queue()?;
        pyarrow(py)?;
        let mut array = batches::array_for(&queue, n);
        batches::append(&queue, n, &mut array)?;
        if n > 0 && array.len() == 0 {
            let size = queue.message_bytes();
            let now = |out: &mut [u8]| queue.try_dequeue_into(out)?.map(drop).ok_or(Error::Empty);
            match array.append_with(size, now) {
                Err(Error::Empty) => array.append(&self.handle.wait_for_message(py, &queue, timeout)?.data)?,
                appended => appended?,
            }
            // What goes wrong after the first message shows at the next call: that one is taken already.
            let _ = batches::append(&queue, n, &mut array);
        }
        MessageBatch::to_pyarrow(&Bound::new(py, array.finish()?)?)
    }

    /// Messages in the queue: a moment's view.
    fn qsize(&self) -> PyResult<usize> {
        Ok(self.open_queue()?.len())
    }

    /// Waits until there may be a message, and takes none: for asyncio.
    fn _wait_readable(&self, py: Python<'_>, timeout: Timeout) -> PyResult<bool> {
        let wait = Wait::from_timeout(timeout.0);
        let queue = self.open_queue()?;
        waiting(py, |idle| {
            let look_around = || {
                idle()?;
                self.handle.queue.check()
            };
            queue.wait_for_arrival(wait, look_around)
        })
    }

    /// Whether there is no message: a moment's view.
    fn empty(&self) -> PyResult<bool> {
        Ok(self.open_queue()?.is_empty())
    }

    /// Whether the next message will overwrite the oldest: a moment's view.
    fn full(&self) -> PyResult<bool> {
        Ok(self.open_queue()?.is_full())
    }

    /// Leaves the ring and gives its memory and descriptors back; whoever waits in this handle gets QueueClosed. The file
    /// stays.
    fn close(&self) {
        drop(self.handle.queue.close());
    }

    /// Whether the handle was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.handle.queue.is_closed()
    }

    /// What is known about the ring, for people and metrics.
    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let queue = self.open_queue()?;
        let participants = py.detach(|| queue.participants())?;
        let alive = participants.iter().filter(|(_, lives)| *lives).count();
        let trailer = queue.has_trailer();
        let format = PyDict::new(py);
        format.set_item("magic", format!("{:#018x}", layout::MAGIC))?;
        format.set_item("trailer", trailer.then_some(layout::TRAILER_VERSION))?;
        let parameters = PyDict::new(py);
        parameters.set_item("max_len", queue.max_len())?;
        parameters.set_item("msg_size", queue.msg_size())?;
        parameters.set_item("message_bytes", queue.message_bytes())?;
        let members = PyDict::new(py);
        members.set_item("alive", alive)?;
        members.set_item("dead", participants.len() - alive)?;
        let dict = PyDict::new(py);
        dict.set_item("kind", "ring")?;
        dict.set_item("path", self.handle.path.as_ref().map(|path| path.display().to_string()))?;
        dict.set_item("format", format)?;
        dict.set_item("parameters", parameters)?;
        dict.set_item("counters", self.counters(py)?)?;
        dict.set_item("participants", members)?;
        dict.set_item("trailer", trailer)?;
        dict.set_item("foreign_seen", queue.foreign_seen())?;
        dict.set_item("promises", PyList::new(py, promises(trailer))?)?;
        Ok(dict)
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
        let queue = self.open_queue()?;
        let taken = take_now(py, &queue)?;
        Ok(taken.map(|(_, message)| message))
    }

    fn __enter__<'py>(slf: &Bound<'py, Self>) -> Bound<'py, Self> {
        slf.clone()
    }

    fn __exit__(&self, _kind: &Bound<'_, PyAny>, _error: &Bound<'_, PyAny>, _traceback: &Bound<'_, PyAny>) {
        self.close();
    }

    /// Travels as (open, path).
    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, OpenArguments)> {
        let this = slf.get();
        let Some(path) = this.handle.path.clone() else {
            return Err(PyTypeError::new_err(
                "a ring in anonymous memory has no path and cannot be pickled: create it in a file to hand it to other processes",
            ));
        };
        let foreign_timeout = this.handle.options.foreign_timeout.map(|limit| limit.as_secs_f64());
        Ok((slf.get_type().getattr("open")?, (path, foreign_timeout)))
    }

    fn __repr__(&self) -> String {
        match &self.handle.path {
            Some(path) => format!("<tailrace.ring.Queue {:?}>", path.display().to_string()),
            None => "<tailrace.ring.Queue in anonymous memory>".into(),
        }
    }
}

impl Queue {
    fn new(queue: core::Queue, path: Option<PathBuf>) -> Self {
        Queue {
            handle: Handle::new(queue, path),
        }
    }

    #[inline]
    fn open_queue(&self) -> Result<Arc<core::Queue>> {
        self.handle.open()
    }

    #[inline]
    fn put_one(&self, py: Python<'_>, message: &[u8], timeout: Option<Timeout>) -> PyResult<()> {
        let limit = self.handle.message_bytes;
        if message.len() > limit {
            return Err(too_large(message.len(), limit).into());
        }
        let queue = self.open_queue()?;
        self.handle.put_within(py, &queue, message, &mut Patience::new(timeout))
    }

    #[inline]
    fn take<'py>(&self, py: Python<'py>, timeout: Option<Timeout>) -> PyResult<Numbered<'py>> {
        let queue = self.open_queue()?;
        if let Some(taken) = take_now(py, &queue)? {
            return Ok(taken);
        }
        let message = self.handle.wait_for_message(py, &queue, timeout)?;
        Ok((message.sequence, PyBytes::new(py, &message.data)))
    }

    fn look(&self, py: Python<'_>) -> PyResult<Vec<Message>> {
        let queue = self.open_queue()?;
        Ok(py.detach(|| queue.snapshot())?)
    }
}

/// Takes a message if one is there, straight into the bytes that Python gets.
#[inline]
fn take_now<'py>(py: Python<'py>, queue: &core::Queue) -> PyResult<Option<Numbered<'py>>> {
    if queue.is_empty() {
        return Ok(None);
    }
    let mut taken = None;
    let bytes = PyBytes::new_with(py, queue.message_bytes(), |out| {
        taken = queue.try_dequeue_into(out)?;
        Ok(())
    })?;
    Ok(taken.map(|sequence| (sequence, bytes)))
}

fn too_large(size: usize, limit: usize) -> Error {
    Error::TooLarge {
        size: size as u64,
        limit: limit as u64,
    }
}

/// What holds for a file, in words.
fn promises(trailer: bool) -> &'static [&'static str] {
    if trailer {
        &[
            "a participant that dies blocks nobody: its locks are taken over",
            "writers never wait for readers or for other writers",
            "no message is delivered torn; those that died with a process are counted",
            "messages carry sequence numbers",
        ]
    } else {
        &[
            "the file has no trailer: nobody can tell a dead participant from a slow one, only foreign_timeout helps",
            "writers wait for readers that are still copying, up to a deadline",
            "counters and sequence numbers are this handle's own",
            "readers look for messages every 25 ms instead of being woken",
        ]
    }
}
