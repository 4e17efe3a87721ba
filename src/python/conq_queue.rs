//! One queue of `tailrace.conq` with the habits of `queue.Queue`.

use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use super::arrow::{BatchBuilder, MessageBatch, pyarrow};
use super::buffer::{Payload, message_bytes};
use super::conq::{LeaseTime, Message, QueueManager, Stats, describe};
use super::messages::Messages;
use super::number::whole;
use super::wait::{Timeout, waiting};
use crate::conq::NamedQueue;
use crate::conq::queue::Lease;
use crate::conq::wait::{GET_LEASE, Idle};
use crate::shared::signal::Wait;
use crate::{Error, Result};

/// One queue by name; ``manager.queue(name)`` gives it.
///
/// >>> import tempfile
/// >>> from tailrace import conq
/// >>> m = conq.QueueManager.open(tempfile.mkdtemp())
/// >>> _ = m.create_queue("jobs")
/// >>> q = m.queue("jobs")
/// >>> q.put_many([b"a", b"b", b"c"])
/// 3
/// >>> q.get(timeout=1), q.get_many(10)
/// (b'a', [b'b', b'c'])
#[pyclass(frozen, module = "tailrace.conq")]
#[derive(Debug)]
pub(crate) struct Queue {
    named: NamedQueue,
    closed: AtomicBool,
}

impl Queue {
    pub(super) fn new(named: NamedQueue) -> Self {
        Queue {
            named,
            closed: AtomicBool::new(false),
        }
    }

    #[inline]
    pub(super) fn open(&self) -> Result<&NamedQueue> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(Error::Closed);
        }
        Ok(&self.named)
    }

    /// Leases up to `limit` messages, waiting for the first.
    fn leases(&self, py: Python<'_>, limit: usize, timeout: Timeout) -> PyResult<Vec<Lease>> {
        if limit == 0 {
            return Err(PyValueError::new_err(
                "the number of messages must be at least 1, not 0",
            ));
        }
        let named = self.open()?;
        let at_once = named.read_many(limit, GET_LEASE, Wait::No, &mut || Ok(()))?;
        if !at_once.is_empty() || timeout == Timeout::ZERO {
            return Ok(at_once);
        }
        let wait = timeout.wait();
        self.waiting(py, |idle| named.read_many(limit, GET_LEASE, wait, idle))
    }

    /// Leases one message, waiting for it.
    #[inline]
    fn lease_one(&self, py: Python<'_>, lease: u64, timeout: Timeout) -> PyResult<Option<Lease>> {
        let named = self.open()?;
        let at_once = named.manager().lease(named.queue(), lease)?;
        if at_once.is_some() || timeout == Timeout::ZERO {
            return Ok(at_once);
        }
        let wait = timeout.wait();
        self.waiting(py, |idle| named.read(lease, wait, idle))
    }

    /// Waits detached; closing the handle ends the wait.
    fn waiting<T: Send>(&self, py: Python<'_>, body: impl FnOnce(Idle<'_>) -> Result<T> + Send) -> PyResult<T> {
        waiting(py, |idle| {
            body(&mut || {
                idle()?;
                self.open().map(drop)
            })
        })
    }

    /// Finishes what was copied; gives the places of those that somebody else has by now.
    fn finish(&self, leases: &[Lease]) -> Result<Vec<bool>> {
        let receipts: Vec<_> = leases.iter().map(|lease| lease.receipt).collect();
        self.named.queue().dequeue_many(&receipts, self.named.manager().now())
    }

    fn url(&self) -> Option<String> {
        let directory = self.named.manager().directory()?;
        Some(format!("conq:{}#{}", directory.display(), self.named.name()))
    }
}

#[pymethods]
impl Queue {
    /// The name of the queue.
    #[getter]
    fn name(&self) -> &str {
        self.named.name()
    }

    /// The id of the queue in its manager.
    #[getter]
    fn id(&self) -> String {
        self.named.queue().id().to_string()
    }

    /// The manager of the queue.
    #[getter]
    fn manager(&self) -> QueueManager {
        QueueManager::of(self.named.manager().clone())
    }

    /// The most bytes of a message.
    #[getter]
    fn max_message_size(&self) -> u32 {
        self.named.queue().geometry().max_message_size
    }

    /// The most messages at a time.
    #[getter]
    fn max_messages(&self) -> u32 {
        self.named.queue().geometry().max_messages
    }

    /// Add a message, waiting for room; QueueFull when the timeout is over.
    #[pyo3(signature = (data, timeout=Timeout::FOREVER), text_signature = "($self, data, timeout=None)")]
    fn put(&self, py: Python<'_>, data: Payload<'_>, timeout: Timeout) -> PyResult<()> {
        let bytes = data.as_bytes();
        self.named.queue().check_size(bytes.len())?;
        let named = self.open()?;
        match named.queue().enqueue(bytes, named.manager().recently()) {
            Err(Error::Full(_)) if timeout != Timeout::ZERO => {
                let wait = timeout.wait();
                self.waiting(py, |idle| named.put(bytes, wait, idle))?;
                Ok(())
            }
            other => Ok(other.map(drop)?),
        }
    }

    /// Add several messages, waiting for room as long as the timeout allows for all of them; returns how many were added,
    /// which is fewer than given only when the timeout was over first (and never 0: that is QueueFull).
    #[pyo3(signature = (messages, timeout=Timeout::FOREVER), text_signature = "($self, messages, timeout=None)")]
    fn put_many(&self, py: Python<'_>, messages: Messages<'_>, timeout: Timeout) -> PyResult<usize> {
        // All of them are looked at before the first is added.
        let slices = messages.as_slices();
        slices
            .iter()
            .try_for_each(|data| self.named.queue().check_size(data.len()))?;
        let named = self.open()?;
        let wait = timeout.wait();
        let queue = named.queue();
        for (done, &bytes) in slices.iter().enumerate() {
            match queue.enqueue_quietly(bytes, named.manager().recently()) {
                Ok(_) => {}
                Err(Error::Full(_)) if timeout != Timeout::ZERO => {
                    queue.announce_arrivals();
                    match self.waiting(py, |idle| match named.put(bytes, wait, idle) {
                        Err(Error::Full(_)) if done > 0 => Ok(None),
                        other => other.map(Some),
                    })? {
                        Some(_) => {}
                        None => return Ok(done),
                    }
                }
                Err(Error::Full(_)) if done > 0 => {
                    queue.announce_arrivals();
                    return Ok(done);
                }
                Err(error) => {
                    queue.announce_arrivals();
                    return Err(error.into());
                }
            }
        }
        queue.announce_arrivals();
        Ok(slices.len())
    }

    /// Take a message out for good, waiting for one; QueueEmpty when the timeout is over.
    ///
    /// It is read, copied and dequeued in one call. Who is killed inside it gives the message back after 30 seconds; who is
    /// killed after it has lost the message: use ``lease`` for work that must be finished.
    #[pyo3(signature = (timeout=Timeout::FOREVER), text_signature = "($self, timeout=None)")]
    fn get(&self, py: Python<'_>, timeout: Timeout) -> PyResult<Py<PyBytes>> {
        loop {
            let lease = self.lease_one(py, GET_LEASE, timeout)?.ok_or(Error::Empty)?;
            let bytes = self.named.queue().bytes_of(&lease);
            let data = message_bytes(py, &bytes)?;
            if bytes.were_held() && self.named.finish(&lease.receipt)? {
                return Ok(data.unbind());
            }
        }
    }

    /// Take up to ``count`` messages out for good: waits like ``get`` for the first, then takes what is there.
    #[pyo3(signature = (count, timeout=Timeout::FOREVER), text_signature = "($self, count, timeout=None)")]
    fn get_many(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = whole)] count: usize,
        timeout: Timeout,
    ) -> PyResult<Vec<Py<PyBytes>>> {
        loop {
            let leases = self.leases(py, count, timeout)?;
            if leases.is_empty() {
                return Err(Error::Empty.into());
            }
            let (mut copied, mut messages) = (Vec::with_capacity(leases.len()), Vec::with_capacity(leases.len()));
            for lease in leases {
                let bytes = self.named.queue().bytes_of(&lease);
                let data = message_bytes(py, &bytes)?;
                if bytes.were_held() {
                    copied.push(lease);
                    messages.push(data.unbind());
                }
            }
            let mut finished = self.finish(&copied)?.into_iter();
            messages.retain(|_| finished.next().unwrap_or(false));
            if !messages.is_empty() {
                return Ok(messages);
            }
        }
    }

    /// As ``get_many``, as one ``pyarrow.BinaryArray`` without a Python object for each message.
    #[pyo3(signature = (count, timeout=Timeout::FOREVER), text_signature = "($self, count, timeout=None)")]
    fn get_arrow<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = whole)] count: usize,
        timeout: Timeout,
    ) -> PyResult<Bound<'py, PyAny>> {
        pyarrow(py)?;
        loop {
            let leases = self.leases(py, count, timeout)?;
            if leases.is_empty() {
                return Err(Error::Empty.into());
            }
            let batch = py.detach(|| self.batch(&leases))?;
            if batch.len() > 0 {
                return MessageBatch::to_pyarrow(&Bound::new(py, batch.finish()?)?);
            }
        }
    }

    /// Messages in all phases: ready, leased and expired; a moment's view.
    fn qsize(&self) -> PyResult<u64> {
        let queue = self.open()?.queue();
        queue.check_usable()?;
        Ok(queue.len())
    }

    /// Waits until there may be a message to read, and reads none: for asyncio.
    fn _wait_readable(&self, py: Python<'_>, timeout: Timeout) -> PyResult<bool> {
        let named = self.open()?;
        let wait = Wait::from_timeout(timeout.0);
        self.waiting(py, |idle| named.wait_until_readable(wait, idle))
    }

    /// Whether nothing can be read now: no message is ready or expired.
    fn empty(&self) -> PyResult<bool> {
        let stats = self.stats()?;
        Ok(stats.readable() == 0)
    }

    /// Whether there is no room for another message.
    fn full(&self) -> PyResult<bool> {
        let queue = self.open()?.queue();
        queue.check_usable()?;
        Ok(queue.len() >= u64::from(queue.geometry().max_messages))
    }

    /// Add a copy of the data; never waits, QueueFull when there is no room.
    fn enqueue(&self, data: Payload<'_>) -> PyResult<()> {
        let bytes = data.as_bytes();
        self.named.queue().check_size(bytes.len())?;
        let named = self.open()?;
        named.queue().enqueue(bytes, named.manager().recently())?;
        Ok(())
    }

    /// Take the next message for ``timeout`` seconds, or None when there is none; never waits.
    fn read(&self, py: Python<'_>, timeout: LeaseTime) -> PyResult<Option<Message>> {
        let named = self.open()?;
        while let Some(lease) = named.manager().lease(named.queue(), timeout.0)? {
            if let Some(message) = Message::of(py, named.queue(), &lease)? {
                return Ok(Some(message));
            }
        }
        Ok(None)
    }

    /// Finish a message: it is gone for good.
    fn dequeue(&self, message: &Message) -> PyResult<()> {
        let named = self.own(message)?;
        let now = named.manager().time_to_finish(named.queue());
        Ok(named.queue().dequeue(&message.receipt, now)?)
    }

    /// Make the timeout of a message end ``timeout`` seconds from now.
    fn extend(&self, message: &Message, timeout: LeaseTime) -> PyResult<()> {
        let named = self.own(message)?;
        Ok(named
            .queue()
            .extend(&message.receipt, timeout.0, named.manager().now())?)
    }

    /// Give a message back now.
    fn release(&self, message: &Message) -> PyResult<()> {
        let named = self.own(message)?;
        Ok(named.queue().release(&message.receipt, named.manager().now())?)
    }

    /// ``with queue.lease(30.0) as message:`` dequeues the message at the end of the block, or releases it when the block
    /// raises. Waits ``wait`` seconds for a message (for ever by default); QueueEmpty after that.
    #[pyo3(signature = (timeout, wait=Timeout::FOREVER), text_signature = "($self, timeout, wait=None)")]
    fn lease(slf: Py<Self>, timeout: LeaseTime, wait: Timeout) -> Delivery {
        Delivery {
            queue: slf,
            timeout,
            wait,
            message: std::sync::Mutex::new(None),
        }
    }

    /// What the queue holds: ready, leased, expired, oldest_age.
    fn stats(&self) -> PyResult<Stats> {
        let named = self.open()?;
        Ok(named.queue().stats(named.manager().now())?.into())
    }

    /// Everything there is to know about the queue, for people and monitoring.
    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        describe(py, self.open()?, self.url())
    }

    /// Close this handle; the queue and its messages stay.
    fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, pyo3::types::PyTuple>) {
        self.close();
    }

    fn __repr__(&self) -> String {
        let name = self.named.name();
        match self.named.manager().directory() {
            Some(directory) => format!(
                "QueueManager.open({:?}).queue({name:?})",
                directory.display().to_string()
            ),
            None => format!("QueueManager().queue({name:?})"),
        }
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, (QueueManager, String))> {
        let open = py.import("tailrace.conq")?.getattr("_queue")?;
        Ok((open, (self.manager(), self.named.name().to_owned())))
    }
}

impl Queue {
    fn own(&self, message: &Message) -> Result<&NamedQueue> {
        let named = self.open()?;
        if message.queue_id != named.queue().id() {
            return Err(Error::MessageNotFound(format!(
                "message {} is one of queue {}, not of queue {}",
                message.receipt.id,
                message.queue_id,
                named.queue().id()
            )));
        }
        Ok(named)
    }

    /// Copies and finishes what fits into one array; the rest goes back.
    fn batch(&self, leases: &[Lease]) -> Result<BatchBuilder> {
        let queue = self.named.queue();
        let bytes = leases.iter().map(|lease| lease.length).sum();
        let mut copies = Vec::with_capacity(leases.len());
        let mut held = Vec::with_capacity(leases.len());
        let mut room = BatchBuilder::with_capacity(0, 0).room();
        for lease in leases {
            let mut copy = Vec::new();
            if lease.length <= room {
                if queue.append_to(lease, &mut copy) {
                    room -= copy.len();
                    copies.push(copy);
                    held.push(*lease);
                }
            } else {
                room = 0;
                let _ = queue.release(&lease.receipt, self.named.manager().now());
            }
        }
        let finished = self.finish(&held)?;
        let mut batch = BatchBuilder::with_capacity(held.len(), bytes);
        for (copy, _) in copies.iter().zip(finished).filter(|(_, finished)| *finished) {
            batch.append(copy)?;
        }
        Ok(batch)
    }
}

/// A message on loan for the length of a ``with`` block.
///
/// >>> import tempfile
/// >>> from tailrace import conq
/// >>> m = conq.QueueManager.open(tempfile.mkdtemp())
/// >>> _ = m.create_queue("jobs")
/// >>> q = m.queue("jobs")
/// >>> q.put(b"resize")
/// >>> with q.lease(30.0) as message:  # dequeued at the end, given back if the block raises
/// ...     message.data
/// b'resize'
/// >>> q.empty()
/// True
#[pyclass(frozen, module = "tailrace.conq")]
#[derive(Debug)]
pub(crate) struct Delivery {
    queue: Py<Queue>,
    timeout: LeaseTime,
    wait: Timeout,
    message: std::sync::Mutex<Option<Py<Message>>>,
}

#[pymethods]
impl Delivery {
    fn __enter__(&self, py: Python<'_>) -> PyResult<Py<Message>> {
        let queue = self.queue.get();
        loop {
            let lease = queue.lease_one(py, self.timeout.0, self.wait)?.ok_or(Error::Empty)?;
            if let Some(message) = Message::of(py, queue.named.queue(), &lease)? {
                let message = Py::new(py, message)?;
                let mut held = self.message.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                *held = Some(message.clone_ref(py));
                return Ok(message);
            }
        }
    }

    fn __exit__(
        &self,
        kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        let mut held = self.message.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let message = held
            .take()
            .ok_or_else(|| PyRuntimeError::new_err("the block was never entered"))?;
        drop(held);
        let queue = self.queue.get();
        if kind.is_none() {
            queue.dequeue(message.get())?;
        } else if let Ok(named) = queue.own(message.get()) {
            // The exception of the block matters more than a lease that has ended.
            let _ = named.queue().release(&message.get().receipt, named.manager().now());
        }
        Ok(false)
    }
}
