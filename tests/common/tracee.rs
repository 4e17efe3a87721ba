//! One forked process under ptrace, moved one instruction at a time. x86-64: it looks at the instruction about to run.

use std::collections::HashMap;
use std::path::Path;

use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill, raise};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::dirs::unique;
use super::process;

/// Elsewhere the driver says that it skips.
pub const SUPPORTED: bool = cfg!(target_arch = "x86_64");

/// Offsets in `struct user` of x86-64: rip is the 17th register, rax the 11th.
const RIP: usize = 16 * 8;
const RAX: usize = 10 * 8;
/// Stepping is a thousand times slower than running.
const LIFETIME_SECONDS: u32 = 3600;

/// Tells the tracer that set-up is over, or that an operation has returned.
pub fn mark() {
    raise(Signal::SIGSTOP).expect("mark");
}

/// Why the tracee stands still.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// One instruction (or one iteration of a `rep` instruction, or one system call) later.
    Step,
    /// It called [`mark`].
    Mark,
    /// It ended: exit code, or the signal that killed it.
    Ended(Result<i32, Signal>),
}

/// What the next instruction is, as far as the driver cares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Instruction {
    SystemCall,
    /// A string instruction with a repeat prefix: it stops after each iteration.
    Repeated,
    Other,
}

/// Dropping it kills and reaps the process.
pub struct Tracee {
    pid: Pid,
    /// A signal of its own that it must still get.
    pending: Option<Signal>,
    /// Code does not change, so each address is read once.
    known: HashMap<u64, Instruction>,
    stderr: std::path::PathBuf,
    ended: bool,
    /// Threads and processes it started, which the driver refuses but must reap.
    strangers: Vec<Pid>,
}

impl Tracee {
    /// Forks `body` and runs it at full speed to its first [`mark`].
    pub fn start(scratch: &Path, body: impl FnOnce()) -> Self {
        let stderr = scratch.join(unique("tracee"));
        let pid = process::fork_child("tracee", &stderr, LIFETIME_SECONDS, || {
            ptrace::traceme().expect("ask to be traced");
            body();
        });
        let mut tracee = Self {
            pid,
            pending: None,
            known: HashMap::new(),
            stderr,
            ended: false,
            strangers: Vec::new(),
        };
        loop {
            match tracee.wait() {
                Stop::Mark => break,
                Stop::Step => ptrace::cont(pid, tracee.pending.take()).expect("continue set-up"),
                Stop::Ended(how) => panic!("set-up ended with {how:?}\n{}", tracee.stderr()),
            }
        }
        let events = Options::PTRACE_O_TRACECLONE | Options::PTRACE_O_TRACEFORK | Options::PTRACE_O_TRACEVFORK;
        ptrace::setoptions(pid, Options::PTRACE_O_EXITKILL | events).expect("trace options");
        tracee
    }

    /// Runs one instruction.
    pub fn step(&mut self) -> Stop {
        match ptrace::step(self.pid, self.pending.take()) {
            // Killed from outside between two steps: the wait says so.
            Ok(()) | Err(nix::Error::ESRCH) => self.wait(),
            Err(error) => panic!("step: {error}"),
        }
    }

    /// The address of the next instruction.
    pub fn address(&self) -> u64 {
        self.register(RIP)
    }

    /// The number of the system call about to be made.
    pub fn system_call_number(&self) -> i64 {
        self.register(RAX).cast_signed()
    }

    pub fn instruction_at(&mut self, address: u64) -> Instruction {
        let pid = self.pid;
        *self
            .known
            .entry(address)
            .or_insert_with(|| classify(&peek(pid, address)))
    }

    /// Lets go of the process, which stays where it is by a SIGSTOP like anybody's. [`Tracee::finish`] makes it go on.
    pub fn leave_stopped(&mut self) {
        ptrace::detach(self.pid, Signal::SIGSTOP).expect("detach");
        let status = waitpid(self.pid, Some(WaitPidFlag::WUNTRACED)).expect("wait for SIGSTOP");
        assert!(matches!(status, WaitStatus::Stopped(_, Signal::SIGSTOP)), "{status:?}");
    }

    /// SIGCONT to a process that was left stopped, which then runs to its end at full speed.
    pub fn finish(&mut self) -> Result<i32, Signal> {
        kill(self.pid, Signal::SIGCONT).expect("continue");
        let how = match waitpid(self.pid, None).expect("wait for the end") {
            WaitStatus::Exited(_, code) => Ok(code),
            WaitStatus::Signaled(_, signal, _) => Err(signal),
            other => panic!("unexpected state of the tracee: {other:?}"),
        };
        self.end(how);
        how
    }

    /// kill -9, as from outside.
    pub fn kill(&mut self) {
        if !self.ended {
            // A leader's end is not reported before that of its traced threads.
            for pid in self.strangers.iter().copied().chain([self.pid]) {
                // Already dead is as good.
                let _ = kill(pid, Signal::SIGKILL);
            }
            for pid in self.strangers.iter().copied().chain([self.pid]) {
                while let Ok(WaitStatus::Stopped(..) | WaitStatus::PtraceEvent(..)) | Err(nix::Error::EINTR) =
                    waitpid(pid, Some(WaitPidFlag::__WALL))
                {}
            }
            self.end(Err(Signal::SIGKILL));
        }
    }

    pub fn stderr(&self) -> String {
        std::fs::read_to_string(&self.stderr).unwrap_or_default()
    }

    fn register(&self, offset: usize) -> u64 {
        ptrace::read_user(self.pid, std::ptr::without_provenance_mut(offset))
            .expect("register")
            .cast_unsigned()
    }

    fn wait(&mut self) -> Stop {
        let status = loop {
            match waitpid(self.pid, Some(WaitPidFlag::__WALL)) {
                Err(nix::Error::EINTR) => {}
                other => break other.expect("wait for tracee"),
            }
        };
        match status {
            WaitStatus::Stopped(_, Signal::SIGTRAP) => Stop::Step,
            WaitStatus::Stopped(_, Signal::SIGSTOP) => Stop::Mark,
            WaitStatus::Stopped(_, signal) => {
                self.pending = Some(signal);
                Stop::Step
            }
            WaitStatus::PtraceEvent(..) => {
                let stranger = ptrace::getevent(self.pid).ok().and_then(|pid| i32::try_from(pid).ok());
                self.strangers.extend(stranger.map(Pid::from_raw));
                panic!("the operation started a thread or a process: in step-kill tests helper threads run inline")
            }
            WaitStatus::Exited(_, code) => self.end(Ok(code)),
            WaitStatus::Signaled(_, signal, _) => self.end(Err(signal)),
            other => panic!("unexpected state of the tracee: {other:?}"),
        }
    }

    fn end(&mut self, how: Result<i32, Signal>) -> Stop {
        self.ended = true;
        process::unregister(self.pid);
        Stop::Ended(how)
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_file(&self.stderr);
    }
}

/// The bytes at an address, read as aligned words because the next page may not be there; short at such an edge.
fn peek(pid: Pid, address: u64) -> Vec<u8> {
    let aligned = address & !7;
    let words = [aligned, aligned + 8].map(|at| {
        let at = usize::try_from(at).expect("address");
        ptrace::read(pid, std::ptr::without_provenance_mut(at)).map(i64::to_le_bytes)
    });
    let bytes = words.into_iter().map_while(Result::ok).flatten();
    bytes
        .skip(usize::try_from(address - aligned).expect("below 8"))
        .collect()
}

fn classify(bytes: &[u8]) -> Instruction {
    if bytes.starts_with(&[0x0f, 0x05]) {
        return Instruction::SystemCall;
    }
    let prefixes = bytes
        .iter()
        .take_while(|b| matches!(b, 0xf2 | 0xf3 | 0x66 | 0x48))
        .count();
    let repeats = bytes[..prefixes].iter().any(|b| matches!(b, 0xf2 | 0xf3));
    match bytes.get(prefixes) {
        Some(0xa4..=0xa7 | 0xaa..=0xaf) if repeats => Instruction::Repeated,
        _ => Instruction::Other,
    }
}
