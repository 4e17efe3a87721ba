//! A claimed item: what may be written where, in fixed and in extendable queues.
//!
//! A fixed item has one segment and its size is what was claimed. An extendable item starts empty; writing behind its end
//! claims another segment for what does not fit.

use std::fmt;

use super::control::{NO_IDENTIFIER, Reference};
use super::memory::Memory;
use super::owners::ClaimRecord;
use super::writer::Writer;
use crate::os::fork;
use crate::shared::region::Region;
use crate::{Error, Result};

/// One run of pages of a claim.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(super) place: Reference,
    pub(super) capacity: u32,
    pub(super) record: ClaimRecord,
}

impl Segment {
    pub(super) fn new(place: Reference, capacity: u32, record: ClaimRecord) -> Self {
        Segment {
            place,
            capacity,
            record,
        }
    }
}

/// A claim without its writer.
#[derive(Clone, Debug)]
pub(crate) struct ClaimData {
    pub(super) first: Segment,
    rest: Vec<Segment>,
    /// Bytes of the item: claimed ones of a fixed item, written ones of an extendable item.
    pub(super) size: usize,
    /// Where the next write without an offset goes.
    position: usize,
    pub(super) link: u32,
    open: bool,
    pub(super) committed: bool,
    generation: u32,
}

impl ClaimData {
    #[inline]
    pub(super) fn new(first: Segment, extendable: bool) -> Self {
        ClaimData {
            first,
            rest: Vec::new(),
            size: if extendable { 0 } else { first.capacity as usize },
            position: 0,
            link: NO_IDENTIFIER,
            open: true,
            committed: false,
            generation: fork::generation(),
        }
    }

    pub(super) fn segments(&self) -> impl Iterator<Item = &Segment> {
        std::iter::once(&self.first).chain(&self.rest)
    }

    pub(crate) fn identifier(&self) -> u32 {
        self.first.place.identifier()
    }

    pub(crate) fn capacity(&self) -> usize {
        self.segments().map(|segment| segment.capacity as usize).sum()
    }

    #[cfg(feature = "python")]
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    pub(crate) fn segment_count(&self) -> usize {
        1 + self.rest.len()
    }

    #[cfg(feature = "python")]
    pub(crate) fn link_identifier(&self) -> u32 {
        self.link
    }

    #[cfg(feature = "python")]
    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    /// Offset in the region and length of the first segment.
    #[cfg(feature = "python")]
    pub(crate) fn first_span(&self, writer: &Writer) -> (usize, usize) {
        let offset = writer.memory.geometry.page(self.first.place.index());
        (offset, self.first.capacity as usize)
    }

    #[cfg(feature = "python")]
    pub(crate) fn was_committed(&self) -> bool {
        self.committed
    }

    /// Forgets the claim without touching the item: it stays an uncommitted claim of nobody, which the reader gives out as
    /// incomplete by the timeout.
    #[inline]
    pub(crate) fn forget(&mut self, region: &Region) {
        if self.is_mine() {
            self.close();
            self.segments().for_each(|segment| segment.record.clear(region));
        }
    }

    pub(super) fn close(&mut self) {
        self.open = false;
    }

    /// Whether this process can still write to it.
    #[inline]
    pub(super) fn is_mine(&self) -> bool {
        self.open && self.generation == fork::generation()
    }

    /// Refuses a claim that is over, and one that belongs to the process this one was forked from.
    #[inline]
    pub(super) fn check_open(&self) -> Result<()> {
        if self.is_mine() { Ok(()) } else { Err(self.over()) }
    }

    #[cold]
    fn over(&self) -> Error {
        let why = if self.open {
            "the item was claimed before the fork: it belongs to the parent process"
        } else {
            "the item was committed or given up: it is not a claim any more"
        };
        Error::Invalid(why.into())
    }
}

impl Writer {
    /// Writes at `offset`, or behind what was written last; `false`, with nothing written, when there is no room.
    #[inline]
    pub(crate) fn write(&self, data: &mut ClaimData, offset: Option<usize>, bytes: &[u8]) -> Result<bool> {
        data.check_open()?;
        let start = offset.unwrap_or(data.position);
        let end = start
            .checked_add(bytes.len())
            .ok_or_else(|| Error::Invalid(format!("{} bytes at offset {start} are beyond all memory", bytes.len())))?;
        if self.memory.geometry.options.extendable {
            if !self.extend_to(data, end)? {
                return Ok(false);
            }
            data.size = data.size.max(end);
        } else if end > data.size || offset.is_some_and(|offset| offset >= data.size) {
            return Ok(false);
        }
        data.position = data.position.max(end);
        copy_into(&self.memory, data, start, bytes);
        Ok(true)
    }

    /// Writes formatted text without a terminator. As much as fits: the count of bytes, or its one's complement when the text
    /// had to be cut.
    pub(crate) fn print(&self, data: &mut ClaimData, offset: Option<usize>, text: &str) -> Result<isize> {
        data.check_open()?;
        let bytes = text.as_bytes();
        if bytes.is_empty() {
            return Ok(0);
        }
        if self.write(data, offset, bytes)? {
            return Ok(bytes.len() as isize);
        }
        let start = offset.unwrap_or(data.position);
        if self.memory.geometry.options.extendable {
            self.extend_by_what_is_left(data)?;
        }
        let room = data.capacity().saturating_sub(start).min(bytes.len());
        if room > 0 {
            self.write(data, offset, &bytes[..room])?;
        }
        Ok(!(room as isize))
    }

    /// Sets the number that goes with the item.
    pub(crate) fn set_link_identifier(&self, data: &mut ClaimData, link: u32) -> Result<()> {
        let options = self.memory.geometry.options;
        if !options.link_identifier || options.extendable {
            return Err(Error::Invalid(format!(
                "link_identifier {link} cannot be stored: the queue was formatted without that option, or as extendable, \
                 where the link words join the segments"
            )));
        }
        data.check_open()?;
        data.link = link;
        Ok(())
    }

    /// The bytes of a claim as they are now.
    #[cfg(feature = "python")]
    pub(crate) fn to_vec(&self, data: &ClaimData) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(data.capacity());
        for segment in data.segments() {
            let at = self.memory.geometry.page(segment.place.index());
            self.memory.region.append_to(at, segment.capacity as usize, &mut bytes);
        }
        bytes.truncate(data.size);
        bytes
    }

    fn extend_by_what_is_left(&self, data: &mut ClaimData) -> Result<()> {
        let left = self.memory.available_bytes()?;
        if left > 0 {
            self.extend_to(data, data.capacity() + left)?;
        }
        Ok(())
    }

    fn extend_to(&self, data: &mut ClaimData, end: usize) -> Result<bool> {
        let capacity = data.capacity();
        if end <= capacity {
            return Ok(true);
        }
        match self.claim_segment(end - capacity)? {
            Some(segment) => {
                data.rest.push(segment);
                Ok(true)
            }
            None => Ok(false),
        }
    }
}

#[inline]
fn copy_into(memory: &Memory, data: &ClaimData, start: usize, mut bytes: &[u8]) {
    let whole = start.saturating_add(bytes.len()) <= data.first.capacity as usize;
    if whole {
        let at = memory.geometry.page(data.first.place.index());
        return memory.region.copy_in(at + start, bytes);
    }
    let mut skip = start;
    for segment in data.segments() {
        let capacity = segment.capacity as usize;
        if skip < capacity && !bytes.is_empty() {
            let part = bytes.len().min(capacity - skip);
            memory
                .region
                .copy_in(memory.geometry.page(segment.place.index()) + skip, &bytes[..part]);
            bytes = &bytes[part..];
            skip = 0;
        } else {
            skip = skip.saturating_sub(capacity);
        }
    }
}

/// A claimed item, to be written and committed.
///
/// Dropping it without a commit leaves an incomplete item behind, which the reader gives out by the commit timeout.
pub struct Claim<'w> {
    pub(super) writer: &'w Writer,
    pub(super) data: ClaimData,
}

impl Claim<'_> {
    /// The identifier that the reader will see.
    pub fn queue_identifier(&self) -> u32 {
        self.data.identifier()
    }

    /// Bytes that were claimed so far.
    pub fn capacity(&self) -> usize {
        self.data.capacity()
    }

    /// Bytes of the item: all of a fixed one, what was written of an extendable one.
    pub fn size(&self) -> usize {
        self.data.size
    }

    /// Runs of pages that the item has.
    pub fn segment_count(&self) -> usize {
        self.data.segment_count()
    }

    /// Writes at `offset`, or behind the highest byte written so far. `false`, with nothing written, when there is no room.
    #[inline]
    pub fn write(&mut self, offset: Option<usize>, bytes: &[u8]) -> Result<bool> {
        self.writer.write(&mut self.data, offset, bytes)
    }

    /// Writes formatted text, as much of it as fits: the count of bytes, or its one's complement when the text was cut.
    ///
    /// ```
    /// # use tailrace::aq::{Format, Queue};
    /// # let queue = Queue::heap(4096, &Format::default())?;
    /// # let writer = queue.writer()?;
    /// let mut claim = writer.try_claim(6)?.expect("there is room");
    /// assert_eq!(claim.print(None, format_args!("n={}", 42))?, 4);
    /// assert_eq!(claim.print(None, format_args!("more"))?, !2);
    /// # tailrace::Result::Ok(())
    /// ```
    pub fn print(&mut self, offset: Option<usize>, text: fmt::Arguments<'_>) -> Result<isize> {
        self.writer.print(&mut self.data, offset, &text.to_string())
    }

    /// Sets the number that goes with the item, in queues formatted with the option.
    pub fn set_link_identifier(&mut self, link: u32) -> Result<()> {
        self.writer.set_link_identifier(&mut self.data, link)
    }

    /// Hands the item to the reader; `false` when the claim had expired and was given out as incomplete before.
    #[inline]
    pub fn commit(mut self) -> Result<bool> {
        self.writer.commit_data(&mut self.data)
    }

    /// Gives the claim up: the reader frees its pages without handing it out.
    pub fn give_up(mut self) {
        self.writer.give_up(&mut self.data);
    }

    /// Leaves the claim as a writer leaves it that was killed here: for tests.
    pub fn abandon(mut self) {
        self.data.close();
    }
}

impl Drop for Claim<'_> {
    #[inline]
    fn drop(&mut self) {
        self.data.forget(&self.writer.memory.region);
    }
}

impl fmt::Debug for Claim<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Claim").field(&self.data).finish()
    }
}
