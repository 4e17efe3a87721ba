//! An ext4 file system in a file, whose power can be cut (`EXT4_IOC_SHUTDOWN` without a flush of its journal). Needs root.
#![allow(unsafe_code)] // the ioctl has no safe face

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// `_IOR('X', 125, u32)`, and its flag "do not even write the journal".
const SHUTDOWN: libc::Ioctl = 0x8004_587d_u32 as libc::Ioctl;
static NO_LOG_FLUSH: u32 = 2;

/// A disk image.
pub(crate) struct LoopDisk {
    image: PathBuf,
    mount_point: PathBuf,
}

/// The file system of the image while it is mounted.
pub(crate) struct Mounted<'a> {
    disk: &'a LoopDisk,
    is_mounted: bool,
}

impl LoopDisk {
    /// A new ext4 of so many MiB; `None` where that cannot be made or mounted.
    pub(crate) fn create(scratch: &Path, mebibytes: u64) -> Option<Self> {
        let (image, mount_point) = (scratch.join("disk.img"), scratch.join("mnt"));
        File::create(&image).ok()?.set_len(mebibytes << 20).ok()?;
        std::fs::create_dir(&mount_point).ok()?;
        let made = run(Command::new("mkfs.ext4")
            .args(["-q", "-F", "-E", "lazy_itable_init=0"])
            .arg(&image));
        let disk = LoopDisk { image, mount_point };
        (made && disk.try_mount()).then_some(())?;
        disk.unmount();
        Some(disk)
    }

    fn try_mount(&self) -> bool {
        run(Command::new("mount")
            .args(["-o", "loop"])
            .arg(&self.image)
            .arg(&self.mount_point))
    }

    fn unmount(&self) -> bool {
        run(Command::new("umount").arg(&self.mount_point))
    }

    /// Mounts it, which replays its journal as after a reboot.
    pub(crate) fn mount(&self) -> Mounted<'_> {
        assert!(self.try_mount(), "mount {}", self.image.display());
        Mounted {
            disk: self,
            is_mounted: true,
        }
    }
}

impl Mounted<'_> {
    pub(crate) fn path(&self) -> &Path {
        &self.disk.mount_point
    }

    /// From here on nothing reaches the disk any more.
    pub(crate) fn cut_power(&self) {
        let root = File::open(self.path()).expect("open the mount point");
        // SAFETY: the ioctl reads one u32 through the pointer, which is valid for the call.
        let result = unsafe { libc::ioctl(root.as_raw_fd(), SHUTDOWN, &raw const NO_LOG_FLUSH) };
        assert_eq!(result, 0, "shutdown: {}", std::io::Error::last_os_error());
    }

    pub(crate) fn unmount(mut self) {
        self.is_mounted = false;
        // Whoever was killed a moment ago may still be on its way out.
        let done = super::common::wait_until(std::time::Duration::from_secs(10), || self.disk.unmount());
        assert!(done, "umount {}", self.path().display());
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        if self.is_mounted {
            self.disk.unmount();
        }
    }
}

fn run(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}
