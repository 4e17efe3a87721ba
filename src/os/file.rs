//! Files that are safe to map: created invisibly, allocated in full, opened with suspicion.
//!
//! - A file becomes visible only when it is complete: it is written without a name and linked at the end, so that nobody ever
//!   opens a half-made queue and a killed creator leaves nothing behind.
//! - Space is allocated, never sparse: a store into a hole on a full disk would be a SIGBUS.
//! - An opened file must be a regular file of ours with one name: planted links and other users' files are refused.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, MemfdFlags, Mode, OFlags, RenameFlags, SealFlags, Stat, fchmod, fstat,
    ftruncate,
};
use rustix::io::Errno;

use crate::{Error, Result};

const PRIVATE: Mode = Mode::RUSR.union(Mode::WUSR);

/// A complete but nameless file that [`Unlinked::publish`] makes visible.
#[derive(Debug)]
pub struct Unlinked {
    file: OwnedFd,
    path: PathBuf,
    /// Where the file system has no nameless files: its name until it is published.
    temporary: Option<PathBuf>,
}

impl Unlinked {
    /// Creates the file in the directory of `path`, all `length` bytes allocated and zero, for its owner only.
    pub fn create(path: &Path, length: u64) -> Result<Self> {
        Unlinked::create_growing(path, length, length)
    }

    /// As [`Unlinked::create`], with space for only the first `allocated` bytes: nobody stores behind them before
    /// [`allocate_range`] has given those bytes their space, too.
    pub fn create_growing(path: &Path, length: u64, allocated: u64) -> Result<Self> {
        let doing = || format!("creating {}", path.display());
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let (file, temporary) = match rustix::fs::open(directory_of(path), flags | OFlags::TMPFILE, PRIVATE) {
            Ok(file) => (file, None),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
                let name = temporary_name(path);
                let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
                let file = rustix::fs::open(&name, flags, PRIVATE).map_err(|e| Error::io(doing(), e))?;
                (file, Some(name))
            }
            Err(e) => return Err(Error::io(doing(), e)),
        };
        let unlinked = Unlinked {
            file,
            path: path.to_owned(),
            temporary,
        };
        fchmod(&unlinked.file, PRIVATE).map_err(|e| Error::io(doing(), e))?;
        allocate(&unlinked.file, allocated)
            .map_err(|e| Error::io(format!("allocating {allocated} bytes for {}", path.display()), e))?;
        if length > allocated {
            ftruncate(&unlinked.file, length).map_err(|e| Error::io(doing(), e))?;
        }
        Ok(unlinked)
    }

    /// The name that it will have.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the finished file visible under its name, durably; [`Error::Exists`] when the name is taken.
    pub fn publish(self) -> Result<()> {
        sync_all(&self.file).map_err(|e| Error::io(format!("syncing {}", self.path.display()), e))?;
        let path = self.path.clone();
        self.publish_unsynced()?;
        sync_directory(directory_of(&path))
    }

    /// Makes the finished file visible under its name. A power cut may take it away again, or what is in it.
    pub fn publish_unsynced(mut self) -> Result<()> {
        let shown = self.path.display();
        let linked = match &self.temporary {
            None => {
                let source = descriptor_path(self.file.as_fd());
                rustix::fs::linkat(CWD, source, CWD, &self.path, AtFlags::SYMLINK_FOLLOW)
            }
            Some(name) => rustix::fs::renameat_with(CWD, name, CWD, &self.path, RenameFlags::NOREPLACE),
        };
        match linked {
            Ok(()) => self.temporary = None,
            Err(Errno::EXIST) => return Err(Error::Exists(shown.to_string())),
            Err(e) => return Err(Error::io(format!("creating {shown}"), e)),
        }
        Ok(())
    }
}

impl AsFd for Unlinked {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Unlinked {
    fn drop(&mut self) {
        if let Some(name) = &self.temporary {
            let _ = rustix::fs::unlink(name);
        }
    }
}

/// Opens a file for mapping, after checking that it is a regular file of this user with a single name.
pub fn open(path: &Path) -> Result<OwnedFd> {
    open_for(path, OFlags::RDWR)
}

/// As [`open`], only to be read: also from a read-only file system.
pub fn open_to_read(path: &Path) -> Result<OwnedFd> {
    open_for(path, OFlags::RDONLY)
}

fn open_for(path: &Path, access: OFlags) -> Result<OwnedFd> {
    let shown = path.display();
    let flags = access | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Err(Error::no_file(path)),
        Err(Errno::LOOP) => {
            return Err(Error::Format(format!(
                "{shown} is a symbolic link; queues are opened by their own name"
            )));
        }
        Err(Errno::ISDIR) => return Err(Error::Format(format!("{shown} is a directory, not a queue file"))),
        Err(e) => return Err(Error::io(format!("opening {shown}"), e)),
    };
    let stat = fstat(&file).map_err(|e| Error::io(format!("opening {shown}"), e))?;
    check_ours(path, &stat)?;
    Ok(file)
}

fn check_ours(path: &Path, stat: &Stat) -> Result<()> {
    let shown = path.display();
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Error::Format(format!("{shown} is not a regular file")));
    }
    let user = rustix::process::geteuid().as_raw();
    if stat.st_uid != user {
        let denied = io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("the file belongs to user {}, not to {user}", stat.st_uid),
        );
        return Err(Error::io(format!("opening {shown}"), denied));
    }
    if stat.st_nlink > 1 {
        return Err(Error::Format(format!(
            "{shown} has {} names; a queue file has one",
            stat.st_nlink
        )));
    }
    Ok(())
}

/// A new description of the same file, independent of its name.
pub fn reopen(file: BorrowedFd<'_>) -> Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    rustix::fs::open(descriptor_path(file), flags, Mode::empty())
        .map_err(|e| Error::io("opening a queue file again through /proc/self/fd", e))
}

/// Memory with a descriptor and no name, sealed so that nobody can shrink it under a mapping.
pub fn anonymous(length: u64) -> Result<OwnedFd> {
    let doing = || format!("creating an anonymous queue of {length} bytes");
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("tailrace", flags).map_err(|e| Error::io(doing(), e))?;
    allocate(&file, length).map_err(|e| Error::io(doing(), e))?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).map_err(|e| Error::io(doing(), e))?;
    Ok(file)
}

/// Gives every byte up to `length` its space on disk, reading as zero.
pub fn allocate(file: impl AsFd, length: u64) -> io::Result<()> {
    match rustix::fs::fallocate(file.as_fd(), FallocateFlags::empty(), 0, length) {
        Ok(()) => Ok(()),
        // Writing zeros is what posix_fallocate does there, too.
        Err(Errno::OPNOTSUPP) => {
            let zeros = [0u8; 1 << 16];
            let mut at = fstat(file.as_fd())?.st_size as u64;
            while at < length {
                let part = zeros.len().min((length - at) as usize);
                at += rustix::io::pwrite(file.as_fd(), &zeros[..part], at)? as u64;
            }
            Ok(())
        }
        Err(e) => {
            // Part of the space may have been taken before the error.
            let _ = ftruncate(file.as_fd(), 0);
            Err(e.into())
        }
    }
}

/// Gives a range inside the file its space on disk; what was stored there before stays, holes read as zero.
pub fn allocate_range(file: impl AsFd, offset: u64, length: u64) -> io::Result<()> {
    match rustix::fs::fallocate(file.as_fd(), FallocateFlags::empty(), offset, length) {
        Ok(()) => Ok(()),
        // Such a file system has to have room when the bytes are first stored; there is no way to ask it before.
        Err(Errno::OPNOTSUPP) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// The length of the file in bytes.
pub fn length(file: impl AsFd) -> io::Result<u64> {
    Ok(fstat(file)?.st_size as u64)
}

/// Waits until data and size are on the disk.
pub fn sync_data(file: impl AsFd) -> io::Result<()> {
    Ok(rustix::fs::fdatasync(file)?)
}

/// Has the disk begin to write a range, and does not wait for it: a later sync has less left to do. A file system that cannot
/// do so loses nothing.
#[allow(unsafe_code)]
pub fn begin_to_write(file: impl AsFd, start: u64, length: u64) {
    let (Ok(start), Ok(length)) = (start.try_into(), length.try_into()) else {
        return;
    };
    let descriptor = file.as_fd().as_raw_fd();
    // SAFETY: a system call on an open descriptor that touches no memory of ours.
    unsafe { libc::sync_file_range(descriptor, start, length, libc::SYNC_FILE_RANGE_WRITE) };
}

/// Waits until data and all metadata are on the disk.
pub fn sync_all(file: impl AsFd) -> io::Result<()> {
    Ok(rustix::fs::fsync(file)?)
}

/// Waits until everything on the file's file system is on the disk.
pub fn sync_file_system(file: impl AsFd) -> io::Result<()> {
    Ok(rustix::fs::syncfs(file)?)
}

/// Waits until created, renamed and removed names in a directory are on the disk.
pub fn sync_directory(directory: &Path) -> Result<()> {
    let doing = || format!("syncing the directory {}", directory.display());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let handle = rustix::fs::open(directory, flags, Mode::empty()).map_err(|e| Error::io(doing(), e))?;
    sync_all(&handle).map_err(|e| Error::io(doing(), e))
}

/// Whether two stats of a file, one by descriptor and one by name, are of the same file; false when the name is gone.
pub fn is_still_named(file: impl AsFd, path: &Path) -> Result<bool> {
    let doing = || format!("looking at {}", path.display());
    let held = fstat(file).map_err(|e| Error::io(doing(), e))?;
    match rustix::fs::lstat(path) {
        Ok(named) => Ok((held.st_dev, held.st_ino) == (named.st_dev, named.st_ino)),
        Err(Errno::NOENT) => Ok(false),
        Err(e) => Err(Error::io(doing(), e)),
    }
}

/// Whether the file system notes the time of every write, also of one through a mapping: those in memory do not.
pub fn keeps_times(file: impl AsFd) -> io::Result<bool> {
    let kind = rustix::fs::fstatfs(file)?.f_type as u64 & 0xFFFF_FFFF;
    Ok(!matches!(kind, 0x0102_1994 | 0x8584_58F6))
}

/// Exchanges two names of one directory in a single step.
pub fn exchange(one: &Path, other: &Path) -> Result<()> {
    rustix::fs::renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)
        .map_err(|e| Error::io(format!("exchanging {} and {}", one.display(), other.display()), e))
}

/// The name of the file system of a directory when other hosts may change its files: a mapping is not coherent there.
pub fn network_filesystem(directory: &Path) -> Result<Option<&'static str>> {
    let stat = rustix::fs::statfs(directory)
        .map_err(|e| Error::io(format!("asking for the file system of {}", directory.display()), e))?;
    Ok(network_kind(stat.f_type as u64))
}

/// The network file system that has this magic number.
fn network_kind(magic: u64) -> Option<&'static str> {
    match magic & 0xFFFF_FFFF {
        0x6969 => Some("NFS"),
        0x517B | 0xFF53_4D42 | 0xFE53_4D42 => Some("CIFS"),
        0x6573_5546 => Some("FUSE"),
        0x0102_1997 => Some("9P"),
        0x00C3_6400 => Some("Ceph"),
        0x5346_414F | 0x6B41_4653 => Some("AFS"),
        _ => None,
    }
}

/// The directory that holds `path`.
pub fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// A name that people may give to a queue inside a directory: no `/`, no NUL, no leading dot, 1 to 200 bytes.
pub fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > 200 {
        return Err(Error::Invalid(format!(
            "a name has 1 to 200 bytes, {name:?} has {}",
            name.len()
        )));
    }
    if name.starts_with('.') || name.bytes().any(|b| b == b'/' || b == 0) {
        return Err(Error::Invalid(format!(
            "the name {name:?} starts with a dot or holds '/' or NUL"
        )));
    }
    Ok(())
}

/// This user's own directory for queues in memory, `/dev/shm/tailrace-UID`, made with mode 0700 where it is missing.
pub fn default_directory() -> Result<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let path = PathBuf::from(format!("/dev/shm/tailrace-{user}"));
    let doing = || format!("using the directory {}", path.display());
    match rustix::fs::mkdir(&path, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(e) => return Err(Error::io(doing(), e)),
    }
    let stat = rustix::fs::lstat(&path).map_err(|e| Error::io(doing(), e))?;
    let private = stat.st_mode & 0o077 == 0;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory || stat.st_uid != user || !private {
        let planted = io::Error::new(
            io::ErrorKind::PermissionDenied,
            "it is not a directory that only this user can enter",
        );
        return Err(Error::io(doing(), planted));
    }
    Ok(path)
}

fn descriptor_path(file: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

fn temporary_name(path: &Path) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let mut name = OsString::from(".tmp.");
    name.push(path.file_name().unwrap_or(std::ffi::OsStr::from_bytes(b"queue")));
    // The time, because a killed process leaves its file behind and its number to somebody else.
    let now = super::clock::Clock::boottime().now();
    name.push(format!(".{}.{count}.{now:x}", std::process::id()));
    directory_of(path).join(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_known_by_their_numbers() {
        let network = [
            (0x6969, "NFS"),
            (0x517B, "CIFS"),
            (0xFF53_4D42, "CIFS"),
            (0xFE53_4D42, "CIFS"),
            (0x6573_5546, "FUSE"),
            (0x0102_1997, "9P"),
            (0x00C3_6400, "Ceph"),
            (0x5346_414F, "AFS"),
        ];
        for (magic, kind) in network {
            assert_eq!(network_kind(magic), Some(kind), "{magic:#x}");
            // As a signed 32-bit number that was widened.
            assert_eq!(network_kind(magic | 0xFFFF_FFFF_0000_0000), Some(kind), "{magic:#x}");
        }
        for (magic, name) in [
            (0xEF53, "ext4"),
            (0x5846_5342, "xfs"),
            (0x9123_683E, "btrfs"),
            (0x0102_1994, "tmpfs"),
            (0x794C_7630, "overlayfs"),
            (0xF2F5_2010, "f2fs"),
        ] {
            assert_eq!(network_kind(magic), None, "{name}");
        }
        assert_eq!(network_filesystem(Path::new("/dev/shm")).unwrap(), None);
        assert!(!keeps_times(std::fs::File::open("/dev/shm").unwrap()).unwrap());
    }
}
