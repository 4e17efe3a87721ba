//! Queues by name: those of this process, or those of the host. The only reader of a clock in this module.
//!
//! ```
//! use std::time::Duration;
//! use tailrace::conq::{Manager, Options};
//!
//! let manager = Manager::of_this_process();
//! let jobs = manager.create_queue("doc-jobs", &Options::default())?;
//! manager.enqueue(jobs, b"one")?;
//!
//! let message = manager.read(jobs, Duration::from_secs(30))?.expect("one is waiting");
//! assert_eq!((message.data.as_slice(), message.receipt.delivery), (&b"one"[..], 1));
//! assert!(manager.read(jobs, Duration::from_secs(30))?.is_none(), "it is in our hands");
//! manager.dequeue(jobs, &message.receipt)?;
//! manager.delete_queue(jobs)?;
//! # Ok::<(), tailrace::Error>(())
//! ```

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::directory::Directory;
use super::layout::Options;
use super::origin::Origin;
use super::process::Registry;
use super::queue::{Lease, Queue, Receipt, Stats};
use crate::os::clock::{Clock, saturating_nanos};
use crate::{Error, Result};

/// A lease that ends later than this from a recent moment has not ended: no kernel's tick is so late. And if one were, a message
/// would only be finished by the hands that it is still in.
const NEAR: u64 = 1_000_000_000;

/// A message that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The queue's number.
    pub queue_id: u64,
    /// Id and delivery: what it is finished with.
    pub receipt: Receipt,
    /// A copy of the bytes.
    pub data: Vec<u8>,
}

/// Queues by name. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Manager {
    home: Home,
    clock: Clock,
}

#[derive(Clone, Debug)]
enum Home {
    /// The one that everybody in this process shares.
    ThisProcess,
    /// One that only those see who were given it.
    Private(Arc<Registry>),
    /// A directory, for every process of the host.
    Host(Arc<Directory>),
}

impl Manager {
    /// The manager that all of this process share. In a forked child it starts empty.
    pub fn of_this_process() -> Self {
        Manager {
            home: Home::ThisProcess,
            clock: Clock::boottime(),
        }
    }

    /// A manager of its own, on a clock of its own.
    pub fn private(clock: Clock) -> Self {
        Manager {
            home: Home::Private(Arc::default()),
            clock,
        }
    }

    /// The manager of a directory, which is made where it is missing: shared by every process of this host that opens it.
    pub fn open(directory: &Path) -> Result<Self> {
        Manager::open_at(directory, Clock::boottime(), Origin::here()?)
    }

    /// As [`Manager::open`], on another clock: whoever shares a directory has to agree about the time.
    pub fn open_at(directory: &Path, clock: Clock, origin: Origin) -> Result<Self> {
        let directory = Directory::open(directory, clock.clone(), origin)?;
        Ok(Manager {
            home: Home::Host(Arc::new(directory)),
            clock,
        })
    }

    /// Where the queues are, for a manager of the host.
    pub fn directory(&self) -> Option<&Path> {
        match &self.home {
            Home::Host(directory) => Some(directory.path()),
            _ => None,
        }
    }

    /// Makes a queue and returns its number; [`Error::Exists`] when the name is taken.
    pub fn create_queue(&self, name: &str, options: &Options) -> Result<u64> {
        if options.dead_letter.as_ref().is_some_and(|dead| dead.queue == name) {
            return Err(Error::Invalid(format!("{name:?} cannot be its own dead-letter queue")));
        }
        match &self.home {
            Home::ThisProcess => Registry::shared().create(name, options),
            Home::Private(registry) => registry.create(name, options),
            Home::Host(directory) => directory.create(name, options),
        }
    }

    /// The number of the queue of this name.
    pub fn get_queue(&self, name: &str) -> Result<u64> {
        Ok(self.named(name)?.id())
    }

    /// Deletes a queue with all its messages, for everybody who uses it.
    pub fn delete_queue(&self, id: u64) -> Result<()> {
        match &self.home {
            Home::ThisProcess => Registry::shared().delete(id),
            Home::Private(registry) => registry.delete(id),
            Home::Host(directory) => directory.delete(id),
        }
    }

    /// The names of all queues, sorted.
    pub fn names(&self) -> Result<Vec<String>> {
        let mut names = match &self.home {
            Home::ThisProcess => Registry::shared().names(),
            Home::Private(registry) => registry.names(),
            Home::Host(directory) => directory.names()?,
        };
        names.sort_unstable();
        Ok(names)
    }

    /// The queue of this name.
    pub fn named(&self, name: &str) -> Result<Arc<Queue>> {
        match &self.home {
            Home::ThisProcess => Registry::shared().named(name),
            Home::Private(registry) => registry.named(name),
            Home::Host(directory) => directory.named(name),
        }
    }

    /// The queue of this number.
    #[inline]
    pub fn numbered(&self, id: u64) -> Result<Arc<Queue>> {
        match &self.home {
            Home::ThisProcess => Registry::shared().numbered(id),
            Home::Private(registry) => registry.numbered(id),
            Home::Host(directory) => directory.numbered(id),
        }
    }

    /// The time that leases are measured by.
    #[inline]
    pub fn now(&self) -> u64 {
        self.clock.now()
    }

    /// A moment ago, for the price of a few instructions: what the age of a message is counted from.
    #[inline]
    pub fn recently(&self) -> u64 {
        self.clock.recent()
    }

    /// The time to finish a message of `queue` at: exact, unless no lease of the queue is near its end, and then nobody can
    /// tell the difference.
    #[inline]
    pub fn time_to_finish(&self, queue: &Queue) -> u64 {
        let recently = self.recently();
        match queue.next_expiry() {
            Some(deadline) if deadline > recently.saturating_add(NEAR) => recently,
            _ => self.now(),
        }
    }

    /// Adds a copy of `bytes` to a queue; returns the id of the message.
    pub fn enqueue(&self, id: u64, bytes: &[u8]) -> Result<u64> {
        self.numbered(id)?.enqueue(bytes, self.recently())
    }

    /// Takes the next message of a queue for `timeout`; `None` when there is none.
    pub fn read(&self, id: u64, timeout: Duration) -> Result<Option<Message>> {
        let timeout = saturating_nanos(timeout);
        let queue = self.numbered(id)?;
        loop {
            let Some(lease) = self.lease(&queue, timeout)? else {
                return Ok(None);
            };
            let mut data = Vec::new();
            if queue.append_to(&lease, &mut data) {
                return Ok(Some(Message {
                    queue_id: id,
                    receipt: lease.receipt,
                    data,
                }));
            }
        }
    }

    /// Finishes a message: it is gone for good. [`Error::MessageNotFound`] when it is no longer in the caller's hands.
    pub fn dequeue(&self, id: u64, receipt: &Receipt) -> Result<()> {
        let queue = self.numbered(id)?;
        queue.dequeue(receipt, self.time_to_finish(&queue))
    }

    /// Makes the lease of a message end `timeout` from now.
    pub fn extend(&self, id: u64, receipt: &Receipt, timeout: Duration) -> Result<()> {
        let queue = self.numbered(id)?;
        queue.extend(receipt, saturating_nanos(timeout), self.now())
    }

    /// Gives a message back now.
    pub fn release(&self, id: u64, receipt: &Receipt) -> Result<()> {
        self.numbered(id)?.release(receipt, self.now())
    }

    /// What a queue holds.
    pub fn stats(&self, id: u64) -> Result<Stats> {
        self.numbered(id)?.stats(self.now())
    }

    /// Takes the next message of a queue that has not been delivered too often; those that have go to the dead-letter queue.
    #[inline(always)]
    pub fn lease(&self, queue: &Queue, timeout: u64) -> Result<Option<Lease>> {
        loop {
            let lease = queue.read(timeout, self.now())?;
            match &lease {
                Some(taken) if self.is_dead(queue, taken) && self.bury(queue, taken)? => {}
                _ => return Ok(lease),
            }
        }
    }

    /// As [`Manager::lease`], up to `limit` messages; perhaps none although there are some, when all were dead.
    pub fn lease_many(&self, queue: &Queue, limit: usize, timeout: u64) -> Result<Vec<Lease>> {
        let mut leases = queue.read_many(limit, timeout, self.now())?;
        if queue.dead_letter().is_some() {
            let mut kept = Vec::with_capacity(leases.len());
            for lease in leases {
                if !(self.is_dead(queue, &lease) && self.bury(queue, &lease)?) {
                    kept.push(lease);
                }
            }
            leases = kept;
        }
        Ok(leases)
    }

    #[inline]
    fn is_dead(&self, queue: &Queue, lease: &Lease) -> bool {
        let dead_letter = queue.dead_letter();
        dead_letter.is_some_and(|dead| lease.receipt.delivery > dead.max_deliveries)
    }

    /// Moves a message to the dead-letter queue; false when that is impossible now, and then it is delivered once more. The
    /// copy is made before the original goes, so a death in between gives two, never none.
    #[cold]
    fn bury(&self, queue: &Queue, lease: &Lease) -> Result<bool> {
        let Some(dead) = queue.dead_letter() else {
            return Ok(false);
        };
        let mut data = Vec::new();
        if !queue.append_to(lease, &mut data) {
            return Ok(true);
        }
        let moved = self
            .named(&dead.queue)
            .and_then(|grave| grave.enqueue(&data, self.recently()));
        if moved.is_err() {
            return Ok(false);
        }
        match queue.dequeue(&lease.receipt, self.time_to_finish(queue)) {
            Ok(()) | Err(Error::MessageNotFound(_)) => Ok(true),
            Err(error) => Err(error),
        }
    }
}
