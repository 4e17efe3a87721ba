//! The handle: create, open, and what can be asked of a ring.

use std::sync::Arc;
use std::time::Duration;

use super::layout::{
    ALIGNMENT, Counter, FILE_LENGTH, Geometry, MAGIC, MAGIC_AT, MAX_LEN_AT, MSG_SIZE_AT, PLACES, Range, SLOTS_AT,
    TRAILER_MAGIC, TRAILER_VERSION, Trailer,
};
use super::memory::Memory;
use crate::shared::identity::Identity;
use crate::shared::region::Region;
use crate::shared::roster::Roster;
use crate::shared::sync::{Ordering, PrivateU64};
use crate::{Error, Result};

/// How long a call that does not wait for messages waits for others to get out of the way.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);
/// How long an attempt to read looks at a held header before it says that there is nothing now.
pub(super) const GLANCE: Duration = Duration::from_millis(25);

/// What can be chosen when a ring is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Breaks a lock that a foreign program has held for so long. A program whose life we cannot ask about may be slow and
    /// not dead, so by default its locks are never broken.
    pub foreign_timeout: Option<Duration>,
}

/// A message that was taken out of a ring or looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its place in the order of all messages ever enqueued, from 0; a gap says how many a reader missed. Messages of foreign
    /// programs have none.
    pub sequence: Option<u64>,
    /// All of its bytes, the zeros behind a short message included.
    pub data: Vec<u8>,
}

/// What became of the messages. At any moment `enqueued` is the sum of the others, of what readers were given, and of what
/// readers are copying now; an abandoned one counts twice as long as it has its place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages that got a slot.
    pub enqueued: u64,
    /// Oldest messages that gave their slot to a new one.
    pub overwritten: u64,
    /// Messages whose writer died before it had handed them over.
    pub abandoned: u64,
    /// Messages whose reader died before it had copied them.
    pub lost_in_hands: u64,
    /// Messages that a living reader was still copying when a writer needed the slot. The kernel takes a moment to notice a
    /// death: a writer that needs the slot of a dead reader within that moment counts here, too.
    pub discarded: u64,
    /// Messages in the queue, those that are being written and abandoned ones included.
    pub queued: u64,
}

/// A ring of fixed slots in shared memory. Any number of threads and processes may read and write at the same time.
///
/// ```
/// use tailrace::ring::Queue;
///
/// let ring = Queue::anonymous(2, 1)?;
/// for message in [b"1", b"2", b"3"] {
///     ring.enqueue(message)?;
/// }
/// let oldest = ring.try_dequeue()?.expect("two messages are left");
/// assert_eq!(oldest.data, b"2\0\0\0\0\0\0\0");
/// assert_eq!(oldest.sequence, Some(1), "message 0 was overwritten");
/// # Ok::<(), tailrace::Error>(())
/// ```
#[derive(Debug)]
pub struct Queue {
    pub(super) memory: Memory,
    pub(super) roster: Roster,
    pub(super) options: Options,
    /// Numbers the lock words of this handle's readers; changes under the header lock only.
    pub(super) readers: PrivateU64,
}

#[cfg(not(loom))]
impl Queue {
    /// Creates a ring of `max_len` slots for messages of `msg_size` 64-bit words. The file appears complete or not at all.
    pub fn create(path: &std::path::Path, max_len: u32, msg_size: u32) -> Result<Self> {
        Self::create_with(path, max_len, msg_size, Options::default())
    }

    /// As [`Queue::create`], with options for this handle.
    pub fn create_with(path: &std::path::Path, max_len: u32, msg_size: u32, options: Options) -> Result<Self> {
        let geometry = Geometry::new(max_len, msg_size)?;
        let trailer = geometry.trailer(PLACES);
        let (region, ()) = Region::create(path, trailer.end() as u64, |region| {
            Memory::format(region, geometry, trailer);
            Ok(())
        })?;
        Self::join(Memory::whole(Arc::new(region), geometry, trailer), options)
    }

    /// A ring without a name, for the threads of this process and its forked children.
    pub fn anonymous(max_len: u32, msg_size: u32) -> Result<Self> {
        let geometry = Geometry::new(max_len, msg_size)?;
        let trailer = geometry.trailer(PLACES);
        let region = Region::anonymous(trailer.end() as u64)?;
        Memory::format(&region, geometry, trailer);
        Self::join(Memory::whole(Arc::new(region), geometry, trailer), Options::default())
    }

    /// Opens a ring, and puts in order what dead participants left behind.
    ///
    /// A file without our trailer opens too; see [`Queue::has_trailer`] for what then cannot be promised.
    pub fn open(path: &std::path::Path) -> Result<Self> {
        Self::open_with(path, Options::default())
    }

    /// As [`Queue::open`], with options for this handle.
    pub fn open_with(path: &std::path::Path, options: Options) -> Result<Self> {
        let queue = Self::attach(path, options)?;
        queue.recover()?;
        Ok(queue)
    }

    /// As [`Queue::open`], leaving what the dead left to whoever needs it. For tests of that.
    #[doc(hidden)]
    pub fn open_without_recovery(path: &std::path::Path) -> Result<Self> {
        Self::attach(path, Options::default())
    }

    fn attach(path: &std::path::Path, options: Options) -> Result<Self> {
        let region = Arc::new(Region::open(path)?);
        let geometry = read_geometry(&region)?;
        let queue = match read_trailer(&region, geometry)? {
            Some(trailer) => Self::join(Memory::whole(region, geometry, trailer), options)?,
            None => Self::join(Memory::documented_only(region, geometry)?, options)?,
        };
        queue.memory.range()?;
        Ok(queue)
    }

    fn join(memory: Memory, options: Options) -> Result<Self> {
        let table = memory.trailer().roster();
        let roster = if memory.has_trailer() {
            Roster::join(memory.trailing(), table, None)?
        } else {
            // Handles of other processes make up their rosters in the same way: start at different numbers.
            let start = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0_u8) as u32;
            memory.trailing().u32(table.offset).store(start, Ordering::Relaxed);
            Roster::alone(memory.trailing(), table)?
        };
        Ok(Queue::assembled(memory, roster, options))
    }

    /// The file of the ring.
    pub fn path(&self) -> Option<&std::path::Path> {
        self.memory.ring().path()
    }
}

#[cfg(loom)]
impl Queue {
    /// An empty ring in modelled memory, and another handle for each further participant by [`Queue::model_join`].
    pub fn model(max_len: u32, msg_size: u32, places: u32) -> Result<Arc<Region>> {
        let geometry = Geometry::new(max_len, msg_size)?;
        let trailer = geometry.trailer(places);
        let region = Region::model(trailer.end(), &super::layout::wide_words(geometry, trailer));
        Memory::format(&region, geometry, trailer);
        Ok(Arc::new(region))
    }

    /// Takes part in modelled memory.
    pub fn model_join(region: &Arc<Region>) -> Result<Self> {
        let geometry = read_geometry(region)?;
        let trailer = read_trailer(region, geometry)?.expect("made by model");
        let roster = Roster::join(region, trailer.roster(), None)?;
        Ok(Queue::assembled(
            Memory::whole(region.clone(), geometry, trailer),
            roster,
            Options::default(),
        ))
    }

    /// Dies as a killed process would, in the slot of a message that it has not written yet.
    pub fn model_die_writing(self) {
        std::mem::forget(
            self.claim(crate::shared::signal::Wait::No)
                .expect("nothing is in the way"),
        );
        self.roster.abandon();
    }

    /// Dies as a killed process would, in the slot of the oldest message.
    pub fn model_die_reading(self) {
        let taken = self.take_oldest(&mut super::suspects::Suspects::default());
        std::mem::forget(taken.expect("nothing is in the way").expect("there is a message"));
        self.roster.abandon();
    }
}

impl Queue {
    fn assembled(memory: Memory, roster: Roster, options: Options) -> Self {
        Queue {
            memory,
            roster,
            options,
            readers: 0.into(),
        }
    }

    /// What was chosen when this handle was opened.
    pub fn options(&self) -> Options {
        self.options
    }

    /// Slots of the ring.
    pub fn max_len(&self) -> u32 {
        self.memory.max_len()
    }

    /// 64-bit words of a message.
    pub fn msg_size(&self) -> u32 {
        self.memory.geometry().msg_size()
    }

    /// Bytes of a message.
    #[inline]
    pub fn message_bytes(&self) -> usize {
        self.memory.geometry().message_bytes()
    }

    /// Messages in the queue at this moment, those that are being written included.
    pub fn len(&self) -> usize {
        Range::from_word(self.memory.range_word().load(Ordering::Acquire)).count()
    }

    /// Whether the queue is empty at this moment.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the next message will overwrite the oldest at this moment.
    pub fn is_full(&self) -> bool {
        self.len() >= self.max_len() as usize
    }

    /// Whether the file has our trailer. Without it nobody can tell a dead participant from a slow one (only
    /// [`Options::foreign_timeout`] helps), writers wait for readers that are still copying, counters and sequence numbers
    /// are this handle's own, and readers look for messages instead of being woken.
    pub fn has_trailer(&self) -> bool {
        self.memory.has_trailer()
    }

    /// Whether a program that knows only the document was seen changing the queue.
    pub fn foreign_seen(&self) -> bool {
        self.memory.foreign().load(Ordering::Relaxed) != 0
    }

    /// The counters at one moment, after putting in order what the dead left behind, so that they are exact.
    pub fn counters(&self) -> Result<Counters> {
        self.recover()?;
        let _header = self.header(self.patience())?;
        Ok(Counters {
            enqueued: self.enqueued(),
            overwritten: self.get(Counter::Overwritten),
            abandoned: self.get(Counter::Abandoned),
            lost_in_hands: self.get(Counter::LostInHands),
            discarded: self.get(Counter::Discarded),
            queued: self.memory.range()?.len.into(),
        })
    }

    /// Who takes part, with whether they live.
    pub fn participants(&self) -> Result<Vec<(Identity, bool)>> {
        self.roster.members()
    }

    pub(super) fn enqueued(&self) -> u64 {
        self.get(Counter::Enqueued)
    }
}

/// The documented head, read once and checked against the length of the file.
fn read_geometry(region: &Region) -> Result<Geometry> {
    let length = region.length() as u64;
    if length < SLOTS_AT as u64 {
        return Err(Error::Format(format!(
            "{length} bytes are too short for a ring, whose head alone has {SLOTS_AT}"
        )));
    }
    match region.u64(MAGIC_AT).load(Ordering::Acquire) {
        MAGIC => {}
        swapped if swapped.swap_bytes() == MAGIC => {
            return Err(Error::Format(
                "a ring of foreign byte order: it was made on a big-endian machine".into(),
            ));
        }
        other => {
            return Err(Error::Format(format!(
                "not a ring: it begins with {other:#018x}, not with {MAGIC:#018x}"
            )));
        }
    }
    let max_len = region.u32(MAX_LEN_AT).load(Ordering::Relaxed);
    let msg_size = region.u32(MSG_SIZE_AT).load(Ordering::Relaxed);
    let geometry = Geometry::new(max_len, msg_size).map_err(|e| Error::Corrupt(e.to_string()))?;
    let documented = geometry.documented_length();
    if length < documented {
        return Err(Error::Corrupt(format!(
            "the file has {length} bytes, a ring of {max_len} slots of {msg_size} words has {documented}"
        )));
    }
    Ok(geometry)
}

/// The trailer, if there is one.
fn read_trailer(region: &Region, geometry: Geometry) -> Result<Option<Trailer>> {
    let least = geometry.trailer(1);
    let fixed = least.settled();
    let length = region.length();
    if length < fixed {
        return Ok(None);
    }
    match region.u64(least.magic()).load(Ordering::Relaxed) {
        TRAILER_MAGIC => {}
        other => return without_trailer(region, geometry, other).map(|()| None),
    }
    let version = region.u32(least.version()).load(Ordering::Relaxed);
    if version != TRAILER_VERSION {
        return Err(Error::Format(format!(
            "the trailer has version {version}, this program knows version {TRAILER_VERSION}"
        )));
    }
    let places = region.u32(least.places()).load(Ordering::Relaxed);
    if !(1..=PLACES).contains(&places) {
        return Err(Error::Corrupt(format!(
            "the roster has {places} places, not 1 to {PLACES}"
        )));
    }
    let trailer = geometry.trailer(places);
    let noted = region.u64(least.file_length()).load(Ordering::Relaxed);
    if trailer.end() != length || noted != length as u64 {
        return Err(Error::Corrupt(format!(
            "the file has {length} bytes, its trailer says {noted} and needs {}",
            trailer.end()
        )));
    }
    Ok(Some(trailer))
}

/// A file that is longer than its documented part and has no trailer there, as a foreign program may make one; refused where
/// it can only be one of ours that was damaged: its parameters lead to the wrong places, or its trailer is overwritten.
fn without_trailer(region: &Region, geometry: Geometry, found: u64) -> Result<()> {
    let length = region.length();
    let expected = geometry.trailer(PLACES);
    if length == expected.end() {
        return Err(Error::Corrupt(format!(
            "the trailer begins with {found:#018x}, not with {TRAILER_MAGIC:#018x}"
        )));
    }
    let word = |at| region.u64(at).load(Ordering::Relaxed);
    let last = length.saturating_sub(expected.settled() - expected.at());
    let mut places = (0..last).step_by(ALIGNMENT as usize);
    match places.find(|&at| word(at) == TRAILER_MAGIC && word(at + FILE_LENGTH) == length as u64) {
        None => Ok(()),
        Some(at) => Err(Error::Corrupt(format!(
            "the trailer begins at byte {at}, that of a ring of {} slots of {} words at byte {}",
            geometry.max_len(),
            geometry.msg_size(),
            expected.at()
        ))),
    }
}
