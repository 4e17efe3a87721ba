//! Ring: one enqueue, one dequeue, both at once, and the in-process queue of crossbeam that also overwrites its oldest.
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

criterion_group!(benches, one_thread, two_threads, snapshots, baseline);
criterion_main!(benches);
