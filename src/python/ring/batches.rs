//! Many messages in one call, copied from their slots straight to where Python will find them.
//!
//! A copy counts when its slot was let go and no writer had taken it away.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::super::arrow::BatchBuilder;
use super::super::buffer::Blank;
use crate::Result;
use crate::ring::Queue;

/// The most messages for which room is made in advance; more come as they come.
const RESERVE: usize = 1 << 16;

/// Takes what is there, until there are `n`. An error comes only where nothing was taken.
pub(super) fn take<'py>(
    py: Python<'py>,
    queue: &Queue,
    n: usize,
    taken: &mut Vec<Bound<'py, PyBytes>>,
) -> PyResult<()> {
    let (size, limit) = (queue.message_bytes(), queue.batch_limit());
    taken.reserve(n.saturating_sub(taken.len()).min(queue.len()).min(RESERVE));
    let mut blanks = Vec::with_capacity(limit);
    while taken.len() < n {
        let before = taken.len();
        // The objects first: a message cannot be put back.
        let wanted = (n - before).min(limit).min(queue.len());
        let made = (blanks.len()..wanted).try_for_each(|_| {
            blanks.push(Blank::new(py, size)?);
            Ok(())
        });
        let batch = match made.and_then(|()| Ok(queue.try_take_many(wanted)?)) {
            Ok(batch) => batch,
            Err(error) if before == 0 => return Err(error),
            Err(_) => return Ok(()),
        };
        for hold in batch {
            let bytes = blanks.pop().expect("one for each").filled(&hold);
            taken.extend(hold.finish().map(|_| bytes));
        }
        if taken.len() == before {
            break;
        }
    }
    Ok(())
}

/// An array with room for as many of `n` messages as are there now.
pub(super) fn array_for(queue: &Queue, n: usize) -> BatchBuilder {
    let expected = n.min(queue.len()).min(RESERVE);
    BatchBuilder::with_capacity(expected, expected.saturating_mul(queue.message_bytes()))
}

/// Takes what is there and has room, until there are `n`. An error comes only where nothing was taken.
pub(super) fn append(queue: &Queue, n: usize, array: &mut BatchBuilder) -> Result<()> {
    let size = queue.message_bytes();
    while array.len() < n {
        let before = array.len();
        let batch = match queue.try_take_many((n - before).min(array.room() / size)) {
            Ok(batch) => batch,
            Err(error) if before == 0 => return Err(error),
            Err(_) => break,
        };
        for hold in batch {
            let whole = array.len();
            array.append_from(size, |values| hold.append_to(values))?;
            if hold.finish().is_none() {
                array.truncate(whole);
            }
        }
        if array.len() == before {
            break;
        }
    }
    Ok(())
}
