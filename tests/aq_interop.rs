//! One queue, two implementations: this crate and `tests/c/aq_peer.c`, an independent program written from the description of
//! the format alone. Both work on one file at once, in every role that the format allows.

mod common;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use common::dirs::TestDir;
use common::watchdog::Watchdog;
use tailrace::aq::{Format, Options, Queue, Reader};
use tailrace::shared::signal::Wait;

/// The compiled peer, once per run.
fn peer() -> &'static Path {
    static PEER: OnceLock<PathBuf> = OnceLock::new();
    PEER.get_or_init(|| {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("aq_peer-{}", std::process::id()));
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/aq_peer.c");
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
        let built = Command::new(compiler)
            .args(["-std=c11", "-O2", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-o"])
            .arg(&target)
            .arg(source)
            .status()
            .expect("a C compiler");
        assert!(built.success());
        target
    })
}

fn start(arguments: &[&str]) -> Child {
    Command::new(peer())
        .args(arguments)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the peer starts")
}

fn finish(child: Child) -> String {
    let output = child.wait_with_output().expect("the peer ends");
    assert!(output.status.success(), "the peer ended with {}", output.status);
    String::from_utf8(output.stdout).expect("text")
}

fn message(producer: u32, sequence: u64) -> Vec<u8> {
    let size = 16 + (sequence * 37 % 180) as usize;
    let mut bytes = Vec::with_capacity(size);
    bytes.extend((size as u32).to_le_bytes());
    bytes.extend(producer.to_le_bytes());
    bytes.extend(sequence.to_le_bytes());
    bytes.extend((16..size).map(|index| (u64::from(producer) * 31 + sequence + index as u64) as u8));
    bytes
}

/// Every option set that a writer of one segment can use.
fn option_sets() -> Vec<Options> {
    (0..8).map(|bits| Options::from_bits(bits).unwrap()).collect()
}

const SIZE: usize = 1 << 14;
const COUNT: u64 = 20_000;

fn ours(dir: &TestDir, options: Options) -> PathBuf {
    let path = dir.queue().join("q");
    let format = Format {
        page_size: 32,
        commit_timeout_ms: 3_600_000,
        options,
    };
    Queue::create(&path, SIZE, &format).unwrap();
    path
}

fn theirs(dir: &TestDir, options: Options) -> PathBuf {
    let path = dir.queue().join("q");
    let arguments = [
        "format",
        path.to_str().unwrap(),
        &SIZE.to_string(),
        "5",
        "3600000",
        &options.bits().to_string(),
    ];
    finish(start(&arguments));
    path
}

/// Reads so many messages and checks each producer's order.
fn read(reader: &mut Reader, count: u64) -> HashMap<u32, u64> {
    let mut next: HashMap<u32, u64> = HashMap::new();
    let wait = Wait::from_timeout(Some(Duration::from_secs(20)));
    for _ in 0..count {
        let bytes = reader
            .take_within(
                wait,
                || Ok(()),
                |taken| {
                    let mut bytes = Vec::new();
                    taken.append_to(&mut bytes);
                    Ok(bytes)
                },
            )
            .unwrap()
            .expect("a message comes");
        let producer = u32::from_le_bytes(bytes[4..8].try_into().unwrap());
        let sequence = next.entry(producer).or_default();
        assert_eq!(bytes, message(producer, *sequence));
        *sequence += 1;
    }
    next
}

fn write(queue: &Queue, producer: u32, count: u64) {
    let writer = queue.writer().unwrap();
    for sequence in 0..count {
        writer
            .put(&message(producer, sequence), Wait::Forever, || Ok(()))
            .unwrap();
    }
}

/// Our reader; their writers beside ours.
#[test]
fn their_writers_beside_ours_into_our_reader() {
    let _dog = Watchdog::start("their writers", Duration::from_secs(300));
    for options in option_sets() {
        // Whoever formatted it: with our trailer, and without any.
        for formatted_by_us in [true, false] {
            let dir = TestDir::shm();
            let path = if formatted_by_us {
                ours(&dir, options)
            } else {
                theirs(&dir, options)
            };
            let queue = Queue::open(&path).unwrap();
            assert_eq!(queue.info().unwrap().has_trailer, formatted_by_us);
            let mut reader = queue.reader().unwrap();
            let count = COUNT / 8;
            let (text, number) = (path.to_str().unwrap().to_owned(), count.to_string());
            let writers: Vec<Child> = ["1", "2"].map(|id| start(&["write", &text, id, &number])).into();
            let next = std::thread::scope(|scope| {
                scope.spawn(|| write(&queue, 3, count));
                read(&mut reader, 3 * count)
            });
            writers.into_iter().for_each(|writer| drop(finish(writer)));
            assert_eq!(next, HashMap::from([(1, count), (2, count), (3, count)]), "{options:?}");
            assert!(reader.retrieve().unwrap().is_none());
        }
    }
}

/// Their reader, which formatted the region; our writers beside theirs.
#[test]
fn our_writers_beside_theirs_into_their_reader() {
    let _dog = Watchdog::start("their reader", Duration::from_secs(300));
    for options in option_sets() {
        let dir = TestDir::shm();
        let path = theirs(&dir, options);
        let queue = Queue::open(&path).unwrap();
        let count = COUNT / 8;
        let (text, number) = (path.to_str().unwrap(), count.to_string());
        let reader = start(&["read", text, &(2 * count).to_string()]);
        let writer = start(&["write", text, "1", &number]);
        write(&queue, 2, count);
        finish(writer);
        let mut next: HashMap<u32, u64> = HashMap::new();
        for line in finish(reader).lines() {
            let (producer, sequence) = line.split_once(' ').unwrap();
            let expected = next.entry(producer.parse().unwrap()).or_default();
            assert_eq!(sequence.parse::<u64>().unwrap(), *expected);
            *expected += 1;
        }
        assert_eq!(next, HashMap::from([(1, count), (2, count)]), "{options:?}");
    }
}

/// Either side shows what the other formatted and left in the ring.
#[test]
fn snapshots_of_both_sides_agree() {
    let _dog = Watchdog::start("snapshots of both", Duration::from_secs(120));
    for options in option_sets() {
        for formatted_by_us in [true, false] {
            let dir = TestDir::shm();
            let path = if formatted_by_us {
                ours(&dir, options)
            } else {
                theirs(&dir, options)
            };
            let text = path.to_str().unwrap();
            let queue = Queue::open(&path).unwrap();
            let (writer, mut reader) = (queue.writer().unwrap(), queue.reader().unwrap());
            for sequence in 0..400 {
                writer.try_put(&message(1, sequence)).unwrap();
                if sequence % 7 > 0 {
                    reader.take(|_| Ok(())).unwrap();
                }
            }
            writer.try_claim(50).unwrap().unwrap().abandon();
            finish(start(&["write", text, "2", "1"]));
            let shown = queue.snapshot().unwrap();
            let ours: Vec<String> = shown
                .items()
                .iter()
                .map(|item| {
                    let flags = match (item.item().is_committed(), item.is_released()) {
                        (true, false) => ["CM-"],
                        (true, true) => ["-M-"],
                        (false, _) => ["C--"],
                    };
                    let first = if item.item().is_committed() {
                        item.bytes()[0].to_string()
                    } else {
                        "?".into()
                    };
                    format!("{} {} {first}", flags[0], item.item().capacity())
                })
                .collect();
            let theirs: Vec<String> = finish(start(&["snapshot", text]))
                .lines()
                .map(|line| {
                    let (state, first) = line.rsplit_once(' ').unwrap();
                    if line.starts_with("C--") {
                        format!("{state} ?")
                    } else {
                        format!("{state} {first}")
                    }
                })
                .collect();
            assert!(ours.len() > 20);
            assert_eq!(ours, theirs, "{options:?}");
        }
    }
}

#[test]
fn both_sides_compute_the_same_geometry() {
    let _dog = Watchdog::start("geometry", Duration::from_secs(120));
    for options in option_sets() {
        for (shift, size) in [
            (0, 300),
            (1, 146),
            (2, 1003),
            (4, 2000),
            (6, 5000),
            (7, 70_001),
            (10, 1 << 20),
        ] {
            let dir = TestDir::shm();
            let path = dir.queue().join("q");
            let text = path.to_str().unwrap();
            finish(start(&[
                "format",
                text,
                &size.to_string(),
                &shift.to_string(),
                "500",
                &options.bits().to_string(),
            ]));
            let seen = Queue::open(&path).unwrap().geometry().unwrap();
            let format = Format {
                page_size: 1 << shift,
                commit_timeout_ms: 500,
                options,
            };
            let own = Queue::anonymous(size, &format).unwrap();
            assert_eq!(seen, own.geometry().unwrap(), "shift {shift} size {size} {options:?}");
            let mut bytes = [vec![0; size], vec![0; size]];
            let (mut a, mut b) = (Vec::new(), Vec::new());
            Queue::open(&path).unwrap().region().append_to(0, size, &mut a);
            own.region().append_to(0, size, &mut b);
            bytes[0].copy_from_slice(&a);
            bytes[1].copy_from_slice(&b);
            assert_eq!(bytes[0], bytes[1], "the same bytes");
        }
    }
}
