//! WAIT: on time and on any number of Q.INSERT.OCCURRED events (sections 7.0, 8.0).
//!
//! The event of a file is a level: it is there while a message can be read, or EOF was not taken yet. All inserts of a system
//! notify one signal, so waiting on many files is waiting on one word. Files of different systems have no word in common; then
//! the wait looks at all of them every millisecond.

use std::sync::Arc;
use std::time::Duration;

use super::file::QueueFile;
use super::layout::queue;
use crate::shared::signal::{Turn, Wait};
use crate::{Error, Result};

/// How often the files of other systems are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Waits for an event of any of `files` and gives the place of the first that has one, counted from 1; 0 when the time is up.
pub fn wait(files: &[&QueueFile], wait: Wait, mut idle: impl FnMut() -> Result<()>) -> Result<usize> {
    for file in files {
        file.check_open()?;
        file.user()?;
        file.look_around()?;
    }
    let attempt = || -> Result<Option<usize>> {
        for (index, file) in files.iter().enumerate() {
            if file.insert_occurred()? {
                return Ok(Some(index + 1));
            }
        }
        Ok(None)
    };
    let mut look = || {
        for file in files {
            file.check_open()?;
            file.look_around()?;
        }
        idle()
    };
    let Some(first) = files.first() else {
        return Err(Error::Invalid("a WAIT needs a queue file to wait on".into()));
    };
    let signal = first.system.driver.any_insert();
    if files.iter().all(|file| Arc::ptr_eq(&file.system, &first.system)) {
        return Ok(signal.wait_for(wait, Turn::PeerMatters, look, attempt)?.unwrap_or(0));
    }
    loop {
        let slice = wait.remaining(LOOK_EVERY).unwrap_or(Duration::ZERO);
        let found = signal.wait_for(Wait::from_timeout(Some(slice)), Turn::PeerMatters, &mut look, attempt)?;
        if found.is_some() || slice.is_zero() {
            return Ok(found.unwrap_or(0));
        }
        look()?;
    }
}

impl QueueFile {
    /// Whether the file has its Q.INSERT.OCCURRED.
    pub fn insert_occurred(&self) -> Result<bool> {
        let driver = &self.system.driver;
        if self
            .members
            .iter()
            .any(|m| driver.queue_word(m.key.slot, queue::AVAILABLE) != 0)
        {
            return Ok(true);
        }
        if !self.may_have_ended() {
            return Ok(false);
        }
        driver.inside(super::driver::Entry::Soon, |inside| {
            Ok(self.members.iter().any(|member| self.eof_is_pending(inside, member)))
        })
    }
}
