//! Families: which member a key means, and the unspecific read (section 6.1).

use super::driver::Entry;
use super::file::{Member, QueueFile};
use super::layout::queue;
use crate::{Error, Result};

/// SDL's "not zero": the complement of a zero in a 24-bit key.
const NOT_ZERO: i64 = 0x00FF_FFFF;

/// What a key means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// One member, counted from 0.
    Member(usize),
    /// The first member that is not empty.
    Any,
}

impl QueueFile {
    /// Whether the file is a family.
    pub fn is_family(&self) -> bool {
        self.parameters().family_size > 0
    }

    /// The member that a read with this key means. No key is the only queue, or any member of a family.
    #[inline]
    pub(super) fn read_target(&self, key: Option<i64>) -> Result<Target> {
        match key {
            None if self.is_family() => Ok(Target::Any),
            None => Ok(Target::Member(0)),
            Some(key) if self.is_family() && self.is_unspecific(key) => Ok(Target::Any),
            Some(key) => self.member_of(key).map(Target::Member),
        }
    }

    /// The member that a write with this key means; a family needs one.
    #[inline]
    pub(super) fn write_target(&self, key: Option<i64>) -> Result<usize> {
        match key {
            None if self.is_family() => Err(Error::InvalidKey {
                key: 0,
                expected: format!("a write to a family needs a key, {}", self.key_range()),
            }),
            None => Ok(0),
            Some(key) => self.member_of(key),
        }
    }

    fn is_unspecific(&self, key: i64) -> bool {
        if self.sdl_keys {
            key == -1 || key == NOT_ZERO
        } else {
            key == 0
        }
    }

    fn member_of(&self, key: i64) -> Result<usize> {
        let invalid = |expected: String| Error::InvalidKey { key, expected };
        if !self.is_family() {
            return Err(invalid("a single queue has no keys".into()));
        }
        let index = if self.sdl_keys { Some(key) } else { key.checked_sub(1) };
        index
            .and_then(|index| usize::try_from(index).ok())
            .filter(|index| *index < self.members.len())
            .ok_or_else(|| invalid(self.key_range()))
    }

    fn key_range(&self) -> String {
        let count = self.members.len();
        if self.sdl_keys {
            format!("0 to {}", count - 1)
        } else {
            format!("1 to {count}")
        }
    }

    /// MESSAGE.COUNT (section 8.0): for each member, first to last, the messages that can be read, and one more while EOF is
    /// there and not taken.
    pub fn message_count(&self) -> Result<Vec<u32>> {
        self.check_open()?;
        self.user()?;
        self.look_around()?;
        self.system.driver.inside(Entry::Soon, |inside| {
            let count = |member: &Member| {
                let real = inside.queue(member.key.slot).get(queue::AVAILABLE);
                real.saturating_add(self.eof_is_pending(inside, member).into())
            };
            Ok(self.members.iter().map(count).collect())
        })
    }

    /// MESSAGE.COUNT as the communicate returns it: 24 bits for each member, binary or three decimal digits, cut at
    /// `bits` bits. A count that does not fit its 24 bits shows as the largest that does.
    pub fn message_count_field(&self, bits: usize, decimal: bool) -> Result<Vec<u8>> {
        let mut field: Vec<u8> = Vec::new();
        for count in self.message_count()? {
            if decimal {
                field.extend_from_slice(format!("{:03}", count.min(999)).as_bytes());
            } else {
                field.extend_from_slice(&count.min(0x00FF_FFFF).to_be_bytes()[1..]);
            }
        }
        field.truncate(bits.div_ceil(8));
        if !bits.is_multiple_of(8) && field.len() == bits.div_ceil(8) {
            *field.last_mut().expect("bits > 0") &= 0xFF << (8 - bits % 8);
        }
        Ok(field)
    }

    /// Messages that can be read, in all members.
    pub fn len(&self) -> u64 {
        self.sum(queue::AVAILABLE)
    }

    /// Whether there is nothing to read.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a write (to every member) would have to wait.
    pub fn is_full(&self) -> bool {
        let occupied = |member: &Member| self.system.driver.queue_word(member.key.slot, queue::OCCUPIED);
        self.members
            .iter()
            .all(|member| occupied(member) >= self.parameters().max_messages)
    }

    fn sum(&self, field: usize) -> u64 {
        let word = |member: &Member| u64::from(self.system.driver.queue_word(member.key.slot, field));
        self.members.iter().map(word).sum()
    }

    /// What happened to the queues of this file: written, read, spilled, looked ahead, given back.
    pub fn counters(&self) -> FileCounters {
        let sum = |field: usize| -> u64 {
            let word = |member: &Member| {
                let at = self.system.driver.geometry.queue(member.key.slot) + field;
                self.system.driver.wide_word(at)
            };
            self.members.iter().map(word).fold(0, u64::wrapping_add)
        };
        FileCounters {
            written: sum(queue::WRITTEN),
            read: sum(queue::READ),
            spills: sum(queue::SPILLS),
            look_aheads: sum(queue::LOOK_AHEADS),
            given_back: sum(queue::GIVEN_BACK),
            held: self.sum(queue::HELD),
            in_memory: self.sum(queue::IN_MEMORY),
            messages: self.len(),
            writers: self.system.driver.queue_word(self.head.slot, queue::WRITERS),
            readers: self.system.driver.queue_word(self.head.slot, queue::READERS),
            users: self.system.driver.queue_word(self.head.slot, queue::USERS),
        }
    }
}

/// What happened to the queues of a file, and what is in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileCounters {
    /// Messages written since the queue was created.
    pub written: u64,
    /// Messages that left the queue.
    pub read: u64,
    /// Messages written to queue disk.
    pub spills: u64,
    /// Messages read ahead from queue disk.
    pub look_aheads: u64,
    /// Messages that came back from somebody's hands.
    pub given_back: u64,
    /// Messages in somebody's hands.
    pub held: u64,
    /// Messages with a buffer.
    pub in_memory: u64,
    /// Messages that can be read.
    pub messages: u64,
    /// Open files with output.
    pub writers: u32,
    /// Open files with input.
    pub readers: u32,
    /// All open files (the user count of behaviour 1).
    pub users: u32,
}
