//! Who may do what, as byte locks on the head file: the kernel takes them back when their holder dies.
//!
//! ```text
//! byte 2^62 + 0   gate: exclusive, for the moments of opening and closing
//! byte 2^62 + 1   members: shared by every handle that maps the files
//! byte 2^62 + 2   consumer: exclusive
//! byte 2^62 + 3   network members: shared by every handle that does not map them (the two kinds exclude each other)
//! byte 2^62 + 4   network producer: exclusive
//! ```
//!
//! The original locks the whole file exclusively, which conflicts with any of these, both ways; byte 0 is never locked by
//! us, so whoever holds it is the original. A handle that holds the gate and sees no other member holds every role: only
//! then are side files replaced and the files of an empty queue removed.

use std::time::Duration;

use super::head::Head;
use super::options::Options;
use crate::os::locks::{Kind, LockFile};
use crate::shared::signal::Wait;
use crate::{Error, Result};

const GATE: u64 = 1 << 62;
const MEMBERS: u64 = GATE + 1;
const CONSUMER: u64 = GATE + 2;
const NETWORK_MEMBERS: u64 = GATE + 3;
const NETWORK_PRODUCER: u64 = GATE + 4;

/// Opening and closing are short; whoever holds the gate longer than this is stopped, not busy.
const GATE_PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Roles {
    locks: LockFile,
    network: bool,
}

impl Roles {
    /// Passes the gate and leaves it closed behind. `None` when the head file lost its name meanwhile: open it again.
    pub(crate) fn enter(head: &Head, shown: &str, idle: &mut dyn FnMut() -> Result<()>) -> Result<Option<LockFile>> {
        let locks = LockFile::reopen(head.descriptor())?;
        close_gate(&locks, shown, idle)?;
        Ok(head.is_still_named()?.then_some(locks))
    }

    /// Takes a role, behind the gate.
    pub(crate) fn take(locks: LockFile, shown: &str, options: &Options) -> Result<Self> {
        let (own, other, how) = match options.network {
            false => (MEMBERS, NETWORK_MEMBERS, "with"),
            true => (NETWORK_MEMBERS, MEMBERS, "without"),
        };
        if locks.first_held(other, 1)?.is_some() {
            return Err(Error::AlreadyOpen(format!(
                "{shown} is open {how} network=True elsewhere"
            )));
        }
        let mut wanted = vec![(own, Kind::Shared, "")];
        if options.role.consumes() {
            wanted.push((CONSUMER, Kind::Exclusive, "another handle is its consumer"));
        }
        if options.network && options.role.produces() {
            wanted.push((
                NETWORK_PRODUCER,
                Kind::Exclusive,
                "another handle is its network producer",
            ));
        }
        for (byte, kind, taken) in wanted {
            if !locks.try_lock(byte, 1, kind)? {
                return Err(Error::AlreadyOpen(format!("{shown}: {taken}")));
            }
        }
        Ok(Roles {
            locks,
            network: options.network,
        })
    }

    /// Whether nobody else has the queue open; meaningful behind the gate.
    pub(crate) fn is_alone(&self) -> Result<bool> {
        let byte = if self.network { NETWORK_MEMBERS } else { MEMBERS };
        Ok(self.locks.first_held(byte, 1)?.is_none())
    }

    /// Closes the gate again, for closing or repairing.
    pub(crate) fn close_gate(&self, shown: &str, idle: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        close_gate(&self.locks, shown, idle)
    }

    pub(crate) fn open_gate(&self) -> Result<()> {
        self.locks.unlock(GATE, 1)
    }
}

fn close_gate(locks: &LockFile, shown: &str, idle: &mut dyn FnMut() -> Result<()>) -> Result<()> {
    let patience = Wait::from_timeout(Some(GATE_PATIENCE));
    loop {
        if locks.try_lock(GATE, 1, Kind::Exclusive)? {
            return Ok(());
        }
        if locks.first_held(0, 1)?.is_some() {
            return Err(Error::AlreadyOpen(format!(
                "{shown} is locked as a whole, by a program that shares it with nobody"
            )));
        }
        if !patience.pause(Duration::from_millis(1)) {
            return Err(Error::AlreadyOpen(format!(
                "{shown} has been in the middle of being opened or closed for {GATE_PATIENCE:?}"
            )));
        }
        idle()?;
    }
}
