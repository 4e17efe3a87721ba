//! What the tests of queue files share: small systems, short verbs.

// Each test binary uses a part of it.
#![allow(dead_code, unreachable_pub, missing_debug_implementations)]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tailrace::mcp::{Batch, Device, End, FileParameters, Mode, OpenOptions, QueueFile, System, SystemParameters, Took};
use tailrace::shared::signal::Wait;
use tailrace::{Error, Result};

/// A system of the usual size.
pub fn system(directory: &Path) -> Arc<System> {
    System::open(directory, &SystemParameters::default()).expect("open the queue system")
}

/// A system whose image is small enough to be copied thousands of times.
pub fn tiny() -> SystemParameters {
    SystemParameters {
        queues: 4,
        users: 8,
        participants: 8,
        messages: 20,
        memory: 8192,
        memory_limit: 65536,
    }
}

/// MY.Q of the document: twenty messages, three buffers, eighty bytes.
pub fn my_q() -> FileParameters {
    FileParameters {
        name: "MY.Q".into(),
        max_messages: 20,
        buffers: 3,
        record_size: 80,
        family_size: 0,
        device: Device::New,
    }
}

/// MY.QFF of the document: three members of ten messages, two buffers each.
pub fn my_qff() -> FileParameters {
    FileParameters {
        name: "MY.QFF".into(),
        max_messages: 10,
        buffers: 2,
        family_size: 3,
        ..my_q()
    }
}

pub fn open(system: &Arc<System>, parameters: &FileParameters, mode: Mode) -> QueueFile {
    QueueFile::open(system, parameters, mode, &OpenOptions::default()).expect("open the queue file")
}

pub fn kept() -> OpenOptions {
    OpenOptions {
        keep: true,
        ..OpenOptions::default()
    }
}

/// Seconds from now; a test that waits longer has failed.
pub fn seconds(seconds: u64) -> Wait {
    Wait::from_timeout(Some(Duration::from_secs(seconds)))
}

/// Writes without waiting: false is INCOMPLETE.IO.
pub fn put(file: &QueueFile, key: impl Into<Option<i64>>, text: impl AsRef<[u8]>) -> Result<bool> {
    file.write(key.into(), text.as_ref(), End::Back, Wait::No, || Ok(()))
}

pub fn put_top(file: &QueueFile, key: impl Into<Option<i64>>, text: impl AsRef<[u8]>) -> Result<bool> {
    file.write(key.into(), text.as_ref(), End::Top, Wait::No, || Ok(()))
}

/// What a read that does not wait came to.
#[derive(Debug, PartialEq, Eq)]
pub enum Got {
    Text(String),
    Incomplete,
    Eof,
}

/// Reads without waiting.
pub fn get(file: &QueueFile, key: impl Into<Option<i64>>) -> Result<Got> {
    get_within(file, key, Wait::No)
}

pub fn get_within(file: &QueueFile, key: impl Into<Option<i64>>, wait: Wait) -> Result<Got> {
    let mut batch = Batch::new();
    Ok(match file.read(key.into(), 1, &mut batch, wait, || Ok(()))? {
        Took::Messages(1) => Got::Text(String::from_utf8_lossy(batch.bytes()).into_owned()),
        Took::Messages(count) => panic!("one message asked for, {count} read"),
        Took::Nothing => Got::Incomplete,
        Took::End => Got::Eof,
    })
}

pub fn text(text: &str) -> Got {
    Got::Text(text.to_owned())
}

/// Everything that can be read now.
pub fn drain(file: &QueueFile) -> Result<Vec<Vec<u8>>> {
    let mut batch = Batch::new();
    while let Took::Messages(_) = file.read(None, 64, &mut batch, Wait::No, || Ok(()))? {}
    Ok(batch.iter().map(<[u8]>::to_vec).collect())
}

/// The error of a call that must fail.
pub fn refused<T: std::fmt::Debug>(result: Result<T>) -> Error {
    result.expect_err("the call must be refused")
}
