//! Processes that race to create one queue file: one wins, the others are bound to its parameters.

mod common;
mod mcp_kit;

use std::sync::atomic::Ordering;
use std::time::Duration;

use common::dirs::TestDir;
use common::tracee::{Instruction, SUPPORTED, Stop, Tracee, mark};
use common::watchdog::Watchdog;
use common::worker::{Spawn, Worker};
use common::{announce, rounds};
use mcp_kit::*;
use tailrace::Error;
use tailrace::mcp::{FileParameters, Mode, OpenOptions, QueueFile};
use tailrace::shared::region::Region;
use tailrace::shared::signal::{Signal, Turn, Wait};

fn watch(name: &'static str) -> Watchdog {
    Watchdog::start(name, Duration::from_secs(if common::soak() { 3600 } else { 240 }))
}

#[test]
fn of_racing_creators_one_wins() {
    let _dog = watch("racing creators");
    let dir = TestDir::shm();
    let count = rounds(100, 1000);
    // Nobody has opened the system before the first round: its creation is a race, too.
    let racers: Vec<Worker> = (0..4)
        .map(|id| {
            let mut worker = Spawn::new(&dir, "racer").start_forked(|args| {
                args.ready();
                for round in 1..=count {
                    while args.word(0).load(Ordering::Acquire) < round {
                        if args.stop_requested() {
                            return;
                        }
                        std::thread::yield_now();
                    }
                    let mine = FileParameters {
                        name: format!("Q{round}"),
                        max_messages: 10 + id,
                        ..my_q()
                    };
                    let file = open(&system(&dir.queue()), &mine, Mode::Input);
                    args.word(2)
                        .store(file.parameters().max_messages.into(), Ordering::Relaxed);
                    args.word(1).store(round, Ordering::Release);
                    while args.word(3).load(Ordering::Acquire) < round && !args.stop_requested() {
                        std::thread::yield_now();
                    }
                }
            });
            worker.wait_ready();
            worker
        })
        .collect();
    let mut wins = [0; 4];
    for round in 1..=count {
        racers
            .iter()
            .for_each(|racer| racer.word(0).store(round, Ordering::Release));
        let done = || {
            racers
                .iter()
                .all(|racer| racer.word(1).load(Ordering::Acquire) == round)
        };
        assert!(common::wait_until(Duration::from_secs(20), done), "round {round}");
        let bound: Vec<u64> = racers
            .iter()
            .map(|racer| racer.word(2).load(Ordering::Relaxed))
            .collect();
        assert!(
            bound.iter().all(|b| *b == bound[0]),
            "round {round}: all are bound to one winner: {bound:?}"
        );
        wins[bound[0] as usize - 10] += 1;
        let system = system(&dir.queue());
        let [queue] = &system.queues().unwrap()[..] else {
            panic!("round {round}: one queue")
        };
        assert_eq!((queue.users, queue.readers), (4, 4), "round {round}");
        assert_eq!(system.counters().unwrap().created, round);
        racers
            .iter()
            .for_each(|racer| racer.word(3).store(round, Ordering::Release));
        let gone = || system.queues().unwrap().is_empty();
        assert!(
            common::wait_until(Duration::from_secs(20), gone),
            "round {round}: it disappears with its last user"
        );
    }
    announce(&format!(
        "mcp racing creators: {count} rounds of 4, one winner each; wins {wins:?}"
    ));
}

/// Where a racer says that it has opened the file, and how long the queue is that it found.
const OPENED: usize = 0;
const BOUND: usize = 1;

#[test]
fn of_a_crowd_that_creates_one_file_at_once_one_wins() {
    let _dog = watch("a crowd of creators");
    let dir = TestDir::shm();
    let count = rounds(100, 1000);
    let limit = Duration::from_secs(200);
    // They sleep at the gate: so many that spin would keep each other from getting there.
    let gate = Region::anonymous(4096).unwrap();
    let pass = |number: u32| {
        let opened = || Ok((gate.u32(0).load(Ordering::SeqCst) >= number).then_some(()));
        let signal = Signal::new(gate.u32(64));
        signal
            .wait_for(Wait::Forever, Turn::Patient, || Ok(()), opened)
            .unwrap();
    };
    let open_gate = |number: u32| {
        gate.u32(0).store(number, Ordering::SeqCst);
        Signal::new(gate.u32(64)).notify_all();
    };
    let mut racers: Vec<Worker> = (0..count as u32)
        .map(|id| {
            Spawn::new(&dir, "racer").start_forked(|args| {
                let mine = FileParameters {
                    name: "PRIZE".into(),
                    max_messages: 10 + id,
                    ..my_q()
                };
                args.ready();
                pass(1);
                let file = open(&system(&dir.queue()), &mine, Mode::Input);
                let bound = file.parameters().max_messages;
                args.word(BOUND).store(bound.into(), Ordering::Relaxed);
                args.word(OPENED).store(1, Ordering::Release);
                pass(2);
            })
        })
        .collect();
    racers.iter_mut().for_each(Worker::wait_ready);
    let started = std::time::Instant::now();
    open_gate(1);
    let opened = |racer: &Worker| racer.word(OPENED).load(Ordering::Acquire) == 1;
    assert!(
        common::wait_until(limit, || racers.iter().all(opened)),
        "everybody opens the file"
    );
    let took = started.elapsed();
    let bound = |racer: &Worker| racer.word(BOUND).load(Ordering::Relaxed);
    let winner = bound(&racers[0]);
    assert!(
        (10..10 + count).contains(&winner),
        "{winner} is what one of them asked for"
    );
    assert!(
        racers.iter().all(|racer| bound(racer) == winner),
        "all are bound to one winner"
    );

    let system = system(&dir.queue());
    let [queue] = &system.queues().unwrap()[..] else {
        panic!("one queue")
    };
    assert_eq!((queue.users, queue.readers), (count as u32, count as u32));
    assert_eq!(system.counters().unwrap().created, 1);

    open_gate(2);
    racers.iter_mut().for_each(|racer| racer.expect_success(limit));
    assert!(system.queues().unwrap().is_empty(), "it disappears with its last user");
    assert_eq!(system.counters().unwrap().users, 0);
    announce(&format!(
        "mcp: of {count} processes that created one file at once, number {} won; all had it after {took:?}",
        winner - 10
    ));
}

#[test]
fn who_waits_for_a_stopped_creator_can_be_interrupted() {
    if !SUPPORTED {
        return announce("SKIPPED, needs x86-64: stopping a creator at a system call");
    }
    let _dog = watch("a stopped creator");
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let mut creator = Tracee::start(&dir.scratch(), || {
        let system = mcp_kit::system(&dir.queue());
        mark();
        drop(open(&system, &my_q(), Mode::Input));
    });
    // The queue is announced, and its disk is about to be allocated.
    let allocates = |creator: &mut Tracee| {
        let at = creator.address();
        creator.instruction_at(at) == Instruction::SystemCall
            && creator.system_call_number() == nix::libc::SYS_fallocate
    };
    while !allocates(&mut creator) {
        assert_eq!(creator.step(), Stop::Step);
    }
    creator.leave_stopped();
    let mut turns = 0;
    let idle = || {
        turns += 1;
        if turns < 3 { Ok(()) } else { Err(Error::Interrupted) }
    };
    let opened = QueueFile::open_waiting(&system, &my_q(), Mode::Input, &OpenOptions::default(), idle);
    assert!(matches!(opened, Err(Error::Interrupted)), "{opened:?}");
    assert_eq!(creator.finish(), Ok(0));
    drop(open(&system, &my_q(), Mode::Input));
    assert!(system.queues().unwrap().is_empty());
}
