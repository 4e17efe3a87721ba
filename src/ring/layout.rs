//! Every byte of a ring file: the documented part, and our trailer behind it.
//!
//! # The documented part
//! All words are little-endian; `MSG_SIZE` counts 64-bit words.
//!
//! ```text
//!  0  u64  MAGIC          0x576f726b20697320
//!  8  u32  QUEUE_MAX_LEN  slots
//! 12  u32  MSG_SIZE       64-bit words of a message
//! 16  u64  HEADER_LOCK    0 free, else held
//! 24  u32  START_IDX      the slot of the oldest message     } one 64-bit word for us: both change in one store, so no
//! 28  u32  QUEUE_LEN      messages in the queue              } death can leave half of a change behind
//! 32  slot 0, slot 1, ...  each u64 MSG_LOCK (0 free, else held), MSG_SIZE x u64 MSG_DATA
//! ```
//!
//! # The trailer
//! Begins at the next multiple of 64. A program that knows only the document never looks there, and a file that ends with
//! its documented part has none: then the same words live in private memory of each handle, and nothing is known about the
//! life of the others.
//!
//! ```text
//!   0  u64  TRAILER_MAGIC
//!   8  u32  version           1
//!  12  u32  places            of the roster, 1 to 4096
//!  16  u64  file length       documented part, trailer and all
//!  24  u32  arrivals          signal: readers sleep here
//!  64  u64  settled           START_IDX and QUEUE_LEN as one of us left them; a difference is a foreign program's doing
//!  72  u64  enqueued          messages that got a slot; also the sequence number of the next one
//!  80  u64  overwritten       oldest messages that gave their slot to a new one
//!  88  u64  abandoned         messages whose writer died in the slot
//!  96  u64  lost in hands     messages whose reader died in the slot
//! 104  u64  discarded         messages that a living reader was still copying when a writer needed the slot
//! 112  u64  foreign           1 once a foreign program was noticed
//! 128  5 x u64  intent        see below
//! 192  u64 x QUEUE_MAX_LEN    stamps: (sequence + 1) << 1, plus 1 when abandoned; 0 where nothing is known
//!  ..  roster                 at the next multiple of 64
//! ```
//!
//! # Our lock words
//! A lock word of ours is an [`Identity`](crate::shared::identity::Identity), with what its owner does: `Work` holds the header
//! or writes a message, `Read` copies a message that it has taken out of the queue, `Other` copies one that stays. A death
//! in a slot therefore says by itself what became of the message.
//!
//! # The intent
//! What the holder of the header lock is about to do, written down before it is done and struck out (first word 0) after,
//! so that whoever finds the holder dead can undo it or finish it. Everything in it is absolute: repairing twice does no harm.
//!
//! ```text
//!  63              32 31      16 15     8 7      0
//! +------------------+----------+--------+--------+
//! |       slot       |    0     |  fate  |  kind  |     + owner, range, enqueued, count
//! +------------------+----------+--------+--------+
//! ```
//!
//! | kind | about to happen | after a death |
//! |---|---|---|
//! | 0 | nothing | |
//! | 1 move | the slot gets the lock word `owner`, START and LEN move away from `range`, `enqueued` may rise | undone: nothing was copied yet, so it never happened. Only the count of a message taken out of a living reader's hands (fate discarded) stands, if the slot was taken |
//! | 2 skip | START and LEN move to `range`, past an abandoned slot | finished |
//! | 3 abandon | the data of a dead writer's slot is zeroed, its stamp marked, `abandoned` becomes `count`, the lock word `owner` is cleared | finished |
//! | 4 lost | `lost in hands` becomes `count`, the lock word `owner` of a dead reader is cleared. Where `range` covers the slot, a foreign writer has published it and never written to it: zeroed and marked as abandoned | finished |

use crate::shared::identity::SLOTS;
use crate::shared::roster::Table;
use crate::{Error, Result};

/// The first word of a ring file.
pub const MAGIC: u64 = 0x576f_726b_2069_7320;
/// Where [`MAGIC`] stands.
pub const MAGIC_AT: usize = 0;
/// Where `QUEUE_MAX_LEN` stands.
pub const MAX_LEN_AT: usize = MAGIC_AT + 8;
/// Where `MSG_SIZE` stands.
pub const MSG_SIZE_AT: usize = MAX_LEN_AT + 4;
/// Where `HEADER_LOCK` stands.
pub const HEADER_LOCK_AT: usize = MSG_SIZE_AT + 4;
/// Where `START_IDX` and `QUEUE_LEN` stand.
pub const RANGE_AT: usize = HEADER_LOCK_AT + 8;
/// Where slot 0 begins.
pub const SLOTS_AT: usize = RANGE_AT + 8;

/// The first word of the trailer: "tailring" in memory.
pub const TRAILER_MAGIC: u64 = u64::from_le_bytes(*b"tailring");
/// The version of the trailer.
pub const TRAILER_VERSION: u32 = 1;
/// A trailer begins at a multiple of this.
pub const ALIGNMENT: u64 = 64;
/// Where in a trailer the length of the whole file stands.
pub const FILE_LENGTH: usize = 16;

/// The two parameters of a ring, checked: every offset that is computed from them fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    max_len: u32,
    msg_size: u32,
}

impl Geometry {
    /// Checks the parameters; the error names the value and the limit.
    pub fn new(max_len: u32, msg_size: u32) -> Result<Self> {
        if max_len == 0 {
            return Err(Error::Invalid("max_len is 0, a ring has at least 1 slot".into()));
        }
        if msg_size == 0 {
            return Err(Error::Invalid(
                "msg_size is 0, a message has at least 1 word of 8 bytes".into(),
            ));
        }
        let geometry = Geometry { max_len, msg_size };
        let slots = u64::from(max_len).checked_mul(geometry.stride());
        // Room for the trailer too: 8 bytes a slot, the roster, and what alignment costs.
        let limit = i64::MAX as u64 - (1 << 40);
        match slots {
            Some(bytes) if bytes <= limit => Ok(geometry),
            _ => Err(Error::Invalid(format!(
                "max_len {max_len} with msg_size {msg_size} is more than the {limit} bytes that a file can have"
            ))),
        }
    }

    /// Slots of the ring.
    #[inline]
    pub fn max_len(self) -> u32 {
        self.max_len
    }

    /// 64-bit words of a message.
    pub fn msg_size(self) -> u32 {
        self.msg_size
    }

    /// Bytes of a message.
    #[inline]
    pub fn message_bytes(self) -> usize {
        8 * self.msg_size as usize
    }

    /// Bytes that the document describes.
    pub fn documented_length(self) -> u64 {
        SLOTS_AT as u64 + u64::from(self.max_len) * self.stride()
    }

    /// Where the lock of a slot stands.
    #[inline]
    pub fn lock_at(self, slot: u32) -> usize {
        SLOTS_AT + slot as usize * self.stride() as usize
    }

    /// Where the data of a slot begins.
    #[inline]
    pub fn data_at(self, slot: u32) -> usize {
        self.lock_at(slot) + 8
    }

    /// The trailer of a file with room for `places` participants.
    pub fn trailer(self, places: u32) -> Trailer {
        let at = self.documented_length().next_multiple_of(ALIGNMENT) as usize;
        Trailer::new(at, self.max_len, places)
    }

    /// A trailer in memory of its own, for one participant.
    pub fn private_trailer(self) -> Trailer {
        Trailer::new(0, self.max_len, 1)
    }

    #[inline]
    fn stride(self) -> u64 {
        8 + 8 * u64::from(self.msg_size)
    }
}

/// Which slots hold the queue: `START_IDX` and `QUEUE_LEN`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The slot of the oldest message.
    pub start: u32,
    /// How many messages there are.
    pub len: u32,
}

impl Range {
    /// The word at [`RANGE_AT`] as it stands in memory, little-endian.
    #[inline]
    pub fn word(self) -> u64 {
        u64::from(self.start) | u64::from(self.len) << 32
    }

    /// Takes a word apart, whatever it holds.
    #[inline]
    pub fn from_word(word: u64) -> Self {
        Range {
            start: word as u32,
            len: (word >> 32) as u32,
        }
    }

    /// Refuses what no program that follows the document can have stored.
    #[inline]
    pub fn checked(self, max_len: u32) -> Result<Self> {
        if self.start < max_len && self.len <= max_len {
            return Ok(self);
        }
        Err(Error::Corrupt(format!(
            "START_IDX is {} and QUEUE_LEN is {} in a ring of {max_len} slots",
            self.start, self.len
        )))
    }

    /// The slot `steps` after `start`, in a checked range and for at most `max_len` steps.
    #[inline]
    pub fn nth(self, steps: u32, max_len: u32) -> u32 {
        // A division would cost more than all the rest of finding a slot.
        let far = u64::from(self.start) + u64::from(steps);
        let around = far.checked_sub(u64::from(max_len)).unwrap_or(far);
        around as u32
    }

    /// The slot behind the newest message.
    #[inline]
    pub fn end(self, max_len: u32) -> u32 {
        self.nth(self.len, max_len)
    }

    /// Whether the queue covers the slot.
    pub fn covers(self, slot: u32, max_len: u32) -> bool {
        let (slot, start) = (u64::from(slot), u64::from(self.start));
        (slot + u64::from(max_len) - start) % u64::from(max_len) < u64::from(self.len)
    }

    /// The queue without its `steps` oldest messages.
    #[inline]
    pub fn without_oldest(self, steps: u32, max_len: u32) -> Self {
        Range {
            start: self.nth(steps, max_len),
            len: self.len - steps,
        }
    }
}

/// Where the words of the trailer stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trailer {
    at: usize,
    max_len: u32,
    places: u32,
}

/// What is counted, by its place in the trailer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// Messages that got a slot.
    Enqueued = 72,
    /// Oldest messages that gave their slot to a new one.
    Overwritten = 80,
    /// Messages whose writer died in the slot.
    Abandoned = 88,
    /// Messages whose reader died in the slot.
    LostInHands = 96,
    /// Messages that a living reader was still copying when a writer needed the slot.
    Discarded = 104,
}

/// The words of the intent, by their place in the trailer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntentWord {
    /// Kind, fate and slot; 0 when nothing is intended.
    Op = 128,
    /// The lock word that the slot has or gets.
    Owner = 136,
    /// START and LEN before (move) or after (skip).
    Range = 144,
    /// `enqueued` before.
    Enqueued = 152,
    /// The counter of the fate, before (undone) or after (finished).
    Count = 160,
}

const STAMPS: usize = 192;

impl Trailer {
    fn new(at: usize, max_len: u32, places: u32) -> Self {
        Trailer { at, max_len, places }
    }

    /// Of the first byte.
    pub fn at(self) -> usize {
        self.at
    }

    /// Where [`TRAILER_MAGIC`] stands.
    pub fn magic(self) -> usize {
        self.at
    }

    /// Where the version stands.
    pub fn version(self) -> usize {
        self.at + 8
    }

    /// Where the number of places of the roster stands.
    pub fn places(self) -> usize {
        self.at + 12
    }

    /// Where the length of the whole file stands.
    pub fn file_length(self) -> usize {
        self.at + FILE_LENGTH
    }

    /// Where readers sleep.
    #[inline]
    pub fn arrivals(self) -> usize {
        self.at + 24
    }

    /// Where START and LEN stand as one of us left them.
    #[inline]
    pub fn settled(self) -> usize {
        self.at + 64
    }

    /// Where a counter stands.
    #[inline]
    pub fn counter(self, counter: Counter) -> usize {
        self.at + counter as usize
    }

    /// Where it is noted that a foreign program was noticed.
    pub fn foreign(self) -> usize {
        self.at + 112
    }

    /// Where a word of the intent stands.
    #[inline]
    pub fn intent(self, word: IntentWord) -> usize {
        self.at + word as usize
    }

    /// Where the stamp of a slot stands.
    #[inline]
    pub fn stamp(self, slot: u32) -> usize {
        self.at + STAMPS + 8 * slot as usize
    }

    /// The roster.
    pub fn roster(self) -> Table {
        let offset = self.stamp(self.max_len).next_multiple_of(ALIGNMENT as usize);
        Table {
            offset,
            slots: self.places,
        }
    }

    /// Behind the last byte: the length of the file.
    pub fn end(self) -> usize {
        let roster = self.roster();
        roster.offset + roster.length()
    }
}

/// As many participants as a roster can have.
pub const PLACES: u32 = SLOTS;

/// What is known about the message in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp(u64);

impl Stamp {
    /// Nothing is known: a foreign message, or none yet.
    pub const UNKNOWN: Stamp = Stamp(0);
    /// The writer died in the slot.
    pub const ABANDONED: Stamp = Stamp(1);

    /// The stamp of the message with this sequence number.
    #[inline]
    pub fn of(sequence: u64) -> Self {
        Stamp(sequence.wrapping_add(1) << 1)
    }

    /// The word as found.
    #[inline]
    pub fn from_word(word: u64) -> Self {
        Stamp(word)
    }

    /// The word as stored.
    #[inline]
    pub fn word(self) -> u64 {
        self.0
    }

    /// The sequence number, where it is known.
    #[inline]
    pub fn sequence(self) -> Option<u64> {
        (self.0 >> 1).checked_sub(1)
    }

    /// Whether the slot was marked as abandoned.
    #[inline]
    pub fn is_abandoned(self) -> bool {
        self.0 & 1 != 0
    }
}

/// The 64-bit words of a ring, for a model that must know them beforehand.
#[cfg(loom)]
pub fn wide_words(geometry: Geometry, trailer: Trailer) -> Vec<usize> {
    let mut words = vec![MAGIC_AT, HEADER_LOCK_AT, RANGE_AT];
    for slot in 0..geometry.max_len() {
        words.push(geometry.lock_at(slot));
        words.extend((0..geometry.msg_size() as usize).map(|word| geometry.data_at(slot) + 8 * word));
    }
    words.extend([trailer.magic(), trailer.file_length()]);
    words.extend((trailer.settled()..trailer.roster().offset).step_by(8));
    let roster = trailer.roster();
    words.extend((0..roster.slots as usize).map(|place| roster.offset + 8 + 8 * place));
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_to_the_byte() {
        let ring = Geometry::new(5, 3).unwrap();
        assert_eq!(
            (MAGIC_AT, MAX_LEN_AT, MSG_SIZE_AT, HEADER_LOCK_AT, RANGE_AT, SLOTS_AT),
            (0, 8, 12, 16, 24, 32)
        );
        assert_eq!((ring.lock_at(0), ring.data_at(0)), (32, 40));
        assert_eq!((ring.lock_at(1), ring.lock_at(4)), (64, 160));
        assert_eq!(ring.documented_length(), 32 + 5 * (8 + 8 * 3));
        assert_eq!(ring.message_bytes(), 24);
    }

    #[test]
    fn start_and_len_share_a_word_in_the_documented_order() {
        let range = Range { start: 3, len: 7 };
        assert_eq!(range.word().to_le_bytes(), [3, 0, 0, 0, 7, 0, 0, 0]);
        assert_eq!(Range::from_word(range.word()), range);
    }

    #[test]
    fn parameters_out_of_range_are_named() {
        let text = |max_len, msg_size| Geometry::new(max_len, msg_size).unwrap_err().to_string();
        assert!(text(0, 3).contains("max_len is 0"));
        assert!(text(5, 0).contains("msg_size is 0"));
        let huge = text(u32::MAX, u32::MAX);
        assert!(huge.contains("max_len 4294967295 with msg_size 4294967295"), "{huge}");
        assert!(Geometry::new(u32::MAX, 1).is_ok() && Geometry::new(1, u32::MAX).is_ok());
    }

    #[test]
    fn ranges_wrap() {
        let range = Range { start: 4, len: 3 };
        assert_eq!((range.end(5), range.nth(1, 5)), (2, 0));
        let covered: Vec<bool> = (0..5).map(|slot| range.covers(slot, 5)).collect();
        assert_eq!(covered, [true, true, false, false, true]);
        assert_eq!(range.without_oldest(2, 5), Range { start: 1, len: 1 });
        let largest = Range {
            start: u32::MAX - 1,
            len: u32::MAX,
        };
        assert_eq!(largest.end(u32::MAX), u32::MAX - 1);
        assert!(Range { start: 5, len: 0 }.checked(5).is_err() && Range { start: 0, len: 6 }.checked(5).is_err());
    }

    #[test]
    fn stamps_know_their_sequence() {
        assert_eq!(Stamp::of(0).sequence(), Some(0));
        assert_eq!(Stamp::of(41).sequence(), Some(41));
        assert_eq!((Stamp::UNKNOWN.sequence(), Stamp::ABANDONED.sequence()), (None, None));
        assert!(Stamp::ABANDONED.is_abandoned() && !Stamp::of(7).is_abandoned());
    }

    #[test]
    fn the_trailer_lies_behind_the_document_and_overlaps_nothing() {
        for (max_len, msg_size) in [(1, 1), (5, 3), (1024, 8), (7, 513)] {
            let ring = Geometry::new(max_len, msg_size).unwrap();
            let trailer = ring.trailer(PLACES);
            assert!(trailer.at() as u64 >= ring.documented_length() && trailer.at().is_multiple_of(64));
            assert!(trailer.intent(IntentWord::Count) + 8 <= trailer.stamp(0));
            assert!(trailer.stamp(max_len - 1) + 8 <= trailer.roster().offset);
            assert_eq!(trailer.end(), trailer.roster().offset + trailer.roster().length());
        }
    }
}
