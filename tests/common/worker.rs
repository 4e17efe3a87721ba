//! Real worker processes: the test binary executed again (or forked), with a role, arguments and a mapped control file.
//!
//! The handshake is a word in the control file, never a pipe: nothing here can block a worker that is about to be killed.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::dirs::{TestDir, unique};
use super::journal::{self, Journal, Record};
use super::mapped::Mapped;
use super::{process, wait_until};

const ROLE: &str = "TAILRACE_WORKER";
const ARGS: &str = "TAILRACE_WORKER_ARGS";
/// Between arguments: a byte that no path or number of a test contains.
const SEPARATOR: char = '\u{1f}';
const CONTROL_BYTES: usize = 4096;
const READY: usize = 0;
const GO: usize = 8;
const STOP: usize = 16;
/// Words 8.. of the control file belong to the test.
const USER: usize = 64;
const USER_WORDS: usize = 64;
/// A worker that nobody kills ends by itself.
const LIFETIME_SECONDS: u32 = 300;
const READY_LIMIT: Duration = Duration::from_secs(20);

/// How a worker ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    Code(i32),
    Killed(Signal),
}

/// What a worker was given, and its side of the handshake.
pub struct Args {
    values: BTreeMap<String, String>,
    control: Mapped,
    parent: Pid,
}

impl Args {
    fn new(values: BTreeMap<String, String>, parent: Pid) -> Self {
        let control = Mapped::open(Path::new(&values["control"]));
        Self {
            values,
            control,
            parent,
        }
    }

    /// The argument, parsed.
    pub fn get<T: FromStr>(&self, name: &str) -> T {
        let text = self.text(name);
        text.parse()
            .unwrap_or_else(|_| panic!("worker argument {name}={text:?} does not parse"))
    }

    pub fn text(&self, name: &str) -> &str {
        self.values
            .get(name)
            .unwrap_or_else(|| panic!("worker argument {name} is missing; given: {:?}", self.values))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        PathBuf::from(self.text(name))
    }

    /// This worker's journal; ask once. `Spawn::journal` made it.
    pub fn journal(&self) -> Journal {
        Journal::open(&self.path("journal"))
    }

    /// Tells the parent that set-up is over.
    pub fn ready(&self) {
        self.control.u64(READY).store(1, Ordering::Release);
    }

    /// Waits for [`Worker::go`]; false when asked to stop instead.
    pub fn wait_go(&self) -> bool {
        while self.control.u64(GO).load(Ordering::Acquire) == 0 {
            if self.stop_requested() {
                return false;
            }
            std::thread::yield_now();
        }
        true
    }

    /// True when the parent asked for the end, or is gone.
    pub fn stop_requested(&self) -> bool {
        self.control.u64(STOP).load(Ordering::Acquire) != 0 || nix::unistd::getppid() != self.parent
    }

    /// One of 64 words shared with the parent, free for the test (progress counters, latencies, results).
    pub fn word(&self, index: usize) -> &AtomicU64 {
        user_word(&self.control, index)
    }
}

/// A worker's name and body.
pub type Role<'a> = (&'a str, fn(&Args));

/// The body of each test file's `worker_main`: runs the role this process was started for, or returns at once.
pub fn dispatch(roles: &[Role<'_>]) {
    let Ok(role) = std::env::var(ROLE) else { return };
    let text = std::env::var(ARGS).expect("worker arguments");
    let values: BTreeMap<String, String> = text
        .split(SEPARATOR)
        .filter_map(|pair| pair.split_once('='))
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .collect();
    let (_, body) = roles
        .iter()
        .find(|(name, _)| *name == role)
        .unwrap_or_else(|| panic!("no worker role {role}"));
    let args = Args::new(values, nix::unistd::getppid());
    process::become_worker(args.get("lifetime"));
    body(&args);
    // Past libtest's reporting: a worker's end costs nothing. A panic has already taken the other way, exit code 101.
    process::exit_now(0);
}

/// A worker about to be started.
pub struct Spawn {
    scratch: PathBuf,
    role: String,
    values: BTreeMap<String, String>,
    journal_capacity: Option<usize>,
}

impl Spawn {
    pub fn new(dir: &TestDir, role: &str) -> Self {
        let values = BTreeMap::from([("lifetime".to_owned(), LIFETIME_SECONDS.to_string())]);
        Self {
            scratch: dir.scratch(),
            role: role.to_owned(),
            values,
            journal_capacity: None,
        }
    }

    #[must_use]
    pub fn arg(mut self, name: &str, value: impl Display) -> Self {
        let value = value.to_string();
        assert!(
            !value.contains(SEPARATOR) && !name.contains('='),
            "worker argument {name}={value:?}"
        );
        self.values.insert(name.to_owned(), value);
        self
    }

    /// Gives the worker a journal for this many calls.
    #[must_use]
    pub fn journal(mut self, capacity: usize) -> Self {
        self.journal_capacity = Some(capacity);
        self
    }

    /// The worker ends by SIGALRM after this time even if its parent was killed (default 300 s).
    #[must_use]
    pub fn lifetime(mut self, seconds: u32) -> Self {
        self.values.insert("lifetime".to_owned(), seconds.to_string());
        self
    }

    /// A fresh process: this test binary executed again, in the role of that name.
    pub fn start(self) -> Worker {
        let (values, control, stderr, journal) = self.prepare();
        let text: Vec<String> = values.iter().map(|(k, v)| format!("{k}={v}")).collect();
        let log = std::fs::File::create(&stderr).expect("stderr file");
        #[expect(clippy::zombie_processes, reason = "reaped by Worker through its pid")]
        let child = Command::new(std::env::current_exe().expect("own path"))
            .args(["--exact", "worker_main", "--nocapture", "--test-threads=1"])
            .env(ROLE, &self.role)
            .env(ARGS, text.join(&SEPARATOR.to_string()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("spawn worker");
        let pid = Pid::from_raw(i32::try_from(child.id()).expect("pid"));
        process::register(pid, &self.role);
        Worker {
            pid,
            role: self.role,
            control,
            stderr,
            journal,
            exit: None,
        }
    }

    /// A forked child that runs a closure: cheap, but a copy of this process and not a fresh one.
    pub fn start_forked(self, body: impl FnOnce(&Args)) -> Worker {
        let (values, control, stderr, journal) = self.prepare();
        let (parent, lifetime) = (nix::unistd::getpid(), values["lifetime"].parse().expect("lifetime"));
        let pid = process::fork_child(&self.role, &stderr, lifetime, || body(&Args::new(values, parent)));
        Worker {
            pid,
            role: self.role,
            control,
            stderr,
            journal,
            exit: None,
        }
    }

    fn prepare(&self) -> (BTreeMap<String, String>, Mapped, PathBuf, Option<PathBuf>) {
        let base = self.scratch.join(unique(&self.role));
        let (control_path, stderr) = (base.with_extension("control"), base.with_extension("stderr"));
        let control = Mapped::create(&control_path, CONTROL_BYTES);
        let mut values = self.values.clone();
        values.insert("control".to_owned(), control_path.display().to_string());
        let journal = self.journal_capacity.map(|capacity| {
            let path = base.with_extension("journal");
            drop(Journal::create(&path, capacity));
            values.insert("journal".to_owned(), path.display().to_string());
            path
        });
        (values, control, stderr, journal)
    }
}

/// A running or ended worker. Dropping it kills and reaps it.
pub struct Worker {
    pid: Pid,
    role: String,
    control: Mapped,
    stderr: PathBuf,
    journal: Option<PathBuf>,
    exit: Option<Exit>,
}

impl Worker {
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Waits for [`Args::ready`]; fails with the worker's stderr when it dies first.
    pub fn wait_ready(&mut self) {
        let done = wait_until(READY_LIMIT, || self.is_ready() || self.poll().is_some());
        let (ready, exit) = (self.is_ready(), self.exit);
        assert!(
            done && ready,
            "{} was not ready (exit {exit:?})\n{}",
            self.role,
            self.stderr()
        );
    }

    pub fn is_ready(&self) -> bool {
        self.control.u64(READY).load(Ordering::Acquire) != 0
    }

    /// Lets [`Args::wait_go`] return.
    pub fn go(&self) {
        self.control.u64(GO).store(1, Ordering::Release);
    }

    /// Makes [`Args::stop_requested`] true.
    pub fn request_stop(&self) {
        self.control.u64(STOP).store(1, Ordering::Release);
    }

    /// The worker's [`Args::word`].
    pub fn word(&self, index: usize) -> &AtomicU64 {
        user_word(&self.control, index)
    }

    /// kill -9 and reap; harmless when it has already ended. Returns how it ended.
    pub fn kill(&mut self) -> Exit {
        if let Some(exit) = self.poll() {
            return exit;
        }
        self.signal(Signal::SIGKILL);
        self.reap(None).expect("a killed worker ends")
    }

    /// SIGSTOP; returns when every thread of the worker has stopped.
    pub fn stop(&mut self) {
        self.signal(Signal::SIGSTOP);
        match waitpid(self.pid, Some(WaitPidFlag::WUNTRACED)).expect("wait for stop") {
            WaitStatus::Stopped(..) => {}
            status => {
                self.ended(status);
                panic!(
                    "{} ended instead of stopping: {:?}\n{}",
                    self.role,
                    self.exit,
                    self.stderr()
                );
            }
        }
    }

    /// SIGCONT.
    pub fn cont(&self) {
        self.signal(Signal::SIGCONT);
    }

    pub fn signal(&self, signal: Signal) {
        assert!(self.exit.is_none(), "{} has already ended", self.role);
        kill(self.pid, signal).expect("signal worker");
    }

    /// How it ended, if it has.
    pub fn poll(&mut self) -> Option<Exit> {
        self.reap(Some(WaitPidFlag::WNOHANG))
    }

    /// Waits for its end; past the limit the worker is killed and the test fails: a hang is a failure.
    pub fn wait(&mut self, limit: Duration) -> Exit {
        if !wait_until(limit, || self.poll().is_some()) {
            let stacks = super::watchdog::stacks(self.pid);
            self.kill();
            panic!("{} still ran after {limit:?}\n{stacks}\n{}", self.role, self.stderr());
        }
        self.exit.expect("ended")
    }

    /// As [`Self::wait`]; anything but exit code 0 fails the test.
    pub fn expect_success(&mut self, limit: Duration) {
        let exit = self.wait(limit);
        assert!(
            exit == Exit::Code(0),
            "{} ended with {exit:?}\n{}",
            self.role,
            self.stderr()
        );
    }

    /// Fails when the worker ended by anything but our own SIGKILL or exit code 0. For the end of kill tests.
    pub fn assert_no_accident(&mut self) {
        let exit = self.poll();
        let fine = matches!(exit, None | Some(Exit::Code(0) | Exit::Killed(Signal::SIGKILL)));
        assert!(fine, "{} ended with {exit:?}\n{}", self.role, self.stderr());
    }

    /// What it wrote to stderr so far.
    pub fn stderr(&self) -> String {
        let text = std::fs::read(&self.stderr).unwrap_or_default();
        format!(
            "--- stderr of {} (pid {}) ---\n{}",
            self.role,
            self.pid,
            String::from_utf8_lossy(&text)
        )
    }

    /// Everything it journalled so far.
    pub fn journal(&self) -> Vec<Record> {
        journal::read(self.journal.as_ref().expect("spawned without a journal"))
    }

    fn reap(&mut self, flags: Option<WaitPidFlag>) -> Option<Exit> {
        if self.exit.is_none() {
            let status = loop {
                match waitpid(self.pid, flags) {
                    Err(nix::Error::EINTR) => {}
                    other => break other.expect("wait for worker"),
                }
            };
            self.ended(status);
        }
        self.exit
    }

    fn ended(&mut self, status: WaitStatus) {
        self.exit = match status {
            WaitStatus::Exited(_, code) => Some(Exit::Code(code)),
            WaitStatus::Signaled(_, signal, _) => Some(Exit::Killed(signal)),
            _ => None,
        };
        if self.exit.is_some() {
            process::unregister(self.pid);
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            super::announce(&self.stderr());
        }
    }
}

fn user_word(control: &Mapped, index: usize) -> &AtomicU64 {
    assert!(index < USER_WORDS, "{USER_WORDS} words, index {index}");
    control.u64(USER + index * 8)
}
