//! Rings and SIGSTOP: a writer that laps a stopped reader, a stopped holder of the header, a stopped writer; nothing is torn and
//! nobody hangs.

mod common;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::dirs::TestDir;
use common::mapped::Mapped;
use common::stepkill::StepKill;
use common::tracee::{self, Stop, Tracee};
use common::watchdog::Watchdog;
use common::worker::Spawn;
use common::{announce, payload, rounds};
use tailrace::Error;
use tailrace::ring::Queue;

const LIMIT: Duration = Duration::from_secs(20);
/// A word that a reader shares with the judge: the messages it got.
const GOT: usize = 2;
const SLOTS: u32 = 16;

/// A reader that is stopped in the middle of copying a message, `steps` instructions after it has let the header go.
fn stopped_in_a_slot(dir: &TestDir, path: &Path, ring: &Queue, file: &Mapped, steps: u32) -> Tracee {
    let mut reader = Tracee::start(&dir.scratch(), || {
        let ring = Queue::open(path).unwrap();
        tracee::mark();
        let message = ring.try_dequeue().unwrap().expect("there is always a message");
        payload::parse_padded(&message.data).expect("a torn message was delivered");
        common::process::exit_now(0);
    });
    while held_slots(ring, file) == 0 || file.u64(16).load(Ordering::Acquire) != 0 {
        assert_eq!(reader.step(), Stop::Step);
    }
    for _ in 0..steps {
        assert_eq!(reader.step(), Stop::Step);
    }
    assert_eq!(held_slots(ring, file), 1, "it is still copying");
    reader
}

/// Lets it go on: it throws away what it has copied, if the slot was taken, and takes another message.
fn goes_on(mut reader: Tracee) {
    let end = loop {
        match reader.step() {
            Stop::Step | Stop::Mark => {}
            Stop::Ended(how) => break how,
        }
    };
    assert_eq!(end, Ok(0), "{}", reader.stderr());
}

fn held_slots(ring: &Queue, file: &Mapped) -> usize {
    let stride = 8 + ring.message_bytes();
    let locks = (0..ring.max_len() as usize).map(|slot| file.u64(32 + slot * stride));
    locks
        .filter(|lock: &&AtomicU64| lock.load(Ordering::Acquire) != 0)
        .count()
}

/// SIGSTOP at instructions all over its copy; the writer laps it, and it must notice.
#[test]
fn a_writer_laps_a_stopped_reader_and_nothing_is_torn() {
    if !tracee::SUPPORTED {
        return announce("SKIPPED: stopping at an instruction needs x86-64");
    }
    let _dog = Watchdog::start("lapped reader", Duration::from_secs(3600));
    let (stops, laps) = (rounds(20, 200), 5_000);
    let messages: Vec<_> = (0..17).map(|number| payload::make(2, number, 4096)).collect();
    for stop in 0..stops as u32 {
        let dir = TestDir::shm();
        let path = dir.queue().join("q");
        let ring = Queue::create(&path, SLOTS, 512).unwrap();
        ring.enqueue(&payload::make(1, 0, 4096)).unwrap();
        let file = Mapped::open(&path);
        // A copy has at least one step for each of its 512 words.
        let mut reader = stopped_in_a_slot(&dir, &path, &ring, &file, stop * 97 % 512);
        reader.leave_stopped();
        for number in 0..laps * u64::from(SLOTS) {
            ring.enqueue(&messages[number as usize % messages.len()]).unwrap();
        }
        let after = ring.counters().unwrap();
        assert_eq!(
            held_slots(&ring, &file),
            0,
            "the writer took the slot of the stopped reader"
        );
        assert_eq!((after.discarded, after.lost_in_hands), (1, 0), "{after:?}");
        assert_eq!(reader.finish(), Ok(0), "{}", reader.stderr());
        assert_eq!(
            ring.counters().unwrap().queued,
            u64::from(SLOTS) - 1,
            "the reader took another message"
        );
    }
    announce(&format!(
        "ring: {stops} readers, SIGSTOP in their copy, lapped {} times, 0 torn messages",
        stops * laps
    ));
}

/// As many messages as a participant can have in hand: they hold up nobody either, in a reader's hands or in a writer's.
#[test]
fn batches_in_stopped_hands_hold_up_nobody() {
    if !tracee::SUPPORTED {
        return announce("SKIPPED: stopping at an instruction needs x86-64");
    }
    let _dog = Watchdog::start("stopped batches", Duration::from_secs(600));
    const IN_HAND: usize = SLOTS as usize / 4;
    for writing in [false, true] {
        let dir = TestDir::shm();
        let path = dir.queue().join("q");
        let ring = Queue::create(&path, SLOTS, 8).unwrap();
        let mut next = 0;
        let mut put = |count: u64| {
            for number in next..next + count {
                ring.enqueue(&payload::make(1, number, 60)).unwrap();
            }
            next += count;
        };
        put(SLOTS.into());
        let file = Mapped::open(&path);
        let mut other = Tracee::start(&dir.scratch(), || {
            let ring = Queue::open(&path).unwrap();
            let batch: Vec<_> = (0..IN_HAND as u64).map(|number| payload::make(2, number, 60)).collect();
            tracee::mark();
            if writing {
                ring.enqueue_many(&batch.iter().map(Vec::as_slice).collect::<Vec<_>>())
                    .unwrap();
            } else {
                for message in ring.try_dequeue_many(IN_HAND).unwrap() {
                    payload::parse_padded(&message.data).expect("a torn message was delivered");
                }
            }
            common::process::exit_now(0);
        });
        while held_slots(&ring, &file) < IN_HAND || file.u64(16).load(Ordering::Acquire) != 0 {
            assert_eq!(other.step(), Stop::Step);
        }
        other.leave_stopped();
        let begun = Instant::now();
        put(10 * u64::from(SLOTS));
        assert!(begun.elapsed() < LIMIT);
        let in_hand = if writing { IN_HAND } else { 0 };
        assert_eq!(
            held_slots(&ring, &file),
            in_hand,
            "a writer keeps its slots, a reader does not"
        );
        assert_eq!(other.finish(), Ok(0), "{}", other.stderr());
        let counters = ring.counters().unwrap();
        assert_eq!((counters.abandoned, counters.lost_in_hands), (0, 0));
        let mut numbers = [Vec::new(), Vec::new()];
        for message in ring.try_dequeue_many(usize::MAX).unwrap() {
            let got = payload::parse_padded(&message.data).expect("whole");
            numbers[got.producer as usize - 1].push(got.sequence);
        }
        assert!(numbers.iter().all(|numbers| numbers.is_sorted()), "{numbers:?}");
        if writing {
            assert_eq!(numbers[1], [0, 1, 2, 3]);
        } else {
            assert_eq!(counters.discarded, IN_HAND as u64);
        }
        assert_eq!(numbers[0].last(), Some(&(next - 1)));
    }
}

/// As above with SIGSTOP at random moments and large messages.
#[test]
fn a_reader_stopped_at_random_is_lapped_and_gets_nothing_torn() {
    let _dog = Watchdog::start("stopped reader", Duration::from_secs(3600));
    let dir = TestDir::shm();
    let path = dir.queue().join("q");
    let ring = Queue::create(&path, SLOTS, 4096).unwrap();
    let file = Mapped::open(&path);
    let reader_path = path.clone();
    let mut reader = Spawn::new(&dir, "reader").start_forked(move |args| {
        let ring = Queue::open(&reader_path).unwrap();
        args.ready();
        while !args.stop_requested() {
            if let Some(message) = ring.try_dequeue().unwrap() {
                payload::parse_padded(&message.data).expect("a torn message was delivered");
                args.word(GOT).fetch_add(1, Ordering::AcqRel);
            }
        }
    });
    reader.wait_ready();
    let messages: Vec<_> = (0..17).map(|number| payload::make(2, number, 32_768)).collect();
    let mut enqueued = 0;
    let mut put = |count: u32| {
        for _ in 0..count {
            ring.enqueue(&messages[enqueued % messages.len()]).unwrap();
            enqueued += 1;
        }
    };
    let (mut caught, mut laps) = (0, 0);
    for round in 0..rounds(150, 10_000) as u32 {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(1) {
            put(1);
        }
        std::thread::sleep(Duration::from_micros(u64::from(round % 40) * 10));
        reader.stop();
        // Stopped in the few instructions under the header it would hold up everybody: that is another test's business.
        if file.u64(16).load(Ordering::Acquire) == 0 {
            caught += held_slots(&ring, &file);
            put(20 * SLOTS);
            laps += 20;
        }
        reader.cont();
    }
    reader.request_stop();
    reader.expect_success(LIMIT);
    let got = reader.word(GOT).load(Ordering::Acquire);
    announce(&format!(
        "ring: {got} messages, {laps} laps over a stopped reader, {caught} times in its slot"
    ));
    let counters = ring.counters().unwrap();
    assert_eq!(
        counters.enqueued,
        got + counters.overwritten + counters.discarded + counters.queued,
        "{counters:?}"
    );
}

/// A participant stopped under the header lock holds up the others (nobody may take a living one's lock), for a bounded time.
#[test]
fn a_stopped_holder_of_the_header_costs_an_error_and_no_hang() {
    if !tracee::SUPPORTED {
        return announce("SKIPPED: stopping at an instruction needs x86-64");
    }
    let _dog = Watchdog::start("stopped header", Duration::from_secs(60));
    let dir = TestDir::shm();
    let path = dir.queue().join("q");
    let ring = Queue::create(&path, 4, 4).unwrap();
    ring.enqueue(&payload::make(1, 0, 30)).unwrap();
    let file = Mapped::open(&path);
    let mut other = Tracee::start(&dir.scratch(), || {
        let ring = Queue::open(&path).unwrap();
        tracee::mark();
        ring.enqueue(&payload::make(1, 1, 30)).unwrap();
        common::process::exit_now(0);
    });
    while file.u64(16).load(Ordering::Acquire) == 0 {
        assert_eq!(other.step(), Stop::Step);
    }
    assert!(matches!(ring.enqueue(&payload::make(1, 2, 30)), Err(Error::TimedOut)));
    assert!(ring.try_dequeue().unwrap().is_none());
    goes_on(other);
    ring.enqueue(&payload::make(1, 2, 30)).unwrap();
    let left: Vec<_> = std::iter::from_fn(|| ring.try_dequeue().unwrap()).collect();
    let left: Vec<_> = left
        .iter()
        .map(|m| payload::parse_padded(&m.data).unwrap().sequence)
        .collect();
    assert_eq!(left, [0, 1, 2]);
}

/// A writer stopped in its slot is left alone: the others go around it, and it finishes when it goes on.
#[test]
fn a_stopped_writer_keeps_its_slot_while_others_lap_it() {
    if !tracee::SUPPORTED {
        return announce("SKIPPED: stopping at an instruction needs x86-64");
    }
    let _dog = Watchdog::start("stopped writer", Duration::from_secs(60));
    let dir = TestDir::shm();
    let path = dir.queue().join("q");
    let ring = Queue::create(&path, 4, 64).unwrap();
    let file = Mapped::open(&path);
    let mut writer = Tracee::start(&dir.scratch(), || {
        let ring = Queue::open(&path).unwrap();
        tracee::mark();
        ring.enqueue(&payload::make(1, 0, 500)).unwrap();
        common::process::exit_now(0);
    });
    while held_slots(&ring, &file) == 0 || file.u64(16).load(Ordering::Acquire) != 0 {
        assert_eq!(writer.step(), Stop::Step);
    }
    for sequence in 0..1_000 {
        ring.enqueue(&payload::make(2, sequence, 500)).unwrap();
        assert_eq!(held_slots(&ring, &file), 1);
    }
    let seen = |ring: &Queue| -> Vec<_> {
        let all = ring.snapshot().unwrap();
        all.iter()
            .map(|m| {
                payload::parse_padded(&m.data)
                    .map(|m| (m.producer, m.sequence))
                    .unwrap()
            })
            .collect()
    };
    assert_eq!(seen(&ring), [(2, 997), (2, 998), (2, 999)]);
    goes_on(writer);
    let mut all = seen(&ring);
    all.sort_unstable();
    assert_eq!(
        all,
        [(1, 0), (2, 997), (2, 998), (2, 999)],
        "nothing of the stopped writer is lost"
    );
    let counters = ring.counters().unwrap();
    assert_eq!(
        (counters.enqueued, counters.overwritten, counters.queued),
        (1001, 997, 4)
    );
}

/// A writer that takes a living reader's slot is itself killed at every instruction: the reader's message is counted once.
#[test]
fn a_writer_dies_while_it_takes_the_slot_of_a_living_reader() {
    if !tracee::SUPPORTED {
        return announce("SKIPPED: step-kill needs x86-64");
    }
    let _dog = Watchdog::start("taking from a reader", Duration::from_secs(600));
    let dir = TestDir::shm();
    let path = dir.queue().join("q");
    let ring = Queue::create(&path, SLOTS, 512).unwrap();
    ring.enqueue(&payload::make(1, 0, 4096)).unwrap();
    let file = Mapped::open(&path);
    let reader = stopped_in_a_slot(&dir, &path, &ring, &file, 500);
    // Up to the slot of the reader, which is the next one then.
    for _ in 1..SLOTS {
        ring.enqueue(&payload::make(1, 0, 4096)).unwrap();
    }
    let before = ring.counters().unwrap();
    let report = StepKill::new(&dir).operations(2).run(
        || Queue::open(&path).unwrap(),
        |ring, number| assert!(ring.enqueue(&payload::make(3, number as u64, 4096)).is_ok()),
        |moment| {
            // In the copy the reader is dead, too: it lost the message itself if the slot is still its own.
            let ring = Queue::open(&moment.dir.join("q")).map_err(|e| e.to_string())?;
            let after = ring.counters().map_err(|e| e.to_string())?;
            let fate = after.discarded - before.discarded + after.lost_in_hands;
            let enqueued = after.enqueued - before.enqueued;
            let left = std::iter::from_fn(|| ring.try_dequeue().unwrap());
            let left = left.map(|m| payload::parse_padded(&m.data).map_err(|torn| torn.to_string()));
            let left = left.collect::<Result<Vec<_>, _>>()?.len() as u64;
            let expected = before.queued + enqueued - (after.overwritten - before.overwritten) - after.abandoned;
            match fate == 1 && left == expected {
                true => Ok(()),
                false => Err(format!("{left} left, {expected} expected, {before:?} {after:?}")),
            }
        },
    );
    report.assert_ok("taking from a living reader");
    let taken = Queue::open(&path).unwrap().counters().unwrap();
    assert_eq!((taken.discarded, taken.lost_in_hands), (before.discarded + 1, 0));
    goes_on(reader);
}
