//! Putting the system in order after the holder of the lock died (or panicked): everything derived is computed anew.
//!
//! The truth is in the state words of queue descriptors, user records and message descriptors, and in the places of messages
//! (see `layout.rs`). From them follow, in this order: which members and messages count at all, the lists and counts of every
//! queue, the disk maps, and last the memory that nobody names, which is the pool. The same steps lead to the same result,
//! so a repair that is itself interrupted is simply done again. Deaths of users are not judged here; see `users.rs`.

use super::driver::Inside;
use super::layout::{
    BLOCK_CLASS, CLASSES, MessageState, Place, QueueState, SEGMENTS, Span, UNIT, class_units, descriptor, head, queue,
    user,
};
use super::queue::{FIRST_ORDER, map_bytes};
use super::records::Message;
use crate::shared::sync::Ordering;

impl Inside<'_> {
    /// Computes all that is derived.
    #[cold]
    pub(super) fn repair(&self) {
        self.count(head::REPAIRS);
        // A segment that cannot be mapped holds nothing that could be saved.
        let _ = self.driver.memory.attach(self.get(head::SEGMENTS));
        self.count_blocks();
        self.recount_users();
        self.orphan_members();
        self.relist_messages();
        self.reclaim_memory();
        self.list_free_descriptors();
    }

    fn count_blocks(&self) {
        let blocks = self.driver.geometry.blocks;
        let filled = |block: &u32| self.get(self.driver.geometry.directory(*block)) != 0;
        let used = (0..blocks).rev().find(filled).map_or(0, |last| last + 1);
        let holes = (0..used).filter(|block| !filled(block)).count();
        self.set(head::BLOCKS_USED, used);
        self.set(head::BLOCK_HOLES, holes as u32);
    }

    fn recount_users(&self) {
        let geometry = &self.driver.geometry;
        for slot in 0..geometry.queues {
            let q = self.queue(slot);
            for field in [queue::USERS, queue::READERS, queue::WRITERS] {
                q.set(field, 0);
            }
        }
        let mut used = 0;
        for index in 0..geometry.users {
            let record = self.user(index);
            if record.identity() == 0 {
                continue;
            }
            used = index + 1;
            let slot = record.get(user::QUEUE);
            if slot >= geometry.queues {
                record.set_wide(user::IDENTITY, 0);
                continue;
            }
            let q = self.queue(slot);
            if q.state() == QueueState::Live && q.get(queue::GENERATION) == record.get(user::GENERATION) {
                self.count_user(&q, record.get(user::MODE), 1);
            }
        }
        self.set(head::USERS_USED, used);
    }

    /// Members whose family is gone, and queue files whose last user closed, have nobody else to finish them.
    fn orphan_members(&self) {
        let geometry = &self.driver.geometry;
        for slot in 0..geometry.queues {
            let q = self.queue(slot);
            if q.state() != QueueState::Live {
                continue;
            }
            let first = q.get(queue::HEAD);
            let family = (first < geometry.queues).then(|| self.queue(first));
            let orphan = family.is_none_or(|family| {
                family.get(queue::GENERATION) != q.get(queue::HEAD_GENERATION)
                    || !matches!(family.state(), QueueState::Live | QueueState::Creating)
                    || first == slot && q.get(queue::FAMILY_SIZE) > 0 && self.members_short(slot)
            });
            let unused = first == slot && q.get(queue::USERS) == 0 && q.get(queue::FLAGS) & queue::FLAG_KEEP == 0;
            if orphan || unused {
                self.doom(&q, 0);
            }
        }
    }

    /// Whether a family lacks members: its creator died before all were live, or somebody scribbled.
    fn members_short(&self, slot: u32) -> bool {
        let generation = self.queue(slot).get(queue::GENERATION);
        let key = super::queue::QKey { slot, generation };
        self.members(key, QueueState::Live).map_or(true, |members| {
            members.len() != self.queue(slot).get(queue::FAMILY_SIZE) as usize
        })
    }

    fn relist_messages(&self) {
        let geometry = &self.driver.geometry;
        let mut lists: Vec<Vec<(u64, Message<'_>)>> = vec![Vec::new(); geometry.queues as usize];
        for slot in 0..geometry.queues {
            self.clear_lists(slot);
        }
        for message in self.descriptors() {
            let slot = message.get(descriptor::QUEUE);
            let state = self.settled(&message, slot);
            message.set_state(state);
            if state == MessageState::Free {
                continue;
            }
            let q = self.queue(slot);
            q.add(queue::OCCUPIED, 1);
            for place in [message.place(), Place::from_word(message.get(descriptor::OTHER))] {
                match place {
                    Place::Memory(_) => q.add(queue::IN_MEMORY, 1),
                    Place::Disk(disk) => drop(self.mark_disk_slot(&q, disk, true)),
                    Place::Nowhere => {}
                }
            }
            if !matches!(state, MessageState::Filling(_)) {
                lists[slot as usize].push((message.get_pair(descriptor::ORDER), message));
            }
        }
        for (slot, mut list) in lists.into_iter().enumerate() {
            list.sort_by_key(|(order, _)| *order);
            self.relist(slot as u32, &list);
        }
    }

    fn clear_lists(&self, slot: u32) {
        let q = self.queue(slot);
        for field in [
            queue::AVAILABLE,
            queue::OCCUPIED,
            queue::FIRST,
            queue::LAST,
            queue::CURSOR,
            queue::IN_MEMORY,
            queue::HELD,
        ] {
            q.set(field, 0);
        }
        let slots = q.get(queue::MAX_MESSAGES);
        if q.state() == QueueState::Live
            && let Ok((region, at)) = self.disk_map(&q, slots)
        {
            region.fill(at, map_bytes(slots), 0);
        }
    }

    /// What a message's state is, now that whoever was changing it is dead.
    fn settled(&self, message: &Message<'_>, slot: u32) -> MessageState {
        let state = message.state();
        if state == MessageState::Free || slot >= self.driver.geometry.queues {
            return MessageState::Free;
        }
        let q = self.queue(slot);
        let known = q.state() == QueueState::Live && q.get(queue::GENERATION) == message.get(descriptor::GENERATION);
        if !known || !self.is_sound(message, slot) {
            return MessageState::Free;
        }
        let marked_by_user = state.user().is_none_or(|index| {
            index < self.driver.geometry.users && {
                let record = self.user(index);
                let family = (q.get(queue::HEAD), q.get(queue::HEAD_GENERATION));
                record.identity() != 0 && (record.get(user::QUEUE), record.get(user::GENERATION)) == family
            }
        });
        // Once the place has flipped the move is made, whoever died right behind it.
        let flipped = message.get(descriptor::OTHER) == message.get(descriptor::PLACE);
        match state {
            MessageState::Moving(_) if marked_by_user && !flipped => state,
            MessageState::Moving(_) if flipped => {
                message.set(descriptor::OTHER, 0);
                MessageState::Queued
            }
            _ if marked_by_user => {
                message.set(descriptor::OTHER, 0);
                state
            }
            MessageState::Filling(_) => MessageState::Free,
            _ => {
                message.set(descriptor::OTHER, 0);
                MessageState::Queued
            }
        }
    }

    /// Whether the text is where it can be.
    fn is_sound(&self, message: &Message<'_>, slot: u32) -> bool {
        let size = message.get(descriptor::SIZE);
        let q = self.queue(slot);
        match message.place() {
            Place::Memory(span) => {
                let class = message.get(descriptor::CLASS);
                class < CLASSES
                    && size as usize <= class_units(class) as usize * UNIT
                    && self.driver.memory_at(span, class_units(class)).is_some()
            }
            Place::Disk(slot) => slot < q.get(queue::MAX_MESSAGES) && size <= q.get(queue::RECORD_SIZE),
            Place::Nowhere => matches!(message.state(), MessageState::Filling(_)),
        }
    }

    fn relist(&self, slot: u32, list: &[(u64, Message<'_>)]) {
        let q = self.queue(slot);
        for (index, (_, message)) in list.iter().enumerate() {
            let neighbour = |at: Option<usize>| at.and_then(|at| list.get(at)).map_or(0, |(_, m)| m.number);
            message.set(descriptor::PREVIOUS, neighbour(index.checked_sub(1)));
            message.set(descriptor::NEXT, neighbour(Some(index + 1)));
            match message.state() {
                MessageState::Held(_) => q.add(queue::HELD, 1),
                _ => {
                    q.add(queue::AVAILABLE, 1);
                    if q.get(queue::CURSOR) == 0 {
                        q.set(queue::CURSOR, message.number);
                    }
                }
            }
        }
        q.set(queue::FIRST, list.first().map_or(0, |(_, m)| m.number));
        q.set(queue::LAST, list.last().map_or(0, |(_, m)| m.number));
        let (low, high) = match (list.first(), list.last()) {
            (Some((low, _)), Some((high, _))) => (*low, *high),
            _ => (FIRST_ORDER, FIRST_ORDER - 1),
        };
        if q.get_wide(queue::BACK) <= high {
            q.set_wide(queue::BACK, high.wrapping_add(1));
        }
        if q.get_wide(queue::TOP) >= low {
            q.set_wide(queue::TOP, low.wrapping_sub(1));
        }
    }

    /// Makes the pool anew from all memory that nothing names: neighbours become one piece again. GETSPACE does this, too.
    pub(super) fn reclaim_memory(&self) {
        let mut used = self.memory_in_use();
        used.sort_unstable();
        for class in 0..CLASSES {
            self.set(head::POOL + 4 * class as usize, 0);
        }
        for half in 0..2 {
            self.driver
                .region
                .u64(head::POOL_MASK + 8 * half)
                .store(0, Ordering::Relaxed);
        }
        self.set(head::BUFFERS_IN_POOL, 0);
        for segment in 0..self.get(head::SEGMENTS).min(SEGMENTS) {
            let mut unit = 1;
            for &(span, units) in used.iter().filter(|(span, _)| span.segment == segment) {
                if span.unit > unit {
                    let _ = self.return_span(Span { segment, unit }, span.unit - unit);
                }
                unit = unit.max(span.unit + units);
            }
            self.set(head::FRESH + 4 * segment as usize, unit);
        }
    }

    fn memory_in_use(&self) -> Vec<(Span, u32)> {
        let mut used = Vec::new();
        let mut note = |span: Option<Span>, class: u32| {
            let known =
                span.filter(|span| class < CLASSES && self.driver.memory_at(*span, class_units(class)).is_some());
            used.extend(known.map(|span| (span, class_units(class))));
            known.is_some()
        };
        for block in 0..self.blocks_used() {
            if let Some((region, at)) = self.block_memory(block) {
                let class = region.u32(at + BLOCK_CLASS).load(Ordering::Relaxed);
                note(Span::from_word(self.get(self.driver.geometry.directory(block))), class);
            }
        }
        for slot in 0..self.driver.geometry.queues {
            let q = self.queue(slot);
            if q.state() != QueueState::Free {
                note(Span::from_word(q.get(queue::MAP)), q.get(queue::MAP_CLASS));
            }
        }
        let mut buffers = 0;
        for message in self.descriptors().filter(|m| m.state() != MessageState::Free) {
            let pairs = [
                (descriptor::PLACE, descriptor::CLASS),
                (descriptor::OTHER, descriptor::OTHER_CLASS),
            ];
            for (place, class) in pairs {
                if let Place::Memory(span) = Place::from_word(message.get(place)) {
                    buffers += u32::from(note(Some(span), message.get(class)));
                }
            }
        }
        self.set(head::BUFFERS_IN_USE, buffers);
        used
    }
}
