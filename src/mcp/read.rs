//! READ: the first message of a queue, or of the first member that is not empty; EOF; the look-ahead (sections 2.3, 6.0, 7.0).
//!
//! A short message in memory is copied and removed in one visit. A long one, and one on disk, is first taken in hand, then
//! copied or read outside, and only then removed: whoever dies in between has not read it, and it goes back to its place.

use super::driver::{Entry, Inside, LOCK_PATIENCE, Stop};
use super::family::Target;
use super::file::QueueFile;
use super::layout::{MessageState, Place, class_units, descriptor, queue};
use super::parameters::Device;
use super::pool::Buffer;
use super::queue::{Next, Ticket};
use super::records::{Message, Queue};
use super::write::{INLINE, InFlight, VISIT_BYTES, VISIT_MESSAGES, note, ticket};
use crate::shared::signal::{Turn, Wait};
use crate::shared::sync::Ordering;
use crate::{Error, Result};

/// A read that neither waits for the lock nor does I/O.
const AT_ONCE: Entry = Entry::As(Wait::No);

/// Messages one behind the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Batch {
    /// No messages yet.
    pub const fn new() -> Self {
        Batch {
            bytes: Vec::new(),
            ends: Vec::new(),
        }
    }

    /// Messages so far.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// All bytes of all messages.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Forgets the messages and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// The messages in order.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| &self.bytes[start..end])
    }

    pub(super) fn fill(&mut self, fill: impl FnOnce(&mut Vec<u8>) -> Result<()>) -> Result<()> {
        fill(&mut self.bytes)?;
        self.ends.push(self.bytes.len());
        Ok(())
    }
}

/// What a read came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Took {
    /// So many messages.
    Messages(usize),
    /// Nothing is there, but writers are (or were not yet): INCOMPLETE.IO.
    Nothing,
    /// Nothing is there and the last writer is gone: EOF.
    End,
}

/// Where a message's text is to be copied from, outside.
#[derive(Clone, Copy, Debug)]
pub(super) struct Text {
    pub(super) ticket: Ticket,
    pub(super) place: Place,
    pub(super) class: u32,
    pub(super) size: usize,
}

/// A message on its way from disk to memory.
#[derive(Clone, Copy, Debug)]
struct Load {
    ticket: Ticket,
    slot: u32,
    size: usize,
    buffer: Buffer,
}

impl QueueFile {
    /// Reads up to `limit` messages if there are any in memory, at once: a lock that is taken, and messages on disk, are
    /// [`Error::TimedOut`].
    #[inline]
    pub fn try_read(&self, key: Option<i64>, limit: usize, out: &mut Batch) -> Result<Took> {
        let target = self.read_target(key)?;
        self.check_reads()?;
        let lock = AT_ONCE;
        let took = self.read_some(target, limit, out, lock)?;
        if took == Some(Took::Nothing) && self.look_around()? {
            // Somebody was dead, so a message may have come back, or this may be the end.
            return self
                .read_some(target, limit, out, lock)
                .map(|took| took.unwrap_or(Took::Nothing));
        }
        took.ok_or(Error::TimedOut)
    }

    /// Reads one message at least, and up to `limit` of those that are there; waits for the first as long as `wait` allows.
    pub fn read(
        &self,
        key: Option<i64>,
        limit: usize,
        out: &mut Batch,
        wait: Wait,
        mut idle: impl FnMut() -> Result<()>,
    ) -> Result<Took> {
        let target = self.read_target(key)?;
        self.check_reads()?;
        if limit == 0 {
            return Ok(Took::Messages(0));
        }
        let driver = &self.system.driver;
        let signal = match target {
            Target::Member(member) => driver.queue_signal(self.members[member].key.slot, queue::INSERTED),
            Target::Any => driver.any_insert(),
        };
        let mut look = || {
            self.check_open()?;
            self.look_around()?;
            idle()
        };
        let entry = Entry::of_attempt(wait);
        let took = signal.wait_for(wait, Turn::PeerMatters, &mut look, || {
            match self.read_some(target, limit, out, entry) {
                Ok(None | Some(Took::Nothing)) | Err(Error::TimedOut) => Ok(None),
                other => other,
            }
        })?;
        match took {
            Some(took) => Ok(took),
            None if wait == Wait::No => self.read_settled(target, limit, out),
            None => Ok(Took::Nothing),
        }
    }

    /// A read that must not block found nothing: the dead may have left something, or a message is moving for a moment.
    fn read_settled(&self, target: Target, limit: usize, out: &mut Batch) -> Result<Took> {
        self.look_around()?;
        let driver = &self.system.driver;
        let look = || self.look_around().map(drop);
        let briefly = Wait::from_timeout(Some(LOCK_PATIENCE));
        let settled = driver.any_insert().wait_for(briefly, Turn::PeerMatters, look, || {
            // `None` here is a message that is moving: whoever moves it tells when it is there.
            self.read_some(target, limit, out, Entry::Soon)
        })?;
        settled.ok_or(Error::TimedOut)
    }

    /// One attempt; `None` when the next message is on its way between memory and disk.
    #[inline(always)]
    fn read_some(&self, target: Target, limit: usize, out: &mut Batch, lock: Entry) -> Result<Option<Took>> {
        let took = match target {
            Target::Member(member) => self.read_member(member, limit, out, lock)?,
            Target::Any => self.read_any(limit, out, lock)?,
        };
        let old = self.parameters().device == Device::Old;
        Ok(match took {
            // Behaviour 37: an old queue file gives EOF for empty.
            Some(Took::Nothing) if old => Some(Took::End),
            other => other,
        })
    }

    /// The unspecific read: the first member, from number 1 on, that is not empty.
    fn read_any(&self, limit: usize, out: &mut Batch, lock: Entry) -> Result<Option<Took>> {
        let driver = &self.system.driver;
        let mut moving = false;
        for (index, member) in self.members.iter().enumerate() {
            if driver.queue_word(member.key.slot, queue::AVAILABLE) == 0 {
                continue;
            }
            match self.read_member(index, limit, out, lock)? {
                Some(Took::Messages(count)) => return Ok(Some(Took::Messages(count))),
                None => moving = true,
                Some(_) => {}
            }
        }
        if moving {
            return Ok(None);
        }
        if !self.may_have_ended() {
            return Ok(Some(Took::Nothing));
        }
        let end = self.take_end(Target::Any, lock)?;
        Ok(Some(if end { Took::End } else { Took::Nothing }))
    }

    /// Takes EOF, if all of `target` is at its end.
    pub(super) fn take_end(&self, target: Target, lock: Entry) -> Result<bool> {
        let members = match target {
            Target::Member(index) => &self.members[index..=index],
            Target::Any => &self.members[..],
        };
        self.system.driver.inside(lock, |inside| {
            let mut ends = Vec::with_capacity(members.len());
            for member in members {
                let empty = inside.live(member.key)?.get(queue::OCCUPIED) == 0;
                match self.ended(inside, member).filter(|_| empty) {
                    Some(opens) => ends.push((member, opens)),
                    None => return Ok(false),
                }
            }
            for (member, opens) in ends {
                self.take_eof(inside, member, opens);
            }
            Ok(true)
        })
    }

    /// A hint: there was a writer, and there is none.
    pub(super) fn may_have_ended(&self) -> bool {
        let driver = &self.system.driver;
        driver.queue_word(self.head.slot, queue::WRITERS) == 0
            && driver.queue_word(self.head.slot, queue::WRITER_OPENS) != 0
    }

    fn read_member(&self, index: usize, limit: usize, out: &mut Batch, lock: Entry) -> Result<Option<Took>> {
        let member = &self.members[index];
        let (key, driver) = (member.key, &self.system.driver);
        let is_empty = || driver.queue_word(key.slot, queue::AVAILABLE) == 0 && !self.may_have_ended();
        if !self.finds.load(Ordering::Relaxed) && is_empty() {
            return Ok(Some(Took::Nothing));
        }
        let user = self.user()?;
        let mut flight = None;
        let mut took = None;
        let mut far: Option<Text> = None;
        let mut load: Option<Load> = None;
        let start = out.bytes.len();
        let count = driver.inside(lock, |inside| {
            // Whoever closes the file enters once more: what is done in one visit is done before, or not at all.
            self.check_open()?;
            let q = inside.live(key)?;
            if q.get(queue::IN_MEMORY) < q.get(queue::OCCUPIED) {
                if lock == AT_ONCE {
                    return Err(Error::TimedOut.into());
                }
                InFlight::ensure(&mut flight, self)?;
            }
            let mut count = 0;
            while count < limit.min(VISIT_MESSAGES) && out.bytes.len() - start <= VISIT_BYTES {
                let message = match inside.next(&q)? {
                    Next::Message(message) => message,
                    _ if count > 0 => break,
                    Next::Moving => return Ok(0),
                    Next::Nothing => {
                        let end = self.ended(inside, member).filter(|_| q.get(queue::OCCUPIED) == 0);
                        if let Some(opens) = end {
                            self.take_eof(inside, member, opens);
                        }
                        took = Some(end.map_or(Took::Nothing, |_| Took::End));
                        return Ok(0);
                    }
                };
                let text = inside.text_of(&message)?;
                match text.place {
                    Place::Memory(span) if text.size <= INLINE => {
                        let (region, at, size) = inside.text(&message, span, text.class)?;
                        region.append_to(at, size, &mut out.bytes);
                        out.ends.push(out.bytes.len());
                        inside.remove(&q, &message)?;
                        count += 1;
                    }
                    _ if count > 0 => break,
                    _ => {
                        InFlight::ensure(&mut flight, self)?;
                        inside.hold(&q, &message, user);
                        far = Some(text);
                        break;
                    }
                }
            }
            load = inside.look_ahead(&q, user, self.parameters().buffers)?;
            Ok::<_, Stop>(count)
        })?;
        if let Some(text) = far {
            self.read_far(index, text, user, out)?;
            took = Some(Took::Messages(1));
        } else if count > 0 {
            took = Some(Took::Messages(count));
        }
        note(&self.finds, matches!(took, Some(Took::Messages(_))));
        if let Some(Took::Messages(count)) = took {
            let signal = driver.queue_signal(key.slot, queue::REMOVED);
            if count == 1 {
                signal.notify_one()
            } else {
                signal.notify_all()
            }
        }
        if let Some(load) = load {
            self.load(index, load, user);
        }
        Ok(took)
    }

    /// The second step of a long message, or of one on disk.
    fn read_far(&self, index: usize, text: Text, user: u32, out: &mut Batch) -> Result<()> {
        let (bytes, messages) = (out.bytes.len(), out.ends.len());
        let copied = out.fill(|bytes| self.copy_text(index, &text, bytes));
        let removed = self.system.driver.inside(Wait::Forever, |inside| {
            let q = inside.live(self.members[index].key)?;
            let message = inside
                .redeem(text.ticket, MessageState::Held(user))
                .ok_or(Error::Closed)?;
            match copied {
                Ok(()) => inside.remove(&q, &message)?,
                Err(_) => inside.give_back(&q, &message)?,
            }
            Ok(())
        });
        copied.and(removed).inspect_err(|_| {
            out.bytes.truncate(bytes);
            out.ends.truncate(messages);
        })
    }

    /// Appends the text of a message that is in this file's hands.
    pub(super) fn copy_text(&self, index: usize, text: &Text, bytes: &mut Vec<u8>) -> Result<()> {
        match text.place {
            Place::Disk(slot) => self.disk.read(index, slot, text.size, bytes),
            Place::Memory(span) => match self.system.driver.memory_at(span, class_units(text.class)) {
                Some((region, at)) => {
                    region.append_to(at, text.size, bytes);
                    Ok(())
                }
                None => Err(Error::Corrupt(format!("no buffer is at {span:?}"))),
            },
            Place::Nowhere => Err(Error::Corrupt("a message has no place".into())),
        }
    }

    /// Brings the next message from disk to memory, for whoever reads it. When that fails it stays on disk.
    fn load(&self, index: usize, load: Load, user: u32) {
        let driver = &self.system.driver;
        let mut text = Vec::new();
        let read = self.disk.read(index, load.slot, load.size, &mut text);
        let memory = driver.memory_at(load.buffer.span, class_units(load.buffer.class));
        if let Some((region, at)) = memory {
            region.copy_in(at, &text);
        }
        let key = self.members[index].key;
        let _ = driver.inside(Wait::Forever, |inside| {
            Ok(inside.end_move(key, load.ticket, user, read.is_ok() && memory.is_some())?)
        });
        self.notify_insert(key.slot, true);
    }
}

impl Inside<'_> {
    /// Where a message's text is; checked against its buffer.
    #[inline(always)]
    pub(super) fn text_of(&self, message: &Message<'_>) -> Result<Text> {
        let (place, class) = (message.place(), message.get(descriptor::CLASS));
        let size = match place {
            Place::Memory(span) => self.text(message, span, class)?.2,
            _ => message.get(descriptor::SIZE) as usize,
        };
        Ok(Text {
            ticket: ticket(message),
            place,
            class,
            size,
        })
    }

    /// Behaviour 18: the message that is next is on disk, and there is room for it in memory.
    fn look_ahead(&self, q: &Queue<'_>, user: u32, buffers: u32) -> Result<Option<Load>> {
        if q.get(queue::IN_MEMORY) >= buffers.min(q.get(queue::OCCUPIED)) {
            return Ok(None);
        }
        let Next::Message(message) = self.next(q)? else {
            return Ok(None);
        };
        let Place::Disk(slot) = message.place() else {
            return Ok(None);
        };
        let size = message.get(descriptor::SIZE) as usize;
        match self.begin_load(q, &message, user) {
            Ok(buffer) => Ok(Some(Load {
                ticket: ticket(&message),
                slot,
                size,
                buffer,
            })),
            // Reading ahead is not worth fetching memory for.
            Err(Stop::Grow(_)) => Ok(None),
            Err(Stop::Failed(error)) => Err(error),
        }
    }
}
