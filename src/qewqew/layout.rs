//! Every byte of the durable queue's files. Pure: no atomics, no I/O.
//!
//! # The documented files, big-endian
//!
//! ```text
//! NAME        the head file, 2 bytes
//!   0  u16  first chunk (0: none, the queue is empty)
//!
//! NAME.<id>   a chunk, allocated to the chunk size
//!   0  i32  head-ptr: offset of the first entry to read     \  one 64-bit word for us: (head, tail) change
//!   4  i32  tail-ptr: offset behind the last entry          /  together or not at all
//!   8  u16  next-ref (0: this is the last chunk)
//!  10       entries: u16 length, then so many bytes; what lies behind tail-ptr is left over and means nothing
//! ```
//!
//! Ids run 1, 2, ... 65534, 1, ...; 65535 is never written, and when found it means the file `NAME.0`.
//!
//! # Notes of commits, little-endian, behind the entries of the last chunk
//! Only while a queue is open in a durable mode (or was when it was killed), only in chunks of at least 256 bytes; see `notes`.
//!
//! ```text
//! chunk size - 32    note    \  taken in turns; zeros: none
//! chunk size - 16    note    /
//!         0  u32  start of the entries   4  u32  their end   8  u32  CRC32C from the first entry of the chunk to this end
//!        12  u32  CRC32C of the chunk's id (u16) and 0..12
//! ```
//!
//! # Our side files, little-endian, each under a magic and a version of its own
//!
//! ```text
//! NAME.signal      locks, wake-up words and messages that wait for a group commit; gone when the last handle closes
//!    0  u64  magic          8  u32  version       12  u32  bytes of one stage
//!   16  [16] boot id: stages of another boot are not trusted
//!   64  u64  append lock   72  u64  commit lock   80  u32  epoch: +1 when chunks that may be cached disappear
//!   84  u32  1 when positions are in use          88  u32  the stage that new messages go to
//!   92  u32  chunk size of the producers, 0: none yet, 2^32 - 1: there are several
//!   96  u32  bit 0: there is or was a producer that syncs nothing; bit 1: the chunks so far, or references to them, may be unsynced
//!  128  u32  signal: messages arrived            192  u32  signal: room came free
//!  256  u64  bytes appended  264  u64  messages appended
//!  320  u64  bytes consumed  328  u64  messages consumed
//!  384  u64  place of stage 0: chunk id << 32 | offset    392  u64  its fill: length << 32 | CRC32C of its bytes
//!  400  u64  place of stage 1                             408  u64  its fill
//! 4096       the bytes of stage 0, then of stage 1, then the roster table
//!
//! NAME.positions   what makes positions absolute; outlives an empty queue
//!    0  u64  magic   8  u32  version   12  u32  0   16  [16] uuid of the queue
//!   64  slot, 128  slot: the one whose id is the head file's counts
//!         0  u16  first chunk (0: empty)   2  u16  1   4  u32  CRC32C of 0..2 and 8..16
//!         8  u64  position of that chunk's first entry (or, for 0, of the next entry to come)
//!  192  u64  what the files looked like when the last handle closed, 0 while one is open: a difference means that another
//!            program worked on them
//!  200  u64  the tail position when somebody last asked: a lower one in the files means the same
//!  208       end
//!
//! NAME.<id>.crc    checksums of a chunk's entries, and in the durable modes their log: see `records`
//! ```

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// Bytes of the head file.
pub const HEAD_BYTES: u64 = 2;
/// Where the two pointers are.
pub const POINTERS: usize = 0;
/// Where the tail pointer alone is.
pub const TAIL: usize = 4;
/// Where the reference to the next chunk is.
pub const NEXT: usize = 8;
/// Where entries begin.
pub const FIRST_ENTRY: u32 = 10;
/// The length in front of each entry.
pub const LENGTH_BYTES: u32 = 2;
/// The smallest chunk: it holds empty messages only.
pub const MIN_CHUNK: u32 = FIRST_ENTRY + LENGTH_BYTES;
/// The largest chunk: pointers are signed.
pub const MAX_CHUNK: u32 = i32::MAX as u32;
/// The longest message that a 16-bit length can tell.
pub const MAX_ENTRY: u32 = u16::MAX as u32;
/// How many ids there are.
pub const IDS: u32 = 65_534;
/// Bytes of a note of a commit.
pub const NOTE_BYTES: usize = 16;
/// Bytes of the two places for notes.
pub const NOTES_BYTES: u32 = 2 * NOTE_BYTES as u32;
/// Smaller chunks have no place for notes.
pub const MIN_NOTED_CHUNK: u32 = 256;
/// More chunks than this cannot be in one chain: a longer walk goes in circles.
pub const MAX_CHUNKS: usize = 65_535;

/// The most bytes of a message in chunks of this size.
pub fn max_element_size(chunk_size: u32) -> u32 {
    (chunk_size - MIN_CHUNK).min(MAX_ENTRY)
}

/// Bytes that a message takes in a chunk.
pub fn entry_bytes(length: usize) -> u64 {
    u64::from(LENGTH_BYTES) + length as u64
}

/// A chunk's id as stored: never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChunkId(u16);

impl ChunkId {
    /// The first chunk of an empty queue.
    pub const FIRST: ChunkId = ChunkId(1);

    /// A stored reference; 0 is none.
    pub fn from_ref(reference: u16) -> Option<Self> {
        (reference != 0).then_some(ChunkId(reference))
    }

    /// As stored.
    pub fn reference(self) -> u16 {
        self.0
    }

    /// The id that a chunk behind this one gets.
    pub fn next(self) -> Self {
        match (u32::from(self.0) + 1) % 65_535 {
            0 => ChunkId(1),
            id => ChunkId(id as u16),
        }
    }

    /// How often [`Self::next`] leads from here to `other`.
    pub fn steps_to(self, other: Self) -> u32 {
        (u32::from(other.number()) + IDS - u32::from(self.number())) % IDS
    }

    /// The id of which this one is the next.
    pub fn previous(self) -> Self {
        if self.0 <= 1 {
            ChunkId(65_534)
        } else {
            ChunkId(self.0 - 1)
        }
    }

    /// The number in the file's name.
    pub fn number(self) -> u16 {
        self.0 % 65_535
    }
}

impl std::fmt::Display for ChunkId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.number())
    }
}

/// Head and tail of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pointers {
    /// Offset of the first entry to read.
    pub head: u32,
    /// Offset behind the last entry.
    pub tail: u32,
}

impl Pointers {
    /// Of a chunk without entries.
    pub const EMPTY: Pointers = Pointers {
        head: FIRST_ENTRY,
        tail: FIRST_ENTRY,
    };

    /// From the 8 bytes of a file.
    pub fn from_bytes(bytes: [u8; 8]) -> Self {
        let word = u64::from_be_bytes(bytes);
        Pointers {
            head: (word >> 32) as u32,
            tail: word as u32,
        }
    }

    /// The 8 bytes of a file.
    pub fn to_bytes(self) -> [u8; 8] {
        (u64::from(self.head) << 32 | u64::from(self.tail)).to_be_bytes()
    }

    /// Whether nothing is left to read.
    pub fn is_exhausted(self) -> bool {
        self.head == self.tail
    }

    /// Whether they can be the pointers of a chunk of `length` bytes.
    pub fn are_within(self, length: u32) -> bool {
        FIRST_ENTRY <= self.head && self.head <= self.tail && self.tail <= length
    }
}

/// The bytes in front of a chunk's entries.
pub fn chunk_header(pointers: Pointers, next: u16) -> [u8; FIRST_ENTRY as usize] {
    let mut header = [0; FIRST_ENTRY as usize];
    header[..NEXT].copy_from_slice(&pointers.to_bytes());
    header[NEXT..].copy_from_slice(&next.to_be_bytes());
    header
}

/// Appends one entry, as a chunk holds it.
pub fn frame(message: &[u8], out: &mut Vec<u8>) {
    let length = u16::try_from(message.len()).expect("checked against the largest entry");
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(message);
}

/// Whether bytes are a sequence of whole entries.
pub fn is_framed(bytes: &[u8]) -> bool {
    let mut rest = bytes;
    while !rest.is_empty() {
        let Some((length, behind)) = rest.split_first_chunk::<2>() else {
            return false;
        };
        match behind.get(usize::from(u16::from_be_bytes(*length))..) {
            Some(next) => rest = next,
            None => return false,
        }
    }
    true
}

/// Where a chunk of `length` bytes has its notes, if it is long enough for them.
#[inline]
pub fn notes_at(length: u32) -> Option<u32> {
    (length >= MIN_NOTED_CHUNK).then(|| length - NOTES_BYTES)
}

/// The names of a queue's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    head: PathBuf,
}

impl Names {
    /// Of the queue whose head file is `path`.
    pub fn new(path: &Path) -> Result<Self> {
        if path.file_name().is_none() {
            return Err(Error::Invalid(format!("{} does not name a file", path.display())));
        }
        Ok(Names { head: path.to_owned() })
    }

    /// The head file.
    pub fn head(&self) -> &Path {
        &self.head
    }

    /// A chunk.
    pub fn chunk(&self, id: ChunkId) -> PathBuf {
        self.with(&format!(".{}", id.number()))
    }

    /// A chunk's checksums.
    pub fn checks(&self, id: ChunkId) -> PathBuf {
        self.with(&format!(".{}.crc", id.number()))
    }

    /// What `repair` puts aside of a chunk.
    pub fn damaged(&self, id: ChunkId) -> PathBuf {
        self.with(&format!(".{}.damaged", id.number()))
    }

    /// Locks and wake-up words.
    pub fn signal(&self) -> PathBuf {
        self.with(".signal")
    }

    /// What makes positions absolute.
    pub fn positions(&self) -> PathBuf {
        self.with(".positions")
    }

    /// The chunk that a file name in the same directory is, if it is one.
    pub fn chunk_of(&self, file_name: &std::ffi::OsStr) -> Option<ChunkId> {
        self.chunk_in(file_name.as_encoded_bytes())
    }

    fn chunk_in(&self, file_name: &[u8]) -> Option<ChunkId> {
        let own = self.head.file_name()?.as_encoded_bytes();
        let digits = file_name.strip_prefix(own)?.strip_prefix(b".")?;
        let text = std::str::from_utf8(digits).ok()?;
        let number: u16 = text.parse().ok()?;
        let canonical = number.to_string() == text && number < 65_535;
        canonical.then_some(ChunkId(if number == 0 { 65_535 } else { number }))
    }

    /// The chunk whose checksums a file name in the same directory is for, if it is such a name.
    pub fn checks_of(&self, file_name: &std::ffi::OsStr) -> Option<ChunkId> {
        self.chunk_in(file_name.as_encoded_bytes().strip_suffix(b".crc")?)
    }

    fn with(&self, suffix: &str) -> PathBuf {
        let mut name = OsString::from(&self.head);
        name.push(suffix);
        PathBuf::from(name)
    }
}

/// A chunk size that people may ask for.
pub fn check_chunk_size(size: u64) -> Result<u32> {
    match u32::try_from(size) {
        Ok(size) if (MIN_CHUNK..=MAX_CHUNK).contains(&size) => Ok(size),
        _ => Err(Error::Invalid(format!(
            "chunk_size must be between {MIN_CHUNK} and {MAX_CHUNK} bytes, not {size}"
        ))),
    }
}

/// Offsets in `NAME.signal`.
pub(crate) mod signal {
    /// "QWsignal".
    pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"QWsignal");
    /// Of this layout.
    pub(crate) const VERSION: u32 = 2;
    /// Bytes of one stage: two of the largest entries.
    pub(crate) const STAGE_BYTES: usize = 128 << 10;
    pub(crate) const MAGIC_AT: usize = 0;
    pub(crate) const VERSION_AT: usize = 8;
    pub(crate) const STAGE_BYTES_AT: usize = 12;
    pub(crate) const BOOT_ID: usize = 16;
    pub(crate) const APPEND_LOCK: usize = 64;
    pub(crate) const COMMIT_LOCK: usize = 72;
    pub(crate) const EPOCH: usize = 80;
    pub(crate) const POSITIONS: usize = 84;
    pub(crate) const ACTIVE: usize = 88;
    pub(crate) const CHUNK_SIZE: usize = 92;
    pub(crate) const UNSYNCED: usize = 96;
    pub(crate) const UNSYNCED_PRODUCER: u32 = 1;
    pub(crate) const UNSYNCED_PAST: u32 = 2;
    pub(crate) const ARRIVALS: usize = 128;
    pub(crate) const ROOM: usize = 192;
    pub(crate) const APPENDED_BYTES: usize = 256;
    pub(crate) const APPENDED_MESSAGES: usize = 264;
    pub(crate) const CONSUMED_BYTES: usize = 320;
    pub(crate) const CONSUMED_MESSAGES: usize = 328;
    pub(crate) const STAGES: usize = 384;
    pub(crate) const STAGE_STEP: usize = 16;
    pub(crate) const DATA: usize = 4096;
    pub(crate) const ROSTER: usize = DATA + 2 * STAGE_BYTES;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_run_from_1_to_65534_and_start_over() {
        let mut id = ChunkId::FIRST;
        for expected in (1..=65_534).chain(1..3) {
            assert_eq!(id.reference(), expected);
            assert_eq!(id.next().previous(), id);
            id = id.next();
        }
        let odd = ChunkId::from_ref(65_535).unwrap();
        assert_eq!((odd.number(), odd.next().reference()), (0, 1));
        assert_eq!(ChunkId::from_ref(0), None);
    }

    #[test]
    fn headers_are_big_endian() {
        let pointers = Pointers {
            head: 0x0102,
            tail: 0x000A_0B0C,
        };
        let header = chunk_header(pointers, 0xFFFE);
        assert_eq!(header, [0, 0, 1, 2, 0, 0x0A, 0x0B, 0x0C, 0xFF, 0xFE]);
        assert_eq!(Pointers::from_bytes(header[..8].try_into().unwrap()), pointers);
    }

    #[test]
    fn pointers_outside_of_the_chunk_are_refused() {
        let within = |head, tail| Pointers { head, tail }.are_within(100);
        assert!(within(10, 10) && within(10, 100) && within(100, 100));
        assert!(!within(0, 0) && !within(9, 10) && !within(11, 10) && !within(10, 101));
        assert!(!within(u32::MAX, u32::MAX), "negative numbers");
    }

    #[test]
    fn limits_are_those_of_the_format() {
        assert_eq!(max_element_size(12), 0);
        assert_eq!(max_element_size(100), 88);
        assert_eq!(max_element_size(1 << 20), 65_535);
        assert!(check_chunk_size(11).is_err() && check_chunk_size(1 << 31).is_err());
        assert_eq!(check_chunk_size((1 << 31) - 1).unwrap(), MAX_CHUNK);
    }

    #[test]
    fn only_canonical_names_are_chunks() {
        let names = Names::new(Path::new("/tmp/q.dat")).unwrap();
        let id = |name: &str| names.chunk_of(name.as_ref()).map(ChunkId::reference);
        assert_eq!(id("q.dat.1"), Some(1));
        assert_eq!(id("q.dat.65534"), Some(65_534));
        assert_eq!(id("q.dat.0"), Some(65_535));
        for other in [
            "q.dat",
            "q.dat.01",
            "q.dat.65535",
            "q.dat.1.crc",
            "q.dat.",
            "p.dat.1",
            "q.dat.+1",
        ] {
            assert_eq!(id(other), None, "{other}");
        }
        assert_eq!(names.chunk(ChunkId::FIRST), Path::new("/tmp/q.dat.1"));
    }
}
