//! Who uses a queue: one record for each open queue file, signed by its participant.
//!
//! The counts in the queue descriptor follow from the records, and the kernel says which of the signers live: a process that
//! died without closing counts as closed as soon as anybody looks ([`Driver::sweep`]). Sleeping readers and writers look at
//! every turn of their sleep, openers always.

use super::driver::{Driver, Inside, Stop};
use super::layout::{MessageState, QueueState, head, queue, user};
use super::queue::{QKey, gone};
use super::records::{Queue, commit};
use crate::shared::roster::Holder;
use crate::shared::signal::Wait;
use crate::{Error, Result};

/// How a queue file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// To read.
    Input,
    /// To write.
    Output,
    /// Both. Such a user is a writer for as long as it is open.
    InputOutput,
}

impl Mode {
    /// Whether reads are allowed.
    pub fn reads(self) -> bool {
        self != Mode::Output
    }

    /// Whether writes are allowed.
    pub fn writes(self) -> bool {
        self != Mode::Input
    }

    fn word(self) -> u32 {
        u32::from(self.reads()) | u32::from(self.writes()) << 1
    }
}

/// What a change of users asks for, once outside.
#[derive(Debug, Default)]
pub(super) struct Aftermath {
    /// The last writer is gone, so all readers of this family have news.
    pub(super) ended: Vec<QKey>,
    /// The last user is gone: the queue disk is to be removed.
    pub(super) doomed: Vec<QKey>,
}

impl Aftermath {
    fn merge(&mut self, other: Aftermath) {
        self.ended.extend(other.ended);
        self.doomed.extend(other.doomed);
    }
}

impl Inside<'_> {
    /// Records a user of the queue file; `None` is a caretaker, who keeps it alive and neither reads nor writes.
    pub(super) fn add_user(&self, key: QKey, identity: u64, mode: Option<Mode>) -> Result<u32> {
        let q = self.live(key)?;
        let used = self.get(head::USERS_USED).min(self.driver.geometry.users);
        let free = (0..used)
            .find(|&index| self.user(index).identity() == 0)
            .unwrap_or(used);
        if free >= self.driver.geometry.users {
            return Err(Error::AlreadyOpen(format!(
                "the queue system has {} open queue files, its limit",
                self.driver.geometry.users
            )));
        }
        let record = self.user(free);
        record.set(user::QUEUE, key.slot);
        record.set(user::GENERATION, key.generation);
        record.set(user::MODE, mode.map_or(0, Mode::word));
        if free == used {
            self.set(head::USERS_USED, used + 1);
        }
        commit(|| record.set_wide(user::IDENTITY, identity));
        if mode.is_some_and(Mode::writes) {
            if q.get(queue::WRITERS) == 0 {
                q.set(queue::ABENDED, 0);
            }
            q.add(queue::WRITER_OPENS, 1);
        }
        self.count_user(&q, mode.map_or(0, Mode::word), 1);
        Ok(free)
    }

    pub(super) fn count_user(&self, q: &Queue<'_>, mode: u32, by: i32) {
        q.add(queue::USERS, by);
        if mode & 1 != 0 {
            q.add(queue::READERS, by);
        }
        if mode & 2 != 0 {
            q.add(queue::WRITERS, by);
        }
    }

    /// Takes a user off the record. What it was filling is discarded, what was in its hands goes back to its place.
    pub(super) fn remove_user(&self, index: u32, died: bool, has_marks: bool, by: u64) -> Result<Aftermath> {
        let record = self.user(index);
        let (slot, mode) = (record.get(user::QUEUE), record.get(user::MODE));
        let key = QKey {
            slot,
            generation: record.get(user::GENERATION),
        };
        let known = slot < self.driver.geometry.queues;
        if died {
            self.count(head::DEATHS);
        }
        if died && known && mode & 2 != 0 {
            self.queue(slot).add(queue::ABENDED, 1);
        }
        commit(|| record.set_wide(user::IDENTITY, 0));
        if has_marks {
            self.release_marks(index)?;
        }
        let mut aftermath = Aftermath::default();
        let Ok(q) = (if known { self.live(key) } else { Err(gone(key)) }) else {
            return Ok(aftermath);
        };
        self.count_user(&q, mode, -1);
        if mode & 2 != 0 && q.get(queue::WRITERS) == 0 {
            aftermath.ended.push(key);
        }
        if q.get(queue::USERS) == 0 && q.get(queue::FLAGS) & queue::FLAG_KEEP == 0 {
            self.doom(&q, by);
            aftermath.doomed.push(key);
        }
        Ok(aftermath)
    }

    /// Undoes what the user of this record had begun.
    pub(super) fn release_marks(&self, index: u32) -> Result<()> {
        for message in self.descriptors() {
            let state = message.state();
            if state.user() != Some(index) {
                continue;
            }
            let slot = message.get(super::layout::descriptor::QUEUE);
            if slot >= self.driver.geometry.queues {
                continue;
            }
            let q = self.queue(slot);
            match state {
                MessageState::Filling(_) => self.discard(&q, &message, message.place())?,
                MessageState::Held(_) => self.give_back(&q, &message)?,
                MessageState::Moving(_) => self.cancel_move(&q, &message)?,
                MessageState::Free | MessageState::Queued => {}
            }
        }
        Ok(())
    }
}

impl Driver {
    /// Looks for users, creators and destroyers that are gone, of one queue file or of all, and acts in their place.
    /// True when something changed.
    pub(super) fn sweep(&self, only: Option<QKey>) -> Result<(bool, Aftermath)> {
        let mut asked: Vec<(u64, bool)> = Vec::new();
        let mut is_dead = |word: u64| -> Result<bool> {
            if let Some((_, dead)) = asked.iter().find(|(seen, _)| *seen == word) {
                return Ok(*dead);
            }
            // A word that nobody can have signed is damage, and nobody's.
            let dead = matches!(self.roster.holder(word)?, Holder::Dead | Holder::Foreign);
            asked.push((word, dead));
            Ok(dead)
        };
        let mut dead = Vec::new();
        for index in 0..self.word(head::USERS_USED).min(self.geometry.users) {
            let at = self.geometry.user(index);
            let word = self.wide_word(at + user::IDENTITY);
            let concerned = only.is_none_or(|key| self.word(at + user::QUEUE) == key.slot);
            if word != 0 && concerned && is_dead(word)? {
                dead.push((index, word));
            }
        }
        let mut orphaned = Vec::new();
        if only.is_none() {
            for slot in 0..self.geometry.queues {
                let at = self.geometry.queue(slot);
                let state = QueueState::from_word(self.word(at + queue::STATE));
                if matches!(state, QueueState::Creating | QueueState::Dying) {
                    let owner = self.wide_word(at + queue::OWNER);
                    if owner == 0 || is_dead(owner)? {
                        orphaned.push((slot, owner));
                    }
                }
            }
        }
        if dead.is_empty() && orphaned.is_empty() {
            return Ok((false, Aftermath::default()));
        }
        let me = self.roster.me()?.word();
        let mut aftermath = Aftermath::default();
        self.inside(Wait::Forever, |inside| {
            for &(index, word) in &dead {
                if inside.user(index).identity() == word {
                    aftermath.merge(inside.remove_user(index, true, true, me)?);
                }
            }
            for &(slot, owner) in &orphaned {
                aftermath.doomed.extend(inside.adopt(slot, owner, me));
            }
            Ok::<_, Stop>(())
        })?;
        Ok((true, aftermath))
    }

    /// A 64-bit word outside of the lock: a hint.
    pub(super) fn wide_word(&self, at: usize) -> u64 {
        self.region.u64(at).load(crate::shared::sync::Ordering::Relaxed)
    }
}
