//! Opening a queue system: one membership for each process and directory.
//!
//! Whoever joins removes what other boots left and acts for whoever died: after a crash of everything the next opener finds no
//! users, so no queues, and their disk is returned (behaviour 14).

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use super::disk;
use super::driver::Driver;
use super::geometry::{Geometry, SystemParameters};
use super::memory::Memory;
use super::system::System;
use crate::os::clock::{Clock, boot_id};
use crate::os::{file, fork};
use crate::shared::region::Region;
use crate::{Error, Result};

impl System {
    /// The system in `directory`, which is made where it is missing. `parameters` count only for its creator.
    pub fn open(directory: &Path, parameters: &SystemParameters) -> Result<Arc<System>> {
        make_directory(directory)?;
        let directory = directory
            .canonicalize()
            .map_err(|e| Error::io(format!("opening the queue system {}", directory.display()), e))?;
        if let Some(kind) = file::network_filesystem(&directory)? {
            return Err(Error::Invalid(format!(
                "{} is on {kind}: the processes of a queue system share memory, so it must be on a disk of this host",
                directory.display()
            )));
        }
        let known = with_registry(|registry| registry.get(&directory).and_then(Weak::upgrade));
        if let Some(system) = known.filter(|system| system.is_current()) {
            return Ok(system);
        }
        let system = Arc::new(System::join(&directory, parameters)?);
        system.sweep(None)?;
        with_registry(|registry| registry.insert(directory, Arc::downgrade(&system)));
        Ok(system)
    }

    /// The system in `directory` if there is one: looking at a place leaves nothing there.
    pub fn open_present(directory: &Path, parameters: &SystemParameters) -> Result<Option<Arc<System>>> {
        match system_file(directory, &boot_tag()?).symlink_metadata() {
            Ok(_) => System::open(directory, parameters).map(Some),
            Err(e)
                if matches!(
                    e.kind(),
                    std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
                ) =>
            {
                Ok(None)
            }
            Err(e) => Err(Error::io(
                format!("looking for a queue system in {}", directory.display()),
                e,
            )),
        }
    }

    /// The system of this user: `mcp` in the user's own directory for queues in memory.
    pub fn default_directory() -> Result<PathBuf> {
        Ok(file::default_directory()?.join("mcp"))
    }

    fn join(directory: &Path, parameters: &SystemParameters) -> Result<System> {
        let boot = boot_tag()?;
        remove_other_boots(directory, &boot);
        let stem = directory.join(format!("mcp-{boot}"));
        let path = system_file(directory, &boot);
        let geometry = Geometry::new(parameters)?;
        let (region, _) = Region::open_or_create(&path, geometry.length() as u64, |region| {
            let number = Clock::boottime().now() ^ u64::from(std::process::id()) << 40;
            Driver::format(region, &geometry, number);
            Ok(())
        })?;
        let driver = Driver::join(Arc::new(region), Memory::beside(stem))?;
        Ok(System {
            driver,
            directory: directory.to_owned(),
            boot,
        })
    }

    /// Whether the directory still holds the file that this is a mapping of.
    fn is_current(&self) -> bool {
        let path = system_file(&self.directory, &self.boot);
        let mapped = self.driver.region.descriptor();
        mapped.is_some_and(|mapped| file::is_still_named(mapped, &path).unwrap_or(false))
    }
}

/// What names the files of this boot.
fn boot_tag() -> Result<String> {
    Ok(boot_id()?[..4].iter().map(|byte| format!("{byte:02x}")).collect())
}

fn system_file(directory: &Path, boot: &str) -> PathBuf {
    directory.join(format!("mcp-{boot}.system"))
}

fn make_directory(directory: &Path) -> Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    match std::fs::DirBuilder::new().mode(0o700).create(directory) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(Error::io(format!("making the queue system {}", directory.display()), e)),
    }
}

/// Files of a boot that is over hold nothing that anybody could use.
fn remove_other_boots(directory: &Path, boot: &str) {
    let Ok(entries) = std::fs::read_dir(directory) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let tag = name
            .to_str()
            .and_then(|name| name.strip_prefix("mcp-")?.split_once('.'));
        let ours = |rest: &str| rest == "system" || rest.starts_with("memory.") || rest.ends_with(".disk");
        let stale = tag.is_some_and(|(tag, rest)| {
            tag.len() == 8 && tag.bytes().all(|b| b.is_ascii_hexdigit()) && tag != boot && ours(rest)
        });
        if stale {
            disk::remove(&entry.path());
        }
    }
}

type Registry = HashMap<PathBuf, Weak<System>>;

/// The systems that this process has open: all its queue files in one directory share a mapping and a membership.
fn with_registry<T>(look: impl FnOnce(&mut Registry) -> T) -> T {
    static SYSTEMS: OnceLock<Mutex<Registry>> = OnceLock::new();
    // A child that another thread forks finds the registry free.
    fork::undivided(|| {
        let systems = SYSTEMS.get_or_init(Mutex::default);
        look(&mut systems.lock().unwrap_or_else(PoisonError::into_inner))
    })
}
