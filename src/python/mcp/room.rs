//! Waiting for room without writing anything: for asyncio.

use pyo3::prelude::*;

use super::super::wait::{Timeout, waiting};
use super::file::QueueFile;

/// A number that changes whenever a message leaves.
#[pyfunction]
pub(super) fn _room_mark(file: &Bound<'_, QueueFile>) -> PyResult<u64> {
    let file = &file.get().file;
    file.check_open()?;
    Ok(file.removed())
}

/// Waits until the number is another one, or there is room for a record.
#[pyfunction]
pub(super) fn _wait_room(
    py: Python<'_>,
    file: &Bound<'_, QueueFile>,
    mark: u64,
    size: usize,
    timeout: Timeout,
) -> PyResult<bool> {
    let _ = size;
    let file = &file.get().file;
    waiting(py, |idle| file.wait_for_removal(mark, timeout.wait(), idle))
}
