//! Many messages as one argument: a sequence of bytes-like objects, or a whole Arrow array of type `binary`.
//!
//! An array is taken by its two buffers, so that a column of a million messages costs two copies and no Python object for
//! any of them.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};

use super::buffer::Payload;

/// The messages of `put_many`.
#[derive(Debug)]
pub(crate) enum Messages<'py> {
    /// All of them `bytes`; the tuple is the caller's, or a copy of the caller's list: nobody changes it.
    Bytes(Bound<'py, PyTuple>),
    Objects(Vec<Payload<'py>>),
    /// Message `i` is `values[ends[i]..ends[i + 1]]`; checked when it was taken.
    Array {
        ends: Vec<usize>,
        values: Payload<'py>,
    },
}

impl Messages<'_> {
    /// The messages, in order.
    pub(crate) fn as_slices(&self) -> Vec<&[u8]> {
        match self {
            Messages::Bytes(tuple) => tuple
                .iter_borrowed()
                .map(|message| FromPyObject::extract(message).expect("checked when it was taken"))
                .collect(),
            Messages::Objects(payloads) => payloads.iter().map(Payload::as_bytes).collect(),
            Messages::Array { ends, values } => {
                let values = values.as_bytes();
                ends.windows(2).map(|pair| &values[pair[0]..pair[1]]).collect()
            }
        }
    }
}

impl<'py> FromPyObject<'_, 'py> for Messages<'py> {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Some(tuple) = tuple_of_bytes(&object) {
            return Ok(Messages::Bytes(tuple));
        }
        if object.hasattr("__arrow_c_array__")? && object.hasattr("buffers")? {
            return from_array(&object);
        }
        // A bytes object is a sequence too, of numbers.
        if object.is_instance_of::<PyBytes>() || object.is_instance_of::<PyString>() {
            return Err(PyTypeError::new_err(format!(
                "a sequence of messages is required, not one {} object",
                object.get_type().name()?
            )));
        }
        let payloads = object
            .try_iter()?
            .map(|message| message?.extract())
            .collect::<PyResult<_>>()?;
        Ok(Messages::Objects(payloads))
    }
}

/// A list or tuple of nothing but `bytes`, which is what most callers have.
fn tuple_of_bytes<'py>(object: &Bound<'py, PyAny>) -> Option<Bound<'py, PyTuple>> {
    let tuple = match object.cast_exact::<PyList>() {
        Ok(list) => list.to_tuple(),
        Err(_) => object.cast_exact::<PyTuple>().ok()?.clone(),
    };
    let all_bytes = tuple.iter_borrowed().all(|message| message.is_instance_of::<PyBytes>());
    all_bytes.then_some(tuple)
}

fn from_array<'py>(array: &Bound<'py, PyAny>) -> PyResult<Messages<'py>> {
    let kind = array.getattr("type")?.str()?;
    if kind.to_str()? != "binary" {
        return Err(PyTypeError::new_err(format!(
            "an Arrow array of type binary is required, not {kind}: cast it first"
        )));
    }
    let nulls: usize = array.getattr("null_count")?.extract()?;
    if nulls > 0 {
        return Err(PyValueError::new_err(format!(
            "{nulls} of the messages are null, which is no message"
        )));
    }
    let (first, count) = (array.getattr("offset")?.extract::<usize>()?, array.len()?);
    let buffers: Vec<Bound<'py, PyAny>> = array.call_method0("buffers")?.extract()?;
    let [_, offsets, values] = &buffers[..] else {
        return Err(PyValueError::new_err("a binary array has three buffers"));
    };
    if count == 0 {
        return Ok(Messages::Objects(Vec::new()));
    }
    // Only what this array looks at: it may be a small slice of a large one.
    let offsets: Payload<'py> = offsets.call_method1("slice", (first * 4, (count + 1) * 4))?.extract()?;
    let numbers: Vec<i32> = offsets
        .as_bytes()
        .chunks_exact(4)
        .map(|bytes| i32::from_le_bytes(bytes.try_into().expect("4 bytes")))
        .collect();
    let broken = || PyValueError::new_err("the offsets of the Arrow array do not lie within its values");
    if numbers.len() != count + 1 || numbers[0] < 0 || numbers.windows(2).any(|pair| pair[0] > pair[1]) {
        return Err(broken());
    }
    let start = numbers[0];
    let ends: Vec<usize> = numbers.iter().map(|number| (number - start) as usize).collect();
    let length = ends[count];
    if length == 0 {
        let values = Payload::Bytes(PyBytes::new(array.py(), b""));
        return Ok(Messages::Array { ends, values });
    }
    let values: Payload<'py> = values.call_method1("slice", (start, length))?.extract()?;
    if values.as_bytes().len() != length {
        return Err(broken());
    }
    Ok(Messages::Array { ends, values })
}
