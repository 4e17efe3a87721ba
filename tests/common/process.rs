//! Fork, and the list of children that a watchdog must not leave behind.
#![allow(unsafe_code)] // fork and _exit have no safe face

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::{ForkResult, Pid};

/// Exit code of a worker whose body panicked (what libtest uses).
pub const PANICKED: i32 = 101;

static CHILDREN: Mutex<Vec<(Pid, String)>> = Mutex::new(Vec::new());

fn children() -> MutexGuard<'static, Vec<(Pid, String)>> {
    CHILDREN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds a running child, under the name that the watchdog prints.
pub fn register(pid: Pid, name: &str) {
    children().push((pid, name.to_owned()));
}

/// Removes a reaped child.
pub fn unregister(pid: Pid) {
    children().retain(|(other, _)| *other != pid);
}

/// Every running child of this process that the test machinery started.
pub fn registered() -> Vec<(Pid, String)> {
    children().clone()
}

/// What every worker process does first: no core dumps, and an end of its own if its parent dies without killing it.
pub fn become_worker(lifetime_seconds: u32) {
    setrlimit(Resource::RLIMIT_CORE, 0, 0).expect("no core dumps");
    nix::unistd::alarm::set(lifetime_seconds);
}

/// Forks; the child runs `body` with stderr in a file and ends without any destructor of the parent's.
///
/// glibc makes malloc usable in the child of a threaded process. Not usable: `print!` and `eprint!`
/// (another thread may hold their locks); a panic message arrives in the file.
pub fn fork_child(name: &str, stderr: &Path, lifetime_seconds: u32, body: impl FnOnce()) -> Pid {
    install_panic_hook();
    let log = std::fs::File::create(stderr).expect("stderr file");
    // Held over the fork, so that the child finds it free.
    let mut registry = children();
    // SAFETY: the child runs only `body`, under the limits documented above, and then `_exit`.
    match unsafe { nix::unistd::fork() }.expect("fork") {
        ForkResult::Parent { child } => {
            registry.push((child, name.to_owned()));
            child
        }
        ForkResult::Child => {
            registry.clear();
            drop(registry);
            exit_now(run_child(&log, lifetime_seconds, body))
        }
    }
}

fn run_child(log: &std::fs::File, lifetime_seconds: u32, body: impl FnOnce()) -> i32 {
    nix::unistd::dup2_stderr(log).expect("redirect stderr");
    become_worker(lifetime_seconds);
    IN_FORKED_CHILD.store(true, Ordering::SeqCst);
    if catch_unwind(AssertUnwindSafe(body)).is_ok() {
        0
    } else {
        PANICKED
    }
}

/// True in a child that [`fork_child`] made, and in nobody else's memory.
static IN_FORKED_CHILD: AtomicBool = AtomicBool::new(false);

/// Makes a panic in a forked child write its message to the descriptor: libtest's capture would keep it in memory that
/// dies with the child. Installed before the fork, since another thread may hold the hook's lock at that moment.
fn install_panic_hook() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if IN_FORKED_CHILD.load(Ordering::SeqCst) {
                write_stderr(&format!("{info}\n"));
            } else {
                usual(info);
            }
        }));
    });
}

/// Writes to descriptor 2 and takes no lock: usable in a forked child and beside a hung thread.
pub fn write_stderr(text: &str) {
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        match nix::unistd::write(std::io::stderr(), rest) {
            Ok(written) => rest = &rest[written..],
            Err(nix::Error::EINTR) => {}
            // A closed stderr must not fail a test.
            Err(_) => return,
        }
    }
}

/// Ends this process at once: no destructors, no atexit handlers.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: _exit is always allowed.
    unsafe { libc::_exit(code) }
}

/// Runs `body` on each arrival of `signal` in this process; it must do what a signal handler may do, nothing more.
pub fn on_signal(signal: nix::sys::signal::Signal, body: fn()) {
    use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, sigaction};
    static BODY: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn handler(_: libc::c_int) {
        let body = BODY.load(Ordering::SeqCst);
        // SAFETY: only ever set below, to a `fn()`.
        let body = unsafe { std::mem::transmute::<usize, fn()>(body) };
        body();
    }
    BODY.store(body as usize, Ordering::SeqCst);
    let action = SigAction::new(SigHandler::Handler(handler), SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler only calls `body`, which the caller vouches for.
    unsafe { sigaction(signal, &action) }.expect("install handler");
}

/// Ends this process by the SIGBUS that a truncated mapping gives: the disaster that corrupt-image tests must catch.
pub fn die_of_sigbus(path: &Path) {
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .expect("open");
    file.set_len(4096).expect("grow");
    let map = super::mapped::Mapped::open(path);
    file.set_len(0).expect("shrink");
    map.u64(0).load(Ordering::SeqCst);
}
