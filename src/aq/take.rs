//! Taking messages out in one call: retrieve, copy, release. Incomplete items, and those with a wrong checksum, are skipped and
//! counted.
//!
//! Taking lazily moves the tail only now and then, while more messages are known to wait and there is a lot of room: writers
//! read that word with every claim, and each store to it takes its cache line away from them. Every message is released when
//! it is taken, so no death brings it back; only its pages come free a few messages later ([`Owed`]), and at once where a
//! writer sleeps for room.

use std::mem::MaybeUninit;

use super::control::Checksum;
use super::memory::Memory;
use super::reader::Reader;
use super::retrieved::{Item, Part};
use crate::Result;
use crate::shared::signal::Wait;
use crate::shared::sync::Ordering;

/// The bytes of a message on its way out.
#[derive(Debug)]
pub struct Taken<'a> {
    memory: &'a Memory,
    item: &'a Item,
    /// The bytes that were checked, in queues with CRC32: they cannot change any more.
    checked: Option<&'a [u8]>,
}

impl<'a> Taken<'a> {
    /// A message whose bytes are copied as they are.
    #[inline(always)]
    pub(super) fn unchecked(memory: &'a Memory, item: &'a Item) -> Self {
        Taken {
            memory,
            item,
            checked: None,
        }
    }

    /// Bytes of the message.
    #[inline]
    pub fn size(&self) -> usize {
        self.item.size()
    }

    /// The item that the message is in.
    pub fn item(&self) -> &Item {
        self.item
    }

    /// Copies the message into memory of exactly its size, all of which is initialised afterwards.
    #[inline]
    pub fn copy_to(&self, out: &mut [MaybeUninit<u8>]) {
        assert_eq!(out.len(), self.size(), "room for exactly the message");
        if let Some(bytes) = self.checked {
            for (to, from) in out.iter_mut().zip(bytes) {
                to.write(*from);
            }
            return;
        }
        let mut out = out;
        for part in self.item.parts() {
            let (now, later) = out.split_at_mut(part.used as usize);
            let at = self.memory.geometry.page(part.at.index);
            self.memory.region.copy_out_uninit(at, now);
            out = later;
        }
    }

    /// Appends the message.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        if let Some(bytes) = self.checked {
            return out.extend_from_slice(bytes);
        }
        for part in self.item.parts() {
            let at = self.memory.geometry.page(part.at.index);
            self.memory.region.append_to(at, part.used as usize, out);
        }
    }
}

/// What to do with a message that was offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was taken.
    Taken,
    /// It stays in the queue, and the batch ends.
    NoRoom,
}

/// Pages that were released and are not free yet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Owed {
    messages: u32,
    pages: u32,
}

impl Owed {
    const MOST_MESSAGES: u32 = 16;
    /// Of the ring.
    const MOST_PAGES: u32 = 16;

    #[inline]
    fn is_too_much(self, page_count: u32) -> bool {
        self.messages >= Self::MOST_MESSAGES || self.pages > page_count / Self::MOST_PAGES
    }
}

impl Reader {
    /// Takes the next message, if there is one.
    #[inline]
    pub fn take<T>(&mut self, read: impl FnMut(&Taken<'_>) -> Result<T>) -> Result<Option<T>> {
        self.take_one(false, read)
    }

    /// As [`Reader::take`], faster beside busy writers: while more messages wait and half of the ring is free, the room of up
    /// to 15 taken ones (at most a sixteenth of the ring) comes free with a later call, or with [`Reader::give_back`]. Not for
    /// a thread that will itself wait for that room.
    #[inline]
    pub fn take_lazily<T>(&mut self, read: impl FnMut(&Taken<'_>) -> Result<T>) -> Result<Option<T>> {
        self.take_one(true, read)
    }

    #[inline(always)]
    fn take_one<T>(&mut self, lazily: bool, mut read: impl FnMut(&Taken<'_>) -> Result<T>) -> Result<Option<T>> {
        while let Some(item) = self.next_message()? {
            let mut bytes = Vec::new();
            let Some(taken) = self.message(&item, &mut bytes)? else {
                continue;
            };
            match read(&taken) {
                Ok(value) => {
                    self.release_taken(&item, lazily)?;
                    return Ok(Some(value));
                }
                Err(error) => {
                    self.put_back(&item);
                    return Err(error);
                }
            }
        }
        Ok(None)
    }

    /// The next item that may be a message, without a look at the head where one is known of.
    #[inline(always)]
    pub(super) fn next_message(&mut self) -> Result<Option<Item>> {
        if !self.memory.geometry.options.extendable {
            self.keep_role()?;
            if let Some((at, control)) = self.walk.next_known(&self.memory) {
                let part = self.part(at, control, false);
                return Ok(Some(Item::single(part, &self.memory.geometry)));
            }
        }
        self.next_item(false)
    }

    /// Releases an item, and frees its pages now or with some others later.
    #[inline(always)]
    fn release_taken(&mut self, item: &Item, lazily: bool) -> Result<()> {
        let geometry = self.memory.geometry;
        for part in item.parts() {
            self.mark_released(part)?;
            self.owed.pages += geometry.pages(part.control.size());
        }
        self.owed.messages += 1;
        let later = lazily
            && self.walk.is_roomy(geometry.page_count)
            && !self.owed.is_too_much(geometry.page_count)
            && !self.memory.free_signal().is_awaited();
        if later { Ok(()) } else { self.free() }
    }

    /// Frees the pages of all messages that were taken.
    pub fn give_back(&mut self) -> Result<()> {
        if self.owed.messages > 0 {
            self.keep_role()?;
            self.free()?;
        }
        Ok(())
    }

    /// As [`Reader::take`], waiting for a message.
    pub fn take_within<T>(
        &mut self,
        wait: Wait,
        idle: impl FnMut() -> Result<()>,
        mut read: impl FnMut(&Taken<'_>) -> Result<T>,
    ) -> Result<Option<T>> {
        self.wait_for_commit(wait, idle, |reader| reader.take(&mut read))
    }

    /// The message in an item; `None` when the item is not to be handed out as one.
    #[inline]
    pub(super) fn message<'a>(&'a mut self, item: &'a Item, bytes: &'a mut Vec<u8>) -> Result<Option<Taken<'a>>> {
        if !item.is_committed() {
            self.skip_incomplete(item)?;
            return Ok(None);
        }
        if self.memory.geometry.options.crc32 && !self.copy_checked(item, bytes) {
            self.memory.corrupt().fetch_add(1, Ordering::Relaxed);
            self.release(item.clone())?;
            return Ok(None);
        }
        let checked = self.memory.geometry.options.crc32.then_some(&bytes[..]);
        Ok(Some(Taken {
            memory: &self.memory,
            item,
            checked,
        }))
    }

    /// Copies first and checks the copy: nobody can change it after the check.
    fn copy_checked(&self, item: &Item, bytes: &mut Vec<u8>) -> bool {
        item.is_checksum_valid() && item.parts().all(|part| self.copy_checked_part(part, bytes))
    }

    fn copy_checked_part(&self, part: &Part, bytes: &mut Vec<u8>) -> bool {
        let memory = &*self.memory;
        let start = bytes.len();
        let capacity = part.control.size();
        memory
            .region
            .append_to(memory.geometry.page(part.at.index), capacity as usize, bytes);
        let mut sum = Checksum::new(part.at.reference().identifier(), capacity, part.link);
        sum.update(&bytes[start..]);
        bytes.truncate(start + part.used as usize);
        let stored = memory
            .geometry
            .crc(part.at.index)
            .map(|at| memory.region.u32(at).load(Ordering::Relaxed));
        stored == Some(sum.finish())
    }

    /// Lets an incomplete item go, unless its writer commits it at the last moment: then it comes again, as a message.
    #[cold]
    fn skip_incomplete(&mut self, item: &Item) -> Result<()> {
        let last = item.rest.last().unwrap_or(&item.first);
        if !last.control.is_committed() && !self.discard_exactly(last) {
            self.put_back(item);
            return Ok(());
        }
        for part in item.parts().filter(|part| part.control.is_committed()) {
            self.mark_released(part)?;
        }
        self.memory.incomplete().fetch_add(1, Ordering::Relaxed);
        self.free()
    }
}
