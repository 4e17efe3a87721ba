//! The numbered behaviours of MCPII 5.1 queue files, 1 to 14: what a queue is, what it does when it is full or empty, its descriptor and its disk.

mod common;
mod mcp_kit;

use std::time::Duration;

use common::dirs::TestDir;
use mcp_kit::*;
use tailrace::Error;
use tailrace::mcp::{FileParameters, Mode};
use tailrace::shared::signal::Wait;

fn in_memory_only(name: &str) -> FileParameters {
    FileParameters {
        name: name.into(),
        buffers: 20,
        ..my_q()
    }
}

#[test]
fn b01_a_queue_has_a_name_a_user_count_a_message_count_and_an_order() {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let a = open(&system, &my_q(), Mode::Output);
    let b = open(&system, &my_q(), Mode::Input);
    for message in ["one", "two", "three"] {
        assert!(put(&a, None, message).unwrap());
    }
    let [queue] = &system.queues().unwrap()[..] else {
        panic!("one queue")
    };
    assert_eq!((queue.name.as_str(), queue.users, queue.messages), ("MY.Q", 2, 3));
    assert_eq!(get(&b, None).unwrap(), text("one"), "removed from the front");
    assert!(put(&a, None, "four").unwrap());
    for message in ["two", "three", "four"] {
        assert_eq!(get(&b, None).unwrap(), text(message), "added at the back");
    }
}

#[test]
fn b02_several_write_and_several_read() {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let keeper = open(&system, &my_q(), Mode::Input);
    let read: Vec<String> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..3).map(|_| open(&system, &my_q(), Mode::Output)).collect();
        let readers: Vec<_> = (0..3).map(|_| open(&system, &my_q(), Mode::Input)).collect();
        for (id, writer) in writers.into_iter().enumerate() {
            scope.spawn(move || {
                for n in 0..200 {
                    let record = format!("{id}:{n:03}");
                    assert!(
                        writer
                            .write(
                                None,
                                record.as_bytes(),
                                tailrace::mcp::End::Back,
                                seconds(30),
                                || Ok(())
                            )
                            .unwrap()
                    );
                }
            });
        }
        let readers: Vec<_> = readers
            .into_iter()
            .map(|reader| {
                scope.spawn(move || {
                    let mut mine = Vec::new();
                    while let Got::Text(record) = get_within(&reader, None, seconds(30)).unwrap() {
                        mine.push(record);
                    }
                    for id in 0..3 {
                        let of_one: Vec<_> = mine.iter().filter(|r| r.starts_with(&format!("{id}:"))).collect();
                        assert!(of_one.is_sorted(), "a reader sees each writer in order");
                    }
                    mine
                })
            })
            .collect();
        readers.into_iter().flat_map(|reader| reader.join().unwrap()).collect()
    });
    let mut read = read;
    read.sort();
    let expected: Vec<String> = (0..3)
        .flat_map(|id| (0..200).map(move |n| format!("{id}:{n:03}")))
        .collect();
    assert_eq!(read, expected, "each record once");
    drop(keeper);
}

#[test]
fn b03_users_reach_queues_only_through_files_of_their_mode() {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let input = open(&system, &my_q(), Mode::Input);
    let output = open(&system, &my_q(), Mode::Output);
    assert!(refused(put(&input, None, "x")).to_string().contains("open for input"));
    assert!(refused(get(&output, None)).to_string().contains("open for output"));
    output.close().unwrap();
    assert!(matches!(refused(put(&output, None, "x")), Error::Closed));
}

#[test]
fn b04_the_maximum_length_is_fixed_at_creation() {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let two = FileParameters {
        max_messages: 2,
        ..my_q()
    };
    let a = open(&system, &two, Mode::Output);
    let b = open(
        &system,
        &FileParameters {
            max_messages: 200,
            ..my_q()
        },
        Mode::Output,
    );
    assert!(put(&a, None, "1").unwrap() && put(&b, None, "2").unwrap());
    assert!(!put(&a, None, "3").unwrap() && !put(&b, None, "3").unwrap());
    assert_eq!(b.parameters().max_messages, 2);
}

#[test]
fn b05_incomplete_io_prevents_blocking() {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let one = FileParameters {
        max_messages: 1,
        buffers: 1,
        ..my_q()
    };
    let f = open(&system, &one, Mode::InputOutput);
    assert_eq!(get(&f, None).unwrap(), Got::Incomplete, "READ on empty");
    assert!(put(&f, None, "x").unwrap());
    assert!(!put(&f, None, "y").unwrap(), "WRITE on full");
    assert_eq!(get(&f, None).unwrap(), text("x"));
}

#[test]
fn b06_without_the_branch_the_process_is_blocked_until_it_can_go_on() {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let one = FileParameters {
        max_messages: 1,
        buffers: 1,
        ..my_q()
    };
    let writer = open(&system, &one, Mode::Output);
    let reader = open(&system, &one, Mode::Input);
    std::thread::scope(|scope| {
        let blocked_reader = scope.spawn(|| get_within(&reader, None, Wait::Forever).unwrap());
        std::thread::sleep(Duration::from_millis(60));
        assert!(!blocked_reader.is_finished(), "nothing is there");
        assert!(put(&writer, None, "1").unwrap());
        assert_eq!(blocked_reader.join().unwrap(), text("1"));

        assert!(put(&writer, None, "2").unwrap());
        let blocked_writer =
            scope.spawn(|| writer.write(None, b"3", tailrace::mcp::End::Back, Wait::Forever, || Ok(())));
        std::thread::sleep(Duration::from_millis(60));
        assert!(!blocked_writer.is_finished(), "it is full");
        assert_eq!(get(&reader, None).unwrap(), text("2"));
        assert!(blocked_writer.join().unwrap().unwrap());
    });
    assert_eq!(get(&reader, None).unwrap(), text("3"));
}

#[test]
fn b07_an_empty_queue_is_not_end_of_file() {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let reader = open(&system, &my_q(), Mode::Input);
    assert_eq!(get(&reader, None).unwrap(), Got::Incomplete, "no writer yet");
    let writer = open(&system, &my_q(), Mode::Output);
    assert_eq!(
        get(&reader, None).unwrap(),
        Got::Incomplete,
        "a writer that has written nothing"
    );
    assert!(put(&writer, None, "x").unwrap());
    assert_eq!(get(&reader, None).unwrap(), text("x"));
    assert_eq!(get(&reader, None).unwrap(), Got::Incomplete, "empty again");
}

#[test]
fn b08_each_record_enters_the_queue_at_once() {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let writer = open(&system, &my_q(), Mode::Output);
    let reader = open(&system, &my_q(), Mode::Input);
    for n in 0..5 {
        assert!(put(&writer, None, format!("record {n}")).unwrap());
        assert_eq!(
            get(&reader, None).unwrap(),
            text(&format!("record {n}")),
            "no blocking of records"
        );
    }
}

#[test]
fn b09_buffers_and_descriptors_are_pooled_for_the_whole_system_and_kept_when_empty() {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let a = open(&system, &in_memory_only("A"), Mode::InputOutput);
    let b = open(&system, &in_memory_only("B"), Mode::InputOutput);
    for n in 0..7 {
        assert!(put(&a, None, format!("{n}")).unwrap());
    }
    let full = system.counters().unwrap();
    assert_eq!(
        (full.descriptors_in_use, full.buffers_in_use, full.buffers_in_pool),
        (7, 7, 0)
    );
    drain(&a).unwrap();
    let empty = system.counters().unwrap();
    assert_eq!(
        (empty.descriptors_in_use, empty.buffers_in_use, empty.buffers_in_pool),
        (0, 0, 7)
    );
    for n in 0..7 {
        assert!(put(&b, None, format!("{n}")).unwrap());
    }
    let reused = system.counters().unwrap();
    assert_eq!(
        (reused.buffers_in_use, reused.buffers_in_pool),
        (7, 0),
        "the other queue uses them again"
    );
    assert_eq!(
        (reused.memory, reused.descriptor_blocks),
        (full.memory, full.descriptor_blocks)
    );
}

#[test]
fn b10_an_empty_queue_has_nothing_but_its_descriptor() {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let files: Vec<_> = (0..50)
        .map(|n| open(&system, &in_memory_only(&format!("Q{n}")), Mode::Output))
        .collect();
    let counters = system.counters().unwrap();
    assert_eq!(system.queues().unwrap().len(), 50);
    assert_eq!(
        (
            counters.descriptors_in_use,
            counters.buffers_in_use,
            counters.descriptor_blocks
        ),
        (0, 0, 0)
    );
    drop(files);
    assert!(system.queues().unwrap().is_empty());
}

#[test]
fn b11_a_q_key_is_good_for_one_queue_only() {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let reader = open(&system, &my_q(), Mode::Input);
    let writer = open(&system, &my_q(), Mode::Output);
    assert!(put(&writer, None, "for the first").unwrap());
    drop((reader, writer));
    // The next queue gets the same place, but not the same key: nothing of the old one shows through.
    let other = open(
        &system,
        &FileParameters {
            name: "OTHER".into(),
            ..my_q()
        },
        Mode::InputOutput,
    );
    assert_eq!(get(&other, None).unwrap(), Got::Incomplete);
    let again = open(&system, &my_q(), Mode::InputOutput);
    assert_eq!(get(&again, None).unwrap(), Got::Incomplete);
    assert_ne!(other.disk().0, again.disk().0, "nor do queue disks");
}

#[test]
fn b12_disk_is_allocated_at_creation_in_segments_of_180_bytes() {
    use std::os::unix::fs::MetadataExt;
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let document = FileParameters {
        max_messages: 255,
        record_size: 200,
        ..my_q()
    };
    assert_eq!(document.disk_segments(), 510, "the document's example");
    let f = open(&system, &document, Mode::Output);
    let disk = std::fs::metadata(f.disk().0).unwrap();
    assert_eq!(disk.len(), 510 * 180);
    assert!(disk.blocks() * 512 >= 510 * 180, "allocated, not sparse");
    let family = open(&system, &my_qff(), Mode::Output);
    assert_eq!(
        std::fs::metadata(family.disk().0).unwrap().len(),
        3 * 10 * 180,
        "for each member"
    );
}

#[test]
fn b13_disk_is_allocated_even_when_all_fits_into_buffers() {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let f = open(&system, &in_memory_only("MEM"), Mode::Output);
    assert_eq!(std::fs::metadata(f.disk().0).unwrap().len(), 20 * 180);
}

#[test]
fn b14_queue_disk_goes_with_the_queue_and_nothing_is_durable() {
    let dir = TestDir::shm();
    let system = system(&dir.queue());
    let f = open(&system, &my_q(), Mode::InputOutput);
    for n in 0..20 {
        assert!(put(&f, None, format!("{n}")).unwrap());
    }
    let disk = f.disk().0.to_owned();
    assert!(disk.exists() && f.counters().spills > 0);
    drop(f);
    assert!(!disk.exists(), "returned with the last user");
    let f = open(&system, &my_q(), Mode::InputOutput);
    assert_eq!(f.message_count().unwrap(), [0]);
    // Disks and memory that another boot left are removed by the next opener.
    let stale = [
        "mcp-00000000.system",
        "mcp-00000000.memory.1",
        "mcp-00000000.1f.0.1.disk",
    ]
    .map(|n| dir.queue().join(n));
    for path in &stale {
        std::fs::write(path, b"stale").unwrap();
    }
    drop((f, system));
    let _system = mcp_kit::system(&dir.queue());
    assert!(stale.iter().all(|path| !path.exists()), "clear/start returns them");
}
