//! The books of a system, checked: every message in exactly one place, every list, count, map and pool as the truth says.
//!
//! Nothing depends on this; it is for tests and for people who want to know whether memory was scribbled on.

use std::collections::HashMap;

use super::driver::Inside;
use super::layout::{
    BLOCK, BLOCK_CLASS, CLASSES, MessageState, Place, QueueState, Span, class_units, descriptor, head, queue, user,
};
use super::records::Message;
use super::system::System;
use crate::shared::signal::Wait;
use crate::shared::sync::Ordering;
use crate::{Error, Result};

/// What an audit counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// Queues that are live.
    pub queues: u32,
    /// Messages in their lists.
    pub messages: u32,
    /// Of those, with their text in a buffer.
    pub in_memory: u32,
    /// Of those, with their text on queue disk.
    pub on_disk: u32,
    /// Of those, in somebody's hands (or moving).
    pub in_hands: u32,
    /// Messages that are being filled.
    pub filling: u32,
    /// User records.
    pub users: u32,
}

impl System {
    /// Checks that all parts of the system agree; [`Error::Corrupt`] says which do not.
    pub fn audit(&self) -> Result<Audit> {
        self.driver
            .inside(Wait::Forever, |inside| Ok(Auditor::new(*inside).run()?))
    }
}

struct Auditor<'a> {
    inside: Inside<'a>,
    found: Audit,
    /// Who uses a unit of memory.
    memory: HashMap<(u32, u32), String>,
    /// Which message has a slot of which queue's disk.
    disk: HashMap<(u32, u32), u32>,
    listed: HashMap<u32, u32>,
}

fn wrong(what: impl Into<String>) -> Error {
    Error::Corrupt(what.into())
}

fn agree(what: &str, derived: u32, truth: u32) -> Result<()> {
    if derived == truth {
        return Ok(());
    }
    Err(wrong(format!("{what}: the books say {derived}, the truth is {truth}")))
}

impl<'a> Auditor<'a> {
    fn new(inside: Inside<'a>) -> Self {
        Auditor {
            inside,
            found: Audit::default(),
            memory: HashMap::new(),
            disk: HashMap::new(),
            listed: HashMap::new(),
        }
    }

    fn run(mut self) -> Result<Audit> {
        let geometry = self.inside.driver.geometry;
        for block in 0..self.inside.blocks_used() {
            if let Some((region, at)) = self.inside.block_memory(block) {
                let class = region.u32(at + BLOCK_CLASS).load(Ordering::Relaxed);
                self.claim(
                    self.inside.get(geometry.directory(block)),
                    class,
                    format!("block {block}"),
                )?;
            }
        }
        for slot in 0..geometry.queues {
            let q = self.inside.queue(slot);
            if q.state() != QueueState::Free {
                self.claim(
                    q.get(queue::MAP),
                    q.get(queue::MAP_CLASS),
                    format!("map of queue {slot}"),
                )?;
            }
            if q.state() == QueueState::Live {
                self.found.queues += 1;
                self.walk(slot)?;
            }
        }
        self.every_message_is_listed()?;
        self.maps_agree()?;
        self.pool_is_apart()?;
        self.users_agree()?;
        Ok(self.found)
    }

    /// One list: its links both ways, its order, its counts.
    fn walk(&mut self, slot: u32) -> Result<()> {
        let q = self.inside.queue(slot);
        let (mut previous, mut number, mut order) = (0, q.get(queue::FIRST), None);
        let (mut available, mut held, mut in_memory) = (0, 0, 0);
        while number != 0 {
            let message = self.inside.message(number)?;
            if self.listed.insert(number, slot).is_some() {
                return Err(wrong(format!("message {number} is in a list twice")));
            }
            agree("previous link", message.get(descriptor::PREVIOUS), previous)?;
            agree("queue of a message", message.get(descriptor::QUEUE), slot)?;
            let here = message.get_pair(descriptor::ORDER);
            if order.is_some_and(|before| before >= here) {
                return Err(wrong(format!("message {number} of queue {slot} is out of order")));
            }
            match message.state() {
                MessageState::Held(_) => held += 1,
                MessageState::Queued => available += 1,
                MessageState::Moving(_) => {
                    available += 1;
                    self.found.in_hands += 1;
                }
                other => return Err(wrong(format!("message {number} is listed and {other:?}"))),
            }
            in_memory += self.settle(&message)?;
            (previous, number, order) = (number, message.get(descriptor::NEXT), Some(here));
            self.found.messages += 1;
        }
        self.found.in_hands += held;
        agree("last message", q.get(queue::LAST), previous)?;
        agree("available messages", q.get(queue::AVAILABLE), available)?;
        agree("held messages", q.get(queue::HELD), held)?;
        let mut filling = 0;
        for message in self.inside.descriptors() {
            let ours = message.get(descriptor::QUEUE) == slot && matches!(message.state(), MessageState::Filling(_));
            if ours && message.get(descriptor::GENERATION) == q.get(queue::GENERATION) {
                filling += 1;
                in_memory += self.settle(&message)?;
                self.listed.insert(message.number, slot);
            }
        }
        self.found.filling += filling;
        agree("occupied places", q.get(queue::OCCUPIED), available + held + filling)?;
        agree("messages in memory", q.get(queue::IN_MEMORY), in_memory)
    }

    /// Claims the place of a message, and the other end of its move; how many buffers it has.
    fn settle(&mut self, message: &Message<'_>) -> Result<u32> {
        let slot = message.get(descriptor::QUEUE);
        let mut buffers = 0;
        let moving = matches!(message.state(), MessageState::Moving(_));
        let other = if moving { message.get(descriptor::OTHER) } else { 0 };
        let ends = [
            (message.get(descriptor::PLACE), message.get(descriptor::CLASS), true),
            (other, message.get(descriptor::OTHER_CLASS), false),
        ];
        for (word, class, text) in ends {
            match Place::from_word(word) {
                Place::Memory(_) => {
                    self.claim(word, class, format!("message {}", message.number))?;
                    buffers += 1;
                    self.found.in_memory += u32::from(text);
                }
                Place::Disk(place) => {
                    if let Some(first) = self.disk.insert((slot, place), message.number) {
                        let second = message.number;
                        return Err(wrong(format!(
                            "messages {first} and {second} share place {place} on disk"
                        )));
                    }
                    self.found.on_disk += u32::from(text);
                }
                Place::Nowhere if text && !matches!(message.state(), MessageState::Filling(_)) => {
                    return Err(wrong(format!("message {} is nowhere", message.number)));
                }
                Place::Nowhere => {}
            }
        }
        Ok(buffers)
    }

    fn claim(&mut self, word: u32, class: u32, who: String) -> Result<()> {
        let span = Span::from_word(word).ok_or_else(|| wrong(format!("{who} has no memory")))?;
        if class >= CLASSES || self.inside.driver.memory_at(span, class_units(class)).is_none() {
            return Err(wrong(format!("{who} has memory outside of its segment")));
        }
        for unit in span.unit..span.unit + class_units(class) {
            if let Some(first) = self.memory.insert((span.segment, unit), who.clone()) {
                return Err(wrong(format!("{first} and {who} share memory")));
            }
        }
        Ok(())
    }

    fn every_message_is_listed(&self) -> Result<()> {
        let mut used = 0;
        for message in self.inside.descriptors().filter(|m| m.state() != MessageState::Free) {
            used += 1;
            if !self.listed.contains_key(&message.number) {
                let state = message.state();
                return Err(wrong(format!("message {} is {state:?} and in no list", message.number)));
            }
        }
        agree("descriptors in use", self.inside.get(head::DESCRIPTORS_IN_USE), used)?;
        let mut free = 0;
        let mut number = self.inside.get(head::FREE_DESCRIPTOR);
        while number != 0 && free <= self.inside.blocks_used() * BLOCK {
            let message = self.inside.message(number)?;
            if message.state() != MessageState::Free {
                return Err(wrong(format!("message {number} is free and in use")));
            }
            free += 1;
            number = message.get(descriptor::NEXT);
        }
        agree("descriptors", used + free, self.inside.blocks() * BLOCK)
    }

    fn maps_agree(&self) -> Result<()> {
        for slot in 0..self.inside.driver.geometry.queues {
            let q = self.inside.queue(slot);
            if q.state() != QueueState::Live {
                continue;
            }
            let slots = q.get(queue::MAX_MESSAGES);
            let (region, at) = self.inside.disk_map(&q, slots)?;
            for place in 0..slots {
                let word = region.u32(at + 4 * (place / 32) as usize).load(Ordering::Relaxed);
                let used = u32::from(self.disk.contains_key(&(slot, place)));
                agree(
                    &format!("place {place} on the disk of queue {slot}"),
                    word >> (place % 32) & 1,
                    used,
                )?;
            }
        }
        Ok(())
    }

    fn pool_is_apart(&mut self) -> Result<()> {
        let mut pooled = 0;
        for class in 0..CLASSES {
            let mut word = self.inside.get(head::POOL + 4 * class as usize);
            while word != 0 {
                self.claim(word, class, format!("buffer {pooled} of the pool"))?;
                let span = Span::from_word(word).ok_or_else(|| wrong("the pool names no buffer"))?;
                let memory = self.inside.driver.memory_at(span, class_units(class));
                let (region, at) = memory.ok_or_else(|| wrong("the pool names no buffer"))?;
                word = region.u32(at).load(Ordering::Relaxed);
                pooled += 1;
            }
        }
        agree("buffers in the pool", self.inside.get(head::BUFFERS_IN_POOL), pooled)?;
        for &(segment, unit) in self.memory.keys() {
            if unit >= self.inside.get(head::FRESH + 4 * segment as usize) {
                return Err(wrong(format!(
                    "unit {unit} of segment {segment} is in use and was never handed out"
                )));
            }
        }
        Ok(())
    }

    fn users_agree(&mut self) -> Result<()> {
        let geometry = self.inside.driver.geometry;
        let mut counts: HashMap<u32, [u32; 3]> = HashMap::new();
        for index in 0..geometry.users {
            let record = self.inside.user(index);
            if record.identity() != 0 {
                self.found.users += 1;
                let mode = record.get(user::MODE);
                let count = counts.entry(record.get(user::QUEUE)).or_default();
                for (count, one) in count.iter_mut().zip([1, mode & 1, mode >> 1 & 1]) {
                    *count += one;
                }
            }
        }
        for slot in 0..geometry.queues {
            let q = self.inside.queue(slot);
            if q.state() == QueueState::Live {
                let [users, readers, writers] = counts.remove(&slot).unwrap_or_default();
                agree("users", q.get(queue::USERS), users)?;
                agree("readers", q.get(queue::READERS), readers)?;
                agree("writers", q.get(queue::WRITERS), writers)?;
            }
        }
        match counts.keys().next() {
            Some(slot) => Err(wrong(format!("somebody uses queue {slot}, which does not exist"))),
            None => Ok(()),
        }
    }
}
