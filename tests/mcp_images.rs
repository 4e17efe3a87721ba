//! Damaged and hostile memory: any bytes give an error or some messages, never a crash, a hang or bytes from elsewhere.
//!
//! The memory of a queue system has no checksums (it does not outlive its users), so damage can lose messages or mix up their
//! texts. What is held here is that it stays inside: every call returns, in time, with records that are not too long.

mod common;
mod mcp_kit;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::corrupt::{Corrupt, Verdict};
use common::dirs::TestDir;
use common::hostile::Hostile;
use common::image::Image;
use common::watchdog::Watchdog;
use common::{announce, period};
use mcp_kit::*;
use tailrace::mcp::{FileParameters, Mode, QueueFile, System};

fn watch(name: &'static str) -> Watchdog {
    Watchdog::start(name, Duration::from_secs(if common::soak() { 3600 } else { 300 }))
}

fn parameters() -> FileParameters {
    FileParameters {
        max_messages: 8,
        buffers: 3,
        ..my_q()
    }
}

fn tiny_system(dir: &Path) -> tailrace::Result<Arc<System>> {
    System::open(dir, &tiny())
}

/// A kept queue with six messages, four of them on disk, and a family of two.
fn image(dir: &TestDir) -> (Image, String) {
    let system = tiny_system(&dir.queue()).unwrap();
    let file = QueueFile::open(&system, &parameters(), Mode::Output, &kept()).unwrap();
    for n in 0..6 {
        assert!(put(&file, None, format!("message {n}")).unwrap());
    }
    let family = FileParameters {
        family_size: 2,
        max_messages: 4,
        ..my_qff()
    };
    let family = QueueFile::open(&system, &family, Mode::Output, &kept()).unwrap();
    assert!(put(&family, 2, "message of member 2").unwrap());
    drop((file, family, system));
    let image = Image::read(&dir.queue());
    let name = image
        .files
        .keys()
        .find(|name| name.extension().is_some_and(|x| x == "system"))
        .unwrap();
    let name = name.to_str().unwrap().to_owned();
    (image, name)
}

/// Opens the image as the next process would, reads all there is, and writes again.
fn open_and_drain(dir: &Path) -> Verdict {
    let work = || -> tailrace::Result<Vec<Vec<u8>>> {
        let system = tiny_system(dir)?;
        let file = QueueFile::open(&system, &parameters(), Mode::InputOutput, &kept())?;
        let mut messages = drain(&file)?;
        put(&file, None, "one more")?;
        messages.extend(drain(&file)?);
        file.message_count()?;
        let family = QueueFile::open(&system, &my_qff(), Mode::InputOutput, &kept())?;
        messages.extend(drain(&family)?);
        family.close()?;
        file.close()?;
        Ok(messages)
    };
    match work() {
        Err(error) => Verdict::Error(error.to_string()),
        Ok(messages) => match messages.iter().find(|message| message.len() > 80) {
            Some(long) => Verdict::Wrong(format!("a record of {} bytes, the limit is 80", long.len())),
            None if messages.len() > 40 => Verdict::Wrong(format!("{} messages from a queue of 8", messages.len())),
            None => Verdict::Harmless,
        },
    }
}

#[test]
fn no_damage_to_the_system_file_crashes_or_hangs() {
    let _dog = watch("damaged system file");
    let dir = TestDir::shm();
    let (image, name) = image(&dir);
    let length = image.bytes(&name).len();
    let limits = [4, 8, 20, 80, 128, length as u64];
    let mut corrupt =
        Corrupt::new(&dir, &image, &name).truncations_to((0..length).step_by(if common::soak() { 1 } else { 97 }));
    corrupt = if common::soak() {
        corrupt.bit_flips(0..length).boundary_values(0..length, &limits)
    } else {
        // The head, users and queue descriptors, and the first message descriptors, one bit in a byte of each word.
        corrupt
            .bit_flips(0..64)
            .also(flips(64..length))
            .boundary_values(0..136, &[8])
    };
    let report = corrupt.run(open_and_drain);
    announce(&format!("mcp damaged system file: {report}"));
    report.assert_clean("damaged system file");
}

/// The lowest and highest bit of every aligned word.
fn flips(range: std::ops::Range<usize>) -> Vec<common::mutation::Mutation> {
    range
        .step_by(4)
        .flat_map(|word| [(word, 0), (word, 3), (word + 3, 7)])
        .map(|(byte, bit)| common::mutation::Mutation::Flip { byte, bit })
        .collect()
}

#[test]
fn a_damaged_or_missing_queue_disk_is_an_error() {
    let _dog = watch("damaged disk");
    let dir = TestDir::shm();
    let (image, _) = image(&dir);
    let disk = image
        .files
        .keys()
        .find(|name| name.extension().is_some_and(|x| x == "disk"))
        .unwrap()
        .clone();
    let length = image.bytes(&disk).len();
    Corrupt::new(&dir, &image, &disk)
        .truncations_to((0..length).step_by(180))
        .run(open_and_drain)
        .assert_clean("damaged queue disk");
    let copy = dir.scratch().join("without");
    image.write(&copy);
    std::fs::remove_file(copy.join(&disk)).unwrap();
    let Verdict::Error(error) = open_and_drain(&copy) else {
        panic!("the disk is missing")
    };
    assert!(error.contains("disk"), "{error}");
}

#[test]
fn a_scribbling_peer_is_survived() {
    let _dog = watch("hostile peer");
    let dir = TestDir::shm();
    let (_, name) = image(&dir);
    let path = dir.queue().join(&name);
    let length = std::fs::metadata(&path).unwrap().len() as usize;
    let time = period(Duration::from_secs(4), Duration::from_secs(30));
    let system = tiny_system(&dir.queue()).unwrap();
    let file = QueueFile::open(&system, &parameters(), Mode::InputOutput, &kept()).unwrap();
    // All but the magic and the geometry, which are read once, when the file is opened.
    let mut peer = Hostile::new(&path, std::iter::once(64..length))
        .limits(&[8, 80, 128])
        .pause(Duration::from_micros(50))
        .start(&dir);
    let (mut calls, mut errors, mut longest) = (0_u64, 0_u64, Duration::ZERO);
    let begun = Instant::now();
    let mut timed = |call: &dyn Fn() -> tailrace::Result<()>| {
        let start = Instant::now();
        errors += u64::from(call().is_err());
        calls += 1;
        longest = longest.max(start.elapsed());
    };
    while begun.elapsed() < time {
        timed(&|| put(&file, None, "a record").map(drop));
        timed(&|| put_top(&file, None, [7; 80]).map(drop));
        timed(&|| {
            for message in drain(&file)? {
                assert!(message.len() <= 8192, "bytes from outside of a buffer");
            }
            Ok(())
        });
        timed(&|| file.message_count().map(drop));
        timed(&|| system.queues().map(drop));
    }
    let scribbles = peer.finish();
    announce(&format!(
        "mcp hostile peer: {scribbles} scribbles, {calls} calls, {errors} errors, longest call {longest:?}"
    ));
    assert!(calls > 20 && scribbles > 100);
}
