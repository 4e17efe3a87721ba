//! The numbered behaviours of MCPII 5.1 queue files, 45 to 55: EOF, MESSAGE.COUNT, WAIT.

mod common;
mod mcp_kit;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use common::announce;
use common::dirs::TestDir;
use common::tracee::{Instruction, SUPPORTED, Stop, Tracee, mark};
use common::watchdog::Watchdog;
use mcp_kit::*;
use tailrace::Error;
use tailrace::mcp::{Batch, Device, End, FileParameters, Mode, QueueFile, Took, wait};
use tailrace::shared::signal::Wait;

/// The file has its Q.INSERT.OCCURRED.
fn occurred(file: &QueueFile) -> bool {
    wait(&[file], Wait::No, || Ok(())).unwrap() == 1
}

#[test]
fn b45_eof_needs_the_last_writer_closed_and_the_queue_empty() {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let reader = open(&system, &my_q(), Mode::Input);
    let (a, b) = (
        open(&system, &my_q(), Mode::Output),
        open(&system, &my_q(), Mode::Output),
    );
    assert!(put(&a, None, "last").unwrap());
    a.close().unwrap();
    assert_eq!(get(&reader, None).unwrap(), text("last"));
    assert_eq!(get(&reader, None).unwrap(), Got::Incomplete, "one writer is left");
    assert!(put(&b, None, "really last").unwrap());
    b.close().unwrap();
    assert_eq!(get(&reader, None).unwrap(), text("really last"), "not empty");
    assert_eq!(get(&reader, None).unwrap(), Got::Eof);
    assert!(!reader.abended().unwrap());
}

#[test]
fn b46_eof_is_a_pseudo_message_for_wait() {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let reader = open(&system, &my_q(), Mode::Input);
    let writer = open(&system, &my_q(), Mode::Output);
    assert!(put(&writer, None, "x").unwrap());
    writer.close().unwrap();
    assert_eq!(reader.message_count().unwrap(), [2], "one message and EOF");
    assert_eq!(get(&reader, None).unwrap(), text("x"));
    assert!(occurred(&reader), "the queue remains not empty for WAIT");
    assert_eq!(reader.message_count().unwrap(), [1]);
    assert_eq!(get(&reader, None).unwrap(), Got::Eof);
    assert!(!occurred(&reader));
}

#[test]
fn b47_eof_is_taken_once_and_stays() {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let reader = open(&system, &my_q(), Mode::Input);
    let other = open(&system, &my_q(), Mode::Input);
    open(&system, &my_q(), Mode::Output).close().unwrap();
    for _ in 0..3 {
        assert_eq!(get(&reader, None).unwrap(), Got::Eof);
        assert_eq!(reader.message_count().unwrap(), [0]);
    }
    assert_eq!(
        get_within(&reader, None, Wait::Forever).unwrap(),
        Got::Eof,
        "it never blocks"
    );
    assert_eq!(other.message_count().unwrap(), [1], "each open file has its own");
    assert_eq!(get(&other, None).unwrap(), Got::Eof);
}

#[test]
fn b48_eof_is_cleared_by_reopening_or_by_a_new_writer() {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let reader = open(&system, &my_q(), Mode::Input);
    let other = open(&system, &my_q(), Mode::Input);
    open(&system, &my_q(), Mode::Output).close().unwrap();
    assert_eq!(get(&reader, None).unwrap(), Got::Eof);
    assert_eq!(get(&other, None).unwrap(), Got::Eof);
    reader.close().unwrap();
    let reader = open(&system, &my_q(), Mode::Input);
    assert_eq!(
        get(&reader, None).unwrap(),
        Got::Incomplete,
        "it waits for the next writer"
    );
    assert_eq!(reader.message_count().unwrap(), [0]);
    assert_eq!(get(&other, None).unwrap(), Got::Eof, "the others keep theirs");
    let writer = open(&system, &my_q(), Mode::Output);
    for file in [&reader, &other] {
        assert_eq!(
            get(file, None).unwrap(),
            Got::Incomplete,
            "a new writer clears it for all"
        );
    }
    writer.close().unwrap();
    for file in [&reader, &other] {
        assert_eq!(file.message_count().unwrap(), [1]);
        assert_eq!(get(file, None).unwrap(), Got::Eof, "and its end is a new one");
    }
}

#[test]
fn b49_an_unspecific_read_gives_eof_only_when_all_members_are_there() {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let reader = open(&system, &my_qff(), Mode::Input);
    let writer = open(&system, &my_qff(), Mode::Output);
    assert!(put(&writer, 3, "x").unwrap());
    writer.close().unwrap();
    assert_eq!(
        get(&reader, 1).unwrap(),
        Got::Eof,
        "a specific read is like one on a single queue"
    );
    assert_eq!(get(&reader, 0).unwrap(), text("x"), "member 3 is not at EOF yet");
    assert_eq!(get(&reader, 0).unwrap(), Got::Eof);
    assert_eq!(get(&reader, 3).unwrap(), Got::Eof);
}

#[test]
fn b50_the_last_close_causes_q_insert_occurred_for_the_family() {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let reader = open(&system, &my_qff(), Mode::Input);
    let writer = open(&system, &my_qff(), Mode::Output);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| wait(&[&reader], seconds(30), || Ok(())).unwrap());
        std::thread::sleep(Duration::from_millis(50));
        assert!(!waiter.is_finished());
        writer.close().unwrap();
        assert_eq!(waiter.join().unwrap(), 1);
    });
}

#[test]
fn b51_message_count_shows_eof_until_a_specific_read_has_taken_it() {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let reader = open(&system, &my_qff(), Mode::Input);
    let writer = open(&system, &my_qff(), Mode::Output);
    assert!(put(&writer, 2, "x").unwrap());
    assert_eq!(reader.message_count().unwrap(), [0, 1, 0]);
    writer.close().unwrap();
    assert_eq!(
        reader.message_count().unwrap(),
        [1, 2, 1],
        "one more than the real messages"
    );
    assert_eq!(get(&reader, 1).unwrap(), Got::Eof);
    assert_eq!(reader.message_count().unwrap(), [0, 2, 1]);
    assert_eq!(get(&reader, 2).unwrap(), text("x"));
    assert_eq!(reader.message_count().unwrap(), [0, 1, 1]);
    assert_eq!(get(&reader, 2).unwrap(), Got::Eof);
    assert_eq!(reader.message_count().unwrap(), [0, 0, 1]);
    assert_eq!(get(&reader, 2).unwrap(), Got::Eof, "another read gives it again");
}

#[test]
fn b52_message_count_fills_a_result_field() {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let f = open(&system, &my_qff(), Mode::InputOutput);
    for n in 0..10 {
        assert!(put(&f, 1, format!("{n}")).unwrap());
    }
    assert!(put(&f, 3, "x").unwrap());
    assert_eq!(f.message_count_field(72, false).unwrap(), [0, 0, 10, 0, 0, 0, 0, 0, 1]);
    assert_eq!(f.message_count_field(72, true).unwrap(), b"010000001");
    assert_eq!(
        f.message_count_field(1000, true).unwrap(),
        b"010000001",
        "no more than there are"
    );
    assert_eq!(
        f.message_count_field(24, true).unwrap(),
        b"010",
        "cut at the field's length"
    );
    assert_eq!(f.message_count_field(21, false).unwrap(), [0, 0, 8], "to the bit");
    assert_eq!(f.message_count_field(0, false).unwrap(), [0; 0]);
    let single = open(&system, &my_q(), Mode::InputOutput);
    assert_eq!(single.message_count_field(24, true).unwrap(), b"000", "one count");
}

#[test]
fn b53_wait_gives_the_place_of_the_event_and_zero_for_the_time() {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let a = open(&system, &my_q(), Mode::InputOutput);
    let b = open(&system, &my_qff(), Mode::InputOutput);
    let tenth = Some(Duration::from_millis(100));
    assert_eq!(wait(&[&a, &b], Wait::from_timeout(tenth), || Ok(())).unwrap(), 0);
    assert!(put(&b, 3, "x").unwrap());
    assert_eq!(wait(&[&a, &b], seconds(10), || Ok(())).unwrap(), 2);
    assert_eq!(
        wait(&[&a, &b], seconds(10), || Ok(())).unwrap(),
        2,
        "a level, not an edge"
    );
    assert!(put(&a, None, "y").unwrap());
    assert_eq!(
        wait(&[&a, &b], seconds(10), || Ok(())).unwrap(),
        1,
        "the first in the list"
    );
    // Files of two systems have no signal in common.
    let elsewhere = TestDir::shm();
    let far = open(&mcp_kit::system(&elsewhere.queue()), &my_q(), Mode::InputOutput);
    drain(&a).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| wait(&[&a, &far], seconds(30), || Ok(())).unwrap());
        std::thread::sleep(Duration::from_millis(30));
        assert!(put(&far, None, "z").unwrap());
        assert_eq!(waiter.join().unwrap(), 2);
    });
}

#[test]
fn b54_there_is_no_eof_for_writers() {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let writer = open(&system, &my_q(), Mode::Output);
    let reader = open(&system, &my_q(), Mode::Input);
    reader.close().unwrap();
    assert!(put(&writer, None, "x").unwrap(), "a write without readers is a write");
    assert_eq!(writer.message_count().unwrap(), [1]);
}

#[test]
fn b55_the_advice_works_length_one_blocking_and_the_eof_branch() {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let short = FileParameters {
        max_messages: 1,
        buffers: 1,
        ..my_q()
    };
    let reader = open(&system, &short, Mode::Input);
    let writer = open(&system, &short, Mode::Output);
    let records: Vec<String> = std::thread::scope(|scope| {
        scope.spawn(move || {
            for n in 0..500 {
                assert!(
                    writer
                        .write(None, format!("{n}").as_bytes(), End::Back, seconds(30), || Ok(()))
                        .unwrap()
                );
            }
        });
        let mut records = Vec::new();
        while let Got::Text(record) = get_within(&reader, None, seconds(30)).unwrap() {
            records.push(record);
        }
        records
    });
    let expected: Vec<String> = (0..500).map(|n| n.to_string()).collect();
    assert_eq!(records, expected);
    assert_eq!(get(&reader, None).unwrap(), Got::Eof, "the end, not an empty queue");
}

#[test]
fn an_old_file_is_not_at_its_end_while_its_message_moves_to_disk() {
    if !SUPPORTED {
        return announce("SKIPPED, needs x86-64: stopping a writer at a system call");
    }
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let parameters = FileParameters {
        buffers: 2,
        device: Device::Old,
        ..my_q()
    };
    let reader = open(&system, &parameters, Mode::Input);
    let mut writer = Tracee::start(&dir.scratch(), || {
        let f = open(&mcp_kit::system(&dir.queue()), &parameters, Mode::Output);
        put(&f, None, "second").unwrap();
        mark();
        put_top(&f, None, "first").unwrap();
    });
    let spills = |writer: &mut Tracee| {
        let at = writer.address();
        writer.instruction_at(at) == Instruction::SystemCall && writer.system_call_number() == nix::libc::SYS_pwrite64
    };
    while !spills(&mut writer) {
        assert_eq!(writer.step(), Stop::Step);
    }
    writer.leave_stopped();
    let hold = || {
        let mut texts = Batch::new();
        let (took, _) = reader.hold(None, 1, &mut texts, Wait::No, || Ok(())).unwrap();
        (took, texts.bytes().to_vec())
    };
    assert_eq!(hold(), (Took::Messages(1), b"first".to_vec()));
    assert_eq!(hold(), (Took::Nothing, vec![]));
    assert_eq!(writer.finish(), Ok(0));
    assert_eq!(hold(), (Took::Messages(1), b"second".to_vec()));
    assert_eq!(hold(), (Took::End, vec![]));
}

#[test]
fn who_stops_inside_the_monitor_keeps_nobody_for_ever() {
    if !SUPPORTED {
        return announce("SKIPPED, needs x86-64: stopping a writer at an instruction");
    }
    let _dog = Watchdog::start(
        "a writer that is stopped inside the monitor",
        Duration::from_secs(if common::soak() { 3600 } else { 240 }),
    );
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let file = open(&system, &my_q(), Mode::InputOutput);
    let lock = lock_word(&dir.queue());
    let mut writer = Tracee::start(&dir.scratch(), || {
        let f = open(&mcp_kit::system(&dir.queue()), &my_q(), Mode::Output);
        mark();
        put(&f, None, "from inside").unwrap();
    });
    while lock() == 0 {
        assert_eq!(writer.step(), Stop::Step);
    }
    writer.leave_stopped();
    let moment = || Wait::from_timeout(Some(Duration::from_millis(10)));
    // Far less than the second that a call takes which must not say "nothing" too early; not to be reached by a wrong build.
    let begun = Instant::now();
    assert!(!file.write(None, b"x", End::Back, moment(), || Ok(())).unwrap());
    assert_eq!(get_within(&file, None, moment()).unwrap(), Got::Incomplete);
    let interrupted = |done: Result<bool, Error>| matches!(done, Err(Error::Interrupted));
    let interrupt = || Err(Error::Interrupted);
    assert!(interrupted(file.write(None, b"x", End::Back, Wait::Forever, interrupt)));
    assert!(interrupted(
        file.read(None, 1, &mut Batch::new(), Wait::Forever, interrupt)
            .map(|_| true)
    ));
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    assert!(matches!(file.message_count(), Err(Error::TimedOut)));
    assert!(matches!(system.counters(), Err(Error::TimedOut)));
    assert!(matches!(
        file.close_idling(|| Err(Error::Interrupted)),
        Err(Error::Interrupted)
    ));
    assert_eq!(writer.finish(), Ok(0));
    assert_eq!(get(&file, None).unwrap(), text("from inside"));
    assert_eq!(file.message_count().unwrap(), [0]);
}

/// Looks at the word of the monitor's lock.
fn lock_word(directory: &Path) -> impl Fn() -> u64 + use<> {
    let mut files = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let system = files
        .find(|path| path.extension().is_some_and(|end| end == "system"))
        .unwrap();
    let system = fs::File::open(system).unwrap();
    move || {
        let mut word = [0; 8];
        system.read_exact_at(&mut word, 64).unwrap();
        u64::from_le_bytes(word)
    }
}
