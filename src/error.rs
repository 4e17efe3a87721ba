//! The one error type of the crate.
//!
//! The outcomes a caller acts on (full, empty, closed, time is up) are variants of their own; everything else says what was
//! wrong, with the value and the limit in it. The Python module turns each variant into one exception class.

use std::io;
use std::path::PathBuf;

/// What a queue operation can fail with.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no room for another message now.
    #[error("the queue is full: {0}")]
    Full(String),
    /// There is no message to take now.
    #[error("the queue is empty")]
    Empty,
    /// The time given to a waiting call is up.
    #[error("the wait timed out")]
    TimedOut,
    /// A waiting call was told to stop by its `idle` callback (a signal handler raised, for example).
    #[error("the wait was interrupted")]
    Interrupted,
    /// The last writer has closed and nothing is left to read.
    #[error("end of file: the last writer has closed and the queue is empty")]
    EndOfFile,
    /// The handle was closed.
    #[error("the queue is closed")]
    Closed,
    /// A role that only one participant may have is taken.
    #[error("already open: {0}")]
    AlreadyOpen(String),
    /// No queue has this name.
    #[error("no such queue: {0}")]
    NotFound(String),
    /// A queue of this name exists.
    #[error("the queue exists already: {0}")]
    Exists(String),
    /// The message is not (or no longer) in the hands of the caller.
    #[error("no such message: {0}")]
    MessageNotFound(String),
    /// The message can never fit.
    #[error("a message of {size} bytes is too large, the limit is {limit} bytes")]
    TooLarge {
        /// Bytes of the refused message.
        size: u64,
        /// The most bytes that a message may have.
        limit: u64,
    },
    /// The key names no member of the family.
    #[error("invalid key {key}: {expected}")]
    InvalidKey {
        /// The key as given.
        key: i64,
        /// What would have been valid.
        expected: String,
    },
    /// An argument is outside its range; the text names the value and the limit.
    #[error("{0}")]
    Invalid(String),
    /// The bytes are not a queue of this kind and version.
    #[error("{0}")]
    Format(String),
    /// The bytes are a queue of this kind, but damaged.
    #[error("corrupt queue: {0}")]
    Corrupt(String),
    /// The operating system refused.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done, to which file.
        doing: String,
        /// The error of the operating system.
        source: io::Error,
    },
}

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Wraps an operating system error together with what was being done.
    pub fn io(doing: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Error::Io {
            doing: doing.into(),
            source: source.into(),
        }
    }

    /// The error of a queue file that does not exist.
    pub(crate) fn no_file(path: &std::path::Path) -> Self {
        Error::NotFound(PathBuf::from(path).display().to_string())
    }
}
