//! The numbered behaviours of MCPII 5.1 queue files, 15 to 27: what goes to disk and comes back, descriptors and buffers, parameters and names.

mod common;
mod mcp_kit;

use std::io::Write;
use std::time::{Duration, Instant};

use common::dirs::TestDir;
use common::skip_without_root;
use mcp_kit::*;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use tailrace::Error;
use tailrace::mcp::{FileParameters, Mode, Name, OpenOptions, QueueFile, System};
use tailrace::shared::signal::Wait;

fn in_memory_only(name: &str) -> FileParameters {
    FileParameters {
        name: name.into(),
        buffers: 20,
        ..my_q()
    }
}

#[test]
fn b15_the_insert_that_reaches_q_buffers_sends_the_tail_most_message_to_disk() {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let f = open(&system, &my_q(), Mode::InputOutput);
    let mut seen = Vec::new();
    for n in 0..6 {
        assert!(put(&f, None, format!("message {n}")).unwrap());
        seen.push((f.counters().in_memory, f.counters().spills));
    }
    assert_eq!(
        seen,
        [(1, 0), (2, 0), (2, 1), (2, 2), (2, 3), (2, 4)],
        "BUFFERS=3: the third is started out to disk"
    );
    let disk = std::fs::read(f.disk().0).unwrap();
    let on_disk: Vec<_> = disk
        .chunks(180)
        .take(4)
        .map(|s| String::from_utf8_lossy(&s[..9]).into_owned())
        .collect();
    assert_eq!(on_disk, ["message 2", "message 3", "message 4", "message 5"]);
    assert_eq!(drain(&f).unwrap().len(), 6);
}

#[test]
fn b16_a_queue_with_enough_buffers_never_spills() {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    for buffers in [20, 21] {
        let f = open(&system, &FileParameters { buffers, ..my_q() }, Mode::InputOutput);
        for n in 0..20 {
            assert!(put(&f, None, format!("{n}")).unwrap());
        }
        assert_eq!((f.counters().in_memory, f.counters().spills), (20, 0));
    }
}

#[test]
fn b17_getspace_may_roll_any_message_out() {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let f = open(&system, &in_memory_only("MEM"), Mode::InputOutput);
    let expected: Vec<Vec<u8>> = (0..12).map(|n| format!("message {n}").into_bytes()).collect();
    for message in &expected {
        assert!(put(&f, None, message).unwrap());
    }
    assert_eq!(
        system.reclaim().unwrap(),
        12,
        "even of a queue that never spills by itself"
    );
    let counters = system.counters().unwrap();
    assert_eq!((counters.buffers_in_use, counters.roll_outs), (0, 12));
    assert!(
        counters.buffers_in_pool <= 2,
        "what lies side by side is one piece again: {counters:?}"
    );
    assert_eq!(f.counters().in_memory, 0);
    assert_eq!(drain(&f).unwrap(), expected, "all of it comes back, in order");
}

#[test]
fn b18_removing_the_first_starts_a_look_ahead_read_of_the_next() {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let f = open(&system, &my_q(), Mode::InputOutput);
    for n in 0..6 {
        assert!(put(&f, None, format!("{n}")).unwrap());
    }
    assert_eq!((f.counters().in_memory, f.counters().look_aheads), (2, 0));
    assert_eq!(get(&f, None).unwrap(), text("0"));
    assert_eq!(f.counters().look_aheads, 0, "the next one is in memory");
    assert_eq!(get(&f, None).unwrap(), text("1"));
    assert_eq!(
        (f.counters().in_memory, f.counters().look_aheads),
        (1, 1),
        "the next one was on disk"
    );
    for n in 2..6 {
        assert_eq!(get(&f, None).unwrap(), text(&n.to_string()));
    }
    assert_eq!(f.counters().look_aheads, 4);
}

#[test]
fn b19_one_io_descriptor_for_each_mode_shared_by_the_family() {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let disks = |path: &std::path::Path| {
        let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        links
            .filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|target| target == path))
            .count()
    };
    for (mode, descriptors) in [(Mode::Input, 1), (Mode::Output, 1), (Mode::InputOutput, 2)] {
        let f = open(&system, &my_qff(), mode);
        assert_eq!(f.disk().1, descriptors, "{mode:?}");
        assert_eq!(disks(f.disk().0), descriptors, "as the kernel sees it");
    }
}

#[test]
fn b20_a_message_descriptor_links_both_ways() {
    // The two links show where a message leaves the middle of the list.
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let f = open(&system, &in_memory_only("MEM"), Mode::InputOutput);
    for n in 0..5 {
        assert!(put(&f, None, format!("{n}")).unwrap());
    }
    let mut batch = tailrace::mcp::Batch::new();
    let (_, holds) = f.hold(None, 5, &mut batch, Wait::No, || Ok(())).unwrap();
    f.acknowledge(&[holds[1], holds[3]]).unwrap();
    f.give_back(&[holds[4], holds[0], holds[2]]).unwrap();
    assert_eq!(drain(&f).unwrap(), [b"0", b"2", b"4"]);
}

#[test]
fn b21_descriptors_come_in_blocks_of_ten_and_one_block_is_kept() {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let f = open(
        &system,
        &FileParameters {
            max_messages: 50,
            buffers: 50,
            ..my_q()
        },
        Mode::InputOutput,
    );
    let blocks = || system.counters().unwrap().descriptor_blocks;
    let mut seen = Vec::new();
    for n in 0..21 {
        assert!(put(&f, None, format!("{n}")).unwrap());
        seen.push(blocks());
    }
    assert_eq!(seen, [[1; 10].as_slice(), &[2; 10], &[3]].concat());
    for _ in 0..15 {
        get(&f, None).unwrap();
    }
    assert_eq!(blocks(), 3, "kept for later use");
    drain(&f).unwrap();
    system.reclaim().unwrap();
    assert_eq!(blocks(), 1, "spare blocks are returned, one stays");
    assert!(put(&f, None, "x").unwrap());
    assert_eq!(blocks(), 1);
}

#[test]
fn b22_never_more_than_q_buffers_in_memory() {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    for buffers in 1..5 {
        let f = open(&system, &FileParameters { buffers, ..my_q() }, Mode::InputOutput);
        let check = |what: &str| {
            let in_memory = f.counters().in_memory;
            assert!(in_memory <= buffers.into(), "{what}: {in_memory} of {buffers}");
        };
        for n in 0..20 {
            let end = n % 3 == 0;
            assert!(
                if end {
                    put_top(&f, None, format!("{n}"))
                } else {
                    put(&f, None, format!("{n}"))
                }
                .unwrap()
            );
            check("after a write");
            if n % 4 == 0 {
                assert!(matches!(get(&f, None).unwrap(), Got::Text(_)));
                check("after a read");
            }
        }
        while f.message_count().unwrap() != [0] {
            assert!(matches!(get(&f, None).unwrap(), Got::Text(_)));
            check("while draining");
        }
    }
}

#[test]
fn b23_empty_buffers_stand_in_the_order_of_size_so_first_fit_is_best_fit() {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let f = open(
        &system,
        &FileParameters {
            record_size: 4000,
            buffers: 20,
            ..my_q()
        },
        Mode::InputOutput,
    );
    for size in [1000, 100, 3000, 500] {
        assert!(put(&f, None, vec![b'x'; size]).unwrap());
    }
    drain(&f).unwrap();
    let pooled = system.counters().unwrap();
    assert_eq!(pooled.buffers_in_pool, 4);
    // Each takes the smallest that is large enough, so all four find one and nothing is fetched.
    for size in [450, 2900, 90, 980] {
        assert!(put(&f, None, vec![b'y'; size]).unwrap());
    }
    assert_eq!(system.counters().unwrap().buffers_in_pool, 0);
    drain(&f).unwrap();
    // A larger one than all is fetched, and the pool keeps its four.
    assert!(put(&f, None, vec![b'z'; 4000]).unwrap());
    assert_eq!(system.counters().unwrap().buffers_in_pool, 4);
    drain(&f).unwrap();
    assert_eq!(system.counters().unwrap().buffers_in_pool, 5);
    system.reclaim().unwrap();
    let pieces = system.counters().unwrap().buffers_in_pool;
    assert!(
        pieces <= 1,
        "GETSPACE takes them back, {pieces} pieces are left between others"
    );
}

#[test]
fn b24_parameters_have_their_limits() {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let strict = OpenOptions {
        strict: true,
        ..OpenOptions::default()
    };
    let at = |max_messages, buffers, family_size| FileParameters {
        max_messages,
        buffers,
        family_size,
        ..my_q()
    };
    assert!(QueueFile::open(&system, &at(255, 255, 255), Mode::Input, &strict).is_ok());
    for (bad, name) in [
        (at(256, 2, 0), "max_messages"),
        (at(2, 256, 0), "buffers"),
        (at(2, 2, 256), "family_size"),
    ] {
        let error = refused(QueueFile::open(&system, &bad, Mode::Input, &strict)).to_string();
        assert!(
            error.contains(name) && error.contains("255") && error.contains("256"),
            "{error}"
        );
    }
    let large = FileParameters {
        name: "LARGE".into(),
        ..at(1000, 300, 300)
    };
    assert_eq!(
        open(&system, &large, Mode::Input).parameters().family_size,
        300,
        "today's sizes"
    );
    for bad in [at(0, 2, 0), at(2, 0, 0)] {
        assert!(matches!(
            refused(QueueFile::open(&system, &bad, Mode::Input, &OpenOptions::default())),
            Error::Invalid(_)
        ));
    }
}

#[test]
fn b25_in_a_family_every_parameter_counts_for_each_member() {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let f = open(&system, &my_qff(), Mode::InputOutput);
    for key in 1..=3 {
        for n in 0..10 {
            assert!(put(&f, key, format!("{key}.{n}")).unwrap());
        }
        assert!(!put(&f, key, "one too many").unwrap());
    }
    assert_eq!(f.message_count().unwrap(), [10, 10, 10]);
    let in_memory: Vec<u32> = system.queues().unwrap().iter().map(|q| q.in_memory).collect();
    assert_eq!(in_memory, [1, 1, 1], "BUFFERS=2 each: the second went to disk");
}

#[test]
fn b26_the_name_of_a_single_queue_is_mfid_and_fid() {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let named = |name: &str| FileParameters {
        name: name.into(),
        ..my_q()
    };
    let a = open(&system, &named("PAYROLL/INPUT"), Mode::InputOutput);
    let other = open(&system, &named("PAYROLL/OUTPUT"), Mode::InputOutput);
    assert!(put(&a, None, "a").unwrap());
    assert_eq!(
        get(&other, None).unwrap(),
        Got::Incomplete,
        "another FID is another queue"
    );
    let same = open(&system, &named("PAYROLL   INPUT"), Mode::InputOutput);
    assert_eq!(get(&same, None).unwrap(), text("a"), "the same twenty characters");
    assert_eq!(Name::parse("PAYROLL/INPUT").unwrap().to_string(), "PAYROLL/INPUT");
    for bad in ["", "TWENTY.ONE.CHARACTERS", "ELEVEN.CHAR/X", "X/ELEVEN.CHAR"] {
        let error = refused(QueueFile::open(
            &system,
            &named(bad),
            Mode::Input,
            &OpenOptions::default(),
        ));
        assert!(matches!(error, Error::Invalid(_)), "{bad:?}: {error}");
    }
}

#[test]
fn b27_members_are_named_by_mfid_and_a_synthesized_fid() {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let _f = open(&system, &my_qff(), Mode::Input);
    let names: Vec<String> = system.queues().unwrap().into_iter().map(|q| q.name).collect();
    assert_eq!(
        names,
        ["MY.QFF/###00000001", "MY.QFF/###00000002", "MY.QFF/###00000003"]
    );
    // The MFID is the first ten characters: whatever follows is replaced.
    let long = open(
        &system,
        &FileParameters {
            name: "ABCDEFGHIJKLM".into(),
            ..my_qff()
        },
        Mode::Input,
    );
    assert_eq!(long.parameters().name, "ABCDEFGHIJ");
    let begun = Instant::now();
    drop(long);
    assert!(begun.elapsed() < Duration::from_secs(10));
}

#[test]
fn without_space_for_more_memory_messages_go_to_their_places_on_queue_disk() {
    if skip_without_root("mounting a small tmpfs") {
        return;
    }
    let dir = TestDir::shm();
    let small = dir.scratch().join("small");
    std::fs::create_dir(&small).unwrap();
    mount(Some("none"), &small, Some("tmpfs"), MsFlags::empty(), Some("size=1m")).unwrap();
    let outcome = std::panic::catch_unwind(|| {
        let system = System::open(&small.join("system"), &tiny()).unwrap();
        let parameters = FileParameters {
            buffers: 20,
            record_size: 4000,
            ..my_q()
        };
        let f = open(&system, &parameters, Mode::InputOutput);
        let fill = std::fs::File::create(small.join("fill")).unwrap();
        while (&fill).write_all(&[1; 4096]).is_ok() {}
        let texts: Vec<Vec<u8>> = (0..20).map(|n| vec![n; 4000]).collect();
        for text in &texts {
            assert!(put(&f, None, text).unwrap());
        }
        assert!(f.counters().spills > 0, "{:?}", f.counters());
        assert_eq!(drain(&f).unwrap(), texts);
    });
    umount2(&small, MntFlags::MNT_DETACH).unwrap();
    outcome.unwrap();
}
