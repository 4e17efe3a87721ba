//! A process that dies after so many steps on the disk, and what it had done until then.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use tailrace::qewqew::{Observer, Step};

use crate::common::process;

/// In the place of a step.
pub(crate) const ACKNOWLEDGED: u8 = 0;
pub(crate) const STEPS: [Step; 5] = [
    Step::Stored,
    Step::Synced,
    Step::Linked,
    Step::Unlinked,
    Step::DirectorySynced,
];

/// Takes down the steps of a process that dies with the last of them.
pub(crate) struct Mortal {
    pub(crate) log: PathBuf,
    pub(crate) left: AtomicUsize,
}

impl Mortal {
    pub(crate) fn note(&self, kind: u8, path: &Path) {
        let left = self.left.load(Ordering::Relaxed);
        let live = std::fs::read(path).unwrap_or_default();
        let name = path.to_str().unwrap();
        let record = [&[kind, name.len() as u8], name.as_bytes(), &live].concat();
        std::fs::write(self.log.join(format!("{:09}", 999_999 - left)), record).unwrap();
        self.left.store(left - 1, Ordering::Relaxed);
        if left == 1 {
            process::exit_now(0);
        }
    }

    pub(crate) fn records(log: &Path) -> Vec<(u8, PathBuf, Vec<u8>)> {
        let mut names: Vec<PathBuf> = std::fs::read_dir(log)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        names.sort();
        let parsed = names.into_iter().map(|name| {
            let record = std::fs::read(name).unwrap();
            let (path, live) = record[2..].split_at(usize::from(record[1]));
            (
                record[0],
                PathBuf::from(std::str::from_utf8(path).unwrap()),
                live.to_vec(),
            )
        });
        parsed.collect()
    }
}

impl Observer for Mortal {
    fn step(&self, step: Step, path: &Path) {
        let kind = STEPS.iter().position(|known| *known == step).unwrap();
        self.note(1 + kind as u8, path);
    }
}
