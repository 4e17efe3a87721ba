//! The durable queue and the world around it: the original's lock, full and read-only disks, ids that run out, other programs
//! that worked on the files.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::dirs::TestDir;
use common::watchdog::Watchdog;
use common::{announce, soak};
use tailrace::Error;
use tailrace::qewqew::{DurableQueue, EPOCH_SHIFT, Options, RangeReader, Role, SyncMode};

const MODES: [SyncMode; 3] = [SyncMode::Always, SyncMode::Group, SyncMode::Never];

fn options(chunk_size: u64, sync: SyncMode) -> Options {
    Options {
        chunk_size,
        sync,
        ..Options::default()
    }
}

/// A Java that tries to lock the head file; its first word.
fn java(head: &Path) -> Option<(Child, String)> {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/java/LockHead.java");
    let spawned = Command::new("java")
        .arg(program)
        .arg(head)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let Ok(mut child) = spawned else {
        announce("SKIPPED: no java to take the original's lock with");
        return None;
    };
    let mut word = String::new();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    output.read_line(&mut word).unwrap();
    if word.is_empty() {
        child.wait().unwrap();
        announce("SKIPPED: this java cannot run a single source file");
        return None;
    }
    Some((child, word.trim().to_owned()))
}

#[test]
fn the_original_and_we_keep_each_other_out() {
    let _dog = Watchdog::start("java", Duration::from_secs(120));
    let dir = TestDir::disk();
    let path = dir.queue().join("q");
    for role in [Role::Producer, Role::Consumer, Role::Both] {
        let own = || Options {
            role,
            ..options(100, SyncMode::Always)
        };
        let queue = DurableQueue::open(&path, own()).unwrap();
        let Some((mut child, word)) = java(&path) else { return };
        assert_eq!(word, "refused", "while we have it open as {role:?}");
        child.wait().unwrap();
        queue.close().unwrap();

        let (mut child, word) = java(&path).unwrap();
        assert_eq!(word, "locked", "when nobody has it open");
        let refused = DurableQueue::open(&path, own());
        assert!(matches!(refused, Err(Error::AlreadyOpen(_))), "{role:?}: {refused:?}");
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        child.wait().unwrap();
        DurableQueue::open(&path, own()).unwrap().close().unwrap();
    }
}

/// A small file system of its own, unmounted when dropped.
struct Mount(PathBuf);

impl Mount {
    fn tmpfs(dir: &TestDir, options: &str) -> Option<Self> {
        let point = dir.scratch().join("mnt");
        fs::create_dir_all(&point).unwrap();
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "tmpfs"])
            .arg(&point)
            .status();
        mount.is_ok_and(|status| status.success()).then_some(Mount(point))
    }

    fn remount(&self, options: &str) {
        let status = Command::new("mount")
            .args(["-o", &format!("remount,{options}")])
            .arg(&self.0)
            .status();
        assert!(status.unwrap().success());
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_is_an_error_and_loses_nothing() {
    if common::skip_without_root("a tmpfs of 1 MiB") {
        return;
    }
    for sync in MODES {
        for crc in [false, true] {
            let dir = TestDir::shm();
            let Some(mount) = Mount::tmpfs(&dir, "size=1m") else {
                return announce("SKIPPED: cannot mount a tmpfs");
            };
            let path = mount.0.join("q");
            let own = || Options {
                crc,
                ..options(64 << 10, sync)
            };
            let queue = DurableQueue::open(&path, own()).unwrap();
            let mut stored = 0_u32;
            let error = loop {
                match queue.enqueue(&[stored as u8; 5000]) {
                    Ok(()) => stored += 1,
                    Err(error) => break error,
                }
                assert!(stored < 1000, "a disk of 1 MiB never gets full");
            };
            let is_full = matches!(&error, Error::Io { source, .. } if source.raw_os_error() == Some(28));
            assert!(is_full, "{sync:?} crc={crc}: {error}");
            assert!(stored > 50, "{sync:?} crc={crc}: full after {stored}");
            // An enqueue that failed for the disk may have happened; all before it have.
            let check = |queue: &DurableQueue, from: u32| {
                for expected in from..stored {
                    assert_eq!(
                        queue.dequeue().unwrap().unwrap(),
                        [expected as u8; 5000],
                        "{sync:?} crc={crc}"
                    );
                }
            };
            // Room comes back with the chunks that are consumed.
            for expected in 0..40_u32 {
                assert_eq!(queue.dequeue().unwrap().unwrap(), [expected as u8; 5000]);
            }
            queue.close().unwrap();
            drop(queue);
            let queue = open_when_there_is_room(&path, &own);
            queue.enqueue(b"there is room again").unwrap();
            check(&queue, 40);
            let rest: Vec<Vec<u8>> = std::iter::from_fn(|| queue.dequeue().unwrap()).collect();
            assert_eq!(rest.last().unwrap(), b"there is room again");
            assert!(rest.len() <= 2);
            queue.close().unwrap();
            assert_eq!(fs::read_dir(&mount.0).unwrap().count(), 0);
        }
    }
}

/// A process that another test is forking has copies of all descriptors for a moment, and with them the space of removed files.
fn open_when_there_is_room(path: &Path, own: &dyn Fn() -> Options) -> DurableQueue {
    for _ in 0..500 {
        match DurableQueue::open(path, own()) {
            Err(Error::Io { source, .. }) if source.raw_os_error() == Some(28) => {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            opened => return opened.unwrap(),
        }
    }
    panic!("there is no room for {} after five seconds", path.display());
}

#[test]
fn a_read_only_disk_is_an_error_for_a_queue_and_none_for_a_reader() {
    if common::skip_without_root("a read-only mount") {
        return;
    }
    let dir = TestDir::shm();
    let Some(mount) = Mount::tmpfs(&dir, "size=8m") else {
        return announce("SKIPPED: cannot mount a tmpfs");
    };
    let path = mount.0.join("q");
    let queue = DurableQueue::open(&path, options(100, SyncMode::Never)).unwrap();
    let start = queue.tail_position().unwrap();
    for i in 0..9_u8 {
        queue.enqueue(&[i; 30]).unwrap();
    }
    let end = queue.tail_position().unwrap();
    queue.close().unwrap();
    drop(queue);
    mount.remount("ro");
    let refused = DurableQueue::open(&path, options(100, SyncMode::Never));
    let is_read_only = matches!(&refused, Err(Error::Io { source, .. }) if source.raw_os_error() == Some(30));
    assert!(is_read_only, "{refused:?}");
    let read = RangeReader::open(&path, false).unwrap().read_range(start, end).unwrap();
    assert_eq!(read, (0..9).map(|i| vec![i; 30]).collect::<Vec<_>>());
    mount.remount("rw");
    let queue = DurableQueue::open(&path, options(100, SyncMode::Never)).unwrap();
    assert_eq!(queue.len().unwrap(), 9);
}

/// What the original does to files that keep positions, written by hand: it starts an exhausted chunk over.
#[test]
fn positions_begin_a_new_epoch_when_another_program_has_worked() {
    let dir = TestDir::shm();
    let path = dir.queue().join("q");
    let own = || options(200, SyncMode::Never);
    let queue = DurableQueue::open(&path, own()).unwrap();
    let start = queue.tail_position().unwrap();
    queue.enqueue_many(&[b"ours", b"too!"]).unwrap();
    let end = queue.tail_position().unwrap();
    queue.close().unwrap();
    // Opening and closing it ourselves changes nothing.
    DurableQueue::open(&path, own()).unwrap().close().unwrap();
    assert_eq!(
        RangeReader::open(&path, false)
            .unwrap()
            .read_range(start, end)
            .unwrap()
            .len(),
        2
    );
    // The other program consumes both, starts over, and appends as many bytes again.
    let chunk = dir.queue().join("q.1");
    let mut bytes = fs::read(&chunk).unwrap();
    bytes[..8].copy_from_slice(&[0, 0, 0, 10, 0, 0, 0, 22]);
    bytes[10..22].copy_from_slice(&[0, 10, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    fs::write(&chunk, bytes).unwrap();
    let queue = DurableQueue::open(&path, own()).unwrap();
    let stale = queue.read_range(start, end);
    assert!(
        matches!(&stale, Err(Error::MessageNotFound(text)) if text.contains("another program")),
        "{stale:?}"
    );
    let head = queue.head_position().unwrap();
    assert_eq!(head >> EPOCH_SHIFT, (start >> EPOCH_SHIFT) + 1);
    let now = queue.read_range(head, queue.tail_position().unwrap()).unwrap();
    assert_eq!(now, [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]]);
}

/// Wherever checksums are kept they are checked: by the consumer, by a reader of ranges, by verify().
#[test]
fn a_reader_of_ranges_sees_damage_too() {
    let dir = TestDir::shm();
    let path = dir.queue().join("q");
    let own = || Options {
        crc: true,
        ..options(200, SyncMode::Group)
    };
    let queue = DurableQueue::open(&path, own()).unwrap();
    let start = queue.tail_position().unwrap();
    queue.enqueue_many(&[b"one", b"two"]).unwrap();
    let end = queue.tail_position().unwrap();
    let reader = RangeReader::open(&path, false).unwrap();
    assert_eq!(reader.read_range(start, end).unwrap(), [b"one", b"two"]);
    let chunk = fs::File::options().write(true).open(dir.queue().join("q.1")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&chunk, b"T", 10 + 2 + 3 + 2).unwrap();
    let damaged = reader.read_range(start, end);
    assert!(matches!(damaged, Err(Error::Corrupt(_))), "{damaged:?}");
    assert_eq!(queue.dequeue().unwrap().unwrap(), b"one");
    assert!(matches!(queue.dequeue(), Err(Error::Corrupt(_))));
    assert_eq!(queue.repair().unwrap().problems.len(), 1);
    assert_eq!(queue.dequeue().unwrap(), None);
}

/// A killed process leaves notes of its commits in the chunk. Whoever comes next is the original: it consumes everything,
/// starts the chunk over, and its messages are as long as ours were.
#[test]
fn notes_of_commits_say_nothing_about_what_the_original_has_written_since() {
    for theirs in 1..6 {
        let dir = TestDir::shm();
        let path = dir.queue().join("q");
        let own = options(400, SyncMode::Always);
        let (killed_path, killed_options) = (path.clone(), own.clone());
        let mut victim = common::worker::Spawn::new(&dir, "victim").start_forked(move |_| {
            let queue = DurableQueue::open(&killed_path, killed_options).unwrap();
            for number in 0..5 {
                queue.enqueue(&[number; 30]).unwrap();
            }
            common::process::exit_now(0);
        });
        victim.expect_success(Duration::from_secs(20));
        let chunk = dir.queue().join("q.1");
        let mut bytes = fs::read(&chunk).unwrap();
        assert_ne!(bytes[400 - 32..], [0; 32], "there are no notes");
        let expected: Vec<Vec<u8>> = (0..theirs).map(|number| vec![100 + number; 30]).collect();
        let mut at = 10;
        for message in &expected {
            bytes[at + 2..at + 32].copy_from_slice(message);
            at += 32;
        }
        bytes[..8].copy_from_slice(&[0, 0, 0, 10, 0, 0, 0, at as u8]);
        fs::write(&chunk, bytes).unwrap();
        let queue = DurableQueue::open(&path, own).unwrap();
        assert_eq!(queue.dequeue_many(10).unwrap(), expected);
    }
}

/// Whoever knows where notes are taken for ones can put something like it into a message that ends there.
#[test]
fn a_message_that_looks_like_a_note_stays_what_it_is() {
    let mut note = [&10_u32.to_le_bytes()[..], &10_u32.to_le_bytes(), &[0; 4]].concat();
    let own = crc32c::crc32c_append(crc32c::crc32c(&1_u16.to_le_bytes()), &note);
    note.extend_from_slice(&own.to_le_bytes());
    let message = [vec![7; 400 - 12 - 16], note].concat();
    for sync in MODES {
        let dir = TestDir::shm();
        let path = dir.queue().join("q");
        let queue = DurableQueue::open(&path, options(400, sync)).unwrap();
        queue.enqueue(&message).unwrap();
        queue.sync().unwrap();
        queue.close().unwrap();
        let queue = DurableQueue::open(&path, options(400, sync)).unwrap();
        assert_eq!(queue.peek().unwrap().as_ref(), Some(&message), "{sync:?}");
        queue.enqueue(b"in the next chunk").unwrap();
        assert_eq!(queue.dequeue().unwrap().as_ref(), Some(&message), "{sync:?}");
    }
}

#[test]
fn what_the_original_appends_is_read_with_and_without_checksums() {
    let dir = TestDir::shm();
    let path = dir.queue().join("q");
    let own = |crc| Options {
        crc,
        ..options(200, SyncMode::Always)
    };
    let queue = DurableQueue::open(&path, own(true)).unwrap();
    queue.enqueue(b"ours").unwrap();
    queue.close().unwrap();
    let chunk = dir.queue().join("q.1");
    let mut bytes = fs::read(&chunk).unwrap();
    bytes[16..24].copy_from_slice(b"\0\x06theirs");
    bytes[7] = 24;
    fs::write(&chunk, bytes).unwrap();
    let queue = DurableQueue::open(&path, own(true)).unwrap();
    assert_eq!(queue.dequeue().unwrap().unwrap(), b"ours");
    let report = queue.verify().unwrap();
    assert_eq!((report.messages, report.checked, report.problems.len()), (1, 0, 0));
    assert_eq!(queue.peek().unwrap().unwrap(), b"theirs");
    queue.close().unwrap();
    assert_eq!(
        DurableQueue::open(&path, own(false))
            .unwrap()
            .dequeue()
            .unwrap()
            .unwrap(),
        b"theirs"
    );
}

/// A chunk file as the original writes it.
fn chunk(messages: &[&[u8]], next: u16) -> Vec<u8> {
    let mut bytes = vec![0, 0, 0, 10, 0, 0, 0, 0, 0, 0];
    for message in messages {
        bytes.extend_from_slice(&(message.len() as u16).to_be_bytes());
        bytes.extend_from_slice(message);
    }
    let tail = bytes.len() as u32;
    bytes[4..8].copy_from_slice(&tail.to_be_bytes());
    bytes[8..10].copy_from_slice(&next.to_be_bytes());
    bytes.resize(60, 0);
    bytes
}

/// The original knows nothing of checksum files: it goes on in our chunks, and gives the names of those it has consumed to new
/// ones. Neither is damage, and no log of ours is written over what it has written.
#[test]
fn checksums_stand_aside_wherever_the_original_has_worked() {
    for sync in MODES {
        let own = || Options {
            crc: true,
            ..options(60, sync)
        };
        // It appends to our last chunk, another time once more, and goes on in a chunk of its own.
        let dir = TestDir::disk();
        let path = dir.queue().join("q");
        let file = |id: u16| dir.queue().join(format!("q.{id}"));
        let queue = DurableQueue::open(&path, own()).unwrap();
        queue.enqueue(b"ours").unwrap();
        queue.close().unwrap();
        fs::write(file(1), chunk(&[b"ours", b"theirs"], 0)).unwrap();
        DurableQueue::open(&path, own()).unwrap().close().unwrap();
        fs::write(file(1), chunk(&[b"ours", b"theirs", b"more"], 2)).unwrap();
        fs::write(file(2), chunk(&[b"last"], 0)).unwrap();
        let queue = DurableQueue::open(&path, own()).unwrap();
        queue.enqueue(b"again").unwrap();
        let report = queue.verify().unwrap();
        assert_eq!((report.messages, report.problems), (5, vec![]), "{sync:?}");
        let expected: [&[u8]; 5] = [b"ours", b"theirs", b"more", b"last", b"again"];
        assert_eq!(queue.dequeue_many(9).unwrap(), expected, "{sync:?}");
        queue.close().unwrap();

        // It consumes all of ours and begins anew, where the names of our middle chunks come again.
        let dir = TestDir::disk();
        let path = dir.queue().join("q");
        let file = |id: u16| dir.queue().join(format!("q.{id}"));
        let queue = DurableQueue::open(&path, own()).unwrap();
        queue
            .enqueue_many(&[[b'a'; 40], [b'b'; 40], [b'c'; 40], [b'd'; 40]])
            .unwrap();
        queue.close().unwrap();
        for id in 1..=4 {
            fs::remove_file(file(id)).unwrap();
        }
        fs::write(&path, [0, 2]).unwrap();
        fs::write(file(2), chunk(&[b"second"], 3)).unwrap();
        fs::write(file(3), chunk(&[b"third"], 0)).unwrap();
        let queue = DurableQueue::open(&path, own()).unwrap();
        queue.enqueue(b"again").unwrap();
        let report = queue.verify().unwrap();
        assert_eq!((report.messages, report.problems), (3, vec![]), "{sync:?}");
        let expected: [&[u8]; 3] = [b"second", b"third", b"again"];
        assert_eq!(queue.dequeue_many(9).unwrap(), expected, "{sync:?}");
        queue.close().unwrap();
        assert_eq!(fs::read_dir(dir.queue()).unwrap().count(), 0, "no checksums of nothing");
    }
}

/// 70,000 chunks across the end of the ids; and all 65,534 ids in use at once.
#[test]
fn ids_run_out_and_start_over() {
    if !soak() {
        return announce(
            "only in the soak: 70,000 chunks across the end of the ids (tests/qewqew.rs begins near the end)",
        );
    }
    let _dog = Watchdog::start("70,000 chunks", Duration::from_secs(3000));
    let dir = TestDir::shm();
    let path = dir.queue().join("q");
    let queue = DurableQueue::open(&path, options(64, SyncMode::Never)).unwrap();
    let message = |i: u32| [&i.to_le_bytes()[..], &[7; 40]].concat();
    for i in 0..70_000_u32 {
        queue.enqueue(&message(i)).unwrap();
        if i >= 5 {
            assert_eq!(queue.dequeue().unwrap().unwrap(), message(i - 5));
        }
    }
    assert_eq!(queue.count_chunks().unwrap(), 5);
    queue.clear().unwrap();
    queue.close().unwrap();
    assert_eq!(fs::read_dir(dir.queue()).unwrap().count(), 0);
    let queue = DurableQueue::open(&path, options(12, SyncMode::Never)).unwrap();
    for _ in 0..65_534 {
        queue.enqueue(b"").unwrap();
    }
    let refused = queue.enqueue(b"");
    assert!(matches!(refused, Err(Error::Full(_))), "{refused:?}");
    assert_eq!(queue.count_chunks().unwrap(), 65_534);
    for _ in 0..20 {
        queue.dequeue().unwrap().unwrap();
    }
    queue.enqueue(b"").unwrap();
    queue.close().unwrap();
    let queue = DurableQueue::open(&path, options(12, SyncMode::Never)).unwrap();
    assert_eq!(queue.len().unwrap(), 65_534 - 20 + 1);
    assert!(queue.clear().unwrap());
}
