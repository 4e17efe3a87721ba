//! A disk that knows what a power cut could leave of it: the bytes that are there for certain (synced), and the 512-byte sectors
//! that may be in any of the states they had since the last sync of their file, each by itself. Names appear and disappear in
//! order. At every step of the queue under test it makes the directories that a cut could leave then, and opens them.

use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tailrace::Error;
use tailrace::qewqew::{DurableQueue, Observer, Options, Role, Stage, Step, SyncMode};

use crate::common::dirs::TestDir;
use crate::common::worker::Spawn;
use crate::common::{payload, process};

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
    /// Behind the durable ones there may be some that nobody synced: a cut can leave their tail without them.
    is_loose: bool,
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
        let live = std::fs::read(path).unwrap_or_default();
        self.take(step, path, live);
    }
}

impl Simulation {
    /// A step after which the file holds these bytes.
    fn take(&self, step: Step, path: &Path, live: Vec<u8>) {
        let mut state = self.state.lock().unwrap();
        let (disk, progress, rng) = &mut *state;
        disk.take(step, path, live);
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

    fn take(&mut self, step: Step, path: &Path, live: Vec<u8>) {
        match step {
            Step::Stored => {
                let (file, bytes) = (self.file(path), live);
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
                self.certain[file] = live;
                self.since.retain(|(other, _), _| *other != file);
            }
            Step::Linked => {
                self.pending.push((path.to_owned(), Some(self.certain.len())));
                self.certain.push(live);
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
        (image, progress.durable, progress.consumed, progress.is_loose).hash(&mut hasher);
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
        // Whoever comes first after a cut can have other habits.
        let own = Options {
            observer: None,
            role: Role::Both,
            chunk_size: self.options.chunk_size + [0, 0, 100][progress.attempted as usize % 3],
            ..self.options.clone()
        };
        let queue = DurableQueue::open(path, own).map_err(text)?;
        let mut found = Vec::new();
        loop {
            match queue.dequeue() {
                Ok(Some(message)) => match payload::parse(&message) {
                    Ok(message) => found.push(message.sequence),
                    Err(_) if progress.is_loose => break,
                    Err(torn) => return Err(format!("torn: {torn}")),
                },
                Ok(None) => break,
                // A reference without its chunk, entries without their checksums.
                Err(Error::Corrupt(_)) if progress.is_loose => drop(queue.repair().map_err(text)?),
                Err(error) => return Err(text(error)),
            }
        }
        if !progress.is_loose {
            queue.enqueue(&payload::make(2, 0, 30)).map_err(text)?;
            if queue.dequeue().map_err(text)?.is_none() {
                return Err("the recovered queue does not work".into());
            }
        }
        queue.close().map_err(text)?;
        let needed = progress.consumed.min(progress.durable)..progress.durable;
        // Of what nobody synced any part can be there, and a repair may bring back what was consumed.
        let strict = |sequence: &&u64| !progress.is_loose || needed.contains(sequence);
        let kept: Vec<u64> = found.iter().filter(strict).copied().collect();
        // Of consumed ones any part may come again.
        let in_order = kept
            .windows(2)
            .all(|pair| pair[0] + 1 == pair[1] || pair[0] < pair[1] && pair[1] <= progress.consumed);
        let complete = needed.clone().all(|sequence| found.contains(&sequence));
        let invented = found.iter().any(|sequence| *sequence >= progress.attempted);
        if in_order && complete && !invented {
            return Ok(());
        }
        Err(format!("found {found:?}, needed {needed:?}"))
    }
}

/// In the place of a step.
const ACKNOWLEDGED: u8 = 0;
const STEPS: [Step; 5] = [
    Step::Stored,
    Step::Synced,
    Step::Linked,
    Step::Unlinked,
    Step::DirectorySynced,
];

/// Takes down the steps of a process that dies with the last of them.
struct Mortal {
    log: PathBuf,
    left: AtomicUsize,
}

impl Mortal {
    fn note(&self, kind: u8, path: &Path) {
        let left = self.left.load(Ordering::Relaxed);
        let live = std::fs::read(path).unwrap_or_default();
        let name = path.to_str().unwrap();
        let record = [&[kind, name.len() as u8], name.as_bytes(), &live].concat();
        std::fs::write(self.log.join(format!("{:09}", 999_999 - left)), record).unwrap();
        self.left.store(left - 1, Ordering::Relaxed);
        if left == 1 {
            process::exit_now(0);
        }
    }

    fn records(log: &Path) -> Vec<(u8, PathBuf, Vec<u8>)> {
        let mut names: Vec<PathBuf> = std::fs::read_dir(log)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        names.sort();
        let parsed = names.into_iter().map(|name| {
            let record = std::fs::read(name).unwrap();
            let (path, live) = record[2..].split_at(usize::from(record[1]));
            (
                record[0],
                PathBuf::from(std::str::from_utf8(path).unwrap()),
                live.to_vec(),
            )
        });
        parsed.collect()
    }
}

impl Observer for Mortal {
    fn step(&self, step: Step, path: &Path) {
        let kind = STEPS.iter().position(|known| *known == step).unwrap();
        self.note(1 + kind as u8, path);
    }
}

/// A queue at work with the simulation looking on.
pub(crate) struct Run {
    // Closed before its directory goes.
    queue: DurableQueue,
    path: PathBuf,
    simulation: Arc<Simulation>,
    options: Options,
    name: String,
    next: u64,
    left: u64,
    dir: TestDir,
}

impl Run {
    pub(crate) fn start(name: &str, options: Options, seed: u64, effort: usize) -> Self {
        let dir = TestDir::shm();
        let simulation = Arc::new(Simulation {
            dir: dir.queue(),
            scratch: dir.scratch(),
            options: options.clone(),
            effort,
            state: Mutex::new((Disk::default(), Progress::default(), StdRng::seed_from_u64(seed))),
            seen: Mutex::default(),
            images: Mutex::default(),
            failed: Mutex::default(),
        });
        let options = Options {
            observer: Some(simulation.clone()),
            ..options
        };
        let path = dir.queue().join("q");
        Run {
            queue: DurableQueue::open(&path, options.clone()).unwrap(),
            path,
            simulation,
            options,
            name: name.to_owned(),
            next: 0,
            left: 0,
            dir,
        }
    }

    pub(crate) fn queue(&self) -> &DurableQueue {
        &self.queue
    }

    /// Enqueues messages of these lengths in one call.
    pub(crate) fn put(&mut self, lengths: &[usize]) {
        let messages = self.attempt(lengths, self.options.sync);
        self.queue.enqueue_many(&messages).unwrap();
        if self.options.sync == SyncMode::Always {
            self.all_durable();
        }
        self.check();
    }

    /// The same by a producer with another mode or chunk size that comes and goes.
    pub(crate) fn put_beside(&mut self, sync: SyncMode, chunk_size: u64, lengths: &[usize]) {
        let own = Options {
            role: Role::Producer,
            chunk_size,
            sync,
            ..self.options.clone()
        };
        let queue = DurableQueue::open(&self.path, own).unwrap();
        let messages = self.attempt(lengths, sync);
        queue.enqueue_many(&messages).unwrap();
        if sync == SyncMode::Always {
            self.all_durable();
        }
        queue.close().unwrap();
        self.check();
    }

    /// A producer beside, which is killed after so many steps on the disk. False when it came to its end before.
    pub(crate) fn put_killed(&mut self, sync: SyncMode, chunk_size: u64, length: usize, steps: usize) -> bool {
        let messages = self.attempt(&[length], sync);
        let own = Options {
            role: Role::Producer,
            chunk_size,
            sync,
            ..self.options.clone()
        };
        let is_durable = sync == SyncMode::Always;
        self.killed(own, steps, is_durable, |queue| queue.enqueue_many(&messages).unwrap())
    }

    /// The same by a consumer, which takes a message.
    pub(crate) fn take_killed(&mut self, sync: SyncMode, steps: usize) -> bool {
        self.change(|progress, next, left| progress.consumed = (next - left + 1).min(next));
        self.killed(self.consumer(sync), steps, false, |queue| {
            drop(queue.dequeue().unwrap())
        })
    }

    /// The same by a consumer, which takes all of them.
    pub(crate) fn clear_killed(&mut self, sync: SyncMode, steps: usize) -> bool {
        self.change(|progress, next, _| progress.consumed = next);
        self.killed(self.consumer(sync), steps, false, |queue| {
            assert!(queue.clear().unwrap())
        })
    }

    fn consumer(&self, sync: SyncMode) -> Options {
        Options {
            role: Role::Consumer,
            sync,
            ..self.options.clone()
        }
    }

    fn killed(&self, own: Options, steps: usize, is_durable: bool, work: impl FnOnce(&DurableQueue)) -> bool {
        let log = self.simulation.scratch.join("steps");
        std::fs::create_dir_all(&log).unwrap();
        let mut victim = Spawn::new(&self.dir, "victim").start_forked(|_| {
            let mortal = Arc::new(Mortal {
                log: log.clone(),
                left: AtomicUsize::new(steps),
            });
            let own = Options {
                observer: Some(mortal.clone()),
                ..own.clone()
            };
            let queue = DurableQueue::open(&self.path, own).unwrap();
            work(&queue);
            mortal.note(ACKNOWLEDGED, Path::new(""));
            queue.close().unwrap();
            process::exit_now(0);
        });
        victim.expect_success(Duration::from_secs(60));
        let records = Mortal::records(&log);
        let is_dead = records.len() == steps;
        for (kind, path, live) in records {
            match kind.checked_sub(1) {
                Some(step) => self.simulation.take(STEPS[usize::from(step)], &path, live),
                None if is_durable => self.all_durable(),
                None => {}
            }
        }
        std::fs::remove_dir_all(&log).unwrap();
        self.check();
        is_dead
    }

    /// Whether a killed enqueue has happened is known with the next look.
    pub(crate) fn count(&mut self) {
        // What it has left in a stage is counted there, and in the chunk if it got so far.
        self.queue.sync().unwrap();
        self.queue.adopt_leftover().unwrap();
        let found = self.queue.len().unwrap();
        let missing = self.left.checked_sub(found).filter(|missing| *missing <= 1);
        let missing = missing.unwrap_or_else(|| panic!("{}: {found} messages, not {}", self.name, self.left));
        (self.next, self.left) = (self.next - missing, self.left - missing);
        self.change(|progress, next, _| progress.attempted = next);
    }

    /// As [`Self::count`], of what a killed consumer has taken.
    pub(crate) fn count_taken(&mut self) {
        self.left = self.queue.len().unwrap();
    }

    /// By a consumer that comes and goes, while the queue is open as a producer.
    pub(crate) fn take_by(&mut self, chunk_size: u64) {
        let own = Options {
            role: Role::Consumer,
            chunk_size,
            ..self.options.clone()
        };
        self.change(|progress, next, left| progress.consumed = (next - left + 1).min(next));
        let consumer = DurableQueue::open(&self.path, own).unwrap();
        if consumer.dequeue().unwrap().is_some() {
            self.left -= 1;
        }
        consumer.close().unwrap();
        self.check();
    }

    /// Closes the queue and opens it again for something else.
    pub(crate) fn become_role(&mut self, role: Role) {
        self.close();
        self.options.role = role;
        self.open();
    }

    pub(crate) fn close(&mut self) {
        self.queue.close().unwrap();
        self.check();
    }

    pub(crate) fn open(&mut self) {
        self.queue = DurableQueue::open(&self.path, self.options.clone()).unwrap();
        self.check();
    }

    pub(crate) fn repair(&mut self) {
        let report = self.queue.repair().unwrap();
        assert_eq!(report.problems, [], "{}", self.name);
        self.check();
    }

    /// Consumes up to a position.
    pub(crate) fn commit(&mut self, limit: u64) {
        let (head, tail) = (self.queue.head_position().unwrap(), self.queue.tail_position().unwrap());
        let read = self.queue.read_range(head, tail).unwrap();
        let taken: Vec<&Vec<u8>> = read.iter().take(limit as usize).collect();
        let bytes: u64 = taken.iter().map(|message| 2 + message.len() as u64).sum();
        let count = taken.len() as u64;
        self.change(|progress, next, left| progress.consumed = next - left + count);
        self.queue.commit(head + bytes).unwrap();
        self.left -= count;
        self.check();
    }

    /// Appends messages that were prepared elsewhere: by one step, or as whole chunks.
    pub(crate) fn publish(&mut self, lengths: &[usize], small: usize) {
        let prefix = self.simulation.scratch.join("staged");
        let mut stage = Stage::new(&prefix, self.queue.chunk_size(), true).unwrap();
        for message in self.attempt(lengths, SyncMode::Always) {
            stage.add(&message).unwrap();
        }
        for file in stage.finish(small).unwrap() {
            match file.extension().is_some_and(|extension| extension == "rows") {
                true => {
                    let framed = std::fs::read(&file).unwrap();
                    let tail = self.queue.tail_position().unwrap();
                    assert!(self.queue.publish_framed(&framed, tail).unwrap());
                    std::fs::remove_file(&file).unwrap();
                }
                false => assert!(self.queue.publish_chunk(&file).unwrap()),
            }
        }
        self.all_durable();
        self.check();
    }

    pub(crate) fn take(&mut self) {
        self.change(|progress, next, left| progress.consumed = (next - left + 1).min(next));
        if self.queue.dequeue().unwrap().is_some() {
            self.left -= 1;
        }
        self.check();
    }

    pub(crate) fn take_many(&mut self, limit: u64) {
        self.change(|progress, next, left| progress.consumed = (next - left + limit).min(next));
        self.left -= self.queue.dequeue_many(limit as usize).unwrap().len() as u64;
        self.check();
    }

    pub(crate) fn clear(&mut self) {
        self.change(|progress, next, _| progress.consumed = next);
        self.queue.clear().unwrap();
        self.left = 0;
        self.check();
    }

    pub(crate) fn sync(&mut self) {
        self.queue.sync().unwrap();
        self.all_that_is_ours_durable();
        self.check();
    }

    /// Closes the queue and opens it again in another mode.
    pub(crate) fn reopen(&mut self, sync: SyncMode) {
        self.queue.close().unwrap();
        if self.options.sync != SyncMode::Never {
            self.all_that_is_ours_durable();
        }
        self.options.sync = sync;
        self.queue = DurableQueue::open(&self.path, self.options.clone()).unwrap();
        self.check();
    }

    /// Closes the queue and opens it again as a consumer.
    pub(crate) fn consume_only(&mut self) {
        self.queue.close().unwrap();
        let own = Options {
            role: Role::Consumer,
            ..self.options.clone()
        };
        self.queue = DurableQueue::open(&self.path, own).unwrap();
        self.check();
    }

    /// Empties and closes the queue; how many images were opened.
    pub(crate) fn finish(mut self) -> usize {
        if self.options.role != Role::Both {
            self.become_role(Role::Both);
        }
        self.clear();
        self.queue.close().unwrap();
        self.check();
        *self.simulation.images.lock().unwrap()
    }

    fn attempt(&mut self, lengths: &[usize], sync: SyncMode) -> Vec<Vec<u8>> {
        let messages = lengths.iter().zip(self.next..);
        let messages = messages
            .map(|(length, sequence)| payload::make(1, sequence, *length))
            .collect();
        self.next += lengths.len() as u64;
        self.left += lengths.len() as u64;
        self.change(|progress, next, _| {
            progress.attempted = next;
            progress.is_loose |= sync == SyncMode::Never;
        });
        messages
    }

    /// What another handle has appended without syncs is not this one's to sync.
    fn all_that_is_ours_durable(&self) {
        self.change(|progress, next, _| {
            if !progress.is_loose {
                progress.durable = next;
            }
        });
    }

    fn all_durable(&self) {
        self.change(|progress, next, _| (progress.durable, progress.is_loose) = (next, false));
    }

    fn change(&self, change: impl FnOnce(&mut Progress, u64, u64)) {
        change(&mut self.simulation.state.lock().unwrap().1, self.next, self.left);
    }

    fn check(&self) {
        if let Some(text) = self.simulation.failed.lock().unwrap().take() {
            panic!("{}, message {}: {text}", self.name, self.next);
        }
    }
}
