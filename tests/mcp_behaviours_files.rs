//! The numbered behaviours of MCPII 5.1 queue files, 28 to 44: opening, the FPB, READ and WRITE with their branches and keys.

mod common;
mod mcp_kit;

use std::cell::Cell;
use std::time::Duration;

use common::dirs::TestDir;
use mcp_kit::*;
use tailrace::Error;
use tailrace::mcp::{Device, End, FPB_BITS, FileParameters, Mode, OpenOptions, QueueFile, notation};
use tailrace::shared::signal::Wait;

fn old() -> FileParameters {
    FileParameters {
        device: Device::Old,
        ..my_q()
    }
}

#[test]
fn b28_open_links_to_the_queue_of_that_name_or_creates_it() {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let a = open(&system, &my_q(), Mode::Output);
    assert_eq!(a.counters().users, 1);
    let b = open(&system, &my_q(), Mode::Input);
    assert_eq!((a.counters().users, system.queues().unwrap().len()), (2, 1));
    assert!(put(&a, None, "x").unwrap());
    assert_eq!(get(&b, None).unwrap(), text("x"));
    b.close().unwrap();
    assert_eq!(a.counters().users, 1);
    let _other = open(&system, &my_qff(), Mode::Input);
    assert_eq!(system.queues().unwrap().len(), 4);
    assert_eq!(system.counters().unwrap().created, 2);
}

#[test]
fn b29_the_first_opener_binds_the_parameters() {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let _first = open(&system, &my_q(), Mode::Input);
    let other = FileParameters {
        max_messages: 99,
        buffers: 9,
        record_size: 999,
        ..my_q()
    };
    let second = open(&system, &other, Mode::Output);
    assert_eq!(second.parameters(), &my_q(), "later openers' parameters are ignored");
    assert!(matches!(
        refused(put(&second, None, [0; 81])),
        Error::TooLarge { size: 81, limit: 80 }
    ));
    let _family = open(&system, &my_qff(), Mode::Input);
    let five = FileParameters {
        family_size: 5,
        ..my_qff()
    };
    assert_eq!(open(&system, &five, Mode::Input).parameters().family_size, 3);
}

#[test]
fn b30_record_size_is_the_longest_message_and_shorter_ones_are_fine() {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let f = open(&system, &my_q(), Mode::InputOutput);
    for size in [0, 1, 79, 80] {
        let record = "r".repeat(size);
        assert!(put(&f, None, &record).unwrap());
        assert_eq!(get(&f, None).unwrap(), Got::Text(record));
    }
    assert!(matches!(refused(put(&f, None, [0; 81])), Error::TooLarge { .. }));
    assert!(matches!(refused(put_top(&f, None, [0; 81])), Error::TooLarge { .. }));
    assert_eq!(f.message_count().unwrap(), [0], "nothing was written");
}

#[test]
fn b31_both_device_types_make_the_same_queues() {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let new = open(&system, &my_q(), Mode::InputOutput);
    let old = open(&system, &old(), Mode::InputOutput);
    assert_eq!(system.queues().unwrap().len(), 1, "one queue for both");
    assert!(put(&old, None, "x").unwrap());
    assert_eq!(get(&new, None).unwrap(), text("x"));
    assert_eq!(get(&new, None).unwrap(), Got::Incomplete, "61");
    assert_eq!(get(&old, None).unwrap(), Got::Eof, "62");
    assert_eq!((Device::New.number(), Device::Old.number()), (61, 62));
    assert!(Device::from_number(60).is_err());
}

#[test]
fn b32_label_equation_to_queue_gives_61() {
    let card = notation::card::parse("?FILE CARDS QUEUE Q.MAX.MESSAGES=1 RECORD.SIZE=80").unwrap();
    assert_eq!(card[0].device.number(), 61);
    assert_eq!(card[0].to_fpb().unwrap()[0] >> 2, 61);
}

#[test]
fn b33_the_fpb_has_its_fields_in_packed_bits() {
    assert_eq!(FPB_BITS, 97);
    for family_size in [0, 1, 255] {
        for max_messages in [1, 20, 255] {
            for device in [Device::New, Device::Old] {
                let parameters = FileParameters {
                    family_size,
                    max_messages,
                    device,
                    buffers: (1 << 24) - 1,
                    ..my_q()
                };
                let block = parameters.to_fpb().unwrap();
                let bit = |n: usize| block[n / 8] >> (7 - n % 8) & 1;
                let number = |start, count| (start..start + count).fold(0_u32, |v, n| v << 1 | u32::from(bit(n)));
                assert_eq!(number(0, 6), device.number(), "HDWR");
                assert_eq!(number(6, 24), (1 << 24) - 1, "BUFFERS");
                assert_eq!(number(30, 2), 0, "INV.CHARS");
                assert_eq!(&block[4..10], b"      ", "SERIAL");
                assert_eq!((number(80, 8), number(88, 8)), (family_size, max_messages));
                assert_eq!(number(96, 1), u32::from(family_size > 0), "QUEUE.FILE");
                assert_eq!(FileParameters::from_fpb(&block, "MY.Q", 80).unwrap(), parameters);
            }
        }
    }
    let large = FileParameters {
        max_messages: 256,
        ..my_q()
    };
    assert!(matches!(refused(large.to_fpb()), Error::Invalid(_)));
}

#[test]
fn b34_only_buffers_can_be_left_out_and_are_two_then() {
    let sdl = notation::sdl::parse("FILE Q (DEVICE=QUEUE(7), RECORDS=80);").unwrap();
    assert_eq!(sdl[0].buffers, 2);
    let card = notation::card::parse("?FI Q QUEUE Q.MAX.MESSAGES=7 RECORD.SIZE=80").unwrap();
    assert_eq!(card[0].buffers, 2);
    let cobol = "SELECT Q ASSIGN TO QUEUE. FD Q VALUE OF Q.MAX.MESSAGES IS 7. 01 R PIC X(80).";
    assert_eq!(notation::cobol::parse(cobol).unwrap()[0].buffers, 2);
    for missing in ["?FI Q QUEUE RECORD.SIZE=80", "?FI Q QUEUE Q.MAX.MESSAGES=7"] {
        assert!(notation::card::parse(missing).is_err(), "{missing}");
    }
    assert!(notation::sdl::parse("FILE Q (DEVICE=QUEUE(7), BUFFERS=3);").is_err());
}

#[test]
fn b35_a_new_read_has_three_branches() {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let reader = open(&system, &my_qff(), Mode::Input);
    let writer = open(&system, &my_qff(), Mode::Output);
    for key in [-1, 4, i64::MAX, i64::MIN] {
        let error = refused(get(&reader, key));
        assert!(
            matches!(&error, Error::InvalidKey { key: k, expected } if *k == key && expected.contains("1 to 3")),
            "EXCEPTION: {error}"
        );
    }
    assert_eq!(get(&reader, 1).unwrap(), Got::Incomplete, "empty but writers exist");
    writer.close().unwrap();
    assert_eq!(get(&reader, 1).unwrap(), Got::Eof, "no writers and empty");
    assert!(
        matches!(refused(get(&reader, 4)), Error::InvalidKey { .. }),
        "argument errors come first"
    );
}

#[test]
fn b36_a_new_write_has_two() {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let writer = open(&system, &my_qff(), Mode::Output);
    for n in 0..10 {
        assert!(put(&writer, 2, format!("{n}")).unwrap());
    }
    assert!(!put(&writer, 2, "full").unwrap(), "INCOMPLETE.IO");
    assert!(put(&writer, 1, "another member is not").unwrap());
    assert!(
        matches!(refused(put(&writer, 4, "x")), Error::InvalidKey { .. }),
        "EXCEPTION"
    );
    let long = refused(put(&writer, 2, [0; 99]));
    assert!(
        matches!(long, Error::TooLarge { .. }),
        "argument errors come before full: {long}"
    );
}

#[test]
fn b37_an_old_read_gives_eof_for_empty() {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let writer = open(&system, &my_q(), Mode::Output);
    let reader = open(&system, &old(), Mode::Input);
    assert_eq!(get(&reader, None).unwrap(), Got::Eof, "though a writer exists");
    assert_eq!(
        get_within(&reader, None, Wait::Forever).unwrap(),
        Got::Eof,
        "it never waits"
    );
    assert!(put(&writer, None, "x").unwrap());
    assert_eq!(
        get(&reader, None).unwrap(),
        text("x"),
        "and goes on when there is something"
    );
    let family = open(
        &system,
        &FileParameters {
            device: Device::Old,
            ..my_qff()
        },
        Mode::Input,
    );
    assert!(matches!(refused(get(&family, 9)), Error::InvalidKey { .. }));
    assert_eq!(get(&family, 0).unwrap(), Got::Eof);
}

#[test]
fn b38_an_old_write_knows_only_the_exception() {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let one = FileParameters {
        max_messages: 1,
        device: Device::Old,
        ..my_qff()
    };
    let writer = open(&system, &one, Mode::Output);
    let reader = open(&system, &one, Mode::Input);
    assert!(matches!(refused(put(&writer, 0, "x")), Error::InvalidKey { .. }));
    assert!(put(&writer, 1, "1").unwrap());
    std::thread::scope(|scope| {
        let blocked = scope.spawn(|| writer.write(Some(1), b"2", End::Back, Wait::Forever, || Ok(())));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!blocked.is_finished(), "a full queue blocks");
        assert_eq!(get(&reader, 1).unwrap(), text("1"));
        assert!(blocked.join().unwrap().unwrap());
    });
}

#[test]
fn b39_members_have_keys_from_1_to_n() {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let f = open(&system, &my_qff(), Mode::InputOutput);
    for key in 1..=3 {
        assert!(put(&f, key, format!("member {key}")).unwrap());
    }
    for key in [3, 1, 2] {
        assert_eq!(get(&f, key).unwrap(), text(&format!("member {key}")));
    }
    let single = open(&system, &my_q(), Mode::InputOutput);
    assert!(
        matches!(refused(put(&single, 1, "x")), Error::InvalidKey { .. }),
        "a single queue has none"
    );
}

#[test]
fn b40_key_zero_reads_the_first_member_that_is_not_empty() {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let f = open(&system, &my_qff(), Mode::InputOutput);
    for (key, record) in [(3, "c"), (2, "b1"), (2, "b2"), (1, "a")] {
        assert!(put(&f, key, record).unwrap());
    }
    for expected in ["a", "b1", "b2"] {
        assert_eq!(get(&f, 0).unwrap(), text(expected));
    }
    assert!(put(&f, 1, "a again").unwrap());
    assert_eq!(get(&f, 0).unwrap(), text("a again"), "from member 1 each time");
    assert_eq!(get(&f, 0).unwrap(), text("c"));
    assert_eq!(get(&f, 0).unwrap(), Got::Incomplete);
}

#[test]
fn b41_a_write_with_key_zero_is_invalid() {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let f = open(&system, &my_qff(), Mode::Output);
    assert!(matches!(refused(put(&f, 0, "x")), Error::InvalidKey { key: 0, .. }));
    assert!(
        matches!(refused(put(&f, None, "x")), Error::InvalidKey { .. }),
        "and a family needs a key"
    );
    assert_eq!(f.message_count().unwrap(), [0, 0, 0]);
}

#[test]
fn b42_sdl_counts_keys_from_zero_and_minus_one_is_unspecific() {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let sdl = OpenOptions {
        sdl_keys: true,
        ..OpenOptions::default()
    };
    let f = QueueFile::open(&system, &my_qff(), Mode::InputOutput, &sdl).unwrap();
    let plain = open(&system, &my_qff(), Mode::InputOutput);
    assert!(put(&f, 0, "first").unwrap());
    assert_eq!(
        get(&plain, 1).unwrap(),
        text("first"),
        "external names still count from 1"
    );
    assert!(put(&f, 2, "third").unwrap());
    assert_eq!(get(&f, -1).unwrap(), text("third"));
    assert!(put(&f, 1, "second").unwrap());
    assert_eq!(
        get(&f, 0x00FF_FFFF).unwrap(),
        text("second"),
        "the complement of a 24-bit zero"
    );
    for key in [3, -2] {
        assert!(matches!(refused(get(&f, key)), Error::InvalidKey { .. }));
    }
    assert!(matches!(refused(put(&f, -1, "x")), Error::InvalidKey { .. }));
}

#[test]
fn b43_write_top_inserts_at_the_front() {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let f = open(&system, &my_q(), Mode::InputOutput);
    for n in 0..8 {
        assert!(put(&f, None, format!("back {n}")).unwrap());
    }
    for n in 0..8 {
        assert!(put_top(&f, None, format!("top {n}")).unwrap());
    }
    let mut expected: Vec<Vec<u8>> = (0..8).rev().map(|n| format!("top {n}").into_bytes()).collect();
    expected.extend((0..8).map(|n| format!("back {n}").into_bytes()));
    assert_eq!(
        drain(&f).unwrap(),
        expected,
        "a stack in front of a queue, spilled or not"
    );
    let family = open(&system, &my_qff(), Mode::InputOutput);
    assert!(put(&family, 1, "2").unwrap() && put_top(&family, 1, "1").unwrap());
    assert_eq!(get(&family, 1).unwrap(), text("1"), "WRITE QF.FAMILY [1] TOP (BUF)");
    let one = open(
        &system,
        &FileParameters {
            name: "ONE".into(),
            max_messages: 1,
            ..my_q()
        },
        Mode::InputOutput,
    );
    assert!(put_top(&one, None, "x").unwrap());
    assert!(
        !put_top(&one, None, "y").unwrap(),
        "TOP on a full queue is like any WRITE"
    );
}

#[test]
fn b44_use_procedures_run_at_q_empty_and_q_full() {
    // The procedures themselves are Python's `use_for` (tests/python/test_mcp.py); here are the conditions that call them.
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let one = FileParameters {
        max_messages: 1,
        ..my_q()
    };
    let f = open(&system, &one, Mode::InputOutput);
    let (empty, full) = (Cell::new(0), Cell::new(0));
    let read = || match get(&f, None).unwrap() {
        Got::Incomplete => empty.set(empty.get() + 1),
        other => assert_eq!(other, text("x")),
    };
    let write = || {
        if !put(&f, None, "x").unwrap() {
            full.set(full.get() + 1);
        }
    };
    read();
    write();
    write();
    read();
    read();
    assert_eq!((empty.get(), full.get()), (2, 1));
}
