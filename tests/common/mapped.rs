//! A file mapped MAP_SHARED, seen as atomic words and as bytes. The one home of mapping `unsafe` in the tests.
#![allow(unsafe_code)] // mapped memory has no safe face; each operation is bounds-checked here

use std::fs::{File, OpenOptions};
use std::path::Path;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

use memmap2::{MmapOptions, MmapRaw};

/// What one process stores, every other process that maps the file sees, also after the writer's kill -9.
pub struct Mapped {
    map: MmapRaw,
    writable: bool,
}

impl Mapped {
    /// Creates a zeroed file of `len` bytes (sparse: large ones cost nothing until used) and maps it.
    pub fn create(path: &Path, len: usize) -> Self {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)
            .unwrap_or_else(|e| panic!("create {}: {e}", path.display()));
        file.set_len(len as u64).expect("set length");
        Self {
            map: MmapRaw::map_raw(&file).expect("map"),
            writable: true,
        }
    }

    /// Maps an existing file for reading and writing.
    pub fn open(path: &Path) -> Self {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .unwrap_or_else(|e| panic!("open {}: {e}", path.display()));
        Self {
            map: MmapRaw::map_raw(&file).expect("map"),
            writable: true,
        }
    }

    /// Maps an open file read-only.
    pub fn read_only(file: &File) -> std::io::Result<Self> {
        Ok(Self {
            map: MmapOptions::new().map_raw_read_only(file)?,
            writable: false,
        })
    }

    pub fn len(&self) -> usize {
        self.map.len()
    }

    fn at<T>(&self, offset: usize) -> *mut T {
        let size = size_of::<T>();
        assert!(self.writable, "a read-only mapping has no atomic words");
        assert!(
            offset.is_multiple_of(size) && offset.checked_add(size).is_some_and(|end| end <= self.len()),
            "{size}-byte word at {offset} of a {}-byte mapping",
            self.len()
        );
        // SAFETY: offset + size is inside the mapping (checked above).
        unsafe { self.map.as_mut_ptr().add(offset) }.cast()
    }

    pub fn u64(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: in bounds, aligned (the map starts on a page), writable, and mapped as long as `self` lives.
        unsafe { AtomicU64::from_ptr(self.at(offset)) }
    }

    pub fn u32(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: as in `u64`.
        unsafe { AtomicU32::from_ptr(self.at(offset)) }
    }

    pub fn u8(&self, offset: usize) -> &AtomicU8 {
        // SAFETY: as in `u64`.
        unsafe { AtomicU8::from_ptr(self.at(offset)) }
    }

    /// The bytes, for a moment in which every writer is stopped or dead.
    pub fn quiescent_bytes(&self) -> &[u8] {
        // SAFETY: the mapping is `len` readable bytes; callers ask only while no process runs that writes to it.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr(), self.len()) }
    }
}

/// Fills a mapping by one `rep stosb` instruction: the step-kill driver must cope with those.
#[cfg(target_arch = "x86_64")]
pub fn fill_repeated(map: &Mapped, byte: u8) {
    assert!(map.writable);
    // SAFETY: rdi and rcx name exactly the writable mapping; the flag that sets the direction is clear by the ABI.
    unsafe {
        std::arch::asm!(
            "rep stosb",
            inout("rcx") map.len() => _,
            inout("rdi") map.map.as_mut_ptr() => _,
            in("al") byte,
            options(nostack, preserves_flags)
        );
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub fn fill_repeated(map: &Mapped, byte: u8) {
    for offset in 0..map.len() {
        map.u8(offset).store(byte, std::sync::atomic::Ordering::Relaxed);
    }
}
