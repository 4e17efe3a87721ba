//! Every offset and bit of a queue system's memory; no atomics, no I/O.
//!
//! A queue system is a directory. Its files carry the boot in their names, so nothing that an earlier boot left can be
//! mistaken for the state of this one:
//!
//! ```text
//! mcp-BOOT.system        the tables below and the first piece of S-memory
//! mcp-BOOT.memory.N      further pieces of S-memory, fetched when the first is used up
//! mcp-BOOT.SYSTEM.SLOT.GENERATION.disk
//!                        the queue disk of one queue file, here or in the directory that its creator named
//! ```
//!
//! The system file, little-endian, everything under the lock at 64 except for the two pairs of words that waiters look at:
//!
//! ```text
//!    0  magic u64, version u32, then the geometry: queues, users, participants, blocks, units u32, memory limit u64
//!   64  lock u64, stamp u64, free descriptors, blocks, segments, users, counts; masks of the pool
//!  192  signal u32: something was put into any queue
//!  256  counters u64 x 8
//!  320  pool: head of the list of empty buffers of each size, u32 x 96
//!  704  first unit of each segment that was never handed out, u32 x 128
//! 1216  roster, users x 32 bytes, queue descriptors x 512 bytes, directory of descriptor blocks x 4 bytes, S-memory
//! ```
//!
//! S-memory is counted in units of 64 bytes and addressed by a [`Place`]; it holds message buffers, message descriptors in
//! blocks of ten (behaviour 21) and the disk maps of queue descriptors.
//!
//! # What is true and what is derived
//! Four kinds of words are the truth: the state of a queue descriptor, the identity in a user record, the state word of a
//! message descriptor, and its place. Each changes by one store. Lists, counts, the pool and the disk maps follow from them,
//! and whoever takes the lock over from a dead holder computes them anew (`repair.rs`).

/// "TRMCPQS1" as stored.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"TRMCPQS1");
/// The first bytes of a further segment.
#[cfg(not(loom))]
pub(crate) const SEGMENT_MAGIC: u64 = u64::from_le_bytes(*b"TRMCPSEG");
/// Of this layout.
pub(crate) const VERSION: u32 = 1;

/// Offsets in the head of the system file.
pub(crate) mod head {
    pub(crate) const MAGIC: usize = 0;
    pub(crate) const VERSION: usize = 8;
    pub(crate) const QUEUES: usize = 12;
    pub(crate) const USERS: usize = 16;
    pub(crate) const PARTICIPANTS: usize = 20;
    pub(crate) const BLOCKS: usize = 24;
    pub(crate) const UNITS: usize = 28;
    pub(crate) const MEMORY_LIMIT: usize = 32;
    /// u64: tells the queue disks of this system from those of others in the same directory.
    pub(crate) const SYSTEM: usize = 40;

    /// u64: the recoverable lock; what its holder needs first stands beside it.
    pub(crate) const LOCK: usize = 64;
    /// u64: the next number that tells one use of a message descriptor from another.
    pub(crate) const STAMP: usize = 72;
    /// u32: the first free message descriptor.
    pub(crate) const FREE_DESCRIPTOR: usize = 80;
    /// u32: directory entries that were ever used.
    pub(crate) const BLOCKS_USED: usize = 84;
    /// u32: of those, how many are empty again.
    pub(crate) const BLOCK_HOLES: usize = 88;
    /// u32: segments of S-memory.
    pub(crate) const SEGMENTS: usize = 92;
    /// u32: user records that were ever used.
    pub(crate) const USERS_USED: usize = 96;
    /// u32: message descriptors in use.
    pub(crate) const DESCRIPTORS_IN_USE: usize = 100;
    /// u32: message buffers in use.
    pub(crate) const BUFFERS_IN_USE: usize = 104;
    /// u32: empty buffers in the pool.
    pub(crate) const BUFFERS_IN_POOL: usize = 108;
    /// u64 x 2: which lists of the pool are not empty.
    pub(crate) const POOL_MASK: usize = 112;

    /// u32: the signal that all inserts notify, for those who wait on several queues.
    pub(crate) const ANY_INSERT: usize = 192;

    /// u64 each.
    pub(crate) const SPILLS: usize = 256;
    pub(crate) const LOOK_AHEADS: usize = 264;
    pub(crate) const ROLL_OUTS: usize = 272;
    pub(crate) const REPAIRS: usize = 280;
    pub(crate) const DEATHS: usize = 288;
    pub(crate) const CREATED: usize = 296;
    pub(crate) const DESTROYED: usize = 304;

    pub(crate) const POOL: usize = 320;
    pub(crate) const FRESH: usize = 704;
    pub(crate) const END: usize = 1216;
}

/// Offsets in a user record: one open queue file of one process.
pub(crate) mod user {
    pub(crate) const LENGTH: usize = 32;
    /// u64: the participant that opened it; 0 is a free record. Stored last when opening, cleared first when closing.
    pub(crate) const IDENTITY: usize = 0;
    /// u32: the queue descriptor of the file (the first member of a family).
    pub(crate) const QUEUE: usize = 8;
    pub(crate) const GENERATION: usize = 12;
    /// u32: 1 input, 2 output, 3 both.
    pub(crate) const MODE: usize = 16;
}

/// Offsets in a queue descriptor. The fields of the second line count only in the first member of a family.
pub(crate) mod queue {
    pub(crate) const LENGTH: usize = 512;
    /// u32: [`super::QueueState`].
    pub(crate) const STATE: usize = 0;
    /// u32: raised with each use of the slot; together with the slot number it is the Q-key of behaviour 11.
    pub(crate) const GENERATION: usize = 4;
    /// u64: who is creating or destroying it.
    pub(crate) const OWNER: usize = 8;
    /// u32: slot of the first member (its own in a single queue).
    pub(crate) const HEAD: usize = 16;
    /// u32: 0 in a single queue, else 1 to n.
    pub(crate) const MEMBER: usize = 20;
    /// u32: slot + 1 of the next member, 0 at the end.
    pub(crate) const NEXT_MEMBER: usize = 24;
    pub(crate) const FAMILY_SIZE: usize = 28;
    pub(crate) const MAX_MESSAGES: usize = 32;
    pub(crate) const BUFFERS: usize = 36;
    pub(crate) const RECORD_SIZE: usize = 40;
    /// u32: bit 0 keep.
    pub(crate) const FLAGS: usize = 44;
    /// u32: where the disk map is: one bit for each message that fits on the queue disk.
    pub(crate) const MAP: usize = 48;
    pub(crate) const MAP_CLASS: usize = 52;
    /// u32: length of the directory name at `DISK`; 0 is the directory of the system.
    pub(crate) const DISK_LENGTH: usize = 56;
    /// u32: generation of the first member, so that a member whose family is gone is known.
    pub(crate) const HEAD_GENERATION: usize = 60;

    /// 24 bytes: MFID in 10 and FID in 10 (single) or 11 (member) characters, padded with spaces.
    pub(crate) const NAME: usize = 64;
    pub(crate) const NAME_LENGTH: usize = 24;
    /// u32: how often somebody opened it for output; tells one end of file from the next.
    pub(crate) const WRITER_OPENS: usize = 96;
    /// u32: users with output, derived.
    pub(crate) const WRITERS: usize = 100;
    /// u32: users with input, derived.
    pub(crate) const READERS: usize = 104;
    /// u32: all users, derived.
    pub(crate) const USERS: usize = 108;
    /// u32: writers that died without closing since there was a first writer again.
    pub(crate) const ABENDED: usize = 112;

    /// u32: messages that a read could take now, derived.
    pub(crate) const AVAILABLE: usize = 128;
    /// u32: messages that take up room: in the list, or being filled; derived.
    pub(crate) const OCCUPIED: usize = 132;
    /// u32: first and last message descriptor, derived.
    pub(crate) const FIRST: usize = 136;
    pub(crate) const LAST: usize = 140;
    /// u32: all messages before this one are in somebody's hands, derived.
    pub(crate) const CURSOR: usize = 144;
    /// u32: messages that have a buffer, in transit included; derived.
    pub(crate) const IN_MEMORY: usize = 148;
    /// u32: messages in somebody's hands, derived.
    pub(crate) const HELD: usize = 152;
    /// u64: places in the order for the next message at the back and at the top.
    pub(crate) const BACK: usize = 160;
    pub(crate) const TOP: usize = 168;
    /// u64 each. So far the words that every read and write changes: one cache line.
    pub(crate) const WRITTEN: usize = 176;
    pub(crate) const READ: usize = 184;

    /// u32: signals for readers and writers. They change only when somebody sleeps, so their line stays with everybody.
    pub(crate) const INSERTED: usize = 192;
    pub(crate) const REMOVED: usize = 196;
    /// u32: value of `WRITER_OPENS` whose end of file somebody has taken.
    pub(crate) const EOF_TAKEN: usize = 200;
    /// u32: where to look for a free disk slot first.
    pub(crate) const MAP_CURSOR: usize = 204;
    /// u64 each.
    pub(crate) const SPILLS: usize = 208;
    pub(crate) const LOOK_AHEADS: usize = 216;
    pub(crate) const GIVEN_BACK: usize = 224;

    /// 256 bytes: the directory of the queue disk.
    pub(crate) const DISK: usize = 256;
    pub(crate) const DISK_LIMIT: usize = 256;
    pub(crate) const FLAG_KEEP: u32 = 1;
}

/// Offsets in a message descriptor: 64 bytes, a cache line (the document's had 16).
pub(crate) mod descriptor {
    pub(crate) const LENGTH: usize = 64;
    /// u32: [`super::MessageState`].
    pub(crate) const STATE: usize = 0;
    /// u32: [`super::Place`] of the text. Flips between memory and disk in one store.
    pub(crate) const PLACE: usize = 4;
    /// u32: size class of the buffer at `PLACE`, when it is one.
    pub(crate) const CLASS: usize = 8;
    /// u32: the other end of a move between memory and disk.
    pub(crate) const OTHER: usize = 12;
    pub(crate) const OTHER_CLASS: usize = 16;
    pub(crate) const QUEUE: usize = 20;
    pub(crate) const GENERATION: usize = 24;
    /// u32: bytes of the message.
    pub(crate) const SIZE: usize = 28;
    /// u32 x 2: order in the queue.
    pub(crate) const ORDER: usize = 32;
    /// u32 x 2: tells this use of the descriptor from all others.
    pub(crate) const STAMP: usize = 40;
    pub(crate) const NEXT: usize = 48;
    pub(crate) const PREVIOUS: usize = 52;
}

/// Message descriptors in a block (behaviour 21).
pub(crate) const BLOCK: u32 = 10;
/// Units of a block: the descriptors behind one unit of its own.
pub(crate) const BLOCK_UNITS: u32 = 1 + BLOCK * (descriptor::LENGTH / UNIT) as u32;
/// u32 in the first unit of a block: the size class of its memory.
pub(crate) const BLOCK_CLASS: usize = 0;

/// Bytes of a unit of S-memory.
pub(crate) const UNIT: usize = 64;
/// The most segments of S-memory.
pub(crate) const SEGMENTS: u32 = 128;
/// Sizes of buffers.
pub(crate) const CLASSES: u32 = 92;
/// Bytes of a segment of queue disk (behaviour 12).
pub(crate) const DISK_SEGMENT: u64 = 180;

/// The life of a queue descriptor; stored in the low bits of its state word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueState {
    /// Free.
    Free = 0,
    /// Its owner makes the queue disk; nobody can open it yet.
    Creating = 1,
    /// In use.
    Live = 2,
    /// The last user is gone; its owner removes the queue disk.
    Dying = 3,
}

impl QueueState {
    /// Anything unknown is free: a damaged word must not make a queue.
    pub(crate) fn from_word(word: u32) -> Self {
        match word {
            1 => QueueState::Creating,
            2 => QueueState::Live,
            3 => QueueState::Dying,
            _ => QueueState::Free,
        }
    }
}

/// What happens with a message, and by whom.
///
/// ```text
///  31                                 3  2   0
/// +------------------------------------+-----+
/// | user record + 1 (0 where nobody's) |state|
/// +------------------------------------+-----+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageState {
    /// The descriptor is unused ("zeroed out").
    Free,
    /// The user fills it; not in the list yet. Dies with the user.
    Filling(u32),
    /// In the list, for anybody to read.
    Queued,
    /// In the list, but in the user's hands: read, or held until acknowledged. Comes back with the user's death.
    Held(u32),
    /// In the list, on its way between memory and disk by the user's hand. Where it was until its place flips.
    Moving(u32),
}

impl MessageState {
    /// As stored.
    pub(crate) fn word(self) -> u32 {
        match self {
            MessageState::Free => 0,
            MessageState::Filling(user) => (user + 1) << 3 | 1,
            MessageState::Queued => 2,
            MessageState::Held(user) => (user + 1) << 3 | 3,
            MessageState::Moving(user) => (user + 1) << 3 | 4,
        }
    }

    /// Anything unknown is free.
    pub(crate) fn from_word(word: u32) -> Self {
        let user = (word >> 3).checked_sub(1);
        match (word & 7, user) {
            (1, Some(user)) => MessageState::Filling(user),
            (2, None) => MessageState::Queued,
            (3, Some(user)) => MessageState::Held(user),
            (4, Some(user)) => MessageState::Moving(user),
            _ => MessageState::Free,
        }
    }

    /// The user in whose hands it is.
    pub(crate) fn user(self) -> Option<u32> {
        match self {
            MessageState::Filling(user) | MessageState::Held(user) | MessageState::Moving(user) => Some(user),
            MessageState::Free | MessageState::Queued => None,
        }
    }
}

/// Where the text of a message is.
///
/// ```text
///  31 30         24 23                     0
/// +--+-------------+------------------------+
/// | 0|   segment   |          unit          |  in memory; unit 0 of a segment is never handed out, so 0 is nowhere
/// | 1|              disk slot               |  on the queue's disk
/// +--+--------------------------------------+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// No text yet.
    Nowhere,
    /// A buffer.
    Memory(Span),
    /// A slot of the queue disk.
    Disk(u32),
}

/// The start of a piece of S-memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Span {
    /// Which piece of S-memory.
    pub(crate) segment: u32,
    /// From 1 on.
    pub(crate) unit: u32,
}

impl Span {
    /// As stored; never 0.
    pub(crate) fn word(self) -> u32 {
        self.segment << 24 | self.unit
    }

    /// `None` for words that are no span.
    pub(crate) fn from_word(word: u32) -> Option<Self> {
        let span = Span {
            segment: word >> 24,
            unit: word & 0x00FF_FFFF,
        };
        (span.segment < SEGMENTS && span.unit != 0).then_some(span)
    }
}

impl Place {
    /// As stored.
    pub(crate) fn word(self) -> u32 {
        match self {
            Place::Nowhere => 0,
            Place::Memory(span) => span.word(),
            Place::Disk(slot) => slot | 1 << 31,
        }
    }

    /// Anything unknown is nowhere.
    pub(crate) fn from_word(word: u32) -> Self {
        if word >> 31 == 1 {
            return Place::Disk(word & 0x7FFF_FFFF);
        }
        Span::from_word(word).map_or(Place::Nowhere, Place::Memory)
    }
}

/// Units of the buffers of a class: 1 to 8, then four steps to each doubling. There is none above the last.
pub(crate) fn class_units(class: u32) -> u32 {
    match class.min(CLASSES - 1) {
        small @ 0..8 => small + 1,
        class => {
            let (doubling, step) = ((class - 8) / 4, (class - 8) % 4);
            (2 << doubling) * (5 + step)
        }
    }
}

/// The smallest class with room for so many units; `None` above the largest.
pub(crate) fn class_for(units: u32) -> Option<u32> {
    let mut low = 0;
    if units > 8 {
        // 2^k < units <= 2^(k+1), k >= 3: the class lies in the k-3rd group of four.
        let k = 31 - (units - 1).leading_zeros();
        low = 8 + (k - 3) * 4;
    }
    (low..CLASSES).take(9).find(|&class| class_units(class) >= units)
}

/// Units that `bytes` need, at least one.
pub(crate) fn units_for(bytes: usize) -> u32 {
    bytes.div_ceil(UNIT).max(1) as u32
}

/// Segments of queue disk for one message of `record_size` bytes, as in behaviour 12 (with DIV).
pub(crate) fn disk_segments(record_size: u32) -> u64 {
    u64::from(record_size).div_ceil(DISK_SEGMENT).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_rise_and_fit() {
        for class in 1..CLASSES {
            assert!(class_units(class) > class_units(class - 1), "class {class}");
        }
        assert_eq!(class_units(8), 10);
        assert_eq!(class_units(CLASSES - 1), 1 << 24);
        for units in (1..5000).chain([1 << 16, (1 << 16) + 1, (1 << 24) - 1, 1 << 24]) {
            let class = class_for(units).unwrap();
            assert!(class_units(class) >= units, "{units}");
            assert!(
                class == 0 || class_units(class - 1) < units,
                "{units} has a tighter class"
            );
        }
        assert_eq!(class_for((1 << 24) + 1), None);
    }

    #[test]
    fn words_come_back() {
        use MessageState::*;
        for state in [Free, Filling(0), Queued, Held(7), Moving((1 << 20) - 1)] {
            assert_eq!(MessageState::from_word(state.word()), state);
        }
        assert_eq!(MessageState::from_word(3), Free, "held by nobody");
        assert_eq!(MessageState::from_word(7), Free);
        let span = Span {
            segment: 127,
            unit: 0x00FF_FFFF,
        };
        for place in [
            Place::Nowhere,
            Place::Memory(span),
            Place::Disk(0),
            Place::Disk(0x7FFF_FFFF),
        ] {
            assert_eq!(Place::from_word(place.word()), place);
        }
        assert_eq!(Place::from_word(5 << 24), Place::Nowhere, "unit 0 is never handed out");
    }

    #[test]
    fn the_document_s_example_of_queue_disk() {
        assert_eq!(255 * disk_segments(200), 510);
        assert_eq!(disk_segments(180), 1);
        assert_eq!(disk_segments(181), 2);
        assert_eq!(disk_segments(0), 1);
    }
}
