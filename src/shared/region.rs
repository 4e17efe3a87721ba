//! Shared memory, reached only through atomics, bounded copies and checked pointers.
//!
//! Two rules make it safe to share with processes that may write anything at any time:
//! - no `&[u8]` or `&mut [u8]` is ever formed over a region: control words are atomics, payload is copied in and out word by
//!   word with relaxed atomics, so that a race gives stale bytes, never undefined behaviour;
//! - every access is checked against the length that was mapped, so that no number read from a region can reach outside it.
//!
//! Three backings behave alike: a mapped file, anonymous memory with a descriptor (shared with forked children), and heap
//! memory of this process alone. Only the first two can outlive a process, so only they have a descriptor.

#![allow(unsafe_code)]

use std::any::Any;
use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU8;

use memmap2::{MmapOptions, MmapRaw};

use super::sync::{AtomicU32, AtomicU64, Ordering};
use crate::os::file::{self, Unlinked};
use crate::{Error, Result};

/// A piece of shared memory. Cheap to share by `Arc`; unmapped with the last handle.
pub struct Region {
    base: NonNull<u8>,
    length: usize,
    /// At this offset and behind it no 32-bit word and no 64-bit word fits any more.
    ends: [usize; 2],
    backing: Backing,
}

enum Backing {
    File {
        _map: MmapRaw,
        file: OwnedFd,
        path: Option<PathBuf>,
    },
    Heap {
        _map: MmapRaw,
    },
    Borrowed {
        _owner: Box<dyn Any + Send + Sync>,
    },
}

// SAFETY: the memory is only reached through atomics and raw pointers, whatever thread asks.
unsafe impl Send for Region {}
// SAFETY: as above; `&Region` gives no reference into the memory but to atomics.
unsafe impl Sync for Region {}

impl Region {
    /// Creates the file at `path` with all its bytes allocated; it becomes visible when `format` has filled it.
    pub fn create<T>(path: &Path, length: u64, format: impl FnOnce(&Region) -> Result<T>) -> Result<(Region, T)> {
        Region::create_growing(path, length, length, format)
    }

    /// As [`Region::create`], with space for only the first `allocated` bytes; [`Region::allocate`] adds to it.
    pub fn create_growing<T>(
        path: &Path,
        length: u64,
        allocated: u64,
        format: impl FnOnce(&Region) -> Result<T>,
    ) -> Result<(Region, T)> {
        let unlinked = Unlinked::create_growing(path, length, allocated)?;
        let region = Region::map(file::reopen(unlinked.as_fd())?, Some(path))?;
        let formatted = format(&region)?;
        unlinked.publish()?;
        Ok((region, formatted))
    }

    /// Opens an existing file; see [`file::open`] for what is refused.
    pub fn open(path: &Path) -> Result<Region> {
        Region::map(file::open(path)?, Some(path))
    }

    /// Opens the file at `path`, or creates it if there is none: of any number of racing callers exactly one creates it, and
    /// the others open the finished file. `Some` is what `format` returned to the creator.
    pub fn open_or_create<T>(
        path: &Path,
        length: u64,
        mut format: impl FnMut(&Region) -> Result<T>,
    ) -> Result<(Region, Option<T>)> {
        loop {
            match Region::open(path) {
                Err(Error::NotFound(_)) => {}
                opened => return opened.map(|region| (region, None)),
            }
            match Region::create(path, length, &mut format) {
                Err(Error::Exists(_)) => {}
                created => return created.map(|(region, formatted)| (region, Some(formatted))),
            }
        }
    }

    /// Memory without a name, for the threads of this process and its forked children.
    pub fn anonymous(length: u64) -> Result<Region> {
        Region::map(file::anonymous(length)?, None)
    }

    /// Memory of this process alone, which costs nothing until it is used: a forked child gets a copy.
    pub fn heap(length: usize) -> Result<Region> {
        let failed = |e| Error::io(format!("allocating {length} bytes"), e);
        let mut options = MmapOptions::new();
        let map = options.len(length).no_reserve_swap().map_anon().map_err(failed)?;
        let map: MmapRaw = map.into();
        let base = non_null(map.as_mut_ptr());
        Ok(Region::new(base, length, Backing::Heap { _map: map }))
    }

    /// Memory that belongs to the caller.
    ///
    /// # Safety
    /// `length` bytes at `base` stay readable and writable while `owner` lives, and nobody forms Rust references to them.
    pub unsafe fn borrowed(base: NonNull<u8>, length: usize, owner: Box<dyn Any + Send + Sync>) -> Region {
        Region::new(base, length, Backing::Borrowed { _owner: owner })
    }

    fn new(base: NonNull<u8>, length: usize, backing: Backing) -> Region {
        Region {
            base,
            length,
            ends: [length.saturating_sub(3), length.saturating_sub(7)],
            backing,
        }
    }

    /// Maps the whole of an open file; `path` is for messages.
    pub fn map(file: OwnedFd, path: Option<&Path>) -> Result<Region> {
        let shown = || path.map_or("anonymous memory".into(), |p| p.display().to_string());
        let failed = |e| Error::io(format!("mapping {}", shown()), e);
        let length = file::length(&file).map_err(failed)?;
        if length == 0 {
            return Err(Error::Format(format!("{} is empty, not a queue", shown())));
        }
        let length = usize::try_from(length).map_err(|_| Error::Format(format!("{} is too long to map", shown())))?;
        let map = MmapOptions::new().len(length).map_raw(&file).map_err(failed)?;
        let base = non_null(map.as_mut_ptr());
        let path = path.map(Path::to_owned);
        Ok(Region::new(base, length, Backing::File { _map: map, file, path }))
    }

    /// Bytes mapped; fixed for the life of the handle.
    #[inline]
    pub fn length(&self) -> usize {
        self.length
    }

    /// Where the file was when it was opened.
    pub fn path(&self) -> Option<&Path> {
        match &self.backing {
            Backing::File { path, .. } => path.as_deref(),
            _ => None,
        }
    }

    /// The descriptor behind the memory. No lock is ever taken on it, so that it may be inherited; see
    /// [`crate::os::locks::LockFile::reopen`].
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.backing {
            Backing::File { file, .. } => Some(file.as_fd()),
            _ => None,
        }
    }

    /// Gives a range of a growing file its space, before the first store into it: a full disk is an error here and would be
    /// a SIGBUS later. Other memory has its space already.
    pub fn allocate(&self, offset: usize, length: usize) -> Result<()> {
        self.pointer(offset, length);
        match &self.backing {
            Backing::File { file, .. } => file::allocate_range(file, offset as u64, length as u64)
                .map_err(|e| Error::io(format!("allocating {length} more bytes for a queue file"), e)),
            _ => Ok(()),
        }
    }

    /// Waits until what was stored is on the disk.
    pub fn sync(&self) -> Result<()> {
        match &self.backing {
            Backing::File { file, .. } => file::sync_data(file).map_err(|e| Error::io("syncing a queue file", e)),
            _ => Ok(()),
        }
    }

    /// The 32-bit word at `offset`.
    ///
    /// # Panics
    /// When the word is not inside the region or not aligned: offsets come from checked geometry.
    #[inline]
    pub fn u32(&self, offset: usize) -> &AtomicU32 {
        let pointer = self.word(offset, 4, self.ends[0]);
        // SAFETY: in bounds and aligned, mapped for as long as `self`, and only ever accessed atomically.
        unsafe { AtomicU32::from_ptr(pointer.cast()) }
    }

    /// The 64-bit word at `offset`; panics as [`Region::u32`] does.
    #[inline]
    pub fn u64(&self, offset: usize) -> &AtomicU64 {
        let pointer = self.word(offset, 8, self.ends[1]);
        // SAFETY: in bounds and aligned, mapped for as long as `self`, and only ever accessed atomically.
        unsafe { AtomicU64::from_ptr(pointer.cast()) }
    }

    /// The address of a word of `size` bytes, checked with as few instructions as it takes: every operation of every queue
    /// comes here dozens of times.
    #[inline(always)]
    fn word(&self, offset: usize, size: usize, end: usize) -> *mut u8 {
        if offset >= end {
            outside(offset, size, self.length);
        }
        let pointer = self.base.as_ptr().wrapping_add(offset);
        if !(pointer as usize).is_multiple_of(size) {
            unaligned(offset);
        }
        pointer
    }

    /// The address of `length` bytes at `offset`, for views that outlive the call; panics outside the region.
    #[inline]
    pub fn pointer(&self, offset: usize, length: usize) -> *mut u8 {
        if offset > self.length || length > self.length - offset {
            outside(offset, length, self.length);
        }
        // SAFETY: `offset` is inside the mapped object, or one past its end.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// Copies `bytes` to `offset`.
    #[inline]
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) {
        let target = self.pointer(offset, bytes.len());
        let head = target.align_offset(8).min(bytes.len());
        let (head, rest) = bytes.split_at(head);
        let (body, tail) = rest.as_chunks::<8>();
        let mut at = target;
        for byte in head {
            at = store_byte(at, *byte);
        }
        if body.len() >= MANY_WORDS {
            // SAFETY: `body` is inside the checked range at `at`, and outside of the region where it comes from.
            unsafe { copy_words(at, body.as_ptr().cast(), body.len()) };
            at = at.wrapping_add(8 * body.len());
        } else {
            for word in body {
                // SAFETY: 8 bytes inside the checked range, aligned by `head`.
                unsafe { AtomicU64::from_ptr(at.cast()) }.store(u64::from_le_bytes(*word), Ordering::Relaxed);
                at = at.wrapping_add(8);
            }
        }
        for byte in tail {
            at = store_byte(at, *byte);
        }
    }

    /// Copies from `offset` into `bytes`.
    #[inline]
    pub fn copy_out(&self, offset: usize, bytes: &mut [u8]) {
        // SAFETY: `MaybeUninit<u8>` has the layout of `u8`, and `copy_out_uninit` only writes initialised bytes.
        let uninit = unsafe { &mut *(std::ptr::from_mut(bytes) as *mut [MaybeUninit<u8>]) };
        self.copy_out_uninit(offset, uninit);
    }

    /// Copies from `offset` into memory that need not be initialised, all of which is afterwards.
    #[inline]
    pub fn copy_out_uninit(&self, offset: usize, bytes: &mut [MaybeUninit<u8>]) {
        let source = self.pointer(offset, bytes.len());
        let head = source.align_offset(8).min(bytes.len());
        let (head, rest) = bytes.split_at_mut(head);
        let (body, tail) = rest.as_chunks_mut::<8>();
        let mut at = source;
        for byte in head {
            at = load_byte(at, byte);
        }
        if body.len() >= MANY_WORDS {
            // SAFETY: the words at `at` are inside the checked range, `body` is the caller's alone.
            unsafe { copy_words(body.as_mut_ptr().cast(), at, body.len()) };
            at = at.wrapping_add(8 * body.len());
        } else {
            for word in body {
                // SAFETY: 8 bytes inside the checked range, aligned by `head`.
                let value = unsafe { AtomicU64::from_ptr(at.cast()) }.load(Ordering::Relaxed);
                *word = value.to_le_bytes().map(MaybeUninit::new);
                at = at.wrapping_add(8);
            }
        }
        for byte in tail {
            at = load_byte(at, byte);
        }
    }

    /// Appends `length` bytes at `offset` to `out`.
    #[inline]
    pub fn append_to(&self, offset: usize, length: usize, out: &mut Vec<u8>) {
        out.reserve(length);
        self.copy_out_uninit(offset, &mut out.spare_capacity_mut()[..length]);
        let filled = out.len() + length;
        // SAFETY: capacity was reserved, and the bytes up to `filled` have just been written.
        unsafe { out.set_len(filled) };
    }

    /// Fills `length` bytes at `offset` with `value`.
    pub fn fill(&self, offset: usize, length: usize, value: u8) {
        let block = [value; 256];
        let mut done = 0;
        while done < length {
            let part = block.len().min(length - done);
            self.copy_in(offset + done, &block[..part]);
            done += part;
        }
    }
}

/// From this many words on the processor's own string copy is faster than a loop of single words, which the compiler must not
/// make any wider: they are atomics.
#[cfg(target_arch = "x86_64")]
const MANY_WORDS: usize = 32;
#[cfg(not(target_arch = "x86_64"))]
const MANY_WORDS: usize = usize::MAX;

/// Copies words to or from shared memory. The compiler sees nothing of it, so that a race with another process gives stale words
/// here as it does with relaxed atomics.
///
/// # Safety
/// `words` times 8 bytes are readable at `from` and writable at `to`, and do not overlap.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn copy_words(to: *mut u8, from: *const u8, words: usize) {
    // SAFETY: the caller's promise; the direction flag is clear by the calling convention.
    unsafe {
        std::arch::asm!(
            "rep movsq",
            inout("rcx") words => _,
            inout("rdi") to => _,
            inout("rsi") from => _,
            options(nostack, preserves_flags)
        );
    }
}

/// Never called: there the loop is all there is.
///
/// # Safety
/// None is needed.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy_words(_to: *mut u8, _from: *const u8, _words: usize) {
    unreachable!("MANY_WORDS is out of reach");
}

#[inline]
fn store_byte(at: *mut u8, byte: u8) -> *mut u8 {
    // SAFETY: the caller checked that `at` is inside the region; bytes are always aligned.
    unsafe { AtomicU8::from_ptr(at) }.store(byte, Ordering::Relaxed);
    at.wrapping_add(1)
}

#[inline]
fn load_byte(at: *mut u8, byte: &mut MaybeUninit<u8>) -> *mut u8 {
    // SAFETY: the caller checked that `at` is inside the region; bytes are always aligned.
    byte.write(unsafe { AtomicU8::from_ptr(at) }.load(Ordering::Relaxed));
    at.wrapping_add(1)
}

#[cold]
#[inline(never)]
fn outside(offset: usize, length: usize, whole: usize) -> ! {
    panic!("{length} bytes at {offset} are outside of a region of {whole} bytes");
}

#[cold]
#[inline(never)]
fn unaligned(offset: usize) -> ! {
    panic!("word at {offset} is not aligned");
}

fn non_null(pointer: *mut u8) -> NonNull<u8> {
    NonNull::new(pointer).expect("a mapping is never at address 0")
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("length", &self.length)
            .field("path", &self.path())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_every_alignment_come_back() {
        let region = Region::heap(1024).unwrap();
        for offset in 0..17 {
            // Short ones go word by word, long ones by the string copy.
            for length in (0..40).chain(250..275).chain([511, 512, 513, 900]) {
                let bytes: Vec<u8> = (0..length).map(|i| (offset * 41 + i * 7 + 1) as u8).collect();
                region.fill(0, 1024, 0xEE);
                region.copy_in(offset, &bytes);
                let mut back = vec![0; length];
                region.copy_out(offset, &mut back);
                assert_eq!(back, bytes);
                let mut around = Vec::new();
                region.append_to(0, 1024, &mut around);
                assert!(
                    around[..offset]
                        .iter()
                        .chain(&around[offset + length..])
                        .all(|b| *b == 0xEE)
                );
            }
        }
    }

    #[test]
    #[should_panic(expected = "outside of a region")]
    fn a_word_behind_the_end_panics() {
        let region = Region::heap(4096).unwrap();
        region.u32(4096);
    }

    #[test]
    #[should_panic(expected = "outside of a region")]
    fn a_length_that_overflows_panics() {
        let region = Region::heap(4096).unwrap();
        region.pointer(8, usize::MAX - 4);
    }

    #[test]
    #[should_panic(expected = "not aligned")]
    fn an_unaligned_word_panics() {
        let region = Region::heap(4096).unwrap();
        region.u64(4);
    }

    #[test]
    fn anonymous_memory_cannot_be_shrunk() {
        let region = Region::anonymous(8192).unwrap();
        let file = std::fs::File::from(region.descriptor().unwrap().try_clone_to_owned().unwrap());
        assert_eq!(
            file.set_len(0).unwrap_err().kind(),
            std::io::ErrorKind::PermissionDenied
        );
        region.u32(8188).store(7, Ordering::Relaxed);
        assert_eq!(region.u32(8188).load(Ordering::Relaxed), 7);
    }
}
