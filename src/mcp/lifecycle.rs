//! The life of a queue: found by name or created with the opener's parameters, destroyed with its last user (section 3.0).
//!
//! ```text
//! free -> creating -> live -> dying -> free
//! ```
//!
//! Making and removing the queue disk is I/O, so a queue is *creating* and *dying* while its owner is outside. Nobody can open
//! it then: openers wait for a living creator and clean up after a dead one. Of a family the first member decides: it becomes
//! live last, and with it all others.

use super::driver::{Attempt, Inside};
use super::layout::{MessageState, QueueState, class_units, descriptor, head, queue, units_for};
use super::name::Name;
use super::parameters::FileParameters;
use super::pool::Buffer;
use super::queue::{FIRST_ORDER, QKey, map_bytes};
use super::records::Queue;
use crate::{Error, Result};

/// What an opener finds.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// A queue to link to.
    Live(QKey),
    /// Somebody is making it.
    Creating,
    /// No queue has the name.
    Nothing,
}

/// What binds with the creation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Birth<'a> {
    pub(super) parameters: &'a FileParameters,
    pub(super) name: &'a Name,
    pub(super) keep: bool,
    /// Directory of the queue disk; empty is that of the system.
    pub(super) disk: &'a str,
    /// The creator.
    pub(super) owner: u64,
}

impl Inside<'_> {
    /// Compares the name with those of all queues: the single queue of this name, or the family of its MFID.
    pub(super) fn find(&self, name: &Name, family: bool) -> Found {
        let wanted = if family { name.member(1) } else { name.single() };
        let mut found = Found::Nothing;
        for slot in 0..self.driver.geometry.queues {
            let q = self.queue(slot);
            let state = q.state();
            if !matches!(state, QueueState::Live | QueueState::Creating) || self.name_of(&q) != wanted {
                continue;
            }
            if state == QueueState::Live {
                let generation = q.get(queue::GENERATION);
                return Found::Live(QKey { slot, generation });
            }
            found = Found::Creating;
        }
        found
    }

    pub(super) fn name_of(&self, q: &Queue<'_>) -> [u8; queue::NAME_LENGTH] {
        let mut name = [0; queue::NAME_LENGTH];
        q.region.copy_out(q.at + queue::NAME, &mut name);
        name
    }

    /// Takes slots for a queue file and everything in memory that it needs.
    pub(super) fn conceive(&self, birth: &Birth<'_>) -> Attempt<QKey> {
        let parameters = birth.parameters;
        let count = parameters.family_size.max(1);
        let free = |slot: &u32| self.queue(*slot).state() == QueueState::Free;
        let slots: Vec<u32> = (0..self.driver.geometry.queues)
            .filter(free)
            .take(count as usize)
            .collect();
        if slots.len() < count as usize {
            return Err(Error::Full(format!(
                "{count} more queues do not fit: the queue system can hold {}",
                self.driver.geometry.queues
            ))
            .into());
        }
        let maps = self.take_maps(count, parameters.max_messages)?;
        let head_generation = self.queue(slots[0]).get(queue::GENERATION).wrapping_add(1);
        // Backwards: the first member is the one that others look for.
        for (member, (&slot, map)) in slots.iter().zip(maps).enumerate().rev() {
            let q = self.queue(slot);
            let family = parameters.family_size > 0;
            let number = if family { member as u32 + 1 } else { 0 };
            q.region.fill(q.at + queue::HEAD, queue::LENGTH - queue::HEAD, 0);
            q.set(queue::GENERATION, q.get(queue::GENERATION).wrapping_add(1));
            q.set(queue::HEAD, slots[0]);
            q.set(queue::HEAD_GENERATION, head_generation);
            q.set(queue::MEMBER, number);
            q.set(queue::NEXT_MEMBER, slots.get(member + 1).map_or(0, |next| next + 1));
            q.set(queue::FAMILY_SIZE, parameters.family_size);
            q.set(queue::MAX_MESSAGES, parameters.max_messages);
            q.set(queue::BUFFERS, parameters.buffers);
            q.set(queue::RECORD_SIZE, parameters.record_size);
            q.set(queue::FLAGS, if birth.keep { queue::FLAG_KEEP } else { 0 });
            q.set(queue::MAP, map.span.word());
            q.set(queue::MAP_CLASS, map.class);
            q.set(queue::DISK_LENGTH, birth.disk.len() as u32);
            q.region.copy_in(q.at + queue::DISK, birth.disk.as_bytes());
            let name = if family {
                birth.name.member(number)
            } else {
                birth.name.single()
            };
            q.region.copy_in(q.at + queue::NAME, &name);
            q.set_wide(queue::BACK, FIRST_ORDER);
            q.set_wide(queue::TOP, FIRST_ORDER - 1);
            q.set_wide(queue::OWNER, birth.owner);
            q.set_state(QueueState::Creating);
        }
        Ok(QKey {
            slot: slots[0],
            generation: head_generation,
        })
    }

    /// Zeroed disk maps for all members, or none.
    fn take_maps(&self, count: u32, max_messages: u32) -> Attempt<Vec<Buffer>> {
        let mut maps = Vec::with_capacity(count as usize);
        for _ in 0..count {
            match self.take_memory(units_for(map_bytes(max_messages))) {
                Ok(map) => {
                    let (region, at) = self.memory_of(map)?;
                    region.fill(at, map_bytes(max_messages), 0);
                    maps.push(map);
                }
                Err(stop) => {
                    for map in maps {
                        self.return_memory(map)?;
                    }
                    return Err(stop);
                }
            }
        }
        Ok(maps)
    }

    /// The queue disk is there: the queue file can be opened.
    pub(super) fn bear(&self, key: QKey) -> Result<()> {
        let members = self.members(key, QueueState::Creating)?;
        for slot in members.into_iter().rev() {
            let q = self.queue(slot);
            q.set_state(QueueState::Live);
            q.set_wide(queue::OWNER, 0);
        }
        self.count(head::CREATED);
        Ok(())
    }

    /// The slots of all members, in order; one for a single queue.
    pub(super) fn members(&self, key: QKey, state: QueueState) -> Result<Vec<u32>> {
        let mut slots = Vec::new();
        let mut next = Some(key.slot);
        while let Some(slot) = next {
            let q = self.queue(slot);
            let belongs = q.state() == state
                && q.get(queue::HEAD) == key.slot
                && q.get(queue::HEAD_GENERATION) == key.generation
                && slots.len() < self.driver.geometry.queues as usize;
            if !belongs {
                return Err(Error::Corrupt(format!(
                    "the family in slot {} has a wrong member",
                    key.slot
                )));
            }
            slots.push(slot);
            next = q.get(queue::NEXT_MEMBER).checked_sub(1);
            if next.is_some_and(|slot| slot >= self.driver.geometry.queues) {
                return Err(Error::Corrupt(format!(
                    "the family in slot {} has a wrong link",
                    key.slot
                )));
            }
        }
        Ok(slots)
    }

    /// The last user is gone: nobody can open it from now on.
    pub(super) fn doom(&self, q: &Queue<'_>, owner: u64) {
        q.set_wide(queue::OWNER, owner);
        q.set_state(QueueState::Dying);
    }

    /// Takes over what a dead creator or destroyer had in hand. Of a family only the first member is a task of its own.
    pub(super) fn adopt(&self, slot: u32, owner: u64, me: u64) -> Option<QKey> {
        let q = self.queue(slot);
        let waits = matches!(q.state(), QueueState::Creating | QueueState::Dying) && q.get_wide(queue::OWNER) == owner;
        if !waits {
            return None;
        }
        self.doom(&q, me);
        Some(QKey {
            slot,
            generation: q.get(queue::GENERATION),
        })
    }

    /// Whether this dying queue owns the queue disk of its file, rather than sharing that of its family.
    pub(super) fn owns_disk(&self, key: QKey) -> bool {
        self.queue(key.slot).get(queue::HEAD) == key.slot
    }

    /// Frees up to `limit` messages of a dying queue; true when none is left.
    pub(super) fn drain_dying(&self, key: QKey, limit: u32) -> Result<bool> {
        let q = self.queue(key.slot);
        if q.state() != QueueState::Dying || q.get(queue::GENERATION) != key.generation {
            return Ok(true);
        }
        for _ in 0..limit {
            let first = q.get(queue::FIRST);
            if first == 0 {
                return Ok(true);
            }
            let message = self.message(first)?;
            if message.get(descriptor::QUEUE) != key.slot || message.state() == MessageState::Free {
                return Ok(true);
            }
            self.remove(&q, &message)?;
        }
        Ok(false)
    }

    /// The queue disk is gone: the slots of the file are free. Gives the members that are now tasks of their own.
    pub(super) fn bury(&self, key: QKey, me: u64) -> Result<Vec<QKey>> {
        let q = self.queue(key.slot);
        if q.state() != QueueState::Dying || q.get(queue::GENERATION) != key.generation {
            return Ok(Vec::new());
        }
        let mut orphans = Vec::new();
        if q.get(queue::HEAD) == key.slot {
            for slot in 0..self.driver.geometry.queues {
                let member = self.queue(slot);
                let belongs = slot != key.slot
                    && member.state() != QueueState::Free
                    && member.get(queue::HEAD) == key.slot
                    && member.get(queue::HEAD_GENERATION) == key.generation;
                if belongs {
                    self.doom(&member, me);
                    let generation = member.get(queue::GENERATION);
                    orphans.push(QKey { slot, generation });
                }
            }
            self.count(head::DESTROYED);
        }
        let class = q.get(queue::MAP_CLASS);
        let map = super::layout::Span::from_word(q.get(queue::MAP));
        q.set_state(QueueState::Free);
        if let Some(span) = map.filter(|_| class < super::layout::CLASSES && class_units(class) > 0) {
            self.return_memory(Buffer { span, class })?;
        }
        Ok(orphans)
    }

    /// Where the creator put the queue disk; empty is the directory of the system.
    pub(super) fn disk_directory(&self, slot: u32) -> Vec<u8> {
        let q = self.queue(slot);
        let mut directory = vec![0; (q.get(queue::DISK_LENGTH) as usize).min(queue::DISK_LIMIT)];
        q.region.copy_out(q.at + queue::DISK, &mut directory);
        directory
    }

    /// Makes the queue file disappear with its last user, however it was created.
    pub(super) fn forget(&self, key: QKey) -> Result<()> {
        let q = self.live(key)?;
        q.set(queue::FLAGS, q.get(queue::FLAGS) & !queue::FLAG_KEEP);
        Ok(())
    }
}
