//! Random operations against a plain list, with reopening, other handles and every option as part of the game.

mod common;

use std::collections::VecDeque;

use common::dirs::TestDir;
use common::{rounds, soak};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tailrace::Error;
use tailrace::qewqew::{DurableQueue, Options, Role, SyncMode};

#[derive(Clone, Debug)]
enum Op {
    Enqueue(usize),
    EnqueueMany(Vec<usize>),
    /// Through a second handle, which is a producer.
    EnqueueElsewhere(usize),
    Peek,
    Dequeue,
    DequeueMany(usize),
    Clear,
    Sync,
    /// Closes and opens again, with another chunk size and mode.
    Reopen(u64, SyncMode),
    /// As a process that dies does: nothing is closed in order. (Its locks go with it.)
    Look,
    Positions,
}

fn sync() -> impl Strategy<Value = SyncMode> {
    prop_oneof![Just(SyncMode::Always), Just(SyncMode::Group), Just(SyncMode::Never)]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..140_usize).prop_map(Op::Enqueue),
        2 => prop::collection::vec(0..140_usize, 0..8).prop_map(Op::EnqueueMany),
        3 => (0..140_usize).prop_map(Op::EnqueueElsewhere),
        2 => Just(Op::Peek),
        8 => Just(Op::Dequeue),
        2 => (0..12_usize).prop_map(Op::DequeueMany),
        1 => Just(Op::Clear),
        1 => Just(Op::Sync),
        2 => (12..400_u64, sync()).prop_map(|(size, sync)| Op::Reopen(size, sync)),
        2 => Just(Op::Look),
        1 => Just(Op::Positions),
    ]
}

struct Game {
    dir: TestDir,
    options: Options,
    queue: Option<DurableQueue>,
    other: Option<DurableQueue>,
    model: VecDeque<Vec<u8>>,
    next: usize,
    /// The last known head and tail position, once positions are in play.
    positions: Option<(u64, u64)>,
}

impl Game {
    fn new(options: Options) -> Self {
        let mut game = Game {
            dir: TestDir::shm(),
            options,
            queue: None,
            other: None,
            model: VecDeque::new(),
            next: 0,
            positions: None,
        };
        game.open();
        game
    }

    fn open(&mut self) {
        let path = self.dir.queue().join("q");
        self.queue = Some(DurableQueue::open(&path, self.options.clone()).unwrap());
        if !self.options.network {
            let producer = Options {
                role: Role::Producer,
                ..self.options.clone()
            };
            self.other = Some(DurableQueue::open(&path, producer).unwrap());
        }
    }

    fn message(&mut self, length: usize) -> Vec<u8> {
        self.next += 1;
        (0..length).map(|i| (self.next * 31 + i * 7) as u8).collect()
    }

    fn queue(&self) -> &DurableQueue {
        self.queue.as_ref().unwrap()
    }

    fn play(&mut self, op: &Op) {
        match op {
            Op::Enqueue(length) => self.enqueue(&[*length], false),
            Op::EnqueueMany(lengths) => self.enqueue(lengths, false),
            Op::EnqueueElsewhere(length) => self.enqueue(&[*length], true),
            Op::Peek => assert_eq!(self.queue().peek().unwrap().as_ref(), self.model.front()),
            Op::Dequeue => {
                let expected = self.model.pop_front();
                assert_eq!(self.queue().dequeue().unwrap(), expected);
            }
            Op::DequeueMany(limit) => {
                let count = (*limit).min(self.model.len());
                let expected: Vec<Vec<u8>> = self.model.drain(..count).collect();
                assert_eq!(self.queue().dequeue_many(*limit).unwrap(), expected);
            }
            Op::Clear => {
                assert_eq!(self.queue().clear().unwrap(), !self.model.is_empty());
                self.model.clear();
            }
            Op::Sync => self.queue().sync().unwrap(),
            Op::Reopen(chunk_size, sync) => {
                self.queue.take().unwrap().close().unwrap();
                if let Some(other) = self.other.take() {
                    other.close().unwrap();
                }
                let names: Vec<String> = std::fs::read_dir(self.dir.queue())
                    .unwrap()
                    .map(|e| e.unwrap().file_name().into_string().unwrap())
                    .filter(|name| name != "q.positions")
                    .collect();
                assert_eq!(names.is_empty(), self.model.is_empty(), "{names:?}");
                assert!(!names.contains(&"q.signal".to_owned()));
                (self.options.chunk_size, self.options.sync) = (*chunk_size, *sync);
                self.open();
            }
            Op::Look => {
                assert_eq!(self.queue().len().unwrap(), self.model.len() as u64);
                assert_eq!(self.queue().is_empty().unwrap(), self.model.is_empty());
                let bytes: usize = self.model.iter().map(|m| m.len() + 2).sum();
                assert_eq!(self.queue().unread_bytes().unwrap(), bytes as u64);
                let report = self.queue().verify().unwrap();
                assert_eq!(report.problems, []);
            }
            Op::Positions => self.look_at_positions(),
        }
    }

    fn enqueue(&mut self, lengths: &[usize], elsewhere: bool) {
        let messages: Vec<Vec<u8>> = lengths.iter().map(|length| self.message(*length)).collect();
        let queue = match &self.other {
            Some(other) if elsewhere => other,
            _ => self.queue(),
        };
        let limit = queue.max_element_size() as usize;
        let result = queue.enqueue_many(&messages);
        match lengths.iter().find(|length| **length > limit) {
            Some(_) => assert!(matches!(result, Err(Error::TooLarge { .. })), "{result:?}"),
            None => {
                result.unwrap();
                self.model.extend(messages);
            }
        }
    }

    /// Everything between head and tail can be read without consuming it, and positions only grow.
    fn look_at_positions(&mut self) {
        let (head, tail) = (
            self.queue().head_position().unwrap(),
            self.queue().tail_position().unwrap(),
        );
        // The tail includes what was staged when the head was asked for.
        let range = self.queue().read_range(head, tail).unwrap();
        assert_eq!(range, Vec::from(self.model.clone()));
        assert_eq!(tail - head, self.model.iter().map(|m| m.len() as u64 + 2).sum::<u64>());
        if let Some((old_head, old_tail)) = self.positions {
            assert!(
                head >= old_head && tail >= old_tail,
                "{head} {tail} after {old_head} {old_tail}"
            );
        }
        self.positions = Some((head, tail));
        if self.model.len() > 2 {
            let first = self.model.pop_front().unwrap();
            let next = head + first.len() as u64 + 2;
            self.queue().commit(next).unwrap();
            assert_eq!(self.queue().head_position().unwrap(), next);
            assert!(matches!(self.queue().commit(head), Err(Error::MessageNotFound(_))));
        }
    }
}

fn play(cases: u64, options: impl Fn(u64, SyncMode) -> Options) {
    let config = Config {
        cases: cases as u32,
        failure_persistence: None,
        max_shrink_iters: 2000,
        ..Config::default()
    };
    let games = (12..400_u64, sync(), prop::collection::vec(op(), 1..100));
    TestRunner::new(config)
        .run(&games, |(chunk_size, sync, ops)| {
            let mut game = Game::new(options(chunk_size, sync));
            for op in &ops {
                game.play(op);
            }
            Ok(())
        })
        .unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn random_operations_agree_with_a_list() {
    let cases = if soak() { 20_000 } else { 1200 };
    play(cases, |chunk_size, sync| Options {
        chunk_size,
        sync,
        ..Options::default()
    });
}

#[test]
fn so_they_do_with_checksums() {
    play(rounds(400, 5000), |chunk_size, sync| Options {
        chunk_size,
        sync,
        crc: true,
        ..Options::default()
    });
}

#[test]
fn and_without_a_mapping() {
    play(rounds(400, 5000), |chunk_size, sync| Options {
        chunk_size,
        sync,
        network: true,
        ..Options::default()
    });
}
