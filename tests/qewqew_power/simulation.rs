//! A disk that knows what a power cut could leave of it: the bytes that are there for certain (synced), and the 512-byte sectors
//! that may be in any of the states they had since the last sync of their file, each by itself. Names appear and disappear in
//! order. At every step of the queue under test it makes the directories that a cut could leave then, and opens them.

use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tailrace::Error;
use tailrace::qewqew::{DurableQueue, Observer, Options, Role, Step};

use crate::common::dirs::TestDir;
use crate::common::payload;

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
pub(crate) struct Progress {
    /// Enqueues begun.
    pub(crate) attempted: u64,
    /// Enqueues that must survive.
    pub(crate) durable: u64,
    /// Messages that a dequeue may have taken.
    pub(crate) consumed: u64,
    /// Behind the durable ones there may be some that nobody synced: a cut can leave their tail without them.
    pub(crate) is_loose: bool,
}

pub(crate) struct Simulation {
    dir: PathBuf,
    pub(crate) scratch: PathBuf,
    options: Options,
    effort: usize,
    state: Mutex<(Disk, Progress, StdRng)>,
    seen: Mutex<HashSet<u64>>,
    images: Mutex<usize>,
    /// Not a panic, which would be one inside of the queue.
    failed: Mutex<Option<String>>,
}

impl Observer for Simulation {
    fn step(&self, step: Step, path: &Path) {
        let live = std::fs::read(path).unwrap_or_default();
        self.take(step, path, live);
    }
}

impl Simulation {
    /// Of the queue in this directory; `effort` is how many images there are at each step, at most.
    pub(crate) fn of(dir: &TestDir, options: Options, seed: u64, effort: usize) -> Self {
        Simulation {
            dir: dir.queue(),
            scratch: dir.scratch(),
            options,
            effort,
            state: Mutex::new((Disk::default(), Progress::default(), StdRng::seed_from_u64(seed))),
            seen: Mutex::default(),
            images: Mutex::default(),
            failed: Mutex::default(),
        }
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Progress)) {
        change(&mut self.state.lock().unwrap().1);
    }

    /// How many images were opened.
    pub(crate) fn images(&self) -> usize {
        *self.images.lock().unwrap()
    }

    /// What was wrong with the first image that did not open as it should.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failed.lock().unwrap().take()
    }

    /// A step after which the file holds these bytes.
    pub(crate) fn take(&self, step: Step, path: &Path, live: Vec<u8>) {
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
