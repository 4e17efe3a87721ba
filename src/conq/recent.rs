//! The queue that a thread used last, found again without touching what all threads share: a lock that is only ever read still
//! moves its cache line from core to core.
//!
//! Numbers are never given twice, and a name stays with its queue until that is deleted: a queue that is found here and not
//! deleted is the right one. A queue that only a thread remembers does not live on for that.

use std::cell::Cell;
use std::sync::{Arc, Weak};
use std::thread::LocalKey;

use super::queue::Queue;
use crate::Result;
use crate::shared::sync::{Ordering, PrivateU64};

/// Tells the managers of a process apart.
#[derive(Debug)]
pub(super) struct Home(u64);

impl Default for Home {
    fn default() -> Self {
        static HOMES: PrivateU64 = PrivateU64::new(0);
        Home(HOMES.fetch_add(1, Ordering::Relaxed))
    }
}

struct Recent<K> {
    home: u64,
    key: K,
    queue: Weak<Queue>,
}

type Memory<K> = LocalKey<Cell<Option<Recent<K>>>>;

thread_local! {
    static NUMBERED: Cell<Option<Recent<u64>>> = const { Cell::new(None) };
    static NAMED: Cell<Option<Recent<String>>> = const { Cell::new(None) };
}

impl Home {
    /// The queue of this number: the one that this thread used last, or what `find` finds.
    #[inline]
    pub(super) fn numbered(&self, id: u64, find: impl FnOnce() -> Result<Arc<Queue>>) -> Result<Arc<Queue>> {
        match self.known(&NUMBERED, |key| *key == id) {
            Some(queue) => Ok(queue),
            None => Ok(self.remember(&NUMBERED, id, find()?)),
        }
    }

    /// The queue of this name: the one that this thread asked for last, or what `find` finds.
    #[inline]
    pub(super) fn named(&self, name: &str, find: impl FnOnce() -> Result<Arc<Queue>>) -> Result<Arc<Queue>> {
        match self.known(&NAMED, |key| key == name) {
            Some(queue) => Ok(queue),
            None => Ok(self.remember(&NAMED, name.to_owned(), find()?)),
        }
    }

    #[inline]
    fn known<K>(&self, memory: &'static Memory<K>, is_wanted: impl FnOnce(&K) -> bool) -> Option<Arc<Queue>> {
        // A thread that is ending has no memory of its own any more.
        let known = memory.try_with(|last| {
            let recent = last.take()?;
            let wanted = recent.home == self.0 && is_wanted(&recent.key);
            let queue = wanted.then(|| recent.queue.upgrade()).flatten();
            last.set(Some(recent));
            queue.filter(|queue| !queue.is_deleted())
        });
        known.ok().flatten()
    }

    #[cold]
    fn remember<K>(&self, memory: &'static Memory<K>, key: K, queue: Arc<Queue>) -> Arc<Queue> {
        let recent = Recent {
            home: self.0,
            key,
            queue: Arc::downgrade(&queue),
        };
        let _ = memory.try_with(|last| last.set(Some(recent)));
        queue
    }
}
