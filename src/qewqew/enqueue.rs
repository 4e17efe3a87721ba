//! The producer's verbs: straight into the chunk, or through a stage that many share a commit of.

use super::layout::{LENGTH_BYTES, entry_bytes, signal};
use super::options::SyncMode;
use super::queue::DurableQueue;
use super::session::Session;
use super::side::Side;
use super::store::Store;
use super::writer::Stop;
use crate::shared::signal::Wait;
use crate::shared::sync::Ordering;
use crate::{Error, Result};

/// How much is to be appended.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Size {
    pub(super) messages: u64,
    pub(super) bytes: u64,
}

impl Size {
    #[inline]
    pub(super) fn of(messages: &[&[u8]]) -> Self {
        Size {
            messages: messages.len() as u64,
            bytes: messages.iter().map(|message| entry_bytes(message.len())).sum(),
        }
    }
}

impl DurableQueue {
    /// Appends a message; [`Error::Full`] when it would exceed `max_bytes`.
    pub fn enqueue(&self, message: &[u8]) -> Result<()> {
        self.enqueue_many(&[message])
    }

    /// Appends messages in order, with as few syncs as possible. When they do not all fit below `max_bytes`, or into as many
    /// chunks as there are ids for, none is.
    pub fn enqueue_many<M: AsRef<[u8]>>(&self, messages: &[M]) -> Result<()> {
        let messages: Vec<&[u8]> = messages.iter().map(AsRef::as_ref).collect();
        self.append(&messages)
    }

    /// Appends messages; `false` instead of waiting for another thread or process, or for the disk.
    #[inline]
    pub fn try_enqueue_now(&self, message: &[u8]) -> Result<bool> {
        let session = self.producer()?;
        self.check_size(message)?;
        let store = &session.store;
        let Some(side) = store.side.as_ref().filter(|_| store.sync != SyncMode::Always) else {
            return Ok(false);
        };
        let Some(mut writer) = session.try_writer()? else {
            return Ok(false);
        };
        let append = match side.append_lock(Wait::No) {
            Ok(held) => held,
            Err(Error::TimedOut) => return Ok(false),
            Err(error) => return Err(error),
        };
        if store.sync == SyncMode::Never {
            // A new chunk takes the disk some time; whoever has nobody to keep waiting does not mind.
            if side.has_staged() || !writer.has_room(store, message.len())? {
                return Ok(false);
            }
            self.admit(session, side, Size::of(&[message]))?;
            writer.append(store, &[message], false)?;
            // The tail was moved by a SeqCst swap.
            drop(append);
            side.arrivals().notify_all_fenced();
            return Ok(true);
        }
        if side.has_unsynced_past() || !side.has_staged() && !writer.has_room(store, message.len())? {
            return Ok(false);
        }
        self.admit(session, side, Size::of(&[message]))?;
        let (staged, _) = writer.stage(store, side, &[message])?;
        drop(append);
        if staged == 1 {
            side.arrivals().notify_all();
        } else {
            self.give_back(side, Size::of(&[message]));
        }
        Ok(staged == 1)
    }

    fn append(&self, messages: &[&[u8]]) -> Result<()> {
        let session = self.producer()?;
        for message in messages {
            self.check_size(message)?;
        }
        session.check_open()?;
        if messages.is_empty() {
            return Ok(());
        }
        let store = &session.store;
        let Some(side) = &store.side else {
            let mut writer = session.writer()?;
            if let Some(limit) = self.options.max_bytes {
                check_room(session.unread_bytes()?, Size::of(messages).bytes, limit)?;
            }
            writer.check_ids(store, messages)?;
            return writer.append(store, messages, store.sync.is_durable());
        };
        match store.sync {
            SyncMode::Never => self.append_at_once(session, side, messages)?,
            SyncMode::Group => self.append_staged(session, side, messages)?,
            SyncMode::Always => {
                self.append_staged(session, side, messages)?;
                Self::commit_staged(session, side)?;
            }
        }
        Ok(())
    }

    fn append_at_once(&self, session: &Session, side: &Side, messages: &[&[u8]]) -> Result<()> {
        loop {
            let mut writer = session.writer()?;
            let append = side.append_lock(Store::patience())?;
            if side.has_staged() {
                // Of a handle with another mode: its messages come first, with their syncs.
                drop(append);
                drop(writer);
                Self::commit_staged(session, side)?;
                continue;
            }
            writer.check_ids(&session.store, messages)?;
            self.admit(session, side, Size::of(messages))?;
            let done = writer.append(&session.store, messages, false);
            drop(append);
            drop(writer);
            side.arrivals().notify_all();
            return done;
        }
    }

    fn append_staged(&self, session: &Session, side: &Side, messages: &[&[u8]]) -> Result<()> {
        let mut rest = messages;
        let mut admitted = false;
        while !rest.is_empty() {
            let (count, stop) = {
                let mut writer = session.writer()?;
                let _append = side.append_lock(Store::patience())?;
                if !admitted {
                    writer.check_ids(&session.store, messages)?;
                    self.admit(session, side, Size::of(messages))?;
                    admitted = true;
                }
                writer.stage(&session.store, side, rest)?
            };
            rest = &rest[count..];
            if count > 0 {
                side.arrivals().notify_all();
            }
            let done = match stop {
                Stop::Done => Ok(0),
                Stop::StageFull => Self::commit_staged(session, side).map(|()| 0),
                Stop::ChunkFull => self.go_on(session, side, rest),
            };
            match done {
                Ok(created) => rest = &rest[created..],
                Err(error) => {
                    self.give_back(side, Size::of(rest));
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Commits what is staged and starts a new chunk with the next messages.
    fn go_on(&self, session: &Session, side: &Side, messages: &[&[u8]]) -> Result<usize> {
        let _commits = session
            .commits
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let _commit = side.commit_lock(Store::patience())?;
        let mut writer = session.writer()?;
        let _append = side.append_lock(Store::patience())?;
        session.commit_all(side, &mut writer)?;
        // Somebody else may have started one while we waited.
        if writer.has_room(&session.store, messages[0].len())? {
            return Ok(0);
        }
        let created = writer.go_on(&session.store, messages)?;
        side.arrivals().notify_all();
        Ok(created)
    }

    /// Makes everything that was staged before this call durable; callers at the same time share the syncs.
    pub(crate) fn commit_staged(session: &Session, side: &Side) -> Result<()> {
        let _commits = session
            .commits
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if !side.has_staged() {
            return Ok(());
        }
        let _commit = side.commit_lock(Store::patience())?;
        loop {
            let (next, target) = {
                let mut writer = session.writer()?;
                let _append = side.append_lock(Store::patience())?;
                let Some(next) = side.next_to_commit()? else {
                    return Ok(());
                };
                let target = writer.target(&session.store, &next.staged)?;
                (next, target)
            };
            // Others stage meanwhile.
            target.commit(&session.store, &next.staged)?;
            side.empty_stage(next.stage);
            side.arrivals().notify_all();
            if next.was_active {
                return Ok(());
            }
        }
    }

    /// Counts messages in, under the append lock; [`Error::Full`] when they do not fit below the bound.
    pub(super) fn admit(&self, session: &Session, side: &Side, size: Size) -> Result<()> {
        let bytes = size.bytes;
        let appended = side.counter(signal::APPENDED_BYTES);
        let mut before = appended.load(Ordering::Relaxed);
        if let Some(limit) = self.options.max_bytes {
            let consumed = || side.counter(signal::CONSUMED_BYTES).load(Ordering::SeqCst);
            if check_room(before.wrapping_sub(consumed()), bytes, limit).is_err() {
                // A killed process may have counted what it did not do: count again.
                let unread = session.unread_bytes()? + side.staged_bytes();
                before = unread.wrapping_add(consumed());
                appended.store(before, Ordering::Relaxed);
                check_room(unread, bytes, limit)?;
            }
        }
        appended.store(before.wrapping_add(bytes), Ordering::Relaxed);
        let count = side.counter(signal::APPENDED_MESSAGES);
        count.store(
            count.load(Ordering::Relaxed).wrapping_add(size.messages),
            Ordering::Relaxed,
        );
        Ok(())
    }

    fn give_back(&self, side: &Side, size: Size) {
        side.counter(signal::APPENDED_BYTES)
            .fetch_sub(size.bytes, Ordering::Relaxed);
        side.counter(signal::APPENDED_MESSAGES)
            .fetch_sub(size.messages, Ordering::Relaxed);
    }

    pub(super) fn check_size(&self, message: &[u8]) -> Result<()> {
        let mut limit = u64::from(self.max_element_size());
        // What has no room in an empty queue never has any: nobody waits for it.
        if let Some(bytes) = self.options.max_bytes {
            limit = limit.min(bytes - u64::from(LENGTH_BYTES));
        }
        let size = message.len() as u64;
        if size > limit {
            return Err(Error::TooLarge { size, limit });
        }
        Ok(())
    }
}

fn check_room(unread: u64, bytes: u64, limit: u64) -> Result<()> {
    if unread.checked_add(bytes).is_some_and(|sum| sum <= limit) {
        return Ok(());
    }
    Err(Error::Full(format!(
        "{unread} bytes of unread messages and {bytes} more exceed max_bytes={limit}"
    )))
}
