//! How a Python call waits: the `timeout` argument, the GIL, and Ctrl-C.
//!
//! A method that may wait makes one attempt without waiting first, still attached to the interpreter: most calls end
//! there, and detaching costs more than the attempt. Only when that attempt found nothing does it call [`waiting`].

use std::time::Duration;

use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::Error;
use crate::shared::signal::Wait;

/// The longest timeout in seconds, that of Python's own `threading.TIMEOUT_MAX`: about 292 years.
const LONGEST: f64 = 9_223_372_036.0;

/// The `timeout` argument of every waiting method: `None` waits for ever, else seconds from zero on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timeout(pub(crate) Option<Duration>);

impl Timeout {
    /// Waits for ever: the default of `put` and `get`, as in the standard library.
    pub(crate) const FOREVER: Timeout = Timeout(None);
    /// Does not wait at all.
    pub(crate) const ZERO: Timeout = Timeout(Some(Duration::ZERO));

    /// When to give up, counted from now.
    pub(crate) fn wait(self) -> Wait {
        Wait::from_timeout(self.0)
    }
}

impl<'a, 'py> FromPyObject<'a, 'py> for Timeout {
    type Error = PyErr;

    fn extract(value: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        if value.is_none() {
            return Ok(Timeout::FOREVER);
        }
        let seconds: f64 = match value.extract() {
            Ok(seconds) => seconds,
            // An integer beyond all floats is a number, and too long a time.
            Err(error) if error.is_instance_of::<PyOverflowError>(value.py()) => f64::INFINITY,
            Err(_) => {
                return Err(PyTypeError::new_err(format!(
                    "timeout must be a number of seconds or None, not {}",
                    described(&value)
                )));
            }
        };
        // The comparison also refuses NaN.
        if !(0.0..=LONGEST).contains(&seconds) {
            return Err(PyValueError::new_err(format!(
                "timeout must be between 0 and {LONGEST} seconds, or None to wait for ever, not {}",
                described(&value)
            )));
        }
        Ok(Timeout(Some(Duration::from_secs_f64(seconds))))
    }
}

/// The value as Python writes it, or its type where its `repr` fails.
fn described(value: &Bound<'_, PyAny>) -> String {
    match value.repr() {
        Ok(text) => text.to_string(),
        Err(_) => format!("an instance of {}", value.get_type()),
    }
}

/// Runs `body` detached from the interpreter, so that other Python threads go on while it sleeps.
///
/// `body` gets the `idle` callback that it must call at each turn of its wait and whose error it must hand back: it
/// runs Python's signal handlers, and the exception that one of them raised (Ctrl-C) is what the caller then sees.
pub(crate) fn waiting<T: Send>(
    py: Python<'_>,
    body: impl FnOnce(&mut dyn FnMut() -> crate::Result<()>) -> crate::Result<T> + Send,
) -> PyResult<T> {
    let mut raised: Option<PyErr> = None;
    let outcome = py.detach(|| {
        let mut idle = || match Python::try_attach(|py| py.check_signals()) {
            Some(Ok(())) => Ok(()),
            Some(Err(exception)) => {
                raised = Some(exception);
                Err(Error::Interrupted)
            }
            // The interpreter is on its way out and lets nobody in any more.
            None => Err(Error::Interrupted),
        };
        body(&mut idle)
    });
    outcome.map_err(|error| raised.unwrap_or_else(|| error.into()))
}
