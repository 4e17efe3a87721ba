//! Byte locks of open file descriptions (`F_OFD_SETLK`): tokens that the kernel takes back when their holder dies.
//!
//! They work on bytes far past the end of a file, across pid namespaces, and do not vanish when the process closes some
//! other descriptor of the file (as POSIX locks do). One's own locks never conflict with oneself.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, RawFd};

use super::file;
use super::fork::ForkClosed;
use crate::{Error, Result};

/// Whether others may hold the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Together with other shared holders.
    Shared,
    /// Alone.
    Exclusive,
}

/// One open file description of a file, on which byte locks are held.
///
/// A forked child loses it at once; see [`super::fork`].
#[derive(Debug)]
pub struct LockFile {
    descriptor: ForkClosed,
}

impl LockFile {
    /// Opens a new description of the file behind `file`, whatever its name is by now.
    pub fn reopen(file: BorrowedFd<'_>) -> Result<Self> {
        let descriptor = ForkClosed::open(|| file::reopen(file))?;
        Ok(LockFile { descriptor })
    }

    /// Takes the bytes if nobody else holds them in a conflicting way.
    pub fn try_lock(&self, start: u64, length: u64, kind: Kind) -> Result<bool> {
        let request = match kind {
            Kind::Shared => libc::F_RDLCK,
            Kind::Exclusive => libc::F_WRLCK,
        };
        match self.control(libc::F_OFD_SETLK, request, start, length) {
            Ok(_) => Ok(true),
            Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
            Err(e) => Err(Error::io("taking a file lock", e)),
        }
    }

    /// Gives the bytes back.
    pub fn unlock(&self, start: u64, length: u64) -> Result<()> {
        self.control(libc::F_OFD_SETLK, libc::F_UNLCK, start, length)
            .map(drop)
            .map_err(|e| Error::io("releasing a file lock", e))
    }

    /// The first byte in the range that another description holds, in any way.
    pub fn first_held(&self, start: u64, length: u64) -> Result<Option<u64>> {
        let found = self
            .control(libc::F_OFD_GETLK, libc::F_WRLCK, start, length)
            .map_err(|e| Error::io("asking for a file lock", e))?;
        Ok((found.l_type != libc::F_UNLCK as i16).then(|| start.max(found.l_start as u64)))
    }

    /// Opens a new description in a forked child, where the inherited one is closed: without any lock yet.
    pub fn renew(&self, file: BorrowedFd<'_>) -> Result<()> {
        self.descriptor.renew(|| file::reopen(file))
    }

    /// True once this process is a fork of the one that opened it: all its locks are gone.
    pub fn is_lost(&self) -> bool {
        self.descriptor.raw().is_none()
    }

    #[allow(unsafe_code)]
    fn control(&self, command: i32, kind: i32, start: u64, length: u64) -> io::Result<libc::flock> {
        let descriptor: RawFd = self
            .descriptor
            .raw()
            .ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))?;
        let mut request = libc::flock {
            l_type: kind as i16,
            l_whence: libc::SEEK_SET as i16,
            l_start: i64::try_from(start).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?,
            l_len: i64::try_from(length).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?,
            l_pid: 0,
        };
        loop {
            // SAFETY: `request` is a valid flock for the length of the call, and OFD commands take exactly that.
            let result = unsafe { libc::fcntl(descriptor, command, &raw mut request) };
            if result >= 0 {
                return Ok(request);
            }
            let error = io::Error::last_os_error();
            if error.raw_os_error() != Some(libc::EINTR) {
                return Err(error);
            }
        }
    }
}

impl Drop for LockFile {
    /// Unlocks before the descriptor is closed: a child that another thread is forking or executing has a copy of it for a
    /// moment, which would go on holding the locks.
    fn drop(&mut self) {
        if !self.is_lost() {
            // A length of zero is everything.
            let _ = self.unlock(0, 0);
        }
    }
}

/// Opens `file` anew and takes its bytes; `None` when somebody else holds them.
pub fn try_take(file: impl AsFd, start: u64, length: u64, kind: Kind) -> Result<Option<LockFile>> {
    let lock = LockFile::reopen(file.as_fd())?;
    Ok(lock.try_lock(start, length, kind)?.then_some(lock))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn far_bytes_exclude_each_other_and_come_back() {
        let file = tempfile::tempfile().unwrap();
        let byte = 1 << 62;
        let first = try_take(&file, byte, 1, Kind::Exclusive).unwrap().expect("free");
        assert!(try_take(&file, byte, 1, Kind::Exclusive).unwrap().is_none());
        let other = try_take(&file, byte + 7, 1, Kind::Exclusive)
            .unwrap()
            .expect("another byte");
        assert_eq!(other.first_held(byte, 64).unwrap(), Some(byte));
        assert_eq!(first.first_held(byte, 7).unwrap(), None, "one's own lock does not show");
        drop(first);
        assert_eq!(other.first_held(byte, 1).unwrap(), None);
    }

    #[test]
    #[allow(unsafe_code)]
    fn a_copy_of_the_descriptor_keeps_nothing_locked() {
        let file = tempfile::tempfile().unwrap();
        let lock = try_take(&file, 7, 1, Kind::Exclusive).unwrap().expect("free");
        // As a child has it between its fork and its exec.
        // SAFETY: the descriptor is open; the copy is closed with the test's process.
        let copy = unsafe { libc::dup(lock.descriptor.raw().unwrap()) };
        assert!(copy >= 0);
        drop(lock);
        assert!(try_take(&file, 7, 1, Kind::Exclusive).unwrap().is_some());
    }

    #[test]
    fn shared_holders_share() {
        let file = tempfile::tempfile().unwrap();
        let _a = try_take(&file, 5, 1, Kind::Shared).unwrap().expect("free");
        let b = try_take(&file, 5, 1, Kind::Shared).unwrap().expect("shared");
        assert!(!b.try_lock(5, 1, Kind::Exclusive).unwrap());
        drop(_a);
        assert!(b.try_lock(5, 1, Kind::Exclusive).unwrap());
    }
}
