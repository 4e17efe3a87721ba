//! The three notations of section 3.0 for the parameters of a queue file. Each parser gives all declarations of a text.
//!
//! Errors name the line, the column and what was expected there.

pub mod card;
pub mod cobol;
mod scan;
pub mod sdl;

use super::parameters::{DEFAULT_BUFFERS, Device, FileParameters};
use crate::Result;
use scan::{Position, Scanner};

/// Parameters as they are met.
#[derive(Debug, Default)]
struct Draft {
    max_messages: Option<u32>,
    buffers: Option<u32>,
    record_size: Option<u32>,
    family_size: Option<u32>,
}

impl Draft {
    /// All is said: only BUFFERS can be left out (behaviour 34). `names` are the keywords of the notation.
    fn finish(self, name: &str, at: Position, names: [&str; 2]) -> Result<FileParameters> {
        let need = |value: Option<u32>, keyword: &str| {
            value.ok_or_else(|| at.error(&format!("{keyword} for {name}"), "the end of its declaration"))
        };
        let parameters = FileParameters {
            name: name.to_owned(),
            max_messages: need(self.max_messages, names[0])?,
            buffers: self.buffers.unwrap_or(DEFAULT_BUFFERS),
            record_size: need(self.record_size, names[1])?,
            family_size: self.family_size.unwrap_or(0),
            device: Device::New,
        };
        parameters
            .check(false)
            .map_err(|e| at.error("parameters within their limits", &e.to_string()))?;
        Ok(parameters)
    }
}

/// Sets a parameter that may be given once.
fn set_once(field: &mut Option<u32>, value: u32, keyword: &str, at: Position) -> Result<()> {
    match field.replace(value) {
        None => Ok(()),
        Some(_) => Err(at.error(&format!("{keyword} only once"), "it again")),
    }
}
