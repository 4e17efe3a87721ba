//! Queue disk in a model that loom explores: texts by place. Stands in for `disk.rs` under `--cfg loom`.
//!
//! The kernel orders reads and writes of one file for everybody, so the texts themselves need no model; what is explored is
//! when each is read and written.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use super::parameters::FileParameters;
use super::users::Mode;
use crate::{Error, Result};

type Texts = HashMap<(usize, u32), Vec<u8>>;

/// The open queue disk of one queue file.
#[derive(Debug)]
pub(super) struct QueueDisk {
    path: PathBuf,
}

impl QueueDisk {
    pub(super) fn create(path: &Path, _parameters: &FileParameters) -> Result<()> {
        disks().insert(path.to_owned(), Texts::new());
        Ok(())
    }

    pub(super) fn open(path: &Path, _parameters: &FileParameters, _mode: Option<Mode>) -> Result<Self> {
        if disks().contains_key(path) {
            return Ok(QueueDisk { path: path.to_owned() });
        }
        Err(Error::NotFound(format!("there is no queue disk {}", path.display())))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn descriptors(&self) -> usize {
        1
    }

    pub(super) fn write(&self, member: usize, slot: u32, text: &[u8]) -> Result<()> {
        let mut disks = disks();
        // As with a file: who has it open can write to it even when it has no name any more.
        let texts = disks.entry(self.path.clone()).or_default();
        texts.insert((member, slot), text.to_vec());
        Ok(())
    }

    pub(super) fn read(&self, member: usize, slot: u32, size: usize, out: &mut Vec<u8>) -> Result<()> {
        let disks = disks();
        let text = disks.get(&self.path).and_then(|texts| texts.get(&(member, slot)));
        match text {
            Some(text) if text.len() == size => {
                out.extend_from_slice(text);
                Ok(())
            }
            other => Err(Error::Corrupt(format!(
                "{size} bytes are expected in place {slot} of the queue disk, there is {other:?}"
            ))),
        }
    }
}

/// The space is returned.
pub(super) fn remove(path: &Path) {
    disks().remove(path);
}

/// How many queue disks of a system there are.
pub(super) fn count(system: &str) -> usize {
    let of_system = |path: &&PathBuf| path.to_str().is_some_and(|path| path.contains(system));
    disks().keys().filter(of_system).count()
}

/// Forgets what a model that has ended left behind.
pub(super) fn forget(system: &str) {
    disks().retain(|path, _| !path.to_str().is_some_and(|path| path.contains(system)));
}

fn disks() -> MutexGuard<'static, HashMap<PathBuf, Texts>> {
    static DISKS: OnceLock<Mutex<HashMap<PathBuf, Texts>>> = OnceLock::new();
    let disks = DISKS.get_or_init(Mutex::default);
    disks.lock().unwrap_or_else(PoisonError::into_inner)
}
