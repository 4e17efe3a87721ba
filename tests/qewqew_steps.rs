//! The durable queue killed at every instruction: of enqueue, dequeue, spill, clear, close, open, and of the recovery itself.
//!
//! The judge opens what is left as anybody would, and takes everything out: every message whose enqueue returned must be
//! there, in order, once; the interrupted operation may have happened or not, and nothing in between.

mod common;

use std::path::Path;
use std::time::Duration;

use common::dirs::TestDir;
use common::stepkill::{Moment, StepKill};
use common::watchdog::Watchdog;
use common::{payload, soak, tracee};
use tailrace::qewqew::{DurableQueue, Options, SyncMode};

type Messages = Vec<Vec<u8>>;

fn message(sequence: u64, length: usize) -> Vec<u8> {
    payload::make(1, sequence, length)
}

fn options(sync: SyncMode, crc: bool, chunk_size: u64) -> Options {
    Options {
        chunk_size,
        sync,
        crc,
        ..Options::default()
    }
}

/// Everything in the queue; then the queue must work as ever, and leave no file when it is closed.
fn take_out(dir: &Path, options: &Options) -> Result<Messages, String> {
    let text = |e: tailrace::Error| e.to_string();
    let path = dir.join("q");
    let queue = DurableQueue::open(&path, options.clone()).map_err(text)?;
    let mut found = Vec::new();
    while let Some(message) = queue.dequeue().map_err(text)? {
        payload::parse(&message).map_err(|torn| format!("torn: {torn}"))?;
        found.push(message);
    }
    let again = message(999, 20);
    queue.enqueue(&again).map_err(text)?;
    queue.close().map_err(text)?;
    let queue = DurableQueue::open(&path, options.clone()).map_err(text)?;
    if queue.dequeue().map_err(text)? != Some(again) || !queue.is_empty().map_err(text)? {
        return Err("the recovered queue does not work".into());
    }
    queue.close().map_err(text)?;
    let left: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    if left.is_empty() {
        Ok(found)
    } else {
        Err(format!("left behind: {left:?}"))
    }
}

/// A write of a few bytes within a page is copied by the kernel as a whole: no kill can cut it.
fn is_impossible(moment: &Moment<'_>) -> bool {
    let Some((_, rest)) = moment.change.split_once(" cut: ") else {
        return false;
    };
    let words: Vec<&str> = rest.split_whitespace().collect();
    let (bytes, at): (usize, usize) = (words[2].parse().unwrap(), words[6].parse().unwrap());
    bytes <= 8 && at % 4096 + bytes <= 4096
}

/// Compares with the two states that are allowed: the operation under way has not happened, or it has.
fn judge(moment: &Moment<'_>, found: &Messages, after: impl Fn(usize) -> Messages) -> Result<(), String> {
    let allowed = [
        Some(after(moment.completed)),
        moment.running.then(|| after(moment.completed + 1)),
    ];
    if allowed.iter().flatten().any(|state| state == found) {
        return Ok(());
    }
    let show = |messages: &Messages| -> Vec<u64> {
        messages
            .iter()
            .map(|m| payload::parse(m).map_or(u64::MAX, |id| id.sequence))
            .collect()
    };
    Err(format!(
        "found {:?}, allowed {:?}",
        show(found),
        allowed.iter().flatten().map(show).collect::<Vec<_>>()
    ))
}

/// Enqueues and dequeues by the script, in a process that is then stepped through `operations`.
struct Scene {
    name: &'static str,
    options: Options,
    /// Messages enqueued and how many of them dequeued before the first step.
    before: (u64, u64),
    length: usize,
}

impl Scene {
    fn prepare(&self, dir: &Path) -> DurableQueue {
        let queue = DurableQueue::open(&dir.join("q"), self.options.clone()).unwrap();
        for sequence in 0..self.before.0 {
            queue.enqueue(&message(sequence, self.length)).unwrap();
        }
        for _ in 0..self.before.1 {
            queue.dequeue().unwrap().unwrap();
        }
        queue
    }

    fn messages(&self, from: u64, to: u64) -> Messages {
        (from..to).map(|sequence| message(sequence, self.length)).collect()
    }

    fn run(
        &self,
        operations: usize,
        operation: impl FnMut(&mut DurableQueue, usize),
        after: impl Fn(&Self, usize) -> Messages,
    ) {
        let _dog = Watchdog::start(self.name, Duration::from_secs(300));
        let dir = TestDir::shm();
        let queue_dir = dir.queue();
        let report = StepKill::new(&dir).operations(operations).run(
            || self.prepare(&queue_dir),
            operation,
            |moment| {
                if is_impossible(moment) {
                    return Ok(());
                }
                let found = take_out(&moment.dir, &self.options)?;
                judge(moment, &found, |completed| after(self, completed))
            },
        );
        let context = format!(
            "{} {:?}{}",
            self.name,
            self.options.sync,
            if self.options.crc { " crc" } else { "" }
        );
        report.assert_ok(&context);
        if tracee::SUPPORTED {
            assert!(report.distinct_images >= operations, "{context}: nothing was seen");
        }
    }
}

/// Every mode; checksums with the mode in which they are the log.
fn modes() -> [(SyncMode, bool); 4] {
    [
        (SyncMode::Never, false),
        (SyncMode::Group, false),
        (SyncMode::Always, false),
        (SyncMode::Always, true),
    ]
}

fn enqueue(name: &'static str, chunk_size: u64, before: (u64, u64), length: usize, operations: usize) {
    for (sync, crc) in modes() {
        let scene = Scene {
            name,
            options: options(sync, crc, chunk_size),
            before,
            length,
        };
        scene.run(
            operations,
            |queue, i| queue.enqueue(&message(before.0 + i as u64, length)).unwrap(),
            |scene, completed| scene.messages(before.1, before.0 + completed as u64),
        );
    }
}

#[test]
fn the_first_enqueue() {
    enqueue("first enqueue", 300, (0, 0), 40, 2);
}

#[test]
fn an_enqueue_into_a_chunk_with_room() {
    enqueue("enqueue", 300, (2, 1), 40, 2);
}

#[test]
fn an_enqueue_into_a_chunk_that_is_too_small_for_notes_of_commits() {
    enqueue("enqueue without notes", 200, (2, 1), 40, 2);
}

#[test]
fn an_enqueue_into_the_place_of_the_notes() {
    // The second of these ends in the last 32 bytes.
    enqueue("place of the notes", 310, (5, 0), 40, 2);
}

#[test]
fn an_enqueue_of_several_pages() {
    enqueue("large enqueue", 20_000, (1, 0), 6000, 1);
}

#[test]
fn an_enqueue_that_spills_into_a_new_chunk() {
    enqueue("spill", 300, (5, 0), 40, 3);
}

#[test]
fn an_enqueue_into_an_exhausted_chunk() {
    enqueue("start over", 300, (3, 3), 40, 2);
}

fn dequeue(name: &'static str, chunk_size: u64, enqueued: u64, operations: usize) {
    for (sync, crc) in modes() {
        let scene = Scene {
            name,
            options: options(sync, crc, chunk_size),
            before: (enqueued, 0),
            length: 40,
        };
        scene.run(
            operations,
            |queue, _| drop(queue.dequeue().unwrap().unwrap()),
            |scene, completed| scene.messages(completed as u64, enqueued),
        );
    }
}

#[test]
fn a_dequeue_inside_a_chunk_and_of_the_last_message() {
    dequeue("dequeue", 200, 3, 3);
}

#[test]
fn a_dequeue_that_leaves_a_chunk() {
    dequeue("dequeue across chunks", 100, 4, 3);
}

#[test]
fn a_clear_of_three_chunks() {
    for (sync, crc) in modes() {
        let scene = Scene {
            name: "clear",
            options: options(sync, crc, 300),
            before: (6, 1),
            length: 100,
        };
        let all = scene.messages(1, 6);
        let _dog = Watchdog::start("clear", Duration::from_secs(300));
        let dir = TestDir::shm();
        let queue_dir = dir.queue();
        let report = StepKill::new(&dir).run(
            || scene.prepare(&queue_dir),
            |queue, _| assert!(queue.clear().unwrap()),
            |moment| {
                let found = take_out(&moment.dir, &scene.options)?;
                // The document's clear is many dequeues: what it did not reach is still there.
                let fits = match (moment.completed, moment.running) {
                    (0, false) => found == all,
                    (0, true) => all.ends_with(&found),
                    _ => found.is_empty(),
                };
                if fits {
                    Ok(())
                } else {
                    Err(format!("{} messages left", found.len()))
                }
            },
        );
        report.assert_ok(&format!("clear {sync:?} crc={crc}"));
    }
}

#[test]
fn a_close_of_an_empty_and_of_a_full_queue() {
    for (before, left) in [((3, 3), 0..0), ((5, 2), 2..5)] {
        for (sync, crc) in modes() {
            let scene = Scene {
                name: "close",
                options: options(sync, crc, 300),
                before,
                length: 100,
            };
            scene.run(
                1,
                |queue, _| queue.close().unwrap(),
                |scene, _| scene.messages(left.start, left.end),
            );
        }
    }
}

/// A process dies with messages in both stages, another one is killed while it opens the queue and settles that.
#[test]
fn an_open_that_recovers_what_a_dead_process_left() {
    for (sync, crc) in [
        (SyncMode::Group, false),
        (SyncMode::Always, true),
        (SyncMode::Never, false),
    ] {
        let _dog = Watchdog::start("open", Duration::from_secs(300));
        let dir = TestDir::shm();
        let own = options(sync, crc, 400);
        let path = dir.queue().join("q");
        let mut worker = common::worker::Spawn::new(&dir, "victim").start_forked(|_| {
            let queue = DurableQueue::open(&path, own.clone()).unwrap();
            for sequence in 0..6 {
                queue.enqueue(&message(sequence, 40)).unwrap();
            }
            queue.dequeue().unwrap().unwrap();
            queue.enqueue(&message(6, 40)).unwrap();
            common::process::exit_now(0);
        });
        worker.expect_success(Duration::from_secs(20));
        let all: Messages = (1..7).map(|sequence| message(sequence, 40)).collect();
        let report = StepKill::new(&dir).run(
            || (),
            |(), _| std::mem::forget(DurableQueue::open(&path, own.clone()).unwrap()),
            |moment| {
                if is_impossible(moment) {
                    return Ok(());
                }
                let found = take_out(&moment.dir, &own)?;
                if found == all {
                    Ok(())
                } else {
                    Err(format!("{} messages left", found.len()))
                }
            },
        );
        report.assert_ok(&format!("open {sync:?} crc={crc}"));
    }
}

/// With positions kept, every step keeps the numbers true: what is left is where it always was.
#[test]
fn positions_through_a_change_of_chunks() {
    for sync in [SyncMode::Never, SyncMode::Always] {
        let _dog = Watchdog::start("positions", Duration::from_secs(300));
        let dir = TestDir::shm();
        let own = options(sync, false, 100);
        let path = dir.queue().join("q");
        let entry = 42_u64;
        let report = StepKill::new(&dir).operations(3).run(
            || {
                let queue = DurableQueue::open(&path, own.clone()).unwrap();
                assert_eq!(queue.tail_position().unwrap(), 0);
                for sequence in 0..5 {
                    queue.enqueue(&message(sequence, 40)).unwrap();
                }
                queue
            },
            |queue, _| drop(queue.dequeue().unwrap().unwrap()),
            |moment| {
                let queue = DurableQueue::open(&moment.dir.join("q"), own.clone()).map_err(|e| e.to_string())?;
                let head = queue.head_position().map_err(|e| e.to_string())?;
                let tail = queue.tail_position().map_err(|e| e.to_string())?;
                let first = queue.peek().map_err(|e| e.to_string())?.expect("never empty here");
                let sequence = payload::parse(&first).map_err(|e| e.to_string())?.sequence;
                if (head, tail) == (sequence * entry, 5 * entry) {
                    return Ok(());
                }
                Err(format!("message {sequence} at {head}, tail at {tail}"))
            },
        );
        report.assert_ok(&format!("positions {sync:?}"));
    }
}

/// A recovery that is killed, too: the soak tier steps through the recovery of every image of a spill.
#[test]
fn a_recovery_killed_at_every_instruction() {
    if !soak() {
        return common::announce("only in the soak: a recovery killed at every instruction");
    }
    let _dog = Watchdog::start("recovery of recovery", Duration::from_secs(7000));
    let dir = TestDir::shm();
    let own = options(SyncMode::Group, false, 100);
    let path = dir.queue().join("q");
    let report = StepKill::new(&dir).run(
        || {
            let queue = DurableQueue::open(&path, own.clone()).unwrap();
            queue.enqueue(&message(0, 40)).unwrap();
            queue.enqueue(&message(1, 40)).unwrap();
            queue
        },
        |queue, _| queue.enqueue(&message(2, 40)).unwrap(),
        |moment| {
            if is_impossible(moment) {
                return Ok(());
            }
            let scratch = dir.scratch().join("inner");
            std::fs::create_dir_all(&scratch).unwrap();
            let inner_path = moment.dir.join("q");
            let report = StepKill::over(&moment.dir, &scratch).run(
                || (),
                |(), _| std::mem::forget(DurableQueue::open(&inner_path, own.clone()).unwrap()),
                |inner| {
                    let found = take_out(&inner.dir, &own)?;
                    if (2..=3).contains(&found.len()) {
                        Ok(())
                    } else {
                        Err(format!("{} left", found.len()))
                    }
                },
            );
            if report.failures.is_empty() {
                Ok(())
            } else {
                Err(report.to_string())
            }
        },
    );
    report.assert_ok("recovery of recovery");
}
