//! What people may want to know about an open queue.

use super::layout::signal;
use super::queue::DurableQueue;
use crate::Result;
use crate::shared::sync::Ordering;

/// A moment's view of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// Chunk files in the chain.
    pub chunks: usize,
    /// Unread messages.
    pub messages: u64,
    /// Bytes of unread messages, each with its 2-byte length.
    pub unread_bytes: u64,
    /// Messages appended since the first of those who have the queue open came; killed processes may have counted one more.
    pub appended: u64,
    /// Messages consumed in that time.
    pub consumed: u64,
    /// Process number of each handle, and whether it lives; empty with `network=True`.
    pub participants: Vec<(u32, bool)>,
    /// Whether positions are kept.
    pub keeps_positions: bool,
}

impl DurableQueue {
    /// What there is to know.
    pub fn info(&self) -> Result<Info> {
        let session = self.session()?;
        session.check_open()?;
        let store = &session.store;
        let counter = |at| {
            store
                .side
                .as_ref()
                .map_or(0, |side| side.counter(at).load(Ordering::Relaxed))
        };
        let staged = store.side.as_ref().map_or(0, |side| side.staged_bytes());
        Ok(Info {
            chunks: store.chain()?.len(),
            messages: session.count_messages()?,
            unread_bytes: session.unread_bytes()? + staged,
            appended: counter(signal::APPENDED_MESSAGES),
            consumed: counter(signal::CONSUMED_MESSAGES),
            participants: store.side.as_ref().map_or(Ok(Vec::new()), |side| side.members())?,
            keeps_positions: store.keeps_positions(),
        })
    }
}
