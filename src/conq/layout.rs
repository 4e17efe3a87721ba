//! Every offset of a queue file; pure.
//!
//! ```text
//! 0        header, one page: who and how much, then the words that change, each group on a cache line of its own
//! 4096     roster: who takes part (shared/roster.rs)
//! table    segments x u32      0 = not in use yet, else its size class + 1 (bit 31: being given to another class)
//! open     classes x segments bits   which segments of a class may have a free slot: a hint
//! ring     places x u64        phase 1: the order of arrival (state.rs: Place)
//! heap     max_messages x 16   phase 2: the time table, a binary heap of (deadline u64, slot u32, 0 u32)
//! segments each `units` units of `unit` bytes, of which the first few hold
//!            +0   u64            which groups of 64 slots have none free: a hint
//!            +8   units/64 x u64 which slots are taken: a hint
//!            +..  units x u32    THE STATE WORDS, by the slot's first unit: the only truth (state.rs: State)
//!          and the rest the slots: a message head, then the bytes, in whole units
//!            +0 u32 length   +4 u32 link   +8 u64 id   +16 u64 enqueued   +24 u64 deadline   +32 bytes
//! ```
//!
//! The file has its full length from the start, but space on disk only for what is in use: ring, heap and segments get theirs
//! when they are first reached. A segment serves one size class: all its slots have the same number of units. A slot is named
//! by the number of its first unit, counted through all segments.
//!
//! The state words are kept apart from the slots so that they stay where they are when a segment changes its class.
//!
//! Version 1. Little-endian. Assumes that an aligned word is never torn, and nothing about what a power cut leaves.

pub use super::geometry::{Geometry, Slot};
pub use super::options::{DeadLetter, Options};

/// `"tr-conq\0"`.
pub const MAGIC: u64 = u64::from_le_bytes(*b"tr-conq\0");
/// Of this format.
pub const VERSION: u32 = 1;

/// Offsets of the header words; `u32` unless said otherwise.
pub mod header {
    /// u64, [`super::MAGIC`].
    pub const MAGIC: usize = 0x00;
    /// [`super::VERSION`].
    pub const VERSION: usize = 0x08;
    /// 1 once the queue was deleted: every operation looks at it first.
    pub const DELETED: usize = 0x0C;
    /// u64: the queue's number in its manager.
    pub const QUEUE_ID: usize = 0x10;
    /// 2 x u64: the boot in which the times in this file were taken.
    pub const BOOT_ID: usize = 0x18;
    /// u64: the time namespace of those times.
    pub const TIME_NAMESPACE: usize = 0x28;
    /// The parameters, see [`super::Geometry`].
    pub const MAX_MESSAGES: usize = 0x30;
    /// Bytes of a message.
    pub const MAX_MESSAGE_SIZE: usize = 0x34;
    /// Bytes of a unit.
    pub const UNIT: usize = 0x38;
    /// Units of a segment.
    pub const UNITS: usize = 0x3C;
    /// Segments of the file.
    pub const SEGMENTS: usize = 0x40;
    /// Places in the roster.
    pub const PARTICIPANTS: usize = 0x44;
    /// After so many deliveries a message goes to the dead-letter queue; 0 is never.
    pub const MAX_DELIVERIES: usize = 0x48;
    /// Bytes of the name at [`DEAD_LETTER`]; 0 is no dead-letter queue.
    pub const DEAD_LETTER_LENGTH: usize = 0x4C;

    /// u64: the lock of everything but arrivals. It and the words up to 0xC0 are written by its holder alone.
    pub const LOCK: usize = 0x80;
    /// u64: the latest time at which anybody held the lock.
    pub const LAST_NOW: usize = 0x88;
    /// u64: the ticket to be read next, which is also how many have left phase 1.
    pub const HEAD: usize = 0x90;
    /// u64: how many messages are gone for good.
    pub const REMOVED: usize = 0x98;
    /// Messages in the time table.
    pub const LEASED: usize = 0xA0;
    /// Messages in the list of expired ones, their first, their last.
    pub const EXPIRED: usize = 0xA4;
    /// The number of a slot plus one; 0, as in zeroed memory, is none.
    pub const EXPIRED_FIRST: usize = 0xA8;
    /// As [`EXPIRED_FIRST`].
    pub const EXPIRED_LAST: usize = 0xAC;
    /// Nodes of the heap that have space on disk.
    pub const HEAP_ALLOCATED: usize = 0xB0;
    /// How often a survivor repaired what a dead holder of the lock left.
    pub const REPAIRS: usize = 0xB4;
    /// u64: when the remains of dead participants were last looked for.
    pub const LAST_SWEEP: usize = 0xB8;

    /// u64: the ticket to be given next.
    pub const TAIL: usize = 0xC0;
    /// Places of the ring that have space on disk.
    pub const RING_ALLOCATED: usize = 0xC8;
    /// Wakes those who wait for a message.
    pub const ARRIVED: usize = 0x100;
    /// Wakes those who wait for room.
    pub const ROOM: usize = 0x140;

    /// Bytes of a name.
    pub const DEAD_LETTER: usize = 0x200;
    /// The most bytes of that name.
    pub const DEAD_LETTER_LIMIT: usize = 200;
    /// Bytes of the header.
    pub const LENGTH: usize = 4096;
    /// The words that are 64 bits wide.
    pub const WIDE: [usize; 11] = [
        MAGIC,
        QUEUE_ID,
        BOOT_ID,
        BOOT_ID + 8,
        TIME_NAMESPACE,
        LOCK,
        LAST_NOW,
        HEAD,
        REMOVED,
        LAST_SWEEP,
        TAIL,
    ];
    /// The words that are 32 bits wide.
    pub const NARROW: [usize; 19] = [
        VERSION,
        DELETED,
        MAX_MESSAGES,
        MAX_MESSAGE_SIZE,
        UNIT,
        UNITS,
        SEGMENTS,
        PARTICIPANTS,
        MAX_DELIVERIES,
        DEAD_LETTER_LENGTH,
        LEASED,
        EXPIRED,
        EXPIRED_FIRST,
        EXPIRED_LAST,
        HEAP_ALLOCATED,
        REPAIRS,
        RING_ALLOCATED,
        ARRIVED,
        ROOM,
    ];
}

/// Offsets inside a slot.
pub mod slot {
    /// u32: bytes of the message.
    pub const LENGTH: usize = 0;
    /// u32: while leased the place in the heap, while expired the next slot of the list plus one.
    pub const LINK: usize = 4;
    /// u64: the ticket under which it arrived.
    pub const ID: usize = 8;
    /// u64: when it was enqueued, on the boot clock.
    pub const ENQUEUED: usize = 16;
    /// u64: when its lease ends or ended, on the boot clock.
    pub const DEADLINE: usize = 24;
    /// The message itself.
    pub const BYTES: usize = 32;
}

/// Bit 31 of a segment's word in the table: it is being given to another size class.
pub const RETIRING: u32 = 1 << 31;
/// The most messages a queue can be made for.
pub const MAX_MESSAGES: u32 = 1 << 26;
/// The most bytes a message can be allowed to have.
pub const MAX_MESSAGE_SIZE: u32 = 1 << 28;
/// Bits of a slot's number; see [`super::state::Place`].
pub const SLOT_BITS: u32 = 28;
