//! Waiting for room without putting anything: for asyncio.

use pyo3::prelude::*;

use super::super::wait::Timeout;
use super::Queue;

/// A number that changes whenever memory comes free.
#[pyfunction]
pub(crate) fn _room_mark(queue: &Bound<'_, Queue>) -> PyResult<u32> {
    Ok(queue.get().handle.open()?.free_counter()?)
}

/// Waits until the number is another one, or a message of `size` bytes fits.
#[pyfunction]
pub(crate) fn _wait_room(
    py: Python<'_>,
    queue: &Bound<'_, Queue>,
    mark: u32,
    size: usize,
    timeout: Timeout,
) -> PyResult<bool> {
    let handle = &queue.get().handle;
    let found = handle.wait_for_room(py, timeout, |writer| {
        let queue = handle.open()?;
        if queue.free_counter()? != mark || queue.available_size()? >= size.max(1) {
            return Ok(Some(()));
        }
        writer.make_room(size)?;
        Ok(None)
    })?;
    Ok(found.is_some())
}
