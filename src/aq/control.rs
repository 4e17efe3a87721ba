//! The two packed words of the format, pure.
//!
//! ```text
//! reference (head, tail)   31        20 19            0
//!                         +------------+---------------+
//!                         |  sequence  |  page index   |   sequence: +1 with every turn around the ring
//!                         +------------+---------------+
//! identifier of an item: the low 29 bits of the reference at which it starts
//!
//! control word             31    30     29   28   20 19            0
//!                         +-----+------+-----+------+---------------+
//!                         |CLAIM|COMMIT|DISC.| seq. | bytes claimed |  the first page of an item; interior pages are 0
//!                         +-----+------+-----+------+---------------+
//! ```
//!
//! | flags | meaning |
//! |---|---|
//! | `---` | never used since format, or an interior page |
//! | `C--` | claimed, not committed |
//! | `CM-` | committed, waiting or retrieved |
//! | `CMD` | committed and released, the tail has not passed |
//! | `-M-` | complete item, freed |
//! | `C-D` | incomplete item, released; freed or not |
//! | `-MD` | waste at the end of the ring, not freed; the size is its length |
//! | `--D` | waste, freed |
//!
//! A claim of several messages ([`super::run`]) holds the words of all but the first in its interior until it is committed.

/// Page indices are below this; so are page counts.
pub const INDEX_LIMIT: u32 = 1 << INDEX_BITS;
/// The most bytes that one claim can have.
pub const SIZE_LIMIT: u32 = INDEX_LIMIT - 1;
/// The identifier of no item.
pub const NO_IDENTIFIER: u32 = u32::MAX;

const INDEX_BITS: u32 = 20;
const INDEX_MASK: u32 = INDEX_LIMIT - 1;
const SEQUENCE_MASK: u32 = 0xFFF;
const SHORT_SEQUENCE: u32 = 0x1FF << INDEX_BITS;
const IDENTIFIER_MASK: u32 = SHORT_SEQUENCE | INDEX_MASK;

const CLAIM: u32 = 1 << 31;
const COMMIT: u32 = 1 << 30;
const DISCARD: u32 = 1 << 29;
const FLAGS: u32 = CLAIM | COMMIT | DISCARD;

/// A place in the ring: which page, in which turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reference(pub u32);

impl Reference {
    /// The page `index` in turn `sequence`, of which 12 bits are kept.
    #[inline]
    pub const fn new(sequence: u32, index: u32) -> Self {
        Reference((sequence & SEQUENCE_MASK) << INDEX_BITS | index & INDEX_MASK)
    }

    /// The page.
    #[inline]
    pub const fn index(self) -> u32 {
        self.0 & INDEX_MASK
    }

    /// The turn, 12 bits of it.
    #[inline]
    pub const fn sequence(self) -> u32 {
        self.0 >> INDEX_BITS
    }

    /// The identifier of the item that starts here.
    #[inline]
    pub const fn identifier(self) -> u32 {
        self.0 & IDENTIFIER_MASK
    }

    /// The place `pages` further on, which is at most the end of the ring of `count` pages.
    #[inline]
    pub const fn advance(self, pages: u32, count: u32) -> Self {
        let index = self.index() + pages;
        if index < count {
            Reference(self.0 + pages)
        } else {
            self.next_turn()
        }
    }

    /// The first page of the next turn.
    #[inline]
    pub const fn next_turn(self) -> Self {
        Reference::new(self.sequence().wrapping_add(1), 0)
    }

    /// Whether the place is one of those from `tail` up to, not including, `head`.
    pub const fn is_between(self, tail: Reference, head: Reference) -> bool {
        if self.sequence() == tail.sequence() && self.index() >= tail.index() {
            return self.sequence() != head.sequence() || self.index() < head.index();
        }
        let wrapped = tail.next_turn().sequence() == head.sequence();
        wrapped && self.sequence() == head.sequence() && self.index() < head.index()
    }
}

/// The state of an item, in the control word of its first page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control(pub u32);

impl Control {
    /// A claim of `size` bytes that starts at `place`.
    #[inline]
    pub const fn claimed(place: Reference, size: u32) -> Self {
        Control(CLAIM | place.0 & SHORT_SEQUENCE | size & INDEX_MASK)
    }

    /// Waste of `size` bytes that starts at `place`.
    #[inline]
    pub const fn waste(place: Reference, size: u32) -> Self {
        Control(COMMIT | DISCARD | place.0 & SHORT_SEQUENCE | size & INDEX_MASK)
    }

    /// The size in bytes.
    #[inline]
    pub const fn size(self) -> u32 {
        self.0 & INDEX_MASK
    }

    /// Whether the word was written in the turn of `place` (or a multiple of 512 turns away).
    #[inline]
    pub const fn is_of_turn(self, place: Reference) -> bool {
        (self.0 ^ place.0) & SHORT_SEQUENCE == 0
    }

    /// The state, without size and turn.
    #[inline]
    pub const fn state(self) -> State {
        match self.0 & FLAGS {
            CLAIMED => State::Claimed,
            COMMITTED => State::Committed,
            RELEASED => State::Released,
            FREED => State::Freed,
            GIVEN_UP => State::GivenUp,
            WASTE => State::Waste,
            FREED_WASTE => State::FreedWaste,
            _ => State::Unused,
        }
    }

    /// `C--` and `CM-` become `CM-`.
    #[inline]
    pub const fn with_commit(self) -> Self {
        Control(self.0 | COMMIT)
    }

    /// Marks an item as released.
    #[inline]
    pub const fn with_discard(self) -> Self {
        Control(self.0 | DISCARD)
    }

    /// What a released item or waste becomes when the tail passes: `CMD` to `-M-`, `-MD` to `--D`; `C-D` stays.
    #[inline]
    pub const fn freed(self) -> Self {
        match self.state() {
            State::Released => Control(self.0 & !(CLAIM | DISCARD)),
            State::Waste => Control(self.0 & !COMMIT),
            _ => self,
        }
    }

    /// Whether a snapshot calls the item released.
    #[inline]
    pub const fn is_released(self) -> bool {
        self.0 & (CLAIM | DISCARD) != CLAIM
    }

    /// Whether the writer committed it.
    #[inline]
    pub const fn is_committed(self) -> bool {
        self.0 & COMMIT != 0
    }
}

const CLAIMED: u32 = CLAIM;
const COMMITTED: u32 = CLAIM | COMMIT;
const RELEASED: u32 = CLAIM | COMMIT | DISCARD;
const FREED: u32 = COMMIT;
const GIVEN_UP: u32 = CLAIM | DISCARD;
const WASTE: u32 = COMMIT | DISCARD;
const FREED_WASTE: u32 = DISCARD;

/// What the flags of a control word say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// `---`
    Unused,
    /// `C--`
    Claimed,
    /// `CM-`
    Committed,
    /// `CMD`
    Released,
    /// `-M-`
    Freed,
    /// `C-D`
    GivenUp,
    /// `-MD`
    Waste,
    /// `--D`
    FreedWaste,
}

/// The link word of a segment of an extendable item: where the next one starts, or how much of the last one is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link(pub u32);

const FIRST: u32 = 1 << 29;
const LAST: u32 = 1 << 30;

impl Link {
    /// The link of a segment that is followed by the one with identifier `next`.
    pub const fn to_next(first: bool, next: u32) -> Self {
        Link(if first { FIRST } else { 0 } | next & IDENTIFIER_MASK)
    }

    /// The link of the last segment, of which `used` bytes are used.
    pub const fn last(first: bool, used: u32) -> Self {
        Link(if first { FIRST } else { 0 } | LAST | used & IDENTIFIER_MASK)
    }

    /// Whether the segment starts an item.
    pub const fn is_first(self) -> bool {
        self.0 & FIRST != 0
    }

    /// Whether the segment ends an item.
    pub const fn is_last(self) -> bool {
        self.0 & LAST != 0
    }

    /// The identifier of the next segment, or the bytes used of the last one.
    pub const fn value(self) -> u32 {
        self.0 & IDENTIFIER_MASK
    }
}

/// The checksum of an item: CRC-32 of identifier, capacity and link (all big-endian) and the data, without the final
/// inversion.
#[derive(Clone, Debug)]
pub struct Checksum(crc32fast::Hasher);

impl Checksum {
    /// Begins with everything but the data.
    pub fn new(identifier: u32, capacity: u32, link: Option<u32>) -> Self {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&identifier.to_be_bytes());
        hasher.update(&capacity.to_be_bytes()[1..]);
        if let Some(link) = link {
            hasher.update(&link.to_be_bytes());
        }
        Checksum(hasher)
    }

    /// Goes on with the next bytes of the data.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The CRC word.
    pub fn finish(self) -> u32 {
        !self.0.finalize()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_known_checksum() {
        let mut sum = Checksum::new(0, 5, Some(NO_IDENTIFIER));
        sum.update(b"hello");
        assert_eq!(sum.finish(), 0x1ca9_c524);
    }

    #[test]
    fn words_of_the_seed_example() {
        let place = Reference(0x0010_000b);
        let claimed = Control::claimed(place, 2);
        assert_eq!(claimed.0, 0x8010_0002);
        assert_eq!(claimed.with_commit().0, 0xc010_0002);
        assert_eq!(claimed.with_discard().0, 0xa010_0002);
        assert_eq!(claimed.with_commit().with_discard().0, 0xe010_0002);
        assert_eq!(claimed.with_commit().with_discard().freed().0, 0x4010_0002);
        assert_eq!(Control::waste(place, 6).0, 0x6010_0006);
        assert_eq!(Control::waste(place, 6).freed().0, 0x2010_0006);
        assert_eq!(Link::last(true, 5).0, 0x6000_0005);
    }

    #[test]
    fn references_turn_around() {
        assert_eq!(Reference(0x0010_000c).advance(3, 15), Reference(0x0020_0000));
        assert_eq!(Reference(0x0010_000b).advance(3, 15), Reference(0x0010_000e));
        assert_eq!(Reference(0xFFF0_000E).advance(1, 15), Reference(0));
        assert_eq!(Reference(0xFFF0_0003).identifier(), 0x1FF0_0003);
    }

    #[test]
    fn places_between_tail_and_head() {
        let at = Reference::new;
        let cases = [
            (at(1, 4), at(1, 4), at(1, 4), false),
            (at(1, 4), at(1, 4), at(1, 5), true),
            (at(1, 3), at(1, 4), at(1, 9), false),
            (at(1, 9), at(1, 4), at(1, 9), false),
            (at(1, 14), at(1, 4), at(2, 2), true),
            (at(2, 1), at(1, 4), at(2, 2), true),
            (at(2, 2), at(1, 4), at(2, 2), false),
            (at(2, 1), at(1, 4), at(1, 9), false),
            (at(0, 1), at(0xFFF, 4), at(0, 2), true),
        ];
        for (place, tail, head, expected) in cases {
            assert_eq!(place.is_between(tail, head), expected, "{place:?} {tail:?} {head:?}");
        }
    }
}
