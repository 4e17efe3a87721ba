//! Crate errors become exceptions of `tailrace.errors` here, and nowhere else.
//!
//! The classes are written in Python (docstrings, several bases, picklable) and imported. What belongs to the
//! operating system stays an `OSError` with its number, so that Python picks `FileNotFoundError`,
//! `PermissionError` and the like by itself.

use pyo3::exceptions::{PyKeyboardInterrupt, PyOSError, PyValueError};
use pyo3::import_exception;
use pyo3::prelude::*;

use crate::Error;

import_exception!(tailrace.errors, QueueEmpty);
import_exception!(tailrace.errors, QueueFull);
import_exception!(tailrace.errors, WaitTimeout);
import_exception!(tailrace.errors, EndOfFile);
import_exception!(tailrace.errors, InvalidKey);
import_exception!(tailrace.errors, QueueClosed);
import_exception!(tailrace.errors, AlreadyOpen);
import_exception!(tailrace.errors, QueueNotFound);
import_exception!(tailrace.errors, QueueExists);
import_exception!(tailrace.errors, MessageNotFound);
import_exception!(tailrace.errors, MessageTooLarge);
import_exception!(tailrace.errors, FormatError);
import_exception!(tailrace.errors, CorruptQueue);

impl From<Error> for PyErr {
    fn from(error: Error) -> PyErr {
        let text = error.to_string();
        match error {
            Error::Full(_) => QueueFull::new_err(text),
            Error::Empty => QueueEmpty::new_err(text),
            Error::TimedOut => WaitTimeout::new_err(text),
            // `wait::waiting` restores the exception that stopped the wait; only a wait stopped by the end of the
            // interpreter comes here.
            Error::Interrupted => PyKeyboardInterrupt::new_err(text),
            Error::EndOfFile => EndOfFile::new_err(text),
            Error::Closed => QueueClosed::new_err(text),
            Error::AlreadyOpen(_) => AlreadyOpen::new_err(text),
            Error::NotFound(_) => QueueNotFound::new_err(text),
            Error::Exists(_) => QueueExists::new_err(text),
            Error::MessageNotFound(_) => MessageNotFound::new_err(text),
            Error::TooLarge { size, limit } => MessageTooLarge::new_err((text, size, limit)),
            Error::InvalidKey { key, .. } => InvalidKey::new_err((text, key)),
            Error::Invalid(_) => PyValueError::new_err(text),
            Error::Format(_) => FormatError::new_err(text),
            Error::Corrupt(_) => CorruptQueue::new_err(text),
            Error::Io { doing, source } => os_error(&doing, &source),
        }
    }
}

/// `OSError(errno, text)`, called as Python would call it: that is what picks the subclass by the number.
fn os_error(doing: &str, source: &std::io::Error) -> PyErr {
    let Some(errno) = source.raw_os_error() else {
        return PyOSError::new_err(format!("{doing}: {source}"));
    };
    let reason = source.to_string();
    // Python shows the number in front of the text already.
    let reason = reason.strip_suffix(&format!(" (os error {errno})")).unwrap_or(&reason);
    Python::attach(|py| {
        let made = py.get_type::<PyOSError>().call1((errno, format!("{doing}: {reason}")));
        made.map_or_else(|error| error, PyErr::from_value)
    })
}
