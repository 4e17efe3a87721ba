//! Corrupt images: every bit flip, every truncation, every boundary value, opened and drained in sacrificial processes.
//!
//! A process of the pool works through many mutations and notes in a mapped word which one it is at, so a SIGBUS, a
//! SIGSEGV, an abort or a hang names its mutation exactly and costs one fork. Any bytes must give an error or be
//! harmless; the four other classes are failures.
//!
//! ```ignore
//! let image = Image::read(&dir.queue());
//! Corrupt::new(&dir, &image, "q").bit_flips(0..4096).truncations().boundary_values(0..256, &[capacity])
//!     .run(|copy| match Queue::open(&copy.join("q")).and_then(drain) {
//!         Err(error) => Verdict::Error(error.to_string()),
//!         Ok(messages) if all_known(&messages) => Verdict::Harmless,
//!         Ok(_) => Verdict::Wrong("delivered what nobody put".into()),
//!     })
//!     .assert_clean("ring metadata");
//! ```

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

pub use super::corrupt_report::{Class, Report};
use super::dirs::{TestDir, unique};
use super::image::Image;
use super::mapped::Mapped;
use super::mutation::{self, Mutation};
use super::{now_ns, process};

/// A corrupt length must not pass as a large but successful allocation.
const MEMORY_LIMIT: u64 = 4 << 30;
/// Long enough for a machine with much else to do.
const HANG: Duration = Duration::from_secs(5);
const LIFETIME_SECONDS: u32 = 3600;
/// Per process in the shared table: the mutation it is at (plus one; 0 = none), and since when.
const SLOT: usize = 16;

/// What one open and drain came to, in the eyes of the queue's own test.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The damage was reported.
    Error(String),
    /// It changed nothing that anybody can see.
    Harmless,
    /// It was neither reported nor harmless.
    Wrong(String),
}

/// The mutations to try on one file of an image; the other files stay as they are.
pub struct Corrupt {
    scratch: PathBuf,
    image: Image,
    file: PathBuf,
    mutations: Vec<Mutation>,
    processes: usize,
    hang: Duration,
}

impl Corrupt {
    pub fn new(dir: &TestDir, image: &Image, file: impl AsRef<Path>) -> Self {
        let file = file.as_ref().to_owned();
        image.bytes(&file);
        let processes = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        Self {
            scratch: dir.scratch(),
            image: image.clone(),
            file,
            mutations: Vec::new(),
            processes,
            hang: HANG,
        }
    }

    /// How long one mutation may take: for queues that wait for a disk.
    #[must_use]
    pub fn hang_limit(mut self, limit: Duration) -> Self {
        self.hang = limit;
        self
    }

    fn len(&self) -> usize {
        self.image.bytes(&self.file).len()
    }

    /// Every bit of these bytes, one at a time.
    #[must_use]
    pub fn bit_flips(mut self, range: Range<usize>) -> Self {
        assert!(range.end <= self.len(), "{range:?} of {} bytes", self.len());
        self.mutations
            .extend(range.flat_map(|byte| (0..8).map(move |bit| Mutation::Flip { byte, bit })));
        self
    }

    /// Every length from nothing to one byte short.
    #[must_use]
    pub fn truncations(self) -> Self {
        let len = self.len();
        self.truncations_to(0..len)
    }

    /// The given lengths; for large files, `(0..len).step_by(..)`.
    #[must_use]
    pub fn truncations_to(mut self, lengths: impl IntoIterator<Item = usize>) -> Self {
        self.mutations.extend(lengths.into_iter().map(Mutation::Truncate));
        self
    }

    /// 0, 1, -1, MIN, MAX and each of `limits` with its neighbours, over every aligned u32 and u64, in both byte orders.
    #[must_use]
    pub fn boundary_values(mut self, range: Range<usize>, limits: &[u64]) -> Self {
        assert!(range.end <= self.len(), "{range:?} of {} bytes", self.len());
        self.mutations.extend(mutation::boundary_values(range, limits));
        self
    }

    /// Mutations of the test's own.
    #[must_use]
    pub fn also(mut self, mutations: impl IntoIterator<Item = Mutation>) -> Self {
        self.mutations.extend(mutations);
        self
    }

    /// Opens and drains every mutation in the pool. `open_and_drain` gets a directory of its own, fresh each time.
    pub fn run(self, open_and_drain: impl Fn(&Path) -> Verdict) -> Report {
        let begun = Instant::now();
        let table = self.scratch.join(unique("corrupt"));
        let processes = self.processes.min(self.mutations.len()).max(1);
        let shared = Mapped::create(&table, results_at(processes) + self.mutations.len().max(1));
        let mut pool = Pool {
            job: &self,
            shared,
            processes,
            table,
            open_and_drain,
            report: Report::default(),
        };
        pool.run();
        let mut report = pool.report;
        for (index, mutation) in self.mutations.iter().enumerate() {
            report.count(
                Class::from_code(pool.shared.u8(results_at(processes) + index).load(Ordering::Acquire)),
                mutation,
            );
        }
        report.elapsed = begun.elapsed();
        report
    }
}

fn results_at(processes: usize) -> usize {
    processes * SLOT
}

/// A run in progress: the processes, and the table in which they say where they are and what they found.
struct Pool<'a, F> {
    job: &'a Corrupt,
    shared: Mapped,
    processes: usize,
    table: PathBuf,
    open_and_drain: F,
    report: Report,
}

impl<F: Fn(&Path) -> Verdict> Pool<'_, F> {
    fn run(&mut self) {
        let mut running: Vec<Option<Pid>> = (0..self.processes).map(|slot| Some(self.start(slot, slot))).collect();
        while running.iter().any(Option::is_some) {
            for (slot, place) in running.iter_mut().enumerate() {
                if let Some(pid) = *place {
                    *place = self.look_after(slot, pid);
                }
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        for slot in 0..self.processes {
            self.collect_details(slot);
        }
    }

    /// The process now in charge of the slot; None when its mutations are done.
    fn look_after(&mut self, slot: usize, pid: Pid) -> Option<Pid> {
        let status = waitpid(pid, Some(WaitPidFlag::WNOHANG)).expect("wait for pool");
        let since = self.shared.u64(slot * SLOT + 8).load(Ordering::Acquire);
        match status {
            WaitStatus::StillAlive => {
                let stuck = since != 0 && u128::from(now_ns().saturating_sub(since)) > self.job.hang.as_nanos();
                if !stuck {
                    return Some(pid);
                }
                let stacks = super::watchdog::stacks(pid);
                kill(pid, Signal::SIGKILL).expect("kill hung process");
                waitpid(pid, None).expect("reap hung process");
                self.died(slot, pid, Class::Hang, &stacks)
            }
            // Exit inside a mutation is a disaster too, whatever the code.
            WaitStatus::Exited(_, 0) if since == 0 => {
                process::unregister(pid);
                None
            }
            status => self.died(slot, pid, Class::Crash, &format!("{status:?}")),
        }
    }

    fn died(&mut self, slot: usize, pid: Pid, class: Class, how: &str) -> Option<Pid> {
        process::unregister(pid);
        self.collect_details(slot);
        let at = self.shared.u64(slot * SLOT).load(Ordering::Acquire);
        assert!(
            at != 0,
            "a process of the pool died outside any mutation: {how}\n{}",
            self.stderr(slot)
        );
        let index = usize::try_from(at - 1).expect("index");
        self.set(index, class);
        self.report.detail(
            class,
            &self.job.mutations[index],
            &format!("{how} {}", self.stderr(slot).trim()),
        );
        let next = index + self.processes;
        (next < self.job.mutations.len()).then(|| self.start(slot, next))
    }

    fn set(&self, index: usize, class: Class) {
        self.shared
            .u8(results_at(self.processes) + index)
            .store(class as u8, Ordering::Release);
    }

    fn stderr(&self, slot: usize) -> String {
        std::fs::read_to_string(self.side_file(slot, "stderr")).unwrap_or_default()
    }

    fn side_file(&self, slot: usize, extension: &str) -> PathBuf {
        self.table.with_extension(format!("{slot}.{extension}"))
    }

    /// What the processes wrote down about mutations that were judged wrong or panicked: "index class text" lines.
    fn collect_details(&mut self, slot: usize) {
        let path = self.side_file(slot, "details");
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        for line in text.lines() {
            let mut parts = line.splitn(3, ' ');
            let (Some(index), Some(code), Some(text)) = (parts.next(), parts.next(), parts.next()) else {
                continue;
            };
            let index: usize = index.parse().expect("index");
            self.report.detail(
                Class::from_code(code.parse().expect("class")),
                &self.job.mutations[index],
                text,
            );
        }
        let _ = std::fs::remove_file(path);
    }

    /// A process for mutations `first`, `first + processes`, ...
    fn start(&self, slot: usize, first: usize) -> Pid {
        self.shared.u64(slot * SLOT).store(0, Ordering::Release);
        self.shared.u64(slot * SLOT + 8).store(0, Ordering::Release);
        process::fork_child(
            "corrupt-image pool",
            &self.side_file(slot, "stderr"),
            LIFETIME_SECONDS,
            || self.work(slot, first),
        )
    }

    fn work(&self, slot: usize, first: usize) {
        setrlimit(Resource::RLIMIT_AS, MEMORY_LIMIT, MEMORY_LIMIT).expect("memory limit");
        let dir = self.table.with_extension(format!("{slot}.dir"));
        let mut details = std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(self.side_file(slot, "details"))
            .expect("details");
        for index in (first..self.job.mutations.len()).step_by(self.processes) {
            let mutation = &self.job.mutations[index];
            self.job
                .image
                .with(&self.job.file, |bytes| mutation.apply(bytes))
                .restore(&dir);
            self.shared.u64(slot * SLOT).store(index as u64 + 1, Ordering::Release);
            self.shared.u64(slot * SLOT + 8).store(now_ns(), Ordering::Release);
            let judged = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (self.open_and_drain)(&dir)));
            self.shared.u64(slot * SLOT + 8).store(0, Ordering::Release);
            let (class, text) = match judged {
                Ok(Verdict::Error(_)) => (Class::Error, None),
                Ok(Verdict::Harmless) => (Class::Harmless, None),
                Ok(Verdict::Wrong(text)) => (Class::Wrong, Some(text)),
                Err(_) => (Class::Panic, Some(self.stderr(slot))),
            };
            self.set(index, class);
            if let Some(text) = text {
                use std::io::Write as _;
                writeln!(details, "{index} {} {}", class as u8, text.replace('\n', " ")).expect("details");
            }
        }
    }
}
