//! How large a queue system is, and where its tables are.

use super::layout::{BLOCK, BLOCK_UNITS, UNIT, head, queue, user};
use crate::shared::roster::Table;
use crate::{Error, Result};

/// The sizes that the creator of a system chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SystemParameters {
    /// Queues at a time; each member of a family is one.
    pub queues: u32,
    /// Open queue files at a time, of all processes.
    pub users: u32,
    /// Processes at a time.
    pub participants: u32,
    /// Messages at a time in all queues.
    pub messages: u32,
    /// Bytes of S-memory to begin with.
    pub memory: u64,
    /// Bytes of S-memory that are never exceeded.
    pub memory_limit: u64,
}

impl Default for SystemParameters {
    fn default() -> Self {
        SystemParameters {
            queues: 1024,
            users: 4096,
            participants: 4096,
            messages: 1 << 20,
            memory: 1 << 20,
            memory_limit: 1 << 30,
        }
    }
}

/// Where everything is in one system file; computed once from checked numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub(crate) queues: u32,
    pub(crate) users: u32,
    pub(crate) roster: Table,
    pub(crate) blocks: u32,
    /// Units of the first segment, the never used unit 0 included.
    pub(crate) units: u32,
    pub(crate) memory_limit: u64,
    users_at: usize,
    queues_at: usize,
    directory_at: usize,
    memory_at: usize,
}

impl Geometry {
    /// From what the creator asked for.
    pub(crate) fn new(parameters: &SystemParameters) -> Result<Self> {
        let p = parameters;
        let within = |what: &str, value: u64, low: u64, high: u64| {
            if (low..=high).contains(&value) {
                return Ok(());
            }
            Err(Error::Invalid(format!("{what} must be {low} to {high}, not {value}")))
        };
        within("queues", p.queues.into(), 1, 1 << 16)?;
        within("users", p.users.into(), 1, 1 << 20)?;
        within("participants", p.participants.into(), 2, 4096)?;
        within("messages", p.messages.into(), 1, 1 << 24)?;
        within("memory", p.memory, 4096, 1 << 29)?;
        within("memory_limit", p.memory_limit, p.memory, 1 << 36)?;
        let units = (p.memory as usize / UNIT) as u32;
        let blocks = p.messages.div_ceil(BLOCK);
        Geometry::from_numbers(p.queues, p.users, p.participants, blocks, units, p.memory_limit)
    }

    /// From the numbers in the head of a file; checks their ranges.
    pub(crate) fn from_numbers(
        q: u32,
        users: u32,
        participants: u32,
        blocks: u32,
        units: u32,
        limit: u64,
    ) -> Result<Self> {
        let sane = (1..=1 << 16).contains(&q)
            && (1..=1 << 20).contains(&users)
            && (2..=4096).contains(&participants)
            && (1..=1 << 21).contains(&blocks)
            && (BLOCK_UNITS + 2..1 << 24).contains(&units);
        if !sane {
            return Err(Error::Corrupt(format!(
                "impossible sizes in the head of the queue system: {q} queues, {users} users, {participants} participants, \
                 {blocks} blocks, {units} units"
            )));
        }
        let roster = Table {
            offset: head::END,
            slots: participants,
        };
        let users_at = (head::END + roster.length()).next_multiple_of(64);
        let queues_at = (users_at + users as usize * user::LENGTH).next_multiple_of(64);
        let directory_at = queues_at + q as usize * queue::LENGTH;
        let memory_at = (directory_at + blocks as usize * 4).next_multiple_of(64);
        Ok(Geometry {
            queues: q,
            users,
            roster,
            blocks,
            units,
            memory_limit: limit,
            users_at,
            queues_at,
            directory_at,
            memory_at,
        })
    }

    /// Bytes of the system file.
    pub(crate) fn length(&self) -> usize {
        self.memory_at + self.units as usize * UNIT
    }

    pub(crate) fn user(&self, index: u32) -> usize {
        self.users_at + index as usize * user::LENGTH
    }

    pub(crate) fn queue(&self, slot: u32) -> usize {
        self.queues_at + slot as usize * queue::LENGTH
    }

    pub(crate) fn directory(&self, block: u32) -> usize {
        self.directory_at + block as usize * 4
    }

    /// Of a unit of the first segment.
    pub(crate) fn unit(&self, unit: u32) -> usize {
        self.memory_at + unit as usize * UNIT
    }

    /// Offsets of the 64-bit and the 32-bit words, for the model that loom explores. The lists of large buffers and the
    /// further segments are left out: no model has any.
    #[cfg(loom)]
    pub(crate) fn words(&self) -> (Vec<usize>, Vec<usize>) {
        let mut wide = vec![
            head::MAGIC,
            head::MEMORY_LIMIT,
            head::SYSTEM,
            head::LOCK,
            head::STAMP,
            head::POOL_MASK,
            head::POOL_MASK + 8,
        ];
        wide.extend((head::SPILLS..=head::DESTROYED).step_by(8));
        wide.extend((0..self.roster.slots as usize).map(|slot| self.roster.offset + 8 + 8 * slot));
        wide.extend((0..self.users).map(|index| self.user(index)));
        for slot in 0..self.queues {
            let at = self.queue(slot);
            wide.push(at + queue::OWNER);
            wide.extend((queue::BACK..=queue::READ).step_by(8).map(|field| at + field));
            wide.extend((queue::SPILLS..=queue::GIVEN_BACK).step_by(8).map(|field| at + field));
        }
        let covered: std::collections::HashSet<usize> = wide.iter().flat_map(|&at| [at, at + 4]).collect();
        let unused = |at: &usize| (head::FRESH + 4..head::END).contains(at);
        let narrow = (0..self.length()).step_by(4);
        let narrow = narrow.filter(|at| !covered.contains(at) && !unused(at)).collect();
        (wide, narrow)
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::{CLASSES, SEGMENTS};
    use super::*;

    #[test]
    fn tables_do_not_overlap() {
        let g = Geometry::new(&SystemParameters::default()).unwrap();
        assert!(g.user(0) >= g.roster.offset + g.roster.length());
        assert!(g.queue(0) >= g.user(g.users));
        assert!(g.directory(0) >= g.queue(g.queues));
        assert!(g.unit(0) >= g.directory(g.blocks));
        assert_eq!(g.unit(0) % 64, 0);
        assert!(head::FRESH >= head::POOL + 4 * CLASSES as usize);
        assert!(head::END >= head::FRESH + 4 * SEGMENTS as usize);
    }
}
