//! conq between processes: the document's multi-thread tests with processes, random kills, stopped processes, forks, and a
//! process in another time namespace.

mod common;

use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use common::dirs::TestDir;
use common::oracle::{Oracle, Promise};
use common::watchdog::Watchdog;
use common::worker::{Args, Spawn, Worker};
use common::{announce, payload, rounds, skip_without_root};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tailrace::Error;
use tailrace::conq::{Manager, NamedQueue, Options};
use tailrace::shared::signal::Wait;

const LONG: Duration = Duration::from_secs(60);

fn options() -> Options {
    Options {
        max_messages: 2000,
        max_message_size: 1000,
        max_bytes: 4 << 20,
        ..Options::default()
    }
}

/// The document's one-queue test between processes: everything is delivered once, counts are exact.
#[test]
fn producers_and_consumers_in_processes_on_one_queue() {
    let _dog = Watchdog::start("processes on one queue", Duration::from_secs(120));
    let dir = TestDir::shm();
    let manager = Manager::open(&dir.queue()).unwrap();
    let id = manager.create_queue("shared", &options()).unwrap();
    let (pairs, each) = (4_u32, rounds(4000, 40_000));
    let mut workers = Vec::new();
    for pair in 0..pairs {
        let path = dir.queue();
        let producer = Spawn::new(&dir, "producer").journal(each as usize + 1);
        workers.push(producer.start_forked(|args| {
            let queue = NamedQueue::open(&Manager::open(&path).unwrap(), "shared").unwrap();
            let mut journal = args.journal();
            for sequence in 0..each {
                let message = payload::make(pair, sequence, 20 + (sequence % 300) as usize);
                let ticket = journal.attempt_put(0, &message);
                queue.put(&message, Wait::Forever, &mut || Ok(())).unwrap();
                journal.acknowledged(ticket);
            }
        }));
        let consumer = Spawn::new(&dir, "consumer").journal(2 * each as usize + 2);
        workers.push(consumer.start_forked(|args| {
            let queue = NamedQueue::open(&Manager::open(&path).unwrap(), "shared").unwrap();
            let mut journal = args.journal();
            for _ in 0..each {
                let ticket = journal.attempt_get(0);
                let data = queue.get(Wait::Forever, &mut || Ok(())).unwrap();
                journal.got(ticket, &data).unwrap();
            }
        }));
    }
    let mut oracle = Oracle::new(Promise::exactly_once());
    for worker in &mut workers {
        worker.expect_success(Duration::from_secs(100));
        oracle = oracle.journal(&worker.journal());
    }
    let report = oracle.check();
    report.assert_ok("processes on one queue");
    assert_eq!(
        (report.acked as u64, report.got as u64),
        (u64::from(pairs) * each, u64::from(pairs) * each)
    );
    let stats = manager.stats(id).unwrap();
    assert_eq!((stats.ready, stats.leased, stats.expired), (0, 0, 0));
}

/// The document's queue-per-thread test between processes, from create to delete.
#[test]
fn a_queue_for_each_process() {
    let _dog = Watchdog::start("a queue for each process", Duration::from_secs(120));
    let dir = TestDir::shm();
    let trials = rounds(300, 3000);
    let workers: Vec<Worker> = (0..20)
        .map(|number| {
            let path = dir.queue();
            Spawn::new(&dir, "own").start_forked(move |_| {
                let manager = Manager::open(&path).unwrap();
                let name = format!("own-{number}");
                let id = manager.create_queue(&name, &options()).unwrap();
                assert_eq!(manager.get_queue(&name).unwrap(), id);
                for trial in 0..trials {
                    manager.enqueue(id, &trial.to_le_bytes()).unwrap();
                    let message = manager.read(id, LONG).unwrap().unwrap();
                    assert_eq!(message.data, trial.to_le_bytes());
                    manager.dequeue(id, &message.receipt).unwrap();
                }
                manager.delete_queue(id).unwrap();
            })
        })
        .collect();
    for mut worker in workers {
        worker.expect_success(Duration::from_secs(100));
    }
    assert!(Manager::open(&dir.queue()).unwrap().names().unwrap().is_empty());
}

const LEASE: Duration = Duration::from_millis(150);
/// Words of a worker that the parent reads: calls made, and the longest of them in nanoseconds.
const CALLS: usize = 0;
const LONGEST: usize = 1;

fn timed<T>(args: &Args, call: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let outcome = call();
    args.word(CALLS).fetch_add(1, Ordering::Relaxed);
    let took = u64::try_from(begun.elapsed().as_nanos()).unwrap();
    args.word(LONGEST).fetch_max(took, Ordering::Relaxed);
    outcome
}

fn produce(args: &Args, path: &Path, producer: u32) {
    let queue = NamedQueue::open(&Manager::open(path).unwrap(), "kills").unwrap();
    let mut journal = args.journal();
    args.ready();
    for sequence in 0.. {
        while queue.queue().len() > 200 {
            if args.stop_requested() {
                return;
            }
            std::thread::yield_now();
        }
        if args.stop_requested() {
            return;
        }
        let message = payload::make(producer, sequence, 20 + (sequence * 37 % 700) as usize);
        let ticket = journal.attempt_put(0, &message);
        match timed(args, || queue.queue().enqueue(&message, queue.manager().now())) {
            Ok(_) => journal.acknowledged(ticket),
            Err(Error::Full(_)) => journal.failed(ticket),
            Err(other) => panic!("{other}"),
        }
    }
}

fn consume(args: &Args, path: &Path) {
    let manager = Manager::open(path).unwrap();
    let id = manager.get_queue("kills").unwrap();
    let mut journal = args.journal();
    args.ready();
    while !args.stop_requested() {
        let ticket = journal.attempt_get(0);
        let Some(message) = timed(args, || manager.read(id, LEASE)).unwrap() else {
            journal.nothing(ticket);
            std::thread::yield_now();
            continue;
        };
        let who = journal.got(ticket, &message.data).unwrap();
        let ticket = journal.attempt_ack(0, who);
        match timed(args, || manager.dequeue(id, &message.receipt)) {
            Ok(()) => journal.acknowledged(ticket),
            Err(Error::MessageNotFound(_)) => journal.failed(ticket),
            Err(other) => panic!("{other}"),
        }
    }
}

fn start(dir: &TestDir, number: u32, consumes: bool) -> Worker {
    let path = dir.queue();
    let spawn = Spawn::new(dir, if consumes { "consumer" } else { "producer" }).journal(2_000_000);
    spawn.start_forked(|args| match consumes {
        true => consume(args, &path),
        false => produce(args, &path, number),
    })
}

/// Two producers and two consumers; one of the four, at random, is killed again and again.
#[test]
fn random_kills_lose_nothing_and_stop_nobody() {
    let _dog = Watchdog::start("random kills", Duration::from_secs(900));
    let dir = TestDir::shm();
    let manager = Manager::open(&dir.queue()).unwrap();
    let id = manager.create_queue("kills", &options()).unwrap();
    let kills = rounds(200, 2000);
    let mut random = StdRng::seed_from_u64(5);
    let mut number = 0;
    let mut next = |consumes: bool| {
        number += 1;
        let mut worker = start(&dir, number, consumes);
        worker.wait_ready();
        (worker, consumes)
    };
    let mut alive: Vec<(Worker, bool)> = [false, true, false, true].map(&mut next).into();
    let mut dead = Vec::new();
    for _ in 0..kills {
        std::thread::sleep(Duration::from_micros(random.random_range(0..6000)));
        let victim = random.random_range(0..alive.len());
        let consumes = alive[victim].1;
        let (mut worker, _) = std::mem::replace(&mut alive[victim], next(consumes));
        worker.kill();
        worker.assert_no_accident();
        dead.push(worker);
    }
    for (worker, _) in &alive {
        worker.request_stop();
    }
    for (worker, _) in &mut alive {
        worker.expect_success(Duration::from_secs(20));
    }
    dead.extend(alive.into_iter().map(|(worker, _)| worker));
    // What is left, those included whose leases have yet to end.
    std::thread::sleep(LEASE + Duration::from_millis(20));
    let mut left = Vec::new();
    while let Some(message) = manager.read(id, LONG).unwrap() {
        manager.dequeue(id, &message.receipt).unwrap();
        left.push(message.data);
    }
    let mut oracle = Oracle::new(Promise::until_acked()).left(0, left);
    let (mut calls, mut longest) = (0, 0);
    for worker in &dead {
        oracle = oracle.journal(&worker.journal());
        calls += worker.word(CALLS).load(Ordering::Relaxed);
        longest = longest.max(worker.word(LONGEST).load(Ordering::Relaxed));
    }
    let report = oracle.check();
    report.assert_ok("random kills");
    let stats = manager.stats(id).unwrap();
    assert_eq!((stats.ready, stats.leased, stats.expired), (0, 0, 0), "{stats:?}");
    let longest = Duration::from_nanos(longest);
    assert!(longest < Duration::from_secs(2), "a call took {longest:?}");
    announce(&format!(
        "conq random kills: {kills} kills, {calls} calls, {} repairs, longest call {longest:?}; {report}",
        stats.repairs
    ));
    // Nothing leaked: the memory holds as much as that of a new queue.
    let fill = |id| (0..).find(|_| manager.enqueue(id, &[7; 1000]).is_err()).unwrap();
    let fresh = manager.create_queue("fresh", &options()).unwrap();
    let (used, new) = (fill(id), fill(fresh));
    assert_eq!(used, new, "messages of 1000 bytes that fit");
}

/// A consumer that is stopped for longer than its lease is too late, and harms nobody.
#[test]
fn a_stopped_consumer_comes_too_late() {
    let _dog = Watchdog::start("stopped consumer", Duration::from_secs(300));
    let dir = TestDir::shm();
    let manager = Manager::open(&dir.queue()).unwrap();
    let id = manager.create_queue("stop", &options()).unwrap();
    let lease = Duration::from_millis(30);
    for round in 0..rounds(10, 100) {
        manager.enqueue(id, &round.to_le_bytes()).unwrap();
        let path = dir.queue();
        let mut slow = Spawn::new(&dir, "slow").start_forked(|args| {
            let manager = Manager::open(&path).unwrap();
            let message = manager.read(id, lease).unwrap().unwrap();
            args.ready();
            args.wait_go();
            let late = manager.dequeue(id, &message.receipt);
            assert!(matches!(late, Err(Error::MessageNotFound(_))), "{late:?}");
        });
        slow.wait_ready();
        slow.stop();
        let queue = NamedQueue::open(&manager, "stop").unwrap();
        let limit = Wait::from_timeout(Some(Duration::from_secs(10)));
        let taken = queue
            .read(60_000_000_000, limit, &mut || Ok(()))
            .unwrap()
            .expect("it comes back");
        assert_eq!(taken.receipt.delivery, 2);
        slow.go();
        slow.cont();
        slow.expect_success(Duration::from_secs(10));
        manager.dequeue(id, &taken.receipt).unwrap();
    }
}

#[test]
fn a_forked_child_goes_on_with_the_host_and_starts_anew_in_itself() {
    let dir = TestDir::shm();
    let host = Manager::open(&dir.queue()).unwrap();
    let shared = host.create_queue("shared", &options()).unwrap();
    let own = Manager::of_this_process().create_queue("parent's", &options()).unwrap();
    Manager::of_this_process().enqueue(own, b"stays").unwrap();
    let parents = Manager::of_this_process().named("parent's").unwrap();
    for round in 0..20_u8 {
        host.enqueue(shared, &[round]).unwrap();
        let mut child = Spawn::new(&dir, "child").start_forked(|_| {
            let process = Manager::of_this_process();
            assert!(process.names().unwrap().is_empty());
            assert!(matches!(process.enqueue(own, b"x"), Err(Error::NotFound(_))));
            assert!(matches!(parents.enqueue(b"x", 1), Err(Error::NotFound(_))));
            let id = process.create_queue("child's", &options()).unwrap();
            process.enqueue(id, b"y").unwrap();
            let message = host.read(shared, LONG).unwrap().unwrap();
            assert_eq!(message.data, [round]);
            host.dequeue(shared, &message.receipt).unwrap();
            host.enqueue(shared, &[100 + round]).unwrap();
        });
        child.expect_success(Duration::from_secs(10));
        let answer = host.read(shared, LONG).unwrap().unwrap();
        assert_eq!(answer.data, [100 + round]);
        host.dequeue(shared, &answer.receipt).unwrap();
    }
    let kept = Manager::of_this_process().read(own, LONG).unwrap().unwrap();
    assert_eq!(kept.data, b"stays");
    Manager::of_this_process().delete_queue(own).unwrap();
}

const NAMESPACE: &str = "TAILRACE_CONQ_NAMESPACE";

/// Runs in another process, see below.
#[test]
fn in_another_time_namespace() {
    let Ok(path) = std::env::var(NAMESPACE) else { return };
    let manager = Manager::open(Path::new(&path)).unwrap();
    match manager.get_queue("times") {
        Err(Error::Format(text)) if text.contains("time namespace") => {}
        other => panic!("{other:?}"),
    }
    let id = manager.create_queue("ours", &options()).unwrap();
    manager.enqueue(id, b"x").unwrap();
}

#[test]
fn a_process_with_another_clock_is_refused() {
    if skip_without_root("unshare -T") {
        return;
    }
    let dir = TestDir::shm();
    let manager = Manager::open(&dir.queue()).unwrap();
    manager.create_queue("times", &options()).unwrap();
    let exe = std::env::current_exe().unwrap();
    let unshared = Command::new("unshare")
        .args(["-T", "--boottime", "100000", "--"])
        .arg(exe)
        .args(["--exact", "in_another_time_namespace", "--nocapture"])
        .env(NAMESPACE, dir.queue())
        .output();
    let output = match unshared {
        Ok(output) => output,
        Err(error) => return announce(&format!("SKIPPED, needs unshare: {error}")),
    };
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    if text.contains("Invalid argument") || text.contains("not permitted") {
        return announce(&format!("SKIPPED, this kernel has no time namespaces: {text}"));
    }
    assert!(output.status.success(), "{text}");
    assert!(
        matches!(manager.get_queue("ours"), Err(Error::Format(_))),
        "nor we theirs"
    );
}
