//! Kill at every instruction of claim, write, commit, retrieve and release: nothing acknowledged is lost, every other item is
//! delivered once, and the hole that the dead process left is reported once, without waiting for the commit timeout.

mod common;

use std::path::Path;
use std::time::Duration;

use common::dirs::TestDir;
use common::stepkill::{Moment, StepKill};
use common::watchdog::Watchdog;
use tailrace::aq::{Format, Options, Queue, Reader, Writer};
use tailrace::os::clock::Clock;

/// The timeout never comes to bear: what is reported is reported because its owner is dead.
const TIMEOUT_MS: u32 = 3_600_000;
const PAGE: usize = 16;

/// A ring in some state, and what is done to it.
struct Scenario {
    name: &'static str,
    options: Options,
    /// Bytes of items that were put and taken before: they move head and tail.
    gone: &'static [usize],
    /// Bytes of items that wait.
    waiting: &'static [usize],
    /// Bytes of the item that is put.
    size: usize,
    pages: usize,
}

const FIXED: Options = Options {
    crc32: false,
    link_identifier: false,
    extendable: false,
};
const EXTENDABLE: Options = Options {
    extendable: true,
    crc32: true,
    ..FIXED
};

/// 11 pages of 16 bytes.
const SCENARIOS: [Scenario; 8] = [
    scenario("empty ring, one page", FIXED, &[], &[], 10),
    scenario("half full, three pages", FIXED, &[20], &[30, 10], 40),
    scenario("just fits", FIXED, &[], &[48, 48], 64),
    scenario("wraps, with waste", FIXED, &[64, 48], &[10], 60),
    scenario("wraps, with the waste at the tail", FIXED, &[64, 48], &[], 60),
    scenario("wraps exactly", FIXED, &[80, 64], &[10], 16),
    scenario(
        "checksum",
        Options {
            crc32: true,
            link_identifier: true,
            ..FIXED
        },
        &[20],
        &[10],
        20,
    ),
    scenario("extendable", EXTENDABLE, &[20], &[10], 40),
];

const fn scenario(
    name: &'static str,
    options: Options,
    gone: &'static [usize],
    waiting: &'static [usize],
    size: usize,
) -> Scenario {
    Scenario {
        name,
        options,
        gone,
        waiting,
        size,
        pages: 11,
    }
}

impl Scenario {
    fn create(&self, path: &Path) {
        let words =
            1 + usize::from(self.options.crc32) + usize::from(self.options.link_identifier || self.options.extendable);
        let size = (52 + 4 * words * self.pages).next_multiple_of(16) + self.pages * PAGE;
        let format = Format {
            page_size: PAGE as u64,
            commit_timeout_ms: TIMEOUT_MS,
            options: self.options,
        };
        let queue = Queue::create(path, size, &format).unwrap();
        assert_eq!(queue.geometry().unwrap().page_count as usize, self.pages);
        let writer = queue.writer().unwrap();
        let mut reader = queue.reader().unwrap();
        for &size in self.gone {
            assert!(writer.try_put(&vec![b'o'; size]).unwrap());
            assert!(reader.take(|_| Ok(())).unwrap().is_some());
        }
        for (index, &size) in self.waiting.iter().enumerate() {
            assert!(writer.try_put(&message(index, size)).unwrap());
        }
    }

    /// What the tracee puts, in the pieces that an extendable item grows by.
    fn put(&self, writer: &Writer) {
        let bytes = message(self.waiting.len(), self.size);
        let first = if self.options.extendable { PAGE } else { self.size };
        let mut claim = writer.try_claim(first).unwrap().expect("there is room");
        for part in bytes.chunks(PAGE) {
            assert!(claim.write(None, part).unwrap());
        }
        assert!(claim.commit().unwrap());
    }
}

fn message(number: usize, size: usize) -> Vec<u8> {
    (0..size).map(|index| (number * 31 + index) as u8).collect()
}

/// Everything that a new reader is handed: the bytes of each committed item, and the number of incomplete ones.
fn drain(queue: &Queue) -> (Vec<Vec<u8>>, usize) {
    let clock = Clock::manual();
    let mut reader = queue.reader_with(clock.clone()).unwrap();
    let (mut messages, mut incomplete) = (Vec::new(), 0);
    // A writer that died right after it moved the head is only suspected of it for a moment.
    for _ in 0..2 {
        while let Some(item) = reader.retrieve().unwrap() {
            if item.is_committed() {
                assert!(item.is_checksum_valid());
                messages.push(reader.to_vec(&item));
            } else {
                incomplete += 1;
            }
            reader.release(item).unwrap();
        }
        clock.advance(Duration::from_millis(150));
    }
    (messages, incomplete)
}

fn word(queue: &Queue, at: usize) -> u32 {
    queue.region().u32(at).load(std::sync::atomic::Ordering::SeqCst)
}

/// After any recovery the ring is empty, says so again, and takes and gives as much as it ever did.
fn works_as_new(queue: &Queue) -> Result<(), String> {
    if word(queue, 44) != word(queue, 48) {
        return Err(format!(
            "not empty: head {:#x} tail {:#x}",
            word(queue, 44),
            word(queue, 48)
        ));
    }
    if drain(queue) != (Vec::new(), 0) {
        return Err("something was reported twice".into());
    }
    let writer = queue.writer().unwrap();
    for round in 0..25 {
        let sizes = [10, 40, 70, 33];
        let sent: Vec<Vec<u8>> = sizes
            .iter()
            .map(|size| message(round, *size))
            .take_while(|m| writer.try_put(m).unwrap())
            .collect();
        if sent.is_empty() || drain(queue) != (sent.clone(), 0) {
            return Err(format!("round {round}: the ring does not give what was put"));
        }
    }
    Ok(())
}

fn recover_put(scenario: &Scenario, moment: &Moment<'_>) -> Result<(), String> {
    let queue = Queue::open(&moment.dir.join("q")).unwrap();
    let items_before = queue.incomplete_count().unwrap();
    let (tail, head) = (word(&queue, 48), word(&queue, 44));
    let (messages, incomplete) = drain(&queue);
    let mut expected: Vec<Vec<u8>> = scenario
        .waiting
        .iter()
        .enumerate()
        .map(|(i, size)| message(i, *size))
        .collect();
    let put = message(scenario.waiting.len(), scenario.size);
    let was_put = messages.last() == Some(&put);
    if was_put {
        expected.push(put);
    }
    if messages != expected {
        return Err(format!(
            "wrong messages: {} instead of {}",
            messages.len(),
            expected.len()
        ));
    }
    if moment.completed == 1 && !was_put {
        return Err("an acknowledged message is lost".into());
    }
    let silent = queue.incomplete_count().unwrap() - items_before;
    let claimed = head != before(scenario, tail);
    let hole = claimed && !was_put;
    let reported = if scenario.options.extendable {
        incomplete == 1 || silent > 0
    } else {
        incomplete == 1 && silent == 0
    };
    if hole != reported || incomplete > 1 {
        return Err(format!("hole {hole}, reported {incomplete} and {silent} silently"));
    }
    works_as_new(&queue)
}

/// Where the head was before the put, from where the tail is.
fn before(scenario: &Scenario, tail: u32) -> u32 {
    let pages: u32 = scenario.waiting.iter().map(|size| size.div_ceil(PAGE) as u32).sum();
    let index = (tail & 0xF_FFFF) + pages;
    if index < 11 {
        tail + pages
    } else {
        (tail & !0xF_FFFF) + (1 << 20) + index - 11
    }
}

#[test]
fn a_writer_killed_at_any_instruction() {
    let _dog = Watchdog::start("stepped writer", Duration::from_secs(600));
    let (mut points, mut images) = (0, 0);
    for scenario in &SCENARIOS {
        let dir = TestDir::shm();
        let path = dir.queue().join("q");
        scenario.create(&path);
        let report = StepKill::new(&dir).run(
            || {
                let queue = Queue::open(&path).unwrap();
                let writer = queue.writer().unwrap();
                (queue, writer)
            },
            |(_, writer), _| scenario.put(writer),
            |moment| recover_put(scenario, moment),
        );
        report.assert_ok(scenario.name);
        points += report.instructions;
        images += report.distinct_images;
    }
    common::announce(&format!("writer: {points} kill points, {images} distinct images"));
}

/// What is put in one call: two runs, of one to three pages a message.
const BATCH: [usize; 6] = [10, 40, 16, 33, 5, 48];

fn batch(scenario: &Scenario) -> Vec<Vec<u8>> {
    let first = scenario.waiting.len();
    let sizes = BATCH.iter().enumerate();
    sizes.map(|(number, size)| message(first + number, *size)).collect()
}

/// The messages of a batch come in order, from the first on; a run that was not committed is one hole.
fn recover_batch(scenario: &Scenario, moment: &Moment<'_>) -> Result<(), String> {
    let queue = Queue::open(&moment.dir.join("q")).unwrap();
    let (messages, incomplete) = drain(&queue);
    let waiting = scenario.waiting.iter().enumerate();
    let mut all: Vec<Vec<u8>> = waiting.map(|(i, size)| message(i, *size)).collect();
    let least = all.len();
    all.extend(batch(scenario));
    let whole = messages.len() == all.len();
    if messages.len() < least || messages != all[..messages.len()] {
        return Err(format!("{} messages of {} or more", messages.len(), least));
    }
    if moment.completed == 1 && !whole {
        return Err("acknowledged messages are lost".into());
    }
    if incomplete > usize::from(!whole) {
        return Err(format!("{incomplete} incomplete, {} messages", messages.len()));
    }
    works_as_new(&queue)
}

#[test]
fn a_writer_killed_at_any_instruction_of_a_batch() {
    let _dog = Watchdog::start("stepped batch", Duration::from_secs(600));
    let checked = Options {
        crc32: true,
        link_identifier: true,
        ..FIXED
    };
    let scenarios = [
        scenario("empty ring", FIXED, &[], &[], 0),
        scenario("in the middle", FIXED, &[20], &[30, 10], 0),
        scenario("around the end", FIXED, &[320, 240], &[10], 0),
        scenario("checksums", checked, &[20], &[10], 0),
    ];
    let (mut points, mut images) = (0, 0);
    for scenario in scenarios {
        let scenario = &Scenario { pages: 44, ..scenario };
        let dir = TestDir::shm();
        let path = dir.queue().join("q");
        scenario.create(&path);
        let messages = batch(scenario);
        let report = StepKill::new(&dir).run(
            || {
                let queue = Queue::open(&path).unwrap();
                let writer = queue.writer().unwrap();
                (queue, writer)
            },
            |(_, writer), _| {
                let put = writer.try_put_many(messages.iter().map(Vec::as_slice)).unwrap();
                assert_eq!(put, messages.len());
            },
            |moment| recover_batch(scenario, moment),
        );
        report.assert_ok(scenario.name);
        points += report.instructions;
        images += report.distinct_images;
    }
    common::announce(&format!("batches: {points} kill points, {images} distinct images"));
}

type ReaderWork = fn(&mut Reader, usize);

/// Each operation takes one of the waiting items, or two.
const READER_WORKS: [(&str, usize, usize, ReaderWork); 4] = [
    ("retrieve and release", 1, 3, |reader, _| {
        let item = reader.retrieve().unwrap().unwrap();
        assert!(reader.release(item).unwrap());
    }),
    ("take", 1, 3, |reader, _| {
        reader.take(|message| Ok(message.size())).unwrap().unwrap();
    }),
    ("take two", 2, 1, |reader, _| {
        assert_eq!(reader.take_many(2, |_| Ok(tailrace::aq::Verdict::Taken)).unwrap(), 2);
    }),
    ("take three", 3, 1, |reader, _| {
        assert_eq!(reader.take_many(3, |_| Ok(tailrace::aq::Verdict::Taken)).unwrap(), 3);
    }),
];

#[test]
fn a_reader_killed_at_any_instruction() {
    let _dog = Watchdog::start("stepped reader", Duration::from_secs(600));
    let scenarios = [
        scenario("in the middle", FIXED, &[20], &[30, 10, 40, 5], 0),
        scenario("around the end", FIXED, &[64, 32], &[30, 10, 40, 5], 0),
        scenario("extendable", EXTENDABLE, &[20], &[30, 10, 40, 5], 0),
    ];
    let (mut points, mut images) = (0, 0);
    for scenario in &scenarios {
        for (name, per_call, calls, work) in READER_WORKS {
            let dir = TestDir::shm();
            let path = dir.queue().join("q");
            scenario.create(&path);
            let report = StepKill::new(&dir).operations(calls).run(
                || {
                    let queue = Queue::open(&path).unwrap();
                    let reader = queue.reader().unwrap();
                    (queue, reader)
                },
                |(_, reader), number| work(reader, number),
                |moment| recover_take(scenario, per_call, moment),
            );
            report.assert_ok(&format!("{}: {name}", scenario.name));
            points += report.instructions;
            images += report.distinct_images;
        }
    }
    common::announce(&format!("reader: {points} kill points, {images} distinct images"));
}

/// What was released never comes again, what was not always does; the items of the running call may do either.
fn recover_take(scenario: &Scenario, per_call: usize, moment: &Moment<'_>) -> Result<(), String> {
    let queue = Queue::open(&moment.dir.join("q")).unwrap();
    let (messages, incomplete) = drain(&queue);
    let all: Vec<Vec<u8>> = scenario
        .waiting
        .iter()
        .enumerate()
        .map(|(i, size)| message(i, *size))
        .collect();
    let gone = all.len() - messages.len();
    let least = moment.completed * per_call;
    let most = if moment.running { least + per_call } else { least };
    if !(least..=most).contains(&gone) || messages != all[gone..] || incomplete > 0 {
        return Err(format!(
            "{gone} gone (between {least} and {most}), {incomplete} incomplete"
        ));
    }
    works_as_new(&queue)
}

/// A survivor at work when the writer dies: the hole is reported beside the survivor's own messages.
#[test]
fn a_writer_killed_beside_a_living_reader() {
    if !common::tracee::SUPPORTED {
        return common::announce("SKIPPED: step-kill needs x86-64");
    }
    let _dog = Watchdog::start("killed beside a reader", Duration::from_secs(300));
    let scenario = &SCENARIOS[1];
    let mut holes = 0;
    for steps in (0..).step_by(common::rounds(23, 1) as usize) {
        let dir = TestDir::shm();
        let path = dir.queue().join("q");
        scenario.create(&path);
        let queue = Queue::open(&path).unwrap();
        let clock = Clock::manual();
        let mut reader = queue.reader_with(clock.clone()).unwrap();
        let killed = StepKill::new(&dir).kill_at(
            steps,
            || {
                let queue = Queue::open(&path).unwrap();
                let writer = queue.writer().unwrap();
                (queue, writer)
            },
            |(_, writer), _| scenario.put(writer),
        );
        queue.writer().unwrap().try_put(b"survivor").unwrap();
        let (mut messages, mut incomplete) = (Vec::new(), 0);
        for _ in 0..2 {
            while let Some(item) = reader.retrieve().unwrap() {
                if item.is_committed() {
                    messages.push(reader.to_vec(&item));
                } else {
                    incomplete += 1;
                }
                reader.release(item).unwrap();
            }
            clock.advance(Duration::from_millis(150));
        }
        assert_eq!(
            word(&queue, 44),
            word(&queue, 48),
            "after {steps} steps the ring is empty"
        );
        assert!(messages.contains(&b"survivor".to_vec()), "after {steps} steps");
        assert!(
            incomplete + messages.len() > scenario.waiting.len(),
            "after {steps} steps"
        );
        assert!(killed.completed == 0 || messages.len() == scenario.waiting.len() + 2);
        holes += incomplete;
        if !killed.running {
            break;
        }
    }
    assert!(holes > 0, "some kill fell between claim and commit");
}
