//! Making a queue, and taking part in one that exists: every number of a file is checked here, once.

#[cfg(not(loom))]
use std::path::Path;
use std::sync::Arc;

use super::layout::{DeadLetter, Geometry, MAGIC, Options, VERSION, header};
use super::origin::Origin;
use super::queue::Queue;
use super::space::Space;
use crate::shared::region::Region;
use crate::shared::sync::Ordering::{Acquire, Relaxed, Release};
use crate::{Error, Result};

impl Queue {
    /// A queue in the memory of this process.
    #[cfg(not(loom))]
    pub fn in_process(options: &Options, id: u64) -> Result<Queue> {
        let geometry = checked(options)?;
        let region = Region::heap(geometry.length())?;
        Queue::over(Arc::new(region), geometry, options, id)
    }

    /// A new queue in zeroed memory, which nobody else uses yet.
    pub fn over(region: Arc<Region>, geometry: Geometry, options: &Options, id: u64) -> Result<Queue> {
        let origin = Origin {
            boot_id: [0; 2],
            time_namespace: 0,
        };
        format(&region, &geometry, options, id, &origin);
        Queue::join(Space { region, geometry }, id, options.dead_letter.clone())
    }

    /// A new queue file; [`Error::Exists`] when the name is taken.
    #[cfg(not(loom))]
    pub fn create(path: &Path, options: &Options, id: u64, here: &Origin) -> Result<Queue> {
        let geometry = checked(options)?;
        let (length, allocated) = (geometry.length() as u64, geometry.always_allocated() as u64);
        let (region, ()) = Region::create_growing(path, length, allocated, |region| {
            format(region, &geometry, options, id, here);
            Ok(())
        })?;
        let region = Arc::new(region);
        Queue::join(Space { region, geometry }, id, options.dead_letter.clone())
    }

    /// Opens a queue file, and takes it over when it is from another boot.
    #[cfg(not(loom))]
    pub fn open(path: &Path, here: &Origin, now: u64) -> Result<Queue> {
        let region = Region::open(path)?;
        let refused = |error| match error {
            Error::Format(text) => Error::Format(format!("{}: {text}", path.display())),
            Error::Corrupt(text) => Error::Corrupt(format!("{}: {text}", path.display())),
            other => other,
        };
        Queue::attach(Arc::new(region), here, now).map_err(refused)
    }

    /// Takes part in the queue that `region` holds.
    pub fn attach(region: Arc<Region>, here: &Origin, now: u64) -> Result<Queue> {
        let geometry = check(&region)?;
        let dead_letter = read_dead_letter(&region)?;
        let origin = Origin::read(&region);
        here.check(&origin)?;
        let id = region.u64(header::QUEUE_ID).load(Relaxed);
        let space = Space { region, geometry };
        back_with_space(&space)?;
        let queue = Queue::join(space, id, dead_letter)?;
        if !here.same_boot(&origin) {
            queue.adopt(here, now)?;
        }
        queue.examine(now)?;
        Ok(queue)
    }
}

#[cfg(not(loom))]
fn checked(options: &Options) -> Result<Geometry> {
    if let Some(dead) = &options.dead_letter {
        if dead.max_deliveries == 0 {
            return Err(Error::Invalid("max_deliveries must be at least 1, not 0".into()));
        }
        let (length, limit) = (dead.queue.len(), header::DEAD_LETTER_LIMIT);
        if length == 0 || length > limit {
            return Err(Error::Invalid(format!(
                "the name of a dead-letter queue has 1 to {limit} bytes, not {length}"
            )));
        }
    }
    Geometry::new(options)
}

fn format(region: &Region, geometry: &Geometry, options: &Options, id: u64, origin: &Origin) {
    let narrow = |offset: usize, value: u32| region.u32(offset).store(value, Relaxed);
    narrow(header::VERSION, VERSION);
    narrow(header::MAX_MESSAGES, geometry.max_messages);
    narrow(header::MAX_MESSAGE_SIZE, geometry.max_message_size);
    narrow(header::UNIT, geometry.unit);
    narrow(header::UNITS, geometry.units);
    narrow(header::SEGMENTS, geometry.segments);
    narrow(header::PARTICIPANTS, geometry.participants);
    if let Some(dead) = &options.dead_letter {
        narrow(header::MAX_DELIVERIES, dead.max_deliveries);
        narrow(header::DEAD_LETTER_LENGTH, dead.queue.len() as u32);
        region.copy_in(header::DEAD_LETTER, dead.queue.as_bytes());
    }
    region.u64(header::QUEUE_ID).store(id, Relaxed);
    origin.write(region);
    region.u64(header::MAGIC).store(MAGIC, Release);
}

/// The geometry of a file that says it is a queue, if all of it is inside the file.
fn check(region: &Region) -> Result<Geometry> {
    if region.length() < header::LENGTH {
        let length = region.length();
        return Err(Error::Format(format!("{length} bytes are too few for a conq queue")));
    }
    let magic = region.u64(header::MAGIC).load(Acquire);
    if magic == MAGIC.swap_bytes() {
        return Err(Error::Format(
            "a conq queue of a machine with the other byte order".into(),
        ));
    }
    if magic != MAGIC {
        return Err(Error::Format("not a conq queue".into()));
    }
    let narrow = |offset: usize| region.u32(offset).load(Relaxed);
    let version = narrow(header::VERSION);
    if version != VERSION {
        return Err(Error::Format(format!(
            "a conq queue of version {version}; this program knows version {VERSION}"
        )));
    }
    let geometry = Geometry::from_parts(
        narrow(header::MAX_MESSAGES),
        narrow(header::MAX_MESSAGE_SIZE),
        narrow(header::PARTICIPANTS),
        narrow(header::UNIT),
        narrow(header::UNITS),
        narrow(header::SEGMENTS),
    )
    .ok_or_else(|| Error::Corrupt("the geometry in the header is impossible".into()))?;
    if geometry.length() != region.length() {
        return Err(Error::Corrupt(format!(
            "the header describes {} bytes, the file has {}",
            geometry.length(),
            region.length()
        )));
    }
    Ok(geometry)
}

fn read_dead_letter(region: &Region) -> Result<Option<DeadLetter>> {
    let length = region.u32(header::DEAD_LETTER_LENGTH).load(Relaxed) as usize;
    let max_deliveries = region.u32(header::MAX_DELIVERIES).load(Relaxed);
    if length == 0 && max_deliveries == 0 {
        return Ok(None);
    }
    if length == 0 || length > header::DEAD_LETTER_LIMIT || max_deliveries == 0 {
        return Err(Error::Corrupt(
            "the dead-letter queue in the header is impossible".into(),
        ));
    }
    let mut name = vec![0; length];
    region.copy_out(header::DEAD_LETTER, &mut name);
    let queue =
        String::from_utf8(name).map_err(|_| Error::Corrupt("the name of the dead-letter queue is not UTF-8".into()))?;
    Ok(Some(DeadLetter { max_deliveries, queue }))
}

/// Makes sure that everything in use has its space on disk, as it has unless the file is a sparse copy: a store into a hole of
/// a full disk would be a SIGBUS.
fn back_with_space(space: &Space) -> Result<()> {
    let geometry = &space.geometry;
    space.region.allocate(0, geometry.always_allocated())?;
    let narrow = |offset: usize| space.narrow(offset).load(Relaxed);
    let places = u64::from(narrow(header::RING_ALLOCATED)).min(geometry.places);
    if places > 0 {
        space.region.allocate(geometry.place(0), 8 * places as usize)?;
    }
    let nodes = narrow(header::HEAP_ALLOCATED).min(geometry.max_messages);
    if nodes > 0 {
        space.region.allocate(geometry.node(0), 16 * nodes as usize)?;
    }
    for segment in (0..geometry.segments).filter(|segment| space.class_of(*segment).is_some()) {
        let (offset, length) = geometry.segment(segment);
        space.region.allocate(offset, length)?;
    }
    Ok(())
}
