//! S-memory in a model that loom explores: one segment, which does not grow. Stands in for `memory.rs` under `--cfg loom`.

use super::driver::Driver;
use super::layout::UNIT;
use crate::shared::region::Region;
use crate::{Error, Result};

/// There are no segments beside the first.
#[derive(Debug)]
pub(super) struct Memory;

impl Memory {
    pub(super) fn knows(&self, count: u32) -> bool {
        count == 1
    }

    pub(super) fn segment(&self, _number: u32) -> Option<&Region> {
        None
    }

    pub(super) fn attach(&self, _count: u32) -> Result<()> {
        Ok(())
    }
}

impl Driver {
    pub(super) fn memory_bytes(&self) -> u64 {
        u64::from(self.geometry.units) * UNIT as u64
    }

    pub(super) fn grow(&self, units: u32) -> Result<()> {
        Err(Error::Full(format!("the model has no room for {units} units more")))
    }
}
