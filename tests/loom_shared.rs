//! Every interleaving of the shared machinery, explored by loom: `make test` runs it with `--cfg loom`.
#![cfg(loom)]

use std::sync::Arc;

use loom::thread;
use tailrace::shared::identity::Identity;
use tailrace::shared::lock::Lock;
use tailrace::shared::region::Region;
use tailrace::shared::roster::{Roster, Table};
use tailrace::shared::signal::{Signal, Turn, Wait};
use tailrace::shared::sync::Ordering;

const LOCK: usize = 0;
const FIRST: usize = 8;
const SECOND: usize = 12;
const REPAIRS: usize = 16;
const TABLE: Table = Table { offset: 24, slots: 4 };
const LENGTH: usize = TABLE.offset + TABLE.length();

fn region() -> Arc<Region> {
    let mut wide = vec![LOCK];
    wide.extend((0..TABLE.slots as usize).map(|slot| TABLE.offset + 8 + 8 * slot));
    Arc::new(Region::model(LENGTH, &wide))
}

/// The protected pair of words is equal whenever nobody holds the lock; the repair makes it so again.
fn repair(region: &Region) {
    region.u32(REPAIRS).fetch_add(1, Ordering::Relaxed);
    let first = region.u32(FIRST).load(Ordering::Relaxed);
    region.u32(SECOND).store(first, Ordering::Relaxed);
}

fn add_one(region: &Region, roster: &Roster) {
    let guard = Lock::new(region.u64(LOCK), roster)
        .acquire(Wait::Forever, |_| repair(region))
        .unwrap();
    let first = region.u32(FIRST).load(Ordering::Relaxed);
    assert_eq!(
        first,
        region.u32(SECOND).load(Ordering::Relaxed),
        "the lock shows a half-made change"
    );
    region.u32(FIRST).store(first + 1, Ordering::Relaxed);
    region.u32(SECOND).store(first + 1, Ordering::Relaxed);
    drop(guard);
}

#[test]
fn two_holders_exclude_each_other() {
    loom::model(|| {
        let region = region();
        let other = {
            let region = region.clone();
            let roster = Roster::join(&region, TABLE, None).unwrap();
            thread::spawn(move || add_one(&region, &roster))
        };
        let roster = Roster::join(&region, TABLE, None).unwrap();
        add_one(&region, &roster);
        other.join().unwrap();
        assert_eq!(region.u32(FIRST).load(Ordering::Relaxed), 2);
        assert_eq!(region.u32(REPAIRS).load(Ordering::Relaxed), 0, "nobody died");
    });
}

#[test]
fn of_two_rescuers_exactly_one_repairs() {
    loom::model(|| {
        let region = region();
        let dead = Roster::join(&region, TABLE, None).unwrap();
        // Killed between its two stores.
        region.u64(LOCK).store(dead.me().unwrap().word(), Ordering::Relaxed);
        region.u32(FIRST).store(1, Ordering::Relaxed);
        dead.abandon();

        let rescuers: Vec<_> = (0..2).map(|_| Roster::join(&region, TABLE, None).unwrap()).collect();
        let threads: Vec<_> = rescuers
            .into_iter()
            .map(|roster| {
                let region = region.clone();
                thread::spawn(move || add_one(&region, &roster))
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(
            region.u32(FIRST).load(Ordering::Relaxed),
            3,
            "both went on after the repair"
        );
        assert_eq!(region.u32(REPAIRS).load(Ordering::Relaxed), 1);
        assert_eq!(region.u64(LOCK).load(Ordering::Relaxed), 0);
    });
}

#[test]
fn a_dead_owner_is_not_mistaken_for_the_next_in_its_slot() {
    loom::model(|| {
        let region = region();
        let dead = Roster::join(&region, TABLE, None).unwrap();
        let stale = dead.me().unwrap();
        region.u64(LOCK).store(stale.word(), Ordering::Relaxed);
        dead.abandon();

        let heir = {
            let region = region.clone();
            thread::spawn(move || {
                let roster = Roster::join(&region, TABLE, None).unwrap();
                add_one(&region, &roster);
            })
        };
        let roster = Roster::join(&region, TABLE, None).unwrap();
        add_one(&region, &roster);
        heir.join().unwrap();
        assert_eq!(region.u32(FIRST).load(Ordering::Relaxed), 2);
        assert_eq!(region.u32(REPAIRS).load(Ordering::Relaxed), 1);
        assert_ne!(
            Identity::from_word(roster.me().unwrap().word()).unwrap().nonce(),
            stale.nonce()
        );
    });
}

/// Time stands still in the model: a lost wake-up is a deadlock, which loom reports.
fn sleeper(region: &Region) {
    let got = Signal::new(region.u32(FIRST)).wait_for(
        Wait::Forever,
        Turn::Patient,
        || Ok(()),
        || {
            let taken = region
                .u32(SECOND)
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
            Ok(taken.ok())
        },
    );
    assert!(got.unwrap().is_some());
}

#[test]
fn a_wake_up_is_never_lost() {
    loom::model(|| {
        let region = region();
        let waiter = {
            let region = region.clone();
            thread::spawn(move || sleeper(&region))
        };
        region.u32(SECOND).fetch_add(1, Ordering::Relaxed);
        Signal::new(region.u32(FIRST)).notify_all();
        waiter.join().unwrap();
    });
}

#[test]
fn one_of_two_sleepers_is_woken_for_each_change() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let region = region();
        let waiters: Vec<_> = (0..2)
            .map(|_| {
                let region = region.clone();
                thread::spawn(move || sleeper(&region))
            })
            .collect();
        for _ in 0..2 {
            region.u32(SECOND).fetch_add(1, Ordering::Relaxed);
            Signal::new(region.u32(FIRST)).notify_one();
        }
        for waiter in waiters {
            waiter.join().unwrap();
        }
    });
}
