//! What the ground floor costs: copies in and out of a region, an uncontended lock, a notification that nobody awaits; and
//! the in-process queues that every figure of ours is read against.

use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::{Arc, Mutex};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use crossbeam_queue::ArrayQueue;
use tailrace::shared::lock::Lock;
use tailrace::shared::region::Region;
use tailrace::shared::roster::{Roster, Table};
use tailrace::shared::signal::{Signal, Wait};

const TABLE: Table = Table::at(64);

fn copies(c: &mut Criterion) {
    let region = Region::heap(1 << 20).unwrap();
    for size in [64, 4096, 65536] {
        let mut bytes = vec![7_u8; size];
        let mut group = c.benchmark_group(format!("region/{size}B"));
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_function("copy_in", |b| b.iter(|| region.copy_in(64, black_box(&bytes))));
        group.bench_function("copy_out", |b| b.iter(|| region.copy_out(64, black_box(&mut bytes))));
        group.bench_function("memcpy", |b| {
            let mut target = vec![0_u8; size];
            b.iter(|| target.copy_from_slice(black_box(&bytes)));
        });
    }
}

fn words(c: &mut Criterion) {
    let region = Arc::new(Region::heap(64 + TABLE.length()).unwrap());
    let roster = Roster::join(&region, TABLE, None).unwrap();
    let lock = Lock::new(region.u64(0), &roster);
    c.bench_function("lock/acquire_release", |b| {
        b.iter(|| drop(lock.acquire(Wait::No, |_| {}).unwrap()))
    });
    let signal = Signal::new(region.u32(8));
    c.bench_function("signal/notify_nobody", |b| b.iter(|| signal.notify_one()));
}

fn baselines(c: &mut Criterion) {
    let message = [7_u8; 64];
    let locked: Mutex<VecDeque<[u8; 64]>> = Mutex::new(VecDeque::with_capacity(1024));
    c.bench_function("baseline/mutex_vecdeque/64B", |b| {
        b.iter(|| {
            locked.lock().unwrap().push_back(black_box(message));
            locked.lock().unwrap().pop_front()
        });
    });
    let lock_free = ArrayQueue::new(1024);
    c.bench_function("baseline/crossbeam_array_queue/64B", |b| {
        b.iter(|| {
            lock_free.push(black_box(message)).unwrap();
            lock_free.pop()
        });
    });
}

criterion_group!(benches, copies, words, baselines);
criterion_main!(benches);
