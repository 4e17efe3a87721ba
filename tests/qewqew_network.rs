//! File systems that other hosts may write to are refused without `network=True`. The smallest FUSE file system there can be
//! stands for all of them: a thread that answers what the kernel asks about an empty directory.

mod common;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use common::announce;
use common::dirs::TestDir;
use common::watchdog::Watchdog;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use tailrace::Error;
use tailrace::qewqew::{DurableQueue, Options};

/// A mounted, empty FUSE directory; gone when dropped.
struct Fuse {
    point: PathBuf,
    server: Option<std::thread::JoinHandle<()>>,
}

impl Fuse {
    fn mount(point: PathBuf) -> Result<Self, String> {
        fs::create_dir_all(&point).map_err(|e| e.to_string())?;
        let device = File::options()
            .read(true)
            .write(true)
            .open("/dev/fuse")
            .map_err(|e| format!("/dev/fuse: {e}"))?;
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(Some("nothing"), &point, Some("fuse"), flags, Some(options.as_str())).map_err(|e| e.to_string())?;
        let server = std::thread::spawn(move || serve(device));
        Ok(Fuse {
            point,
            server: Some(server),
        })
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        let _ = umount2(&self.point, MntFlags::MNT_DETACH);
        let _ = self.server.take().map(std::thread::JoinHandle::join);
    }
}

/// Answers until the file system is unmounted.
fn serve(mut device: File) {
    let mut request = vec![0; 1 << 17];
    loop {
        let length = match device.read(&mut request) {
            Ok(length) if length >= 40 => length,
            Err(e) if matches!(e.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::ENOENT)) => continue,
            _ => return,
        };
        let u32_at = |at: usize| u32::from_le_bytes(request[at..at + 4].try_into().unwrap());
        let body: Result<Vec<u8>, i32> = match (u32_at(4), length) {
            // FORGET, INTERRUPT and BATCH_FORGET want no answer.
            (2 | 36 | 42, _) => continue,
            // LOOKUP: nothing is there.
            (1, _) => Err(-libc::ENOENT),
            (3, _) => Ok(root_attributes()),
            (17, _) => Ok(vec![0; 80]),
            // INIT: version 7.31 with nothing special.
            (26, _) => Ok([7, 31, 0, 0, 0, 4096, 1]
                .iter()
                .flat_map(|n: &u32| n.to_le_bytes())
                .chain([0; 36])
                .collect()),
            _ => Err(-libc::ENOSYS),
        };
        let (error, body) = body.map_or_else(|error| (error, Vec::new()), |body| (0, body));
        let mut answer = (16 + body.len() as u32).to_le_bytes().to_vec();
        answer.extend_from_slice(&error.to_le_bytes());
        answer.extend_from_slice(&request[8..16]);
        answer.extend_from_slice(&body);
        // A request may have been interrupted meanwhile: then nobody wants the answer.
        let _ = device.write(&answer);
    }
}

fn root_attributes() -> Vec<u8> {
    let mut out = vec![0; 104];
    out[16..24].copy_from_slice(&1_u64.to_le_bytes());
    let mode = libc::S_IFDIR | 0o755;
    out[76..80].copy_from_slice(&mode.to_le_bytes());
    out[80..84].copy_from_slice(&2_u32.to_le_bytes());
    out
}

fn open(directory: &Path, network: bool) -> tailrace::Result<DurableQueue> {
    let options = Options {
        network,
        ..Options::default()
    };
    DurableQueue::open(&directory.join("q"), options)
}

#[test]
fn a_network_file_system_is_refused_unless_it_is_asked_for() {
    let _dog = Watchdog::start("FUSE", Duration::from_secs(60));
    if common::skip_without_root("mounting a FUSE file system") {
        return;
    }
    let dir = TestDir::shm();
    let fuse = match Fuse::mount(dir.scratch().join("mnt")) {
        Ok(fuse) => fuse,
        Err(why) => return announce(&format!("SKIPPED: no FUSE file system can be mounted: {why}")),
    };
    let refused = open(&fuse.point, false);
    assert!(
        matches!(&refused, Err(Error::Invalid(text)) if text.contains("FUSE") && text.contains("network=True")),
        "{refused:?}"
    );
    // Asked for, it is tried: this file system cannot create files, and says so itself.
    let tried = open(&fuse.point, true);
    assert!(matches!(&tried, Err(Error::Io { .. })), "{tried:?}");
    open(&dir.queue(), false).unwrap().close().unwrap();
}
