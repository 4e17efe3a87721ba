//! Turns every hang into a failure with stacks: past the deadline, dump, kill the workers, abort.

use std::io::{Read as _, Seek as _};
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{process, wait_until};

/// gdb on a large binary may itself be slow; the test has failed by then, but it must end.
const GDB_LIMIT: Duration = Duration::from_secs(20);

/// Dropped when the test ends in time.
pub struct Watchdog {
    over: Arc<(Mutex<bool>, Condvar)>,
}

impl Watchdog {
    /// Aborts this process with the stacks of everyone when it is not dropped within `limit`.
    pub fn start(name: &str, limit: Duration) -> Self {
        let over = Arc::new((Mutex::new(false), Condvar::new()));
        let (watched, name) = (Arc::clone(&over), name.to_owned());
        std::thread::Builder::new()
            .name("watchdog".to_owned())
            .spawn(move || {
                let deadline = Instant::now() + limit;
                let (lock, bell) = &*watched;
                let mut done = lock.lock().unwrap_or_else(PoisonError::into_inner);
                while !*done {
                    let Some(rest) = deadline.checked_duration_since(Instant::now()) else {
                        bite(&name, limit)
                    };
                    done = bell.wait_timeout(done, rest).unwrap_or_else(PoisonError::into_inner).0;
                }
            })
            .expect("watchdog thread");
        Self { over }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        let (lock, bell) = &*self.over;
        *lock.lock().unwrap_or_else(PoisonError::into_inner) = true;
        bell.notify_all();
    }
}

fn bite(name: &str, limit: Duration) -> ! {
    // The hung thread may hold std's stderr lock.
    let say = process::write_stderr;
    say(&format!("\nWATCHDOG: {name} still runs after {limit:?}\n"));
    let workers = process::registered();
    for (pid, role) in &workers {
        say(&format!("--- worker {role}\n{}\n", stacks(*pid)));
    }
    say(&format!("--- the test itself\n{}\n", stacks(nix::unistd::getpid())));
    for (pid, _) in &workers {
        // Already dead is as good.
        let _ = kill(*pid, Signal::SIGKILL);
    }
    std::process::abort()
}

/// What every thread of a process is doing, as well as this machine can tell.
pub fn stacks(pid: Pid) -> String {
    format!("{}{}", kernel_view(pid), gdb_view(pid).unwrap_or_default())
}

fn kernel_view(pid: Pid) -> String {
    let mut text = format!("pid {pid}:\n");
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return format!("pid {pid}: gone\n");
    };
    for thread in threads.flatten() {
        let read = |name: &str| std::fs::read_to_string(thread.path().join(name)).unwrap_or_default();
        let state: String = read("status")
            .lines()
            .filter(|l| l.starts_with("State") || l.starts_with("TracerPid"))
            .collect::<Vec<_>>()
            .join(" ");
        let line = format!(
            "  thread {}: {state}; wchan {}; syscall {}\n",
            read("comm").trim(),
            read("wchan").trim(),
            read("syscall").trim()
        );
        text.push_str(&line);
        text.push_str(&read("stack"));
    }
    text
}

/// None without gdb, or when somebody else (the step-kill driver) traces the process.
fn gdb_view(pid: Pid) -> Option<String> {
    let output = tempfile::tempfile().ok()?;
    let mut gdb = Command::new("gdb")
        .args([
            "-batch",
            "-nx",
            "-ex",
            "set debuginfod enabled off",
            "-ex",
            "thread apply all bt 30",
            "-p",
            &pid.to_string(),
        ])
        .stdin(Stdio::null())
        .stdout(output.try_clone().ok()?)
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    if !wait_until(GDB_LIMIT, || matches!(gdb.try_wait(), Ok(Some(_)))) {
        gdb.kill().ok()?;
        gdb.wait().ok()?;
    }
    let (mut output, mut text) = (output, String::new());
    output.rewind().ok()?;
    output.read_to_string(&mut text).ok()?;
    let interesting: Vec<&str> = text
        .lines()
        .filter(|l| l.starts_with("Thread ") || l.starts_with('#'))
        .collect();
    Some(interesting.join("\n"))
}
