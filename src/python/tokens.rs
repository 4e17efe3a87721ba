//! Many messages that stay in their queue, named by 24 bytes each: what a process keeps of messages in its hands, and what
//! it sends to others that are to copy them. No Python object for any of them; numpy reads them as they are.
//!
//! ```text
//!   0  u64  number that no other message of the queue has
//!   8  u32  two numbers
//!  12  u32  that are the queue's own
//!  16  u64  bytes of the message
//! ```

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::arrow::{BatchBuilder, MessageBatch};
use super::buffer::Payload;
use crate::Result;

/// Bytes of one.
const SIZE: usize = 24;

/// Names one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) id: u64,
    pub(super) own: (u32, u32),
    pub(super) length: u64,
}

/// As Python gets them.
pub(super) fn packed<'py>(py: Python<'py>, tokens: &[Token]) -> PyResult<Bound<'py, PyBytes>> {
    PyBytes::new_with(py, tokens.len() * SIZE, |bytes| {
        for (place, token) in bytes.chunks_exact_mut(SIZE).zip(tokens) {
            place[..8].copy_from_slice(&token.id.to_le_bytes());
            place[8..12].copy_from_slice(&token.own.0.to_le_bytes());
            place[12..16].copy_from_slice(&token.own.1.to_le_bytes());
            place[16..].copy_from_slice(&token.length.to_le_bytes());
        }
        Ok(())
    })
}

/// As Python gives them.
#[derive(Debug)]
pub(super) struct Tokens(pub(super) Vec<Token>);

impl<'py> FromPyObject<'_, 'py> for Tokens {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let payload: Payload<'py> = object.extract()?;
        let bytes = payload.as_bytes();
        if !bytes.len().is_multiple_of(SIZE) {
            return Err(PyValueError::new_err(format!(
                "{} bytes are no tokens: each has {SIZE}",
                bytes.len()
            )));
        }
        let wide = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
        let narrow = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("4 bytes"));
        let one = |bytes: &[u8]| Token {
            id: wide(&bytes[..8]),
            own: (narrow(&bytes[8..12]), narrow(&bytes[12..16])),
            length: wide(&bytes[16..]),
        };
        Ok(Tokens(bytes.chunks_exact(SIZE).map(one).collect()))
    }
}

/// A flag for each as one byte.
pub(super) fn flags<'py>(py: Python<'py>, flags: &[bool]) -> Bound<'py, PyBytes> {
    PyBytes::new(py, &flags.iter().map(|flag| u8::from(*flag)).collect::<Vec<u8>>())
}

/// Texts one behind the other as an Arrow array.
pub(super) fn array<'a, 'py>(
    py: Python<'py>,
    texts: impl Iterator<Item = &'a [u8]>,
    count: usize,
    bytes: usize,
) -> PyResult<Bound<'py, PyAny>> {
    let mut builder = BatchBuilder::with_capacity(count, bytes);
    let mut texts = texts;
    texts.try_for_each(|text| builder.append(text))?;
    finished(py, builder)
}

/// A filled batch as an Arrow array.
pub(super) fn finished<'py>(py: Python<'py>, builder: BatchBuilder) -> PyResult<Bound<'py, PyAny>> {
    let batch: Result<MessageBatch> = builder.finish();
    MessageBatch::to_pyarrow(&Bound::new(py, batch?)?)
}
