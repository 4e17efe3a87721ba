//! The work that is done while the power may fail: by the queue under test, by others beside it, and by some that are killed.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use tailrace::qewqew::{DurableQueue, Options, Role, Stage, SyncMode};

use crate::common::dirs::TestDir;
use crate::common::worker::Spawn;
use crate::common::{payload, process};
use crate::mortal::{ACKNOWLEDGED, Mortal, STEPS};
use crate::simulation::{Progress, Simulation};

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
        let simulation = Arc::new(Simulation::of(&dir, options.clone(), seed, effort));
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
        self.simulation.images()
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
        self.simulation
            .change(|progress| change(progress, self.next, self.left));
    }

    fn check(&self) {
        if let Some(text) = self.simulation.failure() {
            panic!("{}, message {}: {text}", self.name, self.next);
        }
    }
}
