//! Many retrieved items at once, for Spark: they stay in the region, named by tokens, and any process copies them by their
//! positions.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::super::arrow::BatchBuilder;
use super::super::tokens::{Token, finished, packed};
use super::Queue;
use super::handle::Handle;
use super::roles::Reader;
use crate::aq::Item;
use crate::{Error, Result};

/// What a reader has retrieved and not released, by position.
#[pyclass(frozen, module = "tailrace.aq", name = "_InHand")]
#[derive(Debug)]
pub(crate) struct InHand {
    handle: Arc<Handle>,
    items: Mutex<BTreeMap<u64, Item>>,
}

#[pymethods]
impl InHand {
    #[new]
    fn new(reader: &Bound<'_, Reader>) -> Self {
        InHand {
            handle: reader.get().handle().clone(),
            items: Mutex::default(),
        }
    }

    /// Retrieves up to `limit` items without waiting, and gives the tokens of all that are in hand before the first one that
    /// may still come, in order, with the position of that one and that of the head.
    fn take<'py>(&self, py: Python<'py>, limit: usize) -> PyResult<(Bound<'py, PyBytes>, u64, u64)> {
        let (tokens, (frontier, head)) = py.detach(|| self.retrieve(limit))?;
        Ok((packed(py, &tokens)?, frontier, head))
    }

    /// Releases everything before a position but `keep`. Gives the positions of items that were incomplete when they were
    /// retrieved and were committed since: those come again.
    fn release(&self, py: Python<'_>, before: u64, keep: HashSet<u64>) -> PyResult<Vec<u64>> {
        Ok(py.detach(|| {
            let mut items = self.items.lock().unwrap_or_else(PoisonError::into_inner);
            let later = items.split_off(&before);
            let earlier = std::mem::replace(&mut *items, later);
            let (kept, done): (BTreeMap<_, _>, BTreeMap<_, _>) =
                earlier.into_iter().partition(|(position, _)| keep.contains(position));
            items.extend(kept);
            self.handle.with_reader(|reader| {
                let mut late = Vec::new();
                for (position, item) in &done {
                    if !reader.release_exactly(item)? {
                        late.push(*position);
                    }
                }
                Ok(late)
            })
        })?)
    }
}

impl InHand {
    fn retrieve(&self, limit: usize) -> Result<(Vec<Token>, (u64, u64))> {
        let mut items = self.items.lock().unwrap_or_else(PoisonError::into_inner);
        let (frontier, head) = self.handle.with_reader(|reader| {
            let mut count = 0;
            while count < limit
                && let Some(item) = reader.retrieve()?
            {
                items.insert(item.position(), item);
                count += 1;
            }
            reader.frontier()
        })?;
        let token = |(position, item): (&u64, &Item)| Token {
            id: *position,
            own: (item.is_committed().into(), 0),
            length: item.size() as u64,
        };
        Ok((items.range(..frontier).map(token).collect(), (frontier, head)))
    }
}

/// The items between two positions that are not released, oldest first, with their tokens; nothing changes.
#[pyfunction]
pub(crate) fn _look<'py>(
    py: Python<'py>,
    queue: &Bound<'py, Queue>,
    start: u64,
    end: u64,
) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyBytes>)> {
    let queue = queue.get().handle.open()?;
    let (batch, tokens) = py.detach(|| {
        let snapshot = queue.snapshot()?;
        let shown = snapshot
            .items()
            .iter()
            .filter(|shown| !shown.is_released() && (start..end).contains(&shown.item().position()));
        let (mut batch, mut tokens) = (BatchBuilder::with_capacity(0, 0), Vec::new());
        for shown in shown {
            batch.append(shown.bytes())?;
            tokens.push(Token {
                id: shown.item().position(),
                own: (shown.item().is_committed().into(), 0),
                length: shown.bytes().len() as u64,
            });
        }
        Ok::<_, Error>((batch, tokens))
    })?;
    Ok((finished(py, batch)?, packed(py, &tokens)?))
}
