//! The durable queue's pointer word, explored by loom: an appender that starts an exhausted chunk over, beside the consumer.
//!
//! One appender (the append lock sees to that) and one consumer, as `writer.rs` and `reader.rs` use the word. Entries are of
//! one size; each place of the chunk is a cell that loom watches: two threads at one cell without an order between them is an
//! error, so a tail that moves before its entry, or a head that moves before the entry is read, shows.
#![cfg(loom)]

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicU64;
use loom::thread;
use tailrace::qewqew::layout::{FIRST_ENTRY, Pointers};
use tailrace::qewqew::word::Word;

const ENTRY: u32 = 8;
const PLACES: usize = 2;

struct Chunk {
    pointers: AtomicU64,
    places: Vec<UnsafeCell<u32>>,
}

impl Chunk {
    fn new() -> Arc<Self> {
        Arc::new(Chunk {
            pointers: AtomicU64::new(u64::from_le_bytes(Pointers::EMPTY.to_bytes())),
            places: (0..PLACES).map(|_| UnsafeCell::new(0)).collect(),
        })
    }

    fn word(&self) -> Word<'_> {
        Word(&self.pointers)
    }

    fn place(&self, offset: u32) -> &UnsafeCell<u32> {
        &self.places[((offset - FIRST_ENTRY) / ENTRY) as usize]
    }

    /// `Last::ready`, `Last::fill`: false when there is no room.
    fn append(&self, value: u32) -> bool {
        let mut pointers = self.word().load();
        if pointers.is_exhausted() && pointers.tail != FIRST_ENTRY {
            // Nobody else changes the pointers of an exhausted chunk.
            assert!(self.word().swap(pointers, Pointers::EMPTY));
            pointers = Pointers::EMPTY;
        }
        if pointers.tail >= FIRST_ENTRY + ENTRY * PLACES as u32 {
            return false;
        }
        self.place(pointers.tail).with_mut(|place| write(place, value));
        self.word().move_tail(pointers.tail + ENTRY);
        true
    }

    /// `Reader::front`, `Reader::consume`.
    fn take(&self) -> Option<u32> {
        let pointers = self.word().load();
        if pointers.is_exhausted() {
            return None;
        }
        let value = self.place(pointers.head).with(read);
        loop {
            let old = self.word().load();
            assert_eq!(old.head, pointers.head, "only the consumer moves the head");
            let head = pointers.head + ENTRY;
            if self.word().swap(old, Pointers { head, ..old }) {
                return Some(value);
            }
        }
    }
}

#[allow(unsafe_code)]
fn write(place: *mut u32, value: u32) {
    // SAFETY: loom checks that nobody else is at the cell.
    unsafe { *place = value }
}

#[allow(unsafe_code)]
fn read(place: *const u32) -> u32 {
    // SAFETY: loom checks that nobody writes to the cell.
    unsafe { *place }
}

fn explore(values: u32, looks: usize) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let chunk = Chunk::new();
        let other = chunk.clone();
        let consumer = thread::spawn(move || (0..looks).filter_map(|_| other.take()).collect::<Vec<u32>>());
        let mut appended = Vec::new();
        for value in 1..=values {
            if chunk.append(value) {
                appended.push(value);
            }
        }
        let mut got = consumer.join().unwrap();
        got.extend(std::iter::from_fn(|| chunk.take()));
        assert_eq!(got, appended, "every entry once, in order");
        // The next one finds a chunk that can start over.
        assert!(chunk.append(99));
        assert_eq!(chunk.take(), Some(99));
    });
}

#[test]
fn an_entry_is_seen_whole_and_once() {
    explore(2, 2);
}

/// More entries than there are places: the later ones go to a chunk that starts over, or find no room.
#[test]
fn an_exhausted_chunk_starts_over_beside_the_consumer() {
    explore(4, 3);
}
