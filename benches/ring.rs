//! Ring: one enqueue, one dequeue, batches, both sides at once, and the in-process queue of crossbeam that also overwrites its oldest.
//!
//! `cargo bench --bench ring`

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use crossbeam_queue::ArrayQueue;
use tailrace::ring::Queue;

const SIZES: [(u32, &str); 3] = [(8, "64B"), (128, "1KiB"), (512, "4KiB")];

fn one_thread(c: &mut Criterion) {
    for (words, name) in SIZES {
        let mut message = vec![7_u8; 8 * words as usize];
        let mut group = c.benchmark_group(format!("ring/{name}"));
        group.throughput(Throughput::Elements(1));
        let ring = Queue::anonymous(1024, words).unwrap();
        group.bench_function("enqueue_full", |b| {
            b.iter(|| ring.enqueue(black_box(&message)).unwrap())
        });
        group.bench_function("enqueue_dequeue", |b| {
            while ring.try_dequeue_into(&mut message).unwrap().is_some() {}
            b.iter(|| {
                ring.enqueue(black_box(&message)).unwrap();
                ring.try_dequeue_into(black_box(&mut message)).unwrap().unwrap()
            });
        });
        group.bench_function("dequeue_empty", |b| {
            b.iter(|| ring.try_dequeue_into(black_box(&mut message)).unwrap())
        });
        group.bench_function("latest", |b| {
            ring.enqueue(&message).unwrap();
            b.iter(|| ring.latest().unwrap().unwrap());
        });
    }
}

const BATCH: usize = 100;

/// Takes up to a hundred messages into one buffer, and says how many came.
fn take_batch(ring: &Queue, out: &mut Vec<u8>) -> usize {
    out.clear();
    let mut came = 0;
    loop {
        let batch = ring.try_take_many(BATCH - came).unwrap();
        if batch.len() == 0 {
            return came;
        }
        for hold in batch {
            hold.append_to(out);
            came += usize::from(hold.finish().is_some());
        }
    }
}

fn batches(c: &mut Criterion) {
    for (words, name) in SIZES {
        let message = vec![7_u8; 8 * words as usize];
        let messages = vec![message.as_slice(); BATCH];
        let mut group = c.benchmark_group(format!("ring/{name}/batches"));
        group.throughput(Throughput::Elements(BATCH as u64));
        let ring = Queue::anonymous(1024, words).unwrap();
        group.bench_function("enqueue_full", |b| {
            b.iter(|| ring.enqueue_many(black_box(&messages)).unwrap())
        });
        let mut out = Vec::new();
        group.bench_function("enqueue_dequeue", |b| {
            while take_batch(&ring, &mut out) > 0 {}
            b.iter(|| {
                ring.enqueue_many(black_box(&messages)).unwrap();
                assert_eq!(take_batch(&ring, &mut out), BATCH);
            });
        });
    }
}

/// From one thread to another, nothing overwritten: the writer is the one that is measured, and waits when half is full.
fn batches_across(c: &mut Criterion) {
    let mut group = c.benchmark_group("ring/64B/batches");
    group.throughput(Throughput::Elements(BATCH as u64));
    let stop = AtomicBool::new(false);
    let ring = Queue::anonymous(1 << 14, 8).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut out = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let _ = take_batch(&ring, &mut out);
            }
        });
        group.bench_function("across", |b| {
            b.iter(|| {
                while ring.len() > 1 << 13 {
                    std::hint::spin_loop();
                }
                ring.enqueue_many(black_box(&[&[7; 64][..]; BATCH])).unwrap();
            });
        });
        stop.store(true, Ordering::Relaxed);
    });
}

/// What the measured side costs while the other side works at full speed.
fn two_threads(c: &mut Criterion) {
    let mut group = c.benchmark_group("ring/64B/beside");
    group.throughput(Throughput::Elements(1));
    let stop = AtomicBool::new(false);
    let message = [7_u8; 64];
    let ring = Queue::anonymous(1024, 8).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut out = [0; 64];
            while !stop.load(Ordering::Relaxed) {
                let _ = ring.try_dequeue_into(&mut out).unwrap();
            }
        });
        group.bench_function("enqueue_beside_reader", |b| {
            b.iter(|| ring.enqueue(black_box(&message)).unwrap())
        });
        stop.store(true, Ordering::Relaxed);
    });
    stop.store(false, Ordering::Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                ring.enqueue(&message).unwrap();
            }
        });
        let mut out = [0; 64];
        group.bench_function("dequeue_beside_writer", |b| {
            b.iter(|| while ring.try_dequeue_into(black_box(&mut out)).unwrap().is_none() {});
        });
        stop.store(true, Ordering::Relaxed);
    });
}

fn snapshots(c: &mut Criterion) {
    let ring = Queue::anonymous(1024, 8).unwrap();
    for _ in 0..1024 {
        ring.enqueue(&[7; 64]).unwrap();
    }
    c.bench_function("ring/64B/snapshot_of_1024", |b| {
        b.iter(|| ring.snapshot().unwrap().len())
    });
}

fn baseline(c: &mut Criterion) {
    let queue = ArrayQueue::new(1024);
    c.bench_function("baseline/crossbeam_force_push_pop/64B", |b| {
        b.iter(|| {
            queue.force_push(black_box([7_u8; 64]));
            queue.pop()
        });
    });
}

criterion_group!(
    benches,
    one_thread,
    batches,
    batches_across,
    two_threads,
    snapshots,
    baseline
);
criterion_main!(benches);
