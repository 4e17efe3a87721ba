//! What the original's own tests say about snapshots (facts/aq 1.5), and snapshots under load.
//!
//! Items are written as letter and pages, `?` for incomplete and `-` for released: `a2 b1- x3?`.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};

use common::aq_ring::{PAGE, PAGES, Ring};
use tailrace::aq::control::Reference;
use tailrace::aq::{Format, Options, Queue};

#[test]
fn waiting_retrieved_and_released_items() {
    let mut ring = Ring::new();
    assert_eq!(ring.snapshot(), "");
    ring.put('a', 1);
    ring.put('b', 2);
    assert_eq!(ring.snapshot(), "a1 b2");
    let items: Vec<_> = std::iter::from_fn(|| ring.retrieve()).collect();
    assert_eq!(ring.snapshot(), "a1 b2", "retrieved is not released");
    for (_, item) in items {
        ring.reader.release(item).unwrap();
    }
    assert_eq!(ring.snapshot(), "a1- b2-");
    let copy = ring.queue.snapshot().unwrap();
    let again = copy.clone();
    ring.put('c', 1);
    assert_eq!(copy.items().len(), 2);
    assert_eq!(again.items()[1].bytes(), copy.items()[1].bytes());
}

/// Turns the ring with single pages until the head stands at `head` and the tail at `tail`, in a later turn.
fn turned(head: u32, tail: u32) -> Ring {
    let mut ring = Ring::new();
    let waiting = (head + PAGES - tail) % PAGES;
    while ring.head().sequence() < 3 || ring.tail().index() != tail {
        ring.put('o', 1);
        ring.take();
    }
    for _ in 0..waiting {
        ring.put('w', 1);
    }
    assert_eq!((ring.head().index(), ring.tail().index()), (head, tail));
    ring
}

#[test]
fn released_items_stay_until_they_are_overwritten() {
    for (head, tail, released, waiting) in [
        (5, 3, 9, 2),
        (3, 5, 2, 9),
        (10, 0, 1, 10),
        (0, 10, 10, 1),
        (0, 0, 11, 0),
        (5, 5, 11, 0),
        (10, 10, 11, 0),
    ] {
        let shown = turned(head, tail).snapshot();
        let expected = [vec!["o1-"; released], vec!["w1"; waiting]].concat().join(" ");
        assert_eq!(shown, expected, "head {head} tail {tail}");
    }
}

#[test]
fn an_item_that_is_overwritten_in_part_disappears() {
    for start in [0, 0x1FF, 0xFFF] {
        let place = Reference::new(start, 0);
        let mut ring = Ring::between(place, place, Options::default());
        for (letter, pages) in [('a', 4), ('b', 3), ('c', 4)] {
            ring.put(letter, pages);
            ring.take();
        }
        assert_eq!(ring.snapshot(), "a4- b3- c4-", "turn {start:#x}");
        ring.put('d', 2);
        assert_eq!(ring.snapshot(), "b3- c4- d2", "turn {start:#x}");
        ring.put('e', 2);
        assert_eq!(ring.snapshot(), "b3- c4- d2 e2", "turn {start:#x}");
        ring.put('f', 1);
        assert_eq!(ring.snapshot(), "c4- d2 e2 f1", "turn {start:#x}");
    }
}

#[test]
fn waste_is_no_item_and_hides_none() {
    for laps in [0, 18] {
        let mut ring = Ring::new();
        for _ in 0..laps * PAGES {
            ring.put('o', 1);
            ring.take();
        }
        for _ in 0..2 {
            ring.put('a', 3);
            ring.take();
        }
        ring.put('b', 1);
        ring.put('c', 5);
        assert_eq!(
            (ring.control(7) >> 29, ring.head().index()),
            (0b011, 5),
            "4 pages are wasted"
        );
        assert_eq!(ring.snapshot(), "b1 c5");
        ring.take();
        ring.take();
        ring.put('d', 1);
        assert_eq!(ring.snapshot(), "b1- c5- d1");
    }
}

#[test]
fn incomplete_items_are_flagged() {
    let mut ring = Ring::new();
    ring.leave_claim('x', 8);
    assert_eq!(ring.snapshot(), "x8?");
    assert!(ring.retrieve().is_none());
    ring.expire();
    let (_, item) = ring.retrieve().unwrap();
    assert_eq!(ring.snapshot(), "x8?");
    ring.reader.release(item).unwrap();
    assert_eq!(ring.snapshot(), "x8?-");
    ring.claim('y', 2).give_up();
    assert_eq!(ring.snapshot(), "x8?- y2?-");
}

#[test]
fn old_words_in_interior_pages_never_come_back() {
    // The nine bits of the sequence loop after 512 turns.
    let mut ring = Ring::new();
    for turn in 0..1030_u32 {
        let pages = if turn % 2 == 0 { [1, 4, 5] } else { [3, 3, 2] };
        for size in pages {
            ring.put('o', size);
            ring.take();
        }
        let shown = ring.queue.snapshot().unwrap();
        let total: usize = shown.items().iter().map(|item| item.bytes().len()).sum();
        assert!(total <= PAGES as usize * PAGE, "turn {turn}");
        assert!(
            shown
                .items()
                .iter()
                .all(|item| item.bytes().iter().all(|byte| *byte == b'o'))
        );
    }
}

#[test]
fn positions_go_on_where_identifiers_start_over() {
    let queue = Queue::heap(
        1024,
        &Format {
            page_size: 16,
            ..Format::default()
        },
    )
    .unwrap();
    let (writer, mut reader) = (queue.writer().unwrap(), queue.reader().unwrap());
    let mut last = None;
    for _ in 0..4100 * 48 / 5 {
        writer.try_put(&[0; 70]).unwrap();
        let item = reader.retrieve().unwrap().unwrap();
        let position = item.position();
        assert!(last.is_none_or(|last| position > last));
        last = Some(position);
        reader.release(item).unwrap();
    }
    let turns = last.unwrap() / u64::from(queue.geometry().unwrap().page_count);
    assert!(turns > 4096, "{turns} turns");
    let newest = queue.snapshot().unwrap().items().last().unwrap().item().position();
    assert_eq!(newest, last.unwrap());
    drop(reader);
    writer.try_put(b"next").unwrap();
    let next = queue.reader().unwrap().retrieve().unwrap().unwrap().position();
    assert!(next > last.unwrap(), "a new reader counts on");
}

/// 10^6 snapshots in the long tier: every item of every one is whole.
#[test]
fn snapshots_under_load_are_never_torn() {
    let queue = Queue::heap(
        1 << 13,
        &Format {
            page_size: 32,
            ..Format::default()
        },
    )
    .unwrap();
    let stop = AtomicBool::new(false);
    let snapshots = common::rounds(20_000, 1_000_000);
    let _dog = common::watchdog::Watchdog::start("snapshots", std::time::Duration::from_secs(600));
    std::thread::scope(|scope| {
        for producer in 0..2_u32 {
            let (queue, stop) = (&queue, &stop);
            scope.spawn(move || {
                let writer = queue.writer().unwrap();
                for sequence in 0.. {
                    let message = common::payload::make(producer, sequence, 20 + (sequence % 200) as usize);
                    while !writer.try_put(&message).unwrap() {
                        if stop.load(Ordering::Relaxed) {
                            return;
                        }
                        std::thread::yield_now();
                    }
                }
            });
        }
        let (consumer_queue, consumer_stop) = (&queue, &stop);
        scope.spawn(move || {
            let mut reader = consumer_queue.reader().unwrap();
            while !consumer_stop.load(Ordering::Relaxed) {
                if reader.take(|_| Ok(())).unwrap().is_none() {
                    std::thread::yield_now();
                }
            }
        });
        let mut items = 0;
        for _ in 0..snapshots {
            let shown = queue.snapshot().unwrap();
            for item in shown.items().iter().filter(|item| item.item().is_committed()) {
                items += 1;
                common::payload::parse(item.bytes()).unwrap_or_else(|torn| {
                    stop.store(true, Ordering::Relaxed);
                    panic!("torn: {torn}")
                });
            }
        }
        stop.store(true, Ordering::Relaxed);
        common::announce(&format!("{snapshots} snapshots, {items} items, none torn"));
        assert!(items > snapshots);
    });
}
