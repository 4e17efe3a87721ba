//! Who is alive: over fork, exec, threads, pid reuse and pid namespaces.

mod common;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use common::dirs::TestDir;
use common::process;
use common::watchdog::Watchdog;
use common::worker::{self, Args, Exit, Spawn};
use common::{announce, rounds, skip_without_root, wait_until};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use tailrace::Error;
use tailrace::os::locks::LockFile;
use tailrace::shared::identity::{Identity, SLOTS};
use tailrace::shared::region::Region;
use tailrace::shared::roster::{FIRST_TOKEN, Holder, Roster, Table};

const TABLE: Table = Table::at(64);
const LENGTH: u64 = 64 + TABLE.length() as u64;
const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn worker_main() {
    worker::dispatch(&[("member", member), ("first use", first_use)]);
}

/// Joins, says who it is, and stays until it is killed or told to leave.
fn member(args: &Args) {
    let region = Arc::new(Region::open(&args.path("queue")).unwrap());
    let roster = Roster::join(&region, TABLE, None).unwrap();
    args.word(0).store(roster.me().unwrap().word(), Relaxed);
    args.ready();
    while !args.stop_requested() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Forks while another thread is the first of this process to join, and waits for the child, which joins, too.
fn first_use(args: &Args) {
    let region = Arc::new(Region::open(&args.path("queue")).unwrap());
    let (delay, go) = (args.get::<u32>("delay"), AtomicU32::new(0));
    let child = std::thread::scope(|scope| {
        scope.spawn(|| {
            while go.load(Relaxed) == 0 {}
            Roster::join(&region, TABLE, None).unwrap()
        });
        go.store(1, Relaxed);
        for _ in 0..delay {
            std::hint::spin_loop();
        }
        process::fork_child("child", Path::new("/dev/null"), 60, || {
            Roster::join(&region, TABLE, None).unwrap();
        })
    });
    let ended = || waitpid(child, Some(WaitPidFlag::WNOHANG)).unwrap() != WaitStatus::StillAlive;
    assert!(
        wait_until(LIMIT, ended),
        "the child waits for a thread that it does not have"
    );
}

fn create(dir: &TestDir) -> Arc<Region> {
    Arc::new(Region::create(&dir.queue().join("q"), LENGTH, |_| Ok(())).unwrap().0)
}

fn spawn(dir: &TestDir) -> worker::Worker {
    Spawn::new(dir, "member")
        .arg("queue", dir.queue().join("q").display())
        .start()
}

fn becomes(roster: &Roster, word: u64, expected: Holder) -> bool {
    wait_until(LIMIT, || roster.holder(word).unwrap() == expected)
}

#[test]
fn a_killed_process_is_dead_and_a_stopped_one_is_not() {
    let _dog = Watchdog::start("killed and stopped members", Duration::from_secs(60));
    let dir = TestDir::shm();
    let roster = Roster::join(&create(&dir), TABLE, None).unwrap();
    let mut other = spawn(&dir);
    other.wait_ready();
    let word = other.word(0).load(Relaxed);
    assert_eq!(roster.holder(word).unwrap(), Holder::Alive);
    other.stop();
    assert_eq!(roster.holder(word).unwrap(), Holder::Alive, "slow is not dead");
    other.kill();
    assert!(becomes(&roster, word, Holder::Dead));
    assert_eq!(roster.members().unwrap().iter().filter(|(_, alive)| !alive).count(), 1);
}

#[test]
fn whoever_leaves_in_good_order_leaves_no_trace() {
    let dir = TestDir::shm();
    let region = create(&dir);
    let roster = Roster::join(&region, TABLE, None).unwrap();
    let guest = Roster::join(&region, TABLE, None).unwrap();
    let word = guest.me().unwrap().word();
    assert_eq!(roster.holder(word).unwrap(), Holder::Alive);
    drop(guest);
    assert_eq!(roster.holder(word).unwrap(), Holder::Dead);
    assert_eq!(roster.members().unwrap().len(), 1);
}

#[test]
fn words_that_nobody_signed_are_foreign() {
    let dir = TestDir::shm();
    let roster = Roster::join(&create(&dir), TABLE, None).unwrap();
    let never_joined = Identity::new(3, 77, 4711).word();
    // A plain 1, process numbers, addresses: what a program that knows only "0 is free" may store.
    for word in [
        1,
        2,
        3,
        4,
        4711,
        4_194_303,
        u64::MAX,
        0x0000_7f12_3456_7890,
        never_joined,
    ] {
        assert_eq!(roster.holder(word).unwrap(), Holder::Foreign, "{word:#x}");
    }
    assert_eq!(roster.holder(0).unwrap(), Holder::Nobody);
}

#[test]
fn a_forked_child_works_and_its_parents_death_is_still_seen() {
    let _dog = Watchdog::start("forked members", Duration::from_secs(60));
    let dir = TestDir::shm();
    let observer = Roster::join(&create(&dir), TABLE, None).unwrap();
    let path = dir.queue().join("q");
    for _ in 0..rounds(20, 100) {
        let scratch = TestDir::shm();
        let mut parent = Spawn::new(&scratch, "parent").start_forked(|args| {
            let region = Arc::new(Region::open(&path).unwrap());
            let roster = Roster::join(&region, TABLE, None).unwrap();
            let mine = roster.me().unwrap();
            args.word(0).store(mine.word(), Relaxed);
            common::process::fork_child("child", &scratch.scratch().join("child.stderr"), 60, || {
                let me = roster.me().unwrap();
                assert!(!me.same_owner(mine) && me.pid() == std::process::id());
                assert_eq!(roster.holder(mine.word()).unwrap(), Holder::Alive, "the parent lives");
                args.word(1).store(me.word(), Relaxed);
                // The parent is killed now; this child keeps running with its inherited handle.
                while args.word(2).load(Relaxed) == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            args.ready();
            std::thread::sleep(LIMIT);
        });
        parent.wait_ready();
        assert!(wait_until(LIMIT, || parent.word(1).load(Relaxed) != 0));
        let (parent_word, child_word) = (parent.word(0).load(Relaxed), parent.word(1).load(Relaxed));
        assert_eq!(observer.holder(parent_word).unwrap(), Holder::Alive);
        parent.kill();
        assert!(
            becomes(&observer, parent_word, Holder::Dead),
            "the child keeps its dead parent alive"
        );
        assert_eq!(observer.holder(child_word).unwrap(), Holder::Alive);
        parent.word(2).store(1, Relaxed);
        assert!(becomes(&observer, child_word, Holder::Dead));
    }
}

#[test]
fn an_executed_program_does_not_keep_its_caller_alive() {
    let _dog = Watchdog::start("exec", Duration::from_secs(60));
    let dir = TestDir::shm();
    let observer = Roster::join(&create(&dir), TABLE, None).unwrap();
    let path = dir.queue().join("q");
    let mut caller = Spawn::new(&dir, "caller").start_forked(|args| {
        let region = Arc::new(Region::open(&path).unwrap());
        let roster = Roster::join(&region, TABLE, None).unwrap();
        args.word(0).store(roster.me().unwrap().word(), Relaxed);
        let mut sleeper = std::process::Command::new("sleep").arg("30").spawn().unwrap();
        args.word(1).store(u64::from(sleeper.id()), Relaxed);
        args.ready();
        sleeper.wait().unwrap();
    });
    caller.wait_ready();
    caller.kill();
    assert!(becomes(&observer, caller.word(0).load(Relaxed), Holder::Dead));
    let sleeper = nix::unistd::Pid::from_raw(caller.word(1).load(Relaxed) as i32);
    nix::sys::signal::kill(sleeper, nix::sys::signal::Signal::SIGKILL).expect("the program was still running");
}

#[test]
fn a_child_forked_beside_the_first_use_does_not_wait_for_it() {
    let _dog = Watchdog::start("fork beside the first use", Duration::from_secs(120));
    let dir = TestDir::shm();
    drop(create(&dir));
    for round in 0..rounds(300, 5000) {
        let worker = Spawn::new(&dir, "first use").arg("queue", dir.queue().join("q").display());
        worker.arg("delay", round * 3 % 200).start().expect_success(2 * LIMIT);
    }
}

#[test]
fn forks_beside_joining_threads_leak_no_token() {
    let _dog = Watchdog::start("fork beside joins", Duration::from_secs(60));
    let dir = TestDir::shm();
    let region = create(&dir);
    let stop = std::sync::atomic::AtomicBool::new(false);
    // Each child outlives every membership that was being taken or given up while it was forked.
    let children: Vec<_> = std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    drop(Roster::join(&region, TABLE, None).unwrap());
                }
            });
        }
        let fork = |_| {
            Spawn::new(&dir, "bystander").start_forked(|args| {
                args.ready();
                // A thousand of them must not eat the processor; dropping the worker kills it.
                while !args.stop_requested() {
                    std::thread::sleep(Duration::from_secs(1));
                }
            })
        };
        let mut children: Vec<_> = (0..rounds(50, 1000)).map(fork).collect();
        children.iter_mut().for_each(|child| child.wait_ready());
        stop.store(true, Relaxed);
        children
    });
    let locks = LockFile::reopen(region.descriptor().unwrap()).unwrap();
    let held = || locks.first_held(FIRST_TOKEN, u64::from(SLOTS)).unwrap();
    // A program that some other test executes has copies of all descriptors for a moment, until its exec closes them.
    let free = wait_until(LIMIT, || held().is_none());
    assert!(
        free,
        "a forked child holds the token {:?} of a membership that ended",
        held()
    );
    drop(children);
}

#[test]
fn a_truncated_file_is_refused() {
    let dir = TestDir::shm();
    drop(create(&dir));
    let path = dir.queue().join("q");
    for length in [LENGTH - 1, 100, 1] {
        std::fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(length)
            .unwrap();
        let refused = Roster::join(&Arc::new(Region::open(&path).unwrap()), TABLE, None).unwrap_err();
        assert!(
            matches!(&refused, Error::Corrupt(text) if text.contains("does not fit")),
            "{refused}"
        );
    }
}

#[test]
fn four_thousand_take_part() {
    let dir = TestDir::shm();
    let region = create(&dir);
    let limit = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap();
    nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE, limit.1, limit.1).unwrap();
    let many = 4000_usize.min(limit.1 as usize - 200);
    let members: Vec<_> = (0..many).map(|_| Roster::join(&region, TABLE, None).unwrap()).collect();
    let mut slots: Vec<_> = members.iter().map(|member| member.me().unwrap().slot()).collect();
    slots.sort_unstable();
    slots.dedup();
    assert_eq!(slots.len(), many, "everybody has a slot of its own");
    for member in &members[1..] {
        assert_eq!(members[0].holder(member.me().unwrap().word()).unwrap(), Holder::Alive);
    }
    announce(&format!("{many} participants took part at once"));
}

#[test]
fn one_more_than_there_are_slots_is_refused() {
    let dir = TestDir::shm();
    let table = Table { offset: 64, slots: 3 };
    let region = create(&dir);
    let mut members: Vec<_> = (0..3).map(|_| Roster::join(&region, table, None).unwrap()).collect();
    let refused = Roster::join(&region, table, None).unwrap_err();
    assert!(
        matches!(&refused, Error::AlreadyOpen(text) if text.contains("all 3 places")),
        "{refused}"
    );
    members.pop();
    Roster::join(&region, table, None).expect("a place became free");
}

#[test]
fn the_place_of_the_dead_is_used_again_and_swept_first() {
    let dir = TestDir::shm();
    let table = Table { offset: 64, slots: 1 };
    let region = create(&dir);
    let first = Roster::join(&region, table, None).unwrap();
    let stale = first.me().unwrap();
    first.abandon();
    let swept = Arc::new(std::sync::atomic::AtomicU32::new(u32::MAX));
    let seen = swept.clone();
    let sweep = move |_: &Region, slot: u32| seen.store(slot, Relaxed);
    let heir = Roster::join(&region, table, Some(Box::new(sweep))).unwrap();
    assert_eq!((heir.me().unwrap().slot(), swept.load(Relaxed)), (0, 0));
    assert_eq!(
        heir.holder(stale.word()).unwrap(),
        Holder::Dead,
        "same slot, another owner"
    );
}

/// A new process gets the number of a dead one, while the dead one's word is still around.
#[test]
fn a_reused_process_number_is_not_taken_for_its_former_owner() {
    if skip_without_root("forcing process numbers by ns_last_pid") {
        return;
    }
    let _dog = Watchdog::start("pid reuse", Duration::from_secs(120));
    let dir = TestDir::shm();
    let region = create(&dir);
    let observer = Roster::join(&region, TABLE, None).unwrap();
    let path = dir.queue().join("q");
    let join_as_child = || {
        Spawn::new(&dir, "member").start_forked(|args| {
            let region = Arc::new(Region::open(&path).unwrap());
            let roster = Roster::join(&region, TABLE, None).unwrap();
            args.word(0).store(roster.me().unwrap().word(), Relaxed);
            args.ready();
            std::thread::sleep(LIMIT);
        })
    };
    let (wanted, mut forced) = (rounds(50, 200), 0);
    for _ in 0..wanted * 20 {
        let mut first = join_as_child();
        first.wait_ready();
        let (pid, stale) = (first.pid(), first.word(0).load(Relaxed));
        first.kill();
        if std::fs::write("/proc/sys/kernel/ns_last_pid", (pid.as_raw() - 1).to_string()).is_err() {
            announce("SKIPPED: ns_last_pid is not writable here");
            return;
        }
        let mut second = join_as_child();
        if second.pid() == pid {
            second.wait_ready();
            let fresh = second.word(0).load(Relaxed);
            assert_eq!(
                Identity::from_word(fresh).unwrap().pid(),
                Identity::from_word(stale).unwrap().pid()
            );
            assert_eq!(observer.holder(stale).unwrap(), Holder::Dead);
            assert_eq!(observer.holder(fresh).unwrap(), Holder::Alive);
            forced += 1;
        }
        if forced == wanted {
            break;
        }
    }
    assert_eq!(forced, wanted, "the number could not be forced often enough");
    announce(&format!("{forced} forced pid reuses, 0 wrong answers"));
}

#[test]
fn members_of_another_pid_namespace_are_seen() {
    if skip_without_root("a pid namespace") {
        return;
    }
    let _dog = Watchdog::start("pid namespace", Duration::from_secs(60));
    let dir = TestDir::shm();
    let observer = Roster::join(&create(&dir), TABLE, None).unwrap();
    let path = dir.queue().join("q");
    let mut outer = Spawn::new(&dir, "outer").start_forked(|args| {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWPID).unwrap();
        let child = common::process::fork_child("inner", &dir.scratch().join("inner.stderr"), 60, || {
            assert_eq!(std::process::id(), 1);
            let region = Arc::new(Region::open(&path).unwrap());
            let roster = Roster::join(&region, TABLE, None).unwrap();
            args.word(0).store(roster.me().unwrap().word(), Relaxed);
            std::thread::sleep(LIMIT);
        });
        args.word(1).store(child.as_raw() as u64, Relaxed);
        args.ready();
        let _ = nix::sys::wait::waitpid(child, None);
    });
    outer.wait_ready();
    assert!(wait_until(LIMIT, || outer.word(0).load(Relaxed) != 0));
    let word = outer.word(0).load(Relaxed);
    assert_eq!(
        Identity::from_word(word).unwrap().pid(),
        1,
        "a number that means init out here"
    );
    assert_eq!(observer.holder(word).unwrap(), Holder::Alive);
    let inner = nix::unistd::Pid::from_raw(outer.word(1).load(Relaxed) as i32);
    nix::sys::signal::kill(inner, nix::sys::signal::Signal::SIGKILL).unwrap();
    assert!(becomes(&observer, word, Holder::Dead));
    assert_eq!(outer.wait(LIMIT), Exit::Code(0), "{}", outer.stderr());
}
