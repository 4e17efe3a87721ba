//! Chunks prepared elsewhere become part of a queue exactly once, whatever is killed on the way and however often they are
//! published again.

mod common;

use std::path::{Path, PathBuf};
use std::time::Duration;

use common::dirs::TestDir;
use common::stepkill::StepKill;
use common::watchdog::Watchdog;
use common::{payload, tracee};
use tailrace::Error;
use tailrace::qewqew::{DurableQueue, Options, Stage, SyncMode};

const CHUNK: u64 = 200;
const LENGTH: usize = 40;
/// What is in the queue before, and what is staged.
const BEFORE: u64 = 3;
const STAGED: u64 = 6;

fn options(sync: SyncMode, crc: bool) -> Options {
    Options {
        chunk_size: CHUNK,
        sync,
        crc,
        ..Options::default()
    }
}

fn message(sequence: u64) -> Vec<u8> {
    payload::make(1, sequence, LENGTH)
}

fn stage(dir: &Path, from: u64, to: u64) -> Vec<PathBuf> {
    let mut stage = Stage::new(&dir.join("q.staged"), CHUNK as u32, true).unwrap();
    for sequence in from..to {
        stage.add(&message(sequence)).unwrap();
    }
    stage.finish(0).unwrap()
}

fn filled(dir: &Path, options: Options) -> DurableQueue {
    let queue = DurableQueue::open(&dir.join("q"), options).unwrap();
    for sequence in 0..BEFORE {
        queue.enqueue(&message(sequence)).unwrap();
    }
    queue
}

fn drain(queue: &DurableQueue) -> Result<Vec<Vec<u8>>, Error> {
    let mut found = Vec::new();
    while let Some(message) = queue.dequeue()? {
        found.push(message);
    }
    Ok(found)
}

/// Publishes all files again, as whoever does not know how far a killed one came.
fn publish_again(dir: &Path, names: &[PathBuf], options: &Options) -> Result<(), String> {
    let text = |error: Error| error.to_string();
    let queue = DurableQueue::open(&dir.join("q"), options.clone()).map_err(text)?;
    for name in names {
        queue
            .publish_chunk(&dir.join(name.file_name().unwrap()))
            .map_err(text)?;
    }
    let found = drain(&queue).map_err(text)?;
    let wanted: Vec<_> = (0..BEFORE + STAGED).map(message).collect();
    if found != wanted {
        let sequences: Vec<_> = found.iter().map(|m| payload::parse(m).map(|id| id.sequence)).collect();
        return Err(format!("found {sequences:?}"));
    }
    queue.close().map_err(text)?;
    let left: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    if left.is_empty() {
        return Ok(());
    }
    Err(format!("left behind: {left:?}"))
}

#[test]
fn a_publication_killed_at_every_instruction_happens_once() {
    let _dog = Watchdog::start("publish", Duration::from_secs(300));
    for (sync, crc) in [
        (SyncMode::Never, false),
        (SyncMode::Always, false),
        (SyncMode::Always, true),
    ] {
        let options = options(sync, crc);
        let dir = TestDir::shm();
        let queue_dir = dir.queue();
        let names = {
            let scratch = TestDir::shm();
            stage(&scratch.queue(), BEFORE, BEFORE + STAGED)
        };
        assert_eq!(names.len(), 2, "more than one step to be killed between");
        let report = StepKill::new(&dir).operations(names.len()).run(
            || {
                let queue = filled(&queue_dir, options.clone());
                (queue, stage(&queue_dir, BEFORE, BEFORE + STAGED))
            },
            |(queue, files), i| assert!(queue.publish_chunk(&files[i]).unwrap()),
            |moment| publish_again(&moment.dir, &names, &options),
        );
        report.assert_ok(&format!("publish {sync:?} crc={crc}"));
        if tracee::SUPPORTED {
            assert!(report.distinct_images > names.len(), "nothing was seen");
        }
    }
}

#[test]
fn other_producers_go_on_beside_a_publication() {
    let dir = TestDir::shm();
    let path = dir.queue();
    let shared = |role| Options {
        role,
        ..options(SyncMode::Never, false)
    };
    let other = DurableQueue::open(&path.join("q"), shared(tailrace::qewqew::Role::Producer)).unwrap();
    let publisher = DurableQueue::open(&path.join("q"), shared(tailrace::qewqew::Role::Producer)).unwrap();
    other.enqueue(&message(0)).unwrap();
    for file in stage(&path, 1, 7) {
        assert!(publisher.publish_chunk(&file).unwrap());
        assert!(!publisher.publish_chunk(&file).unwrap(), "it is there already");
    }
    other.enqueue(&message(7)).unwrap();
    publisher.enqueue(&message(8)).unwrap();
    let consumer = DurableQueue::open(&path.join("q"), shared(tailrace::qewqew::Role::Consumer)).unwrap();
    assert_eq!(drain(&consumer).unwrap(), (0..9).map(message).collect::<Vec<_>>());
}

#[test]
fn published_messages_have_checksums_where_the_queue_has_them() {
    let dir = TestDir::shm();
    let path = dir.queue();
    let queue = filled(&path, options(SyncMode::Always, true));
    for file in stage(&path, BEFORE, BEFORE + STAGED) {
        queue.publish_chunk(&file).unwrap();
    }
    assert_eq!(queue.count_chunks().unwrap(), 3);
    drop(queue);
    let chunk = path.join("q.3");
    let mut bytes = std::fs::read(&chunk).unwrap();
    bytes[10 + 2 + LENGTH / 2] ^= 1;
    std::fs::write(&chunk, bytes).unwrap();
    let queue = DurableQueue::open(&path.join("q"), options(SyncMode::Always, true)).unwrap();
    let refused = drain(&queue).unwrap_err();
    assert!(
        matches!(&refused, Error::Corrupt(text) if text.contains("checksum")),
        "{refused}"
    );
}

#[test]
fn what_is_not_a_staged_chunk_is_refused_and_stays() {
    let dir = TestDir::shm();
    let path = dir.queue();
    let queue = filled(&path, options(SyncMode::Never, false));
    let file = stage(&path, 5, 7).remove(0);
    let whole = std::fs::read(&file).unwrap();
    for length in [0, 9, 60] {
        std::fs::write(&file, &whole[..length]).unwrap();
        let refused = queue.publish_chunk(&file).unwrap_err();
        assert!(
            matches!(&refused, Error::Corrupt(text) if text.contains("q.staged")),
            "{refused}"
        );
        assert_eq!(std::fs::read(&file).unwrap(), whole[..length]);
    }
    assert_eq!(drain(&queue).unwrap().len() as u64, BEFORE);
}
