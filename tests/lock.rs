//! Locks whose holders are killed: the survivors go on, and what the lock protects is whole.

mod common;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use common::dirs::TestDir;
use common::stepkill::StepKill;
use common::watchdog::Watchdog;
use common::worker::{Spawn, Worker};
use common::{announce, rounds, wait_until};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tailrace::Error;
use tailrace::shared::lock::Lock;
use tailrace::shared::region::Region;
use tailrace::shared::roster::{Roster, Table};
use tailrace::shared::signal::Wait;

const LOCK: usize = 0;
/// Equal whenever nobody holds the lock.
const FIRST: usize = 8;
const SECOND: usize = 12;
const TAKEOVERS: usize = 16;
/// Not 0 where the lock is one that only participants use.
const MEMBERS_ONLY: usize = 20;
const TABLE: Table = Table::at(64);
const LENGTH: u64 = 64 + TABLE.length() as u64;

struct Shared {
    region: Arc<Region>,
    roster: Roster,
}

impl Shared {
    fn create(dir: &TestDir) -> Self {
        Shared::create_for(dir, false)
    }

    fn create_for(dir: &TestDir, members_only: bool) -> Self {
        Region::create(&dir.queue().join("q"), LENGTH, |region| {
            region.u32(MEMBERS_ONLY).store(members_only.into(), Relaxed);
            Ok(())
        })
        .unwrap();
        Shared::open(&dir.queue())
    }

    fn open(directory: &Path) -> Self {
        let region = Arc::new(Region::open(&directory.join("q")).unwrap());
        let roster = Roster::join(&region, TABLE, None).unwrap();
        Shared { region, roster }
    }

    fn pair(&self) -> (u32, u32) {
        (
            self.region.u32(FIRST).load(Relaxed),
            self.region.u32(SECOND).load(Relaxed),
        )
    }

    /// One change under the lock; panics if the lock shows a half-made one.
    fn add_one(&self, wait: Wait) -> tailrace::Result<()> {
        let lock = Lock::new(self.region.u64(LOCK), &self.roster);
        match self.region.u32(MEMBERS_ONLY).load(Relaxed) {
            0 => self.add_under(lock, wait),
            _ => self.add_under(lock.members_only(), wait),
        }
    }

    fn add_under<const MEMBERS: bool>(&self, lock: Lock<'_, MEMBERS>, wait: Wait) -> tailrace::Result<()> {
        let region = &self.region;
        let repair = |_dead| {
            region.u32(SECOND).store(region.u32(FIRST).load(Relaxed), Relaxed);
            region.u32(TAKEOVERS).fetch_add(1, Relaxed);
        };
        let guard = lock.acquire(wait, repair)?;
        let (first, second) = self.pair();
        assert_eq!(first, second, "the lock shows a half-made change");
        region.u32(FIRST).store(first.wrapping_add(1), Relaxed);
        region.u32(SECOND).store(first.wrapping_add(1), Relaxed);
        drop(guard);
        Ok(())
    }
}

fn soon() -> Wait {
    Wait::from_timeout(Some(Duration::from_secs(5)))
}

#[test]
fn killed_holders_are_taken_over() {
    // One after the other: each keeps all processors busy.
    takeovers(false);
    takeovers(true);
}

fn takeovers(members_only: bool) {
    let _dog = Watchdog::start("lock takeover", Duration::from_secs(240));
    let dir = TestDir::shm();
    let shared = Shared::create_for(&dir, members_only);
    let start = || -> Worker {
        let queue = dir.queue();
        Spawn::new(&dir, "holder").start_forked(move |args| {
            let shared = Shared::open(&queue);
            args.ready();
            loop {
                shared.add_one(soon()).expect("a lock held by the dead hung");
            }
        })
    };
    let mut holders: Vec<Worker> = (0..4).map(|_| start()).collect();
    holders.iter_mut().for_each(Worker::wait_ready);
    let mut random = StdRng::seed_from_u64(7);
    let mut delays = Vec::new();
    for _ in 0..rounds(500, 5_000) {
        std::thread::sleep(Duration::from_micros(random.random_range(0..500)));
        let victim = random.random_range(0..holders.len());
        holders[victim].signal(nix::sys::signal::Signal::SIGKILL);
        let killed = Instant::now();
        let before = shared.pair().0;
        let went_on = wait_until(Duration::from_secs(5), || shared.pair().0.wrapping_sub(before) >= 2);
        delays.push(killed.elapsed());
        assert!(went_on, "nobody went on after a kill");
        holders[victim].kill();
        holders[victim] = start();
        for holder in &mut holders {
            holder.assert_no_accident();
        }
    }
    for mut holder in holders {
        holder.kill();
    }
    shared.add_one(soon()).unwrap();
    delays.sort_unstable();
    let at = |part: usize| delays[(delays.len() * part / 100).min(delays.len() - 1)];
    announce(&format!(
        "{} kills of lock holders: 0 hangs, {} takeovers, kill to progress p50 {:?} p99 {:?} max {:?}",
        delays.len(),
        shared.region.u32(TAKEOVERS).load(Relaxed),
        at(50),
        at(99),
        at(100)
    ));
    assert!(
        shared.region.u32(TAKEOVERS).load(Relaxed) > 0,
        "no kill ever hit a holder: the test shows nothing"
    );
}

#[test]
fn killed_at_any_instruction_of_acquire_and_release() {
    kill_at_every_step(false);
}

#[test]
fn killed_at_any_instruction_of_a_lock_of_members() {
    kill_at_every_step(true);
}

fn kill_at_every_step(members_only: bool) {
    let _dog = Watchdog::start("lock step-kill", Duration::from_secs(240));
    let dir = TestDir::shm();
    drop(Shared::create_for(&dir, members_only));
    let queue = dir.queue();
    let report = StepKill::new(&dir).operations(2).run(
        || Shared::open(&queue),
        |shared, _| shared.add_one(soon()).unwrap(),
        |moment| {
            let survivor = Shared::open(&moment.dir);
            survivor.add_one(soon()).map_err(|e| e.to_string())?;
            let (first, second) = survivor.pair();
            let done = moment.completed as u32 + 1;
            let possible = if moment.running { done..=done + 1 } else { done..=done };
            if first != second || !possible.contains(&first) {
                return Err(format!("{first} and {second} after {done} changes"));
            }
            Ok(())
        },
    );
    report.assert_ok("acquire, change, release");
}

#[test]
fn a_rescuer_killed_at_any_instruction_is_rescued() {
    let _dog = Watchdog::start("rescue step-kill", Duration::from_secs(240));
    let dir = TestDir::shm();
    // Killed between its two stores.
    let dead = Shared::create(&dir);
    dead.region.u64(LOCK).store(dead.roster.me().unwrap().word(), Relaxed);
    dead.region.u32(FIRST).store(1, Relaxed);
    dead.roster.abandon();
    let queue = dir.queue();
    let report = StepKill::new(&dir).run(
        || Shared::open(&queue),
        |shared, _| shared.add_one(soon()).unwrap(),
        |moment| {
            let survivor = Shared::open(&moment.dir);
            survivor.add_one(soon()).map_err(|e| e.to_string())?;
            match survivor.pair() {
                (2, 2) | (3, 3) => Ok(()),
                pair => Err(format!("{pair:?}")),
            }
        },
    );
    report.assert_ok("takeover");
}

#[test]
fn a_living_holder_is_never_robbed() {
    let _dog = Watchdog::start("living holder", Duration::from_secs(60));
    let dir = TestDir::shm();
    let shared = Shared::create(&dir);
    let queue = dir.queue();
    let mut holder = Spawn::new(&dir, "holder").start_forked(move |args| {
        let shared = Shared::open(&queue);
        let _guard = Lock::new(shared.region.u64(LOCK), &shared.roster)
            .acquire(soon(), |_| {})
            .unwrap();
        args.ready();
        std::thread::sleep(Duration::from_secs(50));
    });
    holder.wait_ready();
    holder.stop();
    let refused = shared.add_one(Wait::from_timeout(Some(Duration::from_millis(100))));
    assert!(matches!(refused, Err(Error::TimedOut)), "{refused:?}");
    holder.kill();
    shared.add_one(soon()).unwrap();
}

#[test]
fn a_foreign_holder_is_broken_only_by_the_timeout_that_was_asked_for() {
    let dir = TestDir::shm();
    let shared = Shared::create(&dir);
    shared.region.u64(LOCK).store(1, Relaxed);
    let brief = || Wait::from_timeout(Some(Duration::from_millis(60)));
    assert!(matches!(shared.add_one(brief()), Err(Error::TimedOut)));
    let lock = Lock::new(shared.region.u64(LOCK), &shared.roster).break_foreign_after(Some(Duration::from_millis(20)));
    let guard = lock.acquire(soon(), |dead| assert_eq!(dead, 1)).unwrap();
    assert!(guard.recovered());
}

#[test]
fn a_panic_under_the_lock_repairs_and_releases() {
    let dir = TestDir::shm();
    let shared = Shared::create(&dir);
    let region = &shared.region;
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let repair = |_| region.u32(SECOND).store(region.u32(FIRST).load(Relaxed), Relaxed);
        let _guard = Lock::new(region.u64(LOCK), &shared.roster)
            .acquire(soon(), repair)
            .unwrap();
        region.u32(FIRST).store(1, Relaxed);
        panic!("between the two stores");
    }));
    assert!(panicked.is_err());
    assert_eq!(shared.pair(), (1, 1));
    shared.add_one(Wait::No).unwrap();
}

#[test]
fn threads_of_one_handle_exclude_each_other() {
    for members_only in [false, true] {
        let dir = TestDir::shm();
        let shared = Shared::create_for(&dir, members_only);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..20_000).for_each(|_| shared.add_one(soon()).unwrap()));
            }
        });
        assert_eq!(shared.pair(), (80_000, 80_000));
        assert_eq!(shared.region.u32(TAKEOVERS).load(Relaxed), 0);
    }
}

#[test]
fn a_word_that_is_not_ours_any_more_is_left_alone() {
    let dir = TestDir::shm();
    let shared = Shared::create(&dir);
    let lock = Lock::new(shared.region.u64(LOCK), &shared.roster);
    for damage in [1, u64::MAX] {
        let guard = lock.members_only().acquire(soon(), |_| {}).unwrap();
        shared.region.u64(LOCK).store(damage, Relaxed);
        drop(guard);
        assert_eq!(shared.region.u64(LOCK).swap(0, Relaxed), damage);
    }
}
