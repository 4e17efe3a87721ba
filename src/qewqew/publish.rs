//! Publishing what was prepared elsewhere (see [`crate::qewqew::Stage`]), beside other producers.

use std::path::Path;

use super::chunk::{Access, Chunk};
use super::enqueue::Size;
use super::queue::DurableQueue;
use crate::qewqew::layout::{ChunkId, FIRST_ENTRY, LENGTH_BYTES};
use crate::qewqew::store::Store;
use crate::qewqew::writer::Writer;
use crate::{Error, Result};

impl DurableQueue {
    /// Makes a staged chunk the last one of the queue; `false` when it was moved to its place before. Whatever a killed
    /// producer left unlinked is linked first.
    pub fn publish_chunk(&self, staged: &Path) -> Result<bool> {
        let damaged = |error| match error {
            Error::Corrupt(what) => Error::Corrupt(format!("{}: {what}", staged.display())),
            other => other,
        };
        let found = Staged::look_at(staged).map_err(damaged)?;
        // The checksums of a chunk come before it, so only with them are its bytes needed here.
        let framed = match &found {
            Some(found) if self.options.crc => found.entries()?,
            _ => Vec::new(),
        };
        let size = found.as_ref().map_or(Size::default(), |found| found.size);
        let done = self.alone(
            size,
            || Ok(true),
            |writer, store| writer.publish(store, staged, &framed),
        )?;
        Ok(done.unwrap_or(false))
    }

    /// Appends framed messages by one step, if the queue ends at `position`; `false` when somebody else has appended since. So
    /// after a crash all of them are there, at that position, or none. They must fit into one chunk.
    pub fn publish_framed(&self, framed: &[u8], position: u64) -> Result<bool> {
        let messages = framed_messages(framed)?;
        for message in &messages {
            self.check_size(message)?;
        }
        let ranges = self.ranges()?;
        let is_there = || Ok(ranges.tail_position()? == position);
        let done = self.alone(Size::of(&messages), is_there, |writer, store| {
            writer.append_whole(store, &messages)
        })?;
        Ok(done.is_some())
    }

    /// Links what a killed producer had finished and not linked.
    pub fn adopt_leftover(&self) -> Result<()> {
        self.alone(
            Size::default(),
            || Ok(true),
            |writer, store| writer.adopt_leftover(store),
        )?;
        Ok(())
    }

    /// Runs `append` with everything committed that others have staged, and nobody else appending, if `is_due` says so then.
    fn alone<T>(
        &self,
        size: Size,
        is_due: impl FnOnce() -> Result<bool>,
        append: impl FnOnce(&mut Writer, &Store) -> Result<T>,
    ) -> Result<Option<T>> {
        let session = self.producer()?;
        session.check_open()?;
        let Some(side) = &session.store.side else {
            let mut writer = session.writer()?;
            return Ok(if is_due()? {
                Some(append(&mut writer, &session.store)?)
            } else {
                None
            });
        };
        let done = {
            let _commits = session
                .commits
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            let _commit = side.commit_lock(Store::patience())?;
            let mut writer = session.writer()?;
            let _append = side.append_lock(Store::patience())?;
            session.commit_all(side, &mut writer)?;
            if !is_due()? {
                return Ok(None);
            }
            if size.messages > 0 {
                self.admit(session, side, size)?;
            }
            append(&mut writer, &session.store)?
        };
        side.arrivals().notify_all();
        Ok(Some(done))
    }
}

/// The messages of framed bytes.
pub fn framed_messages(framed: &[u8]) -> Result<Vec<&[u8]>> {
    let (mut messages, mut rest) = (Vec::new(), framed);
    while let Some((length, following)) = rest.split_first_chunk::<{ LENGTH_BYTES as usize }>() {
        let length = usize::from(u16::from_be_bytes(*length));
        let Some((message, following)) = following.split_at_checked(length) else {
            break;
        };
        messages.push(message);
        rest = following;
    }
    if rest.is_empty() {
        return Ok(messages);
    }
    Err(Error::Corrupt(format!(
        "{} bytes of framed messages end in the middle of one",
        framed.len()
    )))
}

/// A staged chunk that was gone through once, so that no damaged one becomes part of a queue.
struct Staged {
    chunk: Chunk,
    size: Size,
}

impl Staged {
    /// `None` when there is no file.
    fn look_at(path: &Path) -> Result<Option<Self>> {
        let access = Access {
            mapped: true,
            durable: false,
            logged: false,
        };
        let chunk = match Chunk::open(path.to_owned(), ChunkId::FIRST, access) {
            Err(Error::NotFound(_)) => return Ok(None),
            opened => opened?,
        };
        let (mut size, tail, mut at) = (Size::default(), chunk.tail()?, FIRST_ENTRY);
        while at < tail {
            let length = chunk.entry_length(at, tail)?;
            at += LENGTH_BYTES + length;
            size.messages += 1;
        }
        size.bytes = u64::from(tail - FIRST_ENTRY);
        Ok(Some(Staged { chunk, size }))
    }

    fn entries(&self) -> Result<Vec<u8>> {
        let mut framed = Vec::new();
        let length = self.chunk.tail()? - FIRST_ENTRY;
        self.chunk.append_to(FIRST_ENTRY, length, &mut framed)?;
        Ok(framed)
    }
}
