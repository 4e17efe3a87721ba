//! WRITE: a record enters the queue at once, at the back or at the top (sections 2.3, 6.0, 6.2).
//!
//! A short record that goes to memory is copied inside the monitor, in one visit. A long one, and one that goes to disk, takes
//! two visits with the copy or the I/O between them. A record that would make the messages in memory reach Q.BUFFERS is itself
//! the tail-most one when it comes to the back, so it is written to disk before it is in the queue at all; a record for the top
//! pushes another one out.

use super::driver::{Entry, Inside, Stop};
use super::file::QueueFile;
use super::layout::{MessageState, Place, Span, descriptor, head, queue};
use super::queue::{End, Ticket};
use super::records::{Message, Queue};
use crate::shared::signal::{Turn, Wait};
use crate::shared::sync::{Ordering, PrivateFlag};
use crate::{Error, Result};

/// The longest text that is copied inside.
pub(super) const INLINE: usize = 4096;
/// The most messages and bytes of one visit.
pub(super) const VISIT_MESSAGES: usize = 64;
pub(super) const VISIT_BYTES: usize = 1 << 16;

/// What is left to do outside.
#[derive(Default)]
struct Rest {
    /// A message to be filled and then put into the list.
    fill: Option<(Ticket, Place, u32)>,
    /// A message to be written to disk.
    spill: Option<Spill>,
}

/// A message on its way from memory to disk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spill {
    pub(super) ticket: Ticket,
    pub(super) member: usize,
    slot: u32,
    span: Span,
    class: u32,
    size: usize,
}

/// Counts an operation that is between its steps, so that a close waits for it.
pub(super) struct InFlight<'a>(&'a QueueFile);

impl<'a> InFlight<'a> {
    #[inline]
    pub(super) fn begin(file: &'a QueueFile) -> Result<Self> {
        // SYNC: in flight (with `QueueFile::close`): each side says what it does before it looks at the other, in one order
        // for all, so that the operation sees that the file is closed or the close sees the operation.
        file.in_flight.fetch_add(1, Ordering::SeqCst);
        total_order();
        let flight = InFlight(file);
        file.check_open()?;
        Ok(flight)
    }

    /// For an operation that finds out inside that one visit is not enough; before it takes anything.
    #[inline]
    pub(super) fn ensure(flight: &mut Option<Self>, file: &'a QueueFile) -> Result<()> {
        if flight.is_none() {
            *flight = Some(InFlight::begin(file)?);
        }
        Ok(())
    }
}

impl Drop for InFlight<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::SeqCst);
        total_order();
        if self.0.is_closed() {
            self.0.system.driver.any_insert().notify_all();
        }
    }
}

/// `SeqCst` accesses have one order for all; loom takes them for acquire and release, and needs to be told.
#[inline]
pub(super) fn total_order() {
    #[cfg(loom)]
    crate::shared::sync::fence(Ordering::SeqCst);
}

/// Remembers how it went, without touching memory that other threads read when nothing changes.
#[inline]
pub(super) fn note(flag: &PrivateFlag, value: bool) {
    if flag.load(Ordering::Relaxed) != value {
        flag.store(value, Ordering::Relaxed);
    }
}

impl QueueFile {
    /// Writes if there is room; `Ok(false)` is INCOMPLETE.IO. A lock that is taken is [`Error::TimedOut`].
    #[inline]
    pub fn try_write(&self, key: Option<i64>, text: &[u8], end: End) -> Result<bool> {
        let member = self.check_write(key, &[text])?;
        Ok(self.write_some(member, &[text], end, Entry::As(Wait::No))? == 1)
    }

    /// A hint: the next record may have to be written to disk.
    #[inline]
    pub fn may_write_disk(&self) -> bool {
        let parameters = self.parameters();
        let in_memory = |slot| self.system.driver.queue_word(slot, queue::IN_MEMORY);
        parameters.buffers < parameters.max_messages
            && self
                .members
                .iter()
                .any(|m| in_memory(m.key.slot).saturating_add(1) >= parameters.buffers)
    }

    /// Writes, waiting for room as long as `wait` allows; `Ok(false)` when the time is up.
    pub fn write(
        &self,
        key: Option<i64>,
        text: &[u8],
        end: End,
        wait: Wait,
        idle: impl FnMut() -> Result<()>,
    ) -> Result<bool> {
        Ok(self.write_many(key, &[text], end, wait, idle)? == 1)
    }

    /// Writes records one after the other, waiting for room; gives how many were written when the time is up.
    pub fn write_many<T: AsRef<[u8]>>(
        &self,
        key: Option<i64>,
        texts: &[T],
        end: End,
        wait: Wait,
        mut idle: impl FnMut() -> Result<()>,
    ) -> Result<usize> {
        let member = self.check_write(key, texts)?;
        let signal = self
            .system
            .driver
            .queue_signal(self.members[member].key.slot, queue::REMOVED);
        let (mut written, mut no_memory) = (0, None);
        let entry = Entry::of_attempt(wait);
        while written < texts.len() {
            let mut look = || {
                self.check_open()?;
                self.look_around()?;
                idle()
            };
            let count = signal.wait_for(wait, Turn::PeerMatters, &mut look, || {
                no_memory = None;
                match self.write_some(member, &texts[written..], end, entry) {
                    Ok(0) | Err(Error::TimedOut) => Ok(None),
                    // Other queues have it; their readers give it back.
                    Err(error @ Error::Full(_)) => {
                        no_memory = Some(error);
                        Ok(None)
                    }
                    other => other.map(Some),
                }
            })?;
            match count {
                Some(count) => written += count,
                // What a dead holder had in hand takes up room until somebody looks.
                None if self.look_around()? => {}
                None => break,
            }
        }
        match no_memory {
            Some(error) if written == 0 => Err(error),
            _ => Ok(written),
        }
    }

    /// Argument errors come before state errors.
    #[inline]
    fn check_write<T: AsRef<[u8]>>(&self, key: Option<i64>, texts: &[T]) -> Result<usize> {
        let limit = self.parameters().record_size;
        if let Some(text) = texts.iter().find(|text| text.as_ref().len() > limit as usize) {
            return Err(Error::TooLarge {
                size: text.as_ref().len() as u64,
                limit: limit.into(),
            });
        }
        let member = self.write_target(key)?;
        self.check_writes()?;
        Ok(member)
    }

    /// Writes at least one of `texts` if there is room, and as many as one visit may.
    fn write_some<T: AsRef<[u8]>>(&self, member: usize, texts: &[T], end: End, lock: Entry) -> Result<usize> {
        let slot = self.members[member].key.slot;
        let driver = &self.system.driver;
        let is_full = || driver.queue_word(slot, queue::OCCUPIED) >= self.parameters().max_messages;
        if !self.fits.load(Ordering::Relaxed) && is_full() {
            return Ok(0);
        }
        let written = match self.visit_to_write(member, texts, end, lock, false) {
            // No memory: straight to disk, and if there is none even for the descriptor, after making some.
            Err(error) if lacks_memory(&error) => match self.visit_to_write(member, texts, end, lock, true) {
                Err(error) if lacks_memory(&error) => {
                    // What could not be made is missing in the next visit.
                    let _ = self.system.reclaim();
                    self.visit_to_write(member, texts, end, lock, true)?
                }
                other => other?,
            },
            other => other?,
        };
        note(&self.fits, written > 0);
        match written {
            0 => {}
            1 => self.notify_insert(slot, false),
            _ => self.notify_insert(slot, true),
        }
        Ok(written)
    }

    /// Wakes whoever waits for messages of this member, or of several.
    #[inline]
    pub(super) fn notify_insert(&self, slot: u32, all: bool) {
        let driver = &self.system.driver;
        let signal = driver.queue_signal(slot, queue::INSERTED);
        if all {
            signal.notify_all();
        } else {
            signal.notify_one();
        }
        // The fence of the first signal serves both.
        driver.any_insert().notify_all_fenced();
    }

    fn visit_to_write<T: AsRef<[u8]>>(
        &self,
        member: usize,
        texts: &[T],
        end: End,
        lock: Entry,
        to_disk: bool,
    ) -> Result<usize> {
        let key = self.members[member].key;
        let user = self.user()?;
        let mut flight = None;
        let (written, rest) = self.system.driver.inside(lock, |inside| {
            // Whoever closes the file enters once more: what is done in one visit is done before, or not at all.
            self.check_open()?;
            let q = inside.live(key)?;
            let (mut written, mut bytes) = (0, 0);
            let mut rest = Rest::default();
            for text in texts.iter().map(AsRef::as_ref) {
                if !inside.has_room(&q) || written == VISIT_MESSAGES || bytes > VISIT_BYTES {
                    break;
                }
                let spill = to_disk || goes_to_disk(&q, end);
                if spill || text.len() > INLINE || end == End::Top {
                    InFlight::ensure(&mut flight, self)?;
                }
                if spill || text.len() > INLINE {
                    if written == 0 {
                        let message = inside.begin(&q, user, text.len(), spill)?;
                        let class = message.get(descriptor::CLASS);
                        rest.fill = Some((ticket(&message), message.place(), class));
                    }
                    break;
                }
                let message = match inside.begin(&q, user, text.len(), false) {
                    // What is written stays written; the next visit asks for memory.
                    Err(Stop::Grow(_)) if written > 0 => break,
                    begun => begun?,
                };
                inside.fill_inline(&message, text)?;
                inside.finish(&q, &message, end)?;
                written += 1;
                bytes += text.len();
                rest.spill = inside.push_out(&q, member, end, user)?;
                if rest.spill.is_some() {
                    break;
                }
            }
            Ok((written, rest))
        })?;
        if let Some(spill) = rest.spill {
            self.spill(spill, user);
        }
        match rest.fill {
            None => Ok(written),
            Some((ticket, place, class)) => {
                let text = texts[0].as_ref();
                self.fill(member, text, ticket, (place, class), end, user).map(|()| 1)
            }
        }
    }

    /// The second step of a long record, or of one that goes to disk.
    fn fill(&self, member: usize, text: &[u8], t: Ticket, at: (Place, u32), end: End, user: u32) -> Result<()> {
        let driver = &self.system.driver;
        let filled = match at {
            (Place::Disk(slot), _) => self.disk.write(member, slot, text),
            (Place::Memory(span), class) => match driver.memory_at(span, super::layout::class_units(class)) {
                Some((region, at)) => {
                    region.copy_in(at, text);
                    Ok(())
                }
                None => Err(Error::Corrupt(format!("no buffer is at {span:?}"))),
            },
            (Place::Nowhere, _) => Err(Error::Corrupt("a message has no place".into())),
        };
        let spill = driver.inside(Wait::Forever, |inside| {
            let q = inside.live(self.members[member].key)?;
            let message = inside.redeem(t, MessageState::Filling(user)).ok_or(Error::Closed)?;
            if filled.is_err() {
                inside.discard(&q, &message, message.place())?;
                return Ok(None);
            }
            if let Place::Disk(_) = message.place() {
                q.count(queue::SPILLS);
                inside.count(head::SPILLS);
            }
            inside.finish(&q, &message, end)?;
            Ok(inside.push_out(&q, member, end, user)?)
        })?;
        filled?;
        if let Some(spill) = spill {
            self.spill(spill, user);
        }
        Ok(())
    }

    /// Writes a message to disk that is in this user's hands for it, and lets it flip. When that fails it stays in memory.
    pub(super) fn spill(&self, spill: Spill, user: u32) {
        let written = self.system.spill_text(&self.disk, &spill);
        let key = self.members[spill.member].key;
        let _ = self.system.driver.inside(Wait::Forever, |inside| {
            Ok(inside.end_move(key, spill.ticket, user, written.is_ok())?)
        });
        self.notify_insert(key.slot, true);
    }
}

impl super::system::System {
    /// Copies the text of a message that is being spilled to its place on disk.
    pub(super) fn spill_text(&self, disk: &super::disk::QueueDisk, spill: &Spill) -> Result<()> {
        let units = super::layout::class_units(spill.class);
        let Some((region, at)) = self.driver.memory_at(spill.span, units) else {
            return Err(Error::Corrupt(format!("no buffer is at {:?}", spill.span)));
        };
        let mut text = Vec::new();
        region.append_to(at, spill.size, &mut text);
        disk.write(spill.member, spill.slot, &text)
    }
}

/// The memory of the system is at its limit, or the disk that it lies on is full.
fn lacks_memory(error: &Error) -> bool {
    match error {
        Error::Full(_) => true,
        Error::Io { source, .. } => source.kind() == std::io::ErrorKind::StorageFull,
        _ => false,
    }
}

/// Whether a record for this end is one that goes to disk at once (behaviours 15, 16, 22).
#[inline]
fn goes_to_disk(q: &Queue<'_>, end: End) -> bool {
    let (in_memory, buffers) = (q.get(queue::IN_MEMORY), q.get(queue::BUFFERS));
    let reaches = q.spills() && in_memory.saturating_add(1) >= buffers;
    reaches && (end == End::Back || in_memory == 0 || in_memory >= buffers)
}

#[inline]
pub(super) fn ticket(message: &Message<'_>) -> Ticket {
    Ticket {
        number: message.number,
        stamp: message.stamp(),
    }
}

impl Inside<'_> {
    /// Copies a short text into the buffer that was taken for it.
    #[inline]
    fn fill_inline(&self, message: &Message<'_>, text: &[u8]) -> Result<()> {
        let Place::Memory(span) = message.place() else {
            return Err(Error::Corrupt(format!(
                "message descriptor {} has no buffer",
                message.number
            )));
        };
        let (region, at, _) = self.text(message, span, message.get(descriptor::CLASS))?;
        region.copy_in(at, text);
        Ok(())
    }

    /// After a record has come to the top: the tail-most message that has to leave memory for it.
    #[inline]
    fn push_out(&self, q: &Queue<'_>, member: usize, end: End, user: u32) -> Result<Option<Spill>> {
        if end == End::Back || !q.spills() || q.get(queue::IN_MEMORY) < q.get(queue::BUFFERS) {
            return Ok(None);
        }
        self.take_spill(q, member, user)
    }

    /// Takes the spill of the tail-most message in memory in hand.
    pub(super) fn take_spill(&self, q: &Queue<'_>, member: usize, user: u32) -> Result<Option<Spill>> {
        let Some(message) = self.tail_most_in_memory(q)? else {
            return Ok(None);
        };
        let (Place::Memory(span), class) = (message.place(), message.get(descriptor::CLASS)) else {
            return Ok(None);
        };
        let (_, _, size) = self.text(&message, span, class)?;
        let slot = self.begin_spill(q, &message, user)?;
        Ok(Some(Spill {
            ticket: ticket(&message),
            member,
            slot,
            span,
            class,
            size,
        }))
    }

    /// Ends a move between memory and disk, one way or the other.
    pub(super) fn end_move(&self, key: super::queue::QKey, t: Ticket, user: u32, made: bool) -> Result<()> {
        let q = self.live(key)?;
        match self.redeem(t, MessageState::Moving(user)) {
            Some(message) if made => self.finish_move(&q, &message),
            Some(message) => self.cancel_move(&q, &message),
            None => Ok(()),
        }
    }
}
