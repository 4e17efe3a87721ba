//! Holding: a reader takes messages in hand without removing them, and acknowledges them or gives them back.
//!
//! They stay in their places, marked with the reader's user record. Nobody else can read them meanwhile, they count towards
//! Q.MAX.MESSAGES and not in MESSAGE.COUNT, and the queue is not at EOF while there are any. When the reader closes or dies
//! they are there again, in their old order.

use std::collections::HashSet;

use super::driver::{Entry, Stop};
use super::family::Target;
use super::file::QueueFile;
use super::layout::{MessageState, queue};
use super::parameters::Device;
use super::queue::{Next, Ticket};
use super::read::{Batch, Text, Took};
use super::write::InFlight;
use crate::shared::signal::{Turn, Wait};
use crate::shared::sync::Ordering;
use crate::{Error, Result};

/// The most messages that are taken in hand in one visit.
const VISIT: usize = 256;

/// Names a message in the hands of an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hold {
    member: usize,
    ticket: Ticket,
}

impl Hold {
    pub(super) fn of(member: usize, ticket: Ticket) -> Self {
        Hold { member, ticket }
    }

    pub(super) fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// The member it is from, counted from 1; 1 for a single queue.
    pub fn member(&self) -> usize {
        self.member + 1
    }

    /// As three numbers, for those who keep it elsewhere.
    pub fn to_parts(&self) -> (u32, u32, u64) {
        (self.member as u32, self.ticket.number, self.ticket.stamp)
    }

    /// From [`Hold::to_parts`].
    pub fn from_parts((member, number, stamp): (u32, u32, u64)) -> Self {
        Hold {
            member: member as usize,
            ticket: Ticket { number, stamp },
        }
    }
}

impl QueueFile {
    /// Takes up to `limit` messages in hand, waiting for the first as long as `wait` allows. Their texts are appended to `out`.
    pub fn hold(
        &self,
        key: Option<i64>,
        limit: usize,
        out: &mut Batch,
        wait: Wait,
        mut idle: impl FnMut() -> Result<()>,
    ) -> Result<(Took, Vec<Hold>)> {
        let target = self.read_target(key)?;
        self.check_reads()?;
        let mut holds = Vec::new();
        if limit == 0 {
            return Ok((Took::Messages(0), holds));
        }
        let driver = &self.system.driver;
        let mut look = || {
            self.check_open()?;
            self.look_around()?;
            idle()
        };
        self.look_around()?;
        let entry = Entry::of_attempt(wait);
        let took = driver.any_insert().wait_for(wait, Turn::PeerMatters, &mut look, || {
            match self.hold_some(target, limit, out, &mut holds, entry) {
                Ok(Took::Nothing) | Err(Error::TimedOut) => Ok(None),
                other => other.map(Some),
            }
        })?;
        Ok((took.unwrap_or(Took::Nothing), holds))
    }

    fn hold_some(
        &self,
        target: Target,
        limit: usize,
        out: &mut Batch,
        holds: &mut Vec<Hold>,
        entry: Entry,
    ) -> Result<Took> {
        let members: Vec<usize> = match target {
            Target::Member(member) => vec![member],
            Target::Any => (0..self.members.len()).collect(),
        };
        for &index in &members {
            while holds.len() < limit {
                match self.hold_visit(index, limit - holds.len(), out, holds, entry) {
                    Ok(true) => {}
                    Ok(false) => break,
                    // What is in hand is the caller's; an error will come again.
                    Err(_) if !holds.is_empty() => break,
                    Err(error) => return Err(error),
                }
            }
            if !holds.is_empty() {
                return Ok(Took::Messages(holds.len()));
            }
        }
        let is_empty = |&index: &usize| {
            let slot = self.members[index].key.slot;
            self.system.driver.queue_word(slot, queue::AVAILABLE) == 0
        };
        // A message on its way between memory and disk cannot be held now, but it is there.
        let old = self.parameters().device == Device::Old && members.iter().all(is_empty);
        let end = old || self.may_have_ended() && self.take_end(target, entry)?;
        Ok(if end { Took::End } else { Took::Nothing })
    }

    /// Takes messages of one member in hand; true when there may be more.
    fn hold_visit(
        &self,
        index: usize,
        limit: usize,
        out: &mut Batch,
        holds: &mut Vec<Hold>,
        entry: Entry,
    ) -> Result<bool> {
        let key = self.members[index].key;
        if self.system.driver.queue_word(key.slot, queue::AVAILABLE) == 0 {
            return Ok(false);
        }
        let user = self.user()?;
        let _flight = InFlight::begin(self)?;
        let texts = self.system.driver.inside(entry, |inside| {
            let q = inside.live(key)?;
            let mut texts: Vec<Text> = Vec::new();
            while texts.len() < limit.min(VISIT) {
                let Next::Message(message) = inside.next(&q)? else {
                    break;
                };
                texts.push(inside.text_of(&message)?);
                inside.hold(&q, &message, user);
            }
            self.marks.fetch_add(texts.len() as u32, Ordering::AcqRel);
            Ok::<_, Stop>(texts)
        })?;
        for text in &texts {
            let hold = Hold {
                member: index,
                ticket: text.ticket,
            };
            if let Err(error) = out.fill(|bytes| self.copy_text(index, text, bytes)) {
                let unread: Vec<Hold> = texts
                    .iter()
                    .skip_while(|other| other.ticket != text.ticket)
                    .map(|text| Hold {
                        ticket: text.ticket,
                        ..hold
                    })
                    .collect();
                self.give_back(&unread)?;
                return Err(error);
            }
            holds.push(hold);
        }
        Ok(texts.len() == VISIT)
    }

    /// The messages are done with and leave the queue. All of them, or none: [`Error::MessageNotFound`] names the first that is
    /// not in this file's hands.
    pub fn acknowledge(&self, holds: &[Hold]) -> Result<()> {
        self.settle_holds(holds, true)
    }

    /// The messages are anybody's again, in their old places. All of them, or none.
    pub fn give_back(&self, holds: &[Hold]) -> Result<()> {
        self.settle_holds(holds, false)
    }

    fn settle_holds(&self, holds: &[Hold], remove: bool) -> Result<()> {
        let unknown = |hold: &Hold| {
            let place = holds.iter().position(|other| other == hold).unwrap_or(0);
            Error::MessageNotFound(format!(
                "message {} of {} is not in the hands of this file",
                place + 1,
                holds.len()
            ))
        };
        let distinct: HashSet<&Hold> = holds.iter().collect();
        if distinct.len() != holds.len() {
            return Err(Error::Invalid("a message is named twice".into()));
        }
        self.check_open()?;
        let user = self.user()?;
        let members: HashSet<usize> = holds.iter().map(|hold| hold.member).collect();
        self.system.driver.inside(Entry::Soon, |inside| {
            let find = |hold: &Hold| {
                let key = self.members.get(hold.member)?.key;
                let message = inside.redeem(hold.ticket, MessageState::Held(user))?;
                (message.get(super::layout::descriptor::QUEUE) == key.slot).then_some((key, message))
            };
            if let Some(missing) = holds.iter().find(|hold| find(hold).is_none()) {
                return Err(unknown(missing).into());
            }
            for hold in holds {
                let (key, message) = find(hold).ok_or_else(|| unknown(hold))?;
                let q = inside.live(key)?;
                if remove {
                    inside.remove(&q, &message)?;
                } else {
                    inside.give_back(&q, &message)?;
                }
            }
            self.marks.fetch_sub(holds.len() as u32, Ordering::AcqRel);
            Ok::<_, Stop>(())
        })?;
        for member in members {
            let slot = self.members[member].key.slot;
            self.system.driver.queue_signal(slot, queue::REMOVED).notify_all();
            self.notify_insert(slot, true);
        }
        Ok(())
    }
}
