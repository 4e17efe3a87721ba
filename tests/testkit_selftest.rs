//! The test machinery tested: each check must fail when it should, else a green queue test means nothing.
//!
//! The queue here is the simplest there is, a directory with a file for each message, so that the machinery alone is on
//! trial.

mod common;

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use common::dirs::TestDir;
use common::journal::{self, Journal, Op, State};
use common::mapped::Mapped;
use common::oracle::{Oracle, Promise};
use common::payload;
use common::watchdog::Watchdog;
use common::worker::{self, Args, Exit, Spawn};
use nix::sys::signal::Signal;

#[test]
fn worker_main() {
    worker::dispatch(&[
        ("counter", counter),
        ("spool_producer", spool_producer),
        ("spool_consumer", spool_consumer),
        ("panics", panics),
        ("hangs", hangs),
        ("hangs_under_watchdog", hangs_under_watchdog),
    ]);
}

/// Journals puts and counts in word 0 until it is killed or asked to stop.
fn counter(args: &Args) {
    let mut journal = args.journal();
    args.ready();
    if !args.wait_go() {
        return;
    }
    for sequence in 0.. {
        if args.stop_requested() {
            return;
        }
        let ticket = journal.attempt_put(0, &payload::make(args.get("id"), sequence, 64));
        args.word(0).store(sequence + 1, Ordering::SeqCst);
        journal.acknowledged(ticket);
    }
}

/// Puts by an atomic rename: a message is there or not.
fn spool_producer(args: &Args) {
    let (mut journal, queue, id) = (args.journal(), args.path("queue"), args.get("id"));
    args.ready();
    for sequence in 0.. {
        if args.stop_requested() {
            return;
        }
        let message = payload::make(id, sequence, 200);
        let ticket = journal.attempt_put(0, &message);
        let hidden = queue.join(format!(".{id}"));
        std::fs::write(&hidden, &message).expect("write");
        std::fs::rename(&hidden, queue.join(format!("{sequence:012}-{id}"))).expect("rename");
        journal.acknowledged(ticket);
    }
}

/// Gets by reading and unlinking the first name: a kill between them is no loss, a kill behind them takes one message.
fn spool_consumer(args: &Args) {
    let (mut journal, queue) = (args.journal(), args.path("queue"));
    args.ready();
    while !args.stop_requested() {
        let ticket = journal.attempt_get(0);
        match spool(&queue).first() {
            Some(path) => {
                let bytes = std::fs::read(path).expect("read");
                std::fs::remove_file(path).expect("remove");
                let _ = journal.got(ticket, &bytes);
            }
            None => journal.nothing(ticket),
        }
    }
}

/// The complete messages, each producer's in order.
fn spool(queue: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(queue)
        .expect("list")
        .flatten()
        .map(|entry| entry.path());
    let mut names: Vec<PathBuf> = entries
        .filter(|path| path.file_name().is_none_or(|n| n.as_encoded_bytes()[0] != b'.'))
        .collect();
    names.sort();
    names
}

fn panics(args: &Args) {
    args.ready();
    panic!("planted panic with argument {}", args.text("why"));
}

fn hangs(args: &Args) {
    args.ready();
    std::thread::sleep(Duration::from_secs(120));
}

fn hangs_under_watchdog(args: &Args) {
    let dir = TestDir::inside(&args.path("scratch"));
    let _dog = Watchdog::start("deliberate hang", Duration::from_millis(200));
    let mut inner = Spawn::new(&dir, "hangs").start();
    inner.wait_ready();
    args.word(0)
        .store(u64::try_from(inner.pid().as_raw()).expect("pid"), Ordering::SeqCst);
    args.ready();
    let _ = inner.wait(Duration::from_secs(120));
}

#[test]
fn a_killed_worker_leaves_its_journal_behind() {
    let _dog = Watchdog::start("killed worker", Duration::from_secs(60));
    let dir = TestDir::shm();
    let mut interrupted = 0;
    for round in 0..20 {
        let mut worker = Spawn::new(&dir, "counter").arg("id", round).journal(1_000_000).start();
        worker.wait_ready();
        worker.go();
        assert!(common::wait_until(Duration::from_secs(10), || worker
            .word(0)
            .load(Ordering::SeqCst)
            > 200));
        assert_eq!(worker.kill(), Exit::Killed(Signal::SIGKILL));
        let (records, counted) = (worker.journal(), worker.word(0).load(Ordering::SeqCst));
        let acked = records.iter().filter(|r| r.state == State::Acknowledged).count() as u64;
        let attempted = records.iter().filter(|r| r.state == State::Attempt).count() as u64;
        assert!(
            attempted <= 1,
            "at most the call that the kill interrupted, {attempted}"
        );
        assert!(
            acked <= counted && counted <= acked + attempted,
            "acked {acked} attempted {attempted} counted {counted}"
        );
        assert!(
            records
                .iter()
                .enumerate()
                .all(|(i, r)| r.op == Op::Put && r.sequence == i as u64 && r.producer == round)
        );
        interrupted += attempted;
    }
    common::announce(&format!("kill -9 hit inside a call in {interrupted} of 20 rounds"));
}

#[test]
fn killed_producers_and_consumers_are_judged_from_end_to_end() {
    let _dog = Watchdog::start("end to end", Duration::from_secs(120));
    let (mut attempted, mut interrupted, mut planted) = (0, 0, 0);
    for round in 0..common::rounds(30, 300) {
        let dir = TestDir::shm();
        let spawn = |role: &str, id: u32| {
            Spawn::new(&dir, role)
                .arg("queue", dir.queue().display())
                .arg("id", id)
                .journal(100_000)
        };
        let mut workers = [
            spawn("spool_producer", 1).start(),
            spawn("spool_producer", 2).start(),
            spawn("spool_consumer", 3).start(),
        ];
        workers.iter_mut().for_each(worker::Worker::wait_ready);
        std::thread::sleep(Duration::from_micros(500 + round * 137 % 4000));
        for worker in &mut workers {
            assert_eq!(worker.kill(), Exit::Killed(Signal::SIGKILL), "{}", worker.stderr());
        }
        let left: Vec<Vec<u8>> = spool(&dir.queue())
            .iter()
            .map(|path| std::fs::read(path).expect("read"))
            .collect();
        let judge = |journals: &[worker::Worker], left: &[Vec<u8>]| {
            journals
                .iter()
                .fold(Oracle::new(Promise::at_most_once()), |oracle, w| {
                    oracle.journal(&w.journal())
                })
                .left(0, left)
                .check()
        };
        let report = judge(&workers, &left);
        report.assert_ok(&format!("round {round}"));
        (attempted, interrupted) = (attempted + report.attempted, interrupted + report.interrupted_gets);
        // The same evidence with four messages taken away must not pass: two may be attempted, one may be in dying hands.
        if let Some((_, rest)) = left.split_at_checked(4) {
            planted += 1;
            assert!(
                !judge(&workers, rest).lost.is_empty(),
                "a planted loss passed in round {round}"
            );
        }
    }
    common::announce(&format!(
        "end to end: kills hit {attempted} puts and {interrupted} gets"
    ));
    assert!(
        attempted > 0 && interrupted > 0 && planted > 0,
        "no kill hit inside a call, or nothing was ever left: the test shows nothing"
    );
}

#[test]
fn a_stopped_worker_stands_still_and_continues() {
    let _dog = Watchdog::start("stopped worker", Duration::from_secs(60));
    let dir = TestDir::shm();
    let mut worker = Spawn::new(&dir, "counter").arg("id", 1).journal(10_000_000).start();
    worker.wait_ready();
    worker.go();
    assert!(common::wait_until(Duration::from_secs(10), || worker
        .word(0)
        .load(Ordering::SeqCst)
        > 10));
    worker.stop();
    let frozen = worker.word(0).load(Ordering::SeqCst);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(worker.word(0).load(Ordering::SeqCst), frozen);
    worker.cont();
    assert!(common::wait_until(Duration::from_secs(10), || worker
        .word(0)
        .load(Ordering::SeqCst)
        > frozen));
    worker.request_stop();
    worker.expect_success(Duration::from_secs(10));
}

#[test]
fn a_panic_in_a_worker_shows_its_message() {
    let dir = TestDir::shm();
    let mut executed = Spawn::new(&dir, "panics").arg("why", "executed").start();
    let mut forked = Spawn::new(&dir, "panics").arg("why", "forked").start_forked(panics);
    for (worker, why) in [(&mut executed, "executed"), (&mut forked, "forked")] {
        assert_eq!(
            worker.wait(Duration::from_secs(20)),
            Exit::Code(common::process::PANICKED)
        );
        assert!(
            worker.stderr().contains(&format!("planted panic with argument {why}")),
            "{}",
            worker.stderr()
        );
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| worker.assert_no_accident()));
        assert!(caught.is_err(), "an accident must not pass");
    }
}

#[test]
fn the_cost_of_a_worker_is_known() {
    let _dog = Watchdog::start("spawn cost", Duration::from_secs(120));
    let dir = TestDir::shm();
    let measure = |start: &dyn Fn() -> worker::Worker| {
        let begun = Instant::now();
        for _ in 0..50 {
            let mut worker = start();
            worker.wait_ready();
            worker.kill();
        }
        begun.elapsed() / 50
    };
    let executed = measure(&|| Spawn::new(&dir, "hangs").start());
    let forked = measure(&|| Spawn::new(&dir, "hangs").start_forked(hangs));
    common::announce(&format!(
        "spawn + ready + kill -9 + reap: {executed:?} executed, {forked:?} forked"
    ));
}

#[test]
fn the_watchdog_dumps_stacks_kills_workers_and_aborts() {
    let dir = TestDir::shm();
    let mut worker = Spawn::new(&dir, "hangs_under_watchdog")
        .arg("scratch", dir.scratch().display())
        .start();
    worker.wait_ready();
    let inner = nix::unistd::Pid::from_raw(i32::try_from(worker.word(0).load(Ordering::SeqCst)).expect("pid"));
    assert_eq!(worker.wait(Duration::from_secs(100)), Exit::Killed(Signal::SIGABRT));
    let text = worker.stderr();
    assert!(
        text.contains("WATCHDOG: deliberate hang still runs after 200ms"),
        "{text}"
    );
    assert!(
        text.contains("--- worker hangs") && text.contains("--- the test itself"),
        "{text}"
    );
    // A sleeping thread shows its system call or its frames.
    assert!(text.contains("nanosleep") || text.contains("syscall 230"), "{text}");
    let gone = || {
        nix::sys::signal::kill(inner, None).is_err()
            || std::fs::read_to_string(format!("/proc/{inner}/stat")).is_ok_and(|s| s.contains(") Z"))
    };
    assert!(
        common::wait_until(Duration::from_secs(5), gone),
        "the inner worker was left behind"
    );
}

#[test]
fn a_journal_takes_back_empty_polls_and_refuses_overflow() {
    let dir = TestDir::shm();
    let path = dir.scratch().join("journal");
    let mut journal = Journal::create(&path, 3);
    for _ in 0..1000 {
        let ticket = journal.attempt_get(7);
        journal.nothing(ticket);
    }
    let message = payload::make(9, 4, 33);
    let ticket = journal.attempt_put(7, &message);
    journal.failed(ticket);
    let ticket = journal.attempt_get(7);
    journal.tag(&ticket, 5);
    assert_eq!(
        journal.got(ticket, &message).map(|m| (m.producer, m.sequence, m.len)),
        Ok((9, 4, 33))
    );
    let ticket = journal.attempt_get(8);
    assert!(journal.got(ticket, b"garbage").is_err());
    let states: Vec<_> = journal::read(&path)
        .iter()
        .map(|r| (r.op, r.state, r.queue, r.producer, r.tag))
        .collect();
    assert_eq!(
        states,
        [
            (Op::Put, State::Failed, 7, 9, 0),
            (Op::Get, State::Got, 7, 9, 5),
            (Op::Get, State::Corrupt, 8, 0, 0)
        ]
    );
    let overflow = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(journal.attempt_get(0))));
    assert!(overflow.is_err());
}

#[test]
fn payloads_show_every_kind_of_damage() {
    for len in [20, 21, 27, 28, 100, 4096] {
        let good = payload::make(3, 99, len);
        assert_eq!(good.len(), len);
        assert!(payload::parse(&good).is_ok_and(|m| (m.producer, m.sequence) == (3, 99)));
        for bit in 0..len * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(payload::parse(&bad).is_err(), "bit {bit} of {len} bytes");
        }
        let mut padded = good.clone();
        padded.extend_from_slice(&[0; 12]);
        assert!(payload::parse(&padded).is_err() && payload::parse_padded(&padded).is_ok());
        padded[len + 3] = 1;
        assert!(payload::parse_padded(&padded).is_err());
        assert!(payload::parse_padded(&good[..len - 1]).is_err());
    }
}

#[test]
fn mapped_words_are_bounds_checked() {
    let dir = TestDir::shm();
    let map = Mapped::create(&dir.scratch().join("words"), 64);
    map.u32(60).store(7, Ordering::Relaxed);
    assert_eq!(map.u64(56).load(Ordering::Relaxed), 7 << 32);
    for offset in [57, 60, 64, usize::MAX - 7] {
        assert!(
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| map.u64(offset).load(Ordering::Relaxed))).is_err(),
            "{offset}"
        );
    }
}

#[test]
fn payloads_and_journals_are_those_of_the_python_side() {
    // The same constants are in tests/python/test_harness.py.
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let message = payload::make(3, 99, 37);
    let dir = TestDir::shm();
    let path = dir.scratch().join("journal");
    let mut journal = Journal::create(&path, 1);
    let ticket = journal.attempt_put(5, &message);
    journal.acknowledged(ticket);
    assert_eq!(
        hex(&std::fs::read(&path).expect("journal")[64..88]),
        "01020500030000006300000000000000196b2f5025000000"
    );
    let hex = hex(&message);
    assert_eq!(
        hex,
        "25000000030000006300000000000000196b2f500e35b9fab0b4775ae4c4689af14fd87c6d"
    );
}
