//! A hostile peer: a process that scribbles boundary values over metadata of a mapped file while the victim works.
//!
//! ```ignore
//! let mut peer = Hostile::new(&path, [0..64]).limits(&[capacity]).start(&dir);
//! while started.elapsed() < time { let _any_error_is_fine = queue.enqueue(&message); }
//! let scribbles = peer.finish();
//! ```

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

use super::dirs::TestDir;
use super::mapped::Mapped;
use super::mutation::boundary_numbers;
use super::worker::{Args, Spawn, Worker};

/// One scribble in so many puts the original word back, so that the victim gets past its first check now and then.
const HEALS: u32 = 3;
const FINISH_LIMIT: Duration = Duration::from_secs(10);

/// What to scribble over, and how.
pub struct Hostile {
    path: PathBuf,
    ranges: Vec<Range<usize>>,
    limits: Vec<u64>,
    seed: u64,
    pause: Duration,
}

/// The running peer; dropped, it is killed.
pub struct Peer {
    worker: Worker,
}

impl Hostile {
    pub fn new(path: &Path, ranges: impl IntoIterator<Item = Range<usize>>) -> Self {
        Self {
            path: path.to_owned(),
            ranges: ranges.into_iter().collect(),
            limits: Vec::new(),
            seed: 1,
            pause: Duration::ZERO,
        }
    }

    /// Numbers that matter to the format (capacity, message size): they and their neighbours are scribbled too.
    #[must_use]
    pub fn limits(mut self, limits: &[u64]) -> Self {
        self.limits = limits.to_vec();
        self
    }

    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Rests between scribbles; without it the victim rarely sees a whole header.
    #[must_use]
    pub fn pause(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }

    /// Starts the process and returns when it has begun to scribble.
    pub fn start(self, dir: &TestDir) -> Peer {
        let mut worker = Spawn::new(dir, "hostile").start_forked(|args| self.scribble(args));
        worker.wait_ready();
        let begun = super::wait_until(FINISH_LIMIT, || worker.word(0).load(Ordering::Acquire) > 0);
        assert!(begun, "the hostile peer never scribbled\n{}", worker.stderr());
        Peer { worker }
    }

    fn scribble(&self, args: &Args) {
        let map = Mapped::open(&self.path);
        for range in &self.ranges {
            assert!(
                range.start < range.end && range.end <= map.len(),
                "{range:?} of {} bytes",
                map.len()
            );
        }
        let before: Vec<u8> = map.quiescent_bytes().to_vec();
        let numbers = boundary_numbers(&self.limits);
        let mut random = StdRng::seed_from_u64(self.seed);
        args.ready();
        while !args.stop_requested() {
            let range = &self.ranges[random.random_range(0..self.ranges.len())];
            let number = if random.random_ratio(1, 8) {
                random.random()
            } else {
                numbers[random.random_range(0..numbers.len())]
            };
            let size = [1, 4, 8][random.random_range(0..3)];
            let at = random.random_range(range.clone()) / size * size;
            if at >= range.start && at + size <= range.end {
                let heal = random.random_ratio(1, HEALS);
                let mut bytes = number.to_le_bytes();
                if heal {
                    bytes[..size].copy_from_slice(&before[at..at + size]);
                }
                store(&map, at, &bytes[..size]);
                args.word(0).fetch_add(1, Ordering::AcqRel);
            }
            if !self.pause.is_zero() {
                std::thread::sleep(self.pause);
            }
        }
    }
}

fn store(map: &Mapped, at: usize, bytes: &[u8]) {
    match bytes.len() {
        1 => map.u8(at).store(bytes[0], Ordering::SeqCst),
        4 => map
            .u32(at)
            .store(u32::from_le_bytes(bytes.try_into().expect("4 bytes")), Ordering::SeqCst),
        _ => map
            .u64(at)
            .store(u64::from_le_bytes(bytes.try_into().expect("8 bytes")), Ordering::SeqCst),
    }
}

impl Peer {
    /// Words scribbled so far.
    pub fn scribbles(&self) -> u64 {
        self.worker.word(0).load(Ordering::Acquire)
    }

    /// Ends the peer and returns how many words it scribbled.
    pub fn finish(&mut self) -> u64 {
        self.worker.request_stop();
        self.worker.expect_success(FINISH_LIMIT);
        self.scribbles()
    }
}
