//! The steps that change what is on the disk, each in one place, each visible to an [`Observer`].
//!
//! The order of these steps is the product (see the table in [`super`]). An observer is called after each of them, on the
//! thread that took it, and can look at the files: that is how a test knows every state that a power cut could leave.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::os::file::{self, Unlinked};
use crate::{Error, Result};

/// What has just been done to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Bytes changed; they may reach the disk at any time from now on, in any order.
    Stored,
    /// All bytes of the file are on the disk.
    Synced,
    /// The name appeared.
    Linked,
    /// The name disappeared.
    Unlinked,
    /// All names of the directory are on the disk as they are.
    DirectorySynced,
}

/// Sees each step, for simulations of power cuts.
pub trait Observer: Send + Sync {
    /// Called after the step.
    fn step(&self, step: Step, path: &Path);
}

/// The disk as one queue uses it.
#[derive(Clone)]
pub(crate) struct Disk {
    directory: PathBuf,
    observer: Option<Arc<dyn Observer>>,
}

impl Disk {
    pub(crate) fn new(head: &Path, observer: Option<Arc<dyn Observer>>) -> Self {
        Disk {
            directory: file::directory_of(head).to_owned(),
            observer,
        }
    }

    #[inline]
    pub(crate) fn note(&self, step: Step, path: &Path) {
        if let Some(observer) = &self.observer {
            observer.step(step, path);
        }
    }

    /// Waits until the bytes of the file are on the disk.
    pub(crate) fn sync(&self, file: &File, path: &Path) -> Result<()> {
        file::sync_data(file).map_err(|e| Error::io(format!("syncing {}", path.display()), e))?;
        self.note(Step::Synced, path);
        Ok(())
    }

    /// Waits until names that appeared or disappeared have done so on the disk.
    pub(crate) fn sync_directory(&self) -> Result<()> {
        file::sync_directory(&self.directory)?;
        self.note(Step::DirectorySynced, &self.directory);
        Ok(())
    }

    /// Gives complete files their names, one after the other; with `durable` they and their bytes stay through a power cut
    /// from here on. Together they cost little more than one: the file system notes all of them in one transaction.
    pub(crate) fn publish(&self, files: Vec<Unlinked>, durable: bool) -> Result<()> {
        if durable {
            for file in &files {
                file::sync_all(file).map_err(|e| Error::io(format!("syncing {}", file.path().display()), e))?;
            }
        }
        for file in files {
            let path = file.path().to_owned();
            file.publish_unsynced()?;
            self.note(Step::Linked, &path);
            if durable {
                self.note(Step::Synced, &path);
            }
        }
        if durable {
            self.sync_directory()?;
        }
        Ok(())
    }

    /// Puts a complete file, which gets a name of its own on the way, in the place of the one that has the name, in one step.
    pub(crate) fn replace(&self, unlinked: Unlinked, path: &Path, durable: bool) -> Result<()> {
        if durable {
            file::sync_all(&unlinked).map_err(|e| Error::io(format!("syncing {}", path.display()), e))?;
        }
        let fresh = unlinked.path().to_owned();
        unlinked.publish_unsynced()?;
        fs::rename(&fresh, path).map_err(|e| Error::io(format!("creating {}", path.display()), e))?;
        self.note(Step::Linked, path);
        if durable {
            self.note(Step::Synced, path);
            self.sync_directory()?;
        }
        Ok(())
    }

    /// Removes a name; one that is gone already is fine.
    pub(crate) fn unlink(&self, path: &Path) -> Result<()> {
        match fs::remove_file(path) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(Error::io(format!("removing {}", path.display()), e)),
        }
        self.note(Step::Unlinked, path);
        Ok(())
    }
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Disk")
            .field("directory", &self.directory)
            .finish_non_exhaustive()
    }
}
