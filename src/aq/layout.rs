//! Every offset of an allocating queue: the region that other programs know too, and the trailer that only we know.
//!
//! # The AQ region, format version 1
//! All words are 32 bits wide, little-endian, without gaps.
//!
//! ```text
//!   0 format version   1; 0 = not formatted          28 header xref     (shift << 26) | (memory offset << 14) | pages
//!   4 options          bits below; !0 = formatting   32 claim contention +1 per failed swap of the head
//!   8 size             bytes of the region           36 commit counter  +1 per committed segment
//!  12 page size shift                                40 free counter    +1 per freed run
//!  16 page count       2 ..= 2^20                    44 head reference  where the next claim goes
//!  20 memory offset    of page 0                     48 tail reference  the oldest page that is not free
//!  24 commit timeout   milliseconds                  52 control words   one per page
//!                                                       link words      one per page: LINK_IDENTIFIER or EXTENDABLE
//!                                                       CRC words       one per page: CRC32
//!                                                    memory offset      pages << shift bytes
//! ```
//!
//! # The trailer
//! Starts at the first multiple of 64 behind `size` bytes, in regions that we create (never in a caller's buffer). A program
//! that knows only the AQ region maps or ignores it as surplus memory.
//!
//! ```text
//!   0 u64 magic                  24 u32 claim lines ever used    64 u32 commit signal: the reader sleeps on it
//!   8 u32 version, 1             28 u32 reserved                128 u32 free signal: claimers sleep on it
//!  12 u32 size of the AQ region  32 u64 laps of the tail        192 roster table
//!  16 u32 roster slots           40 u64 incomplete items        ... claim lines of 64 bytes:
//!  20 u32 claim lines            48 u64 corrupt items                 u64 identity, 7 x u64 claim word
//! ```

use super::control::INDEX_LIMIT;
use crate::shared::roster::Table;
use crate::{Error, Result};

pub(super) const FORMAT_VERSION: u32 = 1;
pub(super) const VERSION: usize = 0;
pub(super) const OPTIONS: usize = 4;
pub(super) const SIZE: usize = 8;
pub(super) const PAGE_SIZE_SHIFT: usize = 12;
pub(super) const PAGE_COUNT: usize = 16;
pub(super) const MEMORY_OFFSET: usize = 20;
pub(super) const COMMIT_TIMEOUT: usize = 24;
pub(super) const HEADER_XREF: usize = 28;
pub(super) const CLAIM_CONTENTION: usize = 32;
pub(super) const COMMIT_COUNTER: usize = 36;
pub(super) const FREE_COUNTER: usize = 40;
pub(super) const HEAD: usize = 44;
pub(super) const TAIL: usize = 48;
pub(super) const CONTROL_WORDS: usize = 52;

/// What the options word holds while somebody formats.
pub(super) const FORMATTING: u32 = u32::MAX;

const CRC32: u32 = 1;
const LINK_IDENTIFIER: u32 = 2;
const EXTENDABLE: u32 = 4;

/// Pages are aligned to their size, at most to this.
const ALIGNMENT: usize = 64;

/// The formatting options, any combination of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// A checksum with every item, written at commit and checked at retrieve.
    pub crc32: bool,
    /// A 32-bit number of the user's own with every item.
    pub link_identifier: bool,
    /// Items grow: a chain of segments instead of one run of pages.
    pub extendable: bool,
}

impl Options {
    /// The options word.
    pub fn bits(self) -> u32 {
        let bit = |on: bool, bit: u32| if on { bit } else { 0 };
        bit(self.crc32, CRC32) | bit(self.link_identifier, LINK_IDENTIFIER) | bit(self.extendable, EXTENDABLE)
    }

    /// Reads an options word; `None` when it has unknown bits.
    pub fn from_bits(bits: u32) -> Option<Self> {
        (bits & !(CRC32 | LINK_IDENTIFIER | EXTENDABLE) == 0).then_some(Options {
            crc32: bits & CRC32 != 0,
            link_identifier: bits & LINK_IDENTIFIER != 0,
            extendable: bits & EXTENDABLE != 0,
        })
    }

    fn has_links(self) -> bool {
        self.link_identifier || self.extendable
    }

    /// Words per page in front of the pages.
    fn words(self) -> usize {
        1 + usize::from(self.has_links()) + usize::from(self.crc32)
    }
}

/// What is chosen when a region is formatted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// Bytes of a page, a power of two; the smallest piece of memory that an item can have.
    pub page_size: u64,
    /// After so many milliseconds an uncommitted claim may be given out as incomplete.
    pub commit_timeout_ms: u32,
    /// See [`Options`].
    pub options: Options,
}

impl Default for Format {
    fn default() -> Self {
        Format {
            page_size: 64,
            commit_timeout_ms: 500,
            options: Options::default(),
        }
    }
}

/// Where everything is in a formatted region; read once, checked, and kept privately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// The formatting options.
    pub options: Options,
    /// The `size` word: bytes of the region when it was formatted.
    pub size: u32,
    /// A page has `1 << shift` bytes.
    pub shift: u32,
    /// Pages in the ring.
    pub page_count: u32,
    /// Offset of page 0.
    pub memory_offset: u32,
    /// Milliseconds until an uncommitted claim counts as expired.
    pub commit_timeout_ms: u32,
}

impl Geometry {
    /// The geometry that formatting `size` bytes at `address` gives.
    pub fn compute(address: usize, size: usize, format: &Format) -> Result<Self> {
        let page = format.page_size;
        if !page.is_power_of_two() || page > 1 << 31 {
            return Err(Error::Invalid(format!(
                "page_size must be a power of two from 1 to {}, not {page}",
                1_u64 << 31
            )));
        }
        if !address.is_multiple_of(4) {
            return Err(Error::Invalid(format!(
                "the memory must start at a multiple of 4 bytes, not at {address:#x}"
            )));
        }
        let size_word = u32::try_from(size).map_err(|_| {
            Error::Invalid(format!(
                "size must be at most {} bytes, not {size}: its field has 32 bits",
                u32::MAX
            ))
        })?;
        let shift = page.trailing_zeros();
        let words = format.options.words();
        let too_small = || {
            let least = CONTROL_WORDS as u64 + 2 * (page + 4 * words as u64);
            Error::Invalid(format!(
                "a region of {size} bytes has no room for two pages of {page} bytes; with alignment about {least} bytes are the least"
            ))
        };
        let page = page as usize;
        let mut pages = size.saturating_sub(CONTROL_WORDS) / (page + 4 * words);
        pages = pages.min(INDEX_LIMIT as usize);
        let end = address.checked_add(size).ok_or_else(too_small)?;
        loop {
            if pages <= 1 {
                return Err(too_small());
            }
            let start = (address + CONTROL_WORDS + 4 * words * pages).next_multiple_of(page.min(ALIGNMENT));
            if start + (pages << shift) <= end {
                return Ok(Geometry {
                    options: format.options,
                    size: size_word,
                    shift,
                    page_count: pages as u32,
                    memory_offset: (start - address) as u32,
                    commit_timeout_ms: format.commit_timeout_ms,
                });
            }
            pages -= 1;
        }
    }

    /// Checks header words found in a region of `length` bytes. The error says what is wrong with them.
    pub fn from_header(words: &HeaderWords, length: usize) -> std::result::Result<Self, String> {
        if words.version != FORMAT_VERSION {
            return Err(format!("format version {} instead of {FORMAT_VERSION}", words.version));
        }
        let options = Options::from_bits(words.options).ok_or(format!("unknown options {:#x}", words.options))?;
        let geometry = Geometry {
            options,
            size: words.size,
            shift: words.shift,
            page_count: words.page_count,
            memory_offset: words.memory_offset,
            commit_timeout_ms: words.commit_timeout_ms,
        };
        if words.shift > 31 || !(2..=INDEX_LIMIT).contains(&words.page_count) {
            return Err(format!(
                "{} pages of 2^{} bytes are not possible",
                words.page_count, words.shift
            ));
        }
        if geometry.xref() != words.xref {
            return Err(format!(
                "header check word {:#010x} instead of {:#010x}",
                words.xref,
                geometry.xref()
            ));
        }
        let arrays = CONTROL_WORDS + 4 * options.words() * words.page_count as usize;
        let pages = (words.page_count as usize) << words.shift;
        let end = (words.memory_offset as usize).checked_add(pages);
        let fits = end.is_some_and(|end| end <= length) && words.size as usize <= length;
        if (words.memory_offset as usize) < arrays || !fits {
            return Err(format!(
                "{} pages of 2^{} bytes at {} and a size of {} do not fit into {length} bytes",
                words.page_count, words.shift, words.memory_offset, words.size
            ));
        }
        Ok(geometry)
    }

    /// The check word of the header.
    pub fn xref(&self) -> u32 {
        self.shift << 26 | self.memory_offset << 14 | self.page_count
    }

    /// Bytes of a page.
    #[inline]
    pub fn page_size(&self) -> usize {
        1 << self.shift
    }

    /// Whole pages that `bytes` bytes occupy.
    #[inline]
    pub fn pages(&self, bytes: u32) -> u32 {
        ((u64::from(bytes) + ((1_u64 << self.shift) - 1)) >> self.shift) as u32
    }

    #[inline]
    pub(super) fn control(&self, page: u32) -> usize {
        CONTROL_WORDS + 4 * page as usize
    }

    /// Offset of a page's link word, if there is one.
    #[inline]
    pub(super) fn link(&self, page: u32) -> Option<usize> {
        let links = CONTROL_WORDS + 4 * self.page_count as usize;
        self.options.has_links().then_some(links + 4 * page as usize)
    }

    /// Offset of a page's CRC word, if there is one.
    #[inline]
    pub(super) fn crc(&self, page: u32) -> Option<usize> {
        let arrays = 1 + usize::from(self.options.has_links());
        let words = CONTROL_WORDS + 4 * arrays * self.page_count as usize;
        self.options.crc32.then_some(words + 4 * page as usize)
    }

    /// Offset of a page's memory.
    #[inline]
    pub(super) fn page(&self, page: u32) -> usize {
        self.memory_offset as usize + ((page as usize) << self.shift)
    }

    /// Offset of the first byte behind the last page.
    pub(super) fn end(&self) -> usize {
        self.page(self.page_count)
    }
}

/// The header words that describe the geometry, as found.
#[derive(Clone, Copy, Debug)]
pub struct HeaderWords {
    pub(super) version: u32,
    pub(super) options: u32,
    pub(super) size: u32,
    pub(super) shift: u32,
    pub(super) page_count: u32,
    pub(super) memory_offset: u32,
    pub(super) commit_timeout_ms: u32,
    pub(super) xref: u32,
}

/// Where the parts of a trailer are in the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrailerLayout {
    /// Offset of the trailer.
    pub offset: usize,
    /// How many can take part at a time.
    pub slots: u32,
    /// How many writers can have their claims recorded at a time.
    pub lines: u32,
}

/// `"aq-trail"`, read as a little-endian number.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"aq-trail");
pub(super) const TRAILER_VERSION: u32 = 1;
/// A claim line: the identity of its owner, then its claim words.
pub(super) const LINE: usize = 64;
pub(super) const CLAIMS_PER_LINE: usize = LINE / 8 - 1;

impl TrailerLayout {
    /// The trailer of a new region whose AQ part has `size` bytes.
    pub const fn new(size: usize, slots: u32, lines: u32) -> Self {
        TrailerLayout {
            offset: size.next_multiple_of(ALIGNMENT),
            slots,
            lines,
        }
    }

    pub(super) const fn magic(self) -> usize {
        self.offset
    }
    pub(super) const fn version(self) -> usize {
        self.offset + 8
    }
    pub(super) const fn size(self) -> usize {
        self.offset + 12
    }
    pub(super) const fn slot_count(self) -> usize {
        self.offset + 16
    }
    pub(super) const fn line_count(self) -> usize {
        self.offset + 20
    }
    pub(super) const fn lines_used(self) -> usize {
        self.offset + 24
    }
    pub(super) const fn laps(self) -> usize {
        self.offset + 32
    }
    pub(super) const fn incomplete(self) -> usize {
        self.offset + 40
    }
    pub(super) const fn corrupt(self) -> usize {
        self.offset + 48
    }
    pub(super) const fn commit_signal(self) -> usize {
        self.offset + 64
    }
    pub(super) const fn free_signal(self) -> usize {
        self.offset + 128
    }
    pub(super) const fn roster(self) -> Table {
        Table {
            offset: self.offset + 192,
            slots: self.slots,
        }
    }
    pub(super) const fn line(self, line: u32) -> usize {
        let first = (self.roster().offset + self.roster().length()).next_multiple_of(LINE);
        first + LINE * line as usize
    }
    /// The first byte behind the trailer.
    pub const fn end(self) -> usize {
        self.line(self.lines)
    }

    /// Offsets of the 64-bit words, which a modelled region has to know.
    pub fn wide_words(self) -> Vec<usize> {
        let mut words = vec![self.magic(), self.laps(), self.incomplete(), self.corrupt()];
        words.extend((0..self.slots as usize).map(|slot| self.roster().offset + 8 + 8 * slot));
        words.extend((0..self.lines).flat_map(|line| (0..8).map(move |word| self.line(line) + 8 * word)));
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compute(size: usize, shift: u32, options: u32) -> Result<Geometry> {
        let format = Format {
            page_size: 1 << shift,
            commit_timeout_ms: 500,
            options: Options::from_bits(options).unwrap(),
        };
        Geometry::compute(4096, size, &format)
    }

    fn pages(size: usize, shift: u32, options: u32) -> u32 {
        compute(size, shift, options).map_or(0, |g| g.page_count)
    }

    #[test]
    fn the_seed_region_has_fifteen_pages() {
        let geometry = compute(146, 1, 0).unwrap();
        assert_eq!((geometry.page_count, geometry.memory_offset), (15, 112));
        assert_eq!(geometry.xref(), 0x041c_000f);
        let by_size: Vec<u32> = [141, 142, 147, 148].map(|size| pages(size, 1, 0)).into();
        assert_eq!(by_size, [14, 15, 15, 16]);
    }

    #[test]
    fn the_least_sizes_for_fifteen_pages() {
        let table = [
            (1, [142, 202, 262]),
            (2, [172, 232, 292]),
            (4, [352, 416, 480]),
            (6, [1088, 1152, 1216]),
            (7, [2048, 2112, 2176]),
        ];
        for (shift, sizes) in table {
            for (options, size) in [0, 2, 3].into_iter().zip(sizes) {
                assert_eq!(pages(size, shift, options), 15, "shift {shift} options {options}");
                assert_eq!(pages(size - 1, shift, options), 14, "shift {shift} options {options}");
            }
        }
        let kilobyte: Vec<u32> = [0, 1, 7].map(|options| pages(1024, 4, options)).into();
        assert_eq!(kilobyte, [48, 40, 34]);
        assert_eq!((pages(67, 2, 0), pages(68, 2, 0)), (0, 2));
    }

    #[test]
    fn overhead_per_page_depends_on_the_options() {
        let words: Vec<usize> = (0..8).map(|bits| Options::from_bits(bits).unwrap().words()).collect();
        assert_eq!(words, [1, 2, 2, 3, 2, 3, 2, 3]);
        assert_eq!(Options::from_bits(8), None);
    }

    #[test]
    fn pages_are_aligned_and_inside_for_every_size() {
        for shift in 0..9 {
            for options in 0..8 {
                for size in 40..700 {
                    let Ok(g) = compute(size, shift, options) else {
                        continue;
                    };
                    assert!(g.page_count >= 2 && g.end() <= size);
                    assert!(g.page(0).is_multiple_of(g.page_size().min(64)));
                    let last = g.page_count - 1;
                    assert!(g.control(last) + 4 <= g.page(0));
                    assert!(g.link(last).is_none_or(|at| at + 4 <= g.page(0)));
                    assert!(g.crc(last).is_none_or(|at| at + 4 <= g.page(0)));
                }
            }
        }
    }

    #[test]
    fn more_pages_than_an_index_can_name_are_cut() {
        assert_eq!(pages(16 << 20, 1, 0), 1 << 20);
        assert!(compute(5 << 30, 6, 0).is_err());
    }

    #[test]
    fn tiny_regions_are_refused_not_crashed() {
        for size in 0..68 {
            assert_eq!(pages(size, 2, 0), 0, "{size} bytes");
        }
    }
}
