//! Sleeping and waking between processes; a killed sleeper or waker costs nobody more than a turn.

mod common;

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

use common::dirs::TestDir;
use common::watchdog::Watchdog;
use common::worker::{Exit, Spawn};
use common::{announce, rounds, wait_until};
use tailrace::Error;
use tailrace::shared::region::Region;
use tailrace::shared::signal::{Signal, Turn, Wait};

const SIGNAL: usize = 0;
const VALUE: usize = 4;

fn create(dir: &TestDir) -> Region {
    Region::create(&dir.queue().join("q"), 4096, |_| Ok(())).unwrap().0
}

fn take(region: &Region, wait: Wait) -> tailrace::Result<Option<u32>> {
    Signal::new(region.u32(SIGNAL)).wait_for(
        wait,
        Turn::Patient,
        || Ok(()),
        || {
            Ok(region
                .u32(VALUE)
                .fetch_update(SeqCst, SeqCst, |n| n.checked_sub(1))
                .ok())
        },
    )
}

fn is_asleep(region: &Region) -> bool {
    region.u32(SIGNAL).load(SeqCst) & 1 == 1
}

#[test]
fn a_sleeper_in_another_process_is_woken() {
    let _dog = Watchdog::start("wake-ups", Duration::from_secs(60));
    let dir = TestDir::shm();
    let region = create(&dir);
    let path = dir.queue().join("q");
    let count = rounds(300, 20_000);
    let mut sleeper = Spawn::new(&dir, "sleeper").start_forked(move |args| {
        let region = Region::open(&path).unwrap();
        args.ready();
        for done in 1..=count {
            take(&region, Wait::Forever).unwrap().expect("for ever");
            args.word(0).store(done, Relaxed);
        }
    });
    sleeper.wait_ready();
    let mut delays = Vec::new();
    for done in 1..=count {
        assert!(wait_until(Duration::from_secs(20), || is_asleep(&region)));
        let put = Instant::now();
        region.u32(VALUE).fetch_add(1, SeqCst);
        Signal::new(region.u32(SIGNAL)).notify_one();
        assert!(wait_until(Duration::from_secs(20), || sleeper.word(0).load(Relaxed) == done));
        delays.push(put.elapsed());
    }
    assert_eq!(
        sleeper.wait(Duration::from_secs(20)),
        Exit::Code(0),
        "{}",
        sleeper.stderr()
    );
    delays.sort_unstable();
    announce(&format!(
        "{count} wake-ups of a sleeping process, p50 {:?}",
        delays[delays.len() / 2]
    ));
}

#[test]
fn the_time_of_a_wait_is_kept() {
    let dir = TestDir::shm();
    let region = create(&dir);
    assert_eq!(take(&region, Wait::No).unwrap(), None);
    let started = Instant::now();
    assert_eq!(
        take(&region, Wait::from_timeout(Some(Duration::from_millis(130)))).unwrap(),
        None
    );
    assert!(started.elapsed() >= Duration::from_millis(130));
    assert_eq!(Wait::from_timeout(Some(Duration::MAX)), Wait::Forever);
}

#[test]
fn a_killed_sleeper_is_forgotten_at_the_next_change() {
    let _dog = Watchdog::start("killed sleeper", Duration::from_secs(60));
    let dir = TestDir::shm();
    let region = create(&dir);
    let path = dir.queue().join("q");
    for all in [true, false] {
        let path = path.clone();
        let mut sleeper = Spawn::new(&dir, "sleeper").start_forked(move |args| {
            let region = Region::open(&path).unwrap();
            args.ready();
            let _ = take(&region, Wait::Forever);
        });
        sleeper.wait_ready();
        assert!(wait_until(Duration::from_secs(20), || is_asleep(&region)));
        sleeper.kill();
        let signal = Signal::new(region.u32(SIGNAL));
        if all {
            signal.notify_all()
        } else {
            signal.notify_one()
        }
        assert!(!is_asleep(&region), "every later change would cost a system call");
    }
}

#[test]
fn a_change_without_a_wake_up_is_seen_within_a_turn() {
    let _dog = Watchdog::start("no wake-up", Duration::from_secs(60));
    let dir = TestDir::shm();
    let region = create(&dir);
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| take(&region, Wait::from_timeout(Some(Duration::from_secs(20)))).unwrap());
        assert!(wait_until(Duration::from_secs(20), || is_asleep(&region)));
        // A foreign writer, or one killed before it could wake anybody.
        region.u32(VALUE).store(1, SeqCst);
        assert_eq!(sleeper.join().unwrap(), Some(1));
    });
}

#[test]
fn an_idle_callback_ends_the_wait() {
    let dir = TestDir::shm();
    let region = create(&dir);
    let mut turns = 0;
    let stopped: tailrace::Result<Option<()>> = Signal::new(region.u32(SIGNAL)).wait_for(
        Wait::Forever,
        Turn::PeerMatters,
        || {
            turns += 1;
            if turns == 3 { Err(Error::Interrupted) } else { Ok(()) }
        },
        || Ok(None),
    );
    assert!(matches!(stopped, Err(Error::Interrupted)));
}
