//! The boot and the time namespace that the times in a file belong to.
//!
//! Times on the boot clock mean nothing after a reboot, and something else in another time namespace. Steps of the wall clock
//! do not touch them.

use super::layout::header;
use crate::os::clock;
use crate::shared::region::Region;
use crate::shared::sync::Ordering::{Relaxed, Release};
use crate::{Error, Result};

/// Where times come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The kernel's identity of the boot, as two words.
    pub boot_id: [u64; 2],
    /// The inode of the time namespace.
    pub time_namespace: u64,
}

impl Origin {
    /// That of this process.
    pub fn here() -> Result<Self> {
        let boot_id = clock::boot_id()?;
        let (low, high) = boot_id.split_at(8);
        let word = |half: &[u8]| half.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        Ok(Origin {
            boot_id: [word(low), word(high)],
            time_namespace: clock::time_namespace()?,
        })
    }

    pub(super) fn read(region: &Region) -> Self {
        let word = |offset| region.u64(offset).load(Relaxed);
        Origin {
            boot_id: [word(header::BOOT_ID), word(header::BOOT_ID + 8)],
            time_namespace: word(header::TIME_NAMESPACE),
        }
    }

    pub(super) fn write(&self, region: &Region) {
        region.u64(header::TIME_NAMESPACE).store(self.time_namespace, Relaxed);
        region.u64(header::BOOT_ID).store(self.boot_id[0], Relaxed);
        region.u64(header::BOOT_ID + 8).store(self.boot_id[1], Release);
    }

    pub(super) fn same_boot(&self, other: &Origin) -> bool {
        self.boot_id == other.boot_id
    }

    /// Refuses times of another namespace of the same boot.
    pub(super) fn check(&self, file: &Origin) -> Result<()> {
        if self.same_boot(file) && self.time_namespace != file.time_namespace {
            return Err(Error::Format(format!(
                "the queue is used in time namespace {}, and this process is in {}: they disagree about the time",
                file.time_namespace, self.time_namespace
            )));
        }
        Ok(())
    }
}
