//! The reader's role: one holder on the host, freed by the kernel when it dies.
//!
//! Where the region has a descriptor the role is a file lock on a byte of its own, far behind the end of the file. Memory
//! without one belongs to a process, and the role is a flag of its handle.

use std::sync::Arc;

use super::memory::Memory;
use crate::os::fork;
use crate::os::locks::{self, Kind, LockFile};
use crate::shared::region::Region;
use crate::shared::roster::FIRST_TOKEN;
use crate::shared::sync::{AtomicU32, Ordering};
use crate::{Error, Result};

/// In front of the tokens of the participants.
const TOKEN: u64 = FIRST_TOKEN - 1;

/// The right to move the tail; given up by dropping it.
#[derive(Debug)]
pub(super) struct Role {
    lock: Option<LockFile>,
    flag: Arc<AtomicU32>,
    generation: u32,
}

impl Role {
    /// Takes the role; [`Error::AlreadyOpen`] when somebody has it. `flag` belongs to the handle.
    pub(super) fn take(region: &Region, flag: &Arc<AtomicU32>) -> Result<Self> {
        let lock = match region.descriptor() {
            Some(file) => Some(locks::try_take(file, TOKEN, 1, Kind::Exclusive)?.ok_or_else(taken)?),
            None if flag.swap(1, Ordering::Acquire) != 0 => return Err(taken()),
            None => None,
        };
        Ok(Role {
            lock,
            flag: flag.clone(),
            generation: fork::generation(),
        })
    }

    /// Whether this process has the role, and not the one that it was forked from.
    pub(super) fn is_held(&self) -> bool {
        self.generation == fork::generation()
    }

    /// Takes the role anew in a forked child; true when it was.
    #[inline]
    pub(super) fn renew(&mut self, memory: &Memory) -> Result<bool> {
        if self.is_held() {
            return Ok(false);
        }
        self.take_anew(memory)
    }

    #[cold]
    fn take_anew(&mut self, memory: &Memory) -> Result<bool> {
        // Memory without a descriptor was copied by the fork, the role with it.
        if let (Some(lock), Some(file)) = (&self.lock, memory.region.descriptor()) {
            if lock.is_lost() {
                lock.renew(file)?;
            }
            if !lock.try_lock(TOKEN, 1, Kind::Exclusive)? {
                return Err(taken());
            }
        }
        self.generation = fork::generation();
        Ok(true)
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        if self.lock.is_none() {
            self.flag.store(0, Ordering::Release);
        }
    }
}

fn taken() -> Error {
    Error::AlreadyOpen("a queue has one reader at a time, and it has one".into())
}
