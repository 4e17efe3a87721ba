//! Appending what was prepared elsewhere: whole chunks by one store, and small batches that are there completely or not at all.

use std::path::Path;

use super::Writer;
use crate::qewqew::disk::Step;
use crate::qewqew::layout::{ChunkId, entry_bytes};
use crate::qewqew::store::Store;
use crate::{Error, Result};

impl Writer {
    /// Appends messages by one move of a tail or one new chunk. They must fit into one chunk.
    pub(crate) fn append_whole(&mut self, store: &Store, messages: &[&[u8]]) -> Result<()> {
        let bytes: u64 = messages.iter().map(|message| entry_bytes(message.len())).sum();
        let fits = match self.locate_whole(store)? {
            Some(last) => u64::from(last.ready(store)?.tail) + bytes <= store.chunk_size.into(),
            None => false,
        };
        let done = match self.locate(store)? {
            Some(last) if fits => last.fill(store, messages, store.sync.is_durable())?,
            _ => self.go_on_after_all(store, messages)?,
        };
        if done < messages.len() {
            return Err(Error::Invalid(format!(
                "{bytes} bytes of messages do not fit into one chunk of {} bytes",
                store.chunk_size
            )));
        }
        Ok(())
    }

    fn go_on_after_all(&mut self, store: &Store, messages: &[&[u8]]) -> Result<usize> {
        match self.go_on(store, messages)? {
            // It has settled what was in the way first.
            0 => self.go_on(store, messages),
            count => Ok(count),
        }
    }

    /// Makes the complete chunk at `staged` the last one of the chain. A file that is not there was moved to its place by
    /// somebody who was killed then: what lies unlinked in the place of the next chunk is linked in any case.
    /// `framed` is what the chunk holds.
    pub(crate) fn publish(&mut self, store: &Store, staged: &Path, framed: &[u8]) -> Result<bool> {
        self.adopt_leftover(store)?;
        if !staged.exists() {
            return Ok(false);
        }
        let previous = self.locate(store)?.cloned();
        let id = previous.as_ref().map_or(ChunkId::FIRST, |last| last.chunk.id().next());
        let place = store.names.chunk(id);
        if place.exists() {
            return Err(Error::Exists(format!(
                "{}, where the next chunk should go",
                place.display()
            )));
        }
        if let Some((checks, _)) = self.prepare_checks(store, id, framed)? {
            store.disk.publish(vec![checks], store.sync.is_durable())?;
        }
        std::fs::rename(staged, &place)
            .map_err(|error| Error::io(format!("moving {} to {}", staged.display(), place.display()), error))?;
        store.disk.note(Step::Linked, &place);
        if store.sync.is_durable() {
            store.disk.sync_directory()?;
        }
        self.link(store, previous.as_ref(), id)?;
        if let Some(previous) = &previous {
            previous.finish_checks(store, id)?;
        }
        self.forget();
        Ok(true)
    }
}
