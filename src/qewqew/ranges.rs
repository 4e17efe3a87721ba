//! Reading without consuming: positions that never change, ranges of messages, and the explicit move of the head.
//!
//! A [`RangeReader`] needs nothing but the files: it takes no lock and can be in any process that sees them. While it reads,
//! producers append and the consumer may remove chunks; what it has opened stays readable.

mod walk;

use std::path::Path;

pub use self::walk::Walk;
use self::walk::{Window, no_boundary};
use super::checks::Checks;
use super::chunk::Chunk;
use super::head::Head;
use super::layout::{ChunkId, FIRST_ENTRY, LENGTH_BYTES, Names, signal};
use super::positions::{EPOCH_SHIFT, Positions};
use super::queue::DurableQueue;
use super::reader::Entry;
use super::records::Table;
use super::session::Session;
use super::store::{Link, Store, walk};
use crate::shared::sync::Ordering;
use crate::{Error, Result};

/// How often a walk is begun anew because the consumer removed the chunk that it started from.
const RETRIES: usize = 1000;

/// Reads ranges of a queue that others have open, without a lock.
///
/// ```
/// use tailrace::qewqew::{DurableQueue, Options, RangeReader};
///
/// let directory = tempfile::tempdir()?;
/// let path = directory.path().join("jobs");
/// let queue = DurableQueue::open(&path, Options::default())?;
/// let start = queue.tail_position()?;
/// queue.enqueue_many(&[b"a", b"b"])?;
/// let end = queue.tail_position()?;
///
/// let reader = RangeReader::open(&path, false)?;
/// assert_eq!(reader.read_range(start, end)?, [b"a", b"b"]);
/// queue.commit(end)?;
/// assert!(queue.is_empty()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct RangeReader {
    names: Names,
    network: bool,
}

/// A chunk with the positions of its entries.
#[derive(Clone, Copy, Debug)]
struct Span {
    link: Link,
    /// Of the entry at the start of the chunk.
    base: u64,
}

impl Span {
    fn position(&self, offset: u32) -> u64 {
        self.base + u64::from(offset - FIRST_ENTRY)
    }

    fn end(&self) -> u64 {
        self.position(self.link.pointers.tail)
    }
}

/// The chain with its positions, at one moment.
#[derive(Debug)]
struct Spans {
    spans: Vec<Span>,
    /// Behind the last entry.
    tail: u64,
}

impl RangeReader {
    /// For the queue whose head file is (or was) `path`.
    pub fn open(path: &Path, network: bool) -> Result<Self> {
        let reader = RangeReader {
            names: Names::new(path)?,
            network,
        };
        reader.positions()?;
        Ok(reader)
    }

    /// The identity of the queue: positions of another one mean nothing here.
    pub fn uuid(&self) -> Result<[u8; 16]> {
        Ok(self.positions()?.uuid())
    }

    /// The position of the first unread message.
    pub fn head_position(&self) -> Result<u64> {
        Ok(self.spans()?.head())
    }

    /// The position behind the last message.
    pub fn tail_position(&self) -> Result<u64> {
        Ok(self.spans()?.tail)
    }

    /// The messages from position `start` up to `end`.
    pub fn read_range(&self, start: u64, end: u64) -> Result<Vec<Vec<u8>>> {
        let mut messages = Vec::new();
        self.read_range_with(start, end, |message| {
            messages.push(message.to_vec());
            Ok(())
        })?;
        Ok(messages)
    }

    /// Hands each message from position `start` up to `end` to `take`.
    pub fn read_range_with(&self, start: u64, end: u64, mut take: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut walk = self.walk(start, end)?;
        while let Some(message) = walk.next()? {
            take(message)?;
        }
        Ok(())
    }

    /// The messages from position `start` up to `end`, one by one.
    pub fn walk(&self, start: u64, end: u64) -> Result<Walk> {
        let spans = self.spans()?;
        spans.check(start, end)?;
        Ok(Walk::new(self.clone(), spans.spans, start, end))
    }

    /// `start..end` cut where the chunks are: pieces that can be read at the same time.
    pub fn chunk_ranges(&self, start: u64, end: u64) -> Result<Vec<(u64, u64)>> {
        let spans = self.spans()?;
        spans.check(start, end)?;
        let pieces = spans
            .spans
            .iter()
            .map(|span| (start.max(span.base), end.min(span.end())));
        Ok(pieces.filter(|(from, to)| from < to).collect())
    }

    fn chunk(&self, id: ChunkId) -> Result<Chunk> {
        match Chunk::open_to_read(self.names.chunk(id), id) {
            Err(Error::NotFound(path)) => Err(Error::MessageNotFound(format!("{path} was consumed and removed"))),
            opened => opened,
        }
    }

    /// The checksums of a chunk, where there are any.
    fn checks(&self, chunk: &Chunk) -> Result<Option<Table>> {
        let Some(checks) = Checks::open_to_read(&self.names.checks(chunk.id()))? else {
            return Ok(None);
        };
        checks.refuse_damaged(chunk)?;
        checks.read().map(Some)
    }

    fn positions(&self) -> Result<Positions> {
        Positions::open_to_read(&self.names.positions())?.ok_or_else(|| {
            Error::NotFound(format!(
                "{} keeps no positions yet: its consumer begins to by asking for one",
                self.names.head().display()
            ))
        })
    }

    fn spans(&self) -> Result<Spans> {
        let positions = self.positions()?;
        for _ in 0..RETRIES {
            let first = match Head::open_to_read(self.names.head()) {
                Ok(head) => head.first()?,
                Err(Error::NotFound(_)) => None,
                Err(error) => return Err(error),
            };
            let Some(base) = positions.base(first)? else {
                continue;
            };
            let gone = std::cell::Cell::new(false);
            let start_once = || if gone.replace(true) { Ok(None) } else { Ok(first) };
            let chain = match walk(start_once, |id| Chunk::open_to_read(self.names.chunk(id), id)) {
                // Begun a second time, from nothing: the first chunk was removed meanwhile.
                Ok(chain) if chain.is_empty() && first.is_some() => continue,
                chain => chain?,
            };
            return Ok(Spans::new(base, chain, self.network));
        }
        Err(Error::Corrupt(format!(
            "{} does not know the first chunk of the queue",
            self.names.positions().display()
        )))
    }
}

impl Spans {
    fn new(base: u64, chain: Vec<Link>, sealed_only: bool) -> Self {
        let mut tail = base;
        let mut spans = Vec::new();
        for link in chain {
            if sealed_only && link.next.is_none() {
                break;
            }
            let span = Span { link, base: tail };
            tail = span.end();
            spans.push(span);
        }
        Spans { spans, tail }
    }

    fn head(&self) -> u64 {
        self.spans
            .first()
            .map_or(self.tail, |span| span.position(span.link.pointers.head))
    }

    fn check(&self, start: u64, end: u64) -> Result<()> {
        if start > end {
            return Err(Error::Invalid(format!(
                "the range from {start} to {end} ends before it starts"
            )));
        }
        let oldest = self.spans.first().map_or(self.tail, |span| span.base);
        for position in [start, end] {
            let (epoch, now) = (position >> EPOCH_SHIFT, self.tail >> EPOCH_SHIFT);
            if epoch != now {
                return Err(Error::MessageNotFound(format!(
                    "position {position} is of epoch {epoch}, the queue is in epoch {now}: another program has worked on it"
                )));
            }
            if position < oldest || position > self.tail {
                return Err(Error::MessageNotFound(format!(
                    "position {position} is outside of what is kept, {oldest} to {}",
                    self.tail
                )));
            }
        }
        Ok(())
    }
}

impl DurableQueue {
    /// The position of the first unread message. The first such question of a consumer begins to keep positions.
    pub fn head_position(&self) -> Result<u64> {
        self.ranges()?.head_position()
    }

    /// The position behind the last message.
    pub fn tail_position(&self) -> Result<u64> {
        let session = self.session()?;
        let ranges = self.ranges()?;
        if let Some(side) = &session.store.side
            && side.has_staged()
        {
            DurableQueue::commit_staged(session, side)?;
        }
        let tail = ranges.tail_position()?;
        session.store.with_positions(|positions| positions.set_seen(tail))?;
        Ok(tail)
    }

    /// The messages from position `start` up to `end`, which stay.
    pub fn read_range(&self, start: u64, end: u64) -> Result<Vec<Vec<u8>>> {
        self.ranges()?.read_range(start, end)
    }

    /// A reader of ranges for the same files.
    pub fn ranges(&self) -> Result<RangeReader> {
        let session = self.session()?;
        session.check_open()?;
        if !session.store.keeps_positions() {
            if !self.options().role.consumes() {
                return Err(Error::Invalid(
                    "the queue keeps no positions yet: its consumer begins to by asking for one".into(),
                ));
            }
            keep_positions(session)?;
        }
        RangeReader::open(self.path(), session.store.sealed_only)
    }

    /// Consumes everything before `position`; whole consumed chunks are removed.
    pub fn commit(&self, position: u64) -> Result<()> {
        let ranges = self.ranges()?;
        let session = self.consumer()?;
        let store = &session.store;
        let mut reader = session.reader()?;
        let spans = ranges.spans()?;
        let head = spans.head();
        if position < head && position >> EPOCH_SHIFT == head >> EPOCH_SHIFT {
            return Err(Error::MessageNotFound(format!(
                "position {position} was committed before, the head is at {head}"
            )));
        }
        spans.check(position, position)?;
        let mut messages = 0;
        let mut targets = Vec::new();
        // All checks come before the first change.
        for span in &spans.spans {
            let start = span.position(span.link.pointers.head);
            let stop = position.min(span.end());
            if stop <= start {
                continue;
            }
            let chunk = ranges.chunk(span.link.id)?;
            let mut window = Window::new(chunk, span.link.pointers.tail);
            let (mut offset, mut last) = (span.link.pointers.head, None);
            while span.position(offset) < stop {
                let length = window.message(offset)?.len() as u32;
                last = Some(Entry {
                    chunk: span.link.id,
                    offset,
                    length,
                });
                offset += LENGTH_BYTES + length;
                messages += 1;
            }
            if span.position(offset) != stop {
                return Err(no_boundary(position));
            }
            targets.extend(last);
        }
        for last in targets {
            let Some(front) = reader.front(store)? else { break };
            debug_assert_eq!(front.chunk, last.chunk);
            reader.consume(store, last)?;
        }
        if let Some(side) = &store.side {
            side.counter(signal::CONSUMED_MESSAGES)
                .fetch_add(messages, Ordering::Relaxed);
            side.counter(signal::CONSUMED_BYTES)
                .fetch_add(position - head, Ordering::SeqCst);
            side.room().notify_all_fenced();
        }
        Ok(())
    }

    /// The identity under which this queue keeps positions.
    pub fn positions_uuid(&self) -> Result<[u8; 16]> {
        self.ranges()?.uuid()
    }
}

/// Begins to keep positions: from here on an exhausted chunk is not started over.
fn keep_positions(session: &Session) -> Result<()> {
    let store = &session.store;
    // The consumer's mutex keeps the head file as it is, the append lock keeps chunks from being started over or created.
    let _reader = session.reader()?;
    let _writer = session.writer()?;
    let _append = store
        .side
        .as_ref()
        .map(|side| side.append_lock(Store::patience()))
        .transpose()?;
    if store.keeps_positions() {
        return Ok(());
    }
    let path = store.names.positions();
    let first = store.head.first()?;
    let created = Positions::create(&store.disk, &path, first, store.sync.is_durable())?;
    *store
        .positions
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner) = Some(created);
    if let Some(side) = &store.side {
        side.positions().store(1, Ordering::Release);
    }
    Ok(())
}
