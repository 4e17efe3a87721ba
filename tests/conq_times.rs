//! conq and time: calls that wait, reboots, other time namespaces, clocks that lag.

mod common;

use std::collections::HashSet;
use std::thread;
use std::time::{Duration, Instant};

use common::dirs::TestDir;
use tailrace::Error;
use tailrace::conq::origin::Origin;
use tailrace::conq::{Manager, NamedQueue, Options};
use tailrace::os::clock::Clock;
use tailrace::shared::signal::Wait;

const SHORT: Duration = Duration::from_millis(10);
const LONG: Duration = Duration::from_secs(60);

fn small() -> Options {
    Options {
        max_messages: 64,
        max_message_size: 1000,
        max_bytes: 256 << 10,
        ..Options::default()
    }
}

#[test]
fn a_waiting_get_sleeps_until_a_message_arrives_or_comes_back() {
    let dir = TestDir::shm();
    let manager = Manager::open(&dir.queue()).unwrap();
    let id = manager.create_queue("wait", &small()).unwrap();
    let queue = NamedQueue::open(&manager, "wait").unwrap();
    let start = Instant::now();
    let soon = Wait::from_timeout(Some(Duration::from_millis(60)));
    assert!(matches!(queue.get(soon, &mut || Ok(())), Err(Error::Empty)));
    assert!(start.elapsed() >= Duration::from_millis(60));

    let other = queue.clone();
    let waiter = thread::spawn(move || other.get(Wait::Forever, &mut || Ok(())).unwrap());
    thread::sleep(Duration::from_millis(50));
    manager.enqueue(id, b"arrived").unwrap();
    assert_eq!(waiter.join().unwrap(), b"arrived");

    manager.enqueue(id, b"back").unwrap();
    manager.read(id, Duration::from_millis(80)).unwrap().unwrap();
    let limit = Wait::from_timeout(Some(Duration::from_secs(20)));
    assert_eq!(queue.get(limit, &mut || Ok(())).unwrap(), b"back");

    let manager_full = Manager::private(Clock::boottime());
    let one = Options {
        max_messages: 1,
        ..small()
    };
    let id = manager_full.create_queue("room", &one).unwrap();
    let queue = NamedQueue::open(&manager_full, "room").unwrap();
    queue.put(b"1", Wait::No, &mut || Ok(())).unwrap();
    assert!(matches!(queue.put(b"2", Wait::No, &mut || Ok(())), Err(Error::Full(_))));
    let other = queue.clone();
    let waiter = thread::spawn(move || other.put(b"2", Wait::Forever, &mut || Ok(())).unwrap());
    thread::sleep(Duration::from_millis(50));
    assert_eq!(queue.get(Wait::No, &mut || Ok(())).unwrap(), b"1");
    waiter.join().unwrap();
    assert_eq!(manager_full.read(id, LONG).unwrap().unwrap().data, b"2");
}

fn origin_of(boot: u64, time_namespace: u64) -> Origin {
    Origin {
        boot_id: [boot, 7],
        time_namespace,
    }
}

/// A reboot: another boot identity, a clock that starts over.
#[test]
fn after_a_reboot_all_leases_have_ended_and_nothing_is_lost() {
    let dir = TestDir::shm();
    let before = Clock::manual();
    before.advance(Duration::from_secs(1_000_000));
    let manager = Manager::open_at(&dir.queue(), before.clone(), origin_of(1, 5)).unwrap();
    let id = manager.create_queue("boots", &small()).unwrap();
    for number in 0..6_u8 {
        manager.enqueue(id, &[number]).unwrap();
    }
    // 0 is done, 1 ends after 2, 3 has come back before both.
    let done = manager.read(id, LONG).unwrap().unwrap();
    manager.dequeue(id, &done.receipt).unwrap();
    let held = manager.read(id, Duration::MAX).unwrap().unwrap();
    manager.read(id, LONG).unwrap().unwrap();
    manager.read(id, SHORT).unwrap().unwrap();
    before.advance(SHORT * 2);
    assert_eq!(manager.stats(id).unwrap().expired, 1);
    drop(manager);

    let manager = Manager::open_at(&dir.queue(), Clock::manual(), origin_of(2, 9)).unwrap();
    assert_eq!(manager.get_queue("boots").unwrap(), id);
    let stats = manager.stats(id).unwrap();
    assert_eq!((stats.ready, stats.leased, stats.expired), (2, 0, 3));
    assert_eq!(stats.oldest_age, Some(0));
    assert!(manager.dequeue(id, &held.receipt).is_err(), "a lease of another boot");
    let read = || manager.read(id, LONG).unwrap().unwrap();
    let order: Vec<(u8, u32)> = (0..5)
        .map(|_| read())
        .map(|m| (m.data[0], m.receipt.delivery))
        .collect();
    assert_eq!(order, [(3, 2), (2, 2), (1, 2), (4, 1), (5, 1)]);
    manager.enqueue(id, &[6]).unwrap();
    let ids: HashSet<u64> = [read().receipt.id].into();
    assert!(!ids.contains(&held.receipt.id), "ids are not given twice");
}

#[test]
fn another_time_namespace_is_refused_while_the_boot_lasts() {
    let dir = TestDir::shm();
    let manager = Manager::open_at(&dir.queue(), Clock::manual(), origin_of(1, 5)).unwrap();
    manager.create_queue("ns", &small()).unwrap();
    let other = Manager::open_at(&dir.queue(), Clock::manual(), origin_of(1, 6)).unwrap();
    let refused = other.get_queue("ns").unwrap_err();
    assert!(
        matches!(&refused, Error::Format(text) if text.contains("time namespace 5")),
        "{refused}"
    );
}

/// Steps of the wall clock are invisible by construction; a boot clock that another process sees a little later or earlier is
/// not: time never runs backwards for a queue.
#[test]
fn a_clock_that_lags_neither_shortens_nor_lengthens_a_lease() {
    let dir = TestDir::shm();
    let (ahead, behind) = (Clock::manual(), Clock::manual());
    let here = origin_of(1, 5);
    let (a, b) = (
        Manager::open_at(&dir.queue(), ahead.clone(), here).unwrap(),
        Manager::open_at(&dir.queue(), behind, here).unwrap(),
    );
    let id = a.create_queue("lag", &small()).unwrap();
    a.enqueue(id, b"1").unwrap();
    a.enqueue(id, b"2").unwrap();
    ahead.advance(Duration::from_millis(100));
    let first = a.read(id, SHORT).unwrap().unwrap();
    // Read by the one whose clock is 100 ms behind: its lease still ends 10 ms after the latest time seen.
    let second = b.read(id, SHORT).unwrap().unwrap();
    ahead.advance(SHORT);
    a.extend(id, &first.receipt, SHORT).unwrap();
    b.extend(id, &second.receipt, SHORT).unwrap();
    ahead.advance(SHORT * 2);
    assert_eq!(a.stats(id).unwrap().expired, 2);
}

#[test]
fn a_lease_that_ended_within_a_tick_of_the_kernel_cannot_be_finished() {
    let manager = Manager::private(Clock::boottime());
    let id = manager.create_queue("q", &small()).unwrap();
    let lease = Duration::from_micros(300);
    for _ in 0..50 {
        manager.enqueue(id, b"x").unwrap();
        let stale = manager.read(id, lease).unwrap().unwrap();
        let end = manager.now() + lease.as_nanos() as u64;
        while manager.now() <= end {
            std::hint::spin_loop();
        }
        let refused = manager.dequeue(id, &stale.receipt);
        assert!(matches!(refused, Err(Error::MessageNotFound(_))), "{refused:?}");
        let again = manager.read(id, Duration::from_secs(60)).unwrap().unwrap();
        manager.dequeue(id, &again.receipt).unwrap();
    }
}
