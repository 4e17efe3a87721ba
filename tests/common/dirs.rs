//! Temporary directories of a test: the queue's files in one, control files, journals and images in another.
//!
//! Kept apart because step-kill and corrupt images are "every file in the queue's directory".

use std::path::{Path, PathBuf};

/// Removed when dropped, unless `TAILRACE_KEEP=1`.
pub struct TestDir {
    root: tempfile::TempDir,
}

impl TestDir {
    /// On tmpfs: what the shared-memory queues use, and fast.
    pub fn shm() -> Self {
        Self::inside(Path::new("/dev/shm"))
    }

    /// On a disk filesystem, inside the build directory: what the durable queue uses.
    pub fn disk() -> Self {
        Self::inside(Path::new(env!("CARGO_TARGET_TMPDIR")))
    }

    /// Below a directory that somebody else removes: for a process that is about to be killed.
    pub fn inside(parent: &Path) -> Self {
        let mut root = tempfile::Builder::new()
            .prefix("tailrace-test-")
            .tempdir_in(parent)
            .expect("temporary directory");
        root.disable_cleanup(std::env::var_os("TAILRACE_KEEP").is_some());
        for name in ["queue", "scratch"] {
            std::fs::create_dir(root.path().join(name)).expect("subdirectory");
        }
        Self { root }
    }

    /// The directory for the queue's files and nothing else.
    pub fn queue(&self) -> PathBuf {
        self.root.path().join("queue")
    }

    /// The directory for journals, control files and images.
    pub fn scratch(&self) -> PathBuf {
        self.root.path().join("scratch")
    }
}

/// A name never used before in this process or another test process.
pub fn unique(prefix: &str) -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!(
        "{prefix}-{}-{}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    )
}
