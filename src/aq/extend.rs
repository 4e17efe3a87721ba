//! Putting extendable items together from their segments, which the ring gives out one by one.
//!
//! A segment names its successor, so there are two private collections: chains that wait for the segment with a certain
//! identifier, and segments that came before their predecessor (possible only when a commit overtakes the reader's walk).
//!
//! A segment that was not committed has no link of its own: the word may be that of an earlier occupant of the page, so it
//! is never looked at.

use std::collections::HashMap;

use super::control::{Link, NO_IDENTIFIER};
use super::layout::Geometry;
use super::retrieved::{Item, Part, Position};

/// What became of a segment.
#[derive(Debug)]
pub(super) enum Fed {
    /// An item is complete, or as complete as it will ever be.
    Item(Item),
    /// The segment is kept until the others are there.
    Kept,
    /// The segment belongs to nothing: its item was never committed, or was released before.
    Orphan(Part),
}

/// Segments that are not an item yet.
#[derive(Debug, Default)]
pub(super) struct Collector {
    /// By the identifier of the segment that comes next.
    waiting: HashMap<u32, Vec<Part>>,
    /// By their own identifier.
    early: HashMap<u32, Part>,
}

impl Collector {
    /// Takes the next segment; `oldest_pending` is the lowest place that is not committed yet.
    pub(super) fn feed(&mut self, part: Part, geometry: &Geometry, oldest_pending: Option<Position>) -> Fed {
        let identifier = part.at.reference().identifier();
        let good = part.control.is_committed() && part.checksum_valid;
        let link = Link(part.link.unwrap_or(NO_IDENTIFIER));
        if let Some(mut chain) = self.waiting.remove(&identifier) {
            chain.push(part);
            return self.grow(chain, geometry);
        }
        match good {
            true if link.is_first() => self.grow(vec![part], geometry),
            // Its predecessor was committed before it, so unless that is still pending it is gone.
            true if oldest_pending.is_some_and(|oldest| oldest < part.at) => {
                self.early.insert(identifier, part);
                Fed::Kept
            }
            true => Fed::Orphan(part),
            false if part.control.is_committed() && link.is_first() => {
                Fed::Item(Item::chain(vec![part], geometry, false))
            }
            false => Fed::Orphan(part),
        }
    }

    /// Follows the links of a chain as far as segments are known.
    fn grow(&mut self, mut chain: Vec<Part>, geometry: &Geometry) -> Fed {
        loop {
            let last = chain.last().expect("a chain has a segment");
            let good = last.control.is_committed() && last.checksum_valid;
            let link = Link(last.link.unwrap_or(NO_IDENTIFIER));
            if !good || link.is_last() {
                return Fed::Item(Item::chain(chain, geometry, false));
            }
            match self.early.remove(&link.value()) {
                Some(next) => chain.push(next),
                None => {
                    self.waiting.insert(link.value(), chain);
                    return Fed::Kept;
                }
            }
        }
    }

    /// Segments whose predecessor can no longer come.
    pub(super) fn orphans(&mut self, oldest_pending: Option<Position>) -> Vec<Part> {
        let lost = |part: &Part| oldest_pending.is_none_or(|oldest| part.at < oldest);
        let identifiers: Vec<u32> = self
            .early
            .iter()
            .filter(|(_, part)| lost(part))
            .map(|(id, _)| *id)
            .collect();
        identifiers.iter().filter_map(|id| self.early.remove(id)).collect()
    }

    /// A chain whose next segment can no longer come (its link was damaged): given out as incomplete, oldest first.
    pub(super) fn broken(&mut self, geometry: &Geometry, can_come: impl Fn(u32) -> bool) -> Option<Item> {
        let lost = self.waiting.iter().filter(|(next, _)| !can_come(**next));
        let (next, _) = lost.min_by_key(|(_, chain)| chain[0].at)?;
        let next = *next;
        let chain = self.waiting.remove(&next)?;
        Some(Item::chain(chain, geometry, true))
    }

    /// The lowest place of a segment that waits for others.
    pub(super) fn oldest(&self) -> Option<Position> {
        let chains = self.waiting.values().flatten();
        chains.chain(self.early.values()).map(|part| part.at).min()
    }

    /// Chains that did not end, for a snapshot.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.early.is_empty()
    }
}
