//! Staging and publishing for Spark's sink: no Python object for any message.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::DurableQueue;
use crate::python::buffer::Payload;
use crate::python::messages::Messages;
use crate::python::tokens::array;
use crate::python::wait::waiting;
use crate::qewqew as core;

/// Messages on their way into staged files.
#[pyclass(frozen, module = "tailrace.qewqew", name = "_Stage")]
#[derive(Debug)]
pub(crate) struct Stage(Mutex<Option<core::Stage>>);

#[pymethods]
impl Stage {
    #[new]
    fn new(prefix: PathBuf, chunk_size: u32, durable: bool) -> PyResult<Self> {
        Ok(Stage(Mutex::new(Some(core::Stage::new(&prefix, chunk_size, durable)?))))
    }

    /// Adds messages.
    fn add(&self, py: Python<'_>, messages: Messages<'_>) -> PyResult<()> {
        let slices = messages.as_slices();
        let added = py.detach(|| {
            let mut stage = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let stage = stage.as_mut()?;
            Some(slices.iter().try_for_each(|message| stage.add(message)))
        });
        Ok(added.ok_or_else(over)??)
    }

    /// Writes the rest and names the files.
    fn finish(&self, py: Python<'_>, small: usize) -> PyResult<Vec<PathBuf>> {
        let stage = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let stage = stage.ok_or_else(over)?;
        Ok(py.detach(|| stage.finish(small))?)
    }
}

fn over() -> PyErr {
    PyValueError::new_err("it is finished")
}

/// Makes a staged chunk the last one of the queue; False when it was moved to its place before.
#[pyfunction]
pub(crate) fn _publish_chunk(py: Python<'_>, queue: &Bound<'_, DurableQueue>, path: PathBuf) -> PyResult<bool> {
    let queue = queue.get().queue()?;
    waiting(py, |_| queue.publish_chunk(&path))
}

/// Appends framed messages by one step, if the queue ends at `position`; False when somebody else has appended since.
#[pyfunction]
pub(crate) fn _publish_framed(
    py: Python<'_>,
    queue: &Bound<'_, DurableQueue>,
    framed: Payload<'_>,
    position: u64,
) -> PyResult<bool> {
    let (queue, framed) = (queue.get().queue()?, framed.as_bytes());
    waiting(py, |_| queue.publish_framed(framed, position))
}

/// Links what a killed producer had finished and not linked.
#[pyfunction]
pub(crate) fn _adopt(py: Python<'_>, queue: &Bound<'_, DurableQueue>) -> PyResult<()> {
    let queue = queue.get().queue()?;
    waiting(py, |_| queue.adopt_leftover())
}

/// The messages of framed bytes as an Arrow array.
#[pyfunction]
pub(crate) fn _unframed<'py>(py: Python<'py>, framed: Payload<'_>) -> PyResult<Bound<'py, PyAny>> {
    let messages = core::framed_messages(framed.as_bytes())?;
    let (count, bytes) = (messages.len(), framed.as_bytes().len());
    array(py, messages.into_iter(), count, bytes)
}
