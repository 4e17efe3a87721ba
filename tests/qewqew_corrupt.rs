//! Any bytes in the files of a durable queue give an error or a queue that goes on, never a crash and never a hang: every bit
//! flipped, every length, boundary values in every word, and a peer that scribbles while we work. With checksums nothing that
//! was not enqueued is delivered and nothing is left out without an error, and repair() makes the rest readable.

mod common;
#[allow(dead_code)] // no power is cut here
#[path = "common/loopfs.rs"]
mod loopfs;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use common::announce;
use common::corrupt::{Corrupt, Verdict};
use common::dirs::TestDir;
use common::hostile::Hostile;
use common::image::Image;
use common::mutation::Mutation;
use common::watchdog::Watchdog;
use tailrace::Error;
use tailrace::qewqew::{DurableQueue, Options, RangeReader, SyncMode};

/// Three chunks, the first one read in part.
const CHUNK: u64 = 100;
/// One mutation waits for a disk some twenty times.
const HANG: Duration = Duration::from_secs(30);

fn options(crc: bool) -> Options {
    Options {
        chunk_size: CHUNK,
        sync: SyncMode::Never,
        crc,
        ..Options::default()
    }
}

fn message(number: u8) -> Vec<u8> {
    vec![number ^ 0x5A; 5 + usize::from(number) * 3 % 20]
}

fn expected() -> Vec<Vec<u8>> {
    (1..12).map(message).collect()
}

fn create(dir: &Path, crc: bool, sync: SyncMode) {
    let own = Options { sync, ..options(crc) };
    let queue = DurableQueue::open(&dir.join("q"), own).unwrap();
    for number in 0..12 {
        queue.enqueue(&message(number)).unwrap();
    }
    assert_eq!(queue.dequeue().unwrap().unwrap(), message(0));
    assert_eq!(queue.count_chunks().unwrap(), 3);
    queue.close().unwrap();
}

/// Everything that can be read; more than there can be is an endless loop.
fn drain(queue: &DurableQueue) -> (Vec<Vec<u8>>, Option<Error>) {
    let mut found = Vec::new();
    while found.len() < 10_000 {
        match queue.dequeue() {
            Ok(Some(message)) => found.push(message),
            Ok(None) => return (found, None),
            Err(error) => return (found, Some(error)),
        }
    }
    panic!("three chunks of {CHUNK} bytes hold more than 10,000 messages");
}

/// With checksums: what comes out is what went in, up to the error.
fn checked(dir: &Path, times: &BTreeMap<PathBuf, SystemTime>) -> Verdict {
    // Damage does not touch the time of the last write.
    for (name, time) in times {
        fs::File::options()
            .write(true)
            .open(dir.join(name))
            .and_then(|file| file.set_modified(*time))
            .unwrap();
    }
    let path = dir.join("q");
    let queue = match DurableQueue::open(&path, options(true)) {
        Ok(queue) => queue,
        Err(error) => return Verdict::Error(error.to_string()),
    };
    let expected = expected();
    let (found, error) = drain(&queue);
    if found != expected[..found.len().min(expected.len())] {
        return Verdict::Wrong(format!("delivered {found:?}, then {error:?}"));
    }
    let Some(error) = error else {
        return match found.len() == expected.len() {
            true => Verdict::Harmless,
            false => Verdict::Wrong(format!("only {} messages and no error", found.len())),
        };
    };
    // Reported; the rest can be had.
    let report = match queue.repair() {
        Ok(report) => report,
        Err(second) => return Verdict::Wrong(format!("{error}; and then repair: {second}")),
    };
    if report.problems.is_empty() {
        return Verdict::Wrong(format!("{error}; and repair found nothing"));
    }
    let (rest, again) = drain(&queue);
    let mut known = expected.iter();
    if let Some(again) = again {
        return Verdict::Wrong(format!("{error}; and after {report:?}: {again}"));
    }
    if !rest.iter().all(|message| known.any(|other| other == message)) {
        return Verdict::Wrong(format!("{error}; and after {report:?}: {rest:?}"));
    }
    match queue.enqueue(b"on it goes").and_then(|()| queue.dequeue()) {
        Ok(Some(message)) if message == b"on it goes" => Verdict::Error(error.to_string()),
        other => Verdict::Wrong(format!("{error}; and after {report:?}: {other:?}")),
    }
}

/// Without: anything may come out, but no crash and no endless loop, and after repair() no error.
fn unchecked(dir: &Path) -> Verdict {
    let path = dir.join("q");
    let queue = match DurableQueue::open(&path, options(false)) {
        Ok(queue) => queue,
        Err(error) => return Verdict::Error(error.to_string()),
    };
    let mut errors = Vec::new();
    let mut note = |outcome: tailrace::Result<()>| errors.extend(outcome.err().map(|error| error.to_string()));
    note(queue.len().map(drop));
    note(queue.info().map(drop));
    note(queue.verify().map(drop));
    note(queue.peek().map(drop));
    note(queue.head_position().map(drop));
    note(RangeReader::open(&path, false).and_then(|reader| {
        let (start, end) = (reader.head_position()?, reader.tail_position()?);
        reader.read_range(start, end).map(drop)
    }));
    note(queue.enqueue(&[1; 40]));
    note(drain(&queue).1.map_or(Ok(()), Err));
    if let Err(error) = queue.repair() {
        return Verdict::Wrong(format!("{errors:?}; and then repair: {error}"));
    }
    if let (_, Some(error)) = drain(&queue) {
        return Verdict::Wrong(format!("{errors:?}; and after repair: {error}"));
    }
    match queue.enqueue(b"on it goes").and_then(|()| queue.dequeue()) {
        Ok(Some(message)) if message == b"on it goes" => {}
        other => return Verdict::Wrong(format!("{errors:?}; and after repair: {other:?}")),
    }
    note(queue.close());
    match errors.into_iter().next() {
        Some(error) => Verdict::Error(error),
        None => Verdict::Harmless,
    }
}

/// What of a file is worth changing: its metadata bit by bit, and all of it when it is small.
fn mutate(dir: &TestDir, image: &Image, name: &str) -> Corrupt {
    let length = image.bytes(name).len();
    let own = Corrupt::new(dir, image, name).hang_limit(HANG);
    if length > 4096 {
        // The signal file: header, stages, the first of the roster.
        return own
            .bit_flips(0..32)
            .bit_flips(64..96)
            .bit_flips(384..416)
            .bit_flips(4096..4128)
            .boundary_values(64..96, &[CHUNK])
            .boundary_values(384..416, &[CHUNK, 1 << 32 | 50])
            .truncations_to((0..length).step_by(4099));
    }
    // Behind the log of a checksum file are zeros.
    let used = image
        .bytes(name)
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(0, |last| last + 1);
    let used = if name.ends_with(".crc") {
        (used + 16).min(length)
    } else {
        length
    };
    // Every bit in the long run; else every bit of what comes first, and a selection that differs from file to file.
    let step = common::rounds(23, 1) as usize;
    let skip = name.len() % step;
    let chosen = |at: &usize| *at < 12 || at % step == skip;
    own.also(
        (0..used * 8)
            .filter(|at| *at < 96 || at % step == skip)
            .map(|at| Mutation::Flip {
                byte: at / 8,
                bit: (at % 8) as u8,
            }),
    )
    .truncations_to((0..used).filter(chosen).chain((used..length).step_by(501)))
    .boundary_values(0..length.min(12), &[CHUNK, 10])
}

#[test]
fn with_checksums_every_damaged_image_is_reported_or_harmless_and_can_be_repaired() {
    let _dog = Watchdog::start("damaged images with checksums", Duration::from_secs(1800));
    let outer = TestDir::shm();
    // A disk that notes the times of writes, and whose syncs are fast.
    let disk = if common::is_root() {
        loopfs::LoopDisk::create(&outer.scratch(), 64)
    } else {
        None
    };
    let mounted = disk.as_ref().map(loopfs::LoopDisk::mount);
    {
        let dir = match &mounted {
            Some(mounted) => TestDir::inside(mounted.path()),
            None => TestDir::disk(),
        };
        let modes = [SyncMode::Always, SyncMode::Never];
        for sync in modes.into_iter().take(common::rounds(1, 2) as usize) {
            let _ = fs::remove_dir_all(dir.queue());
            fs::create_dir(dir.queue()).unwrap();
            create(&dir.queue(), true, sync);
            let image = Image::read(&dir.queue());
            let time = |name: &PathBuf| fs::metadata(dir.queue().join(name)).unwrap().modified().unwrap();
            let times: BTreeMap<PathBuf, SystemTime> =
                image.files.keys().map(|name| (name.clone(), time(name))).collect();
            for name in image.files.keys() {
                let name = name.to_str().unwrap();
                let report = mutate(&dir, &image, name).run(|copy| checked(copy, &times));
                report.assert_clean(&format!("{sync:?} {name}"));
            }
        }
    }
    // Processes of the other tests may have inherited something of it for a moment.
    if let Some(mounted) = mounted {
        mounted.unmount();
    }
}

#[test]
fn without_checksums_every_damaged_image_gives_an_error_or_works() {
    let _dog = Watchdog::start("damaged images", Duration::from_secs(1800));
    let dir = TestDir::shm();
    create(&dir.queue(), false, SyncMode::Never);
    let path = dir.queue().join("q");
    let queue = DurableQueue::open(&path, options(false)).unwrap();
    queue.tail_position().unwrap();
    queue.close().unwrap();
    drop(queue);
    // What a killed process leaves: staged messages in the signal file.
    let group = Options {
        sync: SyncMode::Group,
        ..options(false)
    };
    let queue = DurableQueue::open(&path, group).unwrap();
    queue.enqueue(b"staged").unwrap();
    let image = Image::read(&dir.queue());
    drop(queue);
    assert!(image.files.contains_key(Path::new("q.signal")) && image.files.contains_key(Path::new("q.positions")));
    for name in image.files.keys() {
        let name = name.to_str().unwrap();
        let report = mutate(&dir, &image, name).run(unchecked);
        report.assert_clean(&format!("without checksums {name}"));
    }
}

/// A peer with the right to write scribbles over pointers, references and the signal file while we work.
#[test]
fn a_scribbling_peer_crashes_nobody() {
    let _dog = Watchdog::start("hostile peer", Duration::from_secs(300));
    let header = std::slice::from_ref(&(0..12));
    let signal = [0..96, 128..132, 192..196, 256..416];
    let files = [("q.1", header), ("q.3", header), ("q.signal", &signal[..])];
    for (seed, (name, ranges)) in files.into_iter().enumerate() {
        for sync in [SyncMode::Never, SyncMode::Group] {
            let dir = TestDir::shm();
            create(&dir.queue(), false, SyncMode::Never);
            let own = Options { sync, ..options(false) };
            let queue = DurableQueue::open(&dir.queue().join("q"), own).unwrap();
            let mut peer = Hostile::new(&dir.queue().join(name), ranges.to_vec())
                .limits(&[CHUNK, 10])
                .seed(seed as u64)
                .start(&dir);
            let time = common::period(Duration::from_millis(1500), Duration::from_secs(10));
            let started = Instant::now();
            let (mut calls, mut slowest) = (0_u64, Duration::ZERO);
            while started.elapsed() < time {
                let begun = Instant::now();
                drop(queue.try_enqueue_now(&[7; 20]));
                drop(queue.peek());
                drop(queue.dequeue());
                drop(queue.is_empty());
                drop(queue.info());
                if calls % 16 == 0 {
                    drop(queue.enqueue(&[8; 20]));
                    drop(queue.verify());
                    drop(queue.count_chunks());
                }
                slowest = slowest.max(begun.elapsed());
                calls += 1;
            }
            let scribbles = peer.finish();
            announce(&format!(
                "{name} {sync:?}: {calls} rounds beside {scribbles} scribbles, slowest {slowest:?}"
            ));
            assert!(calls > 0);
        }
    }
}
