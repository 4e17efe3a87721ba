//! The words of a ring by name: the only place where an offset meets a region.

use std::mem::MaybeUninit;
use std::sync::Arc;

use super::layout::{
    Counter, Geometry, HEADER_LOCK_AT, IntentWord, MAGIC, MAGIC_AT, MAX_LEN_AT, MSG_SIZE_AT, RANGE_AT, Range, Stamp,
    TRAILER_MAGIC, TRAILER_VERSION, Trailer,
};
use crate::Result;
use crate::shared::region::Region;
use crate::shared::signal::Signal;
use crate::shared::sync::{AtomicU64, Ordering};

/// A ring in memory: the documented part, and the trailer (behind it, or in private memory).
#[derive(Debug)]
pub(super) struct Memory {
    ring: Arc<Region>,
    trailing: Arc<Region>,
    geometry: Geometry,
    trailer: Trailer,
}

impl Memory {
    /// A ring whose trailer is behind it.
    pub(super) fn whole(region: Arc<Region>, geometry: Geometry, trailer: Trailer) -> Self {
        Memory {
            trailing: region.clone(),
            ring: region,
            geometry,
            trailer,
        }
    }

    /// A ring without a trailer, which is made up in private memory.
    #[cfg(not(loom))]
    pub(super) fn documented_only(ring: Arc<Region>, geometry: Geometry) -> Result<Self> {
        let trailer = geometry.private_trailer();
        let memory = Memory {
            ring,
            trailing: Arc::new(Region::heap(trailer.end())?),
            geometry,
            trailer,
        };
        let found = memory.range_word().load(Ordering::Relaxed);
        memory.settled().store(found, Ordering::Relaxed);
        Ok(memory)
    }

    /// Fills zeroed memory with an empty ring.
    pub(super) fn format(region: &Region, geometry: Geometry, trailer: Trailer) {
        region.u32(MAX_LEN_AT).store(geometry.max_len(), Ordering::Relaxed);
        region.u32(MSG_SIZE_AT).store(geometry.msg_size(), Ordering::Relaxed);
        region.u32(trailer.version()).store(TRAILER_VERSION, Ordering::Relaxed);
        region
            .u32(trailer.places())
            .store(trailer.roster().slots, Ordering::Relaxed);
        region
            .u64(trailer.file_length())
            .store(trailer.end() as u64, Ordering::Relaxed);
        region.u64(trailer.magic()).store(TRAILER_MAGIC, Ordering::Relaxed);
        region.u64(MAGIC_AT).store(MAGIC, Ordering::Release);
    }

    #[cfg(not(loom))]
    pub(super) fn ring(&self) -> &Arc<Region> {
        &self.ring
    }

    #[cfg(not(loom))]
    pub(super) fn trailing(&self) -> &Arc<Region> {
        &self.trailing
    }

    pub(super) fn geometry(&self) -> Geometry {
        self.geometry
    }

    #[cfg(not(loom))]
    pub(super) fn trailer(&self) -> Trailer {
        self.trailer
    }

    /// Whether the trailer is shared with the other participants.
    pub(super) fn has_trailer(&self) -> bool {
        Arc::ptr_eq(&self.ring, &self.trailing)
    }

    #[inline]
    pub(super) fn max_len(&self) -> u32 {
        self.geometry.max_len()
    }

    #[inline]
    pub(super) fn header_lock(&self) -> &AtomicU64 {
        self.ring.u64(HEADER_LOCK_AT)
    }

    #[inline]
    pub(super) fn range_word(&self) -> &AtomicU64 {
        self.ring.u64(RANGE_AT)
    }

    /// START and LEN, checked.
    #[inline]
    pub(super) fn range(&self) -> Result<Range> {
        Range::from_word(self.range_word().load(Ordering::Acquire)).checked(self.max_len())
    }

    /// The lock word of a slot.
    #[inline]
    pub(super) fn lock(&self, slot: u32) -> &AtomicU64 {
        self.ring.u64(self.geometry.lock_at(slot))
    }

    /// The lock word of a slot now. Where it is 0, what the last holder wrote is seen: data and stamp.
    #[inline]
    pub(super) fn holder(&self, slot: u32) -> u64 {
        // SYNC: message (with `WriteHold::unlock`, `WriteBatch::deliver`)
        // SYNC: sleep (with `WriteHold::unlock`, `WriteBatch::deliver`): what a waiting reader looks at.
        self.lock(slot).load(Ordering::SeqCst)
    }

    /// Sleeping until a message arrives.
    #[inline]
    pub(super) fn arrivals(&self) -> Signal<'_> {
        Signal::new(self.trailing.u32(self.trailer.arrivals()))
    }

    #[inline]
    pub(super) fn settled(&self) -> &AtomicU64 {
        self.trailing.u64(self.trailer.settled())
    }

    #[inline]
    pub(super) fn counter(&self, counter: Counter) -> &AtomicU64 {
        self.trailing.u64(self.trailer.counter(counter))
    }

    pub(super) fn foreign(&self) -> &AtomicU64 {
        self.trailing.u64(self.trailer.foreign())
    }

    #[inline]
    pub(super) fn intent(&self, word: IntentWord) -> &AtomicU64 {
        self.trailing.u64(self.trailer.intent(word))
    }

    #[inline]
    pub(super) fn stamp(&self, slot: u32) -> Stamp {
        Stamp::from_word(self.trailing.u64(self.trailer.stamp(slot)).load(Ordering::Relaxed))
    }

    #[inline]
    pub(super) fn set_stamp(&self, slot: u32, stamp: Stamp) {
        self.trailing
            .u64(self.trailer.stamp(slot))
            .store(stamp.word(), Ordering::Relaxed);
    }

    /// Copies a message into a slot, zeros behind it.
    #[inline]
    pub(super) fn write(&self, slot: u32, message: &[u8]) {
        let at = self.geometry.data_at(slot);
        self.ring.copy_in(at, message);
        let rest = self.geometry.message_bytes() - message.len();
        if rest > 0 {
            self.ring.fill(at + message.len(), rest, 0);
        }
    }

    /// Copies the message in a slot out; `out` has its exact length.
    #[inline]
    pub(super) fn read(&self, slot: u32, out: &mut [u8]) {
        self.ring.copy_out(self.geometry.data_at(slot), out);
    }

    /// As [`Memory::read`], into memory that need not be initialised.
    #[inline]
    pub(super) fn read_uninit(&self, slot: u32, out: &mut [MaybeUninit<u8>]) {
        self.ring.copy_out_uninit(self.geometry.data_at(slot), out);
    }

    /// Appends the message in a slot to `out`.
    #[inline]
    pub(super) fn append_to(&self, slot: u32, out: &mut Vec<u8>) {
        self.ring
            .append_to(self.geometry.data_at(slot), self.geometry.message_bytes(), out);
    }

    pub(super) fn zero(&self, slot: u32) {
        self.ring
            .fill(self.geometry.data_at(slot), self.geometry.message_bytes(), 0);
    }

    /// Whether a slot holds an abandoned message: marked, and not rewritten by a foreign program since.
    #[inline]
    pub(super) fn is_abandoned(&self, slot: u32) -> bool {
        self.stamp(slot).is_abandoned() && self.is_zero(slot)
    }

    #[cold]
    fn is_zero(&self, slot: u32) -> bool {
        let (start, length) = (self.geometry.data_at(slot), self.geometry.message_bytes());
        let mut block = [0; 256];
        (0..length).step_by(block.len()).all(|done| {
            let part = &mut block[..(length - done).min(256)];
            self.ring.copy_out(start + done, part);
            part.iter().all(|byte| *byte == 0)
        })
    }
}
