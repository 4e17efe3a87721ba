//! The allocating queue on the original's own benchmark lines: 4-byte items in a ring of 1,048,575 pages of 4 bytes, claim and
//! commit with one and two threads, retrieve and release, the full pipeline with one to three producers; then 64-byte and
//! 4-KiB items, and two processes over one file.
//!
//! `cargo bench --bench aq`

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tailrace::aq::{Format, Queue, Reader, Verdict, Writer};
use tailrace::shared::signal::Wait;

/// What the original's benchmark uses.
const PAGES: usize = 1_048_575;

fn format(page_size: u64) -> Format {
    Format {
        page_size,
        commit_timeout_ms: 60_000,
        ..Format::default()
    }
}

fn original_ring() -> Queue {
    let queue = Queue::anonymous(52 + 8 * PAGES, &format(4)).unwrap();
    assert_eq!(queue.geometry().unwrap().page_count as usize, PAGES);
    queue
}

fn fill(writer: &Writer, count: u64) {
    for number in 0..count {
        let mut claim = writer.try_claim(4).unwrap().expect("there is room");
        claim.write(None, black_box(&(number as u32).to_le_bytes())).unwrap();
        claim.commit().unwrap();
    }
}

fn empty(reader: &mut Reader, count: u64) {
    for _ in 0..count {
        let item = reader.retrieve().unwrap().expect("an item");
        reader.release(black_box(item)).unwrap();
    }
}

/// Splits `total` into rounds that fit into the ring; `round` measures one of them.
fn in_rounds(total: u64, mut round: impl FnMut(u64) -> Duration) -> Duration {
    let most = PAGES as u64 - 1_000;
    let mut left = total;
    let mut time = Duration::ZERO;
    while left > 0 {
        let count = left.min(most);
        time += round(count);
        left -= count;
    }
    time
}

fn original_lines(c: &mut Criterion) {
    let mut group = c.benchmark_group("aq/original");
    group.throughput(Throughput::Elements(1));
    let queue = original_ring();
    let writer = queue.writer().unwrap();
    let mut reader = queue.reader().unwrap();
    group.bench_function("claim_commit/1_thread", |b| {
        b.iter_custom(|total| {
            in_rounds(total, |count| {
                let start = Instant::now();
                fill(&writer, count);
                let time = start.elapsed();
                empty(&mut reader, count);
                time
            })
        });
    });
    group.bench_function("claim_commit/2_threads", |b| {
        b.iter_custom(|total| {
            in_rounds(total, |count| {
                let half = count.div_ceil(2);
                let barrier = Barrier::new(3);
                let time = std::thread::scope(|scope| {
                    for _ in 0..2 {
                        scope.spawn(|| {
                            let writer = queue.writer().unwrap();
                            barrier.wait();
                            fill(&writer, half);
                            barrier.wait();
                        });
                    }
                    barrier.wait();
                    let start = Instant::now();
                    barrier.wait();
                    start.elapsed()
                });
                empty(&mut reader, 2 * half);
                time
            })
        });
    });
    group.bench_function("retrieve_release", |b| {
        b.iter_custom(|total| {
            in_rounds(total, |count| {
                fill(&writer, count);
                let start = Instant::now();
                empty(&mut reader, count);
                start.elapsed()
            })
        });
    });
    group.bench_function("take_many_100", |b| {
        b.iter_custom(|total| {
            in_rounds(total, |count| {
                fill(&writer, count);
                let start = Instant::now();
                let mut left = count;
                while left > 0 {
                    let most = 100.min(left) as usize;
                    left -= reader
                        .take_many(most, |message| {
                            black_box(message.size());
                            Ok(Verdict::Taken)
                        })
                        .unwrap() as u64;
                }
                start.elapsed()
            })
        });
    });
    drop(reader);
    for producers in 1..=3 {
        group.bench_function(format!("pipeline/{producers}_producers"), |b| {
            b.iter_custom(|total| pipeline(&queue, producers, total, 4));
        });
    }
}

/// All of it at once: producers put, one consumer takes.
fn pipeline(queue: &Queue, producers: u64, total: u64, size: usize) -> Duration {
    let each = total.div_ceil(producers);
    let barrier = Barrier::new(producers as usize + 1);
    std::thread::scope(|scope| {
        for _ in 0..producers {
            scope.spawn(|| {
                let writer = queue.writer().unwrap();
                let message = vec![7; size];
                barrier.wait();
                for _ in 0..each {
                    writer.put(&message, Wait::Forever, || Ok(())).unwrap();
                }
            });
        }
        let mut reader = queue.reader().unwrap();
        let mut out = Vec::with_capacity(size);
        barrier.wait();
        let start = Instant::now();
        let mut left = producers * each;
        while left > 0 {
            let taken = reader.take_within(
                Wait::Forever,
                || Ok(()),
                |message| {
                    out.clear();
                    message.append_to(&mut out);
                    Ok(())
                },
            );
            left -= u64::from(taken.unwrap().is_some());
        }
        start.elapsed()
    })
}

fn sizes(c: &mut Criterion) {
    for (size, name) in [(64, "64B"), (4096, "4KiB")] {
        let mut group = c.benchmark_group(format!("aq/{name}"));
        group.throughput(Throughput::Bytes(size as u64));
        let queue = Queue::anonymous(16 << 20, &format(64)).unwrap();
        let writer = queue.writer().unwrap();
        let message = vec![7; size];
        {
            let mut reader = queue.reader().unwrap();
            let mut out = Vec::with_capacity(size);
            group.bench_function("put_take", |b| {
                b.iter(|| {
                    assert!(writer.try_put(black_box(&message)).unwrap());
                    out.clear();
                    reader
                        .take(|message| {
                            message.append_to(&mut out);
                            Ok(())
                        })
                        .unwrap()
                        .unwrap();
                });
            });
        }
        for producers in 1..=3 {
            group.bench_function(format!("pipeline/{producers}_producers"), |b| {
                b.iter_custom(|total| pipeline(&queue, producers, total, size));
            });
        }
        group.bench_function("two_processes", |b| b.iter_custom(|total| two_processes(total, size)));
    }
}

const CHILD: &str = "TAILRACE_BENCH_AQ_CHILD";

/// Another process puts, this one takes, over one file in memory.
fn two_processes(total: u64, size: usize) -> Duration {
    let path = PathBuf::from(format!("/dev/shm/tailrace-bench-aq-{}", std::process::id()));
    let queue = Queue::create(&path, 16 << 20, &format(64)).unwrap();
    let mut reader = queue.reader().unwrap();
    let mut child: Child = Command::new(std::env::current_exe().unwrap())
        .env(CHILD, format!("{} {size} {total}", path.display()))
        .spawn()
        .unwrap();
    let mut out = Vec::with_capacity(size);
    let mut take = |reader: &mut Reader| {
        let taken = reader.take_within(
            Wait::Forever,
            || Ok(()),
            |message| {
                out.clear();
                message.append_to(&mut out);
                Ok(())
            },
        );
        taken.unwrap().unwrap();
    };
    // The first message says that the child is there.
    take(&mut reader);
    let start = Instant::now();
    for _ in 0..total {
        take(&mut reader);
    }
    let time = start.elapsed();
    assert!(child.wait().unwrap().success());
    std::fs::remove_file(&path).unwrap();
    time
}

fn put_as_child(order: &str) {
    let mut words = order.split(' ');
    let mut next = || words.next().expect("path, size and count");
    let queue = Queue::open(Path::new(next())).unwrap();
    let message = vec![7; next().parse().unwrap()];
    let total: u64 = next().parse().unwrap();
    let writer = queue.writer().unwrap();
    for _ in 0..=total {
        writer.put(&message, Wait::Forever, || Ok(())).unwrap();
    }
}

fn all(c: &mut Criterion) {
    if let Ok(order) = std::env::var(CHILD) {
        put_as_child(&order);
        std::process::exit(0);
    }
    original_lines(c);
    sizes(c);
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10).measurement_time(Duration::from_secs(2)).warm_up_time(Duration::from_millis(500));
    targets = all
}
criterion_main!(benches);
