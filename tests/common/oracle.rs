//! The judge: from the journals and from what is left, what was lost, invented, repeated, reordered or damaged.
//!
//! `acked` = puts that returned; `attempted` = puts that a death interrupted (may or may not be there); `failed` = puts that
//! returned an error (must not be there); `got` = returned by a get; `left` = drained by the test at the end.

use std::collections::HashMap;
use std::fmt;

use super::journal::{Op, Record, State};
use super::payload;

/// What a queue promises.
#[derive(Clone, Copy, Debug)]
pub struct Promise {
    pub delivery: Delivery,
    pub losses: Losses,
    pub order: Order,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Delivery {
    /// A get removes the message; nothing is delivered twice.
    Once,
    /// A message comes back until its ack; after a returned ack never again; an unacked message is got again or left.
    UntilAcked,
    /// Any number of deliveries.
    Repeatable,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Losses {
    Never,
    /// One for each get that a death interrupted: the message that was in the dying consumer's hands.
    InHands,
    /// A known number at most (overwritten, say), the ones in dying hands included.
    UpTo(usize),
    /// Not judged here.
    Any,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Each consumer sees each producer's messages in rising order, and what is left follows what was got.
    PerProducer,
    /// As above among messages delivered once; each interrupted get excuses one straggler (it came back).
    FirstDelivery,
    Any,
}

impl Promise {
    /// Nothing lost, nothing twice, in order.
    pub fn exactly_once() -> Self {
        Self {
            delivery: Delivery::Once,
            losses: Losses::Never,
            order: Order::PerProducer,
        }
    }

    /// Destructive get: a killed consumer takes at most the one message in its hands with it.
    pub fn at_most_once() -> Self {
        Self {
            losses: Losses::InHands,
            ..Self::exactly_once()
        }
    }

    /// Get, then ack: unacked messages come back.
    pub fn until_acked() -> Self {
        Self {
            delivery: Delivery::UntilAcked,
            losses: Losses::Never,
            order: Order::FirstDelivery,
        }
    }
}

/// Queue, producer, sequence.
type Key = (u16, u32, u64);

#[derive(Default)]
struct History {
    put: Option<(State, u32)>,
    gets: Vec<Record>,
    acks: Vec<Record>,
    left: usize,
    left_crc: Option<u32>,
}

/// Collects the evidence.
pub struct Oracle {
    promise: Promise,
    journals: Vec<Vec<Record>>,
    left: Vec<(u16, Vec<u8>)>,
}

impl Oracle {
    pub fn new(promise: Promise) -> Self {
        Self {
            promise,
            journals: Vec::new(),
            left: Vec::new(),
        }
    }

    /// One worker's journal. A worker is one consumer: its order is judged.
    #[must_use]
    pub fn journal(mut self, records: &[Record]) -> Self {
        self.journals.push(records.to_vec());
        self
    }

    /// What the test drained from a queue at the end, in the order it came.
    #[must_use]
    pub fn left<B: AsRef<[u8]>>(mut self, queue: u16, messages: impl IntoIterator<Item = B>) -> Self {
        self.left
            .extend(messages.into_iter().map(|bytes| (queue, bytes.as_ref().to_vec())));
        self
    }

    pub fn check(&self) -> Report {
        let mut report = Report::default();
        let mut histories = self.gather(&mut report);
        let left = self.identify_left(&mut histories, &mut report);
        for (key, history) in &histories {
            judge_origin(*key, history, &mut report);
            judge_deliveries(*key, history, self.promise.delivery, &mut report);
        }
        self.judge_losses(&histories, &mut report);
        self.judge_order(&histories, &left, &mut report);
        report.sort();
        report
    }

    fn gather(&self, report: &mut Report) -> HashMap<Key, History> {
        let mut histories: HashMap<Key, History> = HashMap::new();
        for record in self.journals.iter().flatten() {
            let key = (record.queue, record.producer, record.sequence);
            match (record.op, record.state) {
                (Op::Put, state) => {
                    let history = histories.entry(key).or_default();
                    assert!(
                        history.put.is_none(),
                        "the test put {key:?} twice: sequences must be unique"
                    );
                    history.put = Some((state, record.crc));
                    match state {
                        State::Acknowledged => report.acked += 1,
                        State::Attempt => report.attempted += 1,
                        _ => report.failed += 1,
                    }
                }
                (Op::Get, State::Got) => {
                    report.got += 1;
                    histories.entry(key).or_default().gets.push(*record);
                }
                (Op::Get, State::Corrupt) => {
                    report.got += 1;
                    report.corrupt.push(format!(
                        "queue {}: a get returned {} bytes that no producer made, CRC {:#010x}",
                        record.queue, record.len, record.crc
                    ));
                }
                (Op::Get, State::Attempt) => report.interrupted_gets += 1,
                (Op::Ack, _) => histories.entry(key).or_default().acks.push(*record),
                (Op::Get, _) => {}
            }
        }
        histories
    }

    fn identify_left(&self, histories: &mut HashMap<Key, History>, report: &mut Report) -> Vec<Key> {
        let mut keys = Vec::with_capacity(self.left.len());
        for (place, (queue, bytes)) in self.left.iter().enumerate() {
            report.left += 1;
            match payload::parse_padded(bytes) {
                Ok(identity) => {
                    let key = (*queue, identity.producer, identity.sequence);
                    let history = histories.entry(key).or_default();
                    history.left += 1;
                    history.left_crc = Some(identity.crc);
                    keys.push(key);
                }
                Err(torn) => report
                    .corrupt
                    .push(format!("queue {queue}: left message {place}: {torn}")),
            }
        }
        keys
    }

    fn judge_losses(&self, histories: &HashMap<Key, History>, report: &mut Report) {
        let gone = histories.iter().filter(|(_, h)| {
            let settled = match self.promise.delivery {
                Delivery::UntilAcked => h.acks.iter().any(|a| a.state != State::Failed),
                Delivery::Once | Delivery::Repeatable => !h.gets.is_empty(),
            };
            h.put.is_some_and(|(state, _)| state == State::Acknowledged) && h.left == 0 && !settled
        });
        report.missing = gone
            .map(|(key, h)| {
                format!(
                    "{}{}",
                    name(*key),
                    if h.gets.is_empty() {
                        ""
                    } else {
                        ", got but never acked and not left"
                    }
                )
            })
            .collect();
        report.missing.sort();
        let allowed = match self.promise.losses {
            Losses::Never => 0,
            Losses::InHands => report.interrupted_gets,
            Losses::UpTo(limit) => limit,
            Losses::Any => usize::MAX,
        };
        if report.missing.len() > allowed {
            report.lost = report.missing.clone();
        }
    }

    fn judge_order(&self, histories: &HashMap<Key, History>, left: &[Key], report: &mut Report) {
        if self.promise.order == Order::Any {
            return;
        }
        let strict = self.promise.order == Order::PerProducer;
        // A message that came back is out of order by right.
        let counts = |key: &Key| strict || histories[key].gets.len() + histories[key].left == 1;
        let mut found = Vec::new();
        let mut highest_got: HashMap<(u16, u32), u64> = HashMap::new();
        for (consumer, journal) in self.journals.iter().enumerate() {
            let mut last: HashMap<(u16, u32), u64> = HashMap::new();
            for record in journal.iter().filter(|r| r.op == Op::Get && r.state == State::Got) {
                let key = (record.queue, record.producer, record.sequence);
                if counts(&key) {
                    rising(&mut last, key, &format!("consumer {consumer}"), &mut found);
                }
                let top = highest_got.entry((key.0, key.1)).or_insert(key.2);
                *top = key.2.max(*top);
            }
        }
        let mut last = if strict { highest_got } else { HashMap::new() };
        for key in left.iter().filter(|key| counts(key)) {
            rising(&mut last, *key, "left", &mut found);
        }
        let excused = if strict { 0 } else { report.interrupted_gets };
        if found.len() > excused {
            report.reordered = found;
        }
    }
}

/// Notes a message that comes after a later one of the same producer.
fn rising(last: &mut HashMap<(u16, u32), u64>, key: Key, place: &str, found: &mut Vec<String>) {
    let highest = last.entry((key.0, key.1)).or_insert(key.2);
    if key.2 < *highest {
        found.push(format!("{place}: {} after sequence {highest}", name(key)));
    }
    *highest = key.2.max(*highest);
}

fn judge_origin(key: Key, history: &History, report: &mut Report) {
    let seen = !history.gets.is_empty() || history.left > 0;
    match history.put {
        None if seen => report.unexpected.push(format!("{}, which nobody put", name(key))),
        Some((State::Failed, _)) if seen => report
            .unexpected
            .push(format!("{}, whose put returned an error", name(key))),
        Some((_, crc)) => {
            for seen_crc in history
                .gets
                .iter()
                .map(|r| r.crc)
                .chain(history.left_crc)
                .filter(|c| *c != crc)
            {
                report.wrong_crc.push(format!(
                    "{}: put with CRC {crc:#010x}, seen with {seen_crc:#010x}",
                    name(key)
                ));
            }
        }
        None => {}
    }
}

fn judge_deliveries(key: Key, history: &History, delivery: Delivery, report: &mut Report) {
    let deliveries = history.gets.len() + history.left;
    report.redelivered += deliveries.saturating_sub(1);
    match delivery {
        Delivery::Once if deliveries > 1 => {
            report.duplicates.push(format!(
                "{}: got {} times, left {}",
                name(key),
                history.gets.len(),
                history.left
            ));
        }
        Delivery::UntilAcked => {
            let Some(acked_at) = history
                .acks
                .iter()
                .filter(|a| a.state == State::Acknowledged)
                .map(|a| a.ended_ns)
                .min()
            else {
                return;
            };
            if history.left > 0 {
                report
                    .duplicates
                    .push(format!("{}: left although its ack returned", name(key)));
            }
            if history.gets.iter().any(|get| get.started_ns > acked_at) {
                report.duplicates.push(format!(
                    "{}: delivered by a get that began after its ack had returned",
                    name(key)
                ));
            }
        }
        Delivery::Once | Delivery::Repeatable => {}
    }
}

fn name((queue, producer, sequence): Key) -> String {
    format!("queue {queue} producer {producer} sequence {sequence}")
}

/// The verdict. Counts first, offences after; an offence list is empty when the promise was kept.
#[derive(Default, Debug)]
pub struct Report {
    pub acked: usize,
    pub attempted: usize,
    pub failed: usize,
    pub got: usize,
    pub left: usize,
    pub interrupted_gets: usize,
    /// Deliveries beyond the first, allowed or not.
    pub redelivered: usize,
    /// Acked and gone, allowed or not.
    pub missing: Vec<String>,
    pub lost: Vec<String>,
    pub unexpected: Vec<String>,
    pub duplicates: Vec<String>,
    pub reordered: Vec<String>,
    pub corrupt: Vec<String>,
    pub wrong_crc: Vec<String>,
}

impl Report {
    fn offences(&self) -> [(&'static str, &Vec<String>); 6] {
        [
            ("lost", &self.lost),
            ("unexpected", &self.unexpected),
            ("duplicates", &self.duplicates),
            ("reordered", &self.reordered),
            ("corrupt", &self.corrupt),
            ("wrong CRC", &self.wrong_crc),
        ]
    }

    pub fn is_ok(&self) -> bool {
        self.offences().iter().all(|(_, list)| list.is_empty())
    }

    /// Fails the test with the first offending messages of each kind.
    #[track_caller]
    pub fn assert_ok(&self, context: &str) {
        assert!(self.is_ok(), "{context}\n{self}");
    }

    fn sort(&mut self) {
        for list in [&mut self.unexpected, &mut self.duplicates, &mut self.wrong_crc] {
            list.sort();
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "acked {}, attempted {}, failed {}, got {}, left {}, interrupted gets {}, redelivered {}, missing {}",
            self.acked,
            self.attempted,
            self.failed,
            self.got,
            self.left,
            self.interrupted_gets,
            self.redelivered,
            self.missing.len()
        )?;
        for (kind, list) in self.offences().iter().filter(|(_, list)| !list.is_empty()) {
            write!(f, "\n{kind}: {}", list.len())?;
            for text in list.iter().take(5) {
                write!(f, "\n  {text}")?;
            }
        }
        Ok(())
    }
}
