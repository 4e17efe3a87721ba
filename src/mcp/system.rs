//! A queue system: a directory in which processes find each other's queues. Acting for the dead, the end of queues, and what
//! people see of it.

use std::path::{Path, PathBuf};

use super::disk;
use super::driver::{Driver, Entry, Stop};
use super::layout::{QueueState, head, queue};
use super::name::shown;
use super::queue::QKey;
use super::users::Aftermath;
use crate::Result;
use crate::shared::signal::Wait;

/// Messages that are freed at a time when a queue is destroyed, so that nobody waits long for the lock.
const DRAIN: u32 = 512;

/// An open queue system.
#[derive(Debug)]
pub struct System {
    pub(super) driver: Driver,
    pub(super) directory: PathBuf,
    /// The boot whose files these are, as in their names.
    pub(super) boot: String,
}

/// One queue of a system, as people see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueSummary {
    /// MFID/FID, synthesized for members of a family.
    pub name: String,
    /// 0 for a single queue, else 1 to n.
    pub member: u32,
    /// Members of its family; 0 for a single queue.
    pub family_size: u32,
    /// Messages that can be read.
    pub messages: u32,
    /// Messages in somebody's hands.
    pub held: u32,
    /// Messages with a buffer.
    pub in_memory: u32,
    /// Open files with input.
    pub readers: u32,
    /// Open files with output.
    pub writers: u32,
    /// All open files.
    pub users: u32,
    /// Whether it outlives its users.
    pub keep: bool,
}

/// What the pools hold and what has happened, over all queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SystemCounters {
    /// Message descriptors in use.
    pub descriptors_in_use: u32,
    /// Blocks of ten descriptors.
    pub descriptor_blocks: u32,
    /// Message buffers in use.
    pub buffers_in_use: u32,
    /// Empty buffers in the pool.
    pub buffers_in_pool: u32,
    /// Bytes of S-memory.
    pub memory: u64,
    /// Messages written to queue disk.
    pub spills: u64,
    /// Messages read ahead from queue disk.
    pub look_aheads: u64,
    /// Messages rolled out by `reclaim`.
    pub roll_outs: u64,
    /// Repairs after the death of somebody inside.
    pub repairs: u64,
    /// Users that died without closing.
    pub deaths: u64,
    /// Queue files created.
    pub created: u64,
    /// Queue files destroyed.
    pub destroyed: u64,
    /// User records in use.
    pub users: u32,
}

impl System {
    /// Where it is.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Acts for users, creators and destroyers that died; of one queue file, or of all.
    pub(super) fn sweep(&self, only: Option<QKey>) -> Result<bool> {
        let (changed, aftermath) = self.driver.sweep(only)?;
        self.settle(aftermath)?;
        Ok(changed)
    }

    /// Tells readers about the end, and removes queues that nobody uses.
    pub(super) fn settle(&self, aftermath: Aftermath) -> Result<()> {
        for key in aftermath.ended {
            self.announce(key);
        }
        let mut doomed = aftermath.doomed;
        while let Some(key) = doomed.pop() {
            doomed.extend(self.destroy(key)?);
        }
        Ok(())
    }

    /// Wakes everybody who waits for this queue file, whatever for.
    pub(super) fn announce(&self, key: QKey) {
        for slot in 0..self.driver.geometry.queues {
            if self.driver.queue_word(slot, queue::HEAD) == key.slot {
                self.driver.queue_signal(slot, queue::INSERTED).notify_all();
                self.driver.queue_signal(slot, queue::REMOVED).notify_all();
            }
        }
        self.driver.any_insert().notify_all();
    }

    fn destroy(&self, key: QKey) -> Result<Vec<QKey>> {
        while !self
            .driver
            .inside(Wait::Forever, |inside| Ok(inside.drain_dying(key, DRAIN)?))?
        {}
        let disk = self.driver.inside(Wait::Forever, |inside| {
            Ok::<_, Stop>(inside.owns_disk(key).then(|| inside.disk_directory(key.slot)))
        })?;
        if let Some(directory) = disk {
            disk::remove(&self.disk_path(&directory, key));
        }
        let me = self.driver.roster.me()?.word();
        let orphans = self.driver.inside(Wait::Forever, |inside| {
            let orphans = inside.bury(key, me)?;
            inside.survey_blocks()?;
            Ok(orphans)
        })?;
        self.driver.any_insert().notify_all();
        Ok(orphans)
    }

    /// The file that holds the queue disk of a queue file.
    pub(super) fn disk_path(&self, directory: &[u8], key: QKey) -> PathBuf {
        use std::os::unix::ffi::OsStrExt;
        let directory = match directory {
            [] => self.directory.clone(),
            named => PathBuf::from(std::ffi::OsStr::from_bytes(named)),
        };
        let number = self.driver.wide_word(head::SYSTEM);
        directory.join(format!(
            "mcp-{}.{number:x}.{}.{}.disk",
            self.boot, key.slot, key.generation
        ))
    }

    /// All queues, members of families included.
    pub fn queues(&self) -> Result<Vec<QueueSummary>> {
        self.sweep(None)?;
        self.driver.inside(Entry::Soon, |inside| {
            let live = (0..self.driver.geometry.queues).map(|slot| inside.queue(slot));
            let live = live.filter(|q| q.state() == QueueState::Live);
            Ok(live
                .map(|q| {
                    let first = inside.queue(q.get(queue::HEAD).min(self.driver.geometry.queues - 1));
                    QueueSummary {
                        name: shown(&inside.name_of(&q)),
                        member: q.get(queue::MEMBER),
                        family_size: q.get(queue::FAMILY_SIZE),
                        messages: q.get(queue::AVAILABLE),
                        held: q.get(queue::HELD),
                        in_memory: q.get(queue::IN_MEMORY),
                        readers: first.get(queue::READERS),
                        writers: first.get(queue::WRITERS),
                        users: first.get(queue::USERS),
                        keep: q.get(queue::FLAGS) & queue::FLAG_KEEP != 0,
                    }
                })
                .collect())
        })
    }

    /// What the pools hold, and what has happened.
    pub fn counters(&self) -> Result<SystemCounters> {
        self.driver.inside(Entry::Soon, |inside| {
            let wide = |at| self.driver.wide_word(at);
            let users = (0..inside.get(head::USERS_USED).min(self.driver.geometry.users))
                .filter(|&index| inside.user(index).identity() != 0)
                .count();
            Ok(SystemCounters {
                descriptors_in_use: inside.get(head::DESCRIPTORS_IN_USE),
                descriptor_blocks: inside.blocks(),
                buffers_in_use: inside.get(head::BUFFERS_IN_USE),
                buffers_in_pool: inside.get(head::BUFFERS_IN_POOL),
                memory: self.driver.memory_bytes(),
                spills: wide(head::SPILLS),
                look_aheads: wide(head::LOOK_AHEADS),
                roll_outs: wide(head::ROLL_OUTS),
                repairs: wide(head::REPAIRS),
                deaths: wide(head::DEATHS),
                created: wide(head::CREATED),
                destroyed: wide(head::DESTROYED),
                users: users as u32,
            })
        })
    }

    /// Who takes part, with the process number and whether it lives.
    pub fn participants(&self) -> Result<Vec<(u32, bool)>> {
        let members = self.driver.roster.members()?;
        Ok(members
            .into_iter()
            .map(|(member, lives)| (member.pid(), lives))
            .collect())
    }
}
