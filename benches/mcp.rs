//! mcp: a write and a read of one thread, and messages from N writers to N readers; 64 B and 4 KiB, in memory and spilling.
//!
//! `cargo bench --bench mcp`. Spilling has two buffers, so that nearly all messages go through the queue disk, which lies in
//! memory here: what is measured is the work of spilling, not a disk.

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tailrace::mcp::{Batch, Device, End, FileParameters, Mode, OpenOptions, QueueFile, System, SystemParameters, Took};
use tailrace::shared::signal::Wait;

const DEPTH: u32 = 1000;
const SIZES: [(u32, &str); 2] = [(64, "64B"), (4096, "4KiB")];
const PLACES: [(u32, &str); 2] = [(DEPTH, "memory"), (2, "spilling")];

fn system(directory: &Path) -> Arc<System> {
    System::open(directory, &SystemParameters::default()).expect("queue system")
}

fn open(system: &Arc<System>, size: u32, buffers: u32, mode: Mode) -> QueueFile {
    let parameters = FileParameters {
        name: "BENCH".into(),
        max_messages: DEPTH,
        buffers,
        record_size: size,
        family_size: 0,
        device: Device::New,
    };
    QueueFile::open(system, &parameters, mode, &OpenOptions::default()).expect("queue file")
}

fn write(file: &QueueFile, message: &[u8]) {
    let written = file.write(None, message, End::Back, Wait::Forever, || Ok(()));
    assert!(written.expect("write"));
}

/// Each writer writes its share, each reader reads to the end of file.
fn between(system: &Arc<System>, size: u32, buffers: u32, pairs: u64, messages: u64) -> Duration {
    let message = vec![7; size as usize];
    let files = |mode| {
        (0..pairs)
            .map(move |_| open(system, size, buffers, mode))
            .collect::<Vec<_>>()
    };
    let (writers, readers) = (files(Mode::Output), files(Mode::Input));
    let started = Instant::now();
    let read: usize = thread::scope(|scope| {
        for (place, writer) in writers.into_iter().enumerate() {
            let share = messages / pairs + u64::from((place as u64) < messages % pairs);
            let message = &message;
            scope.spawn(move || (0..share).for_each(|_| write(&writer, message)));
        }
        let readers = readers.into_iter().map(|reader| {
            scope.spawn(move || {
                let (mut batch, mut count) = (Batch::new(), 0);
                while let Took::Messages(more) = reader
                    .read(None, 1, &mut batch, Wait::Forever, || Ok(()))
                    .expect("read")
                {
                    count += more;
                    batch.clear();
                }
                count
            })
        });
        let readers: Vec<_> = readers.collect();
        readers.into_iter().map(|reader| reader.join().expect("reader")).sum()
    });
    assert_eq!(read as u64, messages);
    started.elapsed()
}

fn benches(criterion: &mut Criterion) {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let system = system(directory.path());
    for (size, size_name) in SIZES {
        for (buffers, place) in PLACES {
            let mut group = criterion.benchmark_group(format!("mcp/{size_name}/{place}"));
            group.throughput(Throughput::Elements(1));
            let file = open(&system, size, buffers, Mode::InputOutput);
            let message = vec![7; size as usize];
            // One message stays, so that with two buffers the next one goes to disk.
            write(&file, &message);
            let mut batch = Batch::new();
            group.bench_function("write_read", |b| {
                b.iter(|| {
                    write(&file, black_box(&message));
                    batch.clear();
                    file.read(None, 1, &mut batch, Wait::No, || Ok(())).expect("read")
                });
            });
            drop(file);
            for pairs in [1, 4] {
                group.bench_function(BenchmarkId::new("between", format!("{pairs}_to_{pairs}")), |b| {
                    b.iter_custom(|messages| between(&system, size, buffers, pairs, messages));
                });
            }
        }
    }
}

criterion_group! {
    name = all;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1));
    targets = benches
}
criterion_main!(all);
