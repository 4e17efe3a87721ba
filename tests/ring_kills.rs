//! Rings under kill -9: random deaths of writers and readers, with one message at a time and with many in hand.
//!
//! Workers keep no journal, which would slow them down until hardly any kill hits a call. Each shares a few words with the
//! judge: what it attempted, what returned, what it got; and for every producer there is one bit per delivered message.

mod common;

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use common::dirs::TestDir;
use common::mapped::Mapped;
use common::watchdog::Watchdog;
use common::worker::{Args, Exit, Spawn, Worker};
use common::{announce, payload, rounds, wait_until};
use nix::sys::signal::Signal;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tailrace::ring::{Counters, Queue};

const LIMIT: Duration = Duration::from_secs(20);
/// Words that a worker shares: messages put or wanted by calls that began, by those that returned, messages got.
const BEGUN: usize = 0;
const RETURNED: usize = 1;
const GOT: usize = 2;
/// A life is much shorter than this.
const MESSAGES: usize = 1 << 23;
const WRITERS: u32 = 2;
const READERS: u32 = 2;

/// Which messages were delivered, one file of bits for each producer.
struct Delivered {
    dir: PathBuf,
    maps: Vec<Mapped>,
}

impl Delivered {
    fn file(dir: &Path, producer: u32) -> PathBuf {
        dir.join(format!("delivered-{producer}"))
    }

    /// Marks a message; false when it was marked before.
    fn mark(&mut self, producer: u32, sequence: u64) -> bool {
        while self.maps.len() <= producer as usize {
            self.maps
                .push(Mapped::open(&Self::file(&self.dir, self.maps.len() as u32)));
        }
        let word = self.maps[producer as usize].u64(sequence as usize / 64 * 8);
        let bit = 1 << (sequence % 64);
        word.fetch_or(bit, Ordering::AcqRel) & bit == 0
    }
}

fn write(args: &Args, path: &Path, producer: u32, words: u32) {
    let ring = Queue::open(path).unwrap();
    args.ready();
    let mut sequence = 0;
    for call in 0.. {
        let next = sequence + at_once(producer, call);
        if next > MESSAGES as u64 {
            return;
        }
        let messages: Vec<_> = (sequence..next)
            .map(|sequence| payload::make(producer, sequence, 8 * words as usize - 3))
            .collect();
        args.word(BEGUN).store(next, Ordering::Release);
        match &messages[..] {
            [message] => drop(ring.enqueue(message).unwrap()),
            many => ring
                .enqueue_many(&many.iter().map(Vec::as_slice).collect::<Vec<_>>())
                .unwrap(),
        }
        args.word(RETURNED).store(next, Ordering::Release);
        sequence = next;
        if call % 64 == 0 && args.stop_requested() {
            return;
        }
    }
}

/// Messages of one call: half of the workers know only single ones.
fn at_once(worker: u32, call: u64) -> u64 {
    if worker.is_multiple_of(2) { 1 } else { 1 + call % 40 }
}

fn read(args: &Args, path: &Path, dir: &Path, place: u32) {
    let ring = Queue::open(path).unwrap();
    let mut delivered = Delivered {
        dir: dir.to_owned(),
        maps: Vec::new(),
    };
    args.ready();
    let mut wanted = 0;
    for call in 0.. {
        let n = at_once(place, call);
        wanted += n;
        args.word(BEGUN).store(wanted, Ordering::Release);
        let messages = match n {
            1 => ring.try_dequeue().unwrap().into_iter().collect(),
            _ => ring.try_dequeue_many(n as usize).unwrap(),
        };
        for message in messages {
            let got = payload::parse_padded(&message.data).expect("a torn message was delivered");
            // Before the count: a death in between makes one message look undelivered, never one too many.
            assert!(delivered.mark(got.producer, got.sequence), "delivered twice: {got:?}");
            args.word(GOT).fetch_add(1, Ordering::AcqRel);
        }
        args.word(RETURNED).store(wanted, Ordering::Release);
        if call % 64 == 0 && args.stop_requested() {
            return;
        }
    }
}

/// One ring with its workers.
struct Scene {
    dir: TestDir,
    path: PathBuf,
    words: u32,
    producers: u32,
    /// By place; the first are the writers'.
    running: Vec<Worker>,
    ended: Vec<(usize, Worker)>,
}

impl Scene {
    fn new(max_len: u32, words: u32) -> Self {
        let dir = TestDir::shm();
        let path = dir.queue().join("q");
        drop(Queue::create(&path, max_len, words).unwrap());
        Self {
            dir,
            path,
            words,
            producers: 0,
            running: Vec::new(),
            ended: Vec::new(),
        }
    }

    fn start(&mut self, place: usize) -> Worker {
        let (path, dir) = (self.path.clone(), self.dir.scratch());
        if place >= WRITERS as usize {
            return Spawn::new(&self.dir, "reader").start_forked(move |args| read(args, &path, &dir, place as u32));
        }
        let (producer, words) = (self.producers, self.words);
        self.producers += 1;
        drop(Mapped::create(&Delivered::file(&dir, producer), MESSAGES / 8));
        Spawn::new(&self.dir, "writer").start_forked(move |args| write(args, &path, producer, words))
    }

    /// Kills a worker, waits until everybody else has got on, and starts its successor. Returns how long that took.
    fn kill(&mut self, place: usize) -> Duration {
        let mut victim = self.start(place);
        std::mem::swap(&mut victim, &mut self.running[place]);
        if place >= WRITERS as usize {
            self.wait_for_a_held_slot();
        }
        assert_eq!(victim.kill(), Exit::Killed(Signal::SIGKILL), "{}", victim.stderr());
        let begun = Instant::now();
        let others = || self.running.iter().enumerate().filter(|(other, _)| *other != place);
        let before: Vec<u64> = others()
            .map(|(_, w)| w.word(RETURNED).load(Ordering::Acquire))
            .collect();
        let got_on = || {
            others()
                .zip(&before)
                .all(|((_, w), n)| w.word(RETURNED).load(Ordering::Acquire) > *n)
        };
        assert!(
            wait_until(LIMIT, got_on),
            "somebody hangs after the death of worker {place}"
        );
        let took = begun.elapsed();
        self.running[place].wait_ready();
        self.ended.push((place, victim));
        took
    }

    /// Readers hold a slot for so short a time that a blind kill hardly ever finds one in it: waits a little for the sight
    /// of one, and leaves the rest to chance.
    fn wait_for_a_held_slot(&self) {
        const READS: u64 = 1;
        let (file, stride) = (Mapped::open(&self.path), 8 + 8 * self.words as usize);
        let max_len = file.u32(8).load(Ordering::Relaxed) as usize;
        let locks = || (0..max_len.min(64)).map(|slot| file.u64(32 + slot * stride).load(Ordering::Relaxed));
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(5) && !locks().any(|word| word & 3 == READS) {}
    }

    fn finish(mut self) -> (Counters, String) {
        for worker in &mut self.running {
            worker.request_stop();
            worker.expect_success(LIMIT);
        }
        let ring = Queue::open(&self.path).unwrap();
        let counters = ring.counters().unwrap();
        let mut delivered = Delivered {
            dir: self.dir.scratch(),
            maps: Vec::new(),
        };
        let mut left = 0;
        while let Some(message) = ring.try_dequeue().unwrap() {
            let got = payload::parse_padded(&message.data).expect("a torn message is left");
            assert!(
                delivered.mark(got.producer, got.sequence),
                "left although delivered: {got:?}"
            );
            left += 1;
        }
        self.ended.extend(self.running.drain(..).enumerate());
        let sum = |writers: bool, word: usize| -> u64 {
            let of_role = self
                .ended
                .iter()
                .filter(|(place, _)| (*place < WRITERS as usize) == writers);
            of_role
                .map(|(_, worker)| worker.word(word).load(Ordering::Acquire))
                .sum()
        };
        let (attempted, acked) = (sum(true, BEGUN), sum(true, RETURNED));
        let (got, interrupted) = (sum(false, GOT), sum(false, BEGUN) - sum(false, RETURNED));
        assert!(
            (acked..=attempted).contains(&counters.enqueued),
            "{acked} to {attempted} enqueues, {counters:?}"
        );
        assert!(counters.abandoned <= attempted - acked, "{counters:?}");
        assert!(
            counters.lost_in_hands <= interrupted,
            "{counters:?}, {interrupted} interrupted"
        );
        let gone = counters.overwritten + counters.abandoned + counters.lost_in_hands + counters.discarded;
        // Whatever is not accounted for is in the memory of a reader that died with it, past the end of its dequeue.
        let unseen = counters.enqueued.checked_sub(got + left + gone);
        let most = interrupted - counters.lost_in_hands;
        assert!(
            unseen.is_some_and(|n| n <= most),
            "{counters:?}, got {got}, left {left}, {interrupted} interrupted"
        );
        let figures = format!(
            "{acked} enqueues, {got} dequeues, {} messages in calls that a death ended",
            attempted - acked + interrupted
        );
        (counters, figures)
    }
}

#[test]
fn random_deaths_of_writers_and_readers_are_counted_and_hold_up_nobody() {
    let _dog = Watchdog::start("random kills", Duration::from_secs(3600));
    let mut random = StdRng::seed_from_u64(20);
    let mut times = Vec::new();
    let mut fates = [0; 4];
    for (max_len, words) in [(4, 4), (64, 8), (16, 8_192), (1024, 16)]
        .into_iter()
        .cycle()
        .take(rounds(4, 40) as usize)
    {
        let mut scene = Scene::new(max_len, words);
        for place in 0..(WRITERS + READERS) as usize {
            let worker = scene.start(place);
            scene.running.push(worker);
        }
        for worker in &mut scene.running {
            worker.wait_ready();
        }
        for _ in 0..50 {
            std::thread::sleep(Duration::from_micros(random.random_range(0..2_000)));
            let place = random.random_range(0..(WRITERS + READERS) as usize);
            times.push(scene.kill(place));
        }
        let (counters, figures) = scene.finish();
        announce(&format!("ring of {max_len} x {} B: {figures}, {counters:?}", 8 * words));
        let found = [
            counters.overwritten,
            counters.abandoned,
            counters.lost_in_hands,
            counters.discarded,
        ];
        fates.iter_mut().zip(found).for_each(|(sum, n)| *sum += n);
    }
    times.sort();
    let (p99, max) = (times[times.len() * 99 / 100], times[times.len() - 1]);
    announce(&format!(
        "ring: {} kills, everybody on after p99 {p99:?}, max {max:?}; fates {fates:?}",
        times.len()
    ));
    assert!(
        fates[0] > 0 && fates[1] > 0 && fates[2] + fates[3] > 0,
        "a kind of death was never met: {fates:?}"
    );
}
