//! The ring in one process: format, order, fates, waiting, threads, wrong files, the limits of counters.

mod common;

use std::collections::VecDeque;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::dirs::TestDir;
use common::payload;
use common::watchdog::Watchdog;
use common::{announce, rounds};
use proptest::prelude::*;
use tailrace::Error;
use tailrace::ring::{Counters, Options, Queue, layout};
use tailrace::shared::signal::Wait;

fn word(number: u64) -> [u8; 8] {
    number.to_le_bytes()
}

fn taken(ring: &Queue) -> Option<(Option<u64>, Vec<u8>)> {
    ring.try_dequeue()
        .unwrap()
        .map(|message| (message.sequence, message.data))
}

fn overwrite(path: &Path, at: u64, bytes: &[u8]) {
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(bytes, at).unwrap();
}

#[test]
fn the_file_is_the_document_byte_for_byte() {
    let dir = TestDir::shm();
    let path = dir.queue().join("q");
    let ring = Queue::create(&path, 5, 3).unwrap();
    for letter in *b"abcdef" {
        ring.enqueue(&[letter; 24]).unwrap();
    }
    assert_eq!(ring.try_dequeue().unwrap().unwrap().data, [b'b'; 24]);
    let image = std::fs::read(&path).unwrap();
    let mut expected = Vec::new();
    expected.extend_from_slice(&0x576f_726b_2069_7320_u64.to_le_bytes());
    expected.extend_from_slice(&5_u32.to_le_bytes());
    expected.extend_from_slice(&3_u32.to_le_bytes());
    expected.extend_from_slice(&[0; 8]);
    expected.extend_from_slice(&2_u32.to_le_bytes());
    expected.extend_from_slice(&4_u32.to_le_bytes());
    for letter in *b"fbcde" {
        expected.extend_from_slice(&[0; 8]);
        expected.extend_from_slice(&[letter; 24]);
    }
    assert_eq!(image[..expected.len()], expected);
    let trailer = layout::Geometry::new(5, 3).unwrap().trailer(layout::PLACES);
    assert_eq!(image.len(), trailer.end());
    assert_eq!(&image[trailer.at()..trailer.at() + 8], b"tailring");
}

#[test]
fn short_messages_are_padded_over_what_was_there_and_long_ones_refused() {
    let ring = Queue::anonymous(1, 2).unwrap();
    for length in [16, 0, 1, 7, 8, 9, 15] {
        ring.enqueue(&[0xEE; 16]).unwrap();
        ring.enqueue(&vec![7; length]).unwrap();
        let mut expected = vec![7; length];
        expected.resize(16, 0);
        assert_eq!(taken(&ring).unwrap().1, expected);
    }
    let error = ring.enqueue(&[0; 17]).unwrap_err();
    assert!(matches!(error, Error::TooLarge { size: 17, limit: 16 }), "{error}");
    assert!(matches!(ring.try_dequeue_into(&mut [0; 8]), Err(Error::Invalid(_))));
}

#[test]
fn waiting_ends_with_a_message_or_with_the_time() {
    let _dog = Watchdog::start("waiting", Duration::from_secs(60));
    let ring = Queue::anonymous(4, 1).unwrap();
    assert!(matches!(ring.dequeue(Wait::No), Err(Error::Empty)));
    let begun = Instant::now();
    let wait = Wait::from_timeout(Some(Duration::from_millis(30)));
    assert!(matches!(ring.dequeue(wait), Err(Error::Empty)));
    assert!(begun.elapsed() >= Duration::from_millis(30));
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..3)
            .map(|_| scope.spawn(|| ring.dequeue(Wait::Forever).unwrap().data))
            .collect();
        std::thread::sleep(Duration::from_millis(20));
        for number in 0..3 {
            ring.enqueue(&word(number)).unwrap();
        }
        let mut got: Vec<_> = readers.into_iter().map(|reader| reader.join().unwrap()).collect();
        got.sort();
        assert_eq!(got, [word(0), word(1), word(2)]);
    });
    let stop = AtomicBool::new(false);
    let idle = || {
        if stop.swap(true, Ordering::Relaxed) {
            Err(Error::Interrupted)
        } else {
            Ok(())
        }
    };
    assert!(matches!(
        ring.dequeue_into(&mut [0; 8], Wait::Forever, idle),
        Err(Error::Interrupted)
    ));
}

#[test]
fn files_that_are_no_rings_are_refused_by_name() {
    let dir = TestDir::shm();
    let path = dir.queue().join("q");
    for (max_len, msg_size, text) in [
        (0, 1, "max_len is 0"),
        (1, 0, "msg_size is 0"),
        (u32::MAX, u32::MAX, "more than the"),
        (u32::MAX, 1 << 31, "more than the"),
    ] {
        let error = Queue::create(&path, max_len, msg_size).unwrap_err().to_string();
        assert!(error.contains(text) && !path.exists(), "{error}");
    }
    // Larger than this machine: the operating system says so, and nothing is left behind.
    assert!(matches!(Queue::create(&path, u32::MAX, 1 << 20), Err(Error::Io { .. })));
    assert!(!path.exists());
    assert!(matches!(Queue::open(&path), Err(Error::NotFound(_))));
    drop(Queue::create(&path, 4, 2).unwrap());
    assert!(matches!(Queue::create(&path, 4, 2), Err(Error::Exists(_))));
    let good = std::fs::read(&path).unwrap();
    let trailer = layout::Geometry::new(4, 2).unwrap().trailer(layout::PLACES);
    let refused = |at: usize, bytes: &[u8], text: &str| {
        overwrite(&path, at as u64, bytes);
        let error = Queue::open(&path).unwrap_err();
        assert!(matches!(error, Error::Format(_) | Error::Corrupt(_)), "{error:?}");
        assert!(error.to_string().contains(text), "{error}");
        std::fs::write(&path, &good).unwrap();
    };
    refused(0, &[0; 8], "not a ring: it begins with 0x0000000000000000");
    refused(0, &layout::MAGIC.to_be_bytes(), "foreign byte order");
    refused(8, &0_u32.to_le_bytes(), "max_len is 0");
    refused(12, &0_u32.to_le_bytes(), "msg_size is 0");
    refused(8, &[0xFF; 8], "max_len 4294967295 with msg_size 4294967295");
    refused(8, &1_000_000_u32.to_le_bytes(), "the file has");
    refused(24, &4_u32.to_le_bytes(), "START_IDX is 4");
    refused(28, &5_u32.to_le_bytes(), "QUEUE_LEN is 5");
    refused(trailer.magic(), &[0; 8], "the trailer begins with");
    refused(trailer.version(), &9_u32.to_le_bytes(), "the trailer has version 9");
    refused(trailer.places(), &5000_u32.to_le_bytes(), "5000 places");
    refused(trailer.places(), &7_u32.to_le_bytes(), "its trailer says");
    refused(trailer.file_length(), &[1; 8], "its trailer says");
    for length in [1, 31, 32 + 4 * 24 - 1, trailer.at() + 64, good.len() - 1] {
        std::fs::write(&path, &good[..length]).unwrap();
        let error = Queue::open(&path).unwrap_err();
        assert!(
            matches!(error, Error::Format(_) | Error::Corrupt(_)),
            "{length}: {error:?}"
        );
    }
}

#[test]
fn damage_that_appears_later_is_an_error_at_the_next_call() {
    let dir = TestDir::shm();
    let path = dir.queue().join("q");
    let ring = Queue::create(&path, 4, 1).unwrap();
    ring.enqueue(&word(1)).unwrap();
    overwrite(&path, 24, &[0xFF; 8]);
    for error in [
        ring.enqueue(&word(2)).map(drop),
        ring.try_dequeue().map(drop),
        ring.snapshot().map(drop),
        ring.latest().map(drop),
        ring.counters().map(drop),
    ] {
        assert!(matches!(error, Err(Error::Corrupt(_))), "{error:?}");
    }
    overwrite(&path, 24, &[0, 0, 0, 0, 1, 0, 0, 0]);
    assert_eq!(taken(&ring).unwrap().1, word(1));
}

/// Free-running counters pass their largest value like any other.
#[test]
fn counters_start_over_after_their_largest_value() {
    let dir = TestDir::shm();
    let path = dir.queue().join("q");
    let ring = Queue::create(&path, 2, 1).unwrap();
    let trailer = layout::Geometry::new(2, 1).unwrap().trailer(layout::PLACES);
    for counter in [layout::Counter::Enqueued, layout::Counter::Overwritten] {
        overwrite(&path, trailer.counter(counter) as u64, &(u64::MAX - 1).to_le_bytes());
    }
    for number in 0..6 {
        ring.enqueue(&word(number)).unwrap();
    }
    let counters = ring.counters().unwrap();
    assert_eq!((counters.enqueued, counters.overwritten), (4, 2));
    assert_eq!(taken(&ring).unwrap().1, word(4));
    assert_eq!(taken(&ring).unwrap().1, word(5));
}

#[test]
fn a_file_without_a_trailer_works_among_handles_of_ours() {
    let dir = TestDir::shm();
    let path = dir.queue().join("q");
    let ring = Queue::create(&path, 3, 1).unwrap();
    ring.enqueue(&word(7)).unwrap();
    drop(ring);
    let documented = layout::Geometry::new(3, 1).unwrap().documented_length();
    std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(documented)
        .unwrap();
    let (one, two) = (Queue::open(&path).unwrap(), Queue::open(&path).unwrap());
    assert!(!one.has_trailer() && !two.has_trailer());
    assert_eq!(taken(&one), Some((None, word(7).to_vec())), "nobody knows its number");
    for number in 0..5 {
        one.enqueue(&word(number)).unwrap();
    }
    assert_eq!(
        taken(&two),
        Some((None, word(2).to_vec())),
        "the other handle's numbers are its own"
    );
    assert_eq!(taken(&one), Some((Some(3), word(3).to_vec())));
    assert_eq!(one.counters().unwrap().overwritten, 2);
    assert!(two.foreign_seen());
    std::thread::scope(|scope| {
        taken(&one).unwrap();
        let reader = scope.spawn(|| two.dequeue(Wait::Forever).unwrap().data);
        one.enqueue(&word(9)).unwrap();
        assert_eq!(reader.join().unwrap(), word(9));
    });
    assert_eq!(
        std::fs::metadata(&path).unwrap().len(),
        documented,
        "nothing was added to the file"
    );
}

#[test]
fn a_lock_that_nobody_can_be_asked_about_is_waited_for_and_broken_only_on_demand() {
    let _dog = Watchdog::start("foreign locks", Duration::from_secs(60));
    let dir = TestDir::shm();
    let path = dir.queue().join("q");
    let patient = Queue::create(&path, 2, 1).unwrap();
    let limit = Duration::from_millis(50);
    let impatient = Queue::open_with(
        &path,
        Options {
            foreign_timeout: Some(limit),
        },
    )
    .unwrap();
    // A foreign program died with the header locked, as 1 or as its process number.
    for held in [1_u64, 4711, u64::MAX] {
        overwrite(&path, 16, &held.to_le_bytes());
        let wait = Wait::from_timeout(Some(Duration::from_millis(100)));
        assert!(matches!(patient.enqueue_within(&word(0), wait), Err(Error::TimedOut)));
        assert!(patient.try_dequeue().unwrap().is_none());
        impatient.enqueue(&word(1)).unwrap();
        assert_eq!(taken(&patient).unwrap().1, word(1));
    }
    // It died writing message 0, which is the oldest: readers wait for it, writers pass it when the ring is full.
    overwrite(&path, 24, &[0, 0, 0, 0, 1, 0, 0, 0]);
    overwrite(&path, 32, &1_u64.to_le_bytes());
    assert!(taken(&patient).is_none());
    patient.enqueue(&word(2)).unwrap();
    patient.enqueue(&word(3)).unwrap();
    assert_eq!(
        patient.snapshot().unwrap().len(),
        1,
        "message 3 took the place of 2, and the foreign one stays"
    );
    let got = impatient
        .dequeue(Wait::from_timeout(Some(Duration::from_secs(20))))
        .unwrap();
    assert_eq!(got.data, word(3));
    assert_eq!(impatient.counters().unwrap().abandoned, 1);
    // It died reading, outside of the queue: writers wait for the slot.
    overwrite(&path, 24, &[0; 8]);
    overwrite(&path, 32, &1_u64.to_le_bytes());
    assert!(matches!(
        patient.enqueue_within(&word(4), Wait::No),
        Err(Error::Full(_))
    ));
    impatient.enqueue(&word(5)).unwrap();
    assert_eq!(taken(&patient).unwrap().1, word(5));
    assert_eq!(impatient.counters().unwrap().lost_in_hands, 1);
}

#[derive(Clone, Debug)]
enum Step {
    Enqueue(Vec<u8>),
    EnqueueMany(Vec<Vec<u8>>),
    Dequeue,
    DequeueMany(usize),
    Snapshot,
    Latest,
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        5 => prop::collection::vec(any::<u8>(), 0..=16).prop_map(Step::Enqueue),
        1 => prop::collection::vec(prop::collection::vec(any::<u8>(), 0..=16), 0..60).prop_map(Step::EnqueueMany),
        4 => Just(Step::Dequeue),
        1 => (0_usize..60).prop_map(Step::DequeueMany),
        1 => Just(Step::Snapshot),
        1 => Just(Step::Latest),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 1..100)
}

/// The ring against the plainest thing that does the same.
fn behaves_like_a_deque(max_len: u32, steps: &[Step]) {
    let dir = TestDir::shm();
    let path = dir.queue().join("q");
    let mut ring = Queue::create(&path, max_len, 2).unwrap();
    let mut model: VecDeque<(Option<u64>, Vec<u8>)> = VecDeque::new();
    let mut counted = Counters::default();
    for step in steps {
        let mut put = |data: &[u8]| {
            if model.len() == max_len as usize {
                model.pop_front();
                counted.overwritten += 1;
            }
            let mut padded = data.to_vec();
            padded.resize(16, 0);
            model.push_back((Some(counted.enqueued), padded));
            counted.enqueued += 1;
            counted.enqueued - 1
        };
        match step {
            Step::Enqueue(data) => {
                assert_eq!(ring.enqueue(data).unwrap(), put(data));
            }
            Step::EnqueueMany(many) => {
                ring.enqueue_many(&many.iter().map(Vec::as_slice).collect::<Vec<_>>())
                    .unwrap();
                for data in many {
                    put(data);
                }
            }
            Step::Dequeue => assert_eq!(taken(&ring), model.pop_front()),
            Step::DequeueMany(n) => {
                let got = ring.try_dequeue_many(*n).unwrap();
                let expected = model.drain(..model.len().min(*n));
                assert!(got.into_iter().map(|m| (m.sequence, m.data)).eq(expected));
            }
            Step::Snapshot => {
                let seen: Vec<_> = ring
                    .snapshot()
                    .unwrap()
                    .into_iter()
                    .map(|m| (m.sequence, m.data))
                    .collect();
                assert_eq!(seen, model.iter().cloned().collect::<Vec<_>>());
            }
            Step::Latest => {
                assert_eq!(
                    ring.latest().unwrap().map(|m| (m.sequence, m.data)),
                    model.back().cloned()
                );
            }
            Step::Reopen => ring = Queue::open(&path).unwrap(),
        }
        assert_eq!((ring.len(), ring.is_empty()), (model.len(), model.is_empty()));
        assert_eq!(ring.is_full(), model.len() == max_len as usize);
    }
    counted.queued = model.len() as u64;
    assert_eq!(ring.counters().unwrap(), counted);
}

#[test]
fn every_sequence_of_calls_does_what_a_deque_would() {
    let _dog = Watchdog::start("model", Duration::from_secs(1800));
    let cases = rounds(300, 5_000) as u32;
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases,
        ..ProptestConfig::default()
    });
    let sizes = prop_oneof![2 => 1_u32..6, 1 => 6_u32..40];
    let run = runner.run(&(sizes, steps()), |(max_len, steps)| {
        behaves_like_a_deque(max_len, &steps);
        Ok(())
    });
    run.unwrap();
    announce(&format!("ring model: {cases} histories"));
}

/// Threads of one handle and of several, in a ring so small that writers always meet readers: nothing torn, all accounted for.
#[test]
fn every_message_of_many_threads_has_one_fate() {
    let _dog = Watchdog::start("threads", Duration::from_secs(600));
    let per_writer = rounds(20_000, 500_000);
    for (max_len, shared) in [(1, true), (2, false), (3, true), (64, true), (64, false)] {
        let dir = TestDir::shm();
        let path = dir.queue().join("q");
        let first = Queue::create(&path, max_len, 4).unwrap();
        let handles: Vec<Queue> = (0..4).map(|_| Queue::open(&path).unwrap()).collect();
        let handle = |number: usize| if shared { &first } else { &handles[number] };
        let (done, delivered) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for producer in 0..2 {
                let (ring, done) = (handle(producer), &done);
                scope.spawn(move || {
                    for sequence in 0..per_writer {
                        ring.enqueue(&payload::make(producer as u32, sequence, 30)).unwrap();
                    }
                    done.fetch_add(1, Ordering::Release);
                });
            }
            for reader in 2..4 {
                let (ring, done, delivered) = (handle(reader), &done, &delivered);
                scope.spawn(move || {
                    let mut last = [None; 2];
                    loop {
                        let finished = done.load(Ordering::Acquire) == 2;
                        let Some(message) = ring.try_dequeue().unwrap() else {
                            if finished {
                                return;
                            }
                            continue;
                        };
                        let got = payload::parse_padded(&message.data).expect("whole");
                        delivered.fetch_add(1, Ordering::Relaxed);
                        let before = last[got.producer as usize].replace(got.sequence);
                        assert!(before.is_none_or(|before| before < got.sequence), "out of order");
                    }
                });
            }
        });
        let counters = first.counters().unwrap();
        assert_eq!((counters.enqueued, counters.queued), (2 * per_writer, 0));
        let gone = counters.overwritten + counters.discarded;
        assert_eq!(delivered.into_inner() + gone, counters.enqueued, "{counters:?}");
        assert_eq!((counters.abandoned, counters.lost_in_hands), (0, 0));
    }
}

#[test]
fn snapshots_beside_writers_are_whole_and_in_order() {
    let _dog = Watchdog::start("snapshots", Duration::from_secs(600));
    let ring = Queue::anonymous(16, 64).unwrap();
    let stop = AtomicBool::new(false);
    let (mut seen, mut missed) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for sequence in 0.. {
                ring.enqueue(&payload::make(1, sequence, 512)).unwrap();
                if stop.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        let until = Instant::now() + Duration::from_millis(rounds(500, 20_000));
        while Instant::now() < until {
            let snapshot = ring.snapshot().unwrap();
            let numbers: Vec<u64> = snapshot
                .iter()
                .map(|m| payload::parse_padded(&m.data).expect("whole").sequence)
                .collect();
            assert!(numbers.is_sorted() && snapshot.iter().zip(&numbers).all(|(m, n)| m.sequence == Some(*n)));
            seen += numbers.len();
            missed += 16 - numbers.len();
            if let Some(latest) = ring.latest().unwrap() {
                payload::parse_padded(&latest.data).expect("whole");
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    announce(&format!(
        "ring snapshots: {seen} messages seen, {missed} overwritten on the way, none torn"
    ));
    assert!(seen > 0 && missed > 0, "the writer was never met");
}
