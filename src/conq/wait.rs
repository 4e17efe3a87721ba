//! Calls that wait: a queue with its manager, and the habits of an ordinary queue.
//!
//! A wait sleeps until a message arrives, or until the next lease ends: a message that comes back wakes nobody by itself.

use std::sync::Arc;
use std::time::Duration;

use super::manager::Manager;
use super::queue::{Lease, Queue, Receipt};
use crate::shared::signal::{Turn, Wait};
use crate::{Error, Result};

/// How long `get` holds a message before it has finished it: whoever dies in between gives it back after this.
pub const GET_LEASE: u64 = 30_000_000_000;

/// What is called at each turn of a wait; its error ends the wait.
pub type Idle<'a> = &'a mut dyn FnMut() -> Result<()>;

/// A queue by name, together with its manager.
#[derive(Clone, Debug)]
pub struct NamedQueue {
    manager: Manager,
    queue: Arc<Queue>,
    name: String,
}

impl NamedQueue {
    /// The queue of this name.
    pub fn open(manager: &Manager, name: &str) -> Result<Self> {
        Ok(NamedQueue {
            manager: manager.clone(),
            queue: manager.named(name)?,
            name: name.to_owned(),
        })
    }

    /// The manager.
    pub fn manager(&self) -> &Manager {
        &self.manager
    }

    /// The queue itself.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Adds a message, waiting for room as long as `wait` allows; [`Error::Full`] after that.
    pub fn put(&self, bytes: &[u8], wait: Wait, idle: Idle<'_>) -> Result<u64> {
        let mut full = None;
        let put = self.queue.room().wait_for(wait, Turn::PeerMatters, idle, || {
            match self.queue.enqueue(bytes, self.manager.recently()) {
                Ok(id) => Ok(Some(id)),
                Err(error @ Error::Full(_)) => {
                    full = Some(error);
                    Ok(None)
                }
                Err(error) => Err(error),
            }
        })?;
        put.ok_or_else(|| full.unwrap_or(Error::TimedOut))
    }

    /// Reads a message for `timeout` nanoseconds, waiting for one as long as `wait` allows.
    pub fn read(&self, timeout: u64, wait: Wait, idle: Idle<'_>) -> Result<Option<Lease>> {
        self.first(wait, idle, || self.manager.lease(&self.queue, timeout))
    }

    /// Reads up to `limit` messages for `timeout` nanoseconds, waiting for the first as long as `wait` allows.
    pub fn read_many(&self, limit: usize, timeout: u64, wait: Wait, idle: Idle<'_>) -> Result<Vec<Lease>> {
        let some = self.first(wait, idle, || {
            let leases = self.manager.lease_many(&self.queue, limit, timeout)?;
            Ok((!leases.is_empty()).then_some(leases))
        })?;
        Ok(some.unwrap_or_default())
    }

    /// Takes a message out for good, waiting for one as long as `wait` allows; [`Error::Empty`] after that.
    ///
    /// It is read, copied and dequeued in one call: whoever dies inside gives it back after [`GET_LEASE`].
    pub fn get(&self, wait: Wait, idle: Idle<'_>) -> Result<Vec<u8>> {
        loop {
            let lease = self.read(GET_LEASE, wait, idle)?.ok_or(Error::Empty)?;
            let mut data = Vec::new();
            if self.queue.append_to(&lease, &mut data) && self.finish(&lease.receipt)? {
                return Ok(data);
            }
        }
    }

    /// Finishes a message; false when somebody else has it by now.
    pub fn finish(&self, receipt: &Receipt) -> Result<bool> {
        match self.queue.dequeue(receipt, self.manager.time_to_finish(&self.queue)) {
            Ok(()) => Ok(true),
            Err(Error::MessageNotFound(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Waits until there may be a message to read, and reads none; false when the time is up.
    pub fn wait_until_readable(&self, wait: Wait, idle: Idle<'_>) -> Result<bool> {
        let found = self.first(wait, idle, || {
            let stats = self.queue.stats(self.manager.now())?;
            Ok((stats.ready + stats.expired > 0).then_some(()))
        })?;
        Ok(found.is_some())
    }

    /// Tries until there is something, sleeping no longer than until the next lease ends.
    fn first<T>(
        &self,
        wait: Wait,
        idle: Idle<'_>,
        mut attempt: impl FnMut() -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        loop {
            let until = self.before_next_expiry(wait);
            let found = self
                .queue
                .arrived()
                .wait_for(until, Turn::PeerMatters, &mut *idle, &mut attempt)?;
            if found.is_some() || wait.remaining(Duration::MAX).is_none() {
                return Ok(found);
            }
            idle()?;
        }
    }

    fn before_next_expiry(&self, wait: Wait) -> Wait {
        if wait == Wait::No {
            return wait;
        }
        let Some(deadline) = self.queue.next_expiry() else {
            return wait;
        };
        let left = Duration::from_nanos(deadline.saturating_sub(self.manager.now()).saturating_add(1));
        match (wait, Wait::from_timeout(Some(left))) {
            (Wait::Until(end), Wait::Until(expiry)) => Wait::Until(end.min(expiry)),
            (Wait::Until(_), _) => wait,
            (_, expiry) => expiry,
        }
    }
}
