//! What is in `NAME.<id>.crc`, byte by byte: a header, a state, and a log of records. Pure: no I/O.
//!
//! ```text
//!    0  u64  magic   8  u32  version   12  u32  seed of the records   16  u32  offset of the first entry that is covered
//!   20  u32  CRC32C of 0..20
//!   24  u16  state: 1 open, 2 closed, 3 damaged   26  u16  next-ref   28  u32  head   32  u32  tail   36  u64  when the chunk was last written
//!   44  u32  CRC32C of 24..44, begun with the seed   48  zeros
//!   64  records: u32 offset, u16 length, u16 kind, u32 value, u32 CRC32C of the 12 bytes before, begun with the seed
//!         kind 1  an entry at this offset, value is its CRC32C
//!              2  the same, and the bytes of the entry follow
//!              3  the chunk starts over, nothing before this counts
//!              4  entries from offset up to value were written by a program that keeps no checksums
//!              5  offset is where the entries of this chunk end for good, value the chunk that comes next
//! ```
//!
//! The log ends at the first record that does not have its CRC; behind it are zeros, or what was left by an older seed.

use std::collections::VecDeque;

use super::layout::{FIRST_ENTRY, LENGTH_BYTES, Pointers};

const MAGIC: u64 = u64::from_le_bytes(*b"QWcheck\0");
pub(crate) const VERSION: u32 = 2;
pub(crate) const HEADER: usize = 64;
pub(crate) const RECORD: usize = 16;
/// Where the seed of the records is.
pub(crate) const SEED: usize = 12;
const STATE: std::ops::Range<usize> = 24..48;

/// The checksum of one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Check {
    pub(crate) offset: u32,
    pub(crate) length: u16,
    pub(crate) crc: u32,
}

impl Check {
    pub(crate) fn of(offset: u32, bytes: &[u8]) -> Self {
        Check {
            offset,
            length: bytes.len() as u16,
            crc: entry_crc(offset, bytes),
        }
    }

    /// Where the entry ends. An offset that is none gives an end beyond every chunk.
    pub(crate) fn end(self) -> u32 {
        self.offset.saturating_add(LENGTH_BYTES + u32::from(self.length))
    }
}

/// The CRC32C of an entry: where it lies counts, so that one that moved is noticed, too.
fn entry_crc(offset: u32, bytes: &[u8]) -> u32 {
    let mut place = [0; 6];
    place[..4].copy_from_slice(&offset.to_le_bytes());
    place[4..].copy_from_slice(&(bytes.len() as u16).to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c(&place), bytes)
}

/// One record of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    Checksum(Check),
    WithBytes(Check),
    StartOver,
    Unchecked { from: u32, to: u32 },
    End(End),
}

/// How a chunk ends that has a successor (0: it has none any more).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) tail: u32,
    pub(crate) next: u16,
}

impl Record {
    pub(crate) fn encode(self, seed: u32) -> [u8; RECORD] {
        let (offset, length, kind, value) = match self {
            Record::Checksum(check) => (check.offset, check.length, 1_u16, check.crc),
            Record::WithBytes(check) => (check.offset, check.length, 2, check.crc),
            Record::StartOver => (FIRST_ENTRY, 0, 3, 0),
            Record::Unchecked { from, to } => (from, 0, 4, to),
            Record::End(End { tail, next }) => (tail, 0, 5, next.into()),
        };
        let mut out = [0; RECORD];
        out[..4].copy_from_slice(&offset.to_le_bytes());
        out[4..6].copy_from_slice(&length.to_le_bytes());
        out[6..8].copy_from_slice(&kind.to_le_bytes());
        out[8..12].copy_from_slice(&value.to_le_bytes());
        let own = crc32c::crc32c_append(seed, &out[..12]);
        out[12..].copy_from_slice(&own.to_le_bytes());
        out
    }

    /// `None` where the log ends.
    pub(crate) fn decode(seed: u32, bytes: &[u8; RECORD]) -> Option<Self> {
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let check = Check {
            offset: u32_at(0),
            length: u16::from_le_bytes([bytes[4], bytes[5]]),
            crc: u32_at(8),
        };
        if crc32c::crc32c_append(seed, &bytes[..12]) != u32_at(12) || check.offset < FIRST_ENTRY {
            return None;
        }
        match u16::from_le_bytes([bytes[6], bytes[7]]) {
            1 => Some(Record::Checksum(check)),
            2 => Some(Record::WithBytes(check)),
            3 => Some(Record::StartOver),
            4 => Some(Record::Unchecked {
                from: check.offset,
                to: check.crc,
            }),
            5 => Some(Record::End(End {
                tail: check.offset,
                next: u16::try_from(check.crc).ok()?,
            })),
            _ => None,
        }
    }

    /// Bytes that follow the record.
    pub(crate) fn trailing(self) -> usize {
        match self {
            Record::WithBytes(check) => check.length.into(),
            _ => 0,
        }
    }
}

/// How the chunk was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// In use, or its users were killed: entries of the log may have to be written again.
    Open,
    /// The last handle closed it, with all of it on the disk.
    Closed(Seen),
    /// It is not as it was closed, though nobody wrote to it since.
    Damaged(Seen),
}

/// A chunk as it was when it was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) pointers: Pointers,
    /// The reference to the next chunk.
    pub(crate) next: u16,
    /// The time of the last write, in nanoseconds.
    pub(crate) written: u64,
}

/// The bytes in front of the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) seed: u32,
    /// Entries in front of this one are not covered.
    pub(crate) start: u32,
    pub(crate) state: State,
}

impl Header {
    pub(crate) fn encode(self) -> [u8; HEADER] {
        let mut out = [0; HEADER];
        out[..8].copy_from_slice(&MAGIC.to_le_bytes());
        out[8..12].copy_from_slice(&VERSION.to_le_bytes());
        out[12..16].copy_from_slice(&self.seed.to_le_bytes());
        out[16..20].copy_from_slice(&self.start.to_le_bytes());
        let own = crc32c::crc32c(&out[..20]);
        out[20..24].copy_from_slice(&own.to_le_bytes());
        let nothing = Seen {
            pointers: Pointers::EMPTY,
            next: 0,
            written: 0,
        };
        let (state, seen) = match self.state {
            State::Open => (1_u16, nothing),
            State::Closed(seen) => (2, seen),
            State::Damaged(seen) => (3, seen),
        };
        out[24..26].copy_from_slice(&state.to_le_bytes());
        out[26..28].copy_from_slice(&seen.next.to_le_bytes());
        out[28..32].copy_from_slice(&seen.pointers.head.to_le_bytes());
        out[32..36].copy_from_slice(&seen.pointers.tail.to_le_bytes());
        out[36..44].copy_from_slice(&seen.written.to_le_bytes());
        let own = crc32c::crc32c_append(self.seed, &out[24..44]);
        out[44..48].copy_from_slice(&own.to_le_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8; HEADER]) -> Option<Self> {
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let seed = u32_at(12);
        let own = bytes[..8] == MAGIC.to_le_bytes() && u32_at(8) == VERSION;
        if !own || u32_at(20) != crc32c::crc32c(&bytes[..20]) {
            return None;
        }
        let is_whole = u32_at(44) == crc32c::crc32c_append(seed, &bytes[STATE.start..STATE.end - 4]);
        let seen = Seen {
            pointers: Pointers {
                head: u32_at(28),
                tail: u32_at(32),
            },
            next: (u32_at(24) >> 16) as u16,
            written: u64::from(u32_at(40)) << 32 | u64::from(u32_at(36)),
        };
        // Half a note of a close, left by a kill, is none.
        let state = match u32_at(24) & 0xFFFF {
            2 if is_whole => State::Closed(seen),
            3 if is_whole => State::Damaged(seen),
            _ => State::Open,
        };
        Some(Header {
            seed,
            start: u32_at(16),
            state,
        })
    }
}

/// What is known of the entry at an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cover {
    /// It must be this.
    Checked(Check),
    /// It was there before checksums were kept, or another program wrote it.
    Unchecked,
    /// It should have a checksum and has none.
    Missing,
}

/// A stretch of a chunk, as the log knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) from: u32,
    pub(crate) to: u32,
    /// `None`: entries without checksums.
    pub(crate) check: Option<Check>,
    /// Where in the log the entry's bytes are, if they are.
    pub(crate) bytes: Option<u64>,
}

/// What the records say, in the order of the entries.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    known: VecDeque<Known>,
    /// Entries in front of this one are not covered.
    start: u32,
    /// Whether the chunk was started over and no entry was noted since.
    pub(crate) is_fresh: bool,
    /// Where the entries end for good, if that is known.
    pub(crate) end: Option<End>,
}

impl Table {
    pub(crate) fn new(start: u32) -> Self {
        Table {
            known: VecDeque::new(),
            start,
            is_fresh: false,
            end: None,
        }
    }

    /// Adds the next record of the log, whose trailing bytes are at `place`.
    pub(crate) fn add(&mut self, record: Record, place: u64) {
        match record {
            Record::Checksum(check) => self.push(check.offset, check.end(), Some(check), None),
            Record::WithBytes(check) => self.push(check.offset, check.end(), Some(check), Some(place)),
            Record::Unchecked { from, to } => self.push(from, to, None, None),
            Record::StartOver => {
                *self = Table::new(FIRST_ENTRY);
                self.is_fresh = true;
            }
            Record::End(end) => {
                self.cut(end.tail);
                self.end = (end.next != 0).then_some(end);
            }
        }
    }

    fn push(&mut self, from: u32, to: u32, check: Option<Check>, bytes: Option<u64>) {
        // What a killed commit had begun is done once more by a survivor: the later record counts.
        self.cut(from);
        (self.is_fresh, self.end) = (false, None);
        self.known.push_back(Known { from, to, check, bytes });
    }

    /// Forgets everything from `offset` on.
    pub(crate) fn cut(&mut self, offset: u32) {
        while self.known.back().is_some_and(|last| last.from >= offset) {
            self.known.pop_back();
        }
    }

    /// Forgets what lies in front of `offset`: it is consumed.
    pub(crate) fn forget_before(&mut self, offset: u32) {
        while self.known.front().is_some_and(|first| first.to <= offset) {
            self.known.pop_front();
        }
    }

    pub(crate) fn find(&self, offset: u32) -> Cover {
        if offset < self.start {
            return Cover::Unchecked;
        }
        let behind = self.known.partition_point(|known| known.from <= offset);
        match behind.checked_sub(1).map(|i| self.known[i]) {
            Some(Known {
                from,
                check: Some(check),
                ..
            }) if from == offset => Cover::Checked(check),
            Some(Known { to, check: None, .. }) if offset < to => Cover::Unchecked,
            _ => Cover::Missing,
        }
    }

    /// Where the next entry behind `offset` is known to begin.
    pub(crate) fn next_behind(&self, offset: u32) -> Option<u32> {
        let behind = self.known.partition_point(|known| known.from <= offset);
        self.known.get(behind).map(|known| known.from)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Known> {
        self.known.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_and_headers_come_back_and_no_flipped_bit_passes() {
        let check = Check::of(10, b"abc");
        let all = [
            Record::Checksum(check),
            Record::WithBytes(check),
            Record::StartOver,
            Record::Unchecked { from: 15, to: 90 },
            Record::End(End { tail: 90, next: 2 }),
        ];
        for record in all {
            let bytes = record.encode(77);
            assert_eq!(Record::decode(77, &bytes), Some(record));
            assert_eq!(Record::decode(78, &bytes), None, "of another seed");
            for bit in 0..8 * RECORD {
                let mut flipped = bytes;
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Record::decode(77, &flipped), None, "bit {bit} of {record:?}");
            }
        }
        assert_eq!(Record::decode(77, &[0; RECORD]), None);
        let seen = Seen {
            pointers: Pointers { head: 15, tail: 90 },
            next: 2,
            written: 0x0123_4567_89AB_CDEF,
        };
        for state in [State::Open, State::Closed(seen), State::Damaged(seen)] {
            let header = Header {
                seed: 5,
                start: 10,
                state,
            };
            let bytes = header.encode();
            assert_eq!(Header::decode(&bytes), Some(header));
            for bit in 0..8 * 48 {
                let mut flipped = bytes;
                flipped[bit / 8] ^= 1 << (bit % 8);
                let expected = (bit >= 8 * STATE.start).then_some(Header {
                    state: State::Open,
                    ..header
                });
                assert_eq!(Header::decode(&flipped), expected, "bit {bit} of {header:?}");
            }
        }
    }

    #[test]
    fn the_later_record_of_an_offset_counts() {
        let mut table = Table::new(20);
        let (a, b, c) = (Check::of(20, b"a"), Check::of(23, b"bb"), Check::of(23, b"c"));
        table.add(Record::Checksum(a), 0);
        table.add(Record::WithBytes(b), 100);
        table.add(Record::Checksum(c), 0);
        assert_eq!(table.find(12), Cover::Unchecked);
        assert_eq!((table.find(20), table.find(23)), (Cover::Checked(a), Cover::Checked(c)));
        assert_eq!((table.find(21), table.find(26)), (Cover::Missing, Cover::Missing));
        table.add(Record::Unchecked { from: 26, to: 40 }, 0);
        assert_eq!((table.find(30), table.find(40)), (Cover::Unchecked, Cover::Missing));
        assert_eq!((table.next_behind(20), table.next_behind(26)), (Some(23), None));
        table.forget_before(23);
        assert_eq!((table.find(20), table.find(23)), (Cover::Missing, Cover::Checked(c)));
        let end = End { tail: 23, next: 7 };
        table.add(Record::End(end), 0);
        assert_eq!((table.find(23), table.end), (Cover::Missing, Some(end)));
        table.add(Record::StartOver, 0);
        assert!(table.is_fresh);
        assert_eq!((table.find(10), table.end), (Cover::Missing, None));
    }
}
