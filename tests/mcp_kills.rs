//! Queue files between real processes that are killed: nothing lost but what was in dying hands, the end seen by everybody,
//! no user left over.

mod common;
mod mcp_kit;

use std::time::{Duration, Instant};

use common::dirs::TestDir;
use common::oracle::{Delivery, Losses, Oracle, Order, Promise};
use common::watchdog::Watchdog;
use common::worker::{Args, Exit, Spawn, Worker};
use common::{announce, payload, rounds};
use mcp_kit::*;
use nix::sys::signal::Signal;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tailrace::mcp::{Batch, End, FileParameters, Mode, QueueFile, Took};
use tailrace::shared::signal::Wait;

fn watch(name: &'static str) -> Watchdog {
    Watchdog::start(name, Duration::from_secs(if common::soak() { 3600 } else { 240 }))
}

/// Short and long records, in memory and on disk.
fn mixed() -> FileParameters {
    FileParameters {
        max_messages: 40,
        buffers: 8,
        record_size: 6000,
        ..my_q()
    }
}

fn size_of(sequence: u64) -> usize {
    [60, 300, 5000, 24, 1000][sequence as usize % 5]
}

fn producer(args: &Args) {
    let file = open(&system(&args.path("queue")), &mixed(), Mode::Output);
    let mut journal = args.journal();
    args.ready();
    let id = args.get("id");
    for sequence in 0.. {
        if args.stop_requested() {
            break;
        }
        let message = payload::make(id, sequence, size_of(sequence));
        let ticket = journal.attempt_put(0, &message);
        let short = Wait::from_timeout(Some(Duration::from_millis(200)));
        match file.write(None, &message, End::Back, short, || Ok(())).expect("write") {
            true => journal.acknowledged(ticket),
            false => journal.failed(ticket),
        }
    }
}

fn consumer(args: &Args) {
    let file = open(&system(&args.path("queue")), &mixed(), Mode::Input);
    let mut journal = args.journal();
    args.ready();
    let mut batch = Batch::new();
    while !args.stop_requested() {
        let ticket = journal.attempt_get(0);
        batch.clear();
        let short = Wait::from_timeout(Some(Duration::from_millis(20)));
        match file.read(None, 1, &mut batch, short, || Ok(())).expect("read") {
            Took::Messages(_) => {
                journal.got(ticket, batch.bytes()).expect("whole messages only");
            }
            Took::Nothing | Took::End => journal.nothing(ticket),
        }
    }
}

/// Reads in hand first, and acknowledges.
fn careful_consumer(args: &Args) {
    let file = open(&system(&args.path("queue")), &mixed(), Mode::Input);
    let mut journal = args.journal();
    args.ready();
    let mut batch = Batch::new();
    while !args.stop_requested() {
        let ticket = journal.attempt_get(0);
        batch.clear();
        let short = Wait::from_timeout(Some(Duration::from_millis(20)));
        let (took, holds) = file.hold(None, 1, &mut batch, short, || Ok(())).expect("hold");
        if !matches!(took, Took::Messages(_)) {
            journal.nothing(ticket);
            continue;
        }
        let identity = journal.got(ticket, batch.bytes()).expect("whole messages only");
        let ticket = journal.attempt_ack(0, identity);
        file.acknowledge(&holds).expect("acknowledge");
        journal.acknowledged(ticket);
    }
}

#[test]
fn worker_main() {
    common::worker::dispatch(&[
        ("producer", producer),
        ("consumer", consumer),
        ("careful", careful_consumer),
    ]);
}

/// Kills on one system; a longer run takes new ones. What it remembers is copied at each start of a worker, and the longer that
/// takes the more the others do meanwhile.
const KILLS: u64 = 50;

fn kill_at_random(what: &'static str, reader: fn(&Args), promise: Promise, kills: u64) {
    let _dog = watch(what);
    let mut left = kills;
    while left > 0 {
        let now = left.min(KILLS);
        kill_on_one_system(what, reader, promise, now, left);
        left -= now;
    }
}

/// Two producers and two consumers; in each round one of them is killed and another takes its place.
fn kill_on_one_system(what: &'static str, reader: fn(&Args), promise: Promise, kills: u64, seed: u64) {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    // Keeps the queue alive while nobody else does.
    let keeper = open(&system, &mixed(), Mode::Input);
    let mut random = StdRng::seed_from_u64(seed ^ what.len() as u64);
    let mut next_id = 0;
    let mut start = |role: usize| -> Worker {
        next_id += 1;
        let body = if role < 2 { producer } else { reader };
        let name = if role < 2 { "producer" } else { "reader" };
        let mut worker = Spawn::new(&dir, name)
            .arg("queue", dir.queue().display())
            .arg("id", next_id)
            .journal(rounds(200_000, 2_000_000) as usize)
            .start_forked(body);
        worker.wait_ready();
        worker
    };
    let mut workers: Vec<Worker> = (0..4).map(&mut start).collect();
    let mut journals = Vec::new();
    for _ in 0..kills {
        std::thread::sleep(Duration::from_micros(random.random_range(0..6000)));
        let victim = random.random_range(0..4);
        assert_eq!(
            workers[victim].kill(),
            Exit::Killed(Signal::SIGKILL),
            "{}",
            workers[victim].stderr()
        );
        journals.push(workers[victim].journal());
        workers[victim] = start(victim);
        workers.iter_mut().for_each(Worker::assert_no_accident);
    }
    for worker in &mut workers {
        worker.request_stop();
        worker.expect_success(Duration::from_secs(20));
        journals.push(worker.journal());
    }
    let counters = system.counters().unwrap();
    let left = drain(&keeper).unwrap();
    let audit = system.audit().unwrap();
    assert_eq!((audit.messages, audit.filling, audit.in_hands), (0, 0, 0), "{audit:?}");
    assert_eq!((audit.queues, audit.users), (1, 1), "no user is left over: {audit:?}");
    let mut oracle = Oracle::new(promise).left(0, &left);
    for journal in &journals {
        oracle = oracle.journal(journal);
    }
    let report = oracle.check();
    report.assert_ok(what);
    assert!(report.acked > 100, "{report:?}");
    let repairs = counters.repairs;
    announce(&format!(
        "mcp {what}: {kills} kills, {} records acknowledged, {} read, {} lost in dying hands, {repairs} repairs",
        report.acked,
        report.got,
        report.missing.len()
    ));
}

#[test]
fn readers_and_writers_killed_at_random() {
    let promise = Promise {
        delivery: Delivery::Once,
        losses: Losses::InHands,
        order: Order::FirstDelivery,
    };
    kill_at_random("random kills", consumer, promise, rounds(150, 2000));
}

#[test]
fn holders_and_writers_killed_at_random() {
    kill_at_random(
        "random kills of holders",
        careful_consumer,
        Promise::until_acked(),
        rounds(150, 2000),
    );
}

#[test]
fn the_last_writer_s_death_is_the_end_of_file() {
    let _dog = watch("EOF after death");
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let reader = open(&system, &my_q(), Mode::Input);
    let mut times = Vec::new();
    let count = rounds(50, 1000);
    for round in 0..count {
        let mut writer = Spawn::new(&dir, "writer").start_forked(|args| {
            let file = open(&mcp_kit::system(&dir.queue()), &my_q(), Mode::Output);
            for n in 0..round % 7 {
                assert!(put(&file, None, format!("{n}")).unwrap());
            }
            args.ready();
            while !args.stop_requested() {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        writer.wait_ready();
        for n in 0..round % 7 {
            assert_eq!(get(&reader, None).unwrap(), text(&n.to_string()));
        }
        assert_eq!(get(&reader, None).unwrap(), Got::Incomplete, "round {round}: it lives");
        let time = std::thread::scope(|scope| {
            let blocked = scope.spawn(|| {
                let got = get_within(&reader, None, seconds(20)).unwrap();
                (got, Instant::now())
            });
            std::thread::sleep(Duration::from_millis(round % 4));
            writer.kill();
            let killed = Instant::now();
            let (got, at) = blocked.join().unwrap();
            assert_eq!(got, Got::Eof, "round {round}");
            at.saturating_duration_since(killed)
        });
        assert!(
            reader.abended().unwrap(),
            "round {round}: the file says that it was an abnormal end"
        );
        assert_eq!((reader.counters().users, reader.counters().writers), (1, 0));
        times.push(time);
    }
    times.sort();
    let at = |part: usize| times[(times.len() - 1) * part / 100];
    announce(&format!(
        "mcp EOF after the last writer's death: {count} of {count} rounds; p50 {:?}, p99 {:?}, max {:?}",
        at(50),
        at(99),
        at(100)
    ));
    assert!(at(50) <= Duration::from_millis(100), "EOF within 100 ms: {:?}", at(50));
    assert_eq!(system.counters().unwrap().users, 1, "no user count leaks");
    // An orderly end is not an abnormal one.
    open(&system, &my_q(), Mode::Output).close().unwrap();
    assert!(!reader.abended().unwrap());
}

#[test]
fn a_reader_that_only_polls_sees_the_end_too() {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let reader = open(&system, &my_qff(), Mode::Input);
    let mut writer = Spawn::new(&dir, "writer").start_forked(|args| {
        let _file = open(&mcp_kit::system(&dir.queue()), &my_qff(), Mode::Output);
        args.ready();
        while !args.stop_requested() {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    writer.wait_ready();
    assert_eq!(get(&reader, 0).unwrap(), Got::Incomplete);
    writer.kill();
    let seen = common::wait_until(Duration::from_secs(10), || get(&reader, 0).unwrap() == Got::Eof);
    assert!(seen && reader.abended().unwrap());
}

#[test]
fn after_a_crash_of_everything_the_system_is_empty_and_its_disk_returned() {
    let _dog = watch("crash of everything");
    let dir = TestDir::shm();
    for round in 0..rounds(5, 50) {
        let start = |id: u32| {
            let mut worker = Spawn::new(&dir, "crowd").start_forked(|args| {
                let system = system(&dir.queue());
                let file = open(&system, &mixed(), Mode::InputOutput);
                let family = open(&system, &my_qff(), Mode::InputOutput);
                let kept = FileParameters {
                    name: format!("KEPT{id}"),
                    ..my_q()
                };
                let kept = QueueFile::open(&system, &kept, Mode::Output, &mcp_kit::kept()).unwrap();
                for n in 0..10 {
                    assert!(put(&kept, None, payload::make(id, n, 60)).unwrap());
                }
                args.ready();
                for n in 0.. {
                    let _ = put(&file, None, payload::make(id, n, size_of(n))).unwrap();
                    let _ = put(&family, 1 + n as i64 % 3, "x").unwrap();
                    if n % 3 == 0 {
                        let _ = get(&file, None).unwrap();
                    }
                }
            });
            worker.wait_ready();
            worker
        };
        let mut crowd: Vec<Worker> = (0..3).map(start).collect();
        std::thread::sleep(Duration::from_millis(10 + round % 5));
        for worker in &mut crowd {
            worker.kill();
        }

        let system = system(&dir.queue());
        let names: Vec<String> = system.queues().unwrap().into_iter().map(|q| q.name).collect();
        assert_eq!(names.len(), 3, "round {round}: only what was to be kept: {names:?}");
        for id in 0..3 {
            let kept = FileParameters {
                name: format!("KEPT{id}"),
                ..my_q()
            };
            let kept = open(&system, &kept, Mode::Input);
            assert_eq!(drain(&kept).unwrap().len(), 10, "round {round}");
            assert_eq!(get(&kept, None).unwrap(), Got::Eof, "its writer is dead");
            kept.forget().unwrap();
        }
        let audit = system.audit().unwrap();
        assert_eq!((audit.queues, audit.messages, audit.users), (0, 0, 0), "{audit:?}");
        let counters = system.counters().unwrap();
        assert_eq!(
            (counters.descriptors_in_use, counters.buffers_in_use),
            (0, 0),
            "{counters:?}"
        );
        let disks = std::fs::read_dir(dir.queue()).unwrap().flatten();
        let disks: Vec<_> = disks
            .filter(|e| e.path().extension().is_some_and(|x| x == "disk"))
            .collect();
        assert!(disks.is_empty(), "round {round}: {disks:?}");
        assert_eq!(
            get(&open(&system, &mixed(), Mode::InputOutput), None).unwrap(),
            Got::Incomplete,
            "never stale"
        );
    }
}

#[test]
fn a_dead_holder_s_messages_come_back_in_order() {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let file = open(&system, &my_q(), Mode::InputOutput);
    for n in 0..6 {
        assert!(put(&file, None, format!("{n}")).unwrap());
    }
    let mut holder = Spawn::new(&dir, "holder").start_forked(|args| {
        let file = open(&mcp_kit::system(&dir.queue()), &my_q(), Mode::Input);
        let (took, holds) = file.hold(None, 4, &mut Batch::new(), Wait::No, || Ok(())).unwrap();
        assert_eq!(took, Took::Messages(4));
        file.acknowledge(&holds[1..2]).unwrap();
        args.ready();
        while !args.stop_requested() {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    holder.wait_ready();
    assert_eq!(
        file.message_count().unwrap(),
        [2],
        "what is in its hands is nobody else's"
    );
    assert_eq!(get(&file, None).unwrap(), text("4"));
    holder.kill();
    let back = || file.message_count().unwrap() == [4];
    assert!(common::wait_until(Duration::from_secs(10), back));
    assert_eq!(drain(&file).unwrap(), [b"0", b"2", b"3", b"5"]);
}

#[test]
fn a_forked_child_is_a_user_of_its_own() {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let reader = open(&system, &my_q(), Mode::Input);
    let writer = open(&system, &my_q(), Mode::Output);
    let mut child = Spawn::new(&dir, "child").start_forked(|args| {
        // Inherited, not opened: the first use makes the child a user.
        assert!(put(&writer, None, "from the child").unwrap());
        args.ready();
        while !args.stop_requested() {
            std::thread::sleep(Duration::from_millis(1));
        }
        writer.close().unwrap();
    });
    child.wait_ready();
    assert_eq!(reader.counters().writers, 2);
    writer.close().unwrap();
    assert_eq!(get(&reader, None).unwrap(), text("from the child"));
    assert_eq!(get(&reader, None).unwrap(), Got::Incomplete, "the child still writes");
    child.request_stop();
    child.expect_success(Duration::from_secs(10));
    assert_eq!(get(&reader, None).unwrap(), Got::Eof);
    assert!(!reader.abended().unwrap(), "it closed");
}
