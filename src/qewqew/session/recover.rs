//! What the first to open a queue finds and the last to close it leaves: messages that were staged, checksums, positions.
//! Nobody else has the queue open meanwhile.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;

use super::{Session, guarded};
use crate::qewqew::checks::{Checks, fresh_name};
use crate::qewqew::chunk::Chunk;
use crate::qewqew::layout::{ChunkId, FIRST_ENTRY, Pointers};
use crate::qewqew::positions::Positions;
use crate::qewqew::records::{Seen, State};
use crate::qewqew::side::Side;
use crate::qewqew::store::Link;
use crate::{Error, Result};

impl Session {
    /// Nobody else has the queue open: finishes what dead processes and power cuts have left half done. Damage is not
    /// repaired here but reported by the operation that meets it; true when messages have to wait in the signal file for a
    /// repair.
    pub(super) fn recover(&mut self) -> Result<bool> {
        let store = &self.store;
        let staged = Side::salvage(&store.names.signal())?;
        let chain = match store.chain() {
            Ok(chain) => chain,
            Err(Error::Corrupt(_) | Error::Format(_)) => {
                // Which one is the last is not known.
                for id in store.present()? {
                    unless_damaged(store.glance(id).and_then(|chunk| chunk.roll_forward(&store.disk)))?;
                }
                self.open_checks(&store.reachable()?)?;
                return Ok(!staged.is_empty());
            }
            Err(error) => return Err(error),
        };
        let touched = self.was_touched()?;
        // Only the last chunk: a reference is in the same sector as the tail that it comes with.
        if let Some(last) = chain.last() {
            store.glance(last.id)?.roll_forward(&store.disk)?;
        }
        let chain = store.chain()?;
        if chain.is_empty() {
            self.remove_empty_orphans()?;
        }
        self.open_checks(&chain)?;
        let mut writer = guarded(&self.writer);
        for staged in staged {
            // What does not belong where it says is of an older state of the files.
            let target = match writer.target(store, &staged) {
                Err(Error::Corrupt(_)) => continue,
                target => target?,
            };
            match target.commit(store, &staged) {
                Err(Error::Corrupt(_)) => {}
                done => done?,
            }
        }
        // After the staged messages, which belong into the chunk before it.
        unless_damaged(writer.adopt_leftover(store))?;
        writer.forget();
        drop(writer);
        if store.sync.is_durable() && !store.access.mapped {
            // Whoever was here before may have synced nothing. Others do this when they have something to append.
            store.sync_chain()?;
        }
        self.check_positions(touched)?;
        Ok(false)
    }

    /// Whether anybody has written to the files since the last handle closed them. Asked before they are put in order: that
    /// writes to them, too, as does making the last chunk longer for a handle with larger chunks.
    fn was_touched(&self) -> Result<bool> {
        let positions = guarded(&self.store.positions);
        let clean = positions.as_ref().map_or(Ok(0), Positions::clean)?;
        Ok(clean != 0 && clean != self.digest()?)
    }

    /// Compares the chunks with their checksum files: those that were closed must be as they were, the last one of a session
    /// that was not closed gets what only the log has.
    fn open_checks(&self, chain: &[Link]) -> Result<()> {
        let store = &self.store;
        let covered = store.covered()?;
        for id in &covered {
            store.disk.unlink(&fresh_name(&store.names.checks(*id)))?;
        }
        let opened = |id: ChunkId| -> Result<Option<(Checks, Chunk)>> {
            Ok(Checks::open(&store.names.checks(id))?.zip(Some(store.glance(id)?)))
        };
        let mut is_foreign = self.remove_bereft_checks(&covered)?;
        let (mut was_closed, mut open) = (false, Vec::new());
        for (place, link) in chain.iter().enumerate().filter(|(_, link)| covered.contains(&link.id)) {
            // What cannot be used is reported by whoever needs it.
            let Some((checks, chunk)) = unless_damaged(opened(link.id))?.flatten() else {
                continue;
            };
            match checks.header()?.state {
                State::Closed(_) => {
                    was_closed |= place == 0;
                    is_foreign |= checks.reopen(&store.disk, &chunk)?;
                }
                State::Open => open.push((place, link)),
                State::Damaged(_) => {}
            }
        }
        for (place, link) in open {
            let Some((checks, chunk)) = unless_damaged(opened(link.id))?.flatten() else {
                continue;
            };
            let whole = Seen {
                pointers: Pointers {
                    head: FIRST_ENTRY,
                    ..link.pointers
                },
                next: link.next.map_or(0, ChunkId::reference),
                written: 0,
            };
            if is_foreign {
                // It may be another chunk of the same name, of which these checksums say nothing.
                checks.reconcile(&store.disk, &chunk, whole)?;
            } else if place + 1 == chain.len() {
                unless_damaged(checks.replay(&store.disk, &chunk))?;
            } else if place > 0 && was_closed && link.pointers != whole.pointers {
                checks.set_state(&store.disk, State::Damaged(whole))?;
            }
        }
        Ok(())
    }

    /// Removes checksums whose chunk is gone: another program has consumed it, and does not know of them. True when it was
    /// closed by us, so that such a program has worked here since.
    fn remove_bereft_checks(&self, covered: &HashSet<ChunkId>) -> Result<bool> {
        let store = &self.store;
        let mut is_foreign = false;
        for id in covered {
            if store.names.chunk(*id).symlink_metadata().is_ok() {
                continue;
            }
            let path = store.names.checks(*id);
            match Checks::open(&path) {
                Ok(Some(checks)) => is_foreign |= matches!(checks.header()?.state, State::Closed(_)),
                Err(Error::Corrupt(_)) => {}
                // Not ours; whoever needs the name says so.
                _ => continue,
            }
            store.disk.unlink(&path)?;
        }
        Ok(is_foreign)
    }

    /// Notes in the checksum files how the chunks are left.
    pub(super) fn close_checks(&self) -> Result<()> {
        let store = &self.store;
        let chain = store.chain()?;
        let (Some(first), Some(last)) = (chain.first(), chain.last()) else {
            return Ok(());
        };
        for id in [first.id, last.id] {
            if let Some(checks) = unless_damaged(Checks::open(&store.names.checks(id)))?.flatten() {
                let chunk = store.glance(id)?;
                chunk.sync(&store.disk)?;
                checks.close(&store.disk, &chunk)?;
            }
        }
        Ok(())
    }

    /// Chunks without messages that a killed close left; the head file names none, so nothing refers to them.
    fn remove_empty_orphans(&self) -> Result<()> {
        let store = &self.store;
        for id in store.present()? {
            let Ok(chunk) = store.glance(id) else { continue };
            let pointers = chunk.raw_pointers()?;
            if pointers.are_within(chunk.length()) && pointers.is_exhausted() && chunk.next()?.is_none() {
                // Whoever was killed here had perhaps not synced that there is no first chunk.
                store.head.sync(&store.disk)?;
                store.disk.unlink(&store.names.checks(id))?;
                store.disk.unlink(&store.names.chunk(id))?;
            }
        }
        Ok(())
    }

    /// Begins a new epoch of positions when somebody who does not keep them has worked on the queue.
    fn check_positions(&self, touched: bool) -> Result<()> {
        let positions = guarded(&self.store.positions);
        let Some(positions) = positions.as_ref() else {
            return Ok(());
        };
        let chain = self.store.chain()?;
        let first = chain.first().map(|link| link.id);
        let base = positions.base(first)?;
        let bytes: u64 = chain
            .iter()
            .map(|link| u64::from(link.pointers.tail - FIRST_ENTRY))
            .sum();
        let foreign = match base {
            None => true,
            Some(base) => base + bytes < positions.seen()? || touched,
        };
        if foreign {
            positions.new_epoch(&self.store.disk, first, self.store.sync.is_durable())?;
        }
        positions.set_clean(0)
    }

    /// What the files look like: different after anybody has written to them.
    pub(super) fn digest(&self) -> Result<u64> {
        let chain = self.store.chain()?;
        let mut seen = Vec::new();
        for link in chain.first().into_iter().chain(chain.last()) {
            let path = self.store.names.chunk(link.id);
            let meta = fs::metadata(&path).map_err(|e| Error::io(format!("looking at {}", path.display()), e))?;
            seen.extend_from_slice(&link.pointers.to_bytes());
            seen.extend_from_slice(&link.id.reference().to_be_bytes());
            seen.extend_from_slice(&meta.mtime().to_be_bytes());
            seen.extend_from_slice(&meta.mtime_nsec().to_be_bytes());
        }
        let crc = crc32c::crc32c(&seen);
        Ok(1 << 63 | (chain.len() as u64) << 32 | u64::from(crc))
    }
}

/// `None` for damage, which is reported by whoever meets it.
fn unless_damaged<T>(done: Result<T>) -> Result<Option<T>> {
    match done {
        Err(Error::Corrupt(_) | Error::Format(_)) => Ok(None),
        done => done.map(Some),
    }
}
