//! What the reader hands out: where an item is, what state it was in, how much of it there is.

use super::control::{Control, Link, NO_IDENTIFIER, Reference};
use super::layout::Geometry;

/// A page in the history of the ring: which turn, counted from the format, and which page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    pub(super) turn: u64,
    pub(super) index: u32,
}

impl Position {
    #[inline]
    pub(super) fn reference(self) -> Reference {
        Reference::new(self.turn as u32, self.index)
    }

    #[inline]
    pub(super) fn advance(self, pages: u32, count: u32) -> Self {
        let index = self.index + pages;
        if index < count {
            Position { index, ..self }
        } else {
            Position {
                turn: self.turn + 1,
                index: 0,
            }
        }
    }

    pub(super) fn absolute(self, count: u32) -> u64 {
        self.turn * u64::from(count) + u64::from(self.index)
    }
}

/// One run of pages of an item.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) at: Position,
    /// The control word when the item was handed out.
    pub(super) control: Control,
    pub(super) link: Option<u32>,
    /// Bytes of the item in this run.
    pub(super) used: u32,
    pub(super) checksum_valid: bool,
}

/// An item in the hands of the reader's user, until it is released.
#[derive(Clone, Debug)]
pub struct Item {
    pub(super) first: Part,
    pub(super) rest: Vec<Part>,
    pub(super) is_committed: bool,
    pub(super) is_checksum_valid: bool,
    pub(super) page_count: u32,
}

impl Item {
    #[inline(always)]
    pub(super) fn single(part: Part, geometry: &Geometry) -> Self {
        Item {
            first: part,
            rest: Vec::new(),
            is_committed: part.control.is_committed(),
            is_checksum_valid: part.checksum_valid,
            page_count: geometry.page_count,
        }
    }

    /// The segments of an extendable item; the last one decides what the whole is worth.
    pub(super) fn chain(mut parts: Vec<Part>, geometry: &Geometry, cut: bool) -> Self {
        let rest = parts.split_off(1);
        let mut item = Item::single(parts[0], geometry);
        item.rest = rest;
        let page_count = item.page_count;
        let last = item.rest.last_mut().unwrap_or(&mut item.first);
        let ends = last.control.is_committed() && last.checksum_valid && !cut;
        let link = Link(last.link.unwrap_or(NO_IDENTIFIER));
        if ends && link.is_last() && link.value() < last.used {
            last.used = link.value();
        }
        item.is_committed = last.control.is_committed() && !cut;
        item.is_checksum_valid = last.checksum_valid;
        item.page_count = page_count;
        item
    }

    #[inline]
    pub(super) fn parts(&self) -> impl Iterator<Item = &Part> {
        std::iter::once(&self.first).chain(&self.rest)
    }

    /// Each run of pages as an item of its own.
    #[cfg(feature = "python")]
    pub(crate) fn split(&self) -> Vec<Item> {
        let of_part = |part: &Part| Item {
            first: *part,
            rest: Vec::new(),
            is_committed: self.is_committed,
            is_checksum_valid: self.is_checksum_valid,
            page_count: self.page_count,
        };
        self.parts().map(of_part).collect()
    }

    /// The identifier that the writer got at the claim.
    pub fn queue_identifier(&self) -> u32 {
        self.first.at.reference().identifier()
    }

    /// The number that the writer set; all ones when it set none or the queue keeps none.
    pub fn link_identifier(&self) -> u32 {
        self.first.link.unwrap_or(NO_IDENTIFIER)
    }

    /// Whether the writer committed the item. An incomplete one is what a writer left that died or took too long.
    pub fn is_committed(&self) -> bool {
        self.is_committed
    }

    /// Whether the bytes are those that were committed; always, in queues without CRC32.
    pub fn is_checksum_valid(&self) -> bool {
        self.is_checksum_valid
    }

    /// Bytes claimed.
    pub fn capacity(&self) -> usize {
        self.parts().map(|part| part.control.size() as usize).sum()
    }

    /// Bytes of the item.
    pub fn size(&self) -> usize {
        self.parts().map(|part| part.used as usize).sum()
    }

    /// Runs of pages that the item has; more than one only in extendable queues.
    pub fn segment_count(&self) -> usize {
        1 + self.rest.len()
    }

    /// Where the item starts, in pages since the format: grows for ever, unlike the identifier. Only regions with a trailer
    /// know how often the ring has turned; elsewhere it starts over with the sequence of 12 bits.
    pub fn position(&self) -> u64 {
        self.first.at.absolute(self.page_count)
    }
}
