//! A snapshot: everything that is in the ring at one moment, copied while others go on working.
//!
//! The head is read before and after the copy. What it passed in between may have been overwritten while it was copied, so the
//! snapshot consists of what lies from the second head, one turn back, up to the first.

use super::control::{Checksum, Control, Reference, State};
use super::extend::{Collector, Fed};
use super::layout::Geometry;
use super::memory::Memory;
use super::retrieved::{Item, Part, Position};
use super::testpoint::{Point, reach};
use super::walk::laps;
use crate::Result;
use crate::shared::sync::{Ordering, fence};

/// A copy of the items of a queue, oldest first: those that wait, and those that were released but not overwritten yet.
#[derive(Clone, Debug)]
pub struct Snapshot {
    items: Vec<SnapshotItem>,
}

/// An item of a snapshot, with its bytes.
#[derive(Clone, Debug)]
pub struct SnapshotItem {
    item: Item,
    is_released: bool,
    bytes: Vec<u8>,
}

impl Snapshot {
    pub(super) fn take(memory: &Memory) -> Result<Snapshot> {
        memory.check()?;
        let first_head = memory.checked(memory.head_word().load(Ordering::Acquire), "head")?;
        reach(Point::SnapshotBegins);
        let copy = Copied::new(memory);
        // SYNC: snapshot (with `Writer::claim_segment`)
        fence(Ordering::Acquire);
        let last_head = memory.checked(memory.head_word().load(Ordering::Relaxed), "head")?;
        let turn = turn_of_head(memory, first_head)?;
        Ok(Snapshot {
            items: items(&copy, first_head, last_head, turn),
        })
    }

    /// The items, oldest first.
    pub fn items(&self) -> &[SnapshotItem] {
        &self.items
    }
}

impl SnapshotItem {
    /// What the reader would say about the item.
    pub fn item(&self) -> &Item {
        &self.item
    }

    /// Whether the item was released (all of it or a part) when the snapshot was taken.
    pub fn is_released(&self) -> bool {
        self.is_released
    }

    /// The bytes of the item.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Private copies of the control, link and CRC words and of the pages.
struct Copied {
    geometry: Geometry,
    control: Vec<u32>,
    link: Vec<Option<u32>>,
    crc: Vec<Option<u32>>,
    pages: Vec<u8>,
}

impl Copied {
    fn new(memory: &Memory) -> Self {
        let geometry = memory.geometry;
        let count = geometry.page_count;
        let word = |at: usize| memory.region.u32(at).load(Ordering::Relaxed);
        // In this order: who sees the first message of a run committed sees the words of the others.
        let control = (0..count).map(|page| memory.control(page).0).collect();
        let link = (0..count).map(|page| geometry.link(page).map(word)).collect();
        let crc = (0..count).map(|page| geometry.crc(page).map(word)).collect();
        // SYNC: commit (with `Writer::commit_segment`): the bytes of what was seen committed are copied after it.
        fence(Ordering::Acquire);
        let mut pages = Vec::new();
        memory
            .region
            .append_to(geometry.page(0), (count as usize) << geometry.shift, &mut pages);
        Copied {
            geometry,
            control,
            link,
            crc,
            pages,
        }
    }

    fn bytes(&self, part: &Part) -> &[u8] {
        let start = (part.at.index as usize) << self.geometry.shift;
        &self.pages[start..start + part.used as usize]
    }

    fn part(&self, at: Position, control: Control) -> Part {
        let page = at.index as usize;
        let link = self.link[page];
        let mut part = Part {
            at,
            control,
            link,
            used: control.size(),
            checksum_valid: true,
        };
        if let Some(stored) = self.crc[page] {
            let identifier = at.reference().identifier();
            let mut sum = Checksum::new(identifier, control.size(), link);
            sum.update(self.bytes(&part));
            part.checksum_valid = sum.finish() == stored;
        }
        if !control.is_committed() {
            part.link = None;
        }
        part
    }
}

/// Added to turns while walking, so that there is one before the first; a multiple of what a sequence counts.
const BEFORE_THE_FIRST: u64 = 0x1000;

/// The full number of turns of a head.
fn turn_of_head(memory: &Memory, head: Reference) -> Result<u64> {
    let tail = memory.checked(memory.tail_word().load(Ordering::Relaxed), "tail")?;
    let ahead = head.sequence().wrapping_sub(tail.sequence()) & 0xFFF;
    let tail_turn = laps(memory, tail);
    // The tail may have passed the head that was read before it.
    Ok(if ahead < 0x800 {
        tail_turn + u64::from(ahead)
    } else {
        tail_turn.saturating_sub(u64::from(0x1000 - ahead))
    })
}

fn items(copy: &Copied, first_head: Reference, last_head: Reference, turn: u64) -> Vec<SnapshotItem> {
    let turns = last_head.sequence().wrapping_sub(first_head.sequence()) & 0xFFF;
    let less_than_a_turn = match turns {
        0 => last_head.index() >= first_head.index(),
        1 => last_head.index() < first_head.index(),
        _ => false,
    };
    if !less_than_a_turn {
        return Vec::new();
    }
    let until = Position {
        turn: turn + BEFORE_THE_FIRST,
        index: first_head.index(),
    };
    let mut at = Position {
        turn: until.turn + u64::from(turns) - 1,
        index: last_head.index(),
    };
    let mut chains = Collector::default();
    let mut found = Vec::new();
    while at < until {
        let pages = match item_at(copy, at, until) {
            Some((control, pages)) => {
                collect(copy, &mut chains, &mut found, copy.part(at, control));
                pages
            }
            None => waste_at(copy, at).unwrap_or(1),
        };
        at = at.advance(pages, copy.geometry.page_count);
    }
    found.sort_by_key(|item: &Item| item.first.at);
    found.into_iter().map(|item| finish(copy, item)).collect()
}

/// The control word and pages of an item that starts here and ends before the head.
fn item_at(copy: &Copied, at: Position, until: Position) -> Option<(Control, u32)> {
    let control = Control(copy.control[at.index as usize]);
    let is_item = !matches!(control.state(), State::Unused | State::Waste | State::FreedWaste);
    let pages = copy.geometry.pages(control.size());
    let end = if until.turn == at.turn {
        until.index
    } else {
        copy.geometry.page_count
    };
    let fits = pages > 0 && pages <= end - at.index;
    (is_item && fits && control.is_of_turn(at.reference())).then_some((control, pages))
}

/// The pages of waste that starts here: only a run that ends the ring exactly is one.
fn waste_at(copy: &Copied, at: Position) -> Option<u32> {
    let control = Control(copy.control[at.index as usize]);
    let rest = copy.geometry.page_count - at.index;
    let is_waste = matches!(control.state(), State::Waste | State::FreedWaste);
    let exact = control.size() == rest.wrapping_shl(copy.geometry.shift) && control.is_of_turn(at.reference());
    (is_waste && exact).then_some(rest)
}

fn collect(copy: &Copied, chains: &mut Collector, found: &mut Vec<Item>, part: Part) {
    if !copy.geometry.options.extendable {
        return found.push(Item::single(part, &copy.geometry));
    }
    match chains.feed(part, &copy.geometry, None) {
        Fed::Item(item) => found.push(item),
        Fed::Kept => {}
        // A claim in the making is shown; the rest of an item whose beginning was overwritten is not.
        Fed::Orphan(part) if !part.control.is_committed() => {
            found.push(Item::single(part, &copy.geometry));
        }
        Fed::Orphan(_) => {}
    }
}

fn finish(copy: &Copied, mut item: Item) -> SnapshotItem {
    let parts = std::iter::once(&mut item.first).chain(&mut item.rest);
    // Without a trailer the sequence may have started over: what came before the first turn then was the last one.
    parts.for_each(|part| part.at.turn = part.at.turn.checked_sub(BEFORE_THE_FIRST).unwrap_or(part.at.turn));
    let is_released = item.parts().any(|part| part.control.is_released());
    let bytes = item.parts().flat_map(|part| copy.bytes(part)).copied().collect();
    SnapshotItem {
        item,
        is_released,
        bytes,
    }
}
