//! What killed producers left behind the last chunk: chunks that are complete and that nothing refers to yet.

use super::{Last, Writer};
use crate::qewqew::checks::Checks;
use crate::qewqew::layout::{ChunkId, FIRST_ENTRY};
use crate::qewqew::records::State;
use crate::qewqew::store::Store;
use crate::{Error, Result};

impl Writer {
    /// Links a chunk that a killed enqueue had finished, so that its messages are there at once and not at the next spill.
    pub(crate) fn adopt_leftover(&mut self, store: &Store) -> Result<()> {
        let previous = self.locate(store)?.cloned();
        let id = previous.as_ref().map_or(ChunkId::FIRST, |last| last.chunk.id().next());
        if !store.names.chunk(id).exists() {
            // Checksums come before their chunk; a killed enqueue got no further.
            return store.disk.unlink(&store.names.checks(id));
        }
        match self.settle_leftover(store, previous.as_ref(), id) {
            // Not ours to touch, or in use: the enqueue that needs the name says so.
            Err(Error::Exists(_) | Error::Full(_)) => Ok(()),
            done => done,
        }
    }

    /// The name of the next chunk is taken: by a live chunk (all ids are used up), by what a killed process left, or by
    /// something that is not ours to touch.
    #[cold]
    pub(super) fn settle_leftover(&mut self, store: &Store, previous: Option<&Last>, id: ChunkId) -> Result<()> {
        let path = store.names.chunk(id);
        if store.chain()?.iter().any(|link| link.id.number() == id.number()) {
            return Err(Error::Full(format!("all chunk ids of {} are in use", store.shown())));
        }
        let in_the_way =
            |what: &str| Error::Exists(format!("{}, where the next chunk should go: {what}", path.display()));
        let chunk = match store.glance(id) {
            Ok(chunk) => chunk,
            Err(Error::NotFound(_)) => return Ok(()),
            Err(error) => return Err(in_the_way(&error.to_string())),
        };
        if store.consumed_chunks()?.contains(&id) {
            return Err(Error::Full(format!("all chunk ids of {} are in use", store.shown())));
        }
        let pointers = chunk.raw_pointers()?;
        if !pointers.are_within(chunk.length()) {
            return Err(in_the_way("it is not a chunk"));
        }
        if pointers.is_exhausted() {
            // What is removed must not be the first chunk after a power cut.
            store.head.sync(&store.disk)?;
            store.disk.unlink(&store.names.checks(id))?;
            return store.disk.unlink(&path);
        }
        if chunk.next()?.is_some() || pointers.head != FIRST_ENTRY {
            return Err(in_the_way(
                "it holds messages, but no chunk refers to it; repair() puts it aside",
            ));
        }
        // A killed enqueue had finished the chunk and not yet linked it. Its messages may appear, as may those of any
        // enqueue that did not return; nothing is lost by that, whatever it is.
        if store.sync.is_durable() {
            chunk.sync(&store.disk)?;
            store.disk.sync_directory()?;
        }
        if let Ok(Some(checks)) = Checks::open(&store.names.checks(id)) {
            checks.set_state(&store.disk, State::Open)?;
        }
        self.link(store, previous, id)
    }
}
