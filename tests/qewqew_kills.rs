//! Random kill -9 of producers and consumers, in every mode: nothing acknowledged is lost, nothing is torn or invented, and
//! those who live go on.

mod common;

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use common::dirs::TestDir;
use common::oracle::{Oracle, Promise};
use common::watchdog::Watchdog;
use common::worker::{Args, Spawn, Worker};
use common::{announce, payload, rounds, wait_until};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tailrace::qewqew::{DurableQueue, Options, Role, SyncMode};

const PROGRESS: usize = 0;
/// A survivor may have to take over a lock, which takes a millisecond, and to wait for its turn while the other one syncs its
/// chunks, on a disk that is busy with other tests: this is only there to tell a hang from that.
const PATIENCE: Duration = Duration::from_secs(60);

fn produce(args: &Args, path: &Path, options: Options) {
    let mut journal = args.journal();
    let queue = DurableQueue::open(path, options).unwrap();
    args.ready();
    let id = args.get("id");
    for sequence in 0..40_000 {
        if args.stop_requested() {
            return queue.close().unwrap();
        }
        let message = payload::make(id, sequence, 20 + (sequence as usize * 13) % 80);
        let ticket = journal.attempt_put(0, &message);
        queue.enqueue(&message).unwrap();
        journal.acknowledged(ticket);
        args.word(PROGRESS).fetch_add(1, Ordering::Relaxed);
    }
}

/// Takes messages: at once, or in two steps of which the second makes the delivery final.
fn consume(args: &Args, path: &Path, options: Options, in_two_steps: bool) {
    let mut journal = args.journal();
    let queue = DurableQueue::open(path, options).unwrap();
    args.ready();
    while !args.stop_requested() {
        let ticket = journal.attempt_get(0);
        let found = if in_two_steps { queue.peek() } else { queue.dequeue() }.unwrap();
        let Some(message) = found else {
            journal.nothing(ticket);
            std::thread::yield_now();
            continue;
        };
        let identity = journal.got(ticket, &message).unwrap();
        if in_two_steps {
            let ticket = journal.attempt_ack(0, identity);
            assert_eq!(queue.dequeue().unwrap(), Some(message));
            journal.acknowledged(ticket);
        }
        args.word(PROGRESS).fetch_add(1, Ordering::Relaxed);
    }
    queue.close().unwrap();
}

fn progress(worker: &Worker) -> u64 {
    worker.word(PROGRESS).load(Ordering::Relaxed)
}

/// One queue, two producers, one consumer; one of them is killed, the others go on; then all are killed.
fn round(number: u64, rng: &mut StdRng) -> (usize, usize) {
    let dir = if number.is_multiple_of(8) {
        TestDir::disk()
    } else {
        TestDir::shm()
    };
    let path = dir.queue().join("q");
    let sync = [SyncMode::Never, SyncMode::Group, SyncMode::Always][(number % 3) as usize];
    let in_two_steps = number.is_multiple_of(2);
    let options = |role| Options {
        chunk_size: 500,
        sync,
        crc: number % 5 == 4,
        role,
        ..Options::default()
    };
    let spawn = |name: &str, id: u64| Spawn::new(&dir, name).arg("id", id).journal(60_000).lifetime(300);
    let mut workers = vec![
        spawn("consumer", 0).start_forked(|args| consume(args, &path, options(Role::Consumer), in_two_steps)),
        spawn("producer", 1).start_forked(|args| produce(args, &path, options(Role::Producer))),
        spawn("producer", 2).start_forked(|args| produce(args, &path, options(Role::Producer))),
    ];
    for worker in &mut workers {
        worker.wait_ready();
    }
    std::thread::sleep(Duration::from_micros(rng.random_range(0..4000)));
    let victim = rng.random_range(0..workers.len());
    workers[victim].kill();
    for survivor in (0..workers.len()).filter(|i| *i != victim) {
        // The consumer has nothing to do once the producers are done, and then needs not move.
        let before = progress(&workers[survivor]);
        let moved = wait_until(PATIENCE, || {
            progress(&workers[survivor]) > before || before == 40_000 || survivor == 0
        });
        assert!(
            moved,
            "round {number}: worker {survivor} stands still after the death of {victim}"
        );
    }
    std::thread::sleep(Duration::from_micros(rng.random_range(0..1000)));
    for worker in &mut workers {
        worker.assert_no_accident();
        worker.kill();
    }
    let queue = DurableQueue::open(&path, options(Role::Both)).unwrap_or_else(|e| panic!("round {number}: {e}"));
    let left: Vec<Vec<u8>> = std::iter::from_fn(|| queue.dequeue().unwrap()).collect();
    queue.close().unwrap();
    let files: Vec<_> = std::fs::read_dir(dir.queue())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert!(files.is_empty(), "round {number}: left behind {files:?}");
    let promise = if in_two_steps {
        Promise::until_acked()
    } else {
        Promise::at_most_once()
    };
    let mut oracle = Oracle::new(promise).left(0, left);
    for worker in &workers {
        oracle = oracle.journal(&worker.journal());
    }
    let report = oracle.check();
    report.assert_ok(&format!("round {number} {sync:?}, victim {victim}"));
    (report.acked, report.got)
}

#[test]
fn random_kills_lose_nothing_and_stop_nobody() {
    let kills = rounds(200, 2000);
    let _dog = Watchdog::start("random kills", Duration::from_secs(120 + kills));
    let begun = Instant::now();
    let mut rng = StdRng::seed_from_u64(42);
    let (mut acked, mut got, mut killed) = (0, 0, 0);
    let mut number = 0;
    while killed < kills {
        let (put, taken) = round(number, &mut rng);
        (acked, got) = (acked + put, got + taken);
        number += 1;
        killed += 3;
    }
    announce(&format!(
        "{killed} kills in {number} rounds, {:.1?}: {acked} acknowledged, {got} got, 0 lost",
        begun.elapsed()
    ));
    assert!(acked > 1000 && got > 100, "the kills came too early to mean anything");
}
