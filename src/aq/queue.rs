//! The handle of a queue: making one, opening one, and what can be asked of it.

#[cfg(not(loom))]
use std::path::Path;
use std::sync::{Arc, RwLock};

use super::control::State;
use super::layout::{Format, Geometry, TrailerLayout};
use super::memory::{self, Memory, Trailer};
use super::owners;
use super::reader::Reader;
use super::role::Role;
use super::snapshot::Snapshot;
use super::walk::Walk;
use super::writer::Writer;
#[cfg(not(loom))]
use crate::Error;
use crate::Result;
use crate::os::clock::Clock;
use crate::shared::region::Region;
use crate::shared::roster::Roster;
#[cfg(feature = "python")]
use crate::shared::signal::Wait;
use crate::shared::sync::{AtomicU32, Ordering};

/// Participants and recorded writers of a new queue: the trailer takes 73 KiB with them.
#[cfg(not(loom))]
const SLOTS: u32 = 1024;
#[cfg(not(loom))]
const LINES: u32 = 1024;

/// An allocating queue.
///
/// ```
/// use tailrace::aq::{Format, Queue};
///
/// let queue = Queue::anonymous(1 << 16, &Format::default())?;
/// let (writer, mut reader) = (queue.writer()?, queue.reader()?);
/// assert!(writer.try_put(b"first")?);
/// let message = reader.take(|message| {
///     let mut bytes = Vec::new();
///     message.append_to(&mut bytes);
///     Ok(bytes)
/// })?;
/// assert_eq!(message.as_deref(), Some(&b"first"[..]));
/// # tailrace::Result::Ok(())
/// ```
#[derive(Debug)]
pub struct Queue {
    region: Arc<Region>,
    trailer: Option<Trailer>,
    /// Bytes of the AQ region, which is what is formatted.
    size: usize,
    formatted: RwLock<Option<Arc<Memory>>>,
    /// 1 while a reader of this handle exists, where the kernel cannot say.
    reader: Arc<AtomicU32>,
}

/// What is known about a queue at a moment, for people and metrics.
#[derive(Clone, Debug)]
pub struct Info {
    /// The geometry; `None` when the region is not formatted.
    pub geometry: Option<Geometry>,
    /// Whether owners of claims are known and sleepers are woken.
    pub has_trailer: bool,
    /// Participants: process number and whether it lives.
    pub participants: Vec<(u32, bool)>,
}

#[cfg(not(loom))]
impl Queue {
    /// Creates the file at `path` with a formatted queue of `size` bytes and a trailer behind it.
    pub fn create(path: &Path, size: usize, format: &Format) -> Result<Queue> {
        // The base of a mapping is a multiple of every alignment.
        Geometry::compute(0, size, format)?;
        let layout = TrailerLayout::new(size, SLOTS, LINES);
        let (region, ()) = Region::create(path, layout.end() as u64, |region| {
            prepare(region, size, layout, format)
        })?;
        Queue::attach(region)
    }

    /// Opens a queue file, whoever formatted it. A file that is not formatted can be, by [`Queue::format`].
    pub fn open(path: &Path) -> Result<Queue> {
        Queue::attach(Region::open(path)?)
    }

    /// Memory without a name, for the threads of this process and its forked children.
    pub fn anonymous(size: usize, format: &Format) -> Result<Queue> {
        Geometry::compute(0, size, format)?;
        let layout = TrailerLayout::new(size, SLOTS, LINES);
        let region = Region::anonymous(layout.end() as u64)?;
        prepare(&region, size, layout, format)?;
        Queue::attach(region)
    }

    /// Memory of this process alone.
    pub fn heap(size: usize, format: &Format) -> Result<Queue> {
        Geometry::compute(0, size, format)?;
        let layout = TrailerLayout::new(size, 16, LINES);
        let region = Region::heap(layout.end())?;
        prepare(&region, size, layout, format)?;
        Queue::attach(region)
    }

    /// All of a region that the caller has: no trailer, the commit timeout alone. It may be formatted already or not.
    pub fn over(region: Region) -> Result<Queue> {
        let address = region.pointer(0, 0) as usize;
        if !address.is_multiple_of(4) {
            return Err(Error::Invalid(format!(
                "the memory must start at a multiple of 4 bytes, not at {address:#x}"
            )));
        }
        let size = region.length();
        Ok(Queue::with(Arc::new(region), None, size))
    }
}

impl Queue {
    /// A queue in modelled memory, with or without the trailer that `slots` and `lines` describe.
    #[cfg(loom)]
    pub fn model(size: usize, format: &Format, trailer: Option<(u32, u32)>) -> Result<Queue> {
        let Some((slots, lines)) = trailer else {
            let region = Region::model(size.next_multiple_of(4), &[]);
            memory::format(&region, size, format)?;
            return Ok(Queue::with(Arc::new(region), None, size));
        };
        let layout = TrailerLayout::new(size, slots, lines);
        let region = Region::model(layout.end(), &layout.wide_words());
        prepare(&region, size, layout, format)?;
        Queue::attach(region)
    }

    fn attach(region: Region) -> Result<Queue> {
        let region = Arc::new(region);
        let layout = memory::read_geometry(&region)
            .ok()
            .and_then(|geometry| Some((memory::find_trailer(&region, &geometry)?, geometry.size as usize)));
        let Some((layout, size)) = layout else {
            let size = region.length();
            return Ok(Queue::with(region, None, size));
        };
        let roster = Arc::new(Roster::join(&region, layout.roster(), None)?);
        Ok(Queue::with(region, Some(Trailer { layout, roster }), size))
    }

    fn with(region: Arc<Region>, trailer: Option<Trailer>, size: usize) -> Queue {
        let formatted = Memory::attach(&region, trailer.clone()).ok().map(Arc::new);
        Queue {
            region,
            trailer,
            size,
            formatted: RwLock::new(formatted),
            reader: Arc::new(AtomicU32::new(0)),
        }
    }

    /// Formats the region anew: whatever was in it is gone. Needs the reader's role, and no writer may be at work.
    pub fn format(&self, format: &Format) -> Result<()> {
        let _role = Role::take(&self.region, &self.reader)?;
        memory::format(&self.region, self.size, format)?;
        if let Some(trailer) = &self.trailer {
            owners::forget_all(&self.region, trailer.layout);
            let laps = self.region.u64(trailer.layout.laps());
            laps.store(0, Ordering::Relaxed);
        }
        let memory = Arc::new(Memory::attach(&self.region, self.trailer.clone())?);
        *self.formatted.write().expect("no panic while it is held") = Some(memory);
        Ok(())
    }

    fn memory(&self) -> Result<Arc<Memory>> {
        let known = self.formatted.read().expect("no panic while it is held").clone();
        if let Some(memory) = known.filter(|memory| memory.is_current()) {
            return Ok(memory);
        }
        // Somebody else may have formatted it since.
        let memory = Arc::new(Memory::attach(&self.region, self.trailer.clone())?);
        *self.formatted.write().expect("no panic while it is held") = Some(memory.clone());
        Ok(memory)
    }

    /// Whether the region holds a queue.
    pub fn is_formatted(&self) -> bool {
        memory::read_geometry(&self.region).is_ok()
    }

    /// A new writer.
    pub fn writer(&self) -> Result<Writer> {
        Ok(Writer::new(self.memory()?))
    }

    /// The one reader; [`Error::AlreadyOpen`] while there is another on this host.
    pub fn reader(&self) -> Result<Reader> {
        self.reader_with(Clock::monotonic())
    }

    /// The reader, with a clock of the caller's for the commit timeout.
    pub fn reader_with(&self, clock: Clock) -> Result<Reader> {
        let memory = self.memory()?;
        let role = Role::take(&self.region, &self.reader)?;
        Reader::new(memory, role, clock)
    }

    /// A copy of everything that is in the ring.
    pub fn snapshot(&self) -> Result<Snapshot> {
        Snapshot::take(&*self.memory()?)
    }

    /// The geometry of the formatted region.
    pub fn geometry(&self) -> Result<Geometry> {
        Ok(self.memory()?.geometry)
    }

    /// Bytes of the AQ region.
    pub fn memory_size(&self) -> usize {
        self.size
    }

    /// Bytes of the largest claim that would succeed now.
    pub fn available_size(&self) -> Result<usize> {
        self.memory()?.available_bytes()
    }

    /// How often writers lost a race for the head.
    pub fn claim_contention_count(&self) -> Result<u32> {
        Ok(self.memory()?.contention().load(Ordering::Relaxed))
    }

    /// +1 with every committed segment; wraps.
    pub fn commit_counter(&self) -> Result<u32> {
        Ok(self.memory()?.commit_counter().load(Ordering::Acquire))
    }

    /// +1 with every freed run of pages; wraps.
    pub fn free_counter(&self) -> Result<u32> {
        Ok(self.memory()?.free_counter().load(Ordering::Acquire))
    }

    /// Incomplete items that were skipped or reaped: by anybody where there is a trailer, else through this handle.
    pub fn incomplete_count(&self) -> Result<u64> {
        Ok(self.memory()?.incomplete().load(Ordering::Relaxed))
    }

    /// Items that were skipped because of a wrong checksum; counted as incomplete ones are.
    pub fn corrupt_count(&self) -> Result<u64> {
        Ok(self.memory()?.corrupt().load(Ordering::Relaxed))
    }

    /// Committed items that are not released: a moment's view, counted by a walk over the ring.
    pub fn len(&self) -> Result<usize> {
        let memory = self.memory()?;
        let mut walk = Walk::new(&memory)?;
        let head = walk.head(&memory)?;
        let mut count = 0;
        walk.visit(&memory, head, |state| count += usize::from(state == State::Committed));
        Ok(count)
    }

    /// Whether no committed item waits.
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Waits until `attempt` finds what a commit may have brought.
    #[cfg(feature = "python")]
    pub(crate) fn wait_for_commit<T>(
        &self,
        wait: Wait,
        idle: impl FnMut() -> Result<()>,
        attempt: impl FnMut() -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        self.memory()?.wait_for_commit(wait, idle, attempt)
    }

    /// Waits until `attempt` finds the room that a release may have brought.
    #[cfg(feature = "python")]
    pub(crate) fn wait_for_room<T>(
        &self,
        wait: Wait,
        idle: impl FnMut() -> Result<()>,
        attempt: impl FnMut() -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        self.memory()?.wait_for_room(wait, idle, attempt)
    }

    /// The region that holds the queue.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// What is known about the queue now. Asks the kernel about each participant.
    pub fn info(&self) -> Result<Info> {
        let members = match &self.trailer {
            Some(trailer) => trailer.roster.members()?,
            None => Vec::new(),
        };
        Ok(Info {
            geometry: self.geometry().ok(),
            has_trailer: self.trailer.is_some(),
            participants: members.iter().map(|(member, lives)| (member.pid(), *lives)).collect(),
        })
    }
}

fn prepare(region: &Region, size: usize, layout: TrailerLayout, format: &Format) -> Result<()> {
    memory::format(region, size, format)?;
    memory::write_trailer(region, size, layout);
    Ok(())
}
