//! Power cuts: simulated at every step of the disk, sector by sector, and real ones on ext4.
//!
//! The simulation knows what is on the disk for certain (synced), and which 512-byte sectors may be: each of them can be in any
//! of the states it had since its last sync, independently of the others. Names appear and disappear in order. At every step
//! it makes the directories that a cut could leave, and opens them.

mod common;
#[path = "common/loopfs.rs"]
mod loopfs;

use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::dirs::TestDir;
use common::oracle::{Delivery, Losses, Oracle, Order, Promise};
use common::watchdog::Watchdog;
use common::worker::{Args, Spawn};
use common::{announce, payload, rounds};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tailrace::Error;
use tailrace::qewqew::{DurableQueue, Observer, Options, Step, SyncMode};

const SECTOR: usize = 512;
/// All subsets up to so many undecided sectors; beyond that a selection.
const EXHAUSTIVE: u32 = 6;

/// What a cut at this moment could leave of one sector.
type States = Vec<Vec<u8>>;

/// A file keeps its identity when its name is given to another one.
type FileId = usize;

#[derive(Default)]
struct Disk {
    /// Bytes of each file that are certainly on the disk.
    certain: Vec<Vec<u8>>,
    /// States of sectors since the last sync of their file, oldest first.
    since: BTreeMap<(FileId, usize), States>,
    /// Names on the disk for certain.
    names: BTreeMap<PathBuf, FileId>,
    /// Names that appeared, or disappeared (`None`), since, in order.
    pending: Vec<(PathBuf, Option<FileId>)>,
}

/// What the workload has done.
#[derive(Clone, Copy, Default, Debug)]
struct Progress {
    /// Enqueues begun.
    attempted: u64,
    /// Enqueues that must survive.
    durable: u64,
    /// Messages that a dequeue may have taken.
    consumed: u64,
}

struct Simulation {
    dir: PathBuf,
    scratch: PathBuf,
    options: Options,
    /// How many images at each step, at most.
    effort: usize,
    state: Mutex<(Disk, Progress, StdRng)>,
    seen: Mutex<HashSet<u64>>,
    images: Mutex<usize>,
    /// The first image that did not open as it should: a panic here would be one inside of the queue.
    failed: Mutex<Option<String>>,
}

impl Observer for Simulation {
    fn step(&self, step: Step, path: &Path) {
        let mut state = self.state.lock().unwrap();
        let (disk, progress, rng) = &mut *state;
        disk.take(step, path);
        // Whether the bytes of a new file were synced before it got its name is known with the next step.
        if step == Step::Linked {
            return;
        }
        for image in disk.images(rng, self.effort) {
            self.judge(&image, *progress);
        }
    }
}

impl Disk {
    /// The file that has this name now.
    fn file(&self, path: &Path) -> FileId {
        let latest = self.pending.iter().rev().find(|(name, _)| name == path);
        let known = latest.map_or_else(|| self.names.get(path).copied(), |(_, file)| *file);
        known.unwrap_or_else(|| panic!("{} has no name on the disk", path.display()))
    }

    fn take(&mut self, step: Step, path: &Path) {
        let live = || std::fs::read(path).unwrap();
        match step {
            Step::Stored => {
                let (file, bytes) = (self.file(path), live());
                let known = &mut self.certain[file];
                // A file is cut only where nothing behind the cut counts.
                known.resize(bytes.len(), 0);
                for (sector, new) in bytes.chunks(SECTOR).enumerate() {
                    let old = &known[sector * SECTOR..sector * SECTOR + new.len()];
                    let states = self.since.entry((file, sector)).or_default();
                    if states.last().map_or(old != new, |last| last != new) {
                        states.push(new.to_vec());
                    }
                }
                self.since.retain(|_, states| !states.is_empty());
            }
            Step::Synced => {
                let file = self.file(path);
                self.certain[file] = live();
                self.since.retain(|(other, _), _| *other != file);
            }
            Step::Linked => {
                self.pending.push((path.to_owned(), Some(self.certain.len())));
                self.certain.push(live());
            }
            Step::Unlinked => self.pending.push((path.to_owned(), None)),
            Step::DirectorySynced => {
                let pending = std::mem::take(&mut self.pending);
                apply(&mut self.names, &pending);
            }
        }
    }

    /// Directories that a cut at this moment could leave: for each number of names that made it, choices of sectors.
    fn images(&self, rng: &mut StdRng, effort: usize) -> Vec<BTreeMap<PathBuf, Vec<u8>>> {
        let mut images = Vec::new();
        for arrived in 0..=self.pending.len() {
            let mut names = self.names.clone();
            apply(&mut names, &self.pending[..arrived]);
            let there: HashSet<FileId> = names.values().copied().collect();
            let open: Vec<(&(FileId, usize), &States)> = self
                .since
                .iter()
                .filter(|((file, _), _)| there.contains(file))
                .collect();
            let states: Vec<usize> = open.iter().map(|(_, states)| states.len()).collect();
            for choice in choices(&states, rng, effort) {
                let mut bytes: BTreeMap<FileId, Vec<u8>> =
                    there.iter().map(|file| (*file, self.certain[*file].clone())).collect();
                for (((file, sector), states), chosen) in open.iter().zip(choice) {
                    if chosen > 0 {
                        let (bytes, new) = (bytes.get_mut(file).unwrap(), &states[chosen - 1]);
                        let start = sector * SECTOR;
                        if bytes.len() < start + new.len() {
                            bytes.resize(start + new.len(), 0);
                        }
                        bytes[start..start + new.len()].copy_from_slice(new);
                    }
                }
                images.push(
                    names
                        .iter()
                        .map(|(name, file)| (name.clone(), bytes[file].clone()))
                        .collect(),
                );
            }
        }
        images
    }
}

fn apply(names: &mut BTreeMap<PathBuf, FileId>, changes: &[(PathBuf, Option<FileId>)]) {
    for (name, file) in changes {
        match file {
            Some(file) => names.insert(name.clone(), *file),
            None => names.remove(name),
        };
    }
}

/// For each sector 0 (as synced) or one of its later states: all combinations where there are few, else none, all, each one
/// alone, each one missing, and random ones.
fn choices(states: &[usize], rng: &mut StdRng, effort: usize) -> Vec<Vec<usize>> {
    let product: usize = states
        .iter()
        .map(|n| n + 1)
        .try_fold(1_usize, |a, b| a.checked_mul(b))
        .unwrap_or(usize::MAX);
    if product <= effort.max(1 << EXHAUSTIVE) {
        return (0..product)
            .map(|mut index| {
                let digit = |n: &usize| {
                    let digit = index % (n + 1);
                    index /= n + 1;
                    digit
                };
                states.iter().map(digit).collect()
            })
            .collect();
    }
    let all = states.to_vec();
    let mut found = vec![vec![0; all.len()], all.clone()];
    for i in 0..all.len() {
        let (mut alone, mut missing) = (vec![0; all.len()], all.clone());
        (alone[i], missing[i]) = (all[i], 0);
        found.extend([alone, missing]);
    }
    while found.len() < effort {
        found.push(all.iter().map(|n| rng.random_range(0..=*n)).collect());
    }
    found
}

impl Simulation {
    fn judge(&self, image: &BTreeMap<PathBuf, Vec<u8>>, progress: Progress) {
        let mut hasher = DefaultHasher::new();
        (image, progress.durable, progress.consumed).hash(&mut hasher);
        if !self.seen.lock().unwrap().insert(hasher.finish()) {
            return;
        }
        *self.images.lock().unwrap() += 1;
        let dir = self.scratch.join("image");
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir(&dir).unwrap();
        for (path, bytes) in image {
            let name = path.strip_prefix(&self.dir).unwrap();
            std::fs::write(dir.join(name), bytes).unwrap();
        }
        if let Err(text) = self.open_and_check(&dir.join("q"), progress) {
            let kept = self.scratch.join("failed");
            let _ = std::fs::rename(&dir, &kept);
            let files: Vec<_> = image.iter().map(|(p, b)| (p.file_name().unwrap(), b.len())).collect();
            let text = format!(
                "{text}
{progress:?}
{files:?}"
            );
            self.failed.lock().unwrap().get_or_insert(text);
        }
    }

    fn open_and_check(&self, path: &Path, progress: Progress) -> Result<(), String> {
        let text = |e: Error| e.to_string();
        let own = Options {
            observer: None,
            ..self.options.clone()
        };
        let queue = DurableQueue::open(path, own).map_err(text)?;
        let mut found = Vec::new();
        while let Some(message) = queue.dequeue().map_err(text)? {
            found.push(
                payload::parse(&message)
                    .map_err(|torn| format!("torn: {torn}"))?
                    .sequence,
            );
        }
        queue.enqueue(&payload::make(2, 0, 30)).map_err(text)?;
        if queue.dequeue().map_err(text)?.is_none() {
            return Err("the recovered queue does not work".into());
        }
        queue.close().map_err(text)?;
        let in_order = found.windows(2).all(|pair| pair[0] + 1 == pair[1]);
        let needed = progress.consumed.min(progress.durable)..progress.durable;
        let complete = needed.clone().all(|sequence| found.contains(&sequence));
        let invented = found.iter().any(|sequence| *sequence >= progress.attempted);
        if in_order && complete && !invented {
            return Ok(());
        }
        Err(format!("found {found:?}, needed {needed:?}"))
    }
}

/// Random work with the simulation looking on; returns how many images were opened.
fn simulate(seed: u64, sync: SyncMode, crc: bool, operations: usize, effort: usize) -> usize {
    let dir = TestDir::shm();
    let mut rng = StdRng::seed_from_u64(seed);
    let chunk_size = [300, 700, 1500, 4000][rng.random_range(0..4)];
    let options = Options {
        chunk_size,
        sync,
        crc,
        ..Options::default()
    };
    let simulation = Arc::new(Simulation {
        dir: dir.queue(),
        scratch: dir.scratch(),
        options: options.clone(),
        effort,
        state: Mutex::new((Disk::default(), Progress::default(), StdRng::seed_from_u64(seed + 1))),
        seen: Mutex::default(),
        images: Mutex::default(),
        failed: Mutex::default(),
    });
    let watched = Options {
        observer: Some(simulation.clone()),
        ..options
    };
    let path = dir.queue().join("q");
    let change = |f: &dyn Fn(&mut Progress)| f(&mut simulation.state.lock().unwrap().1);
    let mut queue = DurableQueue::open(&path, watched.clone()).unwrap();
    let check = |operation: usize| {
        if let Some(text) = simulation.failed.lock().unwrap().take() {
            panic!("seed {seed} {sync:?} crc={crc} chunk_size={chunk_size}, before operation {operation}: {text}");
        }
    };
    let (mut next, mut left) = (0, 0_u64);
    for operation in 0..operations {
        check(operation);
        match rng.random_range(0..100) {
            0..50 => {
                let count = rng.random_range(1..4);
                let lengths: Vec<usize> = (0..count)
                    .map(|_| rng.random_range(20..(queue.max_element_size() as usize).min(900)))
                    .collect();
                let messages: Vec<Vec<u8>> = lengths
                    .iter()
                    .zip(next..)
                    .map(|(length, sequence)| payload::make(1, sequence, *length))
                    .collect();
                next += count;
                left += count;
                change(&|progress| progress.attempted = next);
                queue.enqueue_many(&messages).unwrap();
                if sync == SyncMode::Always {
                    change(&|progress| progress.durable = next);
                }
            }
            50..85 => {
                change(&|progress| progress.consumed = (next - left + 1).min(next));
                if queue.dequeue().unwrap().is_some() {
                    left -= 1;
                }
            }
            85..90 => {
                queue.sync().unwrap();
                change(&|progress| progress.durable = next);
            }
            90..93 => {
                change(&|progress| progress.consumed = next);
                queue.clear().unwrap();
                left = 0;
            }
            93..96 => {
                let limit = rng.random_range(1..10);
                change(&|progress| progress.consumed = (next - left + limit).min(next));
                left -= queue.dequeue_many(limit as usize).unwrap().len() as u64;
            }
            _ => {
                queue.close().unwrap();
                change(&|progress| progress.durable = next);
                queue = DurableQueue::open(&path, watched.clone()).unwrap();
            }
        }
    }
    change(&|progress| progress.consumed = next);
    queue.clear().unwrap();
    queue.close().unwrap();
    check(operations);
    *simulation.images.lock().unwrap()
}

#[test]
fn simulated_cuts_at_every_step_lose_nothing_that_was_synced() {
    let _dog = Watchdog::start("simulated power cuts", Duration::from_secs(3000));
    let begun = Instant::now();
    let enough = rounds(6_000, 60_000) as usize;
    let (mut images, mut seed) = (0, 0);
    while images < enough {
        for (sync, crc) in [
            (SyncMode::Always, false),
            (SyncMode::Always, true),
            (SyncMode::Group, false),
            (SyncMode::Group, true),
        ] {
            images += simulate(seed, sync, crc, 60, if common::soak() { 128 } else { 48 });
        }
        seed += 10;
    }
    announce(&format!(
        "{images} images of simulated power cuts opened in {:.1?}, 0 lost",
        begun.elapsed()
    ));
}

fn worker(args: &Args, path: &Path, options: Options) {
    let mut journal = args.journal();
    let Ok(queue) = DurableQueue::open(path, options) else {
        return args.ready();
    };
    args.ready();
    for sequence in 0.. {
        let message = payload::make(args.get("id"), sequence, 20 + (sequence as usize * 37) % 300);
        let ticket = journal.attempt_put(0, &message);
        match queue.enqueue(&message) {
            Ok(()) => journal.acknowledged(ticket),
            // The power is gone: whether the message made it nobody knows.
            Err(_) => return,
        }
        // Peek, take note, remove: a cut inside the removal then finds a message that was already in somebody's hands.
        if sequence % 3 == 2 {
            let ticket = journal.attempt_get(0);
            match queue.peek() {
                Ok(Some(bytes)) => drop(journal.got(ticket, &bytes)),
                _ => return,
            }
            if queue.dequeue().is_err() {
                return;
            }
        }
    }
}

#[test]
fn real_cuts_on_ext4_lose_nothing_that_was_synced() {
    if common::skip_without_root("power cuts on a loop-mounted ext4") {
        return;
    }
    let dir = TestDir::disk();
    let Some(disk) = loopfs::LoopDisk::create(&dir.scratch(), 24) else {
        return announce("SKIPPED: no loop device or no mkfs.ext4 for real power cuts");
    };
    let cuts = rounds(30, 300);
    let _dog = Watchdog::start("real power cuts", Duration::from_secs(120 + 4 * cuts));
    let begun = Instant::now();
    let mut rng = StdRng::seed_from_u64(7);
    let (mut acked, mut left) = (0, 0);
    for cut in 0..cuts {
        let mounted = disk.mount();
        let path = mounted.path().join(format!("q{cut}"));
        let options = Options {
            chunk_size: 2000,
            crc: cut % 3 == 2,
            ..Options::default()
        };
        let own = options.clone();
        let mut victim = Spawn::new(&dir, "victim")
            .arg("id", 1)
            .journal(100_000)
            .start_forked(|args| worker(args, &path, own));
        victim.wait_ready();
        std::thread::sleep(Duration::from_micros(rng.random_range(0..150_000)));
        mounted.cut_power();
        victim.kill();
        mounted.unmount();
        let mounted = disk.mount();
        let queue = DurableQueue::open(&path, options).unwrap_or_else(|e| panic!("cut {cut}: {e}"));
        let drained: Vec<Vec<u8>> =
            std::iter::from_fn(|| queue.dequeue().unwrap_or_else(|e| panic!("cut {cut}: {e}"))).collect();
        queue.close().unwrap();
        drop(queue);
        let promise = Promise {
            delivery: Delivery::Repeatable,
            losses: Losses::Never,
            order: Order::Any,
        };
        let report = Oracle::new(promise)
            .journal(&victim.journal())
            .left(0, &drained)
            .check();
        report.assert_ok(&format!("cut {cut}"));
        let sequences: Vec<u64> = drained.iter().map(|m| payload::parse(m).unwrap().sequence).collect();
        assert!(
            sequences.windows(2).all(|pair| pair[0] + 1 == pair[1]),
            "cut {cut}: {sequences:?}"
        );
        acked += report.acked;
        left += drained.len();
        mounted.unmount();
    }
    announce(&format!(
        "{cuts} real power cuts on ext4 in {:.1?}: {acked} acknowledged, {left} left, 0 lost",
        begun.elapsed()
    ));
    assert!(acked as u64 > cuts, "the cuts came too early to mean anything");
}
