//! The consumer's verbs.

use super::layout::{self, entry_bytes, signal};
use super::queue::DurableQueue;
use super::reader::{Entry, Reader};
use super::session::Session;
use super::side::Side;
use super::store::Store;
use crate::Result;
use crate::shared::sync::Ordering;

/// Which message a [`DurableQueue::peek`] saw, for [`DurableQueue::dequeue_peeked`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peeked {
    entry: Entry,
    moves: u64,
}

impl DurableQueue {
    /// The first message, which stays; `None` when there is none.
    pub fn peek(&self) -> Result<Option<Vec<u8>>> {
        let mut message = None;
        self.peek_with(|length, fill| {
            let mut bytes = vec![0; length];
            fill(&mut bytes)?;
            message = Some(bytes);
            Ok(())
        })?;
        Ok(message)
    }

    /// Hands the length of the first message to `take`, and a function that copies it; says which one it was.
    pub fn peek_with(&self, take: impl FnOnce(usize, &mut Fill<'_>) -> Result<()>) -> Result<Option<Peeked>> {
        let session = self.consumer()?;
        let mut take = Some(take);
        self.with_staged(session, |reader| {
            let Some(entry) = reader.front(&session.store)? else {
                return Ok(None);
            };
            let take = take.take().expect("called once for a message");
            take(entry.length as usize, &mut |bytes| copy(session, reader, entry, bytes))?;
            Ok(Some(Peeked {
                entry,
                moves: reader.moves(),
            }))
        })
    }

    /// Removes the message that a peek saw; false when it is no longer the first one.
    pub fn dequeue_peeked(&self, peeked: Peeked) -> Result<bool> {
        let session = self.consumer()?;
        let mut reader = session.reader()?;
        let entry = reader.front(&session.store)?;
        let same = entry == Some(peeked.entry) && reader.moves() == peeked.moves;
        if same {
            consume(
                session,
                &mut reader,
                peeked.entry,
                1,
                entry_bytes(peeked.entry.length as usize),
            )?;
        }
        Ok(same)
    }

    /// Removes and returns the first message; `None` when there is none.
    pub fn dequeue(&self) -> Result<Option<Vec<u8>>> {
        let mut message = None;
        self.dequeue_many_with(1, |length, fill| {
            let mut bytes = vec![0; length];
            fill(&mut bytes)?;
            message = Some(bytes);
            Ok(true)
        })?;
        Ok(message)
    }

    /// Removes and returns up to `limit` messages.
    pub fn dequeue_many(&self, limit: usize) -> Result<Vec<Vec<u8>>> {
        let mut messages = Vec::new();
        let count = self.dequeue_many_with(limit, |length, fill| {
            let mut bytes = vec![0; length];
            fill(&mut bytes)?;
            messages.push(bytes);
            Ok(true)
        })?;
        messages.truncate(count);
        Ok(messages)
    }

    /// Removes up to `limit` messages, handing each one's length and a function that copies it to `take`, which says whether
    /// it took it. Returns how many were removed: the first so many of those that were taken, the others stay.
    pub fn dequeue_many_with(
        &self,
        limit: usize,
        mut take: impl FnMut(usize, &mut Fill<'_>) -> Result<bool>,
    ) -> Result<usize> {
        let session = self.consumer()?;
        let mut count = drain(session, &mut *session.reader()?, limit, Border::Cross, &mut take)?;
        // What waits for a commit comes after all that does not.
        if let Some(side) = session
            .store
            .side
            .as_ref()
            .filter(|side| count < limit && side.has_staged())
        {
            let more = Self::commit_staged(session, side).and_then(|()| {
                drain(
                    session,
                    &mut *session.reader()?,
                    limit - count,
                    Border::Cross,
                    &mut take,
                )
            });
            match more {
                Ok(more) => count += more,
                // What was taken is gone; the next call meets the error again.
                Err(_) if count > 0 => {}
                Err(error) => return Err(error),
            }
        }
        Ok(count)
    }

    /// As [`Self::dequeue_many_with`], without waiting for another thread or for the disk: `None` when the first message
    /// needs that, and fewer than there are when a later one does.
    #[inline]
    pub fn try_dequeue_now(
        &self,
        limit: usize,
        mut take: impl FnMut(usize, &mut Fill<'_>) -> Result<bool>,
    ) -> Result<Option<usize>> {
        let session = self.consumer()?;
        let Some(mut reader) = session.try_reader()? else {
            return Ok(None);
        };
        if reader.is_at_border(&session.store)? {
            return Ok(None);
        }
        let count = drain(session, &mut reader, limit, Border::Stay, &mut take)?;
        if count == 0 && session.store.side.as_ref().is_some_and(Side::has_staged) {
            return Ok(None);
        }
        Ok(Some(count))
    }

    /// Runs `attempt`, and once more after a commit when it finds nothing while messages wait for one.
    fn with_staged<T>(
        &self,
        session: &Session,
        mut attempt: impl FnMut(&mut Reader) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let found = attempt(&mut *session.reader()?)?;
        match &session.store.side {
            Some(side) if found.is_none() && side.has_staged() => {
                Self::commit_staged(session, side)?;
                attempt(&mut *session.reader()?)
            }
            _ => Ok(found),
        }
    }

    /// Removes all messages; false when there were none.
    pub fn clear(&self) -> Result<bool> {
        let session = self.consumer()?;
        let store = &session.store;
        let mut reader = session.reader()?;
        let _commits = session
            .commits
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let _commit = store
            .side
            .as_ref()
            .map(|side| side.commit_lock(Store::patience()))
            .transpose()?;
        let mut writer = session.writer()?;
        let _append = store
            .side
            .as_ref()
            .map(|side| side.append_lock(Store::patience()))
            .transpose()?;
        let chain = store.chain()?;
        let staged = store.side.as_ref().is_some_and(Side::has_staged);
        if !staged && chain.iter().all(|link| link.pointers.is_exhausted()) {
            return Ok(false);
        }
        // As if they were dequeued one chunk after the other: a kill leaves the rest of the queue, never a part of a chunk.
        reader.forget();
        while reader.front(store)?.is_some() {
            match reader.chunk().next()? {
                Some(next) => reader.advance(store, next)?,
                None => reader.skip_all(store)?,
            }
        }
        if let Some(side) = &store.side {
            side.empty_stage(0);
            side.empty_stage(1);
            // Before the last chunk goes: whoever has it open looks again.
            side.epoch().fetch_add(1, Ordering::AcqRel);
            let consumed = side.counter(signal::CONSUMED_BYTES).load(Ordering::SeqCst);
            side.counter(signal::APPENDED_BYTES).store(consumed, Ordering::SeqCst);
        }
        reader.remove_consumed(store)?;
        if let Some(last) = chain.last() {
            let tail = store.glance(last.id)?.tail()?;
            session.remove_chunks(std::iter::once(last.id), std::iter::once(tail))?;
        }
        reader.forget();
        writer.forget();
        if let Some(side) = &store.side {
            side.room().notify_all();
        }
        Ok(true)
    }
}

/// Copies a message into a buffer of its length, checking it where checksums are kept.
pub type Fill<'a> = dyn FnMut(&mut [u8]) -> Result<()> + 'a;

fn copy(session: &Session, reader: &mut Reader, entry: Entry, bytes: &mut [u8]) -> Result<()> {
    let at = entry.offset + layout::LENGTH_BYTES;
    reader.chunk().read(at, &mut bytes[..entry.length as usize])?;
    if session.store.crc {
        reader.check(&session.store, entry, bytes)?;
    }
    Ok(())
}

/// What to do at the end of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Border {
    Cross,
    Stay,
}

/// Removes up to `limit` messages, chunk by chunk, each chunk's in one step.
#[inline]
fn drain(
    session: &Session,
    reader: &mut Reader,
    limit: usize,
    border: Border,
    take: &mut impl FnMut(usize, &mut Fill<'_>) -> Result<bool>,
) -> Result<usize> {
    let mut count = 0;
    while count < limit {
        let mut entry = match reader.front(&session.store) {
            Ok(Some(entry)) => entry,
            Ok(None) => break,
            // What was taken is gone; the next call meets the error again.
            Err(_) if count > 0 => break,
            Err(error) => return Err(error),
        };
        let (mut taken, mut bytes, mut last) = (0, 0, None);
        let outcome = loop {
            match take(entry.length as usize, &mut |buffer| {
                copy(session, reader, entry, buffer)
            }) {
                Ok(true) => {}
                refused => break refused,
            }
            taken += 1;
            bytes += entry_bytes(entry.length as usize);
            last = Some(entry);
            if count + taken == limit {
                break Ok(true);
            }
            match reader.following(entry) {
                Ok(Some(next)) => entry = next,
                Ok(None) => break Ok(border == Border::Cross),
                Err(error) => break Err(error),
            }
            if border == Border::Stay {
                match reader.leaves_chunk(entry) {
                    Ok(false) => {}
                    leaves => break leaves.map(|_| false),
                }
            }
        };
        let consumed = match last {
            Some(last) => consume(session, reader, last, taken as u64, bytes).map(|()| count += taken),
            None => Ok(()),
        };
        match consumed.and(outcome) {
            Ok(true) => {}
            Ok(false) => break,
            Err(_) if count > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(count)
}

#[inline]
fn consume(session: &Session, reader: &mut Reader, last: Entry, messages: u64, bytes: u64) -> Result<()> {
    reader.consume(&session.store, last)?;
    if let Some(side) = &session.store.side {
        let count = side.counter(signal::CONSUMED_MESSAGES);
        count.store(count.load(Ordering::Relaxed).wrapping_add(messages), Ordering::Relaxed);
        side.counter(signal::CONSUMED_BYTES).fetch_add(bytes, Ordering::SeqCst);
        side.room().notify_all_fenced();
    }
    Ok(())
}
