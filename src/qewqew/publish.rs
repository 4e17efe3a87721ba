//! Publishing what was prepared elsewhere (see [`crate::qewqew::Stage`]), beside other producers.

use std::path::Path;

use super::queue::DurableQueue;
use crate::qewqew::layout::{self, FIRST_ENTRY, LENGTH_BYTES, Pointers};
use crate::qewqew::store::Store;
use crate::qewqew::writer::Writer;
use crate::{Error, Result};

impl DurableQueue {
    /// Makes a staged chunk the last one of the queue; `false` when it was moved to its place before. Whatever a killed
    /// producer left unlinked is linked first.
    pub fn publish_chunk(&self, staged: &Path) -> Result<bool> {
        let bytes = match std::fs::read(staged) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                layout::chunk_header(Pointers::EMPTY, 0).to_vec()
            }
            Err(error) => return Err(Error::io(format!("reading {}", staged.display()), error)),
        };
        let damaged = |error| match error {
            Error::Corrupt(what) => Error::Corrupt(format!("{}: {what}", staged.display())),
            other => other,
        };
        let framed = staged_entries(&bytes).map_err(damaged)?;
        let messages = framed_messages(framed).map_err(damaged)?;
        let done = self.alone(
            &messages,
            || Ok(true),
            |writer, store| writer.publish(store, staged, framed),
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
        let done = self.alone(&messages, is_there, |writer, store| {
            writer.append_whole(store, &messages)
        })?;
        Ok(done.is_some())
    }

    /// Links what a killed producer had finished and not linked.
    pub fn adopt_leftover(&self) -> Result<()> {
        self.alone(&[], || Ok(true), |writer, store| writer.adopt_leftover(store))?;
        Ok(())
    }

    /// Runs `append` with everything committed that others have staged, and nobody else appending, if `is_due` says so then.
    fn alone<T>(
        &self,
        messages: &[&[u8]],
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
            if !messages.is_empty() {
                self.admit(session, side, messages)?;
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

/// What a staged chunk holds.
fn staged_entries(chunk: &[u8]) -> Result<&[u8]> {
    let damaged = || Error::Corrupt("it is not a staged chunk".into());
    let header = chunk.first_chunk::<{ FIRST_ENTRY as usize }>().ok_or_else(damaged)?;
    let tail = u32::from_be_bytes([header[4], header[5], header[6], header[7]]) as usize;
    chunk.get(FIRST_ENTRY as usize..tail).ok_or_else(damaged)
}
