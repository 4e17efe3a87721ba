//! Phase 2: which lease ends first, a binary heap in the region.
//!
//! Each node holds a deadline and a slot, and the slot's link says where its node is, so that a finished message leaves the
//! heap in logarithmic time wherever it stands. Equal deadlines are ordered by id. All of it is derived from the state words
//! and used only by the holder of the lock.

use super::layout::{Slot, header};
use super::space::{Space, damaged};
use super::state::State;
use crate::Result;
use crate::shared::sync::Ordering::Relaxed;

/// The time table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timetable<'a>(pub(super) &'a Space);

#[derive(Clone, Copy, Debug)]
struct Node {
    deadline: u64,
    number: u32,
}

impl Timetable<'_> {
    /// Leases in the table, checked against what it can hold.
    #[inline(always)]
    pub(super) fn len(&self) -> Result<u32> {
        let len = self.0.narrow(header::LEASED).load(Relaxed);
        if len > self.0.geometry.max_messages {
            return Err(damaged("number of leases", len.into()));
        }
        Ok(len)
    }

    /// The lease that ends first.
    #[inline(always)]
    pub(super) fn first(&self) -> Result<Option<(u64, Slot)>> {
        if self.len()? == 0 {
            return Ok(None);
        }
        let node = self.node(0);
        Ok(Some((node.deadline, self.0.slot(node.number)?)))
    }

    /// Makes sure that one more lease can be added, so that adding it cannot fail.
    #[inline(always)]
    pub(super) fn make_room(&self) -> Result<()> {
        let len = self.len()?;
        let geometry = &self.0.geometry;
        if len >= geometry.max_messages {
            return Err(damaged("number of leases", len.into()));
        }
        let node = |node| geometry.node(node as u32);
        self.0
            .allocate_up_to(header::HEAP_ALLOCATED, len.into(), geometry.max_messages.into(), node)
    }

    /// Adds a lease; [`Timetable::make_room`] comes before.
    #[inline(always)]
    pub(super) fn push(&self, deadline: u64, slot: Slot) -> Result<()> {
        let len = self.len()?.min(self.0.geometry.max_messages - 1);
        let node = Node {
            deadline,
            number: slot.number(),
        };
        self.put(len, node, slot);
        self.0.narrow(header::LEASED).store(len + 1, Relaxed);
        if len > 0 { self.rise(len, node) } else { Ok(()) }
    }

    /// Takes a lease out, wherever it stands.
    #[inline(always)]
    pub(super) fn remove(&self, slot: Slot) -> Result<()> {
        let len = self.len()?;
        let at = self.place_of(slot, len)?;
        self.0.narrow(header::LEASED).store(len - 1, Relaxed);
        if at < len - 1 {
            let last = self.node(len - 1);
            self.set(at, last)?;
            self.settle(at, last, len - 1)?;
        }
        Ok(())
    }

    /// Gives a lease another deadline.
    pub(super) fn change(&self, slot: Slot, deadline: u64) -> Result<()> {
        let len = self.len()?;
        let at = self.place_of(slot, len)?;
        let node = Node {
            deadline,
            number: slot.number(),
        };
        self.set(at, node)?;
        self.settle(at, node, len)
    }

    /// Fills the table anew with leases that are sorted by deadline and id: a sorted array is a heap.
    pub(super) fn rebuild(&self, sorted: &[(u64, u64, Slot)]) -> Result<()> {
        for (at, (deadline, _, slot)) in sorted.iter().enumerate() {
            self.0.narrow(header::LEASED).store(at as u32, Relaxed);
            self.make_room()?;
            self.set(
                at as u32,
                Node {
                    deadline: *deadline,
                    number: slot.number(),
                },
            )?;
        }
        self.0.narrow(header::LEASED).store(sorted.len() as u32, Relaxed);
        Ok(())
    }

    /// Whether it holds so many leases, each in its place and with its slot's deadline.
    pub(super) fn is_sound(&self, leases: u64) -> bool {
        let Ok(len) = self.len() else { return false };
        let in_place = |at: u32| {
            let node = self.node(at);
            let above = self.node(at.saturating_sub(1) / 2);
            let Ok(slot) = self.0.slot(node.number) else {
                return false;
            };
            let leased = matches!(self.0.load_state(slot), Ok(State::Leased(_)));
            leased
                && self.0.link(slot).load(Relaxed) == at
                && self.0.deadline(slot).load(Relaxed) == node.deadline
                && (at == 0 || self.before(above, node).unwrap_or(false))
        };
        u64::from(len) == leases && (0..len).all(in_place)
    }

    /// Every leased slot, in no order.
    pub(super) fn slots(&self) -> Result<Vec<Slot>> {
        (0..self.len()?).map(|at| self.0.slot(self.node(at).number)).collect()
    }

    /// Where the slot's node is; a link that leads elsewhere is damage.
    #[inline(always)]
    fn place_of(&self, slot: Slot, len: u32) -> Result<u32> {
        let at = self.0.link(slot).load(Relaxed);
        if at < len && self.node(at).number == slot.number() {
            return Ok(at);
        }
        Err(damaged("place in the time table", at.into()))
    }

    fn settle(&self, at: u32, node: Node, len: u32) -> Result<()> {
        if at > 0 && self.before(node, self.node((at - 1) / 2))? {
            return self.rise(at, node);
        }
        self.sink(at, node, len)
    }

    #[inline]
    fn rise(&self, mut at: u32, node: Node) -> Result<()> {
        let from = at;
        while at > 0 {
            let parent = (at - 1) / 2;
            let above = self.node(parent);
            if !self.before(node, above)? {
                break;
            }
            self.set(at, above)?;
            at = parent;
        }
        if at != from { self.set(at, node) } else { Ok(()) }
    }

    fn sink(&self, mut at: u32, node: Node, len: u32) -> Result<()> {
        let from = at;
        while at * 2 + 1 < len {
            let mut child = at * 2 + 1;
            let mut below = self.node(child);
            if child + 1 < len {
                let right = self.node(child + 1);
                if self.before(right, below)? {
                    (child, below) = (child + 1, right);
                }
            }
            if !self.before(below, node)? {
                break;
            }
            self.set(at, below)?;
            at = child;
        }
        if at != from { self.set(at, node) } else { Ok(()) }
    }

    #[inline]
    fn before(&self, a: Node, b: Node) -> Result<bool> {
        if a.deadline != b.deadline {
            return Ok(a.deadline < b.deadline);
        }
        let id = |node: Node| Ok(self.0.id(self.0.slot(node.number)?).load(Relaxed));
        Ok(id(a)? < id(b)?)
    }

    #[inline]
    fn node(&self, at: u32) -> Node {
        let offset = self.0.geometry.node(at);
        Node {
            deadline: self.0.wide(offset).load(Relaxed),
            number: self.0.narrow(offset + 8).load(Relaxed),
        }
    }

    #[inline]
    fn set(&self, at: u32, node: Node) -> Result<()> {
        let slot = self.0.slot(node.number)?;
        self.put(at, node, slot);
        Ok(())
    }

    /// As `set`, for a slot that is in hand already.
    #[inline]
    fn put(&self, at: u32, node: Node, slot: Slot) {
        let offset = self.0.geometry.node(at);
        self.0.wide(offset).store(node.deadline, Relaxed);
        self.0.narrow(offset + 8).store(node.number, Relaxed);
        self.0.link(slot).store(at, Relaxed);
    }
}
