//! A queue system in modelled memory, for loom: one segment, no files.

use std::path::PathBuf;
use std::sync::Arc;

use super::disk;
use super::driver::Driver;
use super::geometry::{Geometry, SystemParameters};
use super::layout::head;
use super::memory::Memory;
use super::system::System;
use crate::Result;
use crate::shared::region::Region;
use crate::shared::sync::{Ordering, PrivateU64};

impl System {
    /// An empty system; each process of the model takes part by [`System::model_join`].
    pub fn model(parameters: &SystemParameters) -> Result<Arc<Region>> {
        static SYSTEMS: PrivateU64 = PrivateU64::new(1);
        let geometry = Geometry::new(parameters)?;
        let (wide, narrow) = geometry.words();
        let region = Region::of_words(geometry.length(), &wide, &narrow);
        Driver::format(&region, &geometry, SYSTEMS.fetch_add(1, Ordering::Relaxed));
        Ok(Arc::new(region))
    }

    /// Takes part in modelled memory.
    pub fn model_join(region: &Arc<Region>) -> Result<Arc<System>> {
        Ok(Arc::new(System {
            driver: Driver::join(region.clone(), Memory)?,
            directory: PathBuf::from("model"),
            boot: "boot".into(),
        }))
    }

    /// Queue disks that exist.
    pub fn model_disks(&self) -> usize {
        disk::count(&self.model_name())
    }

    /// The model has ended.
    pub fn model_end(&self) {
        disk::forget(&self.model_name());
    }

    fn model_name(&self) -> String {
        format!("mcp-boot.{:x}.", self.driver.wide_word(head::SYSTEM))
    }
}
