//! Waiting for room without putting anything: for asyncio.

use pyo3::prelude::*;

use super::conq_queue::Queue;
use super::wait::{Timeout, waiting};
use crate::shared::signal::Turn;

/// A number that changes whenever a message is finished.
#[pyfunction]
pub(super) fn _room_mark(queue: &Bound<'_, Queue>) -> PyResult<u64> {
    Ok(queue.get().open()?.queue().removed())
}

/// Waits until the number is another one; what room a message of `size` bytes needs is for the next attempt to see.
#[pyfunction]
pub(super) fn _wait_room(
    py: Python<'_>,
    queue: &Bound<'_, Queue>,
    mark: u64,
    size: usize,
    timeout: Timeout,
) -> PyResult<bool> {
    let _ = size;
    let queue = queue.get();
    let found = waiting(py, |idle| {
        let named = queue.open()?;
        named
            .queue()
            .room()
            .wait_for(timeout.wait(), Turn::PeerMatters, idle, || {
                queue.open()?;
                Ok((named.queue().removed() != mark || named.queue().is_deleted()).then_some(()))
            })
    })?;
    Ok(found.is_some())
}
