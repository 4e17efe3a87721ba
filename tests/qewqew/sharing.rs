//! Several handles at once: threads, processes, producers beside a consumer.

use std::time::Duration;

use tailrace::Error;
use tailrace::qewqew::{Change, DurableQueue, Options, Role, SyncMode};
use tailrace::shared::signal::Wait;

use super::common::dirs::TestDir;
use super::common::worker::Spawn;
use super::{MODES, drain, names, open, setup, small};

#[test]
fn producers_with_different_chunk_sizes_fill_the_same_chunk() {
    for sync in MODES {
        let (_dir, path) = setup();
        let with = |role, chunk_size| Options {
            role,
            sync,
            ..small(chunk_size)
        };
        let consumer = open(&path, with(Role::Consumer, 100));
        let short = open(&path, with(Role::Producer, 100));
        let long = open(&path, with(Role::Producer, 1000));
        short.enqueue(&[1; 1]).unwrap();
        short.sync().unwrap();
        long.enqueue(&[2; 500]).unwrap();
        // Commits what the other has staged behind the end of the chunk as it was when it was opened here.
        short.sync().unwrap();
        short.enqueue(&[3; 50]).unwrap();
        long.enqueue(&[4; 300]).unwrap();
        let lengths: Vec<usize> = drain(&consumer).iter().map(Vec::len).collect();
        assert_eq!(lengths, [1, 500, 50, 300], "{sync:?}");
        short.enqueue(&[5; 20]).unwrap();
        assert_eq!(drain(&consumer), [[5; 20]], "{sync:?}");
    }
}

#[test]
fn one_consumer_and_many_producers() {
    let (dir, path) = setup();
    let with = |role| Options { role, ..small(64) };
    let consumer = open(&path, with(Role::Consumer));
    for role in [Role::Consumer, Role::Both] {
        let refused = DurableQueue::open(&path, with(role));
        assert!(matches!(refused, Err(Error::AlreadyOpen(_))), "{role:?} {refused:?}");
    }
    let producers: Vec<_> = (0..3).map(|_| open(&path, with(Role::Producer))).collect();
    for round in 0..20_u8 {
        for (p, producer) in producers.iter().enumerate() {
            producer.enqueue(&[p as u8, round]).unwrap();
        }
    }
    assert!(matches!(producers[0].dequeue(), Err(Error::Invalid(_))));
    assert!(matches!(consumer.enqueue(b"x"), Err(Error::Invalid(_))));
    assert!(!producers[0].is_empty().unwrap());
    let got = drain(&consumer);
    assert_eq!(got.len(), 60);
    assert!(
        got.iter()
            .enumerate()
            .all(|(i, m)| *m == [(i % 3) as u8, (i / 3) as u8])
    );
    // Closing one does not touch the files that the others use.
    consumer.close().unwrap();
    producers[1].enqueue(b"later").unwrap();
    let consumer = open(&path, with(Role::Both));
    assert_eq!(drain(&consumer), [b"later"]);
    drop(producers);
    consumer.close().unwrap();
    assert!(names(&dir.queue()).is_empty());
}

/// Whoever creates a chunk writes its blocks ahead, step by step; that must not reach what others have appended meanwhile.
#[test]
fn the_creator_of_a_large_chunk_leaves_alone_what_others_append_to_it() {
    for sync in MODES {
        for crc in [false, true] {
            let (_dir, path) = setup();
            let options = |role| Options {
                chunk_size: 4 << 20,
                sync,
                crc,
                role,
                ..Options::default()
            };
            let creator = open(&path, options(Role::Both));
            let other = open(&path, options(Role::Producer));
            let messages: Vec<Vec<u8>> = (1..=2400_u32).map(|i| i.to_le_bytes().repeat(250)).collect();
            creator.enqueue(&messages[0]).unwrap();
            for part in messages[1..2399].chunks(100) {
                other.enqueue_many(part).unwrap();
            }
            creator.enqueue(&messages[2399]).unwrap();
            assert!(drain(&creator) == messages, "{sync:?} crc={crc}");
        }
    }
}

#[test]
fn a_producer_that_has_a_cleared_chunk_open_does_not_write_into_it() {
    for sync in MODES {
        let (_dir, path) = setup();
        let with = |role| Options {
            role,
            sync,
            ..small(200)
        };
        let consumer = open(&path, with(Role::Consumer));
        let producer = open(&path, with(Role::Producer));
        producer.enqueue(b"gone").unwrap();
        assert!(consumer.clear().unwrap());
        producer.enqueue(b"here").unwrap();
        assert_eq!(drain(&consumer), [b"here"], "{sync:?}");
    }
}

#[test]
fn group_commits_are_seen_by_a_consumer_at_once_and_survive_a_close() {
    let (_dir, path) = setup();
    let group = |role| Options {
        role,
        sync: SyncMode::Group,
        ..Options::default()
    };
    let producer = open(&path, group(Role::Producer));
    let consumer = open(&path, group(Role::Consumer));
    for i in 0..1000_u32 {
        producer.enqueue(&i.to_le_bytes()).unwrap();
    }
    assert_eq!(producer.len().unwrap(), 1000, "staged messages count");
    assert_eq!(consumer.dequeue().unwrap().unwrap(), 0_u32.to_le_bytes());
    producer.enqueue(b"last").unwrap();
    producer.sync().unwrap();
    producer.close().unwrap();
    assert_eq!(drain(&consumer).len(), 1000);
}

#[test]
fn a_sleeping_consumer_is_woken_from_another_process() {
    let (dir, path) = setup();
    let consumer = open(
        &path,
        Options {
            role: Role::Consumer,
            ..small(1 << 16)
        },
    );
    let mut worker = Spawn::new(&dir, "waker").start_forked(|_| {
        std::thread::sleep(Duration::from_millis(50));
        let producer = open(
            &path,
            Options {
                role: Role::Producer,
                ..small(1 << 16)
            },
        );
        producer.enqueue(b"wake up").unwrap();
    });
    let wait = Wait::from_timeout(Some(Duration::from_secs(30)));
    let got = consumer
        .waiting(Change::Arrival, wait, &mut || Ok(()), || consumer.dequeue())
        .unwrap();
    assert_eq!(got.unwrap(), b"wake up");
    worker.expect_success(Duration::from_secs(10));
    let none = consumer
        .waiting(Change::Arrival, Wait::No, &mut || Ok(()), || consumer.dequeue())
        .unwrap();
    assert_eq!(none, None);
}

#[test]
fn a_forked_child_takes_part_for_itself() {
    let (dir, path) = setup();
    let producer = open(
        &path,
        Options {
            role: Role::Producer,
            ..small(200)
        },
    );
    producer.enqueue(b"parent").unwrap();
    let mut worker = Spawn::new(&dir, "child").start_forked(|_| {
        producer.enqueue(b"child").unwrap();
        producer.close().unwrap();
    });
    worker.expect_success(Duration::from_secs(10));
    producer.enqueue(b"parent again").unwrap();
    let both = open(&path, small(200));
    let mut worker = Spawn::new(&dir, "second consumer").start_forked(|_| {
        assert!(
            matches!(both.dequeue(), Err(Error::AlreadyOpen(_))),
            "the parent is the consumer"
        );
    });
    worker.expect_success(Duration::from_secs(10));
    let texts: Vec<String> = drain(&both)
        .into_iter()
        .map(|m| String::from_utf8(m).unwrap())
        .collect();
    assert_eq!(texts, ["parent", "child", "parent again"]);
}

#[test]
fn threads_share_a_handle() {
    for sync in MODES {
        let dir = TestDir::disk();
        let path = dir.queue().join("q");
        let queue = open(&path, Options { sync, ..small(4096) });
        let (threads, each) = (4, if sync == SyncMode::Always { 60 } else { 2000 });
        std::thread::scope(|scope| {
            for t in 0..threads {
                let queue = &queue;
                scope.spawn(move || {
                    for i in 0..each {
                        queue.enqueue(format!("{t} {i}").as_bytes()).unwrap();
                        if sync == SyncMode::Group && i % 100 == 0 {
                            queue.sync().unwrap();
                        }
                    }
                });
            }
            let mut next = vec![0; threads];
            for _ in 0..threads * each {
                let wait = Wait::from_timeout(Some(Duration::from_secs(30)));
                let got = queue
                    .waiting(Change::Arrival, wait, &mut || Ok(()), || queue.dequeue())
                    .unwrap();
                let text = String::from_utf8(got.expect("all were enqueued")).unwrap();
                let (t, i) = text.split_once(' ').unwrap();
                let t: usize = t.parse().unwrap();
                assert_eq!(i.parse::<usize>().unwrap(), next[t], "{sync:?}");
                next[t] += 1;
            }
        });
        assert!(queue.is_empty().unwrap());
    }
}
