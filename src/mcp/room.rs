//! Waiting for room without writing anything.

use super::file::QueueFile;
use super::layout::queue;
use crate::Result;
use crate::shared::signal::{Turn, Wait};

impl QueueFile {
    /// How many messages were ever removed from the queues of this file.
    pub fn removed(&self) -> u64 {
        self.counters().read
    }

    /// Waits until [`QueueFile::removed`] is not `mark` any more; false when the time is up.
    pub fn wait_for_removal(&self, mark: u64, wait: Wait, mut idle: impl FnMut() -> Result<()>) -> Result<bool> {
        let Some(member) = self.members.first() else {
            return Ok(false);
        };
        let signal = self.system.driver.queue_signal(member.key.slot, queue::REMOVED);
        let mut look = || {
            self.check_open()?;
            // What the dead had in hand takes up room until somebody looks.
            self.look_around()?;
            idle()
        };
        let found = signal.wait_for(wait, Turn::PeerMatters, &mut look, || {
            Ok((self.removed() != mark || !self.is_full()).then_some(()))
        })?;
        Ok(found.is_some())
    }
}
