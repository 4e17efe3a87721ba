//! Looking at messages without taking them: everything that is in a file's queues, or what somebody holds.

use super::driver::{Entry, Inside, Stop};
use super::file::QueueFile;
use super::hold::Hold;
use super::layout::{MessageState, Place, descriptor, queue};
use super::read::{Batch, Text};
use crate::{Error, Result};

impl QueueFile {
    /// Appends every message that is in the queues to `out`, in order, those in somebody's hands too, and says which they are.
    /// Nothing changes. What is removed while this goes on is not among them.
    pub fn look(&self, out: &mut Batch) -> Result<Vec<Hold>> {
        self.check_open()?;
        let mut seen = Vec::new();
        for index in 0..self.members.len() {
            let listed = self
                .system
                .driver
                .inside(Entry::Soon, |inside| Ok::<_, Stop>(self.listed(inside, index)?))?;
            for hold in listed {
                if self.copy_one(&hold, out, is_listed)? {
                    seen.push(hold);
                }
            }
        }
        Ok(seen)
    }

    /// Appends the texts of messages that are in somebody's hands, all of them: [`Error::MessageNotFound`] names the first that is
    /// not.
    pub fn look_at(&self, holds: &[Hold], out: &mut Batch) -> Result<()> {
        self.check_open()?;
        for (place, hold) in holds.iter().enumerate() {
            if !self.copy_one(hold, out, |state| matches!(state, MessageState::Held(_)))? {
                return Err(Error::MessageNotFound(format!(
                    "message {} of {} is in nobody's hands any more",
                    place + 1,
                    holds.len()
                )));
            }
        }
        Ok(())
    }

    fn listed(&self, inside: &Inside<'_>, index: usize) -> Result<Vec<Hold>> {
        let q = inside.live(self.members[index].key)?;
        let (mut number, mut found) = (q.get(queue::FIRST), Vec::new());
        for _ in 0..=q.get(queue::OCCUPIED) {
            if number == 0 {
                break;
            }
            let message = inside.message(number)?;
            found.push(Hold::of(index, super::write::ticket(&message)));
            number = message.get(descriptor::NEXT);
        }
        Ok(found)
    }

    /// Appends one text; false when the message is not there, or not in such a state.
    fn copy_one(&self, hold: &Hold, out: &mut Batch, wanted: impl Fn(MessageState) -> bool) -> Result<bool> {
        let Some(member) = self.members.get(hold.member() - 1) else {
            return Ok(false);
        };
        let find = |inside: &Inside<'_>| -> Result<Option<Text>> {
            let Ok(message) = inside.message(hold.ticket().number) else {
                return Ok(None);
            };
            let same = message.stamp() == hold.ticket().stamp
                && message.get(descriptor::QUEUE) == member.key.slot
                && wanted(message.state());
            if same {
                inside.text_of(&message).map(Some)
            } else {
                Ok(None)
            }
        };
        // One that moves between memory and disk is found where it is then.
        loop {
            let mut copy = Vec::new();
            let text = self.system.driver.inside(Entry::Soon, |inside| {
                inside.live(member.key)?;
                let text = find(inside)?;
                if let Some(Place::Memory(_)) = text.as_ref().map(|text| text.place) {
                    // Inside, so that the buffer stays what it is.
                    self.copy_text(hold.member() - 1, &text.expect("just seen"), &mut copy)?;
                }
                Ok::<_, Stop>(text)
            })?;
            let Some(text) = text else {
                return Ok(false);
            };
            if let Place::Disk(_) = text.place {
                self.copy_text(hold.member() - 1, &text, &mut copy)?;
                let again = self
                    .system
                    .driver
                    .inside(Entry::Soon, |inside| Ok::<_, Stop>(find(inside)?))?;
                match again {
                    None => return Ok(false),
                    Some(again) if again.place != text.place => continue,
                    Some(_) => {}
                }
            }
            return out
                .fill(|bytes| {
                    bytes.extend_from_slice(&copy);
                    Ok(())
                })
                .map(|()| true);
        }
    }
}

fn is_listed(state: MessageState) -> bool {
    !matches!(state, MessageState::Free | MessageState::Filling(_))
}
