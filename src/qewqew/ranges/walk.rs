//! Going through a range message by message: what one look at the chain has found, chunk after chunk.

use super::{RangeReader, Span};
use crate::qewqew::chunk::Chunk;
use crate::qewqew::layout::{FIRST_ENTRY, LENGTH_BYTES};
use crate::qewqew::records::{Check, Cover, Table};
use crate::{Error, Result};

/// Bytes that are read at a time.
const WINDOW: u32 = 1 << 20;

/// The messages of a range, in order; see [`RangeReader::walk`].
#[derive(Debug)]
pub struct Walk {
    reader: RangeReader,
    /// Those that are still to be read, the last one first.
    spans: Vec<Span>,
    open: Option<Open>,
    at: u64,
    end: u64,
}

/// The chunk that is being read.
#[derive(Debug)]
struct Open {
    span: Span,
    window: Window,
    checks: Option<Table>,
    offset: u32,
}

impl Walk {
    pub(super) fn new(reader: RangeReader, mut spans: Vec<Span>, start: u64, end: u64) -> Self {
        spans.retain(|span| start < span.end() && span.base < end);
        spans.reverse();
        Walk {
            reader,
            spans,
            open: None,
            at: start,
            end,
        }
    }

    /// Where the next message is.
    pub fn position(&self) -> u64 {
        self.at
    }

    /// The next message; `None` at the end of the range.
    #[allow(clippy::should_implement_trait, reason = "it lends what it has read")]
    pub fn next(&mut self) -> Result<Option<&[u8]>> {
        if self.at >= self.end {
            return Ok(None);
        }
        if self.open.as_ref().is_none_or(|open| open.span.end() <= self.at) {
            self.go_on()?;
        }
        let Some(open) = &mut self.open else {
            return Ok(None);
        };
        let offset = open.offset;
        let length = open.window.load(offset)?;
        let at = open.span.position(offset + LENGTH_BYTES + length);
        if at > self.end {
            return Err(no_boundary(self.end));
        }
        let message = open.window.loaded(offset, length);
        if let Some(table) = &open.checks {
            let is_consumed = offset < open.span.link.pointers.head;
            check(&open.window.chunk, table, offset, message, is_consumed)?;
        }
        open.offset = offset + LENGTH_BYTES + length;
        self.at = at;
        Ok(Some(message))
    }

    /// Opens the chunk that the next message is in.
    #[cold]
    fn go_on(&mut self) -> Result<()> {
        let Some(span) = self.spans.pop() else {
            self.open = None;
            return Ok(());
        };
        let chunk = self.reader.chunk(span.link.id)?;
        let checks = self.reader.checks(&chunk)?;
        let mut window = Window::new(chunk, span.link.pointers.tail);
        let offset = entry_at(&mut window, &span, self.at)?;
        self.open = Some(Open {
            span,
            window,
            checks,
            offset,
        });
        Ok(())
    }
}

/// Reads a chunk's entries with few system calls.
#[derive(Debug)]
pub(super) struct Window {
    chunk: Chunk,
    tail: u32,
    /// Where the bytes begin.
    start: u32,
    bytes: Vec<u8>,
}

impl Window {
    pub(super) fn new(chunk: Chunk, tail: u32) -> Self {
        Window {
            chunk,
            tail,
            start: tail,
            bytes: Vec::new(),
        }
    }

    /// The message of the entry at `offset`.
    pub(super) fn message(&mut self, offset: u32) -> Result<&[u8]> {
        let length = self.load(offset)?;
        Ok(self.loaded(offset, length))
    }

    /// Sees to it that the entry at `offset` is read; the length of its message.
    fn load(&mut self, offset: u32) -> Result<u32> {
        let length = match self.view(offset, LENGTH_BYTES)? {
            Some([high, low]) => u32::from(u16::from_be_bytes([*high, *low])),
            _ => return Err(self.beyond(offset)),
        };
        if self.view(offset, LENGTH_BYTES + length)?.is_none() {
            return Err(self.beyond(offset));
        }
        Ok(length)
    }

    /// The message of an entry that was just loaded.
    fn loaded(&self, offset: u32, length: u32) -> &[u8] {
        let from = (offset - self.start + LENGTH_BYTES) as usize;
        &self.bytes[from..from + length as usize]
    }

    /// Bytes of the chunk; `None` when they reach beyond the tail.
    fn view(&mut self, offset: u32, length: u32) -> Result<Option<&[u8]>> {
        if self.tail - offset < length {
            return Ok(None);
        }
        let end = offset + length;
        if offset < self.start || end as usize > self.start as usize + self.bytes.len() {
            let size = (self.tail - offset).min(WINDOW.max(length));
            self.bytes.resize(size as usize, 0);
            self.chunk.read(offset, &mut self.bytes)?;
            self.start = offset;
        }
        let from = (offset - self.start) as usize;
        Ok(Some(&self.bytes[from..from + length as usize]))
    }

    fn beyond(&self, offset: u32) -> Error {
        Error::Corrupt(format!(
            "the entry at offset {offset} of the chunk {} reaches beyond the tail at {}",
            self.chunk.path().display(),
            self.tail
        ))
    }
}

/// Checks a message against its checksum, where it should have one; those of consumed messages may be gone.
fn check(chunk: &Chunk, table: &Table, offset: u32, message: &[u8], is_consumed: bool) -> Result<()> {
    match table.find(offset) {
        Cover::Checked(check) if check == Check::of(offset, message) => Ok(()),
        Cover::Unchecked => Ok(()),
        Cover::Missing if is_consumed => Ok(()),
        Cover::Checked(_) | Cover::Missing => Err(Error::Corrupt(format!(
            "the message of {} bytes at offset {offset} of {} does not have its checksum; repair() steps over it",
            message.len(),
            chunk.path().display()
        ))),
    }
}

/// The offset of the entry at a position, by following the lengths: a position that is none is refused.
fn entry_at(window: &mut Window, span: &Span, position: u64) -> Result<u32> {
    let wanted = (position - span.base) as u32 + FIRST_ENTRY;
    let pointers = span.link.pointers;
    let mut offset = if wanted >= pointers.head {
        pointers.head
    } else {
        FIRST_ENTRY
    };
    while offset < wanted {
        offset += LENGTH_BYTES + window.message(offset)?.len() as u32;
    }
    if offset == wanted {
        Ok(offset)
    } else {
        Err(no_boundary(position))
    }
}

pub(super) fn no_boundary(position: u64) -> Error {
    Error::Invalid(format!("no message begins or ends at position {position}"))
}
