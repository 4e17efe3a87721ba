//! Others coming in between the steps of a batch: a run is one claim until it is committed, and all its messages afterwards.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use super::control::Control;
use super::testpoint::{Point, at};
use super::{Format, Options, Queue, Reader, Verdict, Writer};
use crate::os::clock::Clock;
use crate::shared::sync::Ordering;

const PAGE: usize = 4;
const PAGES: usize = 64;
const TIMEOUT: Duration = Duration::from_millis(1001);

/// Five messages of 1, 3, 1, 1 and 2 pages.
const BATCH: [&[u8]; 5] = [b"a", b"bbbbbbbbbb", b"cc", b"dddd", b"eeeee"];

struct Ring {
    queue: Queue,
    writer: Writer,
    reader: RefCell<Reader>,
    clock: Clock,
}

fn ring(options: Options) -> Rc<Ring> {
    let words = 1 + usize::from(options.crc32) + usize::from(options.link_identifier);
    let format = Format {
        page_size: PAGE as u64,
        commit_timeout_ms: 1000,
        options,
    };
    let queue = Queue::heap(52 + PAGES * (PAGE + 4 * words), &format).unwrap();
    assert_eq!(queue.geometry().unwrap().page_count as usize, PAGES);
    let clock = Clock::manual();
    Rc::new(Ring {
        writer: queue.writer().unwrap(),
        reader: RefCell::new(queue.reader_with(clock.clone()).unwrap()),
        queue,
        clock,
    })
}

impl Ring {
    fn put(&self, batch: &[&[u8]]) {
        assert_eq!(self.writer.try_put_many(batch.iter().copied()).unwrap(), batch.len());
    }

    /// The messages that come one by one.
    fn taken(&self) -> Vec<Vec<u8>> {
        let mut reader = self.reader.borrow_mut();
        let mut messages = Vec::new();
        while let Some(message) = reader
            .take(|message| {
                let mut bytes = Vec::new();
                message.append_to(&mut bytes);
                Ok(bytes)
            })
            .unwrap()
        {
            messages.push(message);
        }
        messages
    }

    fn is_empty(&self) -> bool {
        let word = |at| self.queue.region().u32(at).load(Ordering::Relaxed);
        word(44) == word(48)
    }

    /// Capacity of each item of a snapshot and whether it is committed.
    fn shown(&self) -> Vec<(usize, bool)> {
        let snapshot = self.queue.snapshot().unwrap();
        let items = snapshot.items().iter();
        items
            .map(|item| (item.item().capacity(), item.item().is_committed()))
            .collect()
    }
}

#[test]
fn a_run_is_what_single_puts_would_have_been() {
    for options in [
        Options::default(),
        Options {
            crc32: true,
            link_identifier: true,
            ..Options::default()
        },
    ] {
        let (together, alone) = (ring(options), ring(options));
        for _ in 0..40 {
            together.put(&BATCH);
            BATCH.iter().for_each(|message| alone.put(&[message]));
            assert_eq!(together.shown(), alone.shown());
            let (some, same) = (together.taken(), alone.taken());
            assert_eq!(some, BATCH);
            assert_eq!(same, BATCH);
            let counters = |ring: &Ring| {
                let words = [36, 40, 44, 48].map(|at| ring.queue.region().u32(at).load(Ordering::Relaxed));
                (words, ring.queue.corrupt_count().unwrap())
            };
            assert_eq!(counters(&together), counters(&alone), "commits, frees, head and tail");
        }
    }
}

#[test]
fn a_reader_that_comes_before_the_run_is_written_down_gets_it_in_order() {
    let ring = ring(Options::default());
    let inner = ring.clone();
    at(Point::BeforeControl, move || assert!(inner.taken().is_empty()));
    ring.put(&BATCH);
    assert_eq!(ring.taken(), BATCH);
    assert!(ring.is_empty());
}

#[test]
fn a_reader_that_comes_before_the_commit_gets_it_in_order() {
    for behind in [false, true] {
        let ring = ring(Options::default());
        let inner = ring.clone();
        at(Point::BeforeCommit, move || {
            if behind {
                inner.put(&[b"behind"]);
            }
            assert_eq!(inner.taken().len(), usize::from(behind));
            assert_eq!(inner.shown()[0], (8 * PAGE, false), "one claim");
        });
        ring.put(&BATCH);
        assert_eq!(ring.taken(), BATCH, "something behind it: {behind}");
        assert!(ring.is_empty());
    }
}

/// The walk passes the first page while nothing is written, and comes to the second message when everything is.
#[test]
fn a_run_that_is_committed_behind_the_walk_comes_in_order() {
    for already_passed in [false, true] {
        let ring = ring(Options::default());
        ring.put(&BATCH);
        let words: Vec<u32> = (0..8)
            .map(|page| control(&ring, page).swap(0, Ordering::Relaxed))
            .collect();
        if already_passed {
            assert!(ring.taken().is_empty());
        }
        let inner = ring.clone();
        let commit = move || {
            for (page, word) in words.iter().enumerate() {
                control(&inner, page).store(*word, Ordering::Relaxed);
            }
        };
        if already_passed {
            commit();
        } else {
            at(Point::PastUncommitted, commit);
        }
        assert_eq!(ring.taken(), BATCH, "passed before: {already_passed}");
        assert!(ring.is_empty());
    }
}

fn control(ring: &Ring, page: usize) -> &crate::shared::sync::AtomicU32 {
    ring.queue.region().u32(52 + 4 * page)
}

/// Fills the ring until little is free, so that claims expire.
fn crowd(ring: &Ring) {
    let filler = vec![b'f'; (PAGES - 12) * PAGE];
    ring.put(&[&filler]);
}

#[test]
fn a_run_that_expires_is_put_again() {
    let ring = ring(Options::default());
    let inner = ring.clone();
    at(Point::BeforeCommit, move || {
        crowd(&inner);
        assert_eq!(
            inner.reader.borrow_mut().retrieve().unwrap().unwrap().size(),
            (PAGES - 12) * PAGE
        );
        inner.clock.advance(TIMEOUT);
        assert!(inner.taken().is_empty());
        assert_eq!(inner.queue.incomplete_count().unwrap(), 1);
    });
    let put = ring.writer.try_put_many(BATCH).unwrap();
    assert!(put < BATCH.len(), "as much as there is room for");
    assert_eq!(ring.taken(), BATCH[..put]);
}

#[test]
fn a_run_committed_after_it_was_retrieved_gives_the_other_messages() {
    for exactly in [false, true] {
        let ring = ring(Options::default());
        let inner = ring.clone();
        let kept = Rc::new(RefCell::new(None));
        let keep = kept.clone();
        at(Point::BeforeCommit, move || {
            crowd(&inner);
            let mut reader = inner.reader.borrow_mut();
            let filler = reader.retrieve().unwrap().unwrap();
            inner.clock.advance(TIMEOUT);
            let item = reader.retrieve().unwrap().expect("it has expired");
            assert_eq!((item.is_committed(), item.capacity()), (false, 8 * PAGE));
            *keep.borrow_mut() = Some((filler, item));
        });
        ring.put(&BATCH);
        let (filler, item) = kept.borrow_mut().take().unwrap();
        {
            let mut reader = ring.reader.borrow_mut();
            let released = if exactly {
                reader.release_exactly(&item).unwrap()
            } else {
                reader.release(item).unwrap()
            };
            assert!(!released, "it was committed since");
            assert!(reader.release(filler).unwrap());
        }
        let skipped = usize::from(!exactly);
        assert_eq!(ring.taken(), BATCH[skipped..], "the first went with the release");
        assert!(ring.is_empty());
    }
}

/// What a run left in its interior that was never committed is not shown when its beginning is overwritten.
#[test]
fn messages_that_were_never_committed_are_never_shown() {
    let ring = ring(Options::default());
    let writer = ring.queue.writer().unwrap();
    let claim = writer.try_claim(8 * PAGE).unwrap().unwrap();
    let place = claim.queue_identifier();
    claim.give_up();
    for page in 1..8 {
        let word = Control::claimed(super::control::Reference(place), 4).with_commit();
        control(&ring, page).store(word.0, Ordering::Relaxed);
    }
    assert!(ring.taken().is_empty());
    assert!(ring.is_empty());
    for page in 1..8 {
        assert_eq!(control(&ring, page).load(Ordering::Relaxed), 0);
    }
}

#[test]
fn a_batch_that_cannot_be_read_whole_stays_whole() {
    let ring = ring(Options::default());
    ring.put(&BATCH);
    let mut reader = ring.reader.borrow_mut();
    let mut left = 3;
    let failed = reader.take_many(9, |_| {
        left -= 1;
        if left == 0 {
            Err(crate::Error::Empty)
        } else {
            Ok(Verdict::Taken)
        }
    });
    assert!(matches!(failed, Err(crate::Error::Empty)));
    let mut left = 3;
    let some = reader.take_many(9, |_| {
        left -= 1;
        Ok(if left == 0 { Verdict::NoRoom } else { Verdict::Taken })
    });
    assert_eq!(some.unwrap(), 2);
    drop(reader);
    assert_eq!(ring.taken(), BATCH[2..]);
    assert!(ring.is_empty());
}

/// In order up to an uncommitted claim, then what lies behind it; and all of it again when the reading fails.
#[test]
fn a_batch_goes_on_behind_an_uncommitted_claim() {
    let ring = ring(Options::default());
    ring.put(&BATCH[..2]);
    let late = ring.writer.try_claim(3).unwrap().unwrap();
    ring.put(&BATCH[2..]);
    let read = |fail_at: usize| {
        let mut lengths = Vec::new();
        let outcome = ring.reader.borrow_mut().take_many(9, |message| {
            if lengths.len() == fail_at {
                return Err(crate::Error::Empty);
            }
            lengths.push(message.size());
            Ok(Verdict::Taken)
        });
        (outcome.ok(), lengths)
    };
    assert_eq!(read(4), (None, vec![1, 10, 2, 4]));
    assert_eq!(read(9), (Some(5), vec![1, 10, 2, 4, 5]));
    assert!(late.commit().unwrap());
    assert_eq!(ring.taken().len(), 1);
    assert!(ring.is_empty());
}
