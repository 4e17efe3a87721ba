//! The region that loom explores: a table of loom's atomics, one for each word that a layout declares.
//!
//! No pointer is ever cast: `u64` words are named when the region is made, everything else is 32-bit words, and copies go
//! through those words. Stands in for `region.rs` under `--cfg loom`.

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::path::Path;

use super::sync::{AtomicU32, AtomicU64, Ordering};
use crate::Result;

/// A piece of modelled memory.
#[derive(Debug)]
pub struct Region {
    length: usize,
    narrow: BTreeMap<usize, AtomicU32>,
    wide: BTreeMap<usize, AtomicU64>,
}

impl Region {
    /// Zeroed memory whose 64-bit words stand at the offsets `wide`.
    pub fn model(length: usize, wide: &[usize]) -> Region {
        let wide: BTreeMap<_, _> = wide.iter().map(|&at| (at, AtomicU64::new(0))).collect();
        let covered = |at: usize| wide.contains_key(&at) || at >= 4 && wide.contains_key(&(at - 4));
        let narrow = (0..length)
            .step_by(4)
            .filter(|&at| !covered(at))
            .map(|at| (at, AtomicU32::new(0)))
            .collect();
        Region { length, narrow, wide }
    }

    /// Zeroed memory of which only these words exist: for layouts with much that a model never touches.
    pub fn of_words(length: usize, wide: &[usize], narrow: &[usize]) -> Region {
        Region {
            length,
            narrow: narrow.iter().map(|&at| (at, AtomicU32::new(0))).collect(),
            wide: wide.iter().map(|&at| (at, AtomicU64::new(0))).collect(),
        }
    }

    /// Bytes of the region.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Modelled memory has no file.
    pub fn path(&self) -> Option<&Path> {
        None
    }

    /// Modelled memory has no descriptor.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Modelled memory is all there.
    pub fn allocate(&self, _offset: usize, _length: usize) -> Result<()> {
        Ok(())
    }

    /// Nothing to wait for.
    pub fn sync(&self) -> Result<()> {
        Ok(())
    }

    /// The 32-bit word at `offset`.
    pub fn u32(&self, offset: usize) -> &AtomicU32 {
        self.narrow
            .get(&offset)
            .unwrap_or_else(|| panic!("no 32-bit word at {offset}"))
    }

    /// The 64-bit word at `offset`.
    pub fn u64(&self, offset: usize) -> &AtomicU64 {
        self.wide
            .get(&offset)
            .unwrap_or_else(|| panic!("no 64-bit word at {offset}"))
    }

    /// Copies `bytes` to `offset`, word by word.
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done;
            let (start, width) = self.word_around(at);
            let part = (start + width - at).min(bytes.len() - done);
            let mut word = self.load(start).to_le_bytes();
            word[at - start..at - start + part].copy_from_slice(&bytes[done..done + part]);
            self.store(start, u64::from_le_bytes(word));
            done += part;
        }
    }

    /// Copies from `offset` into `bytes`, word by word.
    pub fn copy_out(&self, offset: usize, bytes: &mut [u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done;
            let (start, width) = self.word_around(at);
            let part = (start + width - at).min(bytes.len() - done);
            let word = self.load(start).to_le_bytes();
            bytes[done..done + part].copy_from_slice(&word[at - start..at - start + part]);
            done += part;
        }
    }

    /// As [`Region::copy_out`], into memory that need not be initialised.
    pub fn copy_out_uninit(&self, offset: usize, bytes: &mut [MaybeUninit<u8>]) {
        let mut copy = vec![0; bytes.len()];
        self.copy_out(offset, &mut copy);
        for (to, from) in bytes.iter_mut().zip(copy) {
            to.write(from);
        }
    }

    /// Appends `length` bytes at `offset` to `out`.
    pub fn append_to(&self, offset: usize, length: usize, out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + length, 0);
        self.copy_out(offset, &mut out[start..]);
    }

    /// Fills `length` bytes at `offset` with `value`.
    pub fn fill(&self, offset: usize, length: usize, value: u8) {
        self.copy_in(offset, &vec![value; length]);
    }

    fn word_around(&self, at: usize) -> (usize, usize) {
        let aligned = at & !3;
        if self.narrow.contains_key(&aligned) {
            (aligned, 4)
        } else if self.wide.contains_key(&aligned) {
            (aligned, 8)
        } else {
            (aligned - 4, 8)
        }
    }

    fn load(&self, start: usize) -> u64 {
        match self.narrow.get(&start) {
            Some(word) => word.load(Ordering::Relaxed).into(),
            None => self.u64(start).load(Ordering::Relaxed),
        }
    }

    fn store(&self, start: usize, value: u64) {
        match self.narrow.get(&start) {
            Some(word) => word.store(value as u32, Ordering::Relaxed),
            None => self.u64(start).store(value, Ordering::Relaxed),
        }
    }
}
