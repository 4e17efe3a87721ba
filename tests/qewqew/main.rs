//! The durable queue by itself: the original's own scenarios, its defects (not copied), limits, roles, bounds.

#[path = "../common/mod.rs"]
mod common;
mod files;
mod sharing;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use common::dirs::TestDir;
use tailrace::Error;
use tailrace::qewqew::{Change, DurableQueue, Options, Role, SyncMode};
use tailrace::shared::signal::Wait;

const MODES: [SyncMode; 3] = [SyncMode::Always, SyncMode::Group, SyncMode::Never];

fn small(chunk_size: u64) -> Options {
    Options {
        chunk_size,
        sync: SyncMode::Never,
        ..Options::default()
    }
}

fn open(path: &Path, options: Options) -> DurableQueue {
    DurableQueue::open(path, options).unwrap_or_else(|e| panic!("open {}: {e}", path.display()))
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn setup() -> (TestDir, PathBuf) {
    let dir = TestDir::shm();
    let path = dir.queue().join("q");
    (dir, path)
}

fn drain(queue: &DurableQueue) -> Vec<Vec<u8>> {
    std::iter::from_fn(|| queue.dequeue().unwrap()).collect()
}

#[test]
fn messages_come_out_in_order_and_an_empty_queue_leaves_no_file() {
    for sync in MODES {
        for crc in [false, true] {
            let (dir, path) = setup();
            let queue = open(
                &path,
                Options {
                    sync,
                    crc,
                    ..Options::default()
                },
            );
            assert!(queue.is_empty().unwrap());
            assert_eq!((queue.peek().unwrap(), queue.dequeue().unwrap()), (None, None));
            let messages: Vec<Vec<u8>> = (0..100_usize).map(|i| vec![i as u8; i * 7]).collect();
            for message in &messages[..50] {
                queue.enqueue(message).unwrap();
            }
            queue.enqueue_many(&messages[50..]).unwrap();
            assert_eq!(queue.len().unwrap(), 100, "{sync:?}");
            assert_eq!(queue.peek().unwrap().as_ref(), Some(&messages[0]));
            assert_eq!(queue.dequeue_many(10).unwrap(), messages[..10]);
            assert_eq!(drain(&queue), messages[10..], "{sync:?} crc={crc}");
            queue.close().unwrap();
            assert_eq!(names(&dir.queue()), Vec::<String>::new(), "{sync:?} crc={crc}");
            assert!(matches!(queue.enqueue(b"x"), Err(Error::Closed)));
            assert!(matches!(queue.dequeue(), Err(Error::Closed)));
            queue.close().unwrap();
        }
    }
}

/// The original's test: header, one length and two payloads take one element; the second goes to chunk 2. It also shows Q1:
/// peek and dequeue work across a spill without reopening.
#[test]
fn a_second_chunk_takes_what_does_not_fit_and_goes_with_its_messages() {
    let (dir, path) = setup();
    let queue = open(&path, small(10 + 2 + 2 * 5));
    queue.enqueue(b"12345").unwrap();
    assert_eq!(queue.count_chunks().unwrap(), 1);
    queue.enqueue(b"abcde").unwrap();
    queue.enqueue(b"ABCDE").unwrap();
    assert_eq!(queue.count_chunks().unwrap(), 3);
    assert_eq!(fs::read(&path).unwrap(), [0, 1]);
    assert_eq!(queue.peek().unwrap().unwrap(), b"12345");
    assert_eq!(queue.dequeue().unwrap().unwrap(), b"12345");
    assert_eq!(
        fs::read(&path).unwrap(),
        [0, 2],
        "the head file changes with the border"
    );
    assert_eq!(queue.count_chunks().unwrap(), 2);
    assert_eq!(queue.dequeue().unwrap().unwrap(), b"abcde");
    assert_eq!(queue.dequeue().unwrap().unwrap(), b"ABCDE");
    assert_eq!(queue.dequeue().unwrap(), None);
    assert_eq!(
        queue.count_chunks().unwrap(),
        0,
        "as the original counts when it is empty"
    );
    queue.close().unwrap();
    assert!(names(&dir.queue()).is_empty());
}

#[test]
fn clear_forgets_everything_and_what_comes_after_it_stays() {
    for sync in MODES {
        let (_dir, path) = setup();
        let options = || Options { sync, ..small(40) };
        let queue = open(&path, options());
        assert!(!queue.clear().unwrap(), "nothing to clear");
        for i in 0..9 {
            queue.enqueue(&[i; 10]).unwrap();
        }
        assert!(queue.clear().unwrap());
        assert!(queue.is_empty().unwrap() && queue.count_chunks().unwrap() == 0);
        // Q2: lost on reopen; Q3: "xyc".
        queue.enqueue(b"xy").unwrap();
        assert_eq!(queue.peek().unwrap().unwrap(), b"xy");
        queue.close().unwrap();
        let queue = open(&path, options());
        assert_eq!(drain(&queue), [b"xy"], "{sync:?}");
    }
}

#[test]
fn too_large_messages_are_refused_with_nothing_written() {
    let (dir, path) = setup();
    let queue = open(&path, small(100));
    let before = names(&dir.queue());
    let refused = queue.enqueue(&[1; 89]);
    assert!(
        matches!(refused, Err(Error::TooLarge { size: 89, limit: 88 })),
        "{refused:?}"
    );
    assert!(queue.enqueue_many(&[&[1; 5][..], &[1; 89]]).is_err());
    assert_eq!(names(&dir.queue()), before, "Q6: no chunks of zeros");
    assert!(queue.is_empty().unwrap());
    queue.enqueue(&[7; 88]).unwrap();
    assert_eq!(queue.dequeue().unwrap().unwrap(), [7; 88]);
    drop(queue);
    // Q5: the length has 16 bits.
    let queue = open(&path, small(1 << 20));
    assert_eq!(queue.max_element_size(), 65_535);
    queue.enqueue(&[3; 65_535]).unwrap();
    let refused = queue.enqueue(&[3; 65_536]);
    assert!(matches!(
        refused,
        Err(Error::TooLarge {
            size: 65_536,
            limit: 65_535
        })
    ));
    queue.enqueue(b"next").unwrap();
    assert_eq!(drain(&queue).iter().map(Vec::len).collect::<Vec<_>>(), [65_535, 4]);
}

#[test]
fn chunk_sizes_are_those_of_the_format() {
    let (_dir, path) = setup();
    for size in [0, 11, 1 << 31, u64::MAX] {
        let refused = DurableQueue::open(&path, small(size));
        assert!(matches!(refused, Err(Error::Invalid(_))), "{size}");
    }
    let queue = open(&path, small(12));
    assert_eq!(queue.max_element_size(), 0);
    for _ in 0..5 {
        queue.enqueue(b"").unwrap();
    }
    assert_eq!(queue.count_chunks().unwrap(), 5, "one empty message each");
    assert_eq!(drain(&queue), vec![Vec::<u8>::new(); 5]);
}

#[test]
fn another_chunk_size_is_for_new_entries_only() {
    let (dir, path) = setup();
    let queue = open(&path, small(100));
    queue.enqueue_many(&[[1; 60], [2; 60]]).unwrap();
    queue.close().unwrap();
    let queue = open(&path, small(400));
    queue.enqueue(&[3; 200]).unwrap();
    assert_eq!(queue.count_chunks().unwrap(), 2, "the last chunk was extended");
    assert_eq!(fs::metadata(dir.queue().join("q.2")).unwrap().len(), 400);
    queue.close().unwrap();
    let queue = open(&path, small(50));
    queue.enqueue(&[4; 30]).unwrap();
    assert_eq!(queue.count_chunks().unwrap(), 3);
    let lengths: Vec<usize> = drain(&queue).iter().map(Vec::len).collect();
    assert_eq!(lengths, [60, 60, 200, 30], "nothing beyond the smaller size is lost");
}

#[test]
fn a_bound_refuses_or_waits() {
    let (_dir, path) = setup();
    for sync in MODES {
        let queue = open(
            &path,
            Options {
                max_bytes: Some(100),
                sync,
                ..small(64)
            },
        );
        for _ in 0..10 {
            queue.enqueue(&[0; 8]).unwrap();
        }
        let refused = queue.enqueue(b"x");
        assert!(matches!(refused, Err(Error::Full(_))), "{sync:?} {refused:?}");
        queue.dequeue().unwrap();
        queue.enqueue(&[1; 8]).unwrap();
        assert!(
            matches!(queue.enqueue_many(&[[0; 1]; 2]), Err(Error::Full(_))),
            "all or none"
        );
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let attempt = || match queue.enqueue(&[2; 8]) {
                    Err(Error::Full(_)) => Ok(None),
                    done => done.map(Some),
                };
                let wait = Wait::from_timeout(Some(Duration::from_secs(20)));
                queue.waiting(Change::Room, wait, &mut || Ok(()), attempt).unwrap()
            });
            std::thread::sleep(Duration::from_millis(20));
            assert!(!waiter.is_finished());
            queue.dequeue().unwrap();
            assert_eq!(waiter.join().unwrap(), Some(()));
        });
        assert_eq!(queue.len().unwrap(), 10);
        queue.clear().unwrap();
        queue
            .enqueue(&[0; 98])
            .unwrap_or_else(|e| assert!(matches!(e, Error::TooLarge { .. }), "{e}"));
        queue.clear().unwrap();
        queue.close().unwrap();
    }
}

#[test]
fn what_no_empty_queue_has_room_for_is_refused_at_once() {
    let (_dir, path) = setup();
    let bounded = |bytes| Options {
        max_bytes: Some(bytes),
        ..small(64)
    };
    let queue = open(&path, bounded(10));
    let refused = queue.enqueue(&[0; 9]);
    assert!(
        matches!(refused, Err(Error::TooLarge { size: 9, limit: 8 })),
        "nobody waits for what cannot come: {refused:?}"
    );
    queue.enqueue(&[0; 8]).unwrap();
    queue.clear().unwrap();
    assert!(matches!(DurableQueue::open(&path, bounded(1)), Err(Error::Invalid(_))));
}

#[test]
fn a_peeked_message_is_dequeued_only_while_it_is_the_first() {
    let (_dir, path) = setup();
    let queue = open(&path, small(200));
    queue.enqueue_many(&[b"a", b"b"]).unwrap();
    let first = queue.peek_with(|_, _| Ok(())).unwrap().unwrap();
    assert!(queue.dequeue_peeked(first).unwrap());
    assert!(!queue.dequeue_peeked(first).unwrap());
    assert_eq!(drain(&queue), [b"b"]);
}

/// A chunk that starts over and ids that come again bring other messages to the same place.
#[test]
fn a_peeked_message_is_not_taken_for_another_in_its_place() {
    for network in [false, true] {
        let (_dir, path) = setup();
        let queue = open(&path, Options { network, ..small(200) });
        let replacements: [fn(&DurableQueue) -> bool; 2] =
            [|queue| !drain(queue).is_empty(), |queue| queue.clear().unwrap()];
        for replace in replacements {
            queue.enqueue(b"seen").unwrap();
            let seen = queue.peek_with(|_, _| Ok(())).unwrap().unwrap();
            assert!(replace(&queue));
            queue.enqueue(b"next").unwrap();
            assert!(!queue.dequeue_peeked(seen).unwrap(), "network={network}");
            assert_eq!(drain(&queue), [b"next"], "network={network}");
        }
    }
}

#[test]
fn messages_in_front_of_damage_are_handed_over_together() {
    let damages: [fn(&mut [u8]); 2] = [|bytes| bytes[3] = 200, |bytes| bytes[10] = 0xFF];
    for damage in damages {
        let (dir, path) = setup();
        let queue = open(&path, small(100));
        queue.enqueue_many(&[[7; 30]; 8]).unwrap();
        queue.close().unwrap();
        let second = dir.queue().join("q.2");
        let mut bytes = fs::read(&second).unwrap();
        damage(&mut bytes);
        fs::write(&second, bytes).unwrap();
        let queue = open(&path, small(100));
        let got = queue.dequeue_many(100).unwrap();
        assert_eq!(got, [[7; 30]; 2], "what was taken is not lost with the error");
        assert!(matches!(queue.dequeue_many(100), Err(Error::Corrupt(_))));
    }
}

/// The head has moved, so the message is the caller's, whatever becomes of the chunk that is left.
#[test]
fn a_chunk_that_cannot_be_removed_takes_no_message_with_it() {
    for sync in MODES {
        let (dir, path) = setup();
        let queue = open(&path, Options { sync, ..small(40) });
        for i in 0..3 {
            queue.enqueue(&[i; 20]).unwrap();
        }
        let obstacle = dir.queue().join("q.1.crc");
        fs::create_dir(&obstacle).unwrap();
        assert_eq!(drain(&queue), [[0; 20], [1; 20], [2; 20]], "{sync:?}");
        assert!(names(&dir.queue()).contains(&"q.1".to_owned()));
        fs::remove_dir(&obstacle).unwrap();
        queue.close().unwrap();
        assert!(names(&dir.queue()).is_empty(), "{sync:?}");
    }
}

#[test]
fn creating_can_be_declined() {
    let (dir, path) = setup();
    let options = Options {
        create: false,
        ..small(40)
    };
    assert!(matches!(DurableQueue::open(&path, options), Err(Error::NotFound(_))));
    assert!(names(&dir.queue()).is_empty());
}

#[test]
fn network_mode_keeps_away_from_mapped_handles_and_reads_sealed_chunks() {
    let (_dir, path) = setup();
    let with = |role, network| Options {
        role,
        network,
        ..small(64)
    };
    let producer = open(&path, with(Role::Producer, true));
    assert!(matches!(
        DurableQueue::open(&path, with(Role::Producer, true)),
        Err(Error::AlreadyOpen(_))
    ));
    assert!(matches!(
        DurableQueue::open(&path, with(Role::Consumer, false)),
        Err(Error::AlreadyOpen(_))
    ));
    let consumer = open(&path, with(Role::Consumer, true));
    for i in 0..7 {
        producer.enqueue(&[i; 20]).unwrap();
    }
    assert_eq!(producer.count_chunks().unwrap(), 4);
    let sealed = drain(&consumer);
    assert_eq!(
        sealed,
        (0..6).map(|i| [i; 20]).collect::<Vec<_>>(),
        "the last chunk is left alone"
    );
    consumer.close().unwrap();
    producer.close().unwrap();
    let both = open(&path, with(Role::Both, true));
    assert_eq!(drain(&both), [[6; 20]]);
    both.close().unwrap();
}
