//! The queues of a host, by name and by number: a directory with one file per queue, `NAME.conq`.
//!
//! Beside them `.conq` holds the next number (none is ever given twice) and the lock under which names vanish. It is a lock
//! like that of a queue: whoever dies with it is succeeded by the next.
//!
//! ```text
//! 0x00 u64 magic   0x08 u32 version   0x10 u64 next number   0x18 u64 lock   0x20 u64 times it was taken   0x40 roster
//! ```
//!
//! Deleting a queue sets a word in its file, which ends it for everybody who has it open, and then removes the name. A file
//! whose deleter died in between is removed by whoever wants its name.

use std::collections::HashMap;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use super::layout::{MAGIC, Options, header};
use super::origin::Origin;
use super::per_process::PerProcess;
use super::queue::Queue;
use super::recent::Home;
use crate::os::clock::Clock;
use crate::os::file;
use crate::shared::lock::Lock;
use crate::shared::region::Region;
use crate::shared::roster::{Roster, Table};
use crate::shared::sync::Ordering::{Acquire, Relaxed, Release};
use crate::{Error, Result};

const INDEX_MAGIC: u64 = u64::from_le_bytes(*b"tr-conqs");
const INDEX_VERSION: u32 = 1;
const INDEX_VERSION_AT: usize = 0x08;
const NEXT_ID: usize = 0x10;
const LOCK: usize = 0x18;
const CHANGES: usize = 0x20;
const ROSTER: Table = Table::at(0x40);
const INDEX_LENGTH: usize = ROSTER.offset + ROSTER.length();

const INDEX_FILE: &str = ".conq";
const SUFFIX: &str = ".conq";
/// Removing a file may wait for the disk, so the lock may be held for a while; so long by one holder is too long.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);

/// A directory of queues.
#[derive(Debug)]
pub(super) struct Directory {
    clock: Clock,
    path: PathBuf,
    origin: Origin,
    index: Arc<Region>,
    roster: Roster,
    here: PerProcess<Here>,
}

/// What this process keeps for itself.
#[derive(Debug, Default)]
struct Here {
    /// The queues that it has used, with their names.
    opened: RwLock<HashMap<u64, (String, Arc<Queue>)>>,
    home: Home,
    /// Lets one thread at a time wait for the lock of the directory: hundreds that poll would leave its holder no time.
    changing: Mutex<()>,
}

impl Directory {
    pub(super) fn open(path: &Path, clock: Clock, origin: Origin) -> Result<Self> {
        let mut builder = std::fs::DirBuilder::new();
        builder
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(|e| Error::io(format!("creating the directory {}", path.display()), e))?;
        // Relative paths would mean something else after a chdir, or to whom the handle is sent.
        let path = std::path::absolute(path).map_err(|e| Error::io(format!("finding {}", path.display()), e))?;
        let index_path = path.join(INDEX_FILE);
        let (index, _) = Region::open_or_create(&index_path, INDEX_LENGTH as u64, |region| {
            region.u32(INDEX_VERSION_AT).store(INDEX_VERSION, Relaxed);
            region.u64(0).store(INDEX_MAGIC, Release);
            Ok(())
        })?;
        let shown = index_path.display();
        if index.length() != INDEX_LENGTH || index.u64(0).load(Acquire) != INDEX_MAGIC {
            return Err(Error::Format(format!("{shown} is not the index of a conq directory")));
        }
        let version = index.u32(INDEX_VERSION_AT).load(Relaxed);
        if version != INDEX_VERSION {
            return Err(Error::Format(format!(
                "{shown} has version {version}; this program knows version {INDEX_VERSION}"
            )));
        }
        let index = Arc::new(index);
        let roster = Roster::join(&index, ROSTER, None)?;
        Ok(Directory {
            clock,
            path,
            origin,
            index,
            roster,
            here: PerProcess::new(),
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// A name is given by linking a whole file to it, which one of any number of racing creators does: only taking a name
    /// away needs the lock.
    pub(super) fn create(&self, name: &str, options: &Options) -> Result<u64> {
        let path = self.file_of(name)?;
        loop {
            match number_in(&path) {
                Ok((_, deleted)) if deleted => self.clear_away(&path)?,
                Ok(_) => return Err(Error::Exists(format!("{name:?}"))),
                Err(Error::NotFound(_)) => {}
                Err(error) => return Err(error),
            }
            let id = self.index.u64(NEXT_ID).fetch_add(1, Relaxed);
            match Queue::create(&path, options, id, &self.origin) {
                // Somebody was faster, and may have deleted it already.
                Err(Error::Exists(_)) => {}
                created => {
                    self.remember(name, created?);
                    return Ok(id);
                }
            }
        }
    }

    /// Removes the file of a deleted queue whose deleter has not done so yet.
    fn clear_away(&self, path: &Path) -> Result<()> {
        self.exclusively(|| match number_in(path) {
            Ok((_, deleted)) if deleted => remove(path),
            _ => Ok(()),
        })?;
        file::sync_directory(&self.path)
    }

    pub(super) fn named(&self, name: &str) -> Result<Arc<Queue>> {
        self.here.get().home.named(name, || self.find_name(name))
    }

    fn find_name(&self, name: &str) -> Result<Arc<Queue>> {
        let opened = self.here.get().opened.read().unwrap_or_else(PoisonError::into_inner);
        let known = opened
            .values()
            .find(|(known, queue)| known == name && !queue.is_deleted());
        if let Some((_, queue)) = known {
            return Ok(queue.clone());
        }
        drop(opened);
        let missing = || Error::NotFound(format!("{name:?} in {}", self.path.display()));
        let queue = match Queue::open(&self.file_of(name)?, &self.origin, self.clock.now()) {
            Err(Error::NotFound(_)) => return Err(missing()),
            opened => opened?,
        };
        if queue.is_deleted() {
            return Err(missing());
        }
        Ok(self.remember(name, queue))
    }

    #[inline]
    pub(super) fn numbered(&self, id: u64) -> Result<Arc<Queue>> {
        self.here.get().home.numbered(id, || self.find(id))
    }

    fn find(&self, id: u64) -> Result<Arc<Queue>> {
        let opened = self.here.get().opened.read().unwrap_or_else(PoisonError::into_inner);
        let known = opened.get(&id).map(|(_, queue)| queue.clone());
        drop(opened);
        let missing = || Error::NotFound(format!("queue {id} in {}", self.path.display()));
        match known {
            Some(queue) if queue.is_deleted() => {
                self.forget(id);
                Err(missing())
            }
            Some(queue) => Ok(queue),
            None => {
                let has_id = |name: &&String| {
                    let number = self.file_of(name).and_then(|path| number_in(&path));
                    number.is_ok_and(|(number, deleted)| number == id && !deleted)
                };
                let names = self.names()?;
                let name = names.iter().find(has_id).ok_or_else(missing)?;
                let queue = self.named(name)?;
                if queue.id() == id { Ok(queue) } else { Err(missing()) }
            }
        }
    }

    pub(super) fn delete(&self, id: u64) -> Result<()> {
        let queue = self.numbered(id)?;
        self.exclusively(|| {
            if !queue.delete() {
                return Err(Error::NotFound(format!("queue {id} was deleted")));
            }
            // Under the lock nobody gives the name to another file, so it still names this one.
            match queue.region().path() {
                Some(path) if number_in(path).is_ok_and(|(number, _)| number == id) => remove(path),
                _ => Ok(()),
            }
        })?;
        self.forget(id);
        // Outside: whoever waits for the lock need not wait for the disk.
        file::sync_directory(&self.path)
    }

    /// The names of all queues, sorted.
    pub(super) fn names(&self) -> Result<Vec<String>> {
        let failed = |e| Error::io(format!("listing {}", self.path.display()), e);
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.path).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let name = name.to_str().and_then(|name| name.strip_suffix(SUFFIX));
            names.extend(name.filter(|name| file::check_name(name).is_ok()).map(str::to_owned));
        }
        names.sort_unstable();
        Ok(names)
    }

    fn file_of(&self, name: &str) -> Result<PathBuf> {
        file::check_name(name)?;
        Ok(self.path.join(format!("{name}{SUFFIX}")))
    }

    fn remember(&self, name: &str, queue: Queue) -> Arc<Queue> {
        let mut opened = self.here.get().opened.write().unwrap_or_else(PoisonError::into_inner);
        opened.retain(|_, (_, queue)| !queue.is_deleted());
        let (_, queue) = opened
            .entry(queue.id())
            .or_insert_with(|| (name.to_owned(), Arc::new(queue)));
        queue.clone()
    }

    fn forget(&self, id: u64) {
        let mut opened = self.here.get().opened.write().unwrap_or_else(PoisonError::into_inner);
        opened.remove(&id);
    }

    /// Runs `change` while nobody else on this host takes names away. A dead holder leaves nothing to repair.
    fn exclusively<T>(&self, change: impl FnOnce() -> Result<T>) -> Result<T> {
        let _turn = self.here.get().changing.lock().unwrap_or_else(PoisonError::into_inner);
        let changes = self.index.u64(CHANGES);
        let _guard = loop {
            let before = changes.load(Relaxed);
            let lock = Lock::new(self.index.u64(LOCK), &self.roster);
            match lock.acquire_within(LOCK_PATIENCE, |_| {}) {
                // Many wait, but it goes on.
                Err(Error::TimedOut) if changes.load(Relaxed) != before => {}
                acquired => break acquired?,
            }
        };
        changes.store(changes.load(Relaxed).wrapping_add(1), Relaxed);
        change()
    }
}

/// The number of the queue in a file, and whether it was deleted.
fn number_in(path: &Path) -> Result<(u64, bool)> {
    let region = Region::open(path)?;
    if region.length() < header::LENGTH || region.u64(header::MAGIC).load(Acquire) != MAGIC {
        return Err(Error::Format(format!("{} is not a conq queue", path.display())));
    }
    let number = region.u64(header::QUEUE_ID).load(Relaxed);
    Ok((number, region.u32(header::DELETED).load(Relaxed) != 0))
}

fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io(format!("removing {}", path.display()), e)),
        _ => Ok(()),
    }
}
