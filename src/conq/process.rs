//! The queues of one process, by name and by number.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, PoisonError, RwLock};

use super::layout::Options;
use super::per_process::PerProcess;
use super::queue::Queue;
use super::recent::Home;
use crate::{Error, Result};

/// Queues in the memory of this process.
#[derive(Debug, Default)]
pub(super) struct Registry {
    queues: RwLock<Queues>,
    home: Home,
}

#[derive(Debug, Default)]
struct Queues {
    by_name: HashMap<String, u64>,
    by_id: ById,
    next_id: u64,
}

/// Queues by number, with their names.
type ById = HashMap<u64, (String, Arc<Queue>), BuildHasherDefault<NumberHasher>>;

/// The numbers are given one after the other: spreading them is all that a hash has to do.
#[derive(Debug, Default)]
pub(super) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

impl Registry {
    /// The one that all of this process share. A forked child has another one, empty.
    pub(super) fn shared() -> &'static Registry {
        static SHARED: PerProcess<Registry> = PerProcess::new();
        SHARED.get()
    }

    pub(super) fn create(&self, name: &str, options: &Options) -> Result<u64> {
        let mut queues = self.queues.write().unwrap_or_else(PoisonError::into_inner);
        if queues.by_name.contains_key(name) {
            return Err(Error::Exists(format!("{name:?}")));
        }
        let id = queues.next_id;
        let queue = Arc::new(Queue::in_process(options, id)?);
        queues.next_id += 1;
        queues.by_name.insert(name.to_owned(), id);
        queues.by_id.insert(id, (name.to_owned(), queue));
        Ok(id)
    }

    pub(super) fn named(&self, name: &str) -> Result<Arc<Queue>> {
        self.home.named(name, || {
            let queues = self.queues.read().unwrap_or_else(PoisonError::into_inner);
            let found = queues.by_name.get(name).and_then(|id| queues.by_id.get(id));
            found
                .map(|(_, queue)| queue.clone())
                .ok_or_else(|| Error::NotFound(format!("{name:?}")))
        })
    }

    #[inline]
    pub(super) fn numbered(&self, id: u64) -> Result<Arc<Queue>> {
        self.home.numbered(id, || {
            let queues = self.queues.read().unwrap_or_else(PoisonError::into_inner);
            match queues.by_id.get(&id) {
                Some((_, queue)) => Ok(queue.clone()),
                None => Err(Error::NotFound(format!("queue {id}"))),
            }
        })
    }

    pub(super) fn delete(&self, id: u64) -> Result<()> {
        let mut queues = self.queues.write().unwrap_or_else(PoisonError::into_inner);
        let Some((name, queue)) = queues.by_id.remove(&id) else {
            return Err(Error::NotFound(format!("queue {id}")));
        };
        queues.by_name.remove(&name);
        queue.delete();
        Ok(())
    }

    pub(super) fn names(&self) -> Vec<String> {
        let queues = self.queues.read().unwrap_or_else(PoisonError::into_inner);
        queues.by_name.keys().cloned().collect()
    }
}
