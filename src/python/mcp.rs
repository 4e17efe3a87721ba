//! `tailrace._core.mcp`: queue files for Python.
//!
//! - [`describe`]: what a file tells about itself
//! - [`file`]: the class `QueueFile`
//! - [`held`]: messages in a reader's hands
//! - [`parameters`]: the class `FileParameters`, with its notations
//! - [`system`]: what concerns a whole queue system
//! - [`transfer`]: how messages come and go

mod describe;
mod file;
mod held;
mod parameters;
mod room;
mod system;
mod tokens;
mod transfer;

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;

use crate::mcp::{Mode, System, SystemParameters};
use crate::{Error, Result};

/// The native part of `tailrace.mcp`.
#[pymodule]
pub(crate) mod mcp {
    #[pymodule_export]
    use super::file::QueueFile;
    #[pymodule_export]
    use super::held::HeldMessage;
    #[pymodule_export]
    use super::parameters::FileParameters;
    #[pymodule_export]
    use super::room::{_room_mark, _wait_room};
    #[pymodule_export]
    use super::system::{counters, create_system, default_system, queues, reclaim, wait};
    #[pymodule_export]
    use super::tokens::{_acknowledge, _copy, _hold, _look};
}

/// Opens the system in a directory, or that of this user.
fn open_system(directory: Option<PathBuf>) -> Result<Arc<System>> {
    System::open(&or_default(directory)?, &SystemParameters::default())
}

/// As [`open_system`], where to look must not create anything.
fn present_system(directory: Option<PathBuf>) -> Result<Option<Arc<System>>> {
    System::open_present(&or_default(directory)?, &SystemParameters::default())
}

fn or_default(directory: Option<PathBuf>) -> Result<PathBuf> {
    directory.map_or_else(System::default_directory, Ok)
}

fn mode_named(name: &str) -> Result<Mode> {
    match name {
        "input" => Ok(Mode::Input),
        "output" => Ok(Mode::Output),
        "input_output" => Ok(Mode::InputOutput),
        _ => Err(Error::Invalid(format!(
            "mode must be \"input\", \"output\" or \"input_output\", not {name:?}"
        ))),
    }
}

fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Input => "input",
        Mode::Output => "output",
        Mode::InputOutput => "input_output",
    }
}
