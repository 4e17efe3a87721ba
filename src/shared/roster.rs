//! Who takes part in a region, and who of them is alive.
//!
//! The kernel knows: each participant holds an exclusive lock on one byte far behind the end of the file, and the kernel
//! drops it with the process, however that dies. Nothing is ever concluded from a process number.
//!
//! A table in the region says who the holder of each byte is, so that a word signed by an earlier holder is known to be a
//! dead one's even while the byte is held again. A participant is alive when the table still names it *and* its byte is held.
//! Memory without a descriptor belongs to one process, whose participants are alive until they leave.
//!
//! ```text
//! table + 0   u32  joins: how many ever joined; the low 28 bits of each count, from 1 on, serve once as a nonce (0 never does)
//! table + 4   u32  reserved, 0
//! table + 8   u64  x slots: the signature of the slot's holder, 0 when it left in good order
//! ```

use std::sync::Arc;

use super::identity::{Identity, NONCE_MASK, SLOTS};
use super::region::Region;
use super::sync::{AtomicU32, AtomicU64, Ordering, fence};
use crate::os::fork;
use crate::os::locks::{Kind, LockFile};
use crate::{Error, Result};

/// The byte whose lock is slot 0's token; slot `n` has the `n`th byte after it.
pub const FIRST_TOKEN: u64 = 1 << 62;

/// Where a region keeps its roster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    /// Of the first byte, a multiple of 8.
    pub offset: usize,
    /// How many can take part at a time.
    pub slots: u32,
}

impl Table {
    /// A table of full size at `offset`.
    pub const fn at(offset: usize) -> Self {
        Table { offset, slots: SLOTS }
    }

    /// Bytes that a table needs.
    pub const fn length(self) -> usize {
        8 + 8 * self.slots as usize
    }

    fn entry(self, slot: u32) -> usize {
        self.offset + 8 + 8 * slot as usize
    }
}

/// Who stands behind a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// The word is 0.
    Nobody,
    /// Signed by a participant that lives (perhaps by this one).
    Alive,
    /// Signed by a participant that is gone: what it held may be taken over.
    Dead,
    /// Not signed by any participant that ever joined: a program that knows only "0 is free".
    Foreign,
}

/// What to clean up in the name of a dead holder of a slot before the next one works under it.
pub type Sweep = dyn Fn(&Region, u32) + Send + Sync;

/// Membership in a region: taken by [`Roster::join`], given up by dropping it, renewed in a forked child at its first use.
pub struct Roster {
    region: Arc<Region>,
    table: Table,
    tokens: Option<LockFile>,
    /// Whether everybody else is a stranger.
    alone: bool,
    sweep: Option<Box<Sweep>>,
    identity: std::sync::atomic::AtomicU64,
    generation: std::sync::atomic::AtomicU32,
}

impl Roster {
    /// Takes part in `region`. `sweep` runs with the slot that was taken, before anybody can see it in use.
    pub fn join(region: &Arc<Region>, table: Table, sweep: Option<Box<Sweep>>) -> Result<Self> {
        let inside = table
            .offset
            .checked_add(table.length())
            .is_some_and(|end| end <= region.length());
        if !inside || table.slots == 0 || table.slots > SLOTS {
            return Err(Error::Corrupt(format!(
                "the roster table {table:?} does not fit into the region"
            )));
        }
        let tokens = region.descriptor().map(LockFile::reopen).transpose()?;
        let roster = Roster {
            region: region.clone(),
            table,
            tokens,
            alone: false,
            sweep,
            identity: 0.into(),
            generation: fork::generation().into(),
        };
        let identity = roster.take_slot()?;
        roster.identity.store(identity.word(), Ordering::Relaxed);
        Ok(roster)
    }

    /// A membership in private memory, for shared memory that has no roster in it: the signature is good for signing, and
    /// every word that is not its own is [`Holder::Foreign`], because there is nobody to ask about it.
    pub fn alone(region: &Arc<Region>, table: Table) -> Result<Self> {
        let mut roster = Roster::join(region, table, None)?;
        roster.alone = true;
        Ok(roster)
    }

    /// This participant's signature. A forked child joins anew here, under its own.
    #[inline]
    pub fn me(&self) -> Result<Identity> {
        // SYNC: rejoined (with `rejoin`)
        if self.generation.load(Ordering::Acquire) != fork::generation() {
            self.rejoin()?;
        }
        let word = self.identity.load(Ordering::Relaxed);
        Ok(Identity::from_word(word).expect("set by join"))
    }

    /// Who stands behind a word found in the region. One system call at most, for the one slot that the word names.
    pub fn holder(&self, word: u64) -> Result<Holder> {
        if word == 0 {
            return Ok(Holder::Nobody);
        }
        let Some(owner) = Identity::from_word(word) else {
            return Ok(Holder::Foreign);
        };
        if owner.same_owner(self.me()?) {
            return Ok(Holder::Alive);
        }
        // SYNC: joined (with `take_slot`): whoever signed the word had entered the table before.
        fence(Ordering::Acquire);
        let joins = self.joins().load(Ordering::Relaxed);
        let issued = owner.nonce() != 0 && (joins > NONCE_MASK || owner.nonce() <= joins);
        if !issued || owner.slot() >= self.table.slots || self.alone {
            return Ok(Holder::Foreign);
        }
        // SYNC: left (with `drop`): whoever finds that the owner has left also finds that it let its locks go.
        let entry = self.entry(owner.slot()).load(Ordering::Acquire);
        let named = Identity::from_word(entry).is_some_and(|named| named.same_owner(owner));
        let lives = named && self.holds_token(owner.slot())?;
        Ok(if lives { Holder::Alive } else { Holder::Dead })
    }

    /// The living holder of a slot.
    pub fn occupant(&self, slot: u32) -> Result<Option<Identity>> {
        if slot >= self.table.slots {
            return Ok(None);
        }
        let word = self.entry(slot).load(Ordering::Acquire);
        let alive = self.holder(word)? == Holder::Alive;
        Ok(if alive { Identity::from_word(word) } else { None })
    }

    /// Everybody in the table, with whether they live. For people; it asks the kernel about each.
    pub fn members(&self) -> Result<Vec<(Identity, bool)>> {
        let mut members = Vec::new();
        for slot in 0..self.table.slots {
            let word = self.entry(slot).load(Ordering::Relaxed);
            if let Some(member) = Identity::from_word(word) {
                members.push((member, self.holder(word)? == Holder::Alive));
            }
        }
        Ok(members)
    }

    /// Leaves as a killed process would: nothing is cleaned up. For tests.
    pub fn abandon(mut self) {
        if self.tokens.take().is_none() {
            let me = self.identity.load(Ordering::Relaxed);
            let slot = Identity::from_word(me).expect("set by join").slot();
            self.entry(slot).store(0, Ordering::Relaxed);
        }
        self.identity.store(0, Ordering::Relaxed);
    }

    fn take_slot(&self) -> Result<Identity> {
        let nonce = self.next_nonce();
        let slots = self.table.slots;
        // Places that were left in good order first; then any whose holder is dead, starting at a different one each time.
        let vacant = (0..slots).filter(|&slot| self.entry(slot).load(Ordering::Relaxed) == 0);
        let all = (0..slots).map(|i| (nonce % slots + i) % slots);
        for slot in vacant.chain(all) {
            let me = Identity::new(slot, nonce, std::process::id());
            let entry = self.entry(slot);
            let taken = match &self.tokens {
                Some(tokens) => tokens.try_lock(FIRST_TOKEN + u64::from(slot), 1, Kind::Exclusive)?,
                None => entry
                    .compare_exchange(0, me.word(), Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok(),
            };
            if taken {
                if let Some(sweep) = &self.sweep {
                    sweep(&self.region, slot);
                }
                // SYNC: joined (with `holder`)
                entry.store(me.word(), Ordering::Release);
                fence(Ordering::Release);
                return Ok(me);
            }
        }
        Err(Error::AlreadyOpen(format!(
            "all {slots} places for participants are taken"
        )))
    }

    fn next_nonce(&self) -> u32 {
        let nonce = self.joins().fetch_add(1, Ordering::Relaxed).wrapping_add(1) & NONCE_MASK;
        // Once in 2^28 joins the count is a multiple of that; the next one is not.
        if nonce == 0 { self.next_nonce() } else { nonce }
    }

    #[cold]
    fn rejoin(&self) -> Result<()> {
        fork::one_at_a_time(|| {
            if self.generation.load(Ordering::Relaxed) == fork::generation() {
                return Ok(());
            }
            // Memory without a descriptor was copied by the fork, this membership with it.
            if let Some(tokens) = &self.tokens {
                tokens.renew(self.region.descriptor().expect("as when it joined"))?;
                let identity = self.take_slot()?;
                self.identity.store(identity.word(), Ordering::Relaxed);
            }
            // SYNC: rejoined (with `me`)
            self.generation.store(fork::generation(), Ordering::Release);
            Ok(())
        })
    }

    fn holds_token(&self, slot: u32) -> Result<bool> {
        match &self.tokens {
            Some(tokens) => Ok(tokens.first_held(FIRST_TOKEN + u64::from(slot), 1)?.is_some()),
            None => Ok(true),
        }
    }

    fn joins(&self) -> &AtomicU32 {
        self.region.u32(self.table.offset)
    }

    fn entry(&self, slot: u32) -> &AtomicU64 {
        self.region.u64(self.table.entry(slot))
    }
}

impl Drop for Roster {
    fn drop(&mut self) {
        // A child that never used the handle has nothing to leave; its parent is still there.
        if self.generation.load(Ordering::Relaxed) != fork::generation() {
            return;
        }
        let me = self.identity.load(Ordering::Relaxed);
        if let Some(identity) = Identity::from_word(me) {
            // SYNC: left (with `holder`): everything this participant did is done before its place is free.
            let _ = self
                .entry(identity.slot())
                .compare_exchange(me, 0, Ordering::Release, Ordering::Relaxed);
        }
    }
}

impl std::fmt::Debug for Roster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let me = Identity::from_word(self.identity.load(Ordering::Relaxed));
        f.debug_struct("Roster")
            .field("me", &me)
            .field("table", &self.table)
            .finish_non_exhaustive()
    }
}
