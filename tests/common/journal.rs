//! What a worker was doing: a private mapped file, written before and after every call, readable after its kill -9.
//!
//! A record is stored as `Attempt` before the call and marked after it; a record still `Attempt` after a death is the
//! call that the death interrupted. The file is sparse: capacity costs nothing until used.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use super::mapped::Mapped;
use super::now_ns;
use super::payload::{self, Identity, Torn};

const HEADER: usize = 64;
/// meta, sequence, crc|len, started, ended, tag.
const RECORD: usize = 48;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    Put,
    Get,
    /// Release, dequeue, commit: whatever makes a delivery final.
    Ack,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Started, not returned: the worker was killed, or is still inside.
    Attempt,
    /// A put or an ack returned success.
    Acknowledged,
    /// A get returned this message.
    Got,
    /// The call returned an error: nothing may have happened.
    Failed,
    /// A get returned bytes that no producer made.
    Corrupt,
}

/// One call as read back by the parent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    pub op: Op,
    pub state: State,
    pub queue: u16,
    pub producer: u32,
    pub sequence: u64,
    pub crc: u32,
    pub len: u32,
    pub started_ns: u64,
    pub ended_ns: u64,
    /// Free for the test: a delivery number, a slot.
    pub tag: u64,
}

/// The record of a call that has started; every ticket is redeemed by exactly one of the marking methods.
#[must_use = "a call without a result in the journal looks like a death"]
pub struct Ticket {
    index: usize,
    op: Op,
    queue: u16,
    producer: u32,
}

/// The writing end, one per worker.
pub struct Journal {
    map: Mapped,
    next: usize,
}

impl Journal {
    /// A new journal for `capacity` calls.
    pub fn create(path: &Path, capacity: usize) -> Self {
        Self {
            map: Mapped::create(path, HEADER + capacity * RECORD),
            next: 0,
        }
    }

    /// Continues an existing journal behind its last record.
    pub fn open(path: &Path) -> Self {
        let map = Mapped::open(path);
        let next = (0..capacity(&map))
            .find(|i| map.u64(HEADER + i * RECORD).load(Ordering::Acquire) == 0)
            .unwrap_or_else(|| capacity(&map));
        Self { map, next }
    }

    /// Before a put of a [`payload::make`] message.
    pub fn attempt_put(&mut self, queue: u16, message: &[u8]) -> Ticket {
        let identity =
            payload::parse(message).unwrap_or_else(|torn| panic!("a put of bytes that are no test message: {torn}"));
        self.attempt(Op::Put, queue, Some(identity))
    }

    /// Before a get.
    pub fn attempt_get(&mut self, queue: u16) -> Ticket {
        self.attempt(Op::Get, queue, None)
    }

    /// Before the call that makes the delivery of this message final.
    pub fn attempt_ack(&mut self, queue: u16, message: Identity) -> Ticket {
        self.attempt(Op::Ack, queue, Some(message))
    }

    /// The put or ack returned success.
    pub fn acknowledged(&mut self, ticket: Ticket) {
        assert!(ticket.op != Op::Get, "a get is marked with got, got_padded or nothing");
        self.mark(ticket, State::Acknowledged, None);
    }

    /// The call returned an error.
    pub fn failed(&mut self, ticket: Ticket) {
        self.mark(ticket, State::Failed, None);
    }

    /// The get returned these bytes; hands back who sent them.
    pub fn got(&mut self, ticket: Ticket, bytes: &[u8]) -> Result<Identity, Torn> {
        self.received(ticket, bytes, payload::parse(bytes))
    }

    /// As [`Self::got`], for fixed slots with zeros behind the message.
    pub fn got_padded(&mut self, ticket: Ticket, slot: &[u8]) -> Result<Identity, Torn> {
        self.received(ticket, slot, payload::parse_padded(slot))
    }

    /// The get found nothing: its record is taken back, so that polling does not fill the journal.
    pub fn nothing(&mut self, ticket: Ticket) {
        assert!(
            ticket.op == Op::Get && ticket.index + 1 == self.next,
            "only the last get can be taken back"
        );
        self.word(ticket.index, 0).store(0, Ordering::Release);
        self.next = ticket.index;
    }

    fn received(&mut self, ticket: Ticket, bytes: &[u8], parsed: Result<Identity, Torn>) -> Result<Identity, Torn> {
        assert!(ticket.op == Op::Get, "only a get returns bytes");
        match &parsed {
            Ok(identity) => self.mark(ticket, State::Got, Some(*identity)),
            Err(_) => {
                let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
                let raw = Identity {
                    producer: 0,
                    sequence: 0,
                    crc: crc32fast::hash(bytes),
                    len,
                };
                self.mark(ticket, State::Corrupt, Some(raw));
            }
        }
        parsed
    }

    /// A number of the test's own beside the record.
    pub fn tag(&self, ticket: &Ticket, tag: u64) {
        self.word(ticket.index, 5).store(tag, Ordering::Relaxed);
    }

    fn attempt(&mut self, op: Op, queue: u16, message: Option<Identity>) -> Ticket {
        let index = self.next;
        assert!(
            index < capacity(&self.map),
            "journal full after {index} calls: give this worker a larger one"
        );
        self.next += 1;
        if let Some(identity) = message {
            self.identify(index, identity);
        }
        self.word(index, 3).store(now_ns(), Ordering::Relaxed);
        self.word(index, 4).store(0, Ordering::Relaxed);
        let ticket = Ticket {
            index,
            op,
            queue,
            producer: message.map_or(0, |m| m.producer),
        };
        self.word(index, 0)
            .store(meta(op, State::Attempt, queue, ticket.producer), Ordering::Release);
        ticket
    }

    fn mark(&mut self, ticket: Ticket, state: State, message: Option<Identity>) {
        if let Some(identity) = message {
            self.identify(ticket.index, identity);
        }
        self.word(ticket.index, 4).store(now_ns(), Ordering::Relaxed);
        let producer = message.map_or(ticket.producer, |m| m.producer);
        self.word(ticket.index, 0)
            .store(meta(ticket.op, state, ticket.queue, producer), Ordering::Release);
    }

    fn identify(&self, index: usize, identity: Identity) {
        self.word(index, 1).store(identity.sequence, Ordering::Relaxed);
        self.word(index, 2).store(
            u64::from(identity.crc) | u64::from(identity.len) << 32,
            Ordering::Relaxed,
        );
    }

    fn word(&self, index: usize, field: usize) -> &std::sync::atomic::AtomicU64 {
        self.map.u64(HEADER + index * RECORD + field * 8)
    }
}

/// Every record of a journal, in call order. The worker may be dead or alive.
pub fn read(path: &Path) -> Vec<Record> {
    let map = Mapped::open(path);
    (0..capacity(&map))
        .map_while(|index| read_record(&map, HEADER + index * RECORD))
        .collect()
}

/// The records of several journals, one list for each.
pub fn read_all(paths: &[PathBuf]) -> Vec<Vec<Record>> {
    paths.iter().map(|path| read(path)).collect()
}

fn read_record(map: &Mapped, at: usize) -> Option<Record> {
    let meta = map.u64(at).load(Ordering::Acquire);
    let field = |n: usize| map.u64(at + n * 8).load(Ordering::Relaxed);
    let op = match meta & 0xff {
        0 => return None,
        1 => Op::Put,
        2 => Op::Get,
        3 => Op::Ack,
        other => panic!("journal record at {at} has operation {other}"),
    };
    let state = match meta >> 8 & 0xff {
        1 => State::Attempt,
        2 => State::Acknowledged,
        3 => State::Got,
        4 => State::Failed,
        5 => State::Corrupt,
        other => panic!("journal record at {at} has state {other}"),
    };
    #[expect(
        clippy::cast_possible_truncation,
        reason = "fields are packed into words by meta and identify"
    )]
    Some(Record {
        op,
        state,
        queue: (meta >> 16) as u16,
        producer: (meta >> 32) as u32,
        sequence: field(1),
        crc: field(2) as u32,
        len: (field(2) >> 32) as u32,
        started_ns: field(3),
        ended_ns: field(4),
        tag: field(5),
    })
}

fn capacity(map: &Mapped) -> usize {
    (map.len() - HEADER) / RECORD
}

fn meta(op: Op, state: State, queue: u16, producer: u32) -> u64 {
    let op = match op {
        Op::Put => 1,
        Op::Get => 2,
        Op::Ack => 3,
    };
    let state = match state {
        State::Attempt => 1,
        State::Acknowledged => 2,
        State::Got => 3,
        State::Failed => 4,
        State::Corrupt => 5,
    };
    op | state << 8 | u64::from(queue) << 16 | u64::from(producer) << 32
}
