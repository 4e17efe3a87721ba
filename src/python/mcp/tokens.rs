//! Many messages in the hands of a file, for Spark: they stay where they are, and any process that has their tokens copies
//! them.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::super::tokens::{Token, Tokens, array, packed};
use super::super::wait::waiting;
use super::file::QueueFile;
use crate::mcp::{Batch, Hold};
use crate::shared::signal::Wait;

fn token(hold: &Hold, text: &[u8]) -> Token {
    let (member, number, stamp) = hold.to_parts();
    Token {
        id: stamp,
        own: (member, number),
        length: text.len() as u64,
    }
}

fn holds(tokens: &Tokens) -> Vec<Hold> {
    let hold = |token: &Token| Hold::from_parts((token.own.0, token.own.1, token.id));
    tokens.0.iter().map(hold).collect()
}

fn named<'py>(py: Python<'py>, holds: &[Hold], texts: &Batch) -> PyResult<Bound<'py, PyBytes>> {
    let tokens: Vec<Token> = holds
        .iter()
        .zip(texts.iter())
        .map(|(hold, text)| token(hold, text))
        .collect();
    packed(py, &tokens)
}

/// Takes up to `limit` messages in hand without waiting: their tokens. The end of file is no messages.
#[pyfunction]
pub(super) fn _hold<'py>(
    py: Python<'py>,
    file: &Bound<'py, QueueFile>,
    limit: usize,
    key: Option<i64>,
) -> PyResult<Bound<'py, PyBytes>> {
    let mut texts = Batch::new();
    let file = &file.get().file;
    let (_, holds) = waiting(py, |idle| file.hold(key, limit, &mut texts, Wait::No, idle))?;
    named(py, &holds, &texts)
}

/// Removes messages in the hands of this file: all or none.
#[pyfunction]
pub(super) fn _acknowledge(py: Python<'_>, file: &Bound<'_, QueueFile>, tokens: Tokens) -> PyResult<()> {
    let file = &file.get().file;
    Ok(py.detach(|| file.acknowledge(&holds(&tokens)))?)
}

/// Copies messages that are in anybody's hands: all of them, or MessageNotFound.
#[pyfunction]
pub(super) fn _copy<'py>(py: Python<'py>, file: &Bound<'py, QueueFile>, tokens: Tokens) -> PyResult<Bound<'py, PyAny>> {
    let mut texts = Batch::new();
    let file = &file.get().file;
    py.detach(|| file.look_at(&holds(&tokens), &mut texts))?;
    array(py, texts.iter(), texts.len(), texts.bytes().len())
}

/// Every message of the file's queues, those in somebody's hands too, with its token; nothing changes.
#[pyfunction]
pub(super) fn _look<'py>(
    py: Python<'py>,
    file: &Bound<'py, QueueFile>,
) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyBytes>)> {
    let mut texts = Batch::new();
    let file = &file.get().file;
    let holds = py.detach(|| file.look(&mut texts))?;
    let values = array(py, texts.iter(), texts.len(), texts.bytes().len())?;
    Ok((values, named(py, &holds, &texts)?))
}
