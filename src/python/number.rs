//! Whole numbers as arguments: one that its type cannot hold is a wrong value, told with the limits.

use std::fmt::Display;

use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::prelude::*;

/// The types that arguments have.
pub(crate) trait Whole: Display + Sized + for<'a, 'py> FromPyObject<'a, 'py, Error = PyErr> {
    const LEAST: Self;
    const MOST: Self;
}

macro_rules! whole {
    ($($number:ty)*) => {
        $(impl Whole for $number {
            const LEAST: Self = <$number>::MIN;
            const MOST: Self = <$number>::MAX;
        })*
    };
}

whole!(u32 u64 usize i64);

/// For `from_py_with`.
#[inline]
pub(crate) fn whole<T: Whole>(value: &Bound<'_, PyAny>) -> PyResult<T> {
    value.extract().map_err(|error| out_of_range::<T>(value, error))
}

/// The same where None is allowed.
#[inline]
pub(crate) fn whole_or_none<T: Whole>(value: &Bound<'_, PyAny>) -> PyResult<Option<T>> {
    if value.is_none() {
        Ok(None)
    } else {
        whole(value).map(Some)
    }
}

#[cold]
fn out_of_range<T: Whole>(value: &Bound<'_, PyAny>, error: PyErr) -> PyErr {
    if !error.is_instance_of::<PyOverflowError>(value.py()) {
        return error;
    }
    PyValueError::new_err(format!(
        "expected a whole number from {} to {}, not {value}",
        T::LEAST,
        T::MOST
    ))
}
