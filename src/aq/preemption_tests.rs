//! One operation coming in between the steps of another (facts/aq 1.5, the pre-emption cases), on a ring of 11 pages of 4
//! bytes.

use std::rc::Rc;

use super::control::Reference;
use super::testpoint::{Point, at};
use super::{Format, Options, Queue, Reader, Writer};
use crate::Error;
use crate::shared::region::Region;
use crate::shared::sync::Ordering;

const PAGES: u32 = 11;
const PAGE: usize = 4;

struct Ring {
    queue: Queue,
    writer: Writer,
}

fn ring(index: u32, options: Options) -> Rc<Ring> {
    let words = 1 + usize::from(options.extendable);
    let queue = Queue::over(Region::heap(52 + PAGES as usize * (PAGE + 4 * words)).unwrap()).unwrap();
    let format = Format {
        page_size: PAGE as u64,
        commit_timeout_ms: 1000,
        options,
    };
    queue.format(&format).unwrap();
    for at in [44, 48] {
        queue
            .region()
            .u32(at)
            .store(Reference::new(1, index).0, Ordering::Relaxed);
    }
    let writer = queue.writer().unwrap();
    Rc::new(Ring { queue, writer })
}

impl Ring {
    /// Claims pages and leaves them uncommitted; the page at which they start.
    fn claim(&self, pages: usize) -> Option<u32> {
        let claim = self.writer.try_claim(pages * PAGE).unwrap()?;
        let start = claim.queue_identifier() & 0xF_FFFF;
        claim.abandon();
        Some(start)
    }

    fn put(&self, letter: u8, pages: usize) {
        assert!(self.writer.try_put(&vec![letter; pages * PAGE]).unwrap());
    }

    fn control(&self, page: u32) -> &crate::shared::sync::AtomicU32 {
        self.queue.region().u32(52 + 4 * page as usize)
    }

    fn contention(&self) -> u32 {
        self.queue.claim_contention_count().unwrap()
    }

    fn available(&self) -> usize {
        self.queue.available_size().unwrap() / PAGE
    }
}

#[test]
fn a_claim_that_comes_first_takes_its_room_first() {
    // From head = tail = 8: the first claims so many pages, the other comes in between; where each starts.
    let cases = [
        (
            Point::BeforeHead,
            3,
            4,
            (Some(4), Some(0)),
            "behind the other, which found no room at the end",
        ),
        (Point::BeforeHead, 5, 3, (Some(0), Some(8)), "the other takes the end"),
        (
            Point::BeforeHead,
            3,
            5,
            (None, Some(0)),
            "nothing is left for the first",
        ),
        (
            Point::BeforeControl,
            3,
            4,
            (Some(8), Some(0)),
            "the first has its room already",
        ),
        (Point::BeforeControl, 5, 2, (Some(0), Some(5)), "behind the first"),
    ];
    for (point, first, other, expected, why) in cases {
        let ring = ring(8, Options::default());
        let between = Rc::new(std::cell::Cell::new(None));
        let (inner, slot) = (ring.clone(), between.clone());
        at(point, move || slot.set(inner.claim(other)));
        let started = ring.claim(first);
        assert_eq!((started, between.get()), expected, "{why}");
        assert_eq!(ring.contention(), u32::from(point == Point::BeforeHead), "{why}");
        // Whoever got pages has words of its own.
        for start in [started, between.get()].into_iter().flatten() {
            assert_eq!(ring.control(start).load(Ordering::Relaxed) >> 31, 1, "{why}");
        }
    }
}

#[test]
fn two_claims_may_come_first() {
    let ring = ring(8, Options::default());
    let order = Rc::new(std::cell::RefCell::new(Vec::new()));
    for pages in [3, 5] {
        let (inner, order) = (ring.clone(), order.clone());
        at(Point::BeforeHead, move || order.borrow_mut().push(inner.claim(pages)));
    }
    let started = ring.claim(2);
    order.borrow_mut().push(started);
    order.borrow_mut().sort_unstable();
    assert_eq!(*order.borrow(), [Some(0), Some(5), Some(8)]);
    assert_eq!((ring.contention(), ring.available(), started), (2, 0, Some(5)));
}

#[test]
fn a_reader_that_comes_before_the_control_word_finds_nothing() {
    for stale in [0, 0x4000_0004, 0x2000_000c] {
        let ring = ring(8, Options::default());
        ring.control(8).store(stale, Ordering::Relaxed);
        let inner = ring.clone();
        at(Point::BeforeControl, move || {
            let mut reader = inner.queue.reader().unwrap();
            assert!(reader.retrieve().unwrap().is_none(), "{stale:#x}");
        });
        assert_eq!(ring.claim(2), Some(8));
    }
}

#[test]
fn a_segment_committed_behind_the_walk_comes_with_the_next_one() {
    for segments in [2_u32, 3] {
        for late in 0..segments {
            let ring = ring(
                3,
                Options {
                    extendable: true,
                    ..Options::default()
                },
            );
            let mut claim = ring.writer.try_claim(0).unwrap().unwrap();
            for letter in 0..segments {
                assert!(claim.write(None, &[b'a' + letter as u8; PAGE]).unwrap());
            }
            claim.commit().unwrap();
            let word = ring.control(3 + late).load(Ordering::Relaxed);
            ring.control(3 + late).store(word & !(1 << 30), Ordering::Relaxed);
            let inner = ring.clone();
            at(Point::PastUncommitted, move || {
                inner.control(3 + late).store(word, Ordering::Relaxed)
            });
            let mut reader = ring.queue.reader().unwrap();
            let size = next_size(&mut reader).or_else(|| next_size(&mut reader));
            assert_eq!(size, Some(segments as usize * PAGE), "{segments} segments, {late} late");
        }
    }
}

fn next_size(reader: &mut Reader) -> Option<usize> {
    reader.retrieve().unwrap().map(|item| item.size())
}

#[test]
fn a_word_that_changes_twice_during_a_release_is_an_error() {
    let ring = ring(0, Options::default());
    assert_eq!(ring.claim(9), Some(0));
    let clock = crate::os::clock::Clock::manual();
    let mut reader = ring.queue.reader_with(clock.clone()).unwrap();
    assert!(reader.retrieve().unwrap().is_none());
    clock.advance(std::time::Duration::from_millis(1001));
    let item = reader.retrieve().unwrap().unwrap();
    let word = ring.control(0);
    word.fetch_or(1 << 30, Ordering::Relaxed);
    let inner = ring.clone();
    at(Point::ReleaseAgain, move || {
        inner.control(0).store(7, Ordering::Relaxed)
    });
    assert!(matches!(reader.release(item), Err(Error::Invalid(_))));
    assert_eq!(word.load(Ordering::Relaxed), 7);
}

/// Letters of a snapshot during which so many single pages are put (and taken, to make room).
fn snapshot_during(ring: &Rc<Ring>, pages: usize) -> String {
    let inner = ring.clone();
    at(Point::SnapshotBegins, move || {
        let mut reader = inner.queue.reader().unwrap();
        for _ in 0..pages {
            inner.put(b'n', 1);
            while reader.take(|_| Ok(())).unwrap().is_some() {}
        }
    });
    let snapshot = ring.queue.snapshot().unwrap();
    snapshot
        .items()
        .iter()
        .map(|item| char::from(item.bytes()[0]))
        .collect()
}

#[test]
fn what_the_head_passes_during_a_snapshot_is_left_out() {
    for start in [0, 4, 10] {
        for moved in 0..=2 * PAGES as usize + 1 {
            let ring = ring(start, Options::default());
            let mut reader = ring.queue.reader().unwrap();
            for letter in b'a'..=b'k' {
                ring.put(letter, 1);
                reader.take(|_| Ok(())).unwrap();
            }
            drop(reader);
            let expected: String = ('a'..='k').skip(moved).collect();
            let whole_turns = moved / PAGES as usize > 0;
            let expected = if whole_turns { String::new() } else { expected };
            assert_eq!(snapshot_during(&ring, moved), expected, "from {start}, {moved} pages");
        }
    }
}
