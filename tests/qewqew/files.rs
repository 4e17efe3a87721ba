//! Files that are missing, foreign, left over, or numbered to the end.

use std::fs;

use tailrace::Error;
use tailrace::qewqew::{DurableQueue, Options, SyncMode};

use super::{drain, names, open, setup, small};

#[test]
fn files_that_are_not_ours_are_refused_and_left_alone() {
    let (dir, path) = setup();
    fs::write(&path, b"a letter to grandmother").unwrap();
    let refused = DurableQueue::open(&path, small(100));
    assert!(matches!(refused, Err(Error::Format(_))), "{refused:?}");
    assert_eq!(fs::read(&path).unwrap(), b"a letter to grandmother");
    fs::remove_file(&path).unwrap();
    // A chunk that is not one, where the next one should go.
    fs::write(dir.queue().join("q.2"), b"not a chunk").unwrap();
    let queue = open(&path, small(40));
    queue.enqueue(&[1; 20]).unwrap();
    let refused = queue.enqueue(&[2; 20]);
    assert!(matches!(refused, Err(Error::Exists(_))), "{refused:?}");
    assert_eq!(fs::read(dir.queue().join("q.2")).unwrap(), b"not a chunk");
    assert_eq!(drain(&queue), [[1; 20]], "what was there still is");
    std::os::unix::fs::symlink("/etc/passwd", dir.queue().join("link")).unwrap();
    assert!(matches!(
        DurableQueue::open(&dir.queue().join("link"), small(40)),
        Err(Error::Format(_))
    ));
}

#[test]
fn a_missing_chunk_is_an_error_and_never_an_empty_queue() {
    let (dir, path) = setup();
    let queue = open(&path, small(40));
    for i in 0..4 {
        queue.enqueue(&[i; 20]).unwrap();
    }
    queue.close().unwrap();
    fs::rename(dir.queue().join("q.1"), dir.queue().join("kept")).unwrap();
    let queue = open(&path, small(40));
    let missing = queue.dequeue();
    assert!(
        matches!(&missing, Err(Error::Corrupt(text)) if text.contains("q.1 is missing")),
        "{missing:?}"
    );
    assert!(queue.enqueue(b"x").is_err());
    queue.close().unwrap();
    assert!(names(&dir.queue()).contains(&"q.2".to_owned()), "nothing was removed");
    fs::rename(dir.queue().join("kept"), dir.queue().join("q.1")).unwrap();
    assert_eq!(drain(&open(&path, small(40))).len(), 4);
}

#[test]
fn circles_of_chunks_end_in_an_error() {
    let (dir, path) = setup();
    let queue = open(&path, small(40));
    for i in 0..3 {
        queue.enqueue(&[i; 20]).unwrap();
    }
    queue.close().unwrap();
    let third = dir.queue().join("q.3");
    let mut bytes = fs::read(&third).unwrap();
    bytes[8..10].copy_from_slice(&[0, 2]);
    fs::write(&third, bytes).unwrap();
    let queue = open(&path, small(40));
    assert!(matches!(queue.count_chunks(), Err(Error::Corrupt(_))));
    assert!(matches!(queue.enqueue(b"x"), Err(Error::Corrupt(_))));
    assert!(
        queue
            .verify()
            .unwrap()
            .problems
            .iter()
            .any(|p| p.what.contains("circle"))
    );
}

#[test]
fn ids_start_over_behind_65534_and_stop_at_a_live_chunk() {
    let (dir, path) = setup();
    // The files as they are after 65,532 chunks.
    let chunk = |id: u16| {
        let mut bytes = vec![0; 40];
        bytes[..8].copy_from_slice(&[0, 0, 0, 10, 0, 0, 0, 32]);
        bytes[10..12].copy_from_slice(&[0, 20]);
        bytes[12..32].fill(id as u8);
        bytes
    };
    fs::write(&path, 65_533_u16.to_be_bytes()).unwrap();
    fs::write(dir.queue().join("q.65533"), chunk(65_533)).unwrap();
    let queue = open(&path, small(40));
    for i in 0..4 {
        queue.enqueue(&[i; 20]).unwrap();
    }
    let mut expected = vec!["q", "q.1", "q.2", "q.3", "q.65533", "q.65534", "q.signal"];
    assert_eq!(names(&dir.queue()), expected);
    queue.close().unwrap();
    let queue = open(&path, small(40));
    assert_eq!(drain(&queue).len(), 5);
    expected.clear();
    queue.close().unwrap();
    // Q8: a chunk that is still to be read is never overwritten, and no reference to it is written.
    fs::write(&path, 5_u16.to_be_bytes()).unwrap();
    let mut first = chunk(5);
    first[8..10].copy_from_slice(&4_u16.to_be_bytes());
    fs::write(dir.queue().join("q.5"), &first).unwrap();
    fs::write(dir.queue().join("q.4"), chunk(4)).unwrap();
    let queue = open(&path, small(40));
    let refused = queue.enqueue(&[9; 20]);
    assert!(matches!(refused, Err(Error::Full(_))), "{refused:?}");
    assert_eq!(drain(&queue), [[5; 20], [4; 20]]);
}

#[test]
fn a_queue_of_the_wrapping_id_65535_is_read_from_file_0() {
    let (dir, path) = setup();
    let queue = open(&path, small(40));
    queue.enqueue(b"odd").unwrap();
    queue.close().unwrap();
    fs::rename(dir.queue().join("q.1"), dir.queue().join("q.0")).unwrap();
    fs::write(&path, [0xFF, 0xFF]).unwrap();
    assert_eq!(drain(&open(&path, small(40))), [b"odd"]);
}

#[test]
fn a_leftover_of_a_killed_consumer_is_removed_by_the_next() {
    let (dir, path) = setup();
    let queue = open(&path, small(40));
    for i in 0..5 {
        queue.enqueue(&[i; 20]).unwrap();
    }
    queue.close().unwrap();
    // Killed between the change of the head file and the removal of two chunks.
    fs::write(&path, [0, 3]).unwrap();
    let queue = open(&path, small(40));
    assert_eq!(names(&dir.queue()), ["q", "q.3", "q.4", "q.5", "q.signal"]);
    assert_eq!(drain(&queue).len(), 3);
}

#[test]
fn the_log_of_a_chunk_that_starts_over_and_over_stays_short() {
    for sync in [SyncMode::Never, SyncMode::Group] {
        let (dir, path) = setup();
        let options = || Options {
            crc: true,
            sync,
            ..small(1000)
        };
        let queue = open(&path, options());
        // A record for each start and one for each message: more than a MiB of them twice over.
        for round in 0..70_000_u32 {
            queue.enqueue(&round.to_le_bytes()).unwrap();
            assert_eq!(queue.dequeue().unwrap().unwrap(), round.to_le_bytes());
        }
        let length = fs::metadata(dir.queue().join("q.1.crc")).unwrap().len();
        assert!(length < 2 << 20, "{sync:?}: {length} bytes");
        queue.enqueue(b"the last one").unwrap();
        queue.close().unwrap();
        assert_eq!(drain(&open(&path, options())), [b"the last one"]);
    }
}
