//! conq killed at every instruction: of enqueue, of read, of dequeue, of an expiry, of giving back, of moving memory between
//! size classes, and of the recovery itself.
//!
//! After each death the next caller finds every message whose enqueue returned, none that was dequeued, each in exactly one
//! phase, and all the memory.

mod common;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use common::dirs::TestDir;
use common::image::Image;
use common::stepkill::{Moment, StepKill};
use common::watchdog::Watchdog;
use common::{announce, payload, soak, tracee};
use tailrace::Error;
use tailrace::conq::layout::{Geometry, Slot};
use tailrace::conq::origin::Origin;
use tailrace::conq::{Lease, Options, Queue, Receipt};

const HERE: Origin = Origin {
    boot_id: [1, 2],
    time_namespace: 3,
};
const MS: u64 = 1_000_000;
const NOW: u64 = 10_000 * MS;
/// When every lease of these tests has ended.
const LATER: u64 = 1_000_000 * MS;
const SMALL: usize = 40;

fn options() -> Options {
    Options {
        max_messages: 256,
        max_message_size: 300,
        max_bytes: 16 << 10,
        participants: 8,
        dead_letter: None,
    }
}

fn create(dir: &TestDir) -> Queue {
    Queue::create(&dir.queue().join("q"), &options(), 0, &HERE).unwrap()
}

fn open(dir: &Path, now: u64) -> tailrace::Result<Queue> {
    Queue::open(&dir.join("q"), &HERE, now)
}

fn message(sequence: u64) -> Vec<u8> {
    payload::make(1, sequence, SMALL)
}

fn fill(queue: &Queue, sequences: std::ops::Range<u64>) {
    for sequence in sequences {
        queue.enqueue(&message(sequence), NOW).unwrap();
    }
}

/// Sequence and delivery of a message in hand.
fn identify(queue: &Queue, lease: &Lease) -> Result<u64, String> {
    let mut data = Vec::new();
    if !queue.append_to(lease, &mut data) {
        return Err("a message in hand is somebody else's".into());
    }
    payload::parse(&data)
        .map(|who| who.sequence)
        .map_err(|torn| format!("torn: {torn}"))
}

/// How many small messages fit into the memory of an empty queue, and out again.
fn capacity(queue: &Queue) -> Result<u64, String> {
    let mut count = 0;
    loop {
        match queue.enqueue(&message(1000 + count), LATER) {
            Ok(_) => count += 1,
            Err(Error::Full(_)) => break,
            Err(other) => return Err(format!("filling: {other}")),
        }
    }
    for expected in 0..count {
        let lease = queue
            .read(MS, LATER)
            .map_err(|e| e.to_string())?
            .ok_or("a message is gone")?;
        if identify(queue, &lease)? != 1000 + expected {
            return Err("new messages come out of order".into());
        }
        queue.dequeue(&lease.receipt, LATER).map_err(|e| e.to_string())?;
    }
    Ok(count)
}

fn full_capacity() -> u64 {
    let dir = TestDir::shm();
    capacity(&create(&dir)).unwrap()
}

/// Opens an image as a survivor would, twice, and takes everything out: sequence -> deliveries before, in order.
fn recovered(dir: &Path, full: u64) -> Result<Vec<(u64, u32)>, String> {
    let text = |e: Error| e.to_string();
    let first = open(dir, NOW).and_then(|queue| queue.stats(NOW)).map_err(text)?;
    let queue = open(dir, NOW).map_err(text)?;
    let stats = queue.stats(NOW).map_err(text)?;
    let phases = |s: &tailrace::conq::Stats| (s.ready, s.leased, s.expired);
    if phases(&first) != phases(&stats) {
        return Err(format!("the second recovery counts differently: {first:?}, {stats:?}"));
    }
    let mut found = Vec::new();
    let mut held: Vec<Receipt> = Vec::new();
    while let Some(lease) = queue.read(MS, LATER).map_err(text)? {
        found.push((identify(&queue, &lease)?, lease.receipt.delivery - 1));
        held.push(lease.receipt);
    }
    if found.len() as u64 != stats.ready + stats.leased + stats.expired {
        return Err(format!("{stats:?}, but {found:?} came out"));
    }
    let once: BTreeSet<u64> = found.iter().map(|(sequence, _)| *sequence).collect();
    if once.len() != found.len() {
        return Err(format!("a message is in two places: {found:?}"));
    }
    for receipt in &held {
        queue.dequeue(receipt, LATER).map_err(text)?;
    }
    let room = capacity(&queue)?;
    if room != full {
        return Err(format!("room for {room} messages is left of {full}"));
    }
    Ok(found)
}

fn sequences(found: &[(u64, u32)]) -> Vec<u64> {
    found.iter().map(|(sequence, _)| *sequence).collect()
}

struct Figures(Vec<(u64, u64)>, &'static str);

impl Figures {
    fn add(&mut self, report: &common::stepkill::Report, what: &str) {
        report.assert_ok(what);
        self.0.push((report.instructions, report.recovered as u64));
    }
}

impl Drop for Figures {
    fn drop(&mut self) {
        let (steps, images) = self.0.iter().fold((0, 0), |sum, run| (sum.0 + run.0, sum.1 + run.1));
        announce(&format!(
            "conq {}: {steps} instructions, {images} images recovered",
            self.1
        ));
    }
}

#[test]
fn killed_at_every_instruction_of_enqueue() {
    let _dog = Watchdog::start("killed enqueue", Duration::from_secs(600));
    let full = full_capacity();
    let mut figures = Figures(Vec::new(), "enqueue");
    // Into nothing (the ring and the first segment get their space), behind others, around the end of the ring.
    for (turns, waiting) in [(0, 0), (0, 3), (255, 2)] {
        let dir = TestDir::shm();
        let queue = create(&dir);
        for _ in 0..turns {
            queue.enqueue(&message(500), NOW).unwrap();
            let lease = queue.read(MS, NOW).unwrap().unwrap();
            queue.dequeue(&lease.receipt, NOW).unwrap();
        }
        fill(&queue, 0..waiting);
        drop(queue);
        let report = StepKill::new(&dir).operations(2).run(
            || open(&dir.queue(), NOW).unwrap(),
            |queue, number| assert!(queue.enqueue(&message(waiting + number as u64), NOW).is_ok()),
            |moment| {
                let found = sequences(&recovered(&moment.dir, full)?);
                let sure = waiting + moment.completed as u64;
                let most = sure + u64::from(moment.running);
                let right = found == (0..sure).collect::<Vec<_>>() || found == (0..most).collect::<Vec<_>>();
                right
                    .then_some(())
                    .ok_or(format!("{sure} to {most} expected, found {found:?}"))
            },
        );
        figures.add(&report, &format!("enqueue after {turns} turns behind {waiting}"));
    }
}

/// The messages that a step-killed operation found, before it: ready 3.., leased and expired below.
#[derive(Clone, Copy, Debug)]
enum Work {
    /// A message that was never read.
    Read,
    /// One that came back.
    ReadReturned,
    /// The first, the middle and the last to end of three leases.
    Dequeue(usize),
    Extend,
    Release,
    /// Three leases end at once.
    Expire,
}

/// Six messages: 0, 1, 2 were read, 3, 4, 5 were not.
fn scene(dir: &TestDir) -> Vec<Receipt> {
    let queue = create(dir);
    fill(&queue, 0..6);
    (0..3)
        .map(|number| queue.read((50 - 10 * number) * MS, NOW).unwrap().unwrap().receipt)
        .collect()
}

fn judge(work: Work, moment: &Moment<'_>, full: u64) -> Result<(), String> {
    let found: BTreeMap<u64, u32> = recovered(&moment.dir, full)?.into_iter().collect();
    let mut expected: BTreeMap<u64, u32> = (0..6).map(|sequence| (sequence, u32::from(sequence < 3))).collect();
    let before = expected.clone();
    match work {
        Work::Read => drop(expected.insert(3, 1)),
        Work::ReadReturned => drop(expected.insert(2, 2)),
        Work::Dequeue(which) => drop(expected.remove(&(which as u64))),
        Work::Extend | Work::Release | Work::Expire => {}
    }
    let done = found == expected;
    match (moment.completed, moment.running) {
        (1, _) if done => Ok(()),
        (0, true) if done || found == before => Ok(()),
        (0, false) if found == before => Ok(()),
        _ => Err(format!("found {found:?}, before {before:?}, after {expected:?}")),
    }
}

#[test]
fn killed_at_every_instruction_under_the_lock() {
    let _dog = Watchdog::start("killed under the lock", Duration::from_secs(900));
    let full = full_capacity();
    let mut figures = Figures(Vec::new(), "read, dequeue, expire, extend, release");
    for work in [
        Work::Read,
        Work::ReadReturned,
        Work::Dequeue(0),
        Work::Dequeue(1),
        Work::Dequeue(2),
        Work::Extend,
        Work::Release,
        Work::Expire,
    ] {
        let dir = TestDir::shm();
        let held = scene(&dir);
        let report = StepKill::new(&dir).run(
            || open(&dir.queue(), NOW).unwrap(),
            |queue, _| match work {
                Work::Read => assert!(queue.read(40 * MS, NOW).unwrap().is_some()),
                // The lease of message 2 ends first.
                Work::ReadReturned => assert_eq!(queue.read(MS, NOW + 31 * MS).unwrap().unwrap().receipt.delivery, 2),
                Work::Dequeue(which) => queue.dequeue(&held[which], NOW).unwrap(),
                Work::Extend => queue.extend(&held[1], 90 * MS, NOW).unwrap(),
                Work::Release => queue.release(&held[1], NOW).unwrap(),
                Work::Expire => assert_eq!(queue.stats(NOW + 60 * MS).unwrap().expired, 3),
            },
            |moment| judge(work, moment, full),
        );
        figures.add(&report, &format!("{work:?}"));
    }
}

/// A full queue of small messages is emptied, and a large one makes a segment change its class.
#[test]
fn killed_at_every_instruction_of_changing_a_size_class() {
    let _dog = Watchdog::start("killed reassignment", Duration::from_secs(600));
    let mut figures = Figures(Vec::new(), "change of a size class");
    let dir = TestDir::shm();
    let queue = create(&dir);
    capacity(&queue).unwrap();
    queue.enqueue(&message(0), NOW).unwrap();
    drop(queue);
    let large = payload::make(1, 1, 300);
    // As LATER, so that the sweep that comes first finds nothing due in the tracee.
    let report = StepKill::new(&dir).run(
        || open(&dir.queue(), NOW).unwrap(),
        |queue, _| assert!(queue.enqueue(&large, NOW).is_ok()),
        |moment| {
            let queue = open(&moment.dir, NOW).map_err(|e| e.to_string())?;
            // Whatever was half done, a large message finds room.
            queue
                .enqueue(&payload::make(1, 2, 300), NOW)
                .map_err(|e| e.to_string())?;
            let mut found = Vec::new();
            while let Some(lease) = queue.read(MS, NOW).map_err(|e| e.to_string())? {
                found.push(identify(&queue, &lease)?);
            }
            let right = found == [0, 1, 2] || moment.completed == 0 && found == [0, 2];
            right.then_some(()).ok_or(format!("found {found:?}"))
        },
    );
    figures.add(&report, "change of class");
}

/// Images that a death left with something to do: one for each kind of remains (all of them in the soak).
fn images(work: impl Fn(&TestDir) -> Box<dyn FnMut(&mut Queue, usize)>) -> Vec<Image> {
    let dir = TestDir::shm();
    let operation = RefCell::new(work(&dir));
    let geometry = Geometry::new(&options()).unwrap();
    let mut kinds = BTreeSet::new();
    let mut images = Vec::new();
    StepKill::new(&dir)
        .run(
            || open(&dir.queue(), NOW).unwrap(),
            |queue, number| operation.borrow_mut()(queue, number),
            |moment| {
                let bytes = moment.image.bytes("q");
                let locked = bytes[0x80..0x88] != [0; 8];
                // The kind of a place in the operation: how often each phase occurs, and where the ring stands.
                let mut phases = [0; 8];
                for slot in slots(&geometry) {
                    phases[usize::from(bytes[geometry.state(slot) + 3] >> 5)] += 1;
                }
                let kind = (locked, phases, bytes[0x90..0xC8].to_vec());
                if (locked || moment.running) && (kinds.insert(kind) || soak()) {
                    images.push(moment.image.clone());
                }
                Ok(())
            },
        )
        .assert_ok("collecting images");
    // Each costs seconds: some from the whole length of the operation are enough for every day.
    let stride = if soak() { 1 } else { images.len().div_ceil(3) };
    images.into_iter().step_by(stride).collect()
}

/// Every slot of one unit.
fn slots(geometry: &Geometry) -> impl Iterator<Item = Slot> + '_ {
    let numbers = 0..geometry.segments * geometry.units;
    numbers.filter_map(|number| geometry.slot(number))
}

#[test]
fn killed_at_every_instruction_of_the_recovery() {
    if !tracee::SUPPORTED {
        return announce("SKIPPED: step-kill needs x86-64");
    }
    let _dog = Watchdog::start("killed recovery", Duration::from_secs(3000));
    let full = full_capacity();
    let mut figures = Figures(Vec::new(), "recovery");
    type Prepare = fn(&TestDir) -> Box<dyn FnMut(&mut Queue, usize)>;
    let works: [(&str, Prepare); 3] = [
        ("expire and read", |dir| {
            scene(dir);
            Box::new(|queue, _| assert!(queue.read(MS, NOW + 60 * MS).unwrap().is_some()))
        }),
        ("dequeue", |dir| {
            let held = scene(dir);
            Box::new(move |queue, _| queue.dequeue(&held[0], NOW).unwrap())
        }),
        ("enqueue", |dir| {
            scene(dir);
            Box::new(|queue, _| assert!(queue.enqueue(&message(6), NOW).is_ok()))
        }),
    ];
    let mut count = 0;
    for (name, work) in works {
        for image in images(work) {
            count += 1;
            let copy = TestDir::shm();
            image.write(&copy.queue());
            // What a survivor finds who is not killed is what every later one must find.
            let judged = TestDir::shm();
            image.write(&judged.queue());
            let expected: BTreeSet<u64> = recovered(&judged.queue(), full).unwrap().iter().map(|f| f.0).collect();
            let report = StepKill::new(&copy).run(
                || (),
                |(), _| {
                    let queue = open(&copy.queue(), NOW).unwrap();
                    queue.stats(NOW).unwrap();
                    std::mem::forget(queue);
                },
                |moment| {
                    let found: BTreeSet<u64> = recovered(&moment.dir, full)?.iter().map(|f| f.0).collect();
                    (found == expected)
                        .then_some(())
                        .ok_or(format!("found {found:?}, expected {expected:?}"))
                },
            );
            figures.add(&report, &format!("recovery after {name}"));
        }
    }
    announce(&format!("conq recovery: {count} images were recovered under the knife"));
}

/// The survivor has the queue open all the time: it meets the death without opening anything.
#[test]
fn a_living_peer_goes_on_after_a_kill_anywhere() {
    if !tracee::SUPPORTED {
        return announce("SKIPPED: step-kill needs x86-64");
    }
    let _dog = Watchdog::start("living peer", Duration::from_secs(600));
    let stride = if soak() { 1 } else { 23 };
    let (mut kills, mut worst) = (0, Duration::ZERO);
    for dequeues in [false, true] {
        let mut step = 0;
        loop {
            let dir = TestDir::shm();
            let held = scene(&dir);
            let peer = open(&dir.queue(), NOW).unwrap();
            let killed = StepKill::new(&dir).kill_at(
                step,
                || open(&dir.queue(), NOW).unwrap(),
                |queue, _| match dequeues {
                    true => queue.dequeue(&held[0], NOW).unwrap(),
                    false => assert!(queue.read(40 * MS, NOW).unwrap().is_some()),
                },
            );
            kills += 1;
            let begun = std::time::Instant::now();
            peer.enqueue(&message(6), NOW).unwrap();
            let mut found = BTreeSet::new();
            while let Some(lease) = peer.read(MS, LATER).unwrap() {
                assert!(found.insert(identify(&peer, &lease).unwrap()), "twice");
            }
            worst = worst.max(begun.elapsed());
            let gone = dequeues && !found.contains(&0);
            assert!(!(gone && killed.completed == 0 && !killed.running));
            let expected: BTreeSet<u64> = (u64::from(gone)..7).collect();
            assert_eq!(found, expected, "killed at {killed:?}");
            if !killed.running {
                break;
            }
            step += stride;
        }
    }
    announce(&format!(
        "conq living peer: {kills} kills, the next call took at most {worst:?}"
    ));
}
