//! The arguments of the constructors, as the queue wants them.

use std::path::PathBuf;
use std::time::Duration;

use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::prelude::*;

use crate::aq::{Format, Options};

/// Handles travel to processes with another working directory.
pub(super) fn absolute(path: PathBuf) -> PyResult<PathBuf> {
    Ok(std::path::absolute(path)?)
}

/// What is chosen when a region is formatted.
pub(super) fn format(
    page_size: u64,
    commit_timeout: f64,
    crc32: bool,
    link_identifier: bool,
    extendable: bool,
) -> PyResult<Format> {
    let most = f64::from(u32::MAX) / 1000.0;
    if !(0.0..=most).contains(&commit_timeout) {
        return Err(PyValueError::new_err(format!(
            "commit_timeout must be between 0 and {most} seconds, not {commit_timeout}"
        )));
    }
    let milliseconds = Duration::from_secs_f64(commit_timeout).as_millis();
    Ok(Format {
        page_size,
        commit_timeout_ms: u32::try_from(milliseconds).map_err(|_| PyOverflowError::new_err("commit_timeout"))?,
        options: Options {
            crc32,
            link_identifier,
            extendable,
        },
    })
}
