//! The allocating queue under every legal interleaving of two or three threads: small models of the five races that matter.
//!
//! `CARGO_TARGET_DIR=target/loom RUSTFLAGS="--cfg loom" cargo test --release --test loom_aq`

#![cfg(loom)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use loom::thread;
use tailrace::aq::{Format, Item, Options, Queue, Reader};
use tailrace::os::clock::Clock;
use tailrace::shared::signal::Wait;

const PAGE: usize = 4;

/// A ring of so many pages of 4 bytes, with or without the trailer.
fn ring(pages: usize, trailer: bool) -> Queue {
    let format = Format {
        page_size: PAGE as u64,
        commit_timeout_ms: 10,
        options: Options::default(),
    };
    let trailer = trailer.then_some((2, 2));
    let queue = Queue::model(52 + pages * (4 + PAGE), &format, trailer).unwrap();
    assert_eq!(queue.geometry().unwrap().page_count as usize, pages);
    queue
}

/// Runs every interleaving with so many preemptions. A model of one interleaving would prove nothing: loom finds races only
/// where a thread first reads what another has written, so readers are the spawned threads and writers the first one.
fn explore(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    let count = Arc::new(AtomicUsize::new(0));
    let counter = count.clone();
    builder.check(move || {
        counter.fetch_add(1, Ordering::Relaxed);
        model();
    });
    let count = count.load(Ordering::Relaxed);
    assert!(count > 10, "only {count} interleavings were explored");
}

fn claimed(queue: &Queue, letter: u8) -> Option<u32> {
    let writer = queue.writer().unwrap();
    let mut claim = writer.try_claim(PAGE).unwrap()?;
    assert!(claim.write(None, &[letter; PAGE]).unwrap());
    let identifier = claim.queue_identifier();
    assert!(claim.commit().unwrap());
    Some(identifier)
}

#[test]
fn two_claims_never_share_a_page() {
    for trailer in [false, true] {
        explore(3, move || {
            let queue = Arc::new(ring(4, trailer));
            let other = queue.clone();
            let thread = thread::spawn(move || claimed(&other, b'b'));
            let (mine, theirs) = (claimed(&queue, b'a'), thread.join().unwrap());
            assert!(mine.is_some() && theirs.is_some() && mine != theirs);
            let mut reader = queue.reader_with(Clock::manual()).unwrap();
            let mut letters = drained(&mut reader);
            letters.sort_unstable();
            assert_eq!(letters, b"ab");
        });
    }
}

#[test]
fn what_is_retrieved_was_written_before() {
    for trailer in [false, true] {
        explore(3, move || {
            let queue = Arc::new(ring(3, trailer));
            let reader = queue.reader_with(Clock::manual()).unwrap();
            let thread = thread::spawn(move || taken(reader, 2));
            claimed(&queue, b'b').unwrap();
            let (mut reader, mut letters) = thread.join().unwrap();
            letters.extend(drained(&mut reader));
            assert_eq!(letters, b"b");
        });
    }
}

/// The letters of the items that come in so many attempts.
fn taken(mut reader: Reader, attempts: usize) -> (Reader, Vec<u8>) {
    let mut letters = Vec::new();
    for _ in 0..attempts {
        if let Some(item) = reader.retrieve().unwrap() {
            letters.push(letter(&reader, &item));
            reader.release(item).unwrap();
        }
    }
    (reader, letters)
}

fn drained(reader: &mut Reader) -> Vec<u8> {
    let mut letters = Vec::new();
    while let Some(item) = reader.retrieve().unwrap() {
        letters.push(letter(reader, &item));
        reader.release(item).unwrap();
    }
    letters
}

fn letter(reader: &Reader, item: &Item) -> u8 {
    let bytes = reader.to_vec(item);
    assert!(
        item.is_committed() && bytes.iter().all(|byte| *byte == bytes[0]),
        "torn {bytes:?}"
    );
    bytes[0]
}

/// The claim expires while its writer writes and commits: either the commit holds and the message is delivered, or it is
/// refused and the item is counted as incomplete. Without owner records the claim must at least have been written down: before
/// that the timeout frees its pages, as the document says.
#[test]
fn a_late_commit_is_delivered_or_refused() {
    for trailer in [false, true] {
        explore(3, move || {
            let queue = Arc::new(ring(2, trailer));
            let clock = Clock::manual();
            let mut reader = queue.reader_with(clock.clone()).unwrap();
            let writer = queue.writer().unwrap();
            let early = (!trailer).then(|| writer.try_claim(PAGE).unwrap().unwrap());
            let thread = thread::spawn(move || {
                let mut taken = 0;
                for _ in 0..2 {
                    taken += usize::from(reader.take(|_| Ok(())).unwrap().is_some());
                    clock.advance(Duration::from_millis(11));
                }
                (reader, taken)
            });
            let mut claim = early.unwrap_or_else(|| writer.try_claim(PAGE).unwrap().unwrap());
            claim.write(None, &[b'b'; PAGE]).unwrap();
            let committed = claim.commit().unwrap();
            let (mut reader, mut taken) = thread.join().unwrap();
            while reader.take(|_| Ok(())).unwrap().is_some() {
                taken += 1;
            }
            assert_eq!(
                taken,
                usize::from(committed),
                "acknowledged is delivered once, refused never"
            );
            assert_eq!(queue.incomplete_count().unwrap(), u64::from(!committed));
        });
    }
}

/// A batch in one claim: in its order and whole, whenever the reader comes.
#[test]
fn a_run_is_delivered_in_order() {
    explore(3, || {
        let queue = Arc::new(ring(8, true));
        let reader = queue.reader_with(Clock::manual()).unwrap();
        let thread = thread::spawn(move || taken(reader, 2));
        let batch = [[b'a'; PAGE], [b'b'; PAGE]];
        let put = queue.writer().unwrap().try_put_many(batch.iter().map(|m| &m[..]));
        assert_eq!(put.unwrap(), 2);
        let (mut reader, mut letters) = thread.join().unwrap();
        letters.extend(drained(&mut reader));
        assert_eq!(letters, b"ab");
    });
}

/// As above with a claim that expires: it is put again, and nothing comes twice.
#[test]
fn a_run_that_expires_is_delivered_once() {
    explore(2, || {
        let queue = Arc::new(ring(12, true));
        let writer = queue.writer().unwrap();
        // Little room, so that claims expire.
        let filler = writer.try_claim(7 * PAGE).unwrap().unwrap();
        let clock = Clock::manual();
        let mut reader = queue.reader_with(clock.clone()).unwrap();
        let thread = thread::spawn(move || {
            let mut letters = Vec::new();
            for _ in 0..2 {
                letters.extend(reader.take(|message| Ok(first_letter(message))).unwrap());
                clock.advance(Duration::from_millis(11));
            }
            (reader, letters)
        });
        let batch = [[b'a'; PAGE], [b'b'; PAGE]];
        let put = writer.try_put_many(batch.iter().map(|m| &m[..])).unwrap();
        let (mut reader, mut letters) = thread.join().unwrap();
        while let Some(letter) = reader.take(|message| Ok(first_letter(message))).unwrap() {
            letters.push(letter);
        }
        assert_eq!(letters, b"ab"[..put]);
        drop(filler);
    });
}

fn first_letter(message: &tailrace::aq::Taken<'_>) -> u8 {
    let mut bytes = Vec::new();
    message.append_to(&mut bytes);
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "torn {bytes:?}");
    bytes[0]
}

/// The reader frees pages at the end of the ring while a claim needs them.
#[test]
fn a_release_and_a_claim_meet_at_the_end_of_the_ring() {
    for trailer in [false, true] {
        explore(3, move || {
            let queue = Arc::new(ring(3, trailer));
            let reader = queue.reader_with(Clock::manual()).unwrap();
            claimed(&queue, b'a').unwrap();
            claimed(&queue, b'b').unwrap();
            let other = queue.clone();
            // No room until something is released.
            let thread = thread::spawn(move || {
                let first = claimed(&other, b'c').is_some();
                (first, claimed(&other, b'd').is_some())
            });
            let (mut reader, mut letters) = taken(reader, 2);
            let got = thread.join().unwrap();
            letters.extend(drained(&mut reader));
            let expected: &[u8] = match got {
                (true, true) => b"abcd",
                (true, false) => b"abc",
                (false, true) => b"abd",
                (false, false) => b"ab",
            };
            assert_eq!(letters, expected);
        });
    }
}

/// Every item of a snapshot has its own bytes, whatever is claimed meanwhile.
#[test]
fn a_snapshot_leaves_out_what_is_claimed_meanwhile() {
    explore(3, || {
        let queue = Arc::new(ring(2, false));
        let mut reader = queue.reader_with(Clock::manual()).unwrap();
        claimed(&queue, b'a').unwrap();
        assert_eq!(drained(&mut reader), b"a");
        claimed(&queue, b'b').unwrap();
        assert_eq!(drained(&mut reader), b"b");
        let other = queue.clone();
        let thread = thread::spawn(move || other.snapshot().unwrap());
        // Overwrites the page of a.
        claimed(&queue, b'c').unwrap();
        for shown in thread.join().unwrap().items() {
            let expected = match shown.item().queue_identifier() {
                0 => b'a',
                1 => b'b',
                0x10_0000 => b'c',
                other => panic!("no item {other:#x} was ever claimed"),
            };
            if shown.item().is_committed() {
                assert_eq!(shown.bytes(), [expected; PAGE]);
            }
        }
    });
}

/// A writer that is about to wake the reader and a reader about to sleep: the message is found either way.
#[test]
fn no_wake_up_is_lost() {
    explore(2, || {
        let queue = Arc::new(ring(2, true));
        let mut reader = queue.reader_with(Clock::manual()).unwrap();
        let thread = thread::spawn(move || {
            let item = reader.retrieve_within(Wait::Forever, || Ok(())).unwrap().unwrap();
            letter(&reader, &item)
        });
        claimed(&queue, b'b').unwrap();
        assert_eq!(thread.join().unwrap(), b'b');
    });
}
