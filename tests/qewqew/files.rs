//! Files that are missing, foreign, left over, or numbered to the end.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use tailrace::Error;
use tailrace::qewqew::{DurableQueue, Options, Role, SyncMode};

use super::{drain, names, open, setup, small};
use crate::common::process::exit_now;
use crate::common::worker::Spawn;

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
fn a_batch_that_needs_more_ids_than_are_free_leaves_nothing_behind() {
    for (sync, network) in [
        (SyncMode::Never, false),
        (SyncMode::Group, false),
        (SyncMode::Never, true),
    ] {
        let (dir, path) = setup();
        let own = || Options {
            sync,
            network,
            ..small(40)
        };
        let queue = open(&path, own());
        queue.enqueue_many(&[[1; 20], [2; 20]]).unwrap();
        queue.close().unwrap();
        // As if all chunks but two were in use.
        fs::write(&path, 3_u16.to_be_bytes()).unwrap();
        fs::rename(dir.queue().join("q.1"), dir.queue().join("q.3")).unwrap();
        fs::rename(dir.queue().join("q.2"), dir.queue().join("q.65534")).unwrap();
        let mut first = fs::read(dir.queue().join("q.3")).unwrap();
        first[8..10].copy_from_slice(&65_534_u16.to_be_bytes());
        fs::write(dir.queue().join("q.3"), first).unwrap();
        let queue = open(&path, own());
        let refused = queue.enqueue_many(&[[3; 20]; 3]);
        assert!(matches!(refused, Err(Error::Full(_))), "{sync:?} {refused:?}");
        assert_eq!(queue.len().unwrap(), 2, "{sync:?}: all or none");
        queue.enqueue_many(&[[3; 20]; 2]).unwrap();
        assert!(matches!(queue.enqueue(&[4; 20]), Err(Error::Full(_))));
        assert_eq!(drain(&queue), [[1; 20], [2; 20], [3; 20], [3; 20]]);
    }
}

#[test]
fn a_repair_leaves_the_queue_next_door_alone() {
    let (dir, path) = setup();
    let other = open(&dir.queue().join("q.2024"), small(40));
    other.enqueue(b"next door").unwrap();
    let queue = open(&path, small(40));
    queue.enqueue(b"here").unwrap();
    assert_eq!(queue.verify().unwrap().problems, []);
    assert_eq!(queue.repair().unwrap().put_aside, <[std::path::PathBuf; 0]>::default());
    assert_eq!(drain(&queue), [b"here"]);
    assert_eq!(drain(&other), [b"next door"]);
}

#[test]
fn a_repair_keeps_messages_that_wait_for_a_commit() {
    let (dir, path) = setup();
    let own = || Options {
        sync: SyncMode::Group,
        crc: true,
        ..small(200)
    };
    let queue = open(&path, own());
    queue.enqueue_many(&[b"good", b"bad!", b"fine"]).unwrap();
    queue.sync().unwrap();
    let chunk = fs::File::options().write(true).open(dir.queue().join("q.1")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&chunk, b"X", 10 + 6 + 3).unwrap();
    queue.enqueue(b"waits").unwrap();
    let report = queue.verify().unwrap();
    assert_eq!((report.messages, report.problems.len()), (3, 1));
    queue.enqueue(b"waits, too").unwrap();
    assert_eq!(queue.repair().unwrap().problems.len(), 1);
    queue.enqueue(b"later").unwrap();
    queue.close().unwrap();
    let queue = open(&path, own());
    let expected: [&[u8]; 5] = [b"good", b"fine", b"waits", b"waits, too", b"later"];
    assert_eq!(drain(&queue), expected);
}

/// The process is killed before their commit, and the chunk that they belong into is damaged.
#[test]
fn messages_of_the_dead_wait_for_a_repair() {
    let (dir, path) = setup();
    let own = || Options {
        sync: SyncMode::Group,
        ..small(200)
    };
    let queue = open(&path, own());
    queue.enqueue(b"gone with its chunk").unwrap();
    queue.close().unwrap();
    let (killed_path, killed_options) = (path.clone(), own());
    let mut victim = Spawn::new(&dir, "victim").start_forked(move |_| {
        let queue = open(&killed_path, killed_options);
        queue.enqueue_many(&[b"first", b"other"]).unwrap();
        exit_now(0);
    });
    victim.expect_success(std::time::Duration::from_secs(20));
    let chunk = fs::File::options().write(true).open(dir.queue().join("q.1")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&chunk, &[0xFF; 4], 0).unwrap();
    for _ in 0..2 {
        let queue = open(&path, own());
        assert!(matches!(queue.enqueue(b"x"), Err(Error::Corrupt(_))));
        assert!(queue.close().is_err(), "what waits cannot be written");
    }
    let queue = open(&path, own());
    assert_eq!(queue.repair().unwrap().put_aside.len(), 1);
    queue.enqueue(b"later").unwrap();
    assert_eq!(drain(&queue), [b"first", b"other", b"later"]);
    queue.close().unwrap();
}

#[test]
fn a_queue_with_a_damaged_checksum_file_opens_and_can_be_repaired() {
    for network in [false, true] {
        let (dir, path) = setup();
        let own = || Options {
            crc: true,
            network,
            ..small(40)
        };
        let queue = open(&path, own());
        queue.enqueue_many(&[[1; 20], [2; 20]]).unwrap();
        queue.close().unwrap();
        fs::write(dir.queue().join("q.2.crc"), b"no checksums").unwrap();
        let queue = open(&path, own());
        assert_eq!(queue.verify().unwrap().problems.len(), 1, "network={network}");
        assert!(matches!(queue.enqueue(b"x"), Err(Error::Corrupt(_))));
        assert_eq!(queue.repair().unwrap().problems.len(), 1, "network={network}");
        queue.enqueue(b"later").unwrap();
        assert_eq!(drain(&queue), [&[1; 20][..], &[2; 20], b"later"], "network={network}");
    }
}

/// With the last chunk gone there is no place for what waits but a new one.
#[test]
fn what_waits_for_a_commit_into_a_lost_chunk_comes_after_a_repair() {
    let (dir, path) = setup();
    let own = || Options {
        sync: SyncMode::Group,
        ..small(40)
    };
    let queue = open(&path, own());
    queue.enqueue_many(&[&[1; 20][..], &[2; 15]]).unwrap();
    queue.sync().unwrap();
    queue.enqueue(b"waits").unwrap();
    fs::remove_file(dir.queue().join("q.2")).unwrap();
    assert_eq!(queue.repair().unwrap().problems.len(), 1);
    assert_eq!(drain(&queue), [&[1; 20][..], b"waits"]);
}

#[test]
fn verify_finds_nothing_wrong_while_others_go_on() {
    let (_dir, path) = setup();
    let with = |role| Options { role, ..small(200) };
    let consumer = open(&path, with(Role::Consumer));
    let producers = [open(&path, with(Role::Producer)), open(&path, with(Role::Producer))];
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                producers[0].enqueue_many(&[[1; 30]; 3]).unwrap();
            }
        });
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                consumer.dequeue_many(5).unwrap();
            }
        });
        let found: Vec<_> = (0..1000)
            .map(|i| if i % 2 == 0 { &consumer } else { &producers[1] })
            .flat_map(|queue| queue.verify().unwrap().problems)
            .collect();
        done.store(true, Ordering::Relaxed);
        assert_eq!(found, []);
    });
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
