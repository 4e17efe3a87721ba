//! The files of a queue while a stopped tracee has them open: mapped here too, so that a change costs one memory compare.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::image::{FileImage, Image, walk};
use super::mapped::Mapped;

/// Compared piece by piece, so that one changed word does not copy a whole file.
const PIECE: usize = 4096;

struct LiveFile {
    inode: u64,
    map: Mapped,
}

/// The live directory and its image as of the last look.
pub struct LiveFiles {
    dir: PathBuf,
    open: BTreeMap<PathBuf, LiveFile>,
    pub image: Image,
}

impl LiveFiles {
    pub fn new(dir: &Path) -> Self {
        let mut files = Self {
            dir: dir.to_owned(),
            open: BTreeMap::new(),
            image: Image::default(),
        };
        files.look_at_names();
        files
    }

    /// After an ordinary instruction: only mapped bytes can have changed. Says what did.
    pub fn look_at_bytes(&mut self) -> Option<String> {
        let mut change = None;
        for (name, live) in &self.open {
            let (new, old) = (
                live.map.quiescent_bytes(),
                &mut self.image.files.get_mut(name).expect("known file").bytes,
            );
            if new == old.as_slice() {
                continue;
            }
            for (start, (new, old)) in (0..).step_by(PIECE).zip(new.chunks(PIECE).zip(old.chunks_mut(PIECE))) {
                if let Some(first) = (0..new.len()).find(|at| new[*at] != old[*at]) {
                    let last = (first..new.len())
                        .rev()
                        .find(|at| new[*at] != old[*at])
                        .unwrap_or(first);
                    let range = start + first..start + last + 1;
                    change.get_or_insert_with(|| {
                        format!(
                            "{} bytes {range:?} {:02x?} -> {:02x?}",
                            name.display(),
                            &old[first..=last.min(first + 31)],
                            &new[first..=last.min(first + 31)]
                        )
                    });
                    old.copy_from_slice(new);
                }
            }
        }
        change
    }

    /// After a system call: files may have come, gone, been renamed, grown or shrunk as well. Says what changed.
    pub fn look_at_names(&mut self) -> Option<String> {
        let mut seen = Image::default();
        let mut found = Vec::new();
        walk(&self.dir, &mut |name, metadata| {
            if metadata.is_dir() {
                seen.dirs.insert(name.to_owned());
            } else {
                found.push((
                    name.to_owned(),
                    metadata.ino(),
                    metadata.len(),
                    metadata.mode() & 0o7777,
                ));
            }
        });
        let mut changes = Vec::new();
        let gone: Vec<PathBuf> = self
            .open
            .keys()
            .filter(|name| !found.iter().any(|(other, ..)| other == *name))
            .cloned()
            .collect();
        for name in gone {
            self.open.remove(&name);
            self.image.files.remove(&name);
            changes.push(format!("{} removed", name.display()));
        }
        for (name, inode, len, mode) in found {
            if self
                .open
                .get(&name)
                .is_none_or(|live| live.inode != inode || live.map.len() as u64 != len)
            {
                let map = Mapped::read_only(&File::open(self.dir.join(&name)).expect("open live file"))
                    .expect("map live file");
                let bytes = map.quiescent_bytes().to_vec();
                changes.push(format!("{} appeared or changed size, {len} bytes", name.display()));
                self.open.insert(name.clone(), LiveFile { inode, map });
                self.image.files.insert(name, FileImage { bytes, mode });
            } else if let Some(known) = self.image.files.get_mut(&name).filter(|known| known.mode != mode) {
                changes.push(format!("{} mode {mode:o}", name.display()));
                known.mode = mode;
            }
        }
        if seen.dirs != self.image.dirs {
            changes.push(format!("directories {:?}", seen.dirs));
            self.image.dirs = seen.dirs;
        }
        changes.extend(self.look_at_bytes());
        (!changes.is_empty()).then(|| changes.join("; "))
    }
}
