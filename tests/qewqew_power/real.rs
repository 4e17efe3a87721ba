//! Real power cuts: ext4 on a loop device is shut down under a process that works on it, and mounted again.

use std::path::Path;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tailrace::qewqew::{DurableQueue, Options};

use crate::common::dirs::TestDir;
use crate::common::oracle::{Delivery, Losses, Oracle, Order, Promise};
use crate::common::watchdog::Watchdog;
use crate::common::worker::{Args, Spawn};
use crate::common::{self, announce, payload, rounds};
use crate::loopfs;

fn worker(args: &Args, path: &Path, options: Options) {
    let mut journal = args.journal();
    let Ok(queue) = DurableQueue::open(path, options) else {
        return args.ready();
    };
    args.ready();
    for sequence in 0.. {
        let message = payload::make(args.get("id"), sequence, 20 + (sequence as usize * 37) % 300);
        let ticket = journal.attempt_put(0, &message);
        match queue.enqueue(&message) {
            Ok(()) => journal.acknowledged(ticket),
            // The power is gone: whether the message made it nobody knows.
            Err(_) => return,
        }
        // Peek, take note, remove: a cut inside the removal then finds a message that was already in somebody's hands.
        if sequence % 3 == 2 {
            let ticket = journal.attempt_get(0);
            match queue.peek() {
                Ok(Some(bytes)) => drop(journal.got(ticket, &bytes)),
                _ => return,
            }
            if queue.dequeue().is_err() {
                return;
            }
        }
    }
}

#[test]
fn real_cuts_on_ext4_lose_nothing_that_was_synced() {
    if common::skip_without_root("power cuts on a loop-mounted ext4") {
        return;
    }
    let dir = TestDir::disk();
    let Some(disk) = loopfs::LoopDisk::create(&dir.scratch(), 24) else {
        return announce("SKIPPED: no loop device or no mkfs.ext4 for real power cuts");
    };
    let cuts = rounds(30, 300);
    let _dog = Watchdog::start("real power cuts", Duration::from_secs(120 + 4 * cuts));
    let begun = Instant::now();
    let mut rng = StdRng::seed_from_u64(7);
    let (mut acked, mut left) = (0, 0);
    for cut in 0..cuts {
        let mounted = disk.mount();
        let path = mounted.path().join(format!("q{cut}"));
        let options = Options {
            chunk_size: 2000,
            crc: cut % 3 == 2,
            ..Options::default()
        };
        let own = options.clone();
        let mut victim = Spawn::new(&dir, "victim")
            .arg("id", 1)
            .journal(100_000)
            .start_forked(|args| worker(args, &path, own));
        victim.wait_ready();
        std::thread::sleep(Duration::from_micros(rng.random_range(0..150_000)));
        mounted.cut_power();
        victim.kill();
        mounted.unmount();
        let mounted = disk.mount();
        let queue = DurableQueue::open(&path, options).unwrap_or_else(|e| panic!("cut {cut}: {e}"));
        let drained: Vec<Vec<u8>> =
            std::iter::from_fn(|| queue.dequeue().unwrap_or_else(|e| panic!("cut {cut}: {e}"))).collect();
        queue.close().unwrap();
        drop(queue);
        let promise = Promise {
            delivery: Delivery::Repeatable,
            losses: Losses::Never,
            order: Order::Any,
        };
        let report = Oracle::new(promise)
            .journal(&victim.journal())
            .left(0, &drained)
            .check();
        report.assert_ok(&format!("cut {cut}"));
        let sequences: Vec<u64> = drained.iter().map(|m| payload::parse(m).unwrap().sequence).collect();
        assert!(
            sequences.windows(2).all(|pair| pair[0] + 1 == pair[1]),
            "cut {cut}: {sequences:?}"
        );
        acked += report.acked;
        left += drained.len();
        mounted.unmount();
    }
    announce(&format!(
        "{cuts} real power cuts on ext4 in {:.1?}: {acked} acknowledged, {left} left, 0 lost",
        begun.elapsed()
    ));
    assert!(acked as u64 > cuts, "the cuts came too early to mean anything");
}
