//! `Item`: a claim to be written, a retrieved item, or one of a snapshot; its memoryview is the memory of the queue itself.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString, PyTuple};

use super::super::buffer::{Access, Exports, Payload, View};
use super::super::number::whole_or_none;
use super::handle::Handle;
use crate::aq::{self, ClaimData, SnapshotItem};
use crate::shared::region::Region;
use crate::{Error, Result};

/// An item of a queue: a claim to be written, a retrieved message, or a part of a snapshot.
///
/// >>> from tailrace import aq
/// >>> q = aq.Queue.anonymous(size=1 << 16)
/// >>> w = q.writer()
/// >>> item = w.claim(5)
/// >>> item.write(b"he"), item.write(b"llo", offset=2), w.commit(item)
/// (True, True, True)
/// >>> [(bytes(item), item.is_committed, item.is_released) for item in q.snapshot()]
/// [(b'hello', True, False)]
#[pyclass(extends = View, frozen, module = "tailrace.aq", name = "Item")]
#[derive(Debug)]
pub(crate) struct Item {
    handle: Arc<Handle>,
    state: Mutex<State>,
    segments: Vec<Py<Item>>,
    /// Those of the queue that it is in; another one may be formatted in its place.
    exports: Arc<Exports>,
    /// Its block raised while memoryviews of it were in use: it is given up when they are gone, and it with them.
    left: AtomicBool,
}

#[derive(Debug)]
enum State {
    Claimed(ClaimData),
    Retrieved {
        item: aq::Item,
        released: bool,
    },
    /// A segment of another item, or an item of a snapshot.
    Shown {
        item: aq::Item,
        released: bool,
    },
}

impl Item {
    /// A claim, writable.
    pub(super) fn claimed(py: Python<'_>, handle: &Arc<Handle>, data: ClaimData) -> PyResult<Py<Item>> {
        let (offset, length) = handle.with_writer(|writer| Ok(data.first_span(writer)))?;
        let view = memory_view(handle, offset, length, Access::ReadWrite)?;
        Item::build(py, handle, view, State::Claimed(data), Vec::new())
    }

    /// A retrieved item, read-only: the queue's memory, or a copy where that is in several pieces.
    pub(super) fn retrieved(
        py: Python<'_>,
        handle: &Arc<Handle>,
        item: aq::Item,
        spans: &[(usize, usize)],
    ) -> PyResult<Py<Item>> {
        let view = match spans {
            [(offset, length)] => memory_view(handle, *offset, *length, Access::ReadOnly)?,
            _ => View::of_copy(joined(handle.open()?.region(), spans).into()),
        };
        let mut segments = Vec::new();
        if spans.len() > 1 {
            for (part, (offset, length)) in item.split().into_iter().zip(spans) {
                let view = memory_view(handle, *offset, *length, Access::ReadOnly)?;
                let state = State::Shown {
                    item: part,
                    released: false,
                };
                segments.push(Item::build(py, handle, view, state, Vec::new())?);
            }
        }
        let state = State::Retrieved { item, released: false };
        Item::build(py, handle, view, state, segments)
    }

    /// An item of a snapshot, with a copy of its bytes.
    pub(super) fn of_snapshot(py: Python<'_>, handle: &Arc<Handle>, shown: &SnapshotItem) -> PyResult<Py<Item>> {
        let released = shown.is_released();
        let mut segments = Vec::new();
        let parts = shown.item().split();
        if parts.len() > 1 {
            let mut start = 0;
            for item in parts {
                let bytes = &shown.bytes()[start..start + item.size()];
                start += item.size();
                let view = View::of_copy(bytes.into());
                segments.push(Item::build(
                    py,
                    handle,
                    view,
                    State::Shown { item, released },
                    Vec::new(),
                )?);
            }
        }
        let view = View::of_copy(shown.bytes().into());
        let item = shown.item().clone();
        Item::build(py, handle, view, State::Shown { item, released }, segments)
    }

    fn build(
        py: Python<'_>,
        handle: &Arc<Handle>,
        view: View,
        state: State,
        segments: Vec<Py<Item>>,
    ) -> PyResult<Py<Item>> {
        let item = Item {
            handle: handle.clone(),
            state: Mutex::new(state),
            segments,
            exports: handle.exports(),
            left: AtomicBool::new(false),
        };
        Py::new(py, PyClassInitializer::from(view).add_subclass(item))
    }

    /// Refuses an item that was claimed from, or retrieved by, another queue object.
    pub(super) fn check_is_of(slf: &Bound<'_, Self>, handle: &Arc<Handle>) -> PyResult<()> {
        match Arc::ptr_eq(&slf.get().handle, handle) {
            true => Ok(()),
            false => Err(PyValueError::new_err("the item belongs to another queue object")),
        }
    }

    /// Hands a claim to the reader.
    pub(super) fn commit(slf: &Bound<'_, Self>) -> PyResult<bool> {
        let this = slf.get();
        let mut state = this.state();
        let State::Claimed(data) = &mut *state else {
            return Err(PyValueError::new_err(
                "only a claimed item can be committed, this one was retrieved",
            ));
        };
        this.check_here()?;
        if data.is_open() {
            slf.as_super().get().try_close()?;
        }
        Ok(this.handle.with_writer(|writer| writer.commit_data(data))?)
    }

    /// Gives a retrieved item back; false when its writer committed it after it was retrieved as incomplete.
    pub(super) fn release(slf: &Bound<'_, Self>) -> PyResult<bool> {
        let this = slf.get();
        let mut state = this.state();
        let State::Retrieved { item, released } = &mut *state else {
            return Err(PyValueError::new_err("only a retrieved item can be released"));
        };
        if *released {
            return Err(PyValueError::new_err("the item was released before"));
        }
        this.check_here()?;
        for segment in &this.segments {
            segment.bind(slf.py()).as_super().get().try_close()?;
        }
        slf.as_super().get().try_close()?;
        *released = true;
        Ok(this.handle.with_reader(|reader| reader.release(item.clone()))?)
    }

    /// Refuses what cannot be committed or released any more, whatever state it is in.
    fn check_here(&self) -> Result<()> {
        self.handle.open()?;
        self.exports.check_format()?;
        if self.left.load(Ordering::Relaxed) {
            return Err(Error::Invalid(
                "the item was given up: it is not a claim any more".into(),
            ));
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with_claim<T>(&self, change: impl FnOnce(&aq::Writer, &mut ClaimData) -> Result<T>) -> PyResult<T> {
        let mut state = self.state();
        let State::Claimed(data) = &mut *state else {
            return Err(PyValueError::new_err("a retrieved item is read-only"));
        };
        self.check_here()?;
        Ok(self.handle.with_writer(|writer| change(writer, data))?)
    }

    fn of_item<T>(&self, claimed: impl FnOnce(&ClaimData) -> T, retrieved: impl FnOnce(&aq::Item) -> T) -> T {
        match &*self.state() {
            State::Claimed(data) => claimed(data),
            State::Retrieved { item, .. } | State::Shown { item, .. } => retrieved(item),
        }
    }
}

impl Drop for Item {
    fn drop(&mut self) {
        // The claims of a closed handle are those of a participant that has left, those of another format are no more.
        let (State::Claimed(data), Ok(queue), Ok(())) = (
            self.state.get_mut().unwrap_or_else(PoisonError::into_inner),
            self.handle.open(),
            self.exports.check_format(),
        ) else {
            return;
        };
        if *self.left.get_mut() {
            let _ = self.handle.with_writer(|writer| {
                writer.give_up(data);
                Ok(())
            });
        }
        // Nobody can write to the claim any more; the reader gives it out by the commit timeout.
        data.forget(queue.region());
    }
}

#[pymethods]
impl Item {
    /// Writes at `offset`, or behind the highest byte written so far. False, with nothing written, when there is no room.
    #[pyo3(signature = (data, offset=None))]
    fn write(&self, data: Payload<'_>, #[pyo3(from_py_with = whole_or_none)] offset: Option<usize>) -> PyResult<bool> {
        self.with_claim(|writer, claim| writer.write(claim, offset, data.as_bytes()))
    }

    /// Writes `template % args` as UTF-8, as much as fits: the count of bytes, or its one's complement when it was cut.
    #[pyo3(signature = (template, *args, offset=None))]
    fn printf(
        &self,
        template: &Bound<'_, PyString>,
        args: &Bound<'_, PyTuple>,
        #[pyo3(from_py_with = whole_or_none)] offset: Option<usize>,
    ) -> PyResult<isize> {
        let text = template.rem(args)?.extract::<String>()?;
        self.with_claim(|writer, claim| writer.print(claim, offset, &text))
    }

    /// Whether the writer committed the item.
    #[getter]
    fn is_committed(&self) -> bool {
        self.of_item(|data| data.was_committed(), aq::Item::is_committed)
    }

    /// Whether the item was released.
    #[getter]
    fn is_released(&self) -> bool {
        match &*self.state() {
            State::Claimed(_) => false,
            State::Retrieved { released, .. } | State::Shown { released, .. } => *released,
        }
    }

    /// Whether the bytes are those that were committed; always, in queues without CRC32.
    #[getter]
    fn is_checksum_valid(&self) -> bool {
        self.of_item(|_| true, aq::Item::is_checksum_valid)
    }

    /// The identifier of the item, the same at claim and at retrieve.
    #[getter]
    fn queue_identifier(&self) -> u32 {
        self.of_item(ClaimData::identifier, aq::Item::queue_identifier)
    }

    /// A number of the user's own, in queues formatted with `link_identifier=True`; 0xFFFFFFFF is none.
    #[getter]
    fn link_identifier(&self) -> u32 {
        self.of_item(ClaimData::link_identifier, aq::Item::link_identifier)
    }

    #[setter]
    fn set_link_identifier(&self, link: u32) -> PyResult<()> {
        self.with_claim(|writer, claim| writer.set_link_identifier(claim, link))
    }

    /// Where the item starts, in pages since the format; None for a claim.
    #[getter]
    fn position(&self) -> Option<u64> {
        self.of_item(|_| None, |item| Some(item.position()))
    }

    /// Bytes claimed.
    #[getter]
    fn capacity(&self) -> usize {
        self.of_item(ClaimData::capacity, aq::Item::capacity)
    }

    /// Bytes of the item.
    #[getter]
    fn size(&self) -> usize {
        self.of_item(ClaimData::size, aq::Item::size)
    }

    /// The item's runs of pages: itself, or one item for each where it has several.
    #[getter]
    fn segments<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyTuple>> {
        let py = slf.py();
        let this = slf.get();
        if this.segments.is_empty() {
            return PyTuple::new(py, [slf]);
        }
        PyTuple::new(py, this.segments.iter().map(|segment| segment.bind(py)))
    }

    fn __len__(&self) -> usize {
        self.size()
    }

    fn __bytes__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyBytes>> {
        if slf.as_super().get().is_closed() {
            return Err(PyValueError::new_err(
                "the item was released or committed: its memory is no longer accessible",
            ));
        }
        let this = slf.get();
        if let State::Claimed(data) = &*this.state() {
            this.exports.check_format()?;
            let bytes = this.handle.with_writer(|writer| Ok(writer.to_vec(data)))?;
            return Ok(PyBytes::new(slf.py(), &bytes));
        }
        slf.as_super().get().to_bytes(slf.py())
    }

    fn __enter__<'py>(slf: &Bound<'py, Self>) -> Bound<'py, Self> {
        slf.clone()
    }

    /// Commits a claim, or gives it up when the block raised; releases a retrieved item.
    fn __exit__(
        slf: &Bound<'_, Self>,
        kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let this = slf.get();
        let (is_claim, is_open) = match &*this.state() {
            State::Claimed(data) => (true, data.is_open()),
            State::Retrieved { released, .. } => (false, !*released),
            State::Shown { .. } => (false, false),
        };
        match (is_claim, is_open) {
            (_, false) => Ok(()),
            (true, true) if kind.is_none() => match Item::commit(slf)? {
                true => Ok(()),
                false => Err(Error::MessageNotFound(
                    "the claim had expired and was given out as incomplete before it was committed".into(),
                )
                .into()),
            },
            (true, true) => {
                // What the block raised is what the caller wants to see, and its traceback holds the block's memoryviews.
                if slf.as_super().get().try_close().is_err() {
                    this.left.store(true, Ordering::Relaxed);
                    return Ok(());
                }
                let _ = this.with_claim(|writer, claim| {
                    writer.give_up(claim);
                    Ok(())
                });
                Ok(())
            }
            (false, true) if kind.is_none() => Item::release(slf).map(drop),
            (false, true) => {
                // As above; while memoryviews are in use it stays in hand, for a later release.
                let _ = Item::release(slf);
                Ok(())
            }
        }
    }

    fn __repr__(&self) -> String {
        let kind = match &*self.state() {
            State::Claimed(data) if data.is_open() => "claimed",
            State::Claimed(data) if data.was_committed() => "committed",
            State::Claimed(_) => "given up",
            State::Retrieved { released: true, .. } | State::Shown { released: true, .. } => "released",
            State::Retrieved { item, .. } | State::Shown { item, .. } if item.is_committed() => "committed",
            State::Retrieved { .. } | State::Shown { .. } => "incomplete",
        };
        let (identifier, size) = (self.queue_identifier(), self.size());
        format!("<tailrace.aq.Item {identifier:#x} {kind}, {size} bytes>")
    }
}

fn memory_view(handle: &Arc<Handle>, offset: usize, length: usize, access: Access) -> Result<View> {
    let view = View::of_region(handle.open()?.region(), offset, length, access)?;
    Ok(view.counted_by(handle.exports()))
}

fn joined(region: &Region, spans: &[(usize, usize)]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(spans.iter().map(|(_, length)| length).sum());
    for (offset, length) in spans {
        region.append_to(*offset, *length, &mut bytes);
    }
    bytes
}
