//! Many messages in one call: order, overwriting, what is in the way, threads, what is let fall.

mod common;

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::dirs::TestDir;
use common::mapped::Mapped;
use common::tracee::{self, Stop, Tracee};
use common::watchdog::Watchdog;
use common::{announce, payload, rounds, soak};
use tailrace::Error;
use tailrace::ring::{Counters, Queue};
use tailrace::shared::signal::Wait;

fn words(numbers: std::ops::Range<u64>) -> Vec<[u8; 8]> {
    numbers.map(u64::to_le_bytes).collect()
}

fn slices(messages: &[impl AsRef<[u8]>]) -> Vec<&[u8]> {
    messages.iter().map(AsRef::as_ref).collect()
}

fn taken(ring: &Queue, n: usize) -> Vec<u64> {
    let messages = ring.try_dequeue_many(n).unwrap();
    let number = |data: &[u8]| u64::from_le_bytes(data.try_into().unwrap());
    messages.iter().map(|message| number(&message.data)).collect()
}

fn overwrite(path: &Path, at: u64, bytes: &[u8]) {
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(bytes, at).unwrap();
}

#[test]
fn a_batch_of_any_size_goes_into_a_ring_of_any_size() {
    for max_len in [1, 2, 3, 4, 7, 8, 64, 127, 200] {
        let ring = Queue::anonymous(max_len, 1).unwrap();
        let (mut put, mut got, mut gone) = (0, 0, 0);
        for count in [0, 1, 2, 5, 31, 32, 33, 100, 1000] {
            ring.enqueue_many(&slices(&words(put..put + count))).unwrap();
            put += count;
            gone += (put - got - gone).saturating_sub(max_len.into());
            let numbers: Vec<u64> = ring
                .snapshot()
                .unwrap()
                .iter()
                .map(|message| message.sequence.unwrap())
                .collect();
            let first = got + gone;
            assert!(numbers.iter().copied().eq(first..put), "{numbers:?}");
            // Some stay, so that the next batch begins elsewhere in the ring.
            let n = (put - first) as usize * 2 / 3;
            assert!(taken(&ring, n).into_iter().eq(first..first + n as u64));
            got += n as u64;
        }
        let counted = Counters {
            enqueued: put,
            overwritten: gone,
            queued: put - got - gone,
            ..Counters::default()
        };
        assert_eq!(ring.counters().unwrap(), counted);
        assert_eq!(taken(&ring, usize::MAX).len() as u64, put - got - gone);
        assert!(taken(&ring, usize::MAX).is_empty() && taken(&ring, 0).is_empty());
    }
}

#[test]
fn a_batch_takes_no_more_than_a_quarter_of_the_ring_in_hand() {
    for (max_len, msg_size, limit) in [
        (1, 1, 1),
        (7, 1, 1),
        (8, 1, 2),
        (64, 1, 16),
        (1 << 20, 1, 32),
        (1 << 10, 512, 16),
        (64, 1 << 14, 1),
    ] {
        let ring = Queue::anonymous(max_len, msg_size).unwrap();
        assert_eq!(ring.batch_limit(), limit);
        ring.enqueue_many(&[&b"x"[..]; 50]).unwrap();
        let len = ring.len();
        let batch = ring.try_take_many(usize::MAX).unwrap();
        assert_eq!((batch.len(), ring.len()), (limit, len - limit));
        assert_eq!(batch.filter_map(|hold| hold.finish()).count(), limit);
    }
}

#[test]
fn a_message_that_is_too_large_is_refused_before_any_is_put() {
    let ring = Queue::anonymous(8, 1).unwrap();
    let error = ring.enqueue_many(&[b"1", b"2", b"123456789"]).unwrap_err();
    assert!(matches!(error, Error::TooLarge { size: 9, limit: 8 }), "{error}");
    assert_eq!(ring.counters().unwrap(), Counters::default());
}

#[test]
fn short_messages_are_padded_over_what_was_there() {
    let ring = Queue::anonymous(8, 2).unwrap();
    ring.enqueue_many(&[&[0xEE_u8; 16][..]; 8]).unwrap();
    let short = [vec![7; 16], vec![7; 9], vec![7; 8], vec![7], vec![]];
    ring.enqueue_many(&slices(&short)).unwrap();
    let got = ring.try_dequeue_many(8).unwrap();
    for (mut sent, message) in short.into_iter().zip(&got[3..]) {
        sent.resize(16, 0);
        assert_eq!(message.data, sent);
    }
}

#[test]
fn a_batch_stops_where_somebody_is_in_the_way_and_says_how_far_it_came() {
    let _dog = Watchdog::start("in the way", Duration::from_secs(60));
    let dir = TestDir::shm();
    let path = dir.queue().join("q");
    let ring = Queue::create(&path, 32, 1).unwrap();
    let (header, sixth) = (16, 32 + 5 * 16);
    let messages = words(0..20);
    let messages = slices(&messages);
    overwrite(&path, header, &1_u64.to_le_bytes());
    assert_eq!(ring.try_enqueue_many(&messages).unwrap(), 0);
    assert!(matches!(ring.enqueue_many(&messages), Err(Error::TimedOut)));
    assert!(ring.try_dequeue_many(9).unwrap().is_empty());
    overwrite(&path, header, &[0; 8]);
    overwrite(&path, sixth, &1_u64.to_le_bytes());
    assert_eq!(ring.try_enqueue_many(&messages).unwrap(), 5);
    assert_eq!(ring.try_enqueue_many(&messages[5..]).unwrap(), 0);
    assert!(matches!(ring.enqueue_many(&messages[5..]), Err(Error::Full(_))));
    overwrite(&path, sixth, &[0; 8]);
    assert_eq!(ring.try_enqueue_many(&messages[5..]).unwrap(), 15);
    // A foreign reader of a message that stays, or a slow foreign writer: those before it can be had.
    overwrite(&path, sixth, &1_u64.to_le_bytes());
    assert_eq!(taken(&ring, 20), [0, 1, 2, 3, 4]);
    overwrite(&path, sixth, &[0; 8]);
    assert!(taken(&ring, 20).into_iter().eq(5..20));
    // Damage shows where nothing was put or taken.
    overwrite(&path, 24, &[0xFF; 8]);
    assert!(matches!(ring.try_enqueue_many(&messages), Err(Error::Corrupt(_))));
    assert!(matches!(ring.try_dequeue_many(1), Err(Error::Corrupt(_))));
}

#[test]
fn messages_that_are_let_fall_are_counted_as_lost() {
    let ring = Queue::anonymous(64, 1).unwrap();
    ring.enqueue_many(&slices(&words(0..20))).unwrap();
    let mut batch = ring.try_take_many(10).unwrap();
    let first = batch.next().unwrap();
    let mut copy = Vec::new();
    first.append_to(&mut copy);
    assert_eq!((first.size(), first.finish()), (8, Some(Some(0))));
    assert_eq!(copy, 0_u64.to_le_bytes());
    drop(batch.next());
    drop(batch);
    let counters = ring.counters().unwrap();
    assert_eq!((counters.lost_in_hands, counters.queued), (9, 10));
    assert!(taken(&ring, 64).into_iter().eq(10..20));
}

#[test]
fn messages_that_writers_needed_the_slots_of_are_not_delivered() {
    let ring = Queue::anonymous(16, 1).unwrap();
    ring.enqueue_many(&slices(&words(0..16))).unwrap();
    let batch = ring.try_take_many(4).unwrap();
    ring.enqueue_many(&slices(&words(16..19))).unwrap();
    let kept: Vec<_> = batch.filter_map(|hold| hold.finish()).collect();
    assert_eq!(kept, [Some(3)]);
    let counters = ring.counters().unwrap();
    assert_eq!((counters.discarded, counters.queued), (3, 15));
    assert!(taken(&ring, 16).into_iter().eq(4..19));
}

#[test]
fn one_batch_wakes_all_who_wait() {
    let _dog = Watchdog::start("waking", Duration::from_secs(60));
    let ring = Queue::anonymous(64, 1).unwrap();
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..3)
            .map(|_| scope.spawn(|| ring.dequeue(Wait::Forever).unwrap().sequence.unwrap()))
            .collect();
        std::thread::sleep(Duration::from_millis(20));
        ring.enqueue_many(&slices(&words(0..3))).unwrap();
        let mut got: Vec<_> = readers.into_iter().map(|reader| reader.join().unwrap()).collect();
        got.sort();
        assert_eq!(got, [0, 1, 2]);
    });
}

/// Threads of one handle and of several, with batches and without, in rings in which writers always meet readers and each
/// other: nothing torn, nothing out of order, all accounted for.
#[test]
fn every_message_of_many_threads_with_batches_has_one_fate() {
    let _dog = Watchdog::start("threads", Duration::from_secs(1200));
    let per_writer = rounds(20_000, 500_000);
    let mut fates = [0; 3];
    for (max_len, shared) in [(1, true), (3, false), (8, true), (16, false), (64, true), (1024, false)] {
        let dir = TestDir::shm();
        let path = dir.queue().join("q");
        let first = Queue::create(&path, max_len, 4).unwrap();
        let handles: Vec<Queue> = (0..5).map(|_| Queue::open(&path).unwrap()).collect();
        let handle = |number: usize| if shared { &first } else { &handles[number] };
        let (done, delivered) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for producer in 0..3 {
                let (ring, done) = (handle(producer), &done);
                scope.spawn(move || {
                    let make = |sequence| payload::make(producer as u32, sequence, 30);
                    let mut sequence = 0;
                    while sequence < per_writer {
                        // The last writer has single messages only.
                        let most = if producer == 2 { 1 } else { 1 + sequence % 50 };
                        let next = per_writer.min(sequence + most);
                        let messages: Vec<_> = (sequence..next).map(make).collect();
                        match &messages[..] {
                            [message] => drop(ring.enqueue(message).unwrap()),
                            many => ring.enqueue_many(&slices(many)).unwrap(),
                        }
                        sequence = next;
                    }
                    done.fetch_add(1, Ordering::Release);
                });
            }
            for reader in 3..5 {
                let (ring, done, delivered) = (handle(reader), &done, &delivered);
                scope.spawn(move || {
                    let mut last = [None; 3];
                    loop {
                        let finished = done.load(Ordering::Acquire) == 3;
                        let n = if reader == 3 { 40 } else { 1 };
                        let messages = ring.try_dequeue_many(n).unwrap();
                        if messages.is_empty() && finished {
                            return;
                        }
                        for message in messages {
                            let got = payload::parse_padded(&message.data).expect("whole");
                            delivered.fetch_add(1, Ordering::Relaxed);
                            let before = last[got.producer as usize].replace(got.sequence);
                            assert!(before.is_none_or(|before| before < got.sequence), "out of order");
                        }
                    }
                });
            }
        });
        let counters = first.counters().unwrap();
        assert_eq!((counters.enqueued, counters.queued), (3 * per_writer, 0));
        let delivered = delivered.into_inner();
        let gone = counters.overwritten + counters.discarded;
        assert_eq!(delivered + gone, counters.enqueued, "{counters:?}");
        assert_eq!((counters.abandoned, counters.lost_in_hands), (0, 0));
        let found = [delivered, counters.overwritten, counters.discarded];
        fates.iter_mut().zip(found).for_each(|(sum, n)| *sum += n);
    }
    announce(&format!("ring batches: delivered, overwritten, discarded {fates:?}"));
}

/// A full ring whose two oldest slots are held as by a batch, and one more message, enqueued step by step. After `steps` of
/// them both slots are let go, in their order. Gives the messages that are left, and for each step whether the header was held
/// and START had not moved.
fn pass_a_batch(steps: usize) -> (Vec<u64>, Vec<bool>) {
    let dir = TestDir::shm();
    let path = dir.queue().join("q");
    let ring = Queue::create(&path, 8, 1).unwrap();
    ring.enqueue_many(&slices(&words(0..8))).unwrap();
    let file = Mapped::open(&path);
    let hold = |word| [32, 48].map(|lock| file.u64(lock).store(word, Ordering::Release));
    hold(1);
    let mut writer = Tracee::start(&dir.scratch(), || {
        let ring = Queue::open(&path).unwrap();
        tracee::mark();
        ring.enqueue(&8_u64.to_le_bytes()).unwrap();
        tracee::mark();
        common::process::exit_now(0);
    });
    let mut held = Vec::new();
    loop {
        if held.len() == steps {
            hold(0);
        }
        match writer.step() {
            Stop::Step => {
                held.push(file.u64(16).load(Ordering::Acquire) != 0 && file.u32(24).load(Ordering::Acquire) == 0)
            }
            Stop::Mark => break,
            Stop::Ended(how) => panic!("{how:?}"),
        }
    }
    writer.kill();
    hold(0);
    (taken(&ring, 8), held)
}

/// Whoever finds the oldest slots held makes them the newest, and takes the next one that is free. It must not find the first
/// slot of a batch held and, a moment later, the second one free.
#[test]
fn a_batch_that_is_passed_while_it_ends_stays_in_order() {
    if !tracee::SUPPORTED {
        return announce("SKIPPED: passing at an instruction needs x86-64");
    }
    let _dog = Watchdog::start("passing a batch", Duration::from_secs(600));
    let (left, held) = pass_a_batch(usize::MAX);
    assert_eq!(left, [3, 4, 5, 6, 7, 0, 1, 8], "both were passed");
    let last = held.iter().rposition(|held| *held).unwrap();
    let first = held[..last].iter().rposition(|held| !held).unwrap() + 1;
    let mut ways = [0; 2];
    // A look at one slot takes more instructions than are skipped here.
    for steps in (first..=last).step_by(if soak() { 1 } else { 10 }) {
        let (left, _) = pass_a_batch(steps);
        let passed = left == [3, 4, 5, 6, 7, 0, 1, 8];
        assert!(
            passed || left == [1, 2, 3, 4, 5, 6, 7, 8],
            "after {steps} steps: {left:?}"
        );
        ways[usize::from(passed)] += 1;
    }
    announce(&format!(
        "ring: a batch ended in time {}, was passed {}",
        ways[0], ways[1]
    ));
    assert!(ways.iter().all(|count| *count > 0), "{ways:?}");
}
