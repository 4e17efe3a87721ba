//! Every file of a queue's directory as bytes: read it, write it, make a directory be exactly this again.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// One file.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub struct FileImage {
    pub bytes: Vec<u8>,
    pub mode: u32,
}

/// A directory tree: names relative to it, sizes, bytes, permissions. No locks: in a copy, everybody is dead.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub struct Image {
    pub dirs: BTreeSet<PathBuf>,
    pub files: BTreeMap<PathBuf, FileImage>,
}

impl Image {
    pub fn read(dir: &Path) -> Self {
        let mut image = Self::default();
        walk(dir, &mut |relative, metadata| {
            if metadata.is_dir() {
                image.dirs.insert(relative.to_owned());
            } else {
                let bytes = std::fs::read(dir.join(relative)).expect("read file of image");
                image.files.insert(
                    relative.to_owned(),
                    FileImage {
                        bytes,
                        mode: metadata.mode() & 0o7777,
                    },
                );
            }
        });
        image
    }

    /// Writes the image into a directory that does not exist or is empty.
    pub fn write(&self, dir: &Path) {
        std::fs::create_dir_all(dir).expect("image directory");
        for name in &self.dirs {
            std::fs::create_dir_all(dir.join(name)).expect("image subdirectory");
        }
        for (name, file) in &self.files {
            write_file(&dir.join(name), file);
        }
    }

    /// Makes `dir` exactly this image, whatever was in it. Rewrites in place where it can: that is what makes it fast.
    pub fn restore(&self, dir: &Path) {
        let mut surplus = Vec::new();
        walk(dir, &mut |relative, metadata| {
            let known = if metadata.is_dir() {
                self.dirs.contains(relative)
            } else {
                self.files.contains_key(relative)
            };
            if !known || (!metadata.is_dir() && metadata.nlink() != 1) {
                surplus.push((dir.join(relative), metadata.is_dir()));
            }
        });
        for (path, is_dir) in surplus.into_iter().rev() {
            if is_dir {
                std::fs::remove_dir(&path)
            } else {
                std::fs::remove_file(&path)
            }
            .expect("remove surplus");
        }
        self.write(dir);
    }

    /// The bytes of one file.
    pub fn bytes(&self, name: impl AsRef<Path>) -> &[u8] {
        let name = name.as_ref();
        &self
            .files
            .get(name)
            .unwrap_or_else(|| panic!("no {} in the image: {:?}", name.display(), self.files.keys()))
            .bytes
    }

    /// A copy with one file changed.
    #[must_use]
    pub fn with(&self, name: impl AsRef<Path>, change: impl FnOnce(&mut Vec<u8>)) -> Self {
        let mut copy = self.clone();
        change(&mut copy.files.get_mut(name.as_ref()).expect("file of the image").bytes);
        copy
    }

    pub fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }
}

/// Calls `visit` for every file and directory below `dir`, a directory before what is in it. A symlink is a test's plant
/// for `open`, not a part of an image.
pub fn walk(dir: &Path, visit: &mut dyn FnMut(&Path, &std::fs::Metadata)) {
    fn descend(root: &Path, below: &Path, visit: &mut dyn FnMut(&Path, &std::fs::Metadata)) {
        let Ok(entries) = std::fs::read_dir(root.join(below)) else {
            return;
        };
        for entry in entries.flatten() {
            // A file may go away between the listing and the look.
            let Ok(metadata) = entry.metadata() else { continue };
            let relative = below.join(entry.file_name());
            if metadata.is_dir() {
                visit(&relative, &metadata);
                descend(root, &relative, visit);
            } else if metadata.is_file() {
                visit(&relative, &metadata);
            }
        }
    }
    descend(dir, Path::new(""), visit);
}

fn write_file(path: &Path, file: &FileImage) {
    use std::io::Write as _;
    let mut options = std::fs::OpenOptions::new();
    let mut target = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(file.mode)
        .open(path)
        .unwrap_or_else(|e| panic!("write {}: {e}", path.display()));
    target.write_all(&file.bytes).expect("write image file");
}
