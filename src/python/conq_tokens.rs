//! Leases of many messages at once, for Spark: the messages stay where they are, and any process that has their tokens
//! copies them.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::arrow::BatchBuilder;
use super::conq::LeaseTime;
use super::conq_queue::Queue;
use super::tokens::{Token, Tokens, finished, flags, packed};
use super::wait::waiting;
use crate::conq::queue::{Lease, Receipt};
use crate::shared::signal::Wait;
use crate::{Error, Result};

fn token(lease: &Lease) -> Token {
    Token {
        id: lease.receipt.id,
        own: (lease.receipt.delivery, lease.receipt.slot),
        length: lease.length as u64,
    }
}

fn lease(token: &Token) -> Lease {
    Lease {
        receipt: Receipt {
            id: token.id,
            delivery: token.own.0,
            slot: token.own.1,
        },
        length: usize::try_from(token.length).unwrap_or(usize::MAX),
    }
}

/// Leases up to `limit` messages without waiting: their tokens.
#[pyfunction]
pub(super) fn _lease<'py>(
    py: Python<'py>,
    queue: &Bound<'py, Queue>,
    limit: usize,
    timeout: LeaseTime,
) -> PyResult<Bound<'py, PyBytes>> {
    let named = queue.get().open()?;
    let leases = waiting(py, |idle| named.read_many(limit, timeout.0, Wait::No, idle))?;
    packed(py, &leases.iter().map(token).collect::<Vec<_>>())
}

/// Makes leases end `timeout` seconds from now: says of each whether it was still there.
#[pyfunction]
pub(super) fn _extend<'py>(
    py: Python<'py>,
    queue: &Bound<'py, Queue>,
    tokens: Tokens,
    timeout: LeaseTime,
) -> PyResult<Bound<'py, PyBytes>> {
    let named = queue.get().open()?;
    let held: Result<Vec<bool>> = py.detach(|| {
        let extend = |token: &Token| match named
            .queue()
            .extend(&lease(token).receipt, timeout.0, named.manager().now())
        {
            Ok(()) => Ok(true),
            Err(Error::MessageNotFound(_)) => Ok(false),
            Err(error) => Err(error),
        };
        tokens.0.iter().map(extend).collect()
    });
    Ok(flags(py, &held?))
}

/// Finishes messages: says of each whether it was still leased.
#[pyfunction]
pub(super) fn _dequeue<'py>(
    py: Python<'py>,
    queue: &Bound<'py, Queue>,
    tokens: Tokens,
) -> PyResult<Bound<'py, PyBytes>> {
    let named = queue.get().open()?;
    let receipts: Vec<Receipt> = tokens.0.iter().map(|token| lease(token).receipt).collect();
    let done = py.detach(|| named.queue().dequeue_many(&receipts, named.manager().now()))?;
    Ok(flags(py, &done))
}

/// Copies leased messages: all of them, or MessageNotFound.
#[pyfunction]
pub(super) fn _copy<'py>(py: Python<'py>, queue: &Bound<'py, Queue>, tokens: Tokens) -> PyResult<Bound<'py, PyAny>> {
    let named = queue.get().open()?;
    let limit = u64::from(named.queue().geometry().max_message_size);
    let batch = py.detach(|| {
        let bytes: u64 = tokens.0.iter().map(|token| token.length.min(limit)).sum();
        let mut batch = BatchBuilder::with_capacity(tokens.0.len(), usize::try_from(bytes).unwrap_or(0));
        let mut text = Vec::new();
        for token in &tokens.0 {
            text.clear();
            if token.length > limit || !named.queue().append_to(&lease(token), &mut text) {
                return Err(Error::MessageNotFound(format!(
                    "the lease of message {} of queue {:?} has ended",
                    token.id,
                    named.name()
                )));
            }
            batch.append(&text)?;
        }
        Ok(batch)
    })?;
    finished(py, batch)
}

/// Every message that nobody has finished, oldest first, with its token; nothing changes.
#[pyfunction]
pub(super) fn _look<'py>(
    py: Python<'py>,
    queue: &Bound<'py, Queue>,
) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyBytes>)> {
    let named = queue.get().open()?;
    let (batch, tokens) = py.detach(|| {
        let messages = named.queue().unfinished(named.manager().now())?;
        let bytes = messages.iter().map(|message| message.length).sum();
        let mut batch = BatchBuilder::with_capacity(messages.len(), bytes);
        let (mut tokens, mut text) = (Vec::with_capacity(messages.len()), Vec::new());
        for message in &messages {
            text.clear();
            if named.queue().append_unfinished(message, &mut text) {
                batch.append(&text)?;
                tokens.push(Token {
                    id: message.id,
                    own: (0, 0),
                    length: text.len() as u64,
                });
            }
        }
        Ok::<_, Error>((batch, tokens))
    })?;
    Ok((finished(py, batch)?, packed(py, &tokens)?))
}
