//! qewqew: round trips and puts in the three sync modes, beside the ordered pwrite+fdatasync that they come down to.
//!
//! `cargo bench --bench qewqew`, on the disk of the build directory.

use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tailrace::qewqew::{DurableQueue, Options, SyncMode};

const SIZES: [(usize, &str); 2] = [(64, "64B"), (1024, "1KiB")];
const BATCH: usize = 100;

fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on the disk")
}

fn open(dir: &Path, sync: SyncMode, crc: bool) -> DurableQueue {
    let options = Options {
        sync,
        crc,
        ..Options::default()
    };
    DurableQueue::open(&dir.join("q"), options).expect("queue")
}

/// Puts and gets by turns (the chunk starts over), and with a backlog (chunks come and go).
fn unsynced(c: &mut Criterion) {
    for (size, name) in SIZES {
        let message = vec![7_u8; size];
        let mut group = c.benchmark_group(format!("qewqew/never/{name}"));
        group.throughput(Throughput::Elements(1));
        for crc in [false, true] {
            let with = if crc { "_crc" } else { "" };
            let dir = directory();
            let queue = open(dir.path(), SyncMode::Never, crc);
            group.bench_function(format!("by_turns{with}"), |b| {
                b.iter(|| {
                    queue.enqueue(black_box(&message)).expect("room");
                    queue.dequeue().expect("dequeue").expect("own message")
                });
            });
            for _ in 0..20_000 {
                queue.enqueue(&message).expect("room");
            }
            group.bench_function(format!("with_backlog{with}"), |b| {
                b.iter(|| {
                    queue.enqueue(black_box(&message)).expect("room");
                    queue.dequeue().expect("dequeue").expect("own message")
                });
            });
        }
    }
}

/// One put and its syncs; what is enqueued is removed between the samples.
fn synced(c: &mut Criterion) {
    for (size, name) in SIZES {
        let message = vec![7_u8; size];
        let batch = vec![message.clone(); BATCH];
        for (count, per) in [(1, "1"), (BATCH, "100")] {
            let mut group = c.benchmark_group(format!("qewqew/synced/{name}/{per}_per_sync"));
            group.throughput(Throughput::Elements(count as u64));
            group.sample_size(20).measurement_time(Duration::from_secs(3));
            for (crc, line) in [(false, "always"), (true, "always_crc")] {
                let dir = directory();
                let queue = open(dir.path(), SyncMode::Always, crc);
                group.bench_function(line, |b| {
                    b.iter_custom(|rounds| {
                        queue.enqueue(&message).expect("the chunk is there");
                        let started = Instant::now();
                        for _ in 0..rounds {
                            queue.enqueue_many(&batch[..count]).expect("room");
                        }
                        let took = started.elapsed();
                        while !queue.dequeue_many(1000).expect("dequeue").is_empty() {}
                        took
                    });
                });
            }
            let dir = directory();
            let queue = open(dir.path(), SyncMode::Group, false);
            group.bench_function("group", |b| {
                b.iter_custom(|rounds| {
                    queue.enqueue(&message).expect("the chunk is there");
                    let started = Instant::now();
                    for _ in 0..rounds {
                        for message in &batch[..count] {
                            queue.enqueue(message).expect("room");
                        }
                        queue.sync().expect("sync");
                    }
                    let took = started.elapsed();
                    while !queue.dequeue_many(1000).expect("dequeue").is_empty() {}
                    took
                });
            });
            for (writes, line) in [(1, "limit_one"), (2, "limit_two")] {
                let dir = directory();
                let file = File::create(dir.path().join("limit")).expect("file");
                let bytes = vec![7_u8; (size + 2) * count];
                let length = 4 << 20;
                file.write_all_at(&vec![0; length], 0).expect("room");
                file.sync_all().expect("sync");
                let mut at = 10;
                group.bench_function(line, |b| {
                    b.iter(|| {
                        file.write_all_at(&bytes, at).expect("write");
                        file.sync_data().expect("sync");
                        if writes == 2 {
                            file.write_all_at(b"12345678", 0).expect("write");
                            file.sync_data().expect("sync");
                        }
                        at = (at + bytes.len() as u64) % (length - bytes.len()) as u64;
                    });
                });
            }
        }
    }
}

criterion_group!(benches, unsynced, synced);
criterion_main!(benches);
