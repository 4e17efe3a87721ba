//! The ring beside a program that knows only its document: `tests/c/ring_peer.c`, written from the document alone.

mod common;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::dirs::TestDir;
use common::mapped::Mapped;
use common::tracee::{self, Stop, Tracee};
use common::watchdog::Watchdog;
use common::{announce, rounds, wait_until};
use tailrace::ring::{Options, Queue};
use tailrace::shared::signal::Wait;

const LIMIT: Duration = Duration::from_secs(30);
const WORDS: u32 = 6;

/// The lock words that such a program may use.
const LOCK_WORDS: [&str; 3] = ["1", "pid", "0xffffffffffffffff"];

struct Peer {
    program: PathBuf,
    queue: PathBuf,
}

impl Peer {
    fn compile(dir: &TestDir) -> Self {
        let program = dir.scratch().join("ring_peer");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/ring_peer.c");
        let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
        let done = Command::new(compiler)
            .args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-o"])
            .args([&program, &source])
            .status();
        assert!(done.expect("a C compiler").success(), "ring_peer.c does not compile");
        Self {
            program,
            queue: dir.queue().join("q"),
        }
    }

    fn start(&self, command: &str, arguments: &[&str]) -> Child {
        let mut call = Command::new(&self.program);
        call.arg(command)
            .arg(&self.queue)
            .args(arguments)
            .stdout(Stdio::piped());
        call.spawn().expect("start ring_peer")
    }

    fn finish(child: Child) -> Vec<(u32, u64)> {
        let output = child.wait_with_output().expect("ring_peer");
        assert!(output.status.success(), "ring_peer: {}", output.status);
        let text = String::from_utf8(output.stdout).unwrap();
        let pair = |line: &str| {
            let (producer, sequence) = line.split_once(' ').unwrap();
            (producer.parse().unwrap(), sequence.parse().unwrap())
        };
        text.lines().map(pair).collect()
    }

    fn run(&self, command: &str, arguments: &[&str]) -> Vec<(u32, u64)> {
        Self::finish(self.start(command, arguments))
    }
}

/// A message as the peer makes it.
fn message(producer: u32, sequence: u64) -> Vec<u8> {
    let first = u64::from(producer) << 32 | sequence;
    let words = (0..u64::from(WORDS)).map(|i| if i == 0 { first } else { first.wrapping_mul(2 * i + 1) });
    words.flat_map(u64::to_le_bytes).collect()
}

fn parse(data: &[u8]) -> (u32, u64) {
    let first = u64::from_le_bytes(data[..8].try_into().unwrap());
    let found = ((first >> 32) as u32, first & 0xffff_ffff);
    assert_eq!(data, message(found.0, found.1), "torn");
    found
}

fn drain(ring: &Queue) -> Vec<(u32, u64)> {
    std::iter::from_fn(|| ring.try_dequeue().unwrap())
        .map(|m| parse(&m.data))
        .collect()
}

#[test]
fn each_reads_what_the_other_wrote_in_order() {
    let _dog = Watchdog::start("there and back", Duration::from_secs(60));
    for word in LOCK_WORDS {
        let dir = TestDir::shm();
        let peer = Peer::compile(&dir);
        let ring = Queue::create(&peer.queue, 8, WORDS).unwrap();
        for start in 0..20 {
            let expected: Vec<(u32, u64)> = (0..5).map(|sequence| (1, sequence)).collect();
            peer.run("write", &["5", "1", word]);
            let got: Vec<_> = std::iter::from_fn(|| ring.try_dequeue().unwrap()).collect();
            assert!(
                got.iter().all(|m| m.sequence.is_none()),
                "a foreign message has no number"
            );
            assert_eq!(got.iter().map(|m| parse(&m.data)).collect::<Vec<_>>(), expected);
            for sequence in 0..5 {
                ring.enqueue(&message(2, sequence)).unwrap();
            }
            let expected: Vec<(u32, u64)> = (0..5).map(|sequence| (2, sequence)).collect();
            assert_eq!(peer.run("read", &["5", word]), expected, "round {start}");
        }
        assert!(ring.foreign_seen());
        assert_eq!(ring.counters().unwrap().queued, 0);
    }
}

#[test]
fn both_overwrite_the_oldest_and_numbers_are_given_only_where_they_are_certain() {
    let dir = TestDir::shm();
    let peer = Peer::compile(&dir);
    let ring = Queue::create(&peer.queue, 4, WORDS).unwrap();
    for sequence in 0..6 {
        ring.enqueue(&message(1, sequence)).unwrap();
    }
    peer.run("write", &["2", "2", "1"]);
    ring.enqueue(&message(1, 6)).unwrap();
    let seen: Vec<_> = ring
        .snapshot()
        .unwrap()
        .iter()
        .map(|m| (m.sequence, parse(&m.data)))
        .collect();
    assert_eq!(
        seen,
        [(Some(5), (1, 5)), (None, (2, 0)), (None, (2, 1)), (Some(6), (1, 6))]
    );
    assert_eq!(peer.run("drain", &["pid"]), [(1, 5), (2, 0), (2, 1), (1, 6)]);
    assert!(drain(&ring).is_empty());
}

#[test]
fn a_file_that_the_other_made_serves_both() {
    let dir = TestDir::shm();
    let peer = Peer::compile(&dir);
    let made = Command::new(&peer.program)
        .arg("create")
        .arg(&peer.queue)
        .args(["4", &WORDS.to_string()])
        .status();
    assert!(made.unwrap().success());
    let ring = Queue::open(&peer.queue).unwrap();
    assert!(!ring.has_trailer());
    peer.run("write", &["6", "1", "1"]);
    assert_eq!(drain(&ring), [(1, 2), (1, 3), (1, 4), (1, 5)]);
    for sequence in 0..6 {
        ring.enqueue(&message(2, sequence)).unwrap();
    }
    assert_eq!(peer.run("drain", &["1"]), [(2, 2), (2, 3), (2, 4), (2, 5)]);
}

fn put_batch(ring: &Queue, sequences: std::ops::Range<u64>) {
    let messages: Vec<_> = sequences.map(|sequence| message(2, sequence)).collect();
    ring.enqueue_many(&messages.iter().map(Vec::as_slice).collect::<Vec<_>>())
        .unwrap();
}

/// Two of theirs and two of ours at once, ours with batches now and then; nothing is overwritten, so every message arrives
/// exactly once.
#[test]
fn all_at_once_nothing_is_lost_or_torn() {
    let _dog = Watchdog::start("beside a foreign program", Duration::from_secs(600));
    let dir = TestDir::shm();
    let peer = Peer::compile(&dir);
    let count = 20_000_u64;
    for round in 0..rounds(3, 30) as usize {
        let _ = std::fs::remove_file(&peer.queue);
        let trailer = round % 2 == 0;
        if trailer {
            drop(Queue::create(&peer.queue, 65_536, WORDS).unwrap());
        } else {
            let made = Command::new(&peer.program)
                .arg("create")
                .arg(&peer.queue)
                .args(["65536", "6"])
                .status();
            assert!(made.unwrap().success());
        }
        let ring = Queue::open(&peer.queue).unwrap();
        assert_eq!(ring.has_trailer(), trailer);
        let word = LOCK_WORDS[round % LOCK_WORDS.len()];
        let writer = peer.start("write", &[&count.to_string(), "1", word]);
        let reader = peer.start("read", &[&count.to_string(), word]);
        let ours = std::thread::scope(|scope| {
            scope.spawn(|| {
                for first in (0..count).step_by(100) {
                    (first..first + 40).for_each(|sequence| drop(ring.enqueue(&message(2, sequence))));
                    put_batch(&ring, first + 40..first + 100);
                }
            });
            let reading = scope.spawn(|| {
                let mut got = Vec::new();
                while got.len() < count as usize {
                    let wait = Wait::from_timeout(Some(LIMIT));
                    got.push(parse(&ring.dequeue(wait).unwrap().data));
                    let batch = ring.try_dequeue_many((count as usize - got.len()).min(50)).unwrap();
                    got.extend(batch.iter().map(|message| parse(&message.data)));
                }
                got
            });
            reading.join().unwrap()
        });
        let theirs = Peer::finish(reader);
        Peer::finish(writer);
        for got in [&ours, &theirs] {
            for producer in [1, 2] {
                let order: Vec<u64> = got.iter().filter(|m| m.0 == producer).map(|m| m.1).collect();
                assert!(order.is_sorted(), "producer {producer} is out of order");
            }
        }
        let all: BTreeSet<_> = ours.iter().chain(&theirs).copied().collect();
        let expected: BTreeSet<_> = (0..count).flat_map(|sequence| [(1, sequence), (2, sequence)]).collect();
        assert_eq!(all, expected, "round {round}");
        assert_eq!(
            ours.len() + theirs.len(),
            expected.len(),
            "something was delivered twice"
        );
        assert!(drain(&ring).is_empty());
    }
    announce(&format!(
        "ring beside a foreign program: {} messages a round, each delivered once",
        2 * count
    ));
}

/// A small ring that both sides overwrite at full speed: whatever is delivered is whole.
#[test]
fn all_at_once_in_a_small_ring_nothing_is_torn() {
    let _dog = Watchdog::start("small ring beside a foreign program", Duration::from_secs(600));
    let dir = TestDir::shm();
    let peer = Peer::compile(&dir);
    let count = rounds(30_000, 1_000_000);
    for slots in [3, 16] {
        let _ = std::fs::remove_file(&peer.queue);
        let ring = Queue::create(&peer.queue, slots, WORDS).unwrap();
        let writer = peer.start("write", &[&count.to_string(), "1", "pid"]);
        let mut got = 0;
        for sequence in (0..count).step_by(5) {
            ring.enqueue(&message(2, sequence)).unwrap();
            put_batch(&ring, sequence + 1..sequence + 5);
            let taken = ring.try_dequeue_many(5).unwrap();
            for message in &taken {
                parse(&message.data);
            }
            got += taken.len();
            for seen in ring.snapshot().unwrap() {
                parse(&seen.data);
            }
        }
        Peer::finish(writer);
        announce(&format!(
            "ring: {got} messages out of {slots} slots beside a foreign writer, none torn"
        ));
        assert!(got > 0);
    }
}

/// What one of ours is doing in a slot when it dies there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Death {
    Writing,
    Taking,
    Looking,
}

/// One of ours dies in a slot of a ring of two: in slot 1 while it writes the second message, else in slot 0 with the first.
fn die(dir: &TestDir, queue: &Path, file: &Mapped, death: Death) {
    let locked = |slot: usize| file.u64(32 + slot * (8 + 8 * WORDS as usize)).load(Ordering::Acquire) != 0;
    let mut victim = Tracee::start(&dir.scratch(), || {
        let ring = Queue::open(queue).unwrap();
        tracee::mark();
        match death {
            Death::Writing => drop(ring.enqueue(&message(1, 1))),
            Death::Taking => drop(ring.try_dequeue().unwrap()),
            Death::Looking => drop(ring.latest().unwrap()),
        }
        common::process::exit_now(0);
    });
    let slot = usize::from(death == Death::Writing);
    while !locked(slot) || file.u64(16).load(Ordering::Acquire) != 0 {
        assert_eq!(victim.step(), Stop::Step);
    }
    victim.kill();
}

/// One of ours dies in the slot that a foreign program then waits for, holding the header: a survivor frees the slot beside it.
/// The document publishes a slot before it is locked, so the queue covers the slot by then whatever died there: only the dead
/// one's lock word tells a message that was lost in its hands from one that it merely looked at.
#[test]
fn a_foreign_program_that_waits_for_our_dead_is_helped() {
    if !tracee::SUPPORTED {
        return announce("SKIPPED: dying at an instruction needs x86-64");
    }
    let _dog = Watchdog::start("foreign waits for the dead", Duration::from_secs(120));
    for death in [Death::Writing, Death::Taking, Death::Looking] {
        let dir = TestDir::shm();
        let peer = Peer::compile(&dir);
        let ring = Queue::create(&peer.queue, 2, WORDS).unwrap();
        ring.enqueue(&message(1, 0)).unwrap();
        let file = Mapped::open(&peer.queue);
        die(&dir, &peer.queue, &file, death);
        // The reader's slot comes up for the second message, the writer's for the third.
        let writer = peer.start("write", &["3", "2", "1"]);
        assert!(
            wait_until(LIMIT, || file.u64(16).load(Ordering::Acquire) == 1),
            "it holds the header and waits"
        );
        ring.enqueue(&message(1, 2)).unwrap();
        Peer::finish(writer);
        let counters = ring.counters().unwrap();
        assert_eq!(counters.abandoned, u64::from(death == Death::Writing), "{death:?}");
        assert_eq!(counters.lost_in_hands, u64::from(death == Death::Taking), "{death:?}");
        let left = drain(&ring);
        assert!(left.len() == 2 && left.contains(&(2, 2)), "{death:?}: {left:?}");
    }
}

/// A foreign reader has taken the message of a dead writer out of the queue and waits for its slot: it gets zeros, not half a
/// message, and the message counts as abandoned although the queue covers it no more.
#[test]
fn a_foreign_reader_gets_nothing_of_a_message_whose_writer_died() {
    if !tracee::SUPPORTED {
        return announce("SKIPPED: dying at an instruction needs x86-64");
    }
    let _dog = Watchdog::start("foreign reads from the dead", Duration::from_secs(120));
    let dir = TestDir::shm();
    let peer = Peer::compile(&dir);
    let ring = Queue::create(&peer.queue, 2, WORDS).unwrap();
    ring.enqueue(&message(1, 0)).unwrap();
    let file = Mapped::open(&peer.queue);
    die(&dir, &peer.queue, &file, Death::Writing);
    let reader = peer.start("read", &["2", "1"]);
    assert!(
        wait_until(LIMIT, || file.u32(28).load(Ordering::Acquire) == 0),
        "it holds the header and waits"
    );
    ring.enqueue(&message(1, 2)).unwrap();
    assert_eq!(Peer::finish(reader), [(1, 0), (0, 0)]);
    let counters = ring.counters().unwrap();
    assert_eq!((counters.abandoned, counters.lost_in_hands), (1, 0));
    assert_eq!(drain(&ring), [(1, 2)]);
}

/// A foreign program holds a slot for ever, with any word that it likes; with a time limit its slot is freed, and what the
/// queue says about the slot decides what was lost.
#[test]
fn a_foreign_lock_is_broken_by_the_place_of_its_slot_whatever_its_word() {
    let _dog = Watchdog::start("foreign slots", Duration::from_secs(120));
    // Small numbers with each of the purposes that our own words have, and one that is no number of ours.
    for word in [1, 0x3039, 0x303a, 0x303b, 0x303c, u64::MAX] {
        for covered in [true, false] {
            let dir = TestDir::shm();
            let path = dir.queue().join("q");
            let options = Options {
                foreign_timeout: Some(Duration::from_millis(20)),
            };
            let ring = Queue::create_with(&path, 2, WORDS, options).unwrap();
            let wait = || Wait::from_timeout(Some(LIMIT));
            ring.enqueue(&message(1, 0)).unwrap();
            if !covered {
                ring.try_dequeue().unwrap().unwrap();
            }
            ring.enqueue(&message(1, 1)).unwrap();
            Mapped::open(&path).u64(32).store(word, Ordering::Release);
            if !covered {
                ring.enqueue_within(&message(1, 2), wait()).unwrap();
            }
            let next = ring.dequeue(wait()).unwrap();
            assert_eq!(parse(&next.data), (1, 1), "{word:#x} covered {covered}");
            let counters = ring.counters().unwrap();
            let counts = (counters.abandoned, counters.lost_in_hands);
            assert_eq!(
                counts,
                if covered { (1, 0) } else { (0, 1) },
                "{word:#x} covered {covered}"
            );
        }
    }
}
