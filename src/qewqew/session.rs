//! Opening and closing: who is let in, what the dead left, what is removed at the end.

mod recover;

use std::path::Path;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use super::chunk::Access;
use super::disk::Disk;
use super::head::Head;
use super::layout::{ChunkId, FIRST_ENTRY, LENGTH_BYTES, Names, signal};
use super::options::{Options, Role};
use super::positions::Positions;
use super::reader::Reader;
use super::roles::Roles;
use super::side::Side;
use super::store::Store;
use super::writer::Writer;
use crate::os::{file, fork};
use crate::shared::sync::{Ordering, PrivateFlag};
use crate::{Error, Result};

/// An open queue in one process. Locks are taken in the order of the fields.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) store: Store,
    reader: Mutex<Reader>,
    pub(crate) commits: Mutex<()>,
    writer: Mutex<Writer>,
    roles: Mutex<Option<Roles>>,
    is_closed: PrivateFlag,
    generation: u32,
    /// The session of a forked child, which cannot use this one: its locks went with the parent.
    pub(crate) child: OnceLock<Box<Session>>,
}

impl Session {
    pub(crate) fn open(path: &Path, options: &Options, idle: &mut dyn FnMut() -> Result<()>) -> Result<Self> {
        let chunk_size = options.check()?;
        let names = Names::new(path)?;
        let disk = Disk::new(path, options.observer.clone());
        if !options.network {
            refuse_network(path)?;
        }
        let shown = path.display().to_string();
        let durable = options.sync.is_durable();
        loop {
            let head = match options.create {
                true => Head::open_or_create(&disk, path, durable)?,
                false => Head::open(path)?,
            };
            let Some(locks) = Roles::enter(&head, &shown, idle)? else {
                continue;
            };
            let roles = Roles::take(locks, &shown, options)?;
            let mut session = Session {
                store: Store {
                    names,
                    disk,
                    head,
                    side: None,
                    positions: Mutex::new(None),
                    chunk_size,
                    sync: options.sync,
                    crc: options.crc,
                    access: Access {
                        mapped: !options.network,
                        durable,
                        logged: options.crc,
                    },
                    sealed_only: options.network && options.role == Role::Consumer,
                },
                reader: Mutex::new(Reader::default()),
                commits: Mutex::new(()),
                writer: Mutex::new(Writer::default()),
                roles: Mutex::new(None),
                is_closed: PrivateFlag::new(false),
                generation: fork::generation(),
                child: OnceLock::new(),
            };
            session.settle(&roles, options)?;
            roles.open_gate()?;
            *guarded(&session.roles) = Some(roles);
            return Ok(session);
        }
    }

    /// Behind the gate: joins the others, or puts in order what the last ones left. Their signal file is used on where messages
    /// wait in it.
    fn settle(&mut self, roles: &Roles, options: &Options) -> Result<()> {
        let signal_path = self.store.names.signal();
        let alone = roles.is_alone()?;
        let positions = Positions::open(&self.store.names.positions())?;
        let keeps_positions = positions.is_some();
        *guarded(&self.store.positions) = positions;
        let messages_wait = alone && self.recover()?;
        if !options.network {
            self.store.side = Some(match alone && !messages_wait {
                true => {
                    self.store.disk.unlink(&signal_path)?;
                    let side = Side::create(&signal_path)?;
                    side.positions().store(keeps_positions.into(), Ordering::Release);
                    side.counter(signal::APPENDED_BYTES)
                        .store(self.unread_bytes_or_zero()?, Ordering::Release);
                    // Whoever was here before may have synced nothing.
                    side.set_unsynced_past(self.store.head.first()?.is_some());
                    side
                }
                false => Side::open(&signal_path)?,
            });
        }
        if let Some(side) = self.store.side.as_ref().filter(|_| options.role.produces()) {
            side.agree_on(self.store.chunk_size);
            if !options.sync.is_durable() {
                side.add_unsynced_producer();
            }
        }
        if options.role.consumes() {
            self.reader()?.remove_left_over(&self.store)?;
        }
        Ok(())
    }

    /// Bytes of all unread entries in the files.
    pub(crate) fn unread_bytes(&self) -> Result<u64> {
        let chain = self.store.chain()?;
        Ok(chain
            .iter()
            .map(|link| u64::from(link.pointers.tail - link.pointers.head))
            .sum())
    }

    fn unread_bytes_or_zero(&self) -> Result<u64> {
        match self.unread_bytes() {
            Err(Error::Corrupt(_) | Error::Format(_)) => Ok(0),
            counted => counted,
        }
    }

    /// Whether this is the session of this very process.
    #[inline]
    pub(crate) fn is_own(&self) -> bool {
        self.generation == fork::generation()
    }

    #[inline]
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.is_closed.load(Ordering::Acquire) {
            Err(Error::Closed)
        } else {
            Ok(())
        }
    }

    #[inline]
    pub(crate) fn reader(&self) -> Result<MutexGuard<'_, Reader>> {
        let reader = guarded(&self.reader);
        self.check_open()?;
        Ok(reader)
    }

    /// As [`Self::reader`], without waiting: `None` when another thread has it.
    #[inline]
    pub(crate) fn try_reader(&self) -> Result<Option<MutexGuard<'_, Reader>>> {
        self.check_open()?;
        Ok(tried(&self.reader))
    }

    #[inline]
    pub(crate) fn writer(&self) -> Result<MutexGuard<'_, Writer>> {
        let writer = guarded(&self.writer);
        self.check_open()?;
        Ok(writer)
    }

    #[inline]
    pub(crate) fn try_writer(&self) -> Result<Option<MutexGuard<'_, Writer>>> {
        self.check_open()?;
        Ok(tried(&self.writer))
    }

    pub(crate) fn with_roles<T>(&self, then: impl FnOnce(&Roles) -> Result<T>) -> Result<T> {
        guarded(&self.roles).as_ref().ok_or(Error::Closed).and_then(then)
    }

    /// Closes for good; the second time nothing happens. Whoever is the last removes the signal file, and all files of an
    /// empty queue.
    pub(crate) fn close(&self, idle: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        if !self.is_own() || self.is_closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let mut reader = guarded(&self.reader);
        let _commits = guarded(&self.commits);
        let mut writer = guarded(&self.writer);
        let Some(roles) = guarded(&self.roles).take() else {
            return Ok(());
        };
        let flushed = self.flush(&mut reader, &mut writer);
        // Even after an error: what is not flushed stays for the next one to open the queue.
        roles.close_gate(&self.store.shown(), idle)?;
        if roles.is_alone()? && flushed.is_ok() {
            self.last_one_out(&mut reader)?;
        }
        writer.forget();
        reader.forget();
        drop(roles);
        flushed
    }

    fn flush(&self, reader: &mut Reader, writer: &mut Writer) -> Result<()> {
        let store = &self.store;
        if let Some(side) = &store.side
            && side.has_staged()
        {
            let _commit = side.commit_lock(Store::patience())?;
            let _append = side.append_lock(Store::patience())?;
            self.commit_all(side, writer)?;
        }
        reader.remove_consumed(store)?;
        if store.sync.is_durable() {
            writer.sync_last(store)?;
            reader.sync_first(store)?;
        }
        Ok(())
    }

    /// Commits everything that is staged; the caller holds both locks.
    pub(crate) fn commit_all(&self, side: &Side, writer: &mut Writer) -> Result<()> {
        while let Some(next) = side.next_to_commit()? {
            writer
                .target(&self.store, &next.staged)?
                .commit(&self.store, &next.staged)?;
            side.empty_stage(next.stage);
        }
        Ok(())
    }

    fn last_one_out(&self, reader: &mut Reader) -> Result<()> {
        let store = &self.store;
        let chain = match store.chain() {
            Ok(chain) => chain,
            // Damage is not ours to remove.
            Err(Error::Corrupt(_) | Error::Format(_)) => {
                return store
                    .side
                    .as_ref()
                    .map_or(Ok(()), |side| store.disk.unlink(side.path()));
            }
            Err(error) => return Err(error),
        };
        let is_empty = chain.iter().all(|link| link.pointers.is_exhausted());
        let leads_nowhere = chain.len() > 1 && chain[0].pointers.is_exhausted();
        if is_empty {
            self.remove_chunks(chain.iter().map(|link| link.id), chain.iter().map(|l| l.pointers.tail))?;
        } else if leads_nowhere {
            // A chunk that was exhausted just before its successor came: the original expects it to be gone.
            reader.forget();
            reader.front(store)?;
            reader.remove_consumed(store)?;
        }
        if let Some(last) = chain.last().filter(|_| !is_empty) {
            store.glance(last.id)?.settle_notes(&store.disk)?;
            self.close_checks()?;
        }
        if let Some(positions) = guarded(&store.positions).as_ref() {
            positions.set_clean(self.digest()?)?;
        }
        if let Some(side) = &store.side {
            store.disk.unlink(side.path())?;
        }
        if is_empty {
            store.disk.unlink(store.names.head())?;
        }
        Ok(())
    }

    /// Makes the queue one without chunks; nobody else can touch it meanwhile.
    pub(crate) fn remove_chunks(
        &self,
        ids: impl Iterator<Item = ChunkId> + Clone,
        tails: impl Iterator<Item = u32>,
    ) -> Result<()> {
        let store = &self.store;
        let Some(first) = ids.clone().next() else {
            return Ok(());
        };
        // Whatever the mode: nothing that was consumed may come back with its name after a power cut once no first chunk tells
        // it apart from what was not, and a head file must never name a chunk that is not there.
        store.disk.sync_directory()?;
        for id in ids.clone() {
            store.glance(id)?.sync(&store.disk)?;
        }
        let bytes = tails.map(|tail| u64::from(tail - FIRST_ENTRY)).sum();
        store.with_positions(|positions| positions.move_first(&store.disk, Some(first), None, bytes, true))?;
        store.head.set(&store.disk, None)?;
        store.head.sync(&store.disk)?;
        for id in ids {
            store.disk.unlink(&store.names.checks(id))?;
            store.disk.unlink(&store.names.chunk(id))?;
        }
        Ok(())
    }

    /// How many messages are unread, by counting them.
    pub(crate) fn count_messages(&self) -> Result<u64> {
        let mut count = 0;
        for link in self.store.chain()? {
            let chunk = match self.store.open_chunk(link.id) {
                Err(Error::NotFound(_)) => continue,
                opened => opened?,
            };
            let Some(pointers) = chunk.pointers()? else { continue };
            let mut at = pointers.head;
            while at < pointers.tail {
                at += LENGTH_BYTES + chunk.entry_length(at, pointers.tail)?;
                count += 1;
            }
        }
        Ok(count + self.count_staged())
    }

    /// How many messages wait for a commit.
    pub(crate) fn count_staged(&self) -> u64 {
        let staged = self.store.side.iter().flat_map(Side::staged);
        staged.map(|staged| framed_count(&staged.bytes)).sum()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Nobody is there to hear of an error; what is left is settled by the next one to open the queue.
        let _ = self.close(&mut || Ok(()));
    }
}

fn framed_count(mut bytes: &[u8]) -> u64 {
    let mut count = 0;
    while let Some((length, rest)) = bytes.split_first_chunk::<2>() {
        bytes = rest.get(usize::from(u16::from_be_bytes(*length))..).unwrap_or_default();
        count += 1;
    }
    count
}

/// A panic under one of these locks leaves nothing half done that the files do not show.
fn guarded<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn tried<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(std::sync::TryLockError::WouldBlock) => None,
    }
}

fn refuse_network(path: &Path) -> Result<()> {
    match file::network_filesystem(file::directory_of(path))? {
        None => Ok(()),
        Some(kind) => Err(Error::Invalid(format!(
            "{} is on a {kind} file system, where mapped files of different hosts differ: open it with network=True",
            path.display()
        ))),
    }
}
