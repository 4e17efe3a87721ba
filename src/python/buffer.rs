//! Bytes between Python and queue memory: bytes-like arguments, and views that can be closed.
//!
//! [`View`] is the base class of every Python object whose `memoryview` is the memory of a queue itself (CPython takes
//! the buffer protocol from a native type only, so such a class says `extends = View`). It counts its exports. Closing
//! it (an item was released, a claim committed) is refused with `BufferError` while a memoryview lives, and once closed
//! it exports no more: nobody ever reads or writes an item through a view that outlived it. It does not keep the memory of
//! the queue mapped, only its exports do: a closed queue gives its memory back while such objects still lie around.
//!
//! One of the three homes of `unsafe`.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use pyo3::{PyErr, ffi};

use crate::shared::region::Region;
use crate::{Error, Result};

/// What a memoryview may do with the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    ReadOnly,
    ReadWrite,
}

/// Set in the state of a closed view; the bits below count the exports of an open one.
const CLOSED: usize = 1 << (usize::BITS - 1);

/// The buffer protocol over queue memory, with an export count.
#[pyclass(subclass, frozen, module = "tailrace._core")]
pub(crate) struct View {
    start: NonNull<u8>,
    len: usize,
    access: Access,
    /// Open: the number of exports. Closed: [`CLOSED`], for ever. One word, so that no export slips in beside a close.
    state: AtomicUsize,
    /// All exports of the queue, so that it is not closed under them.
    in_use: Option<Arc<Exports>>,
    owner: Owner,
}

/// Whose memory a view shows.
enum Owner {
    /// A queue's, which is there only while somebody holds the region.
    Region(Weak<Region>),
    /// The view's own.
    Copy { _bytes: Box<[u8]> },
}

/// The exports of all views of a queue, and whether there can be any more.
#[derive(Debug, Default)]
pub(crate) struct Exports(AtomicUsize);

/// Closed because the memory was formatted anew.
const FORMATTED: usize = CLOSED | 1;

impl Exports {
    fn enter(&self) -> PyResult<()> {
        let entered = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| {
            (count < CLOSED - 1).then_some(count + 1)
        });
        match entered {
            Ok(_) => Ok(()),
            Err(_) => Err(self.check_format().err().unwrap_or(Error::Closed).into()),
        }
    }

    fn leave(&self) {
        // SYNC: view-exports
        self.0.fetch_sub(1, Ordering::Release);
    }

    /// Lets nobody in any more; `BufferError` while somebody is.
    pub(crate) fn close(&self) -> PyResult<()> {
        // SYNC: view-exports
        match self.0.compare_exchange(0, CLOSED, Ordering::Acquire, Ordering::Acquire) {
            Ok(_) | Err(CLOSED) => Ok(()),
            Err(exports) => Err(in_use(exports)),
        }
    }

    /// `BufferError` while somebody is in.
    pub(crate) fn check_unused(&self) -> PyResult<()> {
        // SYNC: view-exports
        match self.0.load(Ordering::Acquire) {
            0 | CLOSED => Ok(()),
            exports => Err(in_use(exports)),
        }
    }

    /// Lets nobody in any more, because there is another queue in the memory now.
    pub(crate) fn close_for_format(&self) {
        self.0.store(FORMATTED, Ordering::Relaxed);
    }

    /// Refuses what belongs to the queue that was in the memory before.
    pub(crate) fn check_format(&self) -> Result<()> {
        if self.0.load(Ordering::Relaxed) == FORMATTED {
            return Err(Error::Invalid(
                "the queue was formatted anew: the item is not in it any more".into(),
            ));
        }
        Ok(())
    }
}

fn in_use(exports: usize) -> PyErr {
    PyBufferError::new_err(format!(
        "the memory of the queue is still in use by {exports} memoryview(s): release them first"
    ))
}

// SAFETY: `start` points into the owner, which is held while it is used and permits access by several threads: a region is
// made for that, a private copy is never written.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View")
            .field("len", &self.len)
            .field("access", &self.access)
            .field("is_closed", &self.is_closed())
            .finish_non_exhaustive()
    }
}

impl View {
    /// A view of `len` bytes at `offset` of the region itself.
    pub(crate) fn of_region(region: &Arc<Region>, offset: usize, len: usize, access: Access) -> Result<Self> {
        if offset.checked_add(len).is_none_or(|end| end > region.length()) {
            return Err(Error::Corrupt(format!(
                "{len} bytes at offset {offset} are not inside the {} bytes of the queue",
                region.length()
            )));
        }
        let start = NonNull::new(region.pointer(offset, len)).expect("a mapping does not begin at address zero");
        Ok(View::new(start, len, access, Owner::Region(Arc::downgrade(region))))
    }

    /// A read-only view of a private copy.
    pub(crate) fn of_copy(bytes: Box<[u8]>) -> Self {
        // The address is that of the boxed bytes, not of the box. It is only read: the view is read-only.
        let start = NonNull::from(&*bytes).cast();
        let len = bytes.len();
        View::new(start, len, Access::ReadOnly, Owner::Copy { _bytes: bytes })
    }

    fn new(start: NonNull<u8>, len: usize, access: Access, owner: Owner) -> Self {
        View {
            start,
            len,
            access,
            state: AtomicUsize::new(0),
            in_use: None,
            owner,
        }
    }

    /// Adds the exports of this view to those of its queue.
    pub(crate) fn counted_by(mut self, exports: Arc<Exports>) -> Self {
        self.in_use = Some(exports);
        self
    }

    /// A copy of the bytes.
    pub(crate) fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.export()?;
        let held = self.hold().inspect_err(|_| self.unexport())?;
        let len = ffi::Py_ssize_t::try_from(self.len).expect("no allocation is larger than isize::MAX");
        // SAFETY: `len` bytes at `start` are readable while they are held; a race gives stale bytes.
        let made = unsafe { ffi::PyBytes_FromStringAndSize(self.start.as_ptr().cast(), len) };
        drop(held);
        self.unexport();
        // SAFETY: a new reference, or null with an exception set.
        let made = unsafe { Bound::from_owned_ptr_or_err(py, made) }?;
        // SAFETY: it was made as `bytes`.
        Ok(unsafe { made.cast_into_unchecked::<PyBytes>() })
    }

    /// Whether the view was closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.state.load(Ordering::Acquire) == CLOSED
    }

    /// Closes the view for good. `Ok(true)` for the one call that closed it, `Ok(false)` when it was closed before,
    /// `BufferError` while memoryviews of it live.
    pub(crate) fn try_close(&self) -> PyResult<bool> {
        // SYNC: view-exports: what was done through a released memoryview happened before the close.
        match self
            .state
            .compare_exchange(0, CLOSED, Ordering::Acquire, Ordering::Acquire)
        {
            Ok(_) => Ok(true),
            Err(CLOSED) => Ok(false),
            Err(exports) => Err(PyBufferError::new_err(format!(
                "the memory is still in use by {exports} memoryview(s): release them first"
            ))),
        }
    }

    /// The memory stays while this is held; QueueClosed when it is gone.
    fn hold(&self) -> PyResult<Option<Arc<Region>>> {
        match &self.owner {
            Owner::Copy { .. } => Ok(None),
            Owner::Region(region) => Ok(Some(region.upgrade().ok_or(Error::Closed)?)),
        }
    }

    fn export(&self) -> PyResult<()> {
        if let Some(queue) = &self.in_use {
            queue.enter()?;
        }
        self.state
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |state| {
                // A count that has reached the bit below CLOSED is refused like a closed view: it cannot be honest.
                (state < CLOSED - 1).then_some(state + 1)
            })
            .map(drop)
            .map_err(|_| {
                if let Some(queue) = &self.in_use {
                    queue.leave();
                }
                PyValueError::new_err("the item was released or committed: its memory is no longer accessible")
            })
    }

    fn unexport(&self) {
        // SYNC: view-exports
        self.state.fetch_sub(1, Ordering::Release);
        if let Some(queue) = &self.in_use {
            queue.leave();
        }
    }
}

/// The memory of a writable, C-contiguous buffer as a region, which keeps the buffer exported while it lives.
pub(crate) fn region_over(object: &Bound<'_, PyAny>) -> PyResult<Region> {
    let buffer = PyUntypedBuffer::get(object)?;
    if buffer.readonly() {
        return Err(PyBufferError::new_err(
            "the buffer is read-only: a queue needs memory that it can write to",
        ));
    }
    if !buffer.is_c_contiguous() {
        return Err(PyBufferError::new_err("the buffer is not C-contiguous"));
    }
    let len = buffer.len_bytes();
    let start = NonNull::new(buffer.buf_ptr().cast::<u8>())
        .filter(|_| len > 0)
        .ok_or_else(|| PyValueError::new_err("the buffer is empty"))?;
    // SAFETY: the exporter keeps `len` bytes in place while the buffer is held, and the region holds it; Python's own
    // accesses to them are raw, like those of another process.
    Ok(unsafe { Region::borrowed(start, len, Box::new(buffer)) })
}

/// A message that copies itself out of a queue.
///
/// # Safety
/// `copy_to` initialises all `len` bytes that it is given.
pub(crate) unsafe trait Message {
    /// Bytes of the message.
    fn len(&self) -> usize;
    /// Fills `out`, which has exactly the length of the message.
    fn copy_to(&self, out: &mut [MaybeUninit<u8>]);
}

// SAFETY: `Taken::copy_to` checks the length and writes every byte.
unsafe impl Message for crate::aq::Taken<'_> {
    #[inline]
    fn len(&self) -> usize {
        self.size()
    }

    #[inline]
    fn copy_to(&self, out: &mut [MaybeUninit<u8>]) {
        self.copy_to(out);
    }
}

// SAFETY: `LeaseBytes::copy_to` checks the length and writes every byte.
unsafe impl Message for crate::conq::LeaseBytes<'_> {
    #[inline]
    fn len(&self) -> usize {
        self.size()
    }

    #[inline]
    fn copy_to(&self, out: &mut [MaybeUninit<u8>]) {
        self.copy_to(out);
    }
}

// SAFETY: `ReadHold::copy_to` checks the length and writes every byte.
unsafe impl Message for crate::ring::ReadHold<'_> {
    #[inline]
    fn len(&self) -> usize {
        self.size()
    }

    #[inline]
    fn copy_to(&self, out: &mut [MaybeUninit<u8>]) {
        self.copy_to(out);
    }
}

/// A new `bytes` object with the message, copied once.
#[inline]
pub(crate) fn message_bytes<'py>(py: Python<'py>, message: &impl Message) -> PyResult<Bound<'py, PyBytes>> {
    Ok(Blank::new(py, message.len())?.filled(message))
}

/// A `bytes` object that nobody has yet, to be filled with a message: made before that is taken out of a queue where it could
/// not be given back if there were no memory.
pub(crate) struct Blank<'py> {
    made: Bound<'py, PyBytes>,
    len: usize,
}

impl<'py> Blank<'py> {
    /// Room for `len` bytes.
    #[inline]
    pub(crate) fn new(py: Python<'py>, len: usize) -> PyResult<Self> {
        let size = ffi::Py_ssize_t::try_from(len).expect("no allocation is larger than isize::MAX");
        // SAFETY: no bytes are read with a null pointer, they are left uninitialised.
        let made = unsafe { ffi::PyBytes_FromStringAndSize(std::ptr::null(), size) };
        // SAFETY: a new reference, or null with an exception set.
        let made = unsafe { Bound::from_owned_ptr_or_err(py, made) }?;
        // SAFETY: it was made as `bytes`.
        let made = unsafe { made.cast_into_unchecked::<PyBytes>() };
        Ok(Blank { made, len })
    }

    /// The object with the message, which has the length that there is room for.
    #[inline]
    pub(crate) fn filled(self, message: &impl Message) -> Bound<'py, PyBytes> {
        // SAFETY: a live `bytes` object.
        let start = unsafe { ffi::PyBytes_AsString(self.made.as_ptr()) };
        // SAFETY: `len` bytes belong to the new object, and nobody else has it yet.
        let room = unsafe { std::slice::from_raw_parts_mut(start.cast::<MaybeUninit<u8>>(), self.len) };
        message.copy_to(room);
        self.made
    }
}

#[pymethods]
impl View {
    unsafe fn __getbuffer__(slf: &Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let this = slf.get();
        this.export()?;
        let held = this.hold().inspect_err(|_| this.unexport())?;
        let len = ffi::Py_ssize_t::try_from(this.len).expect("no allocation is larger than isize::MAX");
        let readonly = c_int::from(this.access == Access::ReadOnly);
        // SAFETY: Python hands a `Py_buffer` to fill; FillInfo references `slf`, and the bytes are its own or held below.
        let filled =
            unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), this.start.as_ptr().cast(), len, readonly, flags) };
        if filled == 0 {
            let held = held.map_or(std::ptr::null(), Arc::into_raw);
            // SAFETY: FillInfo filled it; `internal` is the exporter's own, and comes back in `__releasebuffer__`.
            unsafe { (*view).internal = held.cast_mut().cast() };
            return Ok(());
        }
        this.unexport();
        Err(PyErr::fetch(slf.py()))
    }

    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: Python hands back the `Py_buffer` that `__getbuffer__` filled.
        let held = unsafe { (*view).internal }.cast_const().cast::<Region>();
        if !held.is_null() {
            // SAFETY: made by `Arc::into_raw` in `__getbuffer__`, and released once.
            drop(unsafe { Arc::from_raw(held) });
        }
        self.unexport();
    }
}

/// The bytes of a `bytes`, `bytearray`, `memoryview`, numpy array or any other C-contiguous buffer, as an argument.
///
/// Only `bytes` are borrowed: they never change. Anything else is copied while attached, because others (a thread, or
/// another process when it is a view of a queue) may write to it at any moment. So the slice may also be used detached.
#[derive(Debug)]
pub(crate) enum Payload<'py> {
    Bytes(Bound<'py, PyBytes>),
    Copy(Vec<u8>),
}

impl Payload<'_> {
    /// The bytes, valid for the duration of the call.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        match self {
            Payload::Bytes(bytes) => bytes.as_bytes(),
            Payload::Copy(copy) => copy,
        }
    }
}

impl<'py> FromPyObject<'_, 'py> for Payload<'py> {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(Payload::Bytes(bytes.to_owned()));
        }
        // SAFETY: a check of the type's slots on a live object.
        if unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } == 0 {
            let kind = object.get_type().name()?;
            return Err(PyTypeError::new_err(format!(
                "a bytes-like object is required, not '{kind}'"
            )));
        }
        let buffer = PyUntypedBuffer::get(&object)?;
        if !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err(
                "the buffer is not C-contiguous: make a contiguous copy first",
            ));
        }
        let len = buffer.len_bytes();
        let mut copy = Vec::with_capacity(len);
        if len > 0 {
            // SAFETY: a contiguous buffer has `len` readable bytes at `buf_ptr` while it is held; the destination was
            // allocated just now with room for them.
            unsafe { std::ptr::copy_nonoverlapping(buffer.buf_ptr().cast::<u8>(), copy.as_mut_ptr(), len) };
        }
        // SAFETY: the first `len` bytes were just written.
        unsafe { copy.set_len(len) };
        Ok(Payload::Copy(copy))
    }
}
