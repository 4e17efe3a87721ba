//! Several messages at once, in parts, so that others get the lock in between; and the bytes of a lease.

use std::cell::Cell;
use std::mem::MaybeUninit;

use super::layout::Slot;
use super::queue::{Lease, MOVES_PER_CALL, Queue, Receipt, check_timeout};
use super::state::State;
use crate::shared::sync::Ordering::{Acquire, Relaxed};
use crate::shared::sync::fence;
use crate::{Error, Result};

impl Queue {
    /// As [`Queue::read`], up to `limit` messages at once.
    pub fn read_many(&self, limit: usize, timeout: u64, now: u64) -> Result<Vec<Lease>> {
        check_timeout(timeout)?;
        self.check_usable()?;
        if self.looks_empty(now) {
            self.sweep_if_due(now)?;
            return Ok(Vec::new());
        }
        let mut leases = Vec::new();
        // In parts, so that others get the lock in between.
        while leases.len() < limit {
            let part = (limit - leases.len()).min(MOVES_PER_CALL as usize);
            let before = leases.len();
            let mut taken = self.locked(now, |now| {
                self.maintain(now, MOVES_PER_CALL)?;
                let mut taken = Vec::new();
                while taken.len() < part {
                    match self.lease_next(now.saturating_add(timeout)) {
                        Ok(Some(lease)) => taken.push(lease),
                        Ok(None) => break,
                        // What was taken is the caller's; the damage shows at the next call.
                        Err(_) if !taken.is_empty() => break,
                        Err(error) => return Err(error),
                    }
                }
                Ok(taken)
            })?;
            leases.append(&mut taken);
            if leases.len() < before + part {
                break;
            }
        }
        Ok(leases)
    }

    /// As [`Queue::dequeue`] for several; says which of them were still in the caller's hands.
    pub fn dequeue_many(&self, receipts: &[Receipt], now: u64) -> Result<Vec<bool>> {
        self.check_usable()?;
        let mut finished = Vec::with_capacity(receipts.len());
        for part in receipts.chunks(MOVES_PER_CALL as usize) {
            let _guard = self.lock()?;
            let now = self.latest(now);
            for receipt in part {
                finished.push(match self.repairing(|| self.remove(receipt, now)) {
                    Ok(()) => true,
                    Err(Error::MessageNotFound(_)) => false,
                    Err(error) => return Err(error),
                });
            }
        }
        self.room().notify_all();
        Ok(finished)
    }

    /// The bytes of a lease, to be copied once to where they belong.
    #[inline]
    pub fn bytes_of<'a>(&'a self, lease: &'a Lease) -> LeaseBytes<'a> {
        LeaseBytes {
            queue: self,
            lease,
            held: Cell::new(false),
        }
    }

    /// Appends the message to `out`; false, with `out` as it was, when it was no longer the caller's.
    pub fn append_to(&self, lease: &Lease, out: &mut Vec<u8>) -> bool {
        let Some((slot, offset)) = self.lease_bytes(lease) else {
            return false;
        };
        let before = out.len();
        self.space.region.append_to(offset, lease.length, out);
        let held = self.still_held(slot, lease);
        if !held {
            out.truncate(before);
        }
        held
    }

    #[inline]
    fn lease_bytes(&self, lease: &Lease) -> Option<(Slot, usize)> {
        let slot = self.space.geometry.slot(lease.receipt.slot)?;
        let length = u32::try_from(lease.length).ok()?;
        Some((slot, self.space.geometry.bytes(slot, length)?))
    }

    /// Whether the bytes that were just copied are those of the lease: its slot was not given to another message.
    #[inline]
    fn still_held(&self, slot: Slot, lease: &Lease) -> bool {
        // SYNC: overwritten (with `enqueue_quietly`): whoever copied a byte of another message sees that the state changed.
        fence(Acquire);
        let leased = State::Leased(lease.receipt.delivery).word();
        self.space.state(slot).load(Relaxed) == leased && self.space.id(slot).load(Relaxed) == lease.receipt.id
    }
}

/// What [`Queue::bytes_of`] gives.
#[derive(Debug)]
pub struct LeaseBytes<'a> {
    queue: &'a Queue,
    lease: &'a Lease,
    held: Cell<bool>,
}

impl LeaseBytes<'_> {
    /// Bytes of the message.
    #[inline]
    pub fn size(&self) -> usize {
        self.lease.length
    }

    /// Copies the message into `out`, which has its length; all of `out` is initialised afterwards, with zeros where it is no
    /// longer there.
    ///
    /// # Panics
    /// When the lengths differ.
    #[inline]
    pub fn copy_to(&self, out: &mut [MaybeUninit<u8>]) {
        assert_eq!(out.len(), self.lease.length, "the length of the message");
        match self.queue.lease_bytes(self.lease) {
            Some((slot, offset)) => {
                self.queue.space.region.copy_out_uninit(offset, out);
                self.held.set(self.queue.still_held(slot, self.lease));
            }
            None => out.fill(MaybeUninit::new(0)),
        }
    }

    /// Whether what was copied is the message: it was still in the caller's hands.
    #[inline]
    pub fn were_held(&self) -> bool {
        self.held.get()
    }
}
