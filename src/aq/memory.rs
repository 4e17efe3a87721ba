//! A formatted region as the algorithms see it: checked geometry, named words, the trailer if there is one.

use std::sync::Arc;

use super::control::{Checksum, Control, Reference};
use super::layout::{self, Format, Geometry, HeaderWords, TrailerLayout};
use crate::shared::region::Region;
use crate::shared::roster::Roster;
use crate::shared::signal::{Signal, Turn, Wait};
use crate::shared::sync::{AtomicU32, AtomicU64, Ordering};
use crate::{Error, Result};

/// A formatted region; what was read from its header is kept here and never read again.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) region: Arc<Region>,
    pub(super) geometry: Geometry,
    pub(super) trailer: Option<Trailer>,
    options: u32,
    xref: u32,
    /// Stand in for the words of the trailer where there is none: for the threads of this process.
    private: Private,
}

/// The part that only we know.
#[derive(Clone, Debug)]
pub(super) struct Trailer {
    pub(super) layout: TrailerLayout,
    pub(super) roster: Arc<Roster>,
}

#[derive(Debug)]
struct Private {
    commit_signal: AtomicU32,
    free_signal: AtomicU32,
    incomplete: AtomicU64,
    corrupt: AtomicU64,
}

impl Memory {
    /// Reads and checks the header.
    pub(super) fn attach(region: &Arc<Region>, trailer: Option<Trailer>) -> Result<Self> {
        let geometry = read_geometry(region).map_err(|reason| Error::Format(format!("not formatted: {reason}")))?;
        Ok(Memory {
            region: region.clone(),
            geometry,
            trailer,
            options: geometry.options.bits(),
            xref: geometry.xref(),
            private: Private {
                commit_signal: AtomicU32::new(0),
                free_signal: AtomicU32::new(0),
                incomplete: AtomicU64::new(0),
                corrupt: AtomicU64::new(0),
            },
        })
    }

    /// Refuses to go on when the region was formatted otherwise, or is not formatted any more.
    #[inline(always)]
    pub(super) fn check(&self) -> Result<()> {
        let word = |at| self.region.u32(at).load(Ordering::Relaxed);
        let same = word(layout::VERSION) == layout::FORMAT_VERSION
            && word(layout::OPTIONS) == self.options
            && word(layout::HEADER_XREF) == self.xref;
        if same { Ok(()) } else { Err(self.changed()) }
    }

    /// Whether everything that was read from the header still holds: the commit timeout is in no check word.
    pub(super) fn is_current(&self) -> bool {
        let timeout_ms = self.region.u32(layout::COMMIT_TIMEOUT).load(Ordering::Relaxed);
        self.check().is_ok() && timeout_ms == self.geometry.commit_timeout_ms
    }

    #[cold]
    fn changed(&self) -> Error {
        Error::Format(match read_geometry(&self.region) {
            Err(reason) => format!("not formatted: {reason}"),
            Ok(_) => "the queue was formatted anew: open it again".into(),
        })
    }

    #[inline]
    pub(super) fn head_word(&self) -> &AtomicU32 {
        self.region.u32(layout::HEAD)
    }

    #[inline]
    pub(super) fn tail_word(&self) -> &AtomicU32 {
        self.region.u32(layout::TAIL)
    }

    #[inline]
    pub(super) fn commit_counter(&self) -> &AtomicU32 {
        self.region.u32(layout::COMMIT_COUNTER)
    }

    #[inline]
    pub(super) fn free_counter(&self) -> &AtomicU32 {
        self.region.u32(layout::FREE_COUNTER)
    }

    #[inline]
    pub(super) fn contention(&self) -> &AtomicU32 {
        self.region.u32(layout::CLAIM_CONTENTION)
    }

    #[inline]
    pub(super) fn control_word(&self, page: u32) -> &AtomicU32 {
        self.region.u32(self.geometry.control(page))
    }

    /// The control word of a page. Acquire, because what it says about the item's bytes must hold.
    #[inline]
    pub(super) fn control(&self, page: u32) -> Control {
        // SYNC: commit (with `Writer::commit_segment`); SYNC: claim (with `Writer::claim_segment`)
        Control(self.control_word(page).load(Ordering::Acquire))
    }

    pub(super) fn link(&self, page: u32) -> Option<u32> {
        let at = self.geometry.link(page)?;
        Some(self.region.u32(at).load(Ordering::Relaxed))
    }

    /// Refuses a reference whose index is outside of the ring.
    #[inline]
    pub(super) fn checked(&self, reference: u32, what: &str) -> Result<Reference> {
        let reference = Reference(reference);
        if reference.index() < self.geometry.page_count {
            return Ok(reference);
        }
        Err(self.outside(reference, what))
    }

    #[cold]
    fn outside(&self, reference: Reference, what: &str) -> Error {
        Error::Corrupt(format!(
            "the {what} is at page {} of {}",
            reference.index(),
            self.geometry.page_count
        ))
    }

    /// Pages of the largest run that could be claimed.
    pub(super) fn available_pages(&self, head: u32, tail: u32) -> u32 {
        let count = self.geometry.page_count;
        match tail {
            _ if tail > head => tail - head - 1,
            0 => (count - head).saturating_sub(1),
            _ => (count - head).max(tail - 1),
        }
    }

    /// Bytes of the largest claim that would succeed now.
    pub(super) fn available_bytes(&self) -> Result<usize> {
        let tail = self.checked(self.tail_word().load(Ordering::Acquire), "tail")?;
        let head = self.checked(self.head_word().load(Ordering::Relaxed), "head")?;
        Ok((self.available_pages(head.index(), tail.index()) as usize) << self.geometry.shift)
    }

    /// The CRC word that the item at `page` should have, from the bytes that are there.
    pub(super) fn checksum(&self, page: u32, identifier: u32, capacity: u32, link: Option<u32>) -> u32 {
        let mut sum = Checksum::new(identifier, capacity, link);
        let mut at = self.geometry.page(page);
        let mut left = capacity as usize;
        let mut block = [0; 512];
        while left > 0 {
            let part = left.min(block.len());
            self.region.copy_out(at, &mut block[..part]);
            sum.update(&block[..part]);
            at += part;
            left -= part;
        }
        sum.finish()
    }

    /// What the reader sleeps on.
    #[inline]
    pub(super) fn commit_signal(&self) -> Signal<'_> {
        Signal::new(match &self.trailer {
            Some(trailer) => self.region.u32(trailer.layout.commit_signal()),
            None => &self.private.commit_signal,
        })
    }

    /// What claimers sleep on.
    #[inline]
    pub(super) fn free_signal(&self) -> Signal<'_> {
        Signal::new(match &self.trailer {
            Some(trailer) => self.region.u32(trailer.layout.free_signal()),
            None => &self.private.free_signal,
        })
    }

    /// Waits until `attempt` finds what a commit may have brought.
    pub(super) fn wait_for_commit<T>(
        &self,
        wait: Wait,
        idle: impl FnMut() -> Result<()>,
        mut attempt: impl FnMut() -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        self.commit_signal().wait_for(wait, self.turn(), idle, || {
            // SYNC: sleep (with `Writer::commit_segment`)
            self.commit_counter().load(Ordering::SeqCst);
            attempt()
        })
    }

    /// Waits until `attempt` finds the room that a release may have brought.
    pub(super) fn wait_for_room<T>(
        &self,
        wait: Wait,
        idle: impl FnMut() -> Result<()>,
        mut attempt: impl FnMut() -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        self.free_signal().wait_for(wait, self.turn(), idle, || {
            // SYNC: sleep (with `Reader::publish_tail`)
            self.free_counter().load(Ordering::SeqCst);
            attempt()
        })
    }

    /// Without a trailer other processes wake nobody.
    fn turn(&self) -> Turn {
        match self.trailer {
            Some(_) => Turn::PeerMatters,
            None => Turn::Polling,
        }
    }

    /// Incomplete items that were skipped or reaped.
    pub(super) fn incomplete(&self) -> &AtomicU64 {
        match &self.trailer {
            Some(trailer) => self.region.u64(trailer.layout.incomplete()),
            None => &self.private.incomplete,
        }
    }

    /// Committed items whose checksum was wrong.
    pub(super) fn corrupt(&self) -> &AtomicU64 {
        match &self.trailer {
            Some(trailer) => self.region.u64(trailer.layout.corrupt()),
            None => &self.private.corrupt,
        }
    }
}

/// Reads the geometry words once and checks them; the error says why the region is not formatted.
pub(super) fn read_geometry(region: &Region) -> std::result::Result<Geometry, String> {
    if region.length() < layout::CONTROL_WORDS {
        return Err(format!(
            "{} bytes are less than the header of {}",
            region.length(),
            layout::CONTROL_WORDS
        ));
    }
    // SYNC: format (with `format`): the version is published last.
    let version = region.u32(layout::VERSION).load(Ordering::Acquire);
    let word = |at| region.u32(at).load(Ordering::Relaxed);
    let words = HeaderWords {
        version,
        options: word(layout::OPTIONS),
        size: word(layout::SIZE),
        shift: word(layout::PAGE_SIZE_SHIFT),
        page_count: word(layout::PAGE_COUNT),
        memory_offset: word(layout::MEMORY_OFFSET),
        commit_timeout_ms: word(layout::COMMIT_TIMEOUT),
        xref: word(layout::HEADER_XREF),
    };
    Geometry::from_header(&words, region.length())
}

/// Formats the first `size` bytes of `region`; the pages themselves keep their bytes.
pub(super) fn format(region: &Region, size: usize, format: &Format) -> Result<()> {
    let geometry = Geometry::compute(base_address(region), size, format)?;
    let set = |at, value| region.u32(at).store(value, Ordering::Relaxed);
    set(layout::VERSION, 0);
    set(layout::OPTIONS, layout::FORMATTING);
    set(layout::HEADER_XREF, 0);
    crate::shared::sync::fence(Ordering::Release);
    set(layout::SIZE, geometry.size);
    set(layout::PAGE_SIZE_SHIFT, geometry.shift);
    set(layout::PAGE_COUNT, geometry.page_count);
    set(layout::MEMORY_OFFSET, geometry.memory_offset);
    set(layout::COMMIT_TIMEOUT, geometry.commit_timeout_ms);
    for at in [
        layout::CLAIM_CONTENTION,
        layout::COMMIT_COUNTER,
        layout::FREE_COUNTER,
        layout::HEAD,
        layout::TAIL,
    ] {
        set(at, 0);
    }
    for page in 0..geometry.page_count {
        set(geometry.control(page), 0);
        geometry.link(page).into_iter().for_each(|at| set(at, 0));
        geometry.crc(page).into_iter().for_each(|at| set(at, 0));
    }
    set(layout::HEADER_XREF, geometry.xref());
    set(layout::OPTIONS, geometry.options.bits());
    // SYNC: format (with `read_geometry`)
    region
        .u32(layout::VERSION)
        .store(layout::FORMAT_VERSION, Ordering::Release);
    Ok(())
}

/// Pages are aligned by address, not by offset.
#[cfg(not(loom))]
fn base_address(region: &Region) -> usize {
    region.pointer(0, 0) as usize
}

#[cfg(loom)]
fn base_address(_region: &Region) -> usize {
    0
}

/// Writes a new trailer; the region is not visible to anybody else yet.
pub(super) fn write_trailer(region: &Region, size: usize, layout: TrailerLayout) {
    let set = |at, value| region.u32(at).store(value, Ordering::Relaxed);
    set(layout.version(), layout::TRAILER_VERSION);
    set(layout.size(), size as u32);
    set(layout.slot_count(), layout.slots);
    set(layout.line_count(), layout.lines);
    // SYNC: trailer (with `find_trailer`)
    region.u64(layout.magic()).store(layout::MAGIC, Ordering::Release);
}

/// The trailer behind the AQ region, if there is one that belongs to it; `aq_size` where the region is not formatted.
pub(super) fn find_trailer(region: &Region, geometry: &Geometry) -> Option<TrailerLayout> {
    let at = TrailerLayout::new(geometry.size as usize, 1, 1);
    // Behind the last page too: a `size` of 4 GiB and more is cut to 32 bits.
    let room = at.end() <= region.length() && at.offset >= geometry.end();
    // SYNC: trailer (with `write_trailer`)
    if !room || region.u64(at.magic()).load(Ordering::Acquire) != layout::MAGIC {
        return None;
    }
    let word = |offset| region.u32(offset).load(Ordering::Relaxed);
    let (slots, lines) = (word(at.slot_count()), word(at.line_count()));
    let sane = (1..=crate::shared::identity::SLOTS).contains(&slots) && (1..=1 << 16).contains(&lines);
    if !sane || word(at.version()) != layout::TRAILER_VERSION || word(at.size()) != geometry.size {
        return None;
    }
    let layout = TrailerLayout { slots, lines, ..at };
    (layout.end() <= region.length()).then_some(layout)
}
