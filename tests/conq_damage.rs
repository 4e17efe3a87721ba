//! Any bytes in a conq file give an error or are harmless, never a crash or a hang: flipped bits, boundary values, cut files,
//! and a peer that scribbles over the words while the queue is in use.

mod common;

use std::path::Path;
use std::time::{Duration, Instant};

use common::corrupt::{Corrupt, Verdict};
use common::dirs::TestDir;
use common::hostile::Hostile;
use common::image::Image;
use common::watchdog::Watchdog;
use common::{announce, payload, period, soak};
use tailrace::Error;
use tailrace::conq::layout::{Geometry, header};
use tailrace::conq::origin::Origin;
use tailrace::conq::{DeadLetter, Options, Queue};

const HERE: Origin = Origin {
    boot_id: [1, 2],
    time_namespace: 3,
};
const MS: u64 = 1_000_000;
const NOW: u64 = 10_000 * MS;
const MESSAGES: u64 = 9;

fn options() -> Options {
    Options {
        max_messages: 16,
        max_message_size: 300,
        max_bytes: 16 << 10,
        participants: 8,
        dead_letter: Some(DeadLetter {
            max_deliveries: 3,
            queue: "dead".into(),
        }),
    }
}

/// A queue with messages in every phase, left in good order.
fn prepare(dir: &TestDir) {
    let queue = Queue::create(&dir.queue().join("q"), &options(), 7, &HERE).unwrap();
    for sequence in 0..MESSAGES {
        let message = payload::make(1, sequence, 20 + 90 * (sequence % 3) as usize);
        queue.enqueue(&message, NOW).unwrap();
    }
    for lease in 1..=6 {
        queue.read(lease * 10 * MS, NOW).unwrap().unwrap();
    }
    assert_eq!(queue.stats(NOW + 35 * MS).unwrap().expired, 3);
}

/// Opens, uses every operation, drains; whatever is delivered must be a message that was put.
fn open_and_drain(dir: &Path) -> Result<Vec<u64>, String> {
    let text = |e: Error| e.to_string();
    let later = NOW + 1000 * MS;
    let queue = Queue::open(&dir.join("q"), &HERE, NOW).map_err(text)?;
    queue.stats(NOW).map_err(text)?;
    let first = queue.read(50 * MS, later).map_err(text)?.ok_or("nothing there")?;
    queue.extend(&first.receipt, 90 * MS, later).map_err(text)?;
    queue.release(&first.receipt, later).map_err(text)?;
    let mut taken = Vec::new();
    while let Some(lease) = queue.read(50 * MS, later).map_err(text)? {
        let mut data = Vec::new();
        if !queue.append_to(&lease, &mut data) {
            return Err("a message in hand is somebody else's".into());
        }
        match payload::parse(&data) {
            Ok(who) if who.sequence < MESSAGES => taken.push(who.sequence),
            other => return Err(format!("damaged message {other:?}")),
        }
        queue.dequeue(&lease.receipt, later).map_err(text)?;
    }
    queue.enqueue(&payload::make(1, 1000, 300), later).map_err(text)?;
    queue.stats(later).map_err(text)?;
    taken.sort_unstable();
    Ok(taken)
}

/// Delivered twice is at-least-once; lost without a word is wrong.
fn verdict(dir: &Path) -> Verdict {
    match open_and_drain(dir) {
        Err(text) => Verdict::Error(text),
        Ok(mut taken) => {
            taken.dedup();
            let all: Vec<u64> = (0..MESSAGES).collect();
            match taken == all {
                true => Verdict::Harmless,
                false => Verdict::Wrong(format!("only {taken:?} came out, without a word")),
            }
        }
    }
}

/// The bytes that say anything: the header, the roster, the tables, and of each segment the words and the used slots.
fn meaningful(geometry: &Geometry) -> Vec<std::ops::Range<usize>> {
    let tables = geometry.roster().offset..geometry.node(geometry.max_messages - 1) + 16;
    let (first, length) = geometry.segment(0);
    vec![
        0..0x100,
        header::DEAD_LETTER..header::DEAD_LETTER + 8,
        tables,
        first..first + length / 2,
    ]
}

#[test]
fn flipped_bits_and_boundary_values_are_errors_or_harmless() {
    let _dog = Watchdog::start("corrupt images", Duration::from_secs(1500));
    let dir = TestDir::shm();
    prepare(&dir);
    let image = Image::read(&dir.queue());
    let geometry = Geometry::new(&options()).unwrap();
    let mut corrupt = Corrupt::new(&dir, &image, "q");
    for range in meaningful(&geometry) {
        corrupt = corrupt.boundary_values(
            range.clone(),
            &[16, 300, 64, u64::from(geometry.units), geometry.length() as u64],
        );
        // Every bit of every byte in the soak, every bit of the header each day.
        let bits = if soak() {
            range
        } else {
            range.start..range.end.min(range.start + 0x120)
        };
        corrupt = corrupt.bit_flips(bits);
    }
    let report = corrupt.run(verdict);
    announce(&format!("conq damage: {report}"));
    report.assert_clean("conq damage");
}

#[test]
fn cut_files_are_refused() {
    let _dog = Watchdog::start("cut files", Duration::from_secs(300));
    let dir = TestDir::shm();
    prepare(&dir);
    let image = Image::read(&dir.queue());
    let length = image.bytes("q").len();
    let lengths = (0..length).step_by(if soak() { 1 } else { 61 });
    let report = Corrupt::new(&dir, &image, "q").truncations_to(lengths).run(|copy| {
        match Queue::open(&copy.join("q"), &HERE, NOW) {
            Err(Error::Format(text) | Error::Corrupt(text)) => Verdict::Error(text),
            Err(other) => Verdict::Wrong(other.to_string()),
            Ok(_) => Verdict::Wrong("a cut file was opened".into()),
        }
    });
    announce(&format!("conq cut files: {report}"));
    report.assert_clean("conq cut files");
}

/// Somebody writes anything anywhere: each call returns, in time, and this process lives.
#[test]
fn a_hostile_peer_cannot_crash_or_stop_anybody() {
    let _dog = Watchdog::start("hostile peer", Duration::from_secs(400));
    let (mut calls, mut errors, mut scribbles) = (0_u64, 0_u64, 0);
    let mut longest = Duration::ZERO;
    let geometry = Geometry::new(&options()).unwrap();
    let ranges = meaningful(&geometry);
    for (seed, range) in ranges.iter().chain(&ranges).enumerate() {
        let dir = TestDir::shm();
        prepare(&dir);
        let path = dir.queue().join("q");
        let queue = Queue::open(&path, &HERE, NOW).unwrap();
        let mut peer = Hostile::new(&path, [range.clone()])
            .limits(&[16, 300, u64::from(geometry.units)])
            .seed(seed as u64)
            .pause(Duration::from_micros(if seed < ranges.len() { 0 } else { 200 }))
            .start(&dir);
        let started = Instant::now();
        let mut now = NOW;
        while started.elapsed() < period(Duration::from_millis(700), Duration::from_secs(10)) {
            now += MS;
            let begun = Instant::now();
            let outcome = match calls % 6 {
                0 | 1 => queue
                    .enqueue(&payload::make(2, calls, 20 + (calls % 280) as usize), now)
                    .map(drop),
                2 => queue.stats(now).map(drop),
                3 => Queue::open(&path, &HERE, now).map(drop),
                _ => queue.read(5 * MS, now).and_then(|lease| match lease {
                    Some(lease) => {
                        let mut data = Vec::new();
                        queue.append_to(&lease, &mut data);
                        queue.dequeue(&lease.receipt, now)
                    }
                    None => Ok(()),
                }),
            };
            errors += u64::from(outcome.is_err());
            calls += 1;
            longest = longest.max(begun.elapsed());
        }
        scribbles += peer.finish();
    }
    announce(&format!(
        "conq hostile peer: {calls} calls, {errors} of them errors, {scribbles} words scribbled, longest call {longest:?}"
    ));
    // Two sections, each of which may meet a lock word that looks alive and patience of a second.
    assert!(longest < Duration::from_secs(3), "a call took {longest:?}");
}
