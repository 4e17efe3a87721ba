//! Any bytes in a queue file give an error or a queue that goes on, never a crash: every bit of header, control words and
//! trailer flipped, every length, boundary values in every word, and a peer that scribbles while we work.

mod common;

use std::path::Path;
use std::time::{Duration, Instant};

use common::corrupt::{Corrupt, Verdict};
use common::dirs::TestDir;
use common::hostile::Hostile;
use common::image::Image;
use common::watchdog::Watchdog;
use tailrace::aq::{Format, Options, Queue};
use tailrace::os::clock::Clock;

const SIZE: usize = 1024;

fn create(dir: &TestDir, options: Options) {
    let format = Format {
        page_size: 16,
        commit_timeout_ms: 10,
        options,
    };
    let queue = Queue::create(&dir.queue().join("q"), SIZE, &format).unwrap();
    let (writer, mut reader) = (queue.writer().unwrap(), queue.reader().unwrap());
    for size in [100, 200] {
        assert!(writer.try_put(&vec![b'o'; size]).unwrap());
        reader.take(|_| Ok(())).unwrap().unwrap();
    }
    for size in [10, 40, 16] {
        assert!(writer.try_put(&vec![b'm'; size]).unwrap());
    }
    // What a killed writer leaves: a claim, and its record in the trailer.
    writer.try_claim(30).unwrap().unwrap().abandon();
    assert!(writer.try_put(b"last").unwrap());
}

/// Does everything that can be done; wrong bytes may come out where there is no checksum, but no crash and no endless loop.
fn use_it(dir: &Path) -> Verdict {
    let queue = match Queue::open(&dir.join("q")) {
        Ok(queue) => queue,
        Err(error) => return Verdict::Error(error.to_string()),
    };
    let mut errors = Vec::new();
    let mut note = |outcome: tailrace::Result<()>| errors.extend(outcome.err().map(|error| error.to_string()));
    note(queue.snapshot().map(drop));
    note(queue.len().map(drop));
    note(queue.info().map(drop));
    note(queue.available_size().map(drop));
    let clock = Clock::manual();
    note(queue.reader_with(clock.clone()).and_then(|mut reader| {
        for _ in 0..3 {
            for _ in 0..200 {
                let Some(item) = reader.retrieve()? else { break };
                let _bytes = reader.to_vec(&item);
                reader.release(item)?;
            }
            clock.advance(Duration::from_millis(200));
        }
        reader.reap()?;
        Ok(())
    }));
    note(queue.writer().and_then(|writer| {
        for _ in 0..10 {
            if let Some(mut claim) = writer.try_claim(20)? {
                claim.write(None, b"twenty bytes or less")?;
                claim.commit()?;
            }
        }
        Ok(())
    }));
    match errors.first() {
        Some(error) => Verdict::Error(error.clone()),
        None => Verdict::Harmless,
    }
}

fn all_options() -> [Options; 3] {
    let none = Options::default();
    [
        none,
        Options {
            crc32: true,
            link_identifier: true,
            ..none
        },
        Options {
            crc32: true,
            extendable: true,
            ..none
        },
    ]
}

#[test]
fn every_damaged_image_gives_an_error_or_works() {
    let _dog = Watchdog::start("damaged images", Duration::from_secs(900));
    for options in all_options() {
        let dir = TestDir::shm();
        create(&dir, options);
        let image = Image::read(&dir.queue());
        let length = image.bytes("q").len();
        // Header and words; trailer header, signals and first roster entries; the first claim lines.
        let lines = length - 1024 * 64;
        let words = 52 + 12 * 40;
        let report = Corrupt::new(&dir, &image, "q")
            .bit_flips(0..words)
            .bit_flips(SIZE..SIZE + 224)
            .bit_flips(lines..lines + 64)
            .truncations_to((0..SIZE).step_by(7).chain((SIZE..length).step_by(997)))
            .boundary_values(0..words, &[34, 48, SIZE as u64])
            .boundary_values(SIZE..SIZE + 64, &[34, 1024])
            .boundary_values(lines..lines + 64, &[34])
            .run(use_it);
        report.assert_clean(&format!("{options:?}"));
        common::announce(&format!("{options:?}: {} images", report.total()));
    }
}

#[test]
fn a_scribbling_peer_crashes_nobody() {
    let _dog = Watchdog::start("hostile peer", Duration::from_secs(300));
    for (seed, options) in all_options().into_iter().enumerate() {
        let dir = TestDir::shm();
        create(&dir, options);
        let path = dir.queue().join("q");
        let queue = Queue::open(&path).unwrap();
        let mut peer = Hostile::new(
            &path,
            [0..52 + 12 * 40, SIZE..SIZE + 64, SIZE + 8448..SIZE + 8448 + 256],
        )
        .limits(&[34, 48])
        .seed(seed as u64)
        .start(&dir);
        let time = common::period(Duration::from_secs(2), Duration::from_secs(10));
        let started = Instant::now();
        let (mut calls, mut slowest) = (0_u64, Duration::ZERO);
        let (mut writer, mut reader) = (queue.writer().ok(), queue.reader().ok());
        while started.elapsed() < time {
            let begun = Instant::now();
            match &writer {
                Some(writer) => drop(writer.try_put(&[7; 40])),
                None => writer = queue.writer().ok(),
            }
            match &mut reader {
                Some(reader) => {
                    if let Ok(Some(item)) = reader.retrieve() {
                        let _bytes = reader.to_vec(&item);
                        drop(reader.release(item));
                    }
                    drop(reader.reap());
                }
                None => reader = queue.reader().ok(),
            }
            drop(queue.snapshot());
            drop(queue.info());
            slowest = slowest.max(begun.elapsed());
            calls += 1;
        }
        let scribbles = peer.finish();
        common::announce(&format!(
            "{calls} rounds beside {scribbles} scribbles, slowest {slowest:?}"
        ));
        assert!(slowest < Duration::from_secs(1));
    }
}
