//! The small ring of the behaviour tests: 11 pages of 4 bytes, a commit timeout of one second on a clock that stands still.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tailrace::aq::control::Reference;
use tailrace::aq::{Claim, Format, Item, Options, Queue, Reader, Writer};
use tailrace::os::clock::Clock;
use tailrace::shared::region::Region;

pub const PAGES: u32 = 11;
pub const PAGE: usize = 4;
pub const TIMEOUT: Duration = Duration::from_millis(1000);

/// A queue over memory without a trailer, its one reader, and a clock to move.
pub struct Ring {
    pub queue: Queue,
    pub writer: Writer,
    pub reader: Reader,
    pub clock: Clock,
}

pub fn format(options: Options) -> Format {
    Format {
        page_size: PAGE as u64,
        commit_timeout_ms: 1000,
        options,
    }
}

impl Ring {
    pub fn new() -> Self {
        Ring::with(Options::default())
    }

    pub fn with(options: Options) -> Self {
        Ring::at_with(0, 0, options)
    }

    /// An empty or filled-by-nobody ring: head and tail stand at these pages of the second turn.
    pub fn at(head: u32, tail: u32) -> Self {
        Ring::at_with(head, tail, Options::default())
    }

    pub fn at_with(head: u32, tail: u32, options: Options) -> Self {
        let turn = if head < tail { 2 } else { 1 };
        Ring::between(Reference::new(turn, head), Reference::new(1, tail), options)
    }

    pub fn between(head: Reference, tail: Reference, options: Options) -> Self {
        let words = 1 + usize::from(options.link_identifier || options.extendable) + usize::from(options.crc32);
        let size = 52 + PAGES as usize * (PAGE + 4 * words);
        let queue = Queue::over(Region::heap(size).unwrap()).unwrap();
        queue.format(&format(options)).unwrap();
        assert_eq!(queue.geometry().unwrap().page_count, PAGES);
        queue.region().u32(44).store(head.0, Ordering::Relaxed);
        queue.region().u32(48).store(tail.0, Ordering::Relaxed);
        let clock = Clock::manual();
        Ring {
            writer: queue.writer().unwrap(),
            reader: queue.reader_with(clock.clone()).unwrap(),
            queue,
            clock,
        }
    }

    pub fn head(&self) -> Reference {
        Reference(self.queue.region().u32(44).load(Ordering::Relaxed))
    }

    pub fn tail(&self) -> Reference {
        Reference(self.queue.region().u32(48).load(Ordering::Relaxed))
    }

    pub fn control(&self, page: u32) -> u32 {
        self.queue.region().u32(52 + 4 * page as usize).load(Ordering::Relaxed)
    }

    pub fn set_control(&self, page: u32, word: u32) {
        self.queue
            .region()
            .u32(52 + 4 * page as usize)
            .store(word, Ordering::Relaxed);
    }

    pub fn available_pages(&self) -> usize {
        self.queue.available_size().unwrap() / PAGE
    }

    pub fn frees(&self) -> u32 {
        self.queue.free_counter().unwrap()
    }

    pub fn commits(&self) -> u32 {
        self.queue.commit_counter().unwrap()
    }

    pub fn is_empty(&self) -> bool {
        self.head() == self.tail()
    }

    /// Claims whole pages, filled with a letter.
    pub fn claim(&self, letter: char, pages: usize) -> Claim<'_> {
        let mut claim = self.writer.try_claim(pages * PAGE).unwrap().expect("there is room");
        claim.write(None, &vec![letter as u8; pages * PAGE]).unwrap();
        claim
    }

    pub fn put(&self, letter: char, pages: usize) {
        assert!(self.claim(letter, pages).commit().unwrap());
    }

    /// Claims and dies: nobody will ever commit.
    pub fn leave_claim(&self, letter: char, pages: usize) {
        self.claim(letter, pages).abandon();
    }

    /// Moves the head as a writer does that dies before it writes any control word.
    pub fn leave_unwritten(&self, pages: u32) {
        let head = self.head().advance(pages, PAGES);
        self.queue.region().u32(44).store(head.0, Ordering::Relaxed);
    }

    pub fn retrieve(&mut self) -> Option<(char, Item)> {
        let item = self.reader.retrieve().unwrap()?;
        let letter = self.reader.to_vec(&item).first().map_or('?', |byte| char::from(*byte));
        Some((letter, item))
    }

    /// The letters that can be retrieved now, none of them released.
    pub fn letters(&mut self) -> String {
        std::iter::from_fn(|| self.retrieve())
            .map(|(letter, _)| letter)
            .collect()
    }

    pub fn take(&mut self) -> Option<char> {
        let (letter, item) = self.retrieve()?;
        self.reader.release(item).unwrap();
        Some(letter)
    }

    pub fn expire(&self) {
        self.clock.advance(TIMEOUT + Duration::from_millis(1));
    }

    pub fn snapshot(&self) -> String {
        let snapshot = self.queue.snapshot().unwrap();
        let shown = snapshot.items().iter().map(|item| {
            let letter = item.bytes().first().map_or('?', |byte| char::from(*byte));
            let committed = if item.item().is_committed() { "" } else { "?" };
            let released = if item.is_released() { "-" } else { "" };
            format!("{letter}{}{committed}{released}", item.bytes().len().div_ceil(PAGE))
        });
        shown.collect::<Vec<_>>().join(" ")
    }
}

/// What is left unfinished, where, and how much room there is beside it.
pub fn unfinished(kind: &str, low: bool) -> Ring {
    let ring = Ring::at(0, 0);
    match kind {
        "unwritten" => ring.leave_unwritten(1),
        "at the tail" => ring.leave_claim('x', 1),
        "behind the tail" => {
            ring.put('a', 1);
            ring.leave_claim('x', 1);
        }
        other => panic!("{other}"),
    }
    if low {
        ring.put('z', 11 - 1 - ring.head().index() as usize);
    }
    ring
}

/// Changes a byte of a page behind everybody's back.
pub fn scribble(ring: &Ring, page: u32) {
    let at = ring.queue.geometry().unwrap().memory_offset as usize + page as usize * PAGE;
    let mut byte = [0];
    ring.queue.region().copy_out(at, &mut byte);
    ring.queue.region().copy_in(at, &[byte[0] ^ 0x40]);
}

pub fn link_word(ring: &Ring, page: u32) -> &AtomicU32 {
    ring.queue.region().u32(52 + 4 * (PAGES + page) as usize)
}
