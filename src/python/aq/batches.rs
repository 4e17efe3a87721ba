//! Many messages in one call: put from a list, taken into a list or an Arrow array.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use super::super::arrow::{BatchBuilder, MessageBatch, pyarrow};
use super::super::buffer::message_bytes;
use super::super::wait::Timeout;
use super::Queue;
use crate::aq::{Reader, Taken, Verdict};
use crate::{Error, Result};

/// The most messages whose places a batch reserves in advance; more come as they come.
const RESERVE: usize = 1 << 16;
/// The most bytes.
const RESERVE_BYTES: usize = 8 << 20;

impl Queue {
    /// Puts as many as there is room for within the time.
    pub(super) fn put_all(&self, py: Python<'_>, slices: &[&[u8]], timeout: Timeout) -> PyResult<usize> {
        self.handle
            .with_writer(|writer| slices.iter().try_for_each(|bytes| writer.check_fits(bytes.len())))?;
        let mut count = self
            .handle
            .with_writer(|writer| writer.try_put_many(slices.iter().copied()))?;
        if count == slices.len() {
            return Ok(count);
        }
        self.handle.give_back()?;
        count += self
            .handle
            .with_writer(|writer| writer.try_put_many(slices[count..].iter().copied()))?;
        if count == slices.len() {
            return Ok(count);
        }
        let rest = &slices;
        let outcome = self.handle.wait_for_room(py, timeout, |writer| {
            count += writer.try_put_many(rest[count..].iter().copied())?;
            if count < rest.len() {
                writer.make_room(rest[count].len())?;
            }
            Ok((count == rest.len()).then_some(()))
        });
        match outcome {
            Ok(None) if count == 0 => {
                let size = slices[0].len();
                Err(self
                    .handle
                    .with_writer(|writer| Err::<(), _>(writer.full(size)))
                    .unwrap_err()
                    .into())
            }
            Ok(_) => Ok(count),
            Err(error) => Err(error),
        }
    }

    /// Up to `n` messages; waits for the first.
    pub(super) fn take_list<'py>(&self, py: Python<'py>, n: usize, timeout: Timeout) -> PyResult<Bound<'py, PyList>> {
        if n == 0 {
            return Ok(PyList::empty(py));
        }
        // The list is made when the reader's lock is not held: making it may run the garbage collector.
        let mut messages: Vec<Bound<'py, PyBytes>> = Vec::with_capacity(n.min(RESERVE));
        let mut failed = None;
        self.handle.with_reader(|reader| {
            reader.take_many(n, |message| match message_bytes(py, message) {
                Ok(bytes) => {
                    messages.push(bytes);
                    Ok(Verdict::Taken)
                }
                Err(error) => {
                    failed = Some(error);
                    Ok(Verdict::NoRoom)
                }
            })
        })?;
        if let (true, Some(error)) = (messages.is_empty(), failed) {
            return Err(error);
        }
        if !messages.is_empty() {
            return PyList::new(py, messages);
        }
        let waited = self.handle.wait_for_commit(py, timeout, |reader| {
            let mut copies: Vec<Vec<u8>> = Vec::new();
            reader.take_many(n, |message| {
                copies.push(copied(message)?);
                Ok(Verdict::Taken)
            })?;
            Ok((!copies.is_empty()).then_some(copies))
        })?;
        let copies = waited.ok_or(Error::Empty)?;
        PyList::new(py, copies.iter().map(|bytes| PyBytes::new(py, bytes)))
    }

    /// The same as an Arrow array.
    pub(super) fn take_array<'py>(&self, py: Python<'py>, n: usize, timeout: Timeout) -> PyResult<Bound<'py, PyAny>> {
        pyarrow(py)?;
        let mut batch = self.handle.with_reader(|reader| fill(reader, n))?;
        if batch.len() == 0 && n > 0 {
            let waited = self.handle.wait_for_commit(py, timeout, |reader| {
                let batch = fill(reader, n)?;
                Ok((batch.len() > 0).then_some(batch))
            })?;
            batch = waited.ok_or(Error::Empty)?;
        }
        MessageBatch::to_pyarrow(&Bound::new(py, batch.finish()?)?)
    }
}

/// A copy of a message, for whoever is not attached.
pub(super) fn copied(message: &Taken<'_>) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(message.size());
    message.append_to(&mut bytes);
    Ok(bytes)
}

fn fill(reader: &mut Reader, n: usize) -> Result<BatchBuilder> {
    let mut batch = None;
    reader.take_many(n, |message| {
        let size = message.size();
        let batch = batch.get_or_insert_with(|| with_room(n, size));
        if size > batch.room() {
            return Ok(Verdict::NoRoom);
        }
        batch.append_from(size, |values| message.append_to(values))?;
        Ok(Verdict::Taken)
    })?;
    Ok(batch.unwrap_or_else(|| with_room(0, 0)))
}

/// Room for `n` messages of one size, within reason.
fn with_room(n: usize, size: usize) -> BatchBuilder {
    let n = n.min(RESERVE);
    BatchBuilder::with_capacity(n, n.saturating_mul(size).min(RESERVE_BYTES))
}
