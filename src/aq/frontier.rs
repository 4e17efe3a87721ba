//! For readers that keep many items in hand and note how far they are: up to where everything was handed out, and releasing an
//! item only as it was handed out.

use super::reader::Reader;
use super::retrieved::Item;
use crate::Result;

impl Reader {
    /// The position up to which every item was handed out, and the position of the head. Nothing can come before the first any
    /// more, except what [`Reader::release_exactly`] puts back.
    pub fn frontier(&mut self) -> Result<(u64, u64)> {
        self.memory.check()?;
        self.keep_role()?;
        let head = self.walk.head(&self.memory)?;
        let walked = self.walk.oldest_pending().unwrap_or(self.walk.cursor);
        let reached = self.oldest_collected().map_or(walked, |oldest| oldest.min(walked));
        let count = self.memory.geometry.page_count;
        Ok((reached.absolute(count), head.absolute(count)))
    }

    /// As [`Reader::release`], but an item that was handed out as incomplete and committed since is not released: `false`, and it
    /// is handed out again.
    pub fn release_exactly(&mut self, item: &Item) -> Result<bool> {
        self.keep_role()?;
        let last = item.rest.last().unwrap_or(&item.first);
        if !last.control.is_committed() && !self.discard_exactly(last) {
            self.put_back(item);
            return Ok(false);
        }
        for part in item.parts().filter(|part| part.control.is_committed()) {
            self.mark_released(part)?;
        }
        self.free()?;
        Ok(true)
    }
}
