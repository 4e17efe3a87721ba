//! Messages between Python and a queue file: at once where that is possible, and only else without the GIL.

use std::cell::RefCell;

use pyo3::prelude::*;

use super::super::error::{EndOfFile, QueueEmpty, QueueFull};
use super::super::wait::waiting;
use super::file::QueueFile;
use crate::Error;
use crate::mcp::{Batch, Device, End, Took};
use crate::shared::signal::Wait;

/// Scratch memory above this is given back after the call.
const KEEP: usize = 1 << 20;

thread_local! {
    /// Where messages are put together before Python gets them.
    static SCRATCH: RefCell<Batch> = const { RefCell::new(Batch::new()) };
}

impl QueueFile {
    /// Reads up to `limit` messages and hands them to `make`.
    pub(super) fn take<T>(
        &self,
        py: Python<'_>,
        key: Option<i64>,
        limit: usize,
        wait: Wait,
        make: impl FnOnce(&Batch) -> PyResult<T>,
    ) -> PyResult<std::result::Result<T, Took>> {
        SCRATCH.with(|scratch| match scratch.try_borrow_mut() {
            Ok(mut batch) => {
                let made = self.take_with(py, key, limit, wait, &mut batch, make);
                if batch.bytes().len() > KEEP {
                    *batch = Batch::new();
                }
                made
            }
            // A signal handler, or what Python runs when it makes objects, has come here in the middle of another read.
            Err(_) => self.take_with(py, key, limit, wait, &mut Batch::new(), make),
        })
    }

    #[inline]
    fn take_with<T>(
        &self,
        py: Python<'_>,
        key: Option<i64>,
        limit: usize,
        wait: Wait,
        batch: &mut Batch,
        make: impl FnOnce(&Batch) -> PyResult<T>,
    ) -> PyResult<std::result::Result<T, Took>> {
        batch.clear();
        match self.take_into(py, key, limit, wait, batch)? {
            Took::Messages(_) => make(batch).map(Ok),
            other => Ok(Err(other)),
        }
    }

    fn take_into(
        &self,
        py: Python<'_>,
        key: Option<i64>,
        limit: usize,
        wait: Wait,
        batch: &mut Batch,
    ) -> PyResult<Took> {
        if limit == 0 {
            return Ok(self.file.read(key, 0, batch, Wait::No, || Ok(()))?);
        }
        let mut total = 0;
        loop {
            match self.file.try_read(key, limit - total, batch) {
                Ok(Took::Messages(count)) => total += count,
                Ok(Took::Nothing) if total == 0 && wait != Wait::No => break,
                // The lock is taken for the moment, or there is I/O to do.
                Err(Error::TimedOut) => break,
                Ok(other) if total == 0 => return Ok(other),
                Err(error) if total == 0 => return Err(error.into()),
                _ => return Ok(Took::Messages(total)),
            }
            if total >= limit {
                return Ok(Took::Messages(total));
            }
        }
        waiting(py, |idle| {
            loop {
                let wait = if total == 0 { wait } else { Wait::No };
                match self.file.read(key, limit - total, batch, wait, &mut *idle) {
                    Ok(Took::Messages(count)) => total += count,
                    other if total == 0 => return other,
                    // What was taken is returned; an error will come again.
                    _ => return Ok(Took::Messages(total)),
                }
                if total >= limit {
                    return Ok(Took::Messages(total));
                }
            }
        })
    }

    pub(super) fn put_one(
        &self,
        py: Python<'_>,
        data: &[u8],
        key: Option<i64>,
        end: End,
        wait: Wait,
    ) -> PyResult<bool> {
        if !self.file.may_write_disk() {
            match self.file.try_write(key, data, end) {
                Ok(false) | Err(Error::Full(_)) if wait != Wait::No => {}
                Err(Error::TimedOut) => {}
                other => return Ok(other?),
            }
        }
        waiting(py, |idle| self.file.write(key, data, end, wait, idle))
    }

    pub(super) fn refused(&self) -> PyErr {
        let name = &self.file.parameters().name;
        let limit = self.file.parameters().max_messages;
        QueueFull::new_err(format!("{name} is full: it holds {limit} messages, its limit"))
    }

    /// The exception of a read that came to nothing.
    pub(super) fn nothing(&self, took: Took) -> PyErr {
        let name = &self.file.parameters().name;
        match took {
            Took::End if self.file.parameters().device == Device::Old => {
                EndOfFile::new_err(format!("end of file: the old queue file {name} is empty"))
            }
            Took::End => EndOfFile::new_err(format!(
                "end of file: the last writer of {name} is gone and it is empty"
            )),
            _ => QueueEmpty::new_err(format!("{name} is empty")),
        }
    }
}
