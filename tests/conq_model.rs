//! conq against a plain model of its document, on a clock that the test moves: in one process, and in files that are closed and
//! opened again in between.

mod common;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use common::dirs::TestDir;
use proptest::prelude::*;
use tailrace::Error;
use tailrace::conq::origin::Origin;
use tailrace::conq::{Manager, Options, Receipt};
use tailrace::os::clock::Clock;

const MAX_MESSAGES: usize = 12;

/// The document, in the simplest form that can be right.
#[derive(Default)]
struct Model {
    now: u64,
    next_id: u64,
    ready: VecDeque<u64>,
    leased: BTreeMap<u64, (u64, u32)>,
    expired: VecDeque<u64>,
    deliveries: BTreeMap<u64, u32>,
    data: BTreeMap<u64, Vec<u8>>,
}

impl Model {
    fn len(&self) -> usize {
        self.data.len()
    }

    fn maintain(&mut self) {
        let mut over: Vec<(u64, u64)> = self
            .leased
            .iter()
            .filter(|(_, (deadline, _))| *deadline < self.now)
            .map(|(id, (deadline, _))| (*deadline, *id))
            .collect();
        over.sort_unstable();
        for (_, id) in over {
            self.leased.remove(&id);
            self.expired.push_back(id);
        }
    }

    fn enqueue(&mut self, data: Vec<u8>) -> Option<u64> {
        if self.len() == MAX_MESSAGES {
            return None;
        }
        let id = self.next_id;
        self.next_id += 1;
        self.ready.push_back(id);
        self.data.insert(id, data);
        Some(id)
    }

    fn read(&mut self, timeout: u64) -> Option<(u64, u32)> {
        self.maintain();
        let id = self.expired.pop_front().or_else(|| self.ready.pop_front())?;
        let delivery = self.deliveries.entry(id).or_default();
        *delivery += 1;
        self.leased.insert(id, (self.now.saturating_add(timeout), *delivery));
        Some((id, *delivery))
    }

    fn holds(&mut self, id: u64, delivery: u32) -> bool {
        self.maintain();
        self.leased.get(&id).is_some_and(|(_, held)| *held == delivery)
    }

    fn dequeue(&mut self, id: u64, delivery: u32) -> bool {
        let held = self.holds(id, delivery);
        if held {
            self.leased.remove(&id);
            self.data.remove(&id);
        }
        held
    }

    fn extend(&mut self, id: u64, delivery: u32, timeout: u64) -> bool {
        let held = self.holds(id, delivery);
        if held {
            self.leased.insert(id, (self.now.saturating_add(timeout), delivery));
        }
        held
    }

    fn release(&mut self, id: u64, delivery: u32) -> bool {
        let held = self.holds(id, delivery);
        if held {
            self.leased.remove(&id);
            self.expired.push_back(id);
        }
        held
    }
}

#[derive(Clone, Debug)]
enum Step {
    Enqueue(usize),
    Read(u64),
    /// The nth receipt that was ever given, modulo their number.
    Dequeue(usize),
    Extend(usize, u64),
    Release(usize),
    Pass(u64),
    Stats,
    Reopen,
}

/// Nanoseconds around every edge that text keys, milliseconds and overflow ever had.
fn timeouts() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(1),
        Just(1_000_000),
        Just(9_000_000),
        Just(10_000_000),
        Just(100_000_000),
        1_u64..50_000_000,
        Just(10_000_000_000_000 * 1_000_000),
        Just(1 << 63),
        Just(u64::MAX),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0_usize..300).prop_map(Step::Enqueue),
        5 => timeouts().prop_map(Step::Read),
        4 => any::<usize>().prop_map(Step::Dequeue),
        1 => (any::<usize>(), timeouts()).prop_map(|(which, timeout)| Step::Extend(which, timeout)),
        1 => any::<usize>().prop_map(Step::Release),
        3 => prop_oneof![Just(1), Just(1_000_000), 0_u64..60_000_000].prop_map(Step::Pass),
        1 => Just(Step::Stats),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 1..120)
}

fn options() -> Options {
    Options {
        max_messages: MAX_MESSAGES as u32,
        max_message_size: 300,
        max_bytes: 64 << 10,
        participants: 8,
        dead_letter: None,
    }
}

fn run(steps: &[Step], clock: &Clock, open: impl Fn() -> Manager) {
    let mut manager = open();
    let queue = manager.create_queue("model", &options()).unwrap();
    let mut model = Model {
        now: clock.now(),
        ..Model::default()
    };
    let mut receipts: Vec<Receipt> = Vec::new();
    let found = |outcome: tailrace::Result<()>| match outcome {
        Ok(()) => true,
        Err(Error::MessageNotFound(_)) => false,
        Err(other) => panic!("{other}"),
    };
    for step in steps {
        match *step {
            Step::Enqueue(size) => {
                let data: Vec<u8> = (0..size).map(|i| (i as u64 + model.next_id * 31) as u8).collect();
                let expected = model.enqueue(data.clone());
                match manager.enqueue(queue, &data) {
                    Ok(id) => assert_eq!(Some(id), expected),
                    Err(Error::Full(_)) => assert_eq!(expected, None, "full too early"),
                    Err(other) => panic!("{other}"),
                }
            }
            Step::Read(timeout) => {
                let message = manager.read(queue, Duration::from_nanos(timeout)).unwrap();
                let expected = model.read(timeout);
                let got = message.as_ref().map(|m| (m.receipt.id, m.receipt.delivery));
                assert_eq!(got, expected);
                if let Some(message) = message {
                    assert_eq!(message.data, model.data[&message.receipt.id]);
                    receipts.push(message.receipt);
                }
            }
            Step::Pass(time) => {
                clock.advance(Duration::from_nanos(time));
                model.now += time;
            }
            Step::Stats => {
                model.maintain();
                let stats = manager.stats(queue).unwrap();
                assert_eq!(stats.ready, model.ready.len() as u64);
                assert_eq!(stats.leased, model.leased.len() as u64);
                assert_eq!(stats.expired, model.expired.len() as u64);
                assert_eq!(stats.enqueued, model.next_id);
                assert_eq!(stats.repairs, 0);
            }
            Step::Reopen => {
                drop(manager);
                manager = open();
            }
            Step::Dequeue(_) | Step::Extend(..) | Step::Release(_) if receipts.is_empty() => {}
            Step::Dequeue(which) => {
                let receipt = receipts[which % receipts.len()];
                let expected = model.dequeue(receipt.id, receipt.delivery);
                assert_eq!(found(manager.dequeue(queue, &receipt)), expected);
            }
            Step::Extend(which, timeout) => {
                let receipt = receipts[which % receipts.len()];
                let expected = model.extend(receipt.id, receipt.delivery, timeout);
                let outcome = manager.extend(queue, &receipt, Duration::from_nanos(timeout));
                assert_eq!(found(outcome), expected);
            }
            Step::Release(which) => {
                let receipt = receipts[which % receipts.len()];
                let expected = model.release(receipt.id, receipt.delivery);
                assert_eq!(found(manager.release(queue, &receipt)), expected);
            }
        }
    }
    // Whatever the history, nothing is lost: all that is left can be read and finished.
    clock.advance(Duration::from_nanos(u64::MAX / 4));
    let before = model.leased.len();
    model.now += u64::MAX / 4;
    model.maintain();
    let endless = model.leased.len();
    assert!(endless <= before);
    for _ in 0..model.len() - endless {
        let message = manager.read(queue, Duration::from_secs(1)).unwrap().expect("left");
        assert_eq!(Some((message.receipt.id, message.receipt.delivery)), model.read(1));
        manager.dequeue(queue, &message.receipt).unwrap();
        assert!(model.dequeue(message.receipt.id, message.receipt.delivery));
    }
    assert!(manager.read(queue, Duration::from_secs(1)).unwrap().is_none());
}

fn cases(quick: u32, full: u32) -> ProptestConfig {
    ProptestConfig {
        cases: common::rounds(quick.into(), full.into()) as u32,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

#[test]
fn a_process_wide_queue_does_what_the_document_says() {
    proptest!(cases(2000, 20_000), |(steps in steps())| {
        let clock = Clock::manual();
        let manager = Manager::private(clock.clone());
        run(&steps, &clock, || manager.clone());
    });
}

#[test]
fn a_queue_file_does_the_same_across_reopening() {
    let here = Origin::here().unwrap();
    proptest!(cases(300, 2000), |(steps in steps())| {
        let dir = TestDir::shm();
        let clock = Clock::manual();
        run(&steps, &clock, || Manager::open_at(&dir.queue(), clock.clone(), here).unwrap());
    });
}
