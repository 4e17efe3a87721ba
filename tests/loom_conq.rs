//! Every interleaving of conq's operations on one queue, explored by loom: readers against each other and against an expiry, a
//! dequeue against an expiry, producers against readers.
#![cfg(loom)]

use std::sync::Arc;

use loom::thread::{self, JoinHandle};
use tailrace::conq::layout::Geometry;
use tailrace::conq::{Lease, Options, Queue};
use tailrace::shared::region::Region;

/// Slots that a model may use: two messages, and one more that a producer may claim in vain.
const SLOTS: u32 = 3;

fn queue() -> Arc<Queue> {
    let geometry = Geometry::from_parts(2, 8, 1, 64, 64, 1).unwrap();
    let (wide, narrow) = geometry.words(SLOTS);
    let region = Region::of_words(geometry.length(), &wide, &narrow);
    Arc::new(Queue::over(Arc::new(region), geometry, &Options::default(), 0).unwrap())
}

fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 100_000;
    builder.check(model);
}

fn with<T: 'static>(queue: &Arc<Queue>, body: impl FnOnce(&Queue) -> T + 'static) -> JoinHandle<T> {
    let queue = queue.clone();
    thread::spawn(move || body(&queue))
}

fn data(queue: &Queue, lease: &Lease) -> u8 {
    let mut data = Vec::new();
    assert!(queue.append_to(lease, &mut data), "its lease has not ended");
    assert_eq!(data.len(), 1);
    data[0]
}

#[test]
fn two_readers_and_an_expiry_deliver_once_more() {
    check(4, || {
        let queue = queue();
        queue.enqueue(&[7], 1).unwrap();
        let first = queue.read(10, 1).unwrap().unwrap();
        // The lease ended at 11; both readers find that out.
        let readers = [(); 2].map(|()| with(&queue, |queue| queue.read(1000, 20).unwrap()));
        let got: Vec<Lease> = readers
            .into_iter()
            .filter_map(|reader| reader.join().unwrap())
            .collect();
        assert_eq!(got.len(), 1, "one of them, not both and not none");
        assert_eq!((got[0].receipt.delivery, data(&queue, &got[0])), (2, 7));
        assert!(queue.dequeue(&first.receipt, 20).is_err(), "stale");
        queue.dequeue(&got[0].receipt, 20).unwrap();
        assert!(queue.is_empty());
    });
}

#[test]
fn a_dequeue_and_an_expiry_have_one_winner() {
    check(4, || {
        let queue = queue();
        queue.enqueue(&[7], 1).unwrap();
        let lease = queue.read(10, 1).unwrap().unwrap();
        // In time by its own clock; the reader's clock says that the lease has ended.
        let finisher = with(&queue, move |queue| queue.dequeue(&lease.receipt, 5).is_ok());
        let reader = with(&queue, |queue| queue.read(1000, 20).unwrap());
        let (finished, again) = (finisher.join().unwrap(), reader.join().unwrap());
        assert_ne!(finished, again.is_some(), "either it is done or it came back");
        if let Some(again) = again {
            assert_eq!((again.receipt.delivery, data(&queue, &again)), (2, 7));
            queue.dequeue(&again.receipt, 20).unwrap();
        }
        assert!(queue.is_empty());
        let stats = queue.stats(20).unwrap();
        assert_eq!((stats.ready, stats.leased, stats.expired, stats.repairs), (0, 0, 0, 0));
    });
}

#[test]
fn two_producers_and_a_reader_lose_nothing_and_keep_whole_messages() {
    check(3, || {
        let queue = queue();
        let producers = [1_u8, 2].map(|number| with(&queue, move |queue| queue.enqueue(&[number], 1).unwrap()));
        let early = queue.read(1000, 1).unwrap();
        let mut got: Vec<u8> = early.iter().map(|lease| data(&queue, lease)).collect();
        let ids = producers.map(|producer| producer.join().unwrap());
        assert_ne!(ids[0], ids[1]);
        while let Some(lease) = queue.read(1000, 1).unwrap() {
            got.push(data(&queue, &lease));
        }
        got.sort_unstable();
        assert_eq!(got, [1, 2]);
    });
}

/// The last place: two producers for one, while a reader makes room for the other.
#[test]
fn a_full_queue_takes_exactly_what_it_has_room_for() {
    check(3, || {
        let queue = queue();
        queue.enqueue(&[1], 1).unwrap();
        queue.enqueue(&[2], 1).unwrap();
        let lease = queue.read(1000, 1).unwrap().unwrap();
        let producer = with(&queue, |queue| queue.enqueue(&[3], 1).is_ok());
        queue.dequeue(&lease.receipt, 1).unwrap();
        let added = producer.join().unwrap();
        assert_eq!(queue.len(), 1 + u64::from(added));
        let mut got = Vec::new();
        while let Some(lease) = queue.read(1000, 1).unwrap() {
            got.push(data(&queue, &lease));
        }
        assert_eq!(got, if added { vec![2, 3] } else { vec![2] });
    });
}
