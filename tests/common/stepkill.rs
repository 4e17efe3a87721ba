//! Kill at every instruction boundary: single-step an operation, and give every distinct image of the queue's files, as
//! kill -9 at that point would leave it, to a recovery that must succeed.
//!
//! Liveness in tailrace is a lock on the file itself, so in a copy of the files everybody is dead. A system call is one
//! step; a file write is also cut inside (see [`cuts`](super::cuts)). x86-64 only; elsewhere [`StepKill::run`] says that
//! it skips and returns an empty report.
//!
//! ```ignore
//! StepKill::new(&dir).operations(2).run(
//!     || Queue::open(&path),                               // in the tracee, at full speed
//!     |queue, i| queue.enqueue(&message(i)).unwrap(),      // in the tracee, stepped; helper threads must be inline
//!     |moment| check(&moment.dir.join("q"), moment.completed, moment.running),   // here; Err or panic = failure
//! ).assert_ok("enqueue");
//! ```

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::cuts::{FileWrite, cut_writes};
use super::dirs::{TestDir, unique};
use super::image::Image;
use super::live_files::LiveFiles;
pub use super::stepkill_report::{Failure, Report};
use super::tracee::{self, Instruction, Stop, Tracee};

/// After so many failures the rest says nothing new.
const ENOUGH_FAILURES: usize = 20;

/// One image to recover.
pub struct Moment<'a> {
    /// A fresh copy of the queue's directory; recovery may change it.
    pub dir: PathBuf,
    /// Operations that have returned: what they promised must hold.
    pub completed: usize,
    /// True inside operation number `completed`: it may or may not have happened.
    pub running: bool,
    /// Instructions executed so far.
    pub step: u64,
    /// What changed to make this image.
    pub change: &'a str,
    /// The image as bytes.
    pub image: &'a Image,
}

/// The driver.
pub struct StepKill {
    dir: PathBuf,
    scratch: PathBuf,
    operations: usize,
    every_iteration: bool,
}

/// Where [`StepKill::kill_at`] killed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Killed {
    pub completed: usize,
    /// False when every operation had returned before the kill.
    pub running: bool,
    pub steps: u64,
}

impl StepKill {
    /// The image is every file in `dir.queue()`.
    pub fn new(dir: &TestDir) -> Self {
        Self::over(&dir.queue(), &dir.scratch())
    }

    /// The image is every file in `queue`; copies are made in `scratch`. For step-killing a recovery inside a recovery.
    pub fn over(queue: &Path, scratch: &Path) -> Self {
        Self {
            dir: queue.to_owned(),
            scratch: scratch.to_owned(),
            operations: 1,
            every_iteration: false,
        }
    }

    /// Calls the operation this many times, with numbers from 0.
    #[must_use]
    pub fn operations(mut self, count: usize) -> Self {
        self.operations = count;
        self
    }

    /// Recovers after each iteration of a `rep movs` too; else after 1, 2, 4, 8, ... of them and at the end.
    #[must_use]
    pub fn every_iteration(mut self) -> Self {
        self.every_iteration = true;
        self
    }

    fn start<S>(&self, setup: impl FnOnce() -> S, mut operation: impl FnMut(&mut S, usize)) -> Tracee {
        Tracee::start(&self.scratch, || {
            let mut state = setup();
            for number in 0..self.operations {
                tracee::mark();
                operation(&mut state, number);
            }
            tracee::mark();
            // No destructors: what they would do is an operation of its own.
            super::process::exit_now(0);
        })
    }

    /// Steps through the operations; `recover` sees the image before the first, every distinct image inside each, and
    /// the image after each return.
    pub fn run<S>(
        &self,
        setup: impl FnOnce() -> S,
        operation: impl FnMut(&mut S, usize),
        recover: impl FnMut(&Moment<'_>) -> Result<(), String>,
    ) -> Report {
        if !tracee::SUPPORTED {
            super::announce("SKIPPED: step-kill needs x86-64");
            return Report::default();
        }
        let mut tracee = self.start(setup, operation);
        let files = LiveFiles::new(&self.dir);
        let mut walk = Walk {
            driver: self,
            files,
            recover,
            report: Report::default(),
            seen: HashSet::new(),
            recovering: Duration::ZERO,
        };
        let begun = Instant::now();
        walk.present(0, false, "before the first operation", 0);
        for number in 0..self.operations {
            if !walk.through_operation(&mut tracee, number) || walk.report.failures.len() >= ENOUGH_FAILURES {
                break;
            }
        }
        walk.report.finish(begun.elapsed(), walk.recovering);
        walk.report
    }

    /// Really kills -9 after `steps` instructions, while peers live on the same files. Counted from the first operation.
    pub fn kill_at<S>(&self, steps: u64, setup: impl FnOnce() -> S, operation: impl FnMut(&mut S, usize)) -> Killed {
        if !tracee::SUPPORTED {
            panic!("step-kill needs x86-64: ask tracee::SUPPORTED first");
        }
        let mut tracee = self.start(setup, operation);
        let mut killed = Killed {
            completed: 0,
            running: true,
            steps: 0,
        };
        while killed.steps < steps && killed.running {
            match tracee.step() {
                Stop::Step => killed.steps += 1,
                Stop::Mark => {
                    killed.completed += 1;
                    killed.running = killed.completed < self.operations;
                }
                Stop::Ended(how) => panic!("the operation ended its process with {how:?}\n{}", tracee.stderr()),
            }
        }
        tracee.kill();
        killed
    }
}

/// One run in progress.
struct Walk<'a, R> {
    driver: &'a StepKill,
    files: LiveFiles,
    recover: R,
    report: Report,
    /// Images already recovered under the same claim.
    seen: HashSet<(u64, usize, bool)>,
    recovering: Duration,
}

impl<R: FnMut(&Moment<'_>) -> Result<(), String>> Walk<'_, R> {
    /// False when the tracee died.
    fn through_operation(&mut self, tracee: &mut Tracee, number: usize) -> bool {
        let mut iterations = 0_u64;
        loop {
            let address = tracee.address();
            let instruction = tracee.instruction_at(address);
            let before = (instruction == Instruction::SystemCall && is_write(tracee.system_call_number()))
                .then(|| self.files.image.clone());
            match tracee.step() {
                Stop::Step => self.report.instructions += 1,
                Stop::Mark => {
                    let change = self.files.look_at_names();
                    self.present(
                        number + 1,
                        false,
                        change.as_deref().unwrap_or("the operation returned"),
                        address,
                    );
                    return true;
                }
                Stop::Ended(how) => {
                    let text = format!("operation {number} ended its process with {how:?}\n{}", tracee.stderr());
                    self.fail(number, true, "end of the process", address, text);
                    return false;
                }
            }
            if instruction == Instruction::Repeated && tracee.address() == address {
                iterations += 1;
                if !iterations.is_power_of_two() && !self.driver.every_iteration {
                    self.report.iterations_passed_over += 1;
                    continue;
                }
            } else {
                iterations = 0;
            }
            let change = if instruction == Instruction::SystemCall {
                self.files.look_at_names()
            } else {
                self.files.look_at_bytes()
            };
            let Some(change) = change else { continue };
            if let Some(write) = before
                .as_ref()
                .and_then(|before| FileWrite::between(before, &self.files.image))
            {
                self.cut(&before.expect("write has a before"), &write, number, address);
            }
            self.present(number, true, &change, address);
            if self.report.failures.len() >= ENOUGH_FAILURES {
                return true;
            }
        }
    }

    fn cut(&mut self, before: &Image, write: &FileWrite, number: usize, address: u64) {
        for (length, image) in cut_writes(before, write) {
            let change = format!(
                "{} cut: {length} of {} bytes written at {}",
                write.file.display(),
                write.bytes.len(),
                write.offset
            );
            self.report.cut_images += 1;
            self.recover_image(&image, number, true, &change, address);
        }
    }

    /// Recovers the current image unless it was seen under the same claim.
    fn present(&mut self, completed: usize, running: bool, change: &str, address: u64) {
        let fingerprint = self.files.image.fingerprint();
        self.report.note(fingerprint, change);
        if self.seen.insert((fingerprint, completed, running)) {
            let image = std::mem::take(&mut self.files.image);
            self.recover_image(&image, completed, running, change, address);
            self.files.image = image;
        }
    }

    fn recover_image(&mut self, image: &Image, completed: usize, running: bool, change: &str, address: u64) {
        let begun = Instant::now();
        let dir = self.driver.scratch.join(unique("image"));
        image.write(&dir);
        let moment = Moment {
            dir,
            completed,
            running,
            step: self.report.instructions,
            change,
            image,
        };
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (self.recover)(&moment)));
        self.report.recovered += 1;
        let text = match result {
            Ok(Ok(())) => None,
            Ok(Err(text)) => Some(text),
            Err(panic) => Some(panic_text(panic.as_ref())),
        };
        std::fs::remove_dir_all(&moment.dir).expect("remove image");
        self.recovering += begun.elapsed();
        if let Some(text) = text {
            self.fail(completed, running, change, address, text);
        }
    }

    fn fail(&mut self, completed: usize, running: bool, change: &str, address: u64, text: String) {
        let step = self.report.instructions;
        self.report.failures.push(Failure {
            completed,
            running,
            step,
            address,
            change: change.to_owned(),
            text,
        });
    }
}

/// The system calls that put bytes into a file, which a death can cut short.
fn is_write(number: i64) -> bool {
    const WRITES: [i64; 6] = [
        libc::SYS_write,
        libc::SYS_pwrite64,
        libc::SYS_writev,
        libc::SYS_pwritev,
        libc::SYS_pwritev2,
        libc::SYS_copy_file_range,
    ];
    WRITES.contains(&number)
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied());
    format!("recovery panicked: {}", text.unwrap_or("(no text)"))
}
