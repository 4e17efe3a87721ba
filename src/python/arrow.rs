//! Drained messages as one Arrow array, filled in Rust and handed over by the Arrow PyCapsule interface: no Python
//! object for a single message, no copy on the way out.

use arrow_array::{Array, BinaryArray};
use arrow_buffer::{Buffer, OffsetBuffer, ScalarBuffer};
use arrow_data::ffi::FFI_ArrowArray;
use arrow_schema::ffi::FFI_ArrowSchema;
use arrow_schema::{ArrowError, DataType, Field};
use pyo3::exceptions::{PyImportError, PyModuleNotFoundError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::{Error, Result};

/// The most bytes that one array holds: its offsets are 32-bit and signed.
const LIMIT: usize = i32::MAX as usize;

/// Collects messages, one after the other, into the two buffers of an Arrow `binary` array.
#[derive(Debug)]
pub(crate) struct BatchBuilder {
    offsets: Vec<i32>,
    values: Vec<u8>,
}

impl BatchBuilder {
    /// An empty batch with room for so many messages and bytes; both are hints.
    pub(crate) fn with_capacity(messages: usize, bytes: usize) -> Self {
        let mut offsets = Vec::with_capacity(messages.saturating_add(1));
        offsets.push(0);
        BatchBuilder {
            offsets,
            values: Vec::with_capacity(bytes.min(LIMIT)),
        }
    }

    /// Messages so far.
    pub(crate) fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Keeps the first so many messages.
    pub(crate) fn truncate(&mut self, messages: usize) {
        if let Some(&end) = self.offsets.get(messages) {
            self.offsets.truncate(messages + 1);
            self.values.truncate(end as usize);
        }
    }

    /// Bytes that still fit. A queue asks before it takes a message that it could not give back.
    pub(crate) fn room(&self) -> usize {
        LIMIT - self.values.len()
    }

    /// Adds one message.
    pub(crate) fn append(&mut self, message: &[u8]) -> Result<()> {
        let end = self.end_after(message.len())?;
        self.values.extend_from_slice(message);
        self.offsets.push(end);
        Ok(())
    }

    /// Adds one message of `len` bytes that `fill` appends to the array.
    pub(crate) fn append_from(&mut self, len: usize, fill: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        let end = self.end_after(len)?;
        fill(&mut self.values);
        assert_eq!(self.values.len(), end as usize, "exactly the message was appended");
        self.offsets.push(end);
        Ok(())
    }

    /// Adds one message of `len` bytes that `fill` copies straight out of the queue into the (zeroed) tail of the
    /// array. When `fill` fails nothing was added.
    pub(crate) fn append_with(&mut self, len: usize, fill: impl FnOnce(&mut [u8]) -> Result<()>) -> Result<()> {
        let end = self.end_after(len)?;
        let start = self.values.len();
        self.values.resize(start + len, 0);
        match fill(&mut self.values[start..]) {
            Ok(()) => {
                self.offsets.push(end);
                Ok(())
            }
            Err(error) => {
                self.values.truncate(start);
                Err(error)
            }
        }
    }

    /// The array, ready to be handed to Python.
    pub(crate) fn finish(self) -> Result<MessageBatch> {
        let offsets = OffsetBuffer::new(ScalarBuffer::from(self.offsets));
        let array = BinaryArray::try_new(offsets, Buffer::from_vec(self.values), None)
            .map_err(|error| Error::Invalid(format!("cannot make an Arrow array: {error}")))?;
        Ok(MessageBatch { array })
    }

    fn end_after(&self, len: usize) -> Result<i32> {
        self.values
            .len()
            .checked_add(len)
            .and_then(|end| i32::try_from(end).ok())
            .ok_or_else(|| {
                Error::Invalid(format!(
                    "a batch of {} and {len} more bytes is too large for one Arrow array, the limit is {LIMIT} bytes: \
                     ask for fewer messages at a time",
                    self.values.len()
                ))
            })
    }
}

/// Messages as an Arrow array of type `binary`, for anything that knows the Arrow PyCapsule interface.
#[pyclass(frozen, module = "tailrace._core")]
#[derive(Debug)]
pub(crate) struct MessageBatch {
    array: BinaryArray,
}

#[pymethods]
impl MessageBatch {
    fn __len__(&self) -> usize {
        self.array.len()
    }

    /// The array as the pair of capsules "arrow_schema" and "arrow_array".
    ///
    /// `requested_schema` is a wish that the interface lets a producer decline: the type is always `binary`.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
        let _ = requested_schema;
        let schema = FFI_ArrowSchema::try_from(Field::new("", DataType::Binary, true)).map_err(arrow_failed)?;
        let array = FFI_ArrowArray::new(&self.array.to_data());
        Ok((
            PyCapsule::new_with_value(py, schema, c"arrow_schema")?,
            PyCapsule::new_with_value(py, array, c"arrow_array")?,
        ))
    }

    /// The same memory as a `pyarrow.BinaryArray`; this is what `get_arrow` of a queue gives.
    pub(crate) fn to_pyarrow<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        pyarrow(slf.py())?.call_method1("array", (slf,))
    }
}

/// Asked for before anything is taken out of a queue: messages in an array that cannot be made would be lost.
pub(crate) fn pyarrow(py: Python<'_>) -> PyResult<Bound<'_, PyModule>> {
    py.import("pyarrow").map_err(|error| {
        if !error.is_instance_of::<PyModuleNotFoundError>(py) {
            return error;
        }
        let clear = PyImportError::new_err("Arrow arrays need pyarrow: pip install 'tailrace[arrow]'");
        clear.set_cause(py, Some(error));
        clear
    })
}

fn arrow_failed(error: ArrowError) -> PyErr {
    PyRuntimeError::new_err(format!("cannot export an Arrow array: {error}"))
}
