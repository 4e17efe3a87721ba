//! Names of conq's queues: given, found and taken away, by many threads and processes at once, and in children forked in the
//! middle of it.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use common::dirs::TestDir;
use common::watchdog::Watchdog;
use common::worker::{Spawn, Worker};
use tailrace::Error;
use tailrace::conq::{Manager, NamedQueue, Options};
use tailrace::os::clock::Clock;
use tailrace::shared::signal::Wait;

const LONG: Duration = Duration::from_secs(60);

fn watch(name: &'static str) -> Watchdog {
    Watchdog::start(name, Duration::from_secs(if common::soak() { 600 } else { 100 }))
}

fn small() -> Options {
    Options {
        max_messages: 64,
        max_message_size: 1000,
        max_bytes: 256 << 10,
        ..Options::default()
    }
}

#[test]
fn a_process_has_one_manager_and_its_names_are_any_text() {
    let id = Manager::of_this_process().create_queue("", &small()).unwrap();
    let other = thread::spawn(|| Manager::of_this_process().get_queue("").unwrap());
    assert_eq!(other.join().unwrap(), id);
    Manager::of_this_process().delete_queue(id).unwrap();
}

/// InterQueueMultiThreadTest: 500 threads, each with a queue of its own, from create to delete.
fn a_queue_for_each_thread(manager: &Manager, threads: u64, trials: u64) {
    let (created, deleted) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for number in 0..threads {
            let (created, deleted) = (&created, &deleted);
            scope.spawn(move || {
                let name = format!("inter-{number}");
                let id = manager.create_queue(&name, &Options::default()).unwrap();
                assert_eq!(manager.get_queue(&name).unwrap(), id);
                created.fetch_add(1, Ordering::Relaxed);
                for trial in 0..trials {
                    let data = (number << 32 | trial).to_le_bytes();
                    manager.enqueue(id, &data).unwrap();
                    let message = manager.read(id, LONG).unwrap().unwrap();
                    assert_eq!(message.data, data);
                    manager.dequeue(id, &message.receipt).unwrap();
                }
                manager.delete_queue(id).unwrap();
                deleted.fetch_add(1, Ordering::Relaxed);
            });
        }
    });
    assert_eq!((created.into_inner(), deleted.into_inner()), (threads, threads));
    assert!(manager.names().unwrap().is_empty());
}

#[test]
fn five_hundred_threads_with_a_queue_each() {
    let _dog = watch("500 queues");
    a_queue_for_each_thread(&Manager::private(Clock::boottime()), 500, common::rounds(400, 3000));
}

/// Files appear and vanish by the hundred, and nobody waits for a time that only depends on how many they are.
#[test]
fn five_hundred_threads_with_a_queue_file_each() {
    let _dog = watch("500 queue files");
    let dir = TestDir::shm();
    a_queue_for_each_thread(&Manager::open(&dir.queue()).unwrap(), 500, common::rounds(40, 3000));
}

/// On a disk every creation and deletion is synced.
#[test]
fn threads_with_a_queue_file_each_on_disk() {
    let _dog = watch("queue files on disk");
    let dir = TestDir::disk();
    let threads = common::rounds(50, 500);
    a_queue_for_each_thread(&Manager::open(&dir.queue()).unwrap(), threads, 10);
}

#[test]
fn deleting_ends_a_queue_for_everybody() {
    let dir = TestDir::shm();
    let (ours, theirs) = (
        Manager::open(&dir.queue()).unwrap(),
        Manager::open(&dir.queue()).unwrap(),
    );
    let id = ours.create_queue("shared", &small()).unwrap();
    theirs.enqueue(id, b"x").unwrap();
    let message = ours.read(id, LONG).unwrap().unwrap();
    let waiting = NamedQueue::open(&theirs, "shared").unwrap();
    let waiter = thread::spawn(move || waiting.get(Wait::Forever, &mut || Ok(())));
    thread::sleep(Duration::from_millis(30));
    ours.delete_queue(id).unwrap();
    assert!(
        matches!(waiter.join().unwrap(), Err(Error::NotFound(_))),
        "the waiter wakes"
    );
    assert!(matches!(theirs.enqueue(id, b"y"), Err(Error::NotFound(_))));
    assert!(matches!(theirs.dequeue(id, &message.receipt), Err(Error::NotFound(_))));
    let again = theirs.create_queue("shared", &small()).unwrap();
    assert_ne!(again, id);
    assert!(
        matches!(ours.delete_queue(id), Err(Error::NotFound(_))),
        "not the new one"
    );
    assert_eq!(ours.get_queue("shared").unwrap(), again);
    let files: Vec<_> = std::fs::read_dir(dir.queue()).unwrap().collect();
    assert_eq!(files.len(), 2, "the index and one queue: {files:?}");
}

#[test]
fn of_many_deleters_one_wins_and_no_new_queue_loses_its_name() {
    let dir = TestDir::shm();
    let managers: Vec<_> = (0..4).map(|_| Manager::open(&dir.queue()).unwrap()).collect();
    for round in 0..common::rounds(50, 500) {
        let id = managers[0].create_queue("again", &small()).unwrap();
        let wins = AtomicU64::new(0);
        thread::scope(|scope| {
            for manager in &managers {
                let wins = &wins;
                scope.spawn(move || match manager.delete_queue(id) {
                    Ok(()) => {
                        wins.fetch_add(1, Ordering::Relaxed);
                        manager.create_queue("again", &small()).unwrap();
                    }
                    Err(Error::NotFound(_)) => {}
                    Err(other) => panic!("{other}"),
                });
            }
        });
        assert_eq!(wins.into_inner(), 1);
        let new = managers[3].get_queue("again").unwrap();
        assert!(new > id, "round {round}");
        managers[2].delete_queue(new).unwrap();
    }
}

#[test]
fn foreign_files_and_wrong_names_are_refused_clearly() {
    let dir = TestDir::shm();
    let manager = Manager::open(&dir.queue()).unwrap();
    for name in ["", ".hidden", "a/b", "nul\0", &"x".repeat(201)] {
        assert!(
            matches!(manager.create_queue(name, &small()), Err(Error::Invalid(_))),
            "{name:?}"
        );
    }
    let text = |outcome: tailrace::Result<u64>| outcome.unwrap_err().to_string();
    std::fs::write(dir.queue().join("notes.conq"), "a text file, not a queue").unwrap();
    assert!(text(manager.get_queue("notes")).contains("too few"));
    std::fs::write(dir.queue().join("zeros.conq"), vec![0; 8192]).unwrap();
    assert!(text(manager.get_queue("zeros")).contains("not a conq queue"));
    std::os::unix::fs::symlink("/etc/passwd", dir.queue().join("link.conq")).unwrap();
    assert!(text(manager.get_queue("link")).contains("symbolic link"));
    std::fs::write(dir.queue().join("empty.conq"), "").unwrap();
    assert!(text(manager.get_queue("empty")).contains("empty"));
}

/// Of processes that all want the same names each name goes to one, and a name that was deleted can be given again.
#[test]
fn racing_processes_share_names_fairly() {
    let _dog = watch("racing creators");
    let dir = TestDir::shm();
    let path = dir.queue();
    let rounds = common::rounds(100, 2000);
    let mut workers: Vec<Worker> = (0..4)
        .map(|_| {
            Spawn::new(&dir, "creator").start_forked(|args| {
                let manager = Manager::open(&path).unwrap();
                let mut won = 0;
                for round in 0..rounds {
                    match manager.create_queue(&format!("name-{}", round % 7), &small()) {
                        Ok(id) => {
                            won += 1;
                            manager.enqueue(id, b"mine").unwrap();
                            assert_eq!(manager.read(id, LONG).unwrap().unwrap().data, b"mine");
                            manager.delete_queue(id).unwrap();
                            let gone = manager.enqueue(id, b"x");
                            assert!(matches!(gone, Err(Error::NotFound(_))), "{gone:?}");
                        }
                        Err(Error::Exists(_)) => {}
                        Err(other) => panic!("{other}"),
                    }
                }
                args.word(0).store(won, Ordering::Release);
            })
        })
        .collect();
    for worker in &mut workers {
        worker.expect_success(Duration::from_secs(if common::soak() { 300 } else { 60 }));
    }
    let won: u64 = workers
        .iter()
        .map(|worker| worker.word(0).load(Ordering::Acquire))
        .sum();
    assert!(won >= 7, "{won}");
    assert!(Manager::open(&path).unwrap().names().unwrap().is_empty());
}

/// Threads of the parent are in the middle of creating and deleting whenever a child is forked off: what they hold at that
/// moment nobody in the child will ever give back, and the child must not need it.
#[test]
fn a_child_forked_inside_create_and_delete_works() {
    let _dog = watch("forks inside create and delete");
    let dir = TestDir::shm();
    let (host, process) = (Manager::open(&dir.queue()).unwrap(), Manager::of_this_process());
    let over = AtomicBool::new(false);
    let busy = |name: &str| {
        let mut rounds = 0_u64;
        while !over.load(Ordering::Relaxed) {
            for manager in [&host, &process] {
                let id = manager.create_queue(name, &small()).unwrap();
                manager.enqueue(id, b"parent").unwrap();
                manager.delete_queue(id).unwrap();
            }
            rounds += 1;
        }
        rounds
    };
    thread::scope(|scope| {
        let threads = ["a", "b"].map(|name| scope.spawn(move || busy(name)));
        for round in 0..common::rounds(40, 400) {
            let mut child = Spawn::new(&dir, "child").start_forked(|_| {
                for manager in [&host, &process] {
                    let name = format!("child-{round}");
                    let id = manager.create_queue(&name, &small()).unwrap();
                    assert_eq!(manager.get_queue(&name).unwrap(), id);
                    manager.enqueue(id, b"child").unwrap();
                    let message = manager.read(id, LONG).unwrap().unwrap();
                    manager.dequeue(id, &message.receipt).unwrap();
                    manager.delete_queue(id).unwrap();
                }
                assert!(process.names().unwrap().is_empty(), "the parent's queues are not ours");
            });
            child.expect_success(Duration::from_secs(30));
        }
        over.store(true, Ordering::Relaxed);
        for thread in threads {
            assert!(thread.join().unwrap() > 0);
        }
    });
    assert!(host.names().unwrap().is_empty());
}
