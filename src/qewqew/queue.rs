//! The queue as people use it: every operation in its non-blocking form, and [`DurableQueue::waiting`] for the rest.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::layout;
use super::options::Options;
use super::session::Session;
use super::side::Side;
use super::store::Store;
use crate::os::fork;
use crate::shared::signal::{Turn, Wait};
use crate::{Error, Result};

/// How long a wait sleeps where there is no word to be woken by.
const POLL: Duration = Duration::from_millis(20);

/// A durable first-in-first-out queue in a chain of chunk files; see [`crate::qewqew`].
///
/// ```
/// use tailrace::qewqew::{DurableQueue, Options};
///
/// let directory = tempfile::tempdir()?;
/// let queue = DurableQueue::open(&directory.path().join("jobs"), Options::default())?;
/// queue.enqueue(b"first")?;
/// queue.enqueue_many(&[b"second".as_slice(), b"third"])?;
/// assert_eq!(queue.dequeue()?.as_deref(), Some(&b"first"[..]));
/// assert_eq!(queue.len()?, 2);
/// # queue.clear()?;
/// queue.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct DurableQueue {
    path: PathBuf,
    pub(crate) options: Options,
    session: Session,
}

/// What a wait is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Messages that can be taken.
    Arrival,
    /// Room below `max_bytes`.
    Room,
}

impl DurableQueue {
    /// Opens the queue whose head file is `path`, or creates it.
    pub fn open(path: &Path, options: Options) -> Result<Self> {
        Self::open_with(path, options, &mut || Ok(()))
    }

    /// As [`Self::open`]; `idle` is called while another process is in the middle of opening or closing the queue.
    pub fn open_with(path: &Path, options: Options, idle: &mut dyn FnMut() -> Result<()>) -> Result<Self> {
        let session = Session::open(path, &options, idle)?;
        Ok(DurableQueue {
            path: path.to_owned(),
            options,
            session,
        })
    }

    /// Where the head file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How it was opened.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Bytes of new chunk files.
    pub fn chunk_size(&self) -> u32 {
        self.session.store.chunk_size
    }

    /// The longest message.
    pub fn max_element_size(&self) -> u32 {
        layout::max_element_size(self.chunk_size())
    }

    /// The session of this process: a forked child opens the queue anew at its first use.
    #[inline]
    pub(crate) fn session(&self) -> Result<&Session> {
        let mut session = &self.session;
        while !session.is_own() {
            session = match session.child.get() {
                Some(child) => child,
                None => self.reopen(session)?,
            };
        }
        Ok(session)
    }

    #[cold]
    fn reopen<'a>(&self, parent: &'a Session) -> Result<&'a Session> {
        parent.check_open()?;
        fork::one_at_a_time(|| {
            if parent.child.get().is_none() {
                let own = Session::open(&self.path, &self.options, &mut || Ok(()))?;
                // Never half set in a child that another thread forks.
                let _ = fork::undivided(|| parent.child.set(Box::new(own)));
            }
            Ok(parent.child.get().expect("just set").as_ref())
        })
    }

    pub(crate) fn producer(&self) -> Result<&Session> {
        if self.options.role.produces() {
            return self.session();
        }
        Err(Error::Invalid(
            "this handle was opened with role=\"consumer\": it cannot enqueue".into(),
        ))
    }

    pub(crate) fn consumer(&self) -> Result<&Session> {
        if self.options.role.consumes() {
            return self.session();
        }
        Err(Error::Invalid(
            "this handle was opened with role=\"producer\": it cannot dequeue".into(),
        ))
    }

    /// Whether there is no message. A moment's view.
    pub fn is_empty(&self) -> Result<bool> {
        let session = self.session()?;
        session.check_open()?;
        if session.store.side.as_ref().is_some_and(Side::has_staged) {
            return Ok(false);
        }
        if self.options.role.consumes() {
            return Ok(session.reader()?.front(&session.store)?.is_none());
        }
        Ok(session.store.chain()?.iter().all(|link| link.pointers.is_exhausted()))
    }

    /// How many messages there are, by counting them. A moment's view.
    pub fn len(&self) -> Result<u64> {
        let session = self.session()?;
        session.check_open()?;
        session.count_messages()
    }

    /// Bytes of unread messages, each with its 2-byte length. A moment's view.
    pub fn unread_bytes(&self) -> Result<u64> {
        let session = self.session()?;
        session.check_open()?;
        let staged = session.store.side.as_ref().map_or(0, Side::staged_bytes);
        Ok(session.unread_bytes()? + staged)
    }

    /// How many chunk files hold the queue; 0 when it is empty, as for the original, also while an exhausted one is kept.
    pub fn count_chunks(&self) -> Result<usize> {
        let session = self.session()?;
        session.check_open()?;
        let staged = session.store.side.as_ref().is_some_and(Side::has_staged);
        let chain = session.store.chain()?;
        if !staged && chain.iter().all(|link| link.pointers.is_exhausted()) {
            return Ok(0);
        }
        Ok(chain.len())
    }

    /// Makes everything that was enqueued before this call survive a power cut.
    pub fn sync(&self) -> Result<()> {
        let session = self.session()?;
        session.check_open()?;
        let store = &session.store;
        if let Some(side) = store.side.as_ref().filter(|_| store.sync.is_durable()) {
            Self::commit_staged(session, side)?;
            if side.has_unsynced_past() {
                let _append = side.append_lock(Store::patience())?;
                store.sync_past()?;
            }
            return Ok(());
        }
        for link in store.chain()? {
            match store.glance(link.id) {
                Err(Error::NotFound(_)) => {}
                chunk => chunk?.sync(&store.disk)?,
            }
        }
        store.disk.sync_directory()?;
        store.head.sync(&store.disk)
    }

    /// Closes the handle; all others go on. The last one to close an empty queue removes its files.
    pub fn close(&self) -> Result<()> {
        self.close_with(&mut || Ok(()))
    }

    /// As [`Self::close`]; `idle` is called while another process is in the middle of opening or closing the queue.
    pub fn close_with(&self, idle: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let mut session = &self.session;
        while !session.is_own() {
            match session.child.get() {
                Some(child) => session = child,
                None => return Ok(()),
            }
        }
        session.close(idle)
    }

    /// Turns an `attempt` into a waiting one; `Ok(None)` when the time is up. `idle` is called at least ten times a second.
    pub fn waiting<T>(
        &self,
        change: Change,
        wait: Wait,
        idle: &mut dyn FnMut() -> Result<()>,
        mut attempt: impl FnMut() -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let session = self.session()?;
        if let Some(side) = &session.store.side {
            let word = match change {
                Change::Arrival => side.arrivals(),
                Change::Room => side.room(),
            };
            return word.wait_for(wait, Turn::Patient, idle, attempt);
        }
        loop {
            if let Some(value) = attempt()? {
                return Ok(Some(value));
            }
            if !wait.pause(POLL) {
                return Ok(None);
            }
            idle()?;
        }
    }
}
