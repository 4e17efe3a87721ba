//! conq: the document's two performance tests with its thread counts, the enqueue-only line, and single operations.
//!
//! The figure of a line is operations per second, counted as the document does: an enqueue, a read and a dequeue are three.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tailrace::conq::{Manager, Options};

const PAIRS: u64 = 250;
const TRIALS: u64 = 3000;
const LEASE: Duration = Duration::from_secs(60);
const MESSAGE: [u8; 64] = [7; 64];

fn managers() -> Vec<(&'static str, Manager, Option<tempfile::TempDir>)> {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let host = Manager::open(dir.path()).expect("manager");
    vec![("process", Manager::of_this_process(), None), ("host", host, Some(dir))]
}

/// IntraQueueMultiThreadTest: 250 producers and 250 consumers on one queue, 3000 messages each.
fn one_queue(manager: &Manager) -> Duration {
    let id = manager.create_queue("intra", &Options::default()).expect("queue");
    let started = Instant::now();
    thread::scope(|scope| {
        for _ in 0..PAIRS {
            scope.spawn(|| {
                for _ in 0..TRIALS {
                    let id = manager.get_queue("intra").expect("queue");
                    manager.enqueue(id, &MESSAGE).expect("room");
                }
            });
            scope.spawn(|| {
                for _ in 0..TRIALS {
                    let id = manager.get_queue("intra").expect("queue");
                    let message = loop {
                        match manager.read(id, LEASE).expect("read") {
                            Some(message) => break message,
                            None => thread::yield_now(),
                        }
                    };
                    manager.dequeue(id, &message.receipt).expect("dequeue");
                }
            });
        }
    });
    let took = started.elapsed();
    manager.delete_queue(id).expect("delete");
    took
}

/// InterQueueMultiThreadTest: 500 threads, each with a queue of its own.
fn queue_per_thread(manager: &Manager) -> Duration {
    let started = Instant::now();
    thread::scope(|scope| {
        for number in 0..2 * PAIRS {
            scope.spawn(move || {
                let name = format!("inter-{number}");
                manager.create_queue(&name, &Options::default()).expect("queue");
                let id = manager.get_queue(&name).expect("queue");
                for _ in 0..TRIALS {
                    manager.enqueue(id, &MESSAGE).expect("room");
                    let message = manager.read(id, LEASE).expect("read").expect("own message");
                    manager.dequeue(id, &message.receipt).expect("dequeue");
                }
                manager.delete_queue(id).expect("delete");
            });
        }
    });
    started.elapsed()
}

/// The document's third figure: 500 threads that only enqueue.
fn enqueue_only(manager: &Manager) -> Duration {
    let options = Options {
        max_messages: 2 * (PAIRS * TRIALS) as u32,
        ..Options::default()
    };
    let id = manager.create_queue("enqueue", &options).expect("queue");
    let started = Instant::now();
    thread::scope(|scope| {
        for _ in 0..2 * PAIRS {
            scope.spawn(|| {
                for _ in 0..TRIALS {
                    manager.enqueue(id, &MESSAGE).expect("room");
                }
            });
        }
    });
    let took = started.elapsed();
    manager.delete_queue(id).expect("delete");
    took
}

/// One thread's enqueue, read and dequeue while another does the same: the price of sharing.
fn beside_another(manager: &Manager, rounds: u64) -> Duration {
    let id = manager.create_queue("pair", &Options::default()).expect("queue");
    let over = Arc::new(AtomicBool::new(false));
    let others = AtomicU64::new(0);
    let cycle = || {
        manager.enqueue(id, &MESSAGE).expect("room");
        if let Some(message) = manager.read(id, LEASE).expect("read") {
            manager.dequeue(id, &message.receipt).expect("dequeue");
        }
    };
    let took = thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                cycle();
                others.fetch_add(1, Ordering::Relaxed);
            }
        });
        let started = Instant::now();
        (0..rounds).for_each(|_| cycle());
        let took = started.elapsed();
        over.store(true, Ordering::Relaxed);
        took
    });
    manager.delete_queue(id).expect("delete");
    took
}

fn benches(criterion: &mut Criterion) {
    for (kind, manager, _dir) in managers() {
        let mut group = criterion.benchmark_group("conq");
        let repeat = |rounds: u64, run: &dyn Fn() -> Duration| (0..rounds).map(|_| run()).sum();
        group.sample_size(10).measurement_time(Duration::from_secs(8));

        group.throughput(Throughput::Elements(3 * PAIRS * TRIALS));
        group.bench_function(BenchmarkId::new("one_queue_500_threads", kind), |b| {
            b.iter_custom(|rounds| repeat(rounds, &|| one_queue(&manager)));
        });
        // As the document counts: create, get and delete once, the other three 3000 times.
        group.throughput(Throughput::Elements(2 * PAIRS * (3 * TRIALS + 3)));
        group.bench_function(BenchmarkId::new("queue_per_thread_500_threads", kind), |b| {
            b.iter_custom(|rounds| repeat(rounds, &|| queue_per_thread(&manager)));
        });
        group.throughput(Throughput::Elements(2 * PAIRS * TRIALS));
        group.bench_function(BenchmarkId::new("enqueue_only_500_threads", kind), |b| {
            b.iter_custom(|rounds| repeat(rounds, &|| enqueue_only(&manager)));
        });

        group.sample_size(50).measurement_time(Duration::from_secs(3));
        group.throughput(Throughput::Elements(1));
        let id = manager.create_queue("cycle", &Options::default()).expect("queue");
        group.bench_function(BenchmarkId::new("cycle_64B", kind), |b| {
            b.iter(|| {
                manager.enqueue(id, &MESSAGE).expect("room");
                let message = manager.read(id, LEASE).expect("read").expect("own message");
                manager.dequeue(id, &message.receipt).expect("dequeue");
            });
        });
        manager.delete_queue(id).expect("delete");
        group.bench_function(BenchmarkId::new("cycle_64B_beside_another", kind), |b| {
            b.iter_custom(|rounds| beside_another(&manager, rounds));
        });
        group.finish();
    }
}

criterion_group!(all, benches);
criterion_main!(all);
