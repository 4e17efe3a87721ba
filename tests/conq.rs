//! conq as its document tests it: every method on one queue and on two, many threads on one queue, a queue for each thread;
//! then what this one does better than the original.

mod common;

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use common::dirs::TestDir;
use common::watchdog::Watchdog;
use tailrace::Error;
use tailrace::conq::origin::Origin;
use tailrace::conq::{DeadLetter, Manager, Options};
use tailrace::os::clock::Clock;

const SHORT: Duration = Duration::from_millis(10);
const LONG: Duration = Duration::from_secs(60);

/// Both kinds of manager, on a clock that the test moves.
fn managers() -> Vec<(Manager, Clock, Option<TestDir>)> {
    let (a, b) = (Clock::manual(), Clock::manual());
    let dir = TestDir::shm();
    let host = Manager::open_at(&dir.queue(), b.clone(), Origin::here().unwrap()).unwrap();
    vec![(Manager::private(a.clone()), a, None), (host, b, Some(dir))]
}

fn small() -> Options {
    Options {
        max_messages: 64,
        max_message_size: 1000,
        max_bytes: 256 << 10,
        ..Options::default()
    }
}

/// The steps of OneQueueCorrectnessTest on the queue `name`.
fn every_method(manager: &Manager, clock: &Clock, name: &str) {
    let id = manager.create_queue(name, &small()).unwrap();
    assert_eq!(manager.get_queue(name).unwrap(), id);
    assert!(matches!(manager.create_queue(name, &small()), Err(Error::Exists(_))));
    let bytes = |text: &str| format!("{name} {text}").into_bytes();
    for text in ["one", "two", "three"] {
        manager.enqueue(id, &bytes(text)).unwrap();
    }
    let read = || manager.read(id, SHORT).unwrap();
    let (one, two, three) = (read().unwrap(), read().unwrap(), read().unwrap());
    assert_eq!(
        [&one.data, &two.data, &three.data],
        [&bytes("one"), &bytes("two"), &bytes("three")]
    );
    assert_eq!(read(), None, "all are in somebody's hands");
    assert!(matches!(manager.read(id, Duration::ZERO), Err(Error::Invalid(_))));
    manager.dequeue(id, &one.receipt).unwrap();
    manager.dequeue(id, &two.receipt).unwrap();
    clock.advance(SHORT + Duration::from_nanos(1));
    let gone = |outcome| matches!(outcome, Err(Error::MessageNotFound(_)));
    assert!(gone(manager.dequeue(id, &three.receipt)), "its lease has ended");
    let again = read().unwrap();
    assert_eq!((again.data, again.receipt.id), (three.data, three.receipt.id));
    assert_eq!(again.receipt.delivery, 2);
    manager.dequeue(id, &again.receipt).unwrap();
    assert!(gone(manager.dequeue(id, &again.receipt)));
    manager.enqueue(id, b"").unwrap();
    assert_eq!(read().unwrap().data, b"");
    manager.enqueue(id, &[1; 1000]).unwrap();
    assert!(matches!(
        manager.enqueue(id, &[1; 1001]),
        Err(Error::TooLarge {
            size: 1001,
            limit: 1000
        })
    ));
    manager.delete_queue(id).unwrap();
    let missing = |outcome| matches!(outcome, Err(Error::NotFound(_)));
    assert!(missing(manager.delete_queue(id)));
    assert!(missing(manager.get_queue(name).map(drop)));
    assert!(missing(manager.enqueue(id, b"x").map(drop)));
    assert!(missing(manager.read(id, SHORT).map(drop)));
    assert!(missing(manager.dequeue(id, &again.receipt)));
    assert_ne!(
        manager.create_queue(name, &small()).unwrap(),
        id,
        "ids are never given twice"
    );
}

#[test]
fn one_queue_every_method() {
    for (manager, clock, _dir) in managers() {
        every_method(&manager, &clock, "only");
    }
}

#[test]
fn two_queues_every_method() {
    for (manager, clock, _dir) in managers() {
        every_method(&manager, &clock, "first");
        every_method(&manager, &clock, "second");
        assert_eq!(manager.names().unwrap(), ["first", "second"]);
        let ids = ["first", "second"].map(|name| manager.get_queue(name).unwrap());
        for round in 0..10_u8 {
            manager.enqueue(ids[0], &[round]).unwrap();
            manager.enqueue(ids[1], &[100 + round]).unwrap();
        }
        for round in 0..10_u8 {
            for (id, expected) in [(ids[1], 100 + round), (ids[0], round)] {
                let message = manager.read(id, SHORT).unwrap().unwrap();
                assert_eq!((message.data.as_slice(), message.queue_id), (&[expected][..], id));
                manager.dequeue(id, &message.receipt).unwrap();
            }
        }
    }
}

/// IntraQueueMultiThreadTest: 250 producers, 250 consumers, one queue.
#[test]
fn five_hundred_threads_on_one_queue() {
    let _dog = Watchdog::start("500 threads on one queue", Duration::from_secs(100));
    let (pairs, trials) = (250, common::rounds(400, 3000));
    for host_wide in [false, true] {
        let dir = TestDir::shm();
        let manager = match host_wide {
            true => Manager::open(&dir.queue()).unwrap(),
            false => Manager::private(Clock::boottime()),
        };
        let id = manager.create_queue("intra", &Options::default()).unwrap();
        let (enqueued, dequeued) = (AtomicU64::new(0), AtomicU64::new(0));
        let seen = Mutex::new(HashSet::new());
        thread::scope(|scope| {
            for producer in 0..pairs {
                let (manager, enqueued) = (&manager, &enqueued);
                scope.spawn(move || {
                    for trial in 0..trials {
                        let id = manager.get_queue("intra").unwrap();
                        let message: Vec<u8> = [producer, trial].map(u64::to_le_bytes).concat();
                        manager.enqueue(id, &message).unwrap();
                        enqueued.fetch_add(1, Ordering::Relaxed);
                    }
                });
                let (seen, dequeued) = (&seen, &dequeued);
                scope.spawn(move || {
                    let mut own = Vec::new();
                    for _ in 0..trials {
                        let message = loop {
                            match manager.read(id, LONG).unwrap() {
                                Some(message) => break message,
                                None => thread::yield_now(),
                            }
                        };
                        assert_eq!(message.receipt.delivery, 1);
                        manager.dequeue(id, &message.receipt).unwrap();
                        dequeued.fetch_add(1, Ordering::Relaxed);
                        own.push(message.data);
                    }
                    seen.lock().unwrap().extend(own);
                });
            }
        });
        let total = pairs * trials;
        assert_eq!((enqueued.into_inner(), dequeued.into_inner()), (total, total));
        assert_eq!(seen.into_inner().unwrap().len() as u64, total, "each exactly once");
        let stats = manager.stats(id).unwrap();
        assert_eq!((stats.ready, stats.leased, stats.expired, stats.repairs), (0, 0, 0, 0));
        manager.delete_queue(id).unwrap();
    }
}

#[test]
fn messages_of_one_producer_stay_in_order_among_many() {
    let manager = Manager::private(Clock::boottime());
    let id = manager.create_queue("order", &Options::default()).unwrap();
    let each = common::rounds(20_000, 200_000);
    thread::scope(|scope| {
        for producer in 0..4_u64 {
            let manager = &manager;
            scope.spawn(move || {
                for sequence in 0..each {
                    let message: Vec<u8> = [producer, sequence].map(u64::to_le_bytes).concat();
                    manager.enqueue(id, &message).unwrap();
                }
            });
        }
        let mut next = [0_u64; 4];
        let mut left = 4 * each;
        while left > 0 {
            let Some(message) = manager.read(id, LONG).unwrap() else {
                thread::yield_now();
                continue;
            };
            let word = |at: usize| u64::from_le_bytes(message.data[at..at + 8].try_into().unwrap());
            assert_eq!(next[word(0) as usize], word(8), "producer {}", word(0));
            next[word(0) as usize] += 1;
            manager.dequeue(id, &message.receipt).unwrap();
            left -= 1;
        }
    });
}

#[test]
fn expired_messages_come_first_in_the_order_of_their_expiry_not_of_their_text() {
    for (manager, clock, _dir) in managers() {
        let id = manager.create_queue("order", &small()).unwrap();
        for number in 0..20_u8 {
            manager.enqueue(id, &[number]).unwrap();
        }
        // Twelve with the same end (by text, 10 would come before 2), one that ends first, one that never ends.
        for _ in 0..12 {
            manager.read(id, Duration::from_millis(5)).unwrap().unwrap();
        }
        manager.read(id, Duration::from_millis(1)).unwrap().unwrap();
        manager.read(id, Duration::MAX).unwrap().unwrap();
        clock.advance(Duration::from_millis(6));
        let order: Vec<u8> = (0..18)
            .map(|_| manager.read(id, LONG).unwrap().unwrap().data[0])
            .collect();
        let expected: Vec<u8> = [12].into_iter().chain(0..12).chain(14..19).collect();
        assert_eq!(order, expected);
    }
}

#[test]
fn a_stale_delivery_never_finishes_somebody_elses() {
    for (manager, clock, _dir) in managers() {
        let id = manager.create_queue("stale", &small()).unwrap();
        manager.enqueue(id, b"work").unwrap();
        let slow = manager.read(id, SHORT).unwrap().unwrap();
        clock.advance(SHORT * 2);
        let quick = manager.read(id, SHORT).unwrap().unwrap();
        assert_eq!(quick.receipt.id, slow.receipt.id);
        for outcome in [
            manager.dequeue(id, &slow.receipt),
            manager.extend(id, &slow.receipt, LONG),
            manager.release(id, &slow.receipt),
        ] {
            assert!(matches!(outcome, Err(Error::MessageNotFound(_))));
        }
        manager.dequeue(id, &quick.receipt).unwrap();
        // The slot is used again by another message: the old receipt is not its.
        manager.enqueue(id, b"other").unwrap();
        let other = manager.read(id, SHORT).unwrap().unwrap();
        assert_eq!(other.receipt.slot, slow.receipt.slot);
        assert!(manager.dequeue(id, &slow.receipt).is_err());
        manager.dequeue(id, &other.receipt).unwrap();
    }
}

#[test]
fn a_lease_can_be_extended_and_given_back() {
    for (manager, clock, _dir) in managers() {
        let id = manager.create_queue("extend", &small()).unwrap();
        manager.enqueue(id, b"long").unwrap();
        manager.enqueue(id, b"later").unwrap();
        let long = manager.read(id, SHORT).unwrap().unwrap();
        for _ in 0..5 {
            clock.advance(SHORT);
            manager.extend(id, &long.receipt, SHORT).unwrap();
        }
        assert!(matches!(
            manager.extend(id, &long.receipt, Duration::ZERO),
            Err(Error::Invalid(_))
        ));
        manager.release(id, &long.receipt).unwrap();
        let again = manager.read(id, SHORT).unwrap().unwrap();
        assert_eq!((again.data.as_slice(), again.receipt.delivery), (&b"long"[..], 2));
        manager.dequeue(id, &again.receipt).unwrap();
    }
}

#[test]
fn stats_count_the_phases_and_tell_the_oldest_age() {
    for (manager, clock, _dir) in managers() {
        let id = manager.create_queue("stats", &small()).unwrap();
        assert_eq!(manager.stats(id).unwrap().oldest_age, None);
        manager.enqueue(id, b"a").unwrap();
        clock.advance(Duration::from_secs(3));
        manager.enqueue(id, b"b").unwrap();
        manager.enqueue(id, b"c").unwrap();
        manager.read(id, SHORT).unwrap().unwrap();
        manager.read(id, LONG).unwrap().unwrap();
        clock.advance(Duration::from_secs(2));
        let stats = manager.stats(id).unwrap();
        assert_eq!((stats.ready, stats.leased, stats.expired), (1, 1, 1));
        assert_eq!(stats.oldest_age, Some(5_000_000_000));
        assert_eq!(stats.enqueued, 3);
    }
}

#[test]
fn what_nobody_can_finish_goes_to_the_dead_letter_queue() {
    for (manager, clock, _dir) in managers() {
        let dead = DeadLetter {
            max_deliveries: 2,
            queue: "graves".into(),
        };
        let options = Options {
            dead_letter: Some(dead),
            ..small()
        };
        let id = manager.create_queue("poison", &options).unwrap();
        manager.enqueue(id, b"poison").unwrap();
        manager.enqueue(id, b"fine").unwrap();
        for delivery in 1..=2 {
            let message = manager.read(id, SHORT).unwrap().unwrap();
            assert_eq!(
                (message.data.as_slice(), message.receipt.delivery),
                (&b"poison"[..], delivery)
            );
            clock.advance(SHORT * 2);
        }
        // Without its dead-letter queue a message is delivered on, never lost.
        let third = manager.read(id, SHORT).unwrap().unwrap();
        assert_eq!(third.receipt.delivery, 3);
        manager.release(id, &third.receipt).unwrap();
        let graves = manager.create_queue("graves", &small()).unwrap();
        let next = manager.read(id, SHORT).unwrap().unwrap();
        assert_eq!(next.data, b"fine");
        manager.dequeue(id, &next.receipt).unwrap();
        let stats = manager.stats(id).unwrap();
        assert_eq!((stats.ready, stats.leased, stats.expired), (0, 0, 0));
        assert_eq!(manager.read(graves, SHORT).unwrap().unwrap().data, b"poison");
        let own = Options {
            dead_letter: Some(DeadLetter {
                max_deliveries: 1,
                queue: "self".into(),
            }),
            ..small()
        };
        assert!(matches!(manager.create_queue("self", &own), Err(Error::Invalid(_))));
    }
}

#[test]
fn a_full_queue_says_so_and_has_room_again_after_a_dequeue() {
    for (manager, _clock, _dir) in managers() {
        let id = manager.create_queue("full", &small()).unwrap();
        for number in 0..64_u8 {
            manager.enqueue(id, &[number]).unwrap();
        }
        let full = manager.enqueue(id, b"x").unwrap_err();
        assert!(
            matches!(&full, Error::Full(text) if text.contains("64 messages")),
            "{full}"
        );
        let first = manager.read(id, LONG).unwrap().unwrap();
        assert!(
            matches!(manager.enqueue(id, b"x"), Err(Error::Full(_))),
            "a leased message counts"
        );
        manager.dequeue(id, &first.receipt).unwrap();
        manager.enqueue(id, b"x").unwrap();
        assert!(matches!(manager.enqueue(id, b"y"), Err(Error::Full(_))));
    }
}

/// Memory goes from one size class to another when it is needed there: a queue that held many small messages can hold large
/// ones later, and the other way round.
#[test]
fn memory_serves_every_size_in_turn() {
    let options = Options {
        max_messages: 10_000,
        max_message_size: 4000,
        max_bytes: 128 << 10,
        ..Options::default()
    };
    for (manager, _clock, _dir) in managers() {
        let id = manager.create_queue("sizes", &options).unwrap();
        for round in 0..6 {
            let size = [50, 4000, 700][round % 3];
            let mut count = 0;
            loop {
                match manager.enqueue(id, &vec![round as u8; size]) {
                    Ok(_) => count += 1,
                    Err(Error::Full(text)) => {
                        assert!(text.contains("max_bytes"), "{text}");
                        break;
                    }
                    Err(other) => panic!("{other}"),
                }
            }
            assert!(
                count * (size + 32) > 60 << 10,
                "round {round}: only {count} of {size} bytes fit"
            );
            for _ in 0..count {
                let message = manager.read(id, LONG).unwrap().unwrap();
                assert_eq!(message.data, vec![round as u8; size]);
                manager.dequeue(id, &message.receipt).unwrap();
            }
        }
    }
}

/// Three producers of different sizes and a consumer share little memory, so that segments change their class under them.
#[test]
fn segments_change_their_class_under_producers() {
    let _dog = Watchdog::start("changing classes", Duration::from_secs(60));
    let manager = Manager::private(Clock::boottime());
    let options = Options {
        max_messages: 10_000,
        max_message_size: 2000,
        max_bytes: 64 << 10,
        ..Options::default()
    };
    let id = manager.create_queue("classes", &options).unwrap();
    let each = common::rounds(20_000, 200_000);
    thread::scope(|scope| {
        for producer in 0..3_u64 {
            let manager = &manager;
            scope.spawn(move || {
                for sequence in 0..each {
                    let size = 20 + [0, 600, 1900][((sequence / 50 + producer) % 3) as usize];
                    let message = common::payload::make(producer as u32, sequence, size);
                    while let Err(error) = manager.enqueue(id, &message) {
                        assert!(matches!(error, Error::Full(_)), "{error}");
                        thread::yield_now();
                    }
                }
            });
        }
        let mut next = [0; 3];
        while next != [each; 3] {
            match manager.read(id, LONG).unwrap() {
                Some(message) => {
                    let who = common::payload::parse(&message.data).unwrap();
                    assert_eq!(who.sequence, next[who.producer as usize]);
                    next[who.producer as usize] += 1;
                    manager.dequeue(id, &message.receipt).unwrap();
                }
                None => thread::yield_now(),
            }
        }
    });
}
