//! Many messages in one call.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use super::{DurableQueue, append_in_time};
use crate::python::messages::Messages;
use crate::python::wait::{Timeout, waiting};
use crate::qewqew::Fill;
use crate::shared::signal::Wait;
use crate::{Error, Result};

/// What is taken while attached to the interpreter, straight into Python's own objects; the rest comes without the GIL.
const AT_ONCE: usize = 1024;
const BYTES_AT_ONCE: usize = 1 << 20;

impl DurableQueue {
    /// Appends any number of messages. Without a wish to wait: all or none. Else in the largest parts that have room.
    pub(super) fn append_all(&self, py: Python<'_>, messages: &Messages<'_>, timeout: Timeout) -> PyResult<()> {
        let slices = messages.as_slices();
        if timeout == Timeout::ZERO {
            return self.append(py, &slices, timeout);
        }
        let wait = Wait::from_timeout(timeout.0);
        let queue = &*self.queue()?;
        waiting(py, |idle| {
            let (mut rest, mut part) = (&slices[..], slices.len());
            while !rest.is_empty() {
                part = part.clamp(1, rest.len());
                let (now, later) = rest.split_at(part);
                let patience = if part > 1 { Wait::No } else { wait };
                match append_in_time(queue, patience, idle, now) {
                    Ok(()) => (rest, part) = (later, part * 2),
                    Err(Error::Full(_)) if part > 1 => part /= 2,
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        })
    }

    /// Up to n messages; `None` when there is none in time.
    pub(super) fn take<'py>(
        &self,
        py: Python<'py>,
        n: usize,
        timeout: Timeout,
    ) -> PyResult<Option<Bound<'py, PyList>>> {
        if n == 0 {
            self.queue()?.is_empty()?;
            return Ok(Some(PyList::empty(py)));
        }
        let mut taken = self.take_at_once(py, n)?;
        let rest = match n - taken.len() {
            0 => Vec::new(),
            // What was taken is gone; the next call meets an error again.
            left if left < n => self.detached(py, |queue| queue.dequeue_many(left)).unwrap_or_default(),
            _ => {
                let found = self.wait_for(py, timeout, |queue| {
                    let messages = queue.dequeue_many(n)?;
                    Ok((!messages.is_empty()).then_some(messages))
                })?;
                match found {
                    Some(messages) => messages,
                    None => return Ok(None),
                }
            }
        };
        taken.extend(rest.iter().map(|message| PyBytes::new(py, message)));
        PyList::new(py, taken).map(Some)
    }

    /// As many of n messages as can be had without waiting for anything.
    fn take_at_once<'py>(&self, py: Python<'py>, n: usize) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let limit = n.min(AT_ONCE);
        let (mut taken, mut bytes, mut raised) = (Vec::with_capacity(limit), 0, None);
        let count = self.queue()?.try_dequeue_now(limit, |length, fill| {
            bytes += length;
            if bytes > BYTES_AT_ONCE {
                return Ok(false);
            }
            let message = filled(py, length, fill, &mut raised)?;
            let took = message.is_some();
            taken.extend(message);
            Ok(took)
        })?;
        taken.truncate(count.unwrap_or(0));
        match raised {
            Some(error) if taken.is_empty() => Err(error),
            _ => Ok(taken),
        }
    }
}

/// Makes the next message an object; `None`, and the reason, when there is no memory for it: then it stays.
#[inline]
pub(super) fn filled<'py>(
    py: Python<'py>,
    length: usize,
    fill: &mut Fill<'_>,
    raised: &mut Option<PyErr>,
) -> Result<Option<Bound<'py, PyBytes>>> {
    let mut filled = Ok(());
    let made = PyBytes::new_with(py, length, |bytes| {
        filled = fill(bytes);
        Ok(())
    });
    filled?;
    Ok(made.map_err(|error| *raised = Some(error)).ok())
}
