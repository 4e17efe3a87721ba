//! Every interleaving of small rings, explored by loom: `make test` runs it with `--cfg loom`.
//!
//! Messages have two words that must be equal: a torn one shows. At the end of every execution each message has exactly one
//! fate, and the counters say which.
#![cfg(loom)]

use std::sync::Arc;

use loom::thread;
use tailrace::ring::Queue;
use tailrace::shared::region::Region;
use tailrace::shared::signal::Wait;

const WORDS: u32 = 2;
const PLACES: u32 = 4;

fn model(preemptions: usize, check: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    builder.check(check);
}

fn ring(max_len: u32) -> Arc<Region> {
    Queue::model(max_len, WORDS, PLACES).unwrap()
}

fn message(number: u8) -> Vec<u8> {
    vec![number; 8 * WORDS as usize]
}

/// The number of a whole message.
fn number(data: &[u8]) -> u8 {
    assert!(data.iter().all(|byte| *byte == data[0]), "torn: {data:?}");
    data[0]
}

fn take(ring: &Queue) -> Option<u8> {
    ring.try_dequeue().unwrap().map(|message| number(&message.data))
}

fn drain(ring: &Queue) -> Vec<u8> {
    std::iter::from_fn(|| take(ring)).collect()
}

/// `delivered` messages went to readers, the rest is in the ring or counted.
fn assert_every_message_has_one_fate(ring: &Queue, delivered: usize) {
    let counters = ring.counters().unwrap();
    let gone = counters.overwritten + counters.abandoned + counters.lost_in_hands + counters.discarded;
    assert_eq!(
        counters.enqueued,
        delivered as u64 + gone + counters.queued,
        "{counters:?}, {delivered} delivered"
    );
}

#[test]
fn a_reader_beside_a_writer() {
    model(3, || {
        let region = ring(2);
        let writer = Queue::model_join(&region).unwrap();
        let reader = Queue::model_join(&region).unwrap();
        let reading = thread::spawn(move || [take(&reader), take(&reader)]);
        writer.enqueue(&message(1)).unwrap();
        writer.enqueue(&message(2)).unwrap();
        let mut got: Vec<u8> = reading.join().unwrap().into_iter().flatten().collect();
        got.extend(drain(&writer));
        assert_eq!(got, [1, 2], "nothing is lost or out of order while there is room");
        assert_every_message_has_one_fate(&writer, 2);
    });
}

#[test]
fn two_writers_beside_each_other() {
    model(3, || {
        let region = ring(2);
        let one = Queue::model_join(&region).unwrap();
        let two = Queue::model_join(&region).unwrap();
        let other = thread::spawn(move || assert!(two.enqueue(&message(2)).is_ok()));
        one.enqueue(&message(1)).unwrap();
        other.join().unwrap();
        let mut got = drain(&one);
        got.sort_unstable();
        assert_eq!(got, [1, 2]);
        assert_every_message_has_one_fate(&one, 2);
    });
}

/// One slot: the writer needs exactly the slot that the reader copies from.
#[test]
fn an_overwriting_writer_never_tears_a_reader() {
    model(3, || {
        let region = ring(1);
        let writer = Queue::model_join(&region).unwrap();
        let reader = Queue::model_join(&region).unwrap();
        writer.enqueue(&message(1)).unwrap();
        let reading = thread::spawn(move || take(&reader));
        writer.enqueue(&message(2)).unwrap();
        let first = reading.join().unwrap();
        let rest = drain(&writer);
        let delivered = usize::from(first.is_some()) + rest.len();
        assert!(first != Some(2) || rest.is_empty());
        assert_every_message_has_one_fate(&writer, delivered);
    });
}

/// Threads of one handle sign with the same identity: a reader whose slot went away must not take the next one's for its own.
#[test]
fn two_readers_of_one_handle_are_told_apart() {
    model(3, || {
        let region = ring(1);
        let writer = Queue::model_join(&region).unwrap();
        let readers = Arc::new(Queue::model_join(&region).unwrap());
        writer.enqueue(&message(1)).unwrap();
        let slow = {
            let readers = readers.clone();
            thread::spawn(move || take(&readers))
        };
        writer.enqueue(&message(2)).unwrap();
        let quick = take(&readers);
        let slow = slow.join().unwrap();
        let got = [slow, quick]
            .into_iter()
            .flatten()
            .chain(drain(&writer))
            .collect::<Vec<_>>();
        assert!(got == [2] || got == [1, 2], "{slow:?} {quick:?} {got:?}");
        assert_every_message_has_one_fate(&writer, got.len());
    });
}

#[test]
fn a_snapshot_beside_an_overwriting_writer_is_never_torn() {
    model(3, || {
        let region = ring(1);
        let writer = Queue::model_join(&region).unwrap();
        let looker = Queue::model_join(&region).unwrap();
        writer.enqueue(&message(1)).unwrap();
        let looking = thread::spawn(move || {
            let seen = looker.snapshot().unwrap();
            let sequence = u64::from(seen.first().map_or(1, |only| number(&only.data))) - 1;
            assert!(seen.len() <= 1 && seen.iter().all(|only| only.sequence == Some(sequence)));
        });
        writer.enqueue(&message(2)).unwrap();
        looking.join().unwrap();
        assert_eq!(drain(&writer), [2]);
        assert_every_message_has_one_fate(&writer, 1);
    });
}

#[test]
fn two_survivors_of_a_dead_writer_count_it_once() {
    model(2, || {
        let region = ring(2);
        Queue::model_join(&region).unwrap().model_die_writing();
        let one = Queue::model_join(&region).unwrap();
        let two = Queue::model_join(&region).unwrap();
        let other = thread::spawn(move || take(&two));
        one.enqueue(&message(1)).unwrap();
        let first = other.join().unwrap();
        let delivered = usize::from(first.is_some()) + drain(&one).len();
        assert_eq!(delivered, 1, "the living message is delivered once");
        assert_eq!(one.counters().unwrap().abandoned, 1);
        assert_every_message_has_one_fate(&one, delivered);
    });
}

#[test]
fn two_survivors_of_a_dead_reader_count_it_once() {
    model(2, || {
        let region = ring(1);
        let one = Queue::model_join(&region).unwrap();
        one.enqueue(&message(1)).unwrap();
        Queue::model_join(&region).unwrap().model_die_reading();
        let two = Queue::model_join(&region).unwrap();
        let other = thread::spawn(move || two.recover().unwrap());
        one.enqueue(&message(2)).unwrap();
        other.join().unwrap();
        assert_eq!(drain(&one), [2]);
        assert_eq!(one.counters().unwrap().lost_in_hands, 1);
        assert_every_message_has_one_fate(&one, 1);
    });
}

/// Time stands still in the model: a wake-up that is lost is a deadlock, which loom reports.
#[test]
fn a_waiting_reader_is_always_woken() {
    model(3, || {
        let region = ring(1);
        let writer = Queue::model_join(&region).unwrap();
        let reader = Queue::model_join(&region).unwrap();
        let waiting = thread::spawn(move || number(&reader.dequeue(Wait::Forever).unwrap().data));
        writer.enqueue(&message(1)).unwrap();
        assert_eq!(waiting.join().unwrap(), 1);
    });
}

/// The least that takes two at a time.
const BATCH_SLOTS: u32 = 8;

fn put_two(ring: &Queue, first: u8) {
    ring.enqueue_many(&[&message(first), &message(first + 1)]).unwrap();
}

fn take_two(ring: &Queue) -> Vec<u8> {
    let messages = ring.try_dequeue_many(2).unwrap();
    messages.iter().map(|message| number(&message.data)).collect()
}

#[test]
fn a_reader_of_batches_beside_a_writer_of_batches() {
    model(3, || {
        let region = ring(BATCH_SLOTS);
        let writer = Queue::model_join(&region).unwrap();
        let reader = Queue::model_join(&region).unwrap();
        let reading = thread::spawn(move || [take_two(&reader), take_two(&reader)].concat());
        put_two(&writer, 1);
        let mut got = reading.join().unwrap();
        got.extend(drain(&writer));
        assert_eq!(got, [1, 2], "nothing is lost or out of order while there is room");
        assert_every_message_has_one_fate(&writer, 2);
    });
}

#[test]
fn a_batch_that_overwrites_never_tears_a_reader_of_batches() {
    model(3, || {
        let region = ring(BATCH_SLOTS);
        let writer = Queue::model_join(&region).unwrap();
        let reader = Queue::model_join(&region).unwrap();
        for first in [1, 3, 5, 7] {
            put_two(&writer, first);
        }
        let reading = thread::spawn(move || take_two(&reader));
        put_two(&writer, 9);
        let mut got = reading.join().unwrap();
        got.extend(drain(&writer));
        assert!(got.is_sorted() && got.ends_with(&[5, 6, 7, 8, 9, 10]), "{got:?}");
        assert_every_message_has_one_fate(&writer, got.len());
    });
}

#[test]
fn a_waiting_reader_is_always_woken_by_a_batch() {
    model(3, || {
        let region = ring(1);
        let writer = Queue::model_join(&region).unwrap();
        let reader = Queue::model_join(&region).unwrap();
        let waiting = thread::spawn(move || number(&reader.dequeue(Wait::Forever).unwrap().data));
        writer.enqueue_many(&[&message(1)]).unwrap();
        assert_eq!(waiting.join().unwrap(), 1);
    });
}
