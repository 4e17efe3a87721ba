//! Any bytes in a ring file give an error or a ring that goes on, never a signal, a panic or a hang: every bit flipped, every
//! length, boundary values in every word, and a peer that scribbles while we work. Once as it is left in good order, and
//! as somebody leaves it who dies under the header lock, in a slot while writing, and in a slot while reading.

mod common;

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use common::corrupt::{Class, Corrupt, Verdict};
use common::dirs::TestDir;
use common::hostile::Hostile;
use common::image::Image;
use common::mapped::Mapped;
use common::mutation::Mutation;
use common::tracee::{self, Stop, Tracee};
use common::watchdog::Watchdog;
use common::{announce, payload, period, soak};
use tailrace::ring::{Options, Queue};
use tailrace::shared::signal::Wait;
use tailrace::{Error, Result};

const SLOTS: u32 = 5;
const WORDS: u32 = 4;
const STRIDE: usize = 8 + 8 * WORDS as usize;
/// Behind the documented part.
const DOCUMENTED: usize = 32 + SLOTS as usize * STRIDE;
const TRAILER: usize = DOCUMENTED.next_multiple_of(64);
/// Its words, and the stamps.
const NOTES: usize = TRAILER + 192 + 8 * SLOTS as usize;
/// Of the roster, with the places of the few who took part.
const ROSTER: usize = NOTES.next_multiple_of(64);
const MEMBERS: usize = ROSTER + 8 + 8 * 8;

/// Before this anything that is wrong must have been broken or reported.
const FOREIGN: Duration = Duration::from_millis(2);

fn message(sequence: u64) -> Vec<u8> {
    payload::make(1, sequence, 8 * WORDS as usize)
}

/// Where somebody dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    InGoodOrder,
    UnderTheHeader,
    Writing,
    Reading,
}

/// A ring whose messages go round its end, and what a death leaves of it.
fn create(dir: &TestDir, left: Left) {
    let path = dir.queue().join("q");
    let ring = Queue::create(&path, SLOTS, WORDS).unwrap();
    for sequence in 0..7 {
        ring.enqueue(&message(sequence)).unwrap();
    }
    ring.try_dequeue().unwrap().unwrap();
    assert_eq!(ring.len(), 4);
    if left == Left::InGoodOrder {
        return;
    }
    let file = Mapped::open(&path);
    let mut victim = Tracee::start(&dir.scratch(), || {
        let ring = Queue::open(&path).unwrap();
        tracee::mark();
        match left {
            Left::Reading => drop(ring.try_dequeue().unwrap()),
            _ => drop(ring.enqueue(&message(7)).unwrap()),
        }
        common::process::exit_now(0);
    });
    let header_held = || file.u64(16).load(Ordering::Acquire) != 0;
    let slot_held = || (0..SLOTS as usize).any(|slot| file.u64(32 + slot * STRIDE).load(Ordering::Acquire) != 0);
    let there = || slot_held() && header_held() == (left == Left::UnderTheHeader);
    while !there() {
        assert_eq!(victim.step(), Stop::Step);
    }
    victim.kill();
}

/// Does everything that can be done with a ring, waiting for `patience` where somebody is in the way. `known` says whether a
/// message that came out can ever have been put in.
fn use_it(dir: &Path, patience: Duration, known: impl Fn(&[u8]) -> bool) -> Verdict {
    let options = Options {
        foreign_timeout: Some(FOREIGN),
    };
    let ring = match Queue::open_with(&dir.join("q"), options) {
        Ok(ring) => ring,
        Err(error) => return Verdict::Error(error.to_string()),
    };
    let mut delivered = Vec::new();
    let outcome = (|| -> Result<()> {
        delivered.extend(ring.snapshot()?);
        delivered.extend(ring.latest()?);
        ring.participants()?;
        ring.counters()?;
        ring.recover()?;
        for _ in 0..2 {
            let mut taken = 0;
            while let Some(message) = ring.try_dequeue()? {
                delivered.push(message);
                taken += 1;
                assert!(taken <= SLOTS, "more messages than slots");
            }
            for sequence in 10..10 + 2 * u64::from(SLOTS) {
                ring.enqueue_within(&message(sequence), Wait::from_timeout(Some(patience)))?;
            }
        }
        delivered.extend(ring.snapshot()?);
        ring.counters()?;
        Ok(())
    })();
    if let Some(unknown) = delivered.iter().find(|message| !known(&message.data)) {
        return Verdict::Wrong(format!("delivered {:02x?}", unknown.data));
    }
    match outcome {
        Ok(()) => Verdict::Harmless,
        Err(error) => Verdict::Error(error.to_string()),
    }
}

/// A whole message, or a slot that nothing was ever written to.
fn is_whole(message: &[u8]) -> bool {
    payload::parse_padded(message).is_ok() || message.iter().all(|byte| *byte == 0)
}

fn all() -> Vec<Left> {
    if tracee::SUPPORTED {
        return vec![Left::InGoodOrder, Left::UnderTheHeader, Left::Writing, Left::Reading];
    }
    announce("SKIPPED: dying at an instruction needs x86-64");
    vec![Left::InGoodOrder]
}

#[test]
fn whatever_is_damaged_around_the_messages_they_stay_whole() {
    let _dog = Watchdog::start("damaged rings", Duration::from_secs(3600));
    for left in all() {
        let dir = TestDir::shm();
        create(&dir, left);
        let image = Image::read(&dir.queue());
        let length = image.bytes("q").len();
        let locks = (0..SLOTS as usize).map(|slot| 32 + slot * STRIDE..40 + slot * STRIDE);
        let limits = [u64::from(SLOTS), u64::from(WORDS), 4096, length as u64];
        let mut corrupt = Corrupt::new(&dir, &image, "q")
            .bit_flips(0..32)
            .bit_flips(TRAILER..NOTES);
        // To get past a dead holder of the header takes milliseconds: the rest of that only where there is time.
        if soak() || left == Left::InGoodOrder {
            let roster = if soak() { ROSTER..length } else { ROSTER..MEMBERS };
            corrupt = corrupt
                .bit_flips(roster)
                .truncations_to((0..ROSTER).chain((ROSTER..length).step_by(if soak() { 1 } else { 97 })))
                .boundary_values(0..32, &limits)
                .boundary_values(TRAILER..NOTES, &limits)
                .boundary_values(ROSTER..ROSTER + 16, &limits);
        }
        for lock in locks {
            corrupt = corrupt.bit_flips(lock.clone()).boundary_values(lock, &limits);
        }
        let report = corrupt.run(|dir| use_it(dir, 20 * FOREIGN, is_whole));
        report.assert_clean(&format!("ring left {left:?}"));
        // A ring that refuses everything would pass, and one that notices nothing, too.
        assert!(
            report.of(Class::Error) > 100 && report.of(Class::Harmless) > 1_000,
            "{report}"
        );
    }
}

#[test]
fn damaged_messages_harm_only_themselves() {
    let _dog = Watchdog::start("damaged messages", Duration::from_secs(900));
    for left in all() {
        let dir = TestDir::shm();
        create(&dir, left);
        let image = Image::read(&dir.queue());
        let mut corrupt = Corrupt::new(&dir, &image, "q");
        for slot in 0..SLOTS as usize {
            corrupt = corrupt.bit_flips(40 + slot * STRIDE..32 + (slot + 1) * STRIDE);
        }
        // There is no checksum in the document: the one damaged message may come out damaged.
        let report = corrupt.run(|dir| use_it(dir, Duration::from_secs(30), |_| true));
        report.assert_clean(&format!("messages of a ring left {left:?}"));
        assert_eq!(report.of(Class::Harmless), report.total(), "{report}");
    }
}

#[test]
fn parameters_that_do_not_belong_to_the_file_are_refused() {
    let dir = TestDir::shm();
    create(&dir, Left::InGoodOrder);
    let image = Image::read(&dir.queue());
    let set = |at: usize, value: u32| Mutation::Overwrite {
        at,
        bytes: value.to_le_bytes().to_vec(),
    };
    for mutation in [
        set(8, SLOTS - 1),
        set(8, SLOTS + 1),
        set(12, WORDS - 1),
        set(12, WORDS + 1),
        set(12, 1),
    ] {
        image.with("q", |bytes| mutation.apply(bytes)).restore(&dir.queue());
        let error = Queue::open(&dir.queue().join("q")).unwrap_err();
        assert!(
            matches!(&error, Error::Corrupt(text) if text.contains("the trailer begins at byte")),
            "{error}"
        );
    }
    // A foreign program may make its file longer than it needs.
    let longer = image.with("q", |bytes| {
        bytes[TRAILER..].fill(0);
        bytes.resize(1 << 16, 0);
    });
    longer.restore(&dir.queue());
    let ring = Queue::open(&dir.queue().join("q")).unwrap();
    assert!(!ring.has_trailer());
    assert_eq!(ring.snapshot().unwrap().len(), 4);
}

#[test]
fn a_scribbling_peer_crashes_nobody() {
    let _dog = Watchdog::start("hostile peer of a ring", Duration::from_secs(300));
    let whole = [0..DOCUMENTED, TRAILER..MEMBERS];
    let words_that_lead_somewhere = [16..32, TRAILER + 64..TRAILER + 192];
    let locks = [16..24, 32..40, 32 + STRIDE..40 + STRIDE, ROSTER..MEMBERS];
    let targets = [whole.to_vec(), words_that_lead_somewhere.to_vec(), locks.to_vec()];
    for (seed, ranges) in (0..).zip(targets) {
        let dir = TestDir::shm();
        create(&dir, Left::InGoodOrder);
        let path = dir.queue().join("q");
        let options = Options {
            foreign_timeout: Some(FOREIGN),
        };
        let ring = Queue::open_with(&path, options).unwrap();
        let mut peer = Hostile::new(&path, ranges)
            .limits(&[SLOTS.into(), WORDS.into()])
            .seed(seed)
            .start(&dir);
        let time = period(Duration::from_secs(2), Duration::from_secs(20));
        let started = Instant::now();
        let (mut calls, mut done, mut out) = (0_u64, 0_u64, [0; 8 * WORDS as usize]);
        while started.elapsed() < time {
            let wait = || Wait::from_timeout(Some(FOREIGN));
            let outcomes = [
                ring.enqueue_within(&message(calls), wait()).map(drop),
                ring.dequeue_into(&mut out, wait(), || Ok(())).map(drop),
                ring.latest().map(drop),
                ring.snapshot().map(drop),
                ring.counters().map(drop),
                ring.participants().map(drop),
                Queue::open_with(&path, options).map(drop),
            ];
            calls += outcomes.len() as u64;
            done += outcomes.iter().filter(|outcome| outcome.is_ok()).count() as u64;
        }
        let scribbles = peer.finish();
        announce(&format!(
            "ring: {done} of {calls} calls went well beside {scribbles} scribbles"
        ));
        assert!(done > 0, "nothing ever got past the first check");
    }
}
