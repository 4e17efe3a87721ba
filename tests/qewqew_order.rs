//! The order of steps on the disk, as rules that a swapped pair breaks: the original's two loss windows (Q7), and what the
//! table in `qewqew/mod.rs` says.

mod common;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::dirs::TestDir;
use tailrace::qewqew::{DurableQueue, Observer, Options, Role, Step, SyncMode};

/// Looks at the files after every step and notes what must not be.
struct Rules {
    dir: PathBuf,
    durable: bool,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    steps: Vec<(Step, String)>,
    /// Files with bytes that are not synced, and whether names are.
    dirty: BTreeSet<String>,
    unsynced_names: BTreeSet<String>,
    broken: Vec<String>,
}

impl Rules {
    fn name(path: &Path) -> String {
        path.file_name().unwrap().to_str().unwrap().to_owned()
    }

    fn header(&self, name: &str) -> Option<(u32, u32, u16)> {
        let bytes = std::fs::read(self.dir.join(name)).ok()?;
        let u32_at = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
        Some((u32_at(0), u32_at(4), u16::from_be_bytes([bytes[8], bytes[9]])))
    }

    /// Every chunk that can be reached from the head file, as far as there are files.
    fn check_chain(&self, seen: &mut Seen, when: &str) {
        let Ok(head) = std::fs::read(self.dir.join("q")) else {
            return;
        };
        let mut at = u16::from_be_bytes([head[0], head[1]]);
        while at != 0 {
            let name = format!("q.{at}");
            let Some((head, tail, next)) = self.header(&name) else {
                return seen.broken.push(format!("{when}: {name} is referred to and not there"));
            };
            if !(10 <= head && head <= tail) {
                return seen
                    .broken
                    .push(format!("{when}: {name} is referred to with pointers {head} and {tail}"));
            }
            if self.durable && seen.unsynced_names.contains(&name) {
                seen.broken
                    .push(format!("{when}: {name} is referred to and its name is not on the disk"));
            }
            at = next;
        }
    }
}

impl Observer for Rules {
    fn step(&self, step: Step, path: &Path) {
        let mut guard = self.seen.lock().unwrap();
        let seen = &mut *guard;
        let name = Self::name(path);
        let when = format!("step {} ({step:?} {name})", seen.steps.len());
        match step {
            Step::Stored => drop(seen.dirty.insert(name.clone())),
            Step::Synced => drop(seen.dirty.remove(&name)),
            Step::Linked => drop(seen.unsynced_names.insert(name.clone())),
            Step::DirectorySynced => seen.unsynced_names.clear(),
            // The head file must have moved on, on the disk, before a chunk goes: whatever the mode.
            Step::Unlinked => {
                seen.dirty.remove(&name);
                if seen.dirty.contains("q") && name != "q" && name != "q.signal" {
                    seen.broken
                        .push(format!("{when}: removed before the head file was synced"));
                }
            }
        }
        // With the name of a chunk its content was synced: the next step says so.
        if step != Step::Linked {
            self.check_chain(seen, &when);
        }
        seen.steps.push((step, name));
    }
}

fn work(sync: SyncMode, crc: bool) -> Vec<(Step, String)> {
    let dir = TestDir::shm();
    let rules = Arc::new(Rules {
        dir: dir.queue(),
        durable: sync != SyncMode::Never,
        seen: Mutex::default(),
    });
    let options = Options {
        chunk_size: 60,
        sync,
        crc,
        observer: Some(rules.clone()),
        ..Options::default()
    };
    let path = dir.queue().join("q");
    let queue = DurableQueue::open(&path, options.clone()).unwrap();
    for i in 0..40_u8 {
        queue.enqueue(&[i; 20]).unwrap();
        if i % 3 == 0 {
            queue.dequeue().unwrap().unwrap();
        }
    }
    queue.clear().unwrap();
    queue.enqueue_many(&[[1; 20], [2; 20], [3; 20]]).unwrap();
    queue.close().unwrap();
    let queue = DurableQueue::open(&path, options).unwrap();
    while queue.dequeue().unwrap().is_some() {}
    queue.close().unwrap();
    drop(queue);
    let seen = std::mem::take(&mut *rules.seen.lock().unwrap());
    assert_eq!(seen.broken, Vec::<String>::new(), "{sync:?} crc={crc}");
    assert!(seen.steps.len() > 100, "{sync:?}: only {} steps", seen.steps.len());
    seen.steps
}

/// Q7 (a): no reference to a chunk that is not complete. Q7 (b): no chunk removed before the head file has moved on.
#[test]
fn no_step_leaves_a_reference_to_nothing() {
    for sync in [SyncMode::Always, SyncMode::Group, SyncMode::Never] {
        for crc in [false, true] {
            work(sync, crc);
        }
    }
}

/// The tail never reaches the disk before what it covers: with a note of the commit, and with the log of the checksums, one
/// sync is enough. A chunk without room for notes takes two, in order.
#[test]
fn a_synced_enqueue_is_one_sync_where_there_is_room_for_a_note() {
    let steps = |chunk_size: u64, crc: bool| {
        let dir = TestDir::shm();
        let rules = Arc::new(Rules {
            dir: dir.queue(),
            durable: true,
            seen: Mutex::default(),
        });
        let options = Options {
            chunk_size,
            crc,
            observer: Some(rules.clone()),
            ..Options::default()
        };
        let queue = DurableQueue::open(&dir.queue().join("q"), options).unwrap();
        queue.enqueue(b"first").unwrap();
        rules.seen.lock().unwrap().steps.clear();
        queue.enqueue(b"second").unwrap();
        let steps = std::mem::take(&mut rules.seen.lock().unwrap().steps);
        steps
            .into_iter()
            .map(|(step, name)| format!("{step:?} {name}"))
            .collect::<Vec<_>>()
    };
    // Entries, note, sync, tail.
    assert_eq!(
        steps(1 << 20, false),
        ["Stored q.1", "Stored q.1", "Synced q.1", "Stored q.1"]
    );
    // Entries, sync, tail, sync.
    assert_eq!(
        steps(255, false),
        ["Stored q.1", "Synced q.1", "Stored q.1", "Synced q.1"]
    );
    // Log, sync, entries, tail.
    assert_eq!(
        steps(1 << 20, true),
        ["Stored q.1.crc", "Synced q.1.crc", "Stored q.1", "Stored q.1"]
    );
}

/// Stops a commit in front of its sync.
#[derive(Default)]
struct Barrier {
    is_armed: AtomicBool,
    is_reached: AtomicBool,
    is_open: AtomicBool,
}

impl Observer for Barrier {
    fn step(&self, step: Step, _: &Path) {
        if step == Step::Stored && self.is_armed.swap(false, Ordering::SeqCst) {
            self.is_reached.store(true, Ordering::SeqCst);
            let patience = Instant::now() + Duration::from_secs(20);
            while !self.is_open.load(Ordering::SeqCst) && Instant::now() < patience {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

/// The place of the notes moves when a chunk is made longer: not while a commit may be writing one there, or entries over it.
/// Whoever only opens the queue does not wait for that: it keeps everybody else from opening and closing.
#[test]
fn a_chunk_is_made_longer_between_commits() {
    let dir = TestDir::shm();
    let path = dir.queue().join("q");
    let barrier = Arc::new(Barrier::default());
    let options = |chunk_size| Options {
        chunk_size,
        ..Options::default()
    };
    let queue = DurableQueue::open(
        &path,
        Options {
            observer: Some(barrier.clone()),
            ..options(4000)
        },
    )
    .unwrap();
    queue.enqueue(&[1; 600]).unwrap();
    barrier.is_armed.store(true, Ordering::SeqCst);
    let length = || std::fs::metadata(dir.queue().join("q.1")).unwrap().len();
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| queue.enqueue(&[2; 600]));
        while !barrier.is_reached.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let begun = Instant::now();
        let larger = DurableQueue::open(
            &path,
            Options {
                role: Role::Producer,
                ..options(5000)
            },
        )
        .unwrap();
        let waited = begun.elapsed();
        let behind = scope.spawn(move || larger.enqueue(&[3; 600]));
        std::thread::sleep(Duration::from_millis(200));
        let meanwhile = length();
        barrier.is_open.store(true, Ordering::SeqCst);
        slow.join().unwrap().unwrap();
        behind.join().unwrap().unwrap();
        assert!(waited < Duration::from_secs(10), "opening took {waited:?}");
        assert_eq!((meanwhile, length()), (4000, 5000));
    });
    let expected: Vec<Vec<u8>> = (1..=3).map(|i| vec![i; 600]).collect();
    assert_eq!(queue.dequeue_many(9).unwrap(), expected);
}

/// What a handle without syncs has left is on the disk before something durable is appended behind it, few chunks or many; and
/// nobody waits for that who only takes messages.
#[test]
fn what_was_not_synced_is_synced_before_the_first_durable_enqueue() {
    for chunks in [3, 100] {
        let dir = TestDir::shm();
        let path = dir.queue().join("q");
        let options = |sync| Options {
            chunk_size: 60,
            sync,
            ..Options::default()
        };
        let queue = DurableQueue::open(&path, options(SyncMode::Never)).unwrap();
        queue.enqueue_many(&vec![[1; 40]; chunks]).unwrap();
        queue.close().unwrap();
        let rules = Arc::new(Rules {
            dir: dir.queue(),
            durable: true,
            seen: Mutex::default(),
        });
        let queue = DurableQueue::open(
            &path,
            Options {
                observer: Some(rules.clone()),
                ..options(SyncMode::Always)
            },
        )
        .unwrap();
        assert_eq!(queue.peek().unwrap().unwrap(), [1; 40]);
        assert_eq!(rules.seen.lock().unwrap().steps, [], "for a message that is only read");
        queue.enqueue(&[2; 40]).unwrap();
        let steps = std::mem::take(&mut rules.seen.lock().unwrap().steps);
        let first = steps.iter().position(|(step, _)| *step == Step::Stored).unwrap();
        let synced: BTreeSet<&str> = steps[..first]
            .iter()
            .filter(|(step, _)| *step == Step::Synced)
            .map(|(_, name)| name.as_str())
            .collect();
        assert!(synced.contains("q"));
        let missing: Vec<usize> = (1..=chunks)
            .filter(|id| !synced.contains(format!("q.{id}").as_str()))
            .collect();
        assert_eq!(missing, [0; 0]);
    }
}
