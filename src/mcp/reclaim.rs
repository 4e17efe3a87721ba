//! The role of GETSPACE (sections 2.3 to 2.5): messages in memory are rolled out to disk, spare descriptor blocks and pooled
//! buffers become plain memory again.

use super::disk::QueueDisk;
use super::driver::Stop;
use super::layout::{QueueState, head, queue};
use super::parameters::{Device, FileParameters};
use super::queue::QKey;
use super::system::System;
use crate::Result;
use crate::shared::signal::Wait;

impl System {
    /// Rolls every message out that is in memory and in nobody's hands, even of queues that never spill by themselves, and
    /// gives back all memory that is then unused. How many messages were rolled out.
    pub fn reclaim(&self) -> Result<u64> {
        let heads = self.driver.inside(Wait::Forever, |inside| {
            let live = (0..self.driver.geometry.queues).map(|slot| inside.queue(slot));
            let heads = live.filter(|q| q.state() == QueueState::Live && q.get(queue::HEAD) == q.slot);
            Ok::<_, Stop>(heads.map(|q| (q.slot, q.get(queue::GENERATION))).collect::<Vec<_>>())
        })?;
        let mut rolled = 0;
        for (slot, generation) in heads {
            rolled += self.roll_out(QKey { slot, generation })?;
        }
        self.driver.inside(Wait::Forever, |inside| {
            inside.survey_blocks()?;
            inside.reclaim_memory();
            Ok(())
        })?;
        Ok(rolled)
    }

    /// Rolls the messages of one queue file out, as its caretaker: a user who keeps it alive.
    fn roll_out(&self, key: QKey) -> Result<u64> {
        let me = self.driver.roster.me()?.word();
        let entered = self.driver.inside(Wait::Forever, |inside| {
            let Ok(q) = inside.live(key) else { return Ok(None) };
            let parameters = FileParameters {
                name: String::from("-"),
                max_messages: q.get(queue::MAX_MESSAGES),
                buffers: q.get(queue::BUFFERS),
                record_size: q.get(queue::RECORD_SIZE),
                family_size: q.get(queue::FAMILY_SIZE),
                device: Device::New,
            };
            parameters.check(false)?;
            let members = inside.members(key, QueueState::Live)?;
            let user = inside.add_user(key, me, None)?;
            Ok(Some((user, parameters, members, inside.disk_directory(key.slot))))
        })?;
        let Some((user, parameters, members, directory)) = entered else {
            return Ok(0);
        };
        let rolled = QueueDisk::open(&self.disk_path(&directory, key), &parameters, None)
            .and_then(|disk| self.roll_members(&disk, &members, user));
        let aftermath = self
            .driver
            .inside(Wait::Forever, |inside| Ok(inside.remove_user(user, false, true, me)?))?;
        self.settle(aftermath)?;
        rolled
    }

    fn roll_members(&self, disk: &QueueDisk, members: &[u32], user: u32) -> Result<u64> {
        let mut rolled = 0;
        for (index, &slot) in members.iter().enumerate() {
            loop {
                let taken = self.driver.inside(Wait::Forever, |inside| {
                    let q = inside.queue(slot);
                    let generation = q.get(queue::GENERATION);
                    Ok(inside
                        .take_spill(&q, index, user)?
                        .map(|spill| (spill, QKey { slot, generation })))
                })?;
                let Some((spill, key)) = taken else { break };
                let written = self.spill_text(disk, &spill);
                self.driver.inside(Wait::Forever, |inside| {
                    inside.end_move(key, spill.ticket, user, written.is_ok())?;
                    if written.is_ok() {
                        inside.count(head::ROLL_OUTS);
                    }
                    Ok(())
                })?;
                self.driver.queue_signal(slot, queue::INSERTED).notify_all();
                self.driver.any_insert().notify_all();
                written?;
                rolled += 1;
            }
        }
        Ok(rolled)
    }
}
