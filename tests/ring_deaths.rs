//! The slots of the dead, killed at every instruction: of passing them, of the recovery itself, and beside a survivor.

mod common;

use std::collections::BTreeSet;
use std::time::Duration;

use common::dirs::TestDir;
use common::image::Image;
use common::ring_scene::{Picture, SLOTS, SMALL, message, prepare, recovered, sequences, total};
use common::stepkill::StepKill;
use common::watchdog::Watchdog;
use common::{announce, soak, tracee};
use tailrace::ring::Queue;

/// An image as it stands when the operation is killed right after the header was let go: in the slot, not yet done.
fn killed_in_slot(dir: &TestDir, operation: impl FnMut(&mut Queue, usize)) -> Image {
    let path = dir.queue().join("q");
    let mut found = None;
    StepKill::new(dir)
        .run(
            || Queue::open(&path).unwrap(),
            operation,
            |moment| {
                let picture = Picture(moment.image.bytes("q"));
                if !picture.header_held() && (0..SLOTS).any(|slot| picture.slot_held(slot)) {
                    found = Some(moment.image.clone());
                }
                Ok(())
            },
        )
        .assert_ok("finding a death in a slot");
    found.expect("an operation holds its slot without the header")
}

/// The living meet the slots of the dead: whoever needs one frees it, and is killed at every instruction of that.
#[test]
fn killed_at_every_instruction_of_passing_the_dead() {
    if !tracee::SUPPORTED {
        return announce("SKIPPED: step-kill needs x86-64");
    }
    let _dog = Watchdog::start("passing the dead", Duration::from_secs(1800));
    let mut figures = Vec::new();
    // (who died, how many messages were there before, what the next one does)
    for (reader_died, len, next_dequeues) in [
        (false, 0, true),
        (false, 4, false),
        (false, 2, true),
        (true, 4, false),
        (true, 1, false),
        (true, 2, true),
    ] {
        let dir = TestDir::shm();
        let scene = prepare(&dir, SMALL, 3, len);
        let image = killed_in_slot(&dir, |ring, _| match reader_died {
            true => drop(ring.try_dequeue().unwrap().unwrap()),
            false => assert!(ring.enqueue(&message(SMALL, 50)).is_ok()),
        });
        let copy = TestDir::shm();
        image.write(&copy.queue());
        let path = copy.queue().join("q");
        // In the copy the dead one is dead, and the next one meets what it left.
        let report = StepKill::new(&copy).operations(2 + SLOTS as usize).run(
            || Queue::open_without_recovery(&path).unwrap(),
            |ring, number| match next_dequeues {
                true => drop(ring.try_dequeue().unwrap()),
                false => assert!(ring.enqueue(&message(SMALL, 60 + number as u64)).is_ok()),
            },
            |moment| {
                let (counters, left) = recovered(&moment.dir)?;
                let new = counters.enqueued - scene.before.enqueued;
                let fates = counters.overwritten + counters.abandoned + counters.lost_in_hands + counters.discarded;
                let delivered = (scene.len + new).checked_sub(fates + left.len() as u64);
                let most = if next_dequeues {
                    moment.completed as u64 + u64::from(moment.running)
                } else {
                    0
                };
                let exact = (counters.abandoned, counters.lost_in_hands, counters.discarded);
                // One died in its slot; a second death is this one's.
                let second = counters.abandoned + counters.lost_in_hands - 1;
                let right = exact.2 == 0 && second <= u64::from(moment.running) && delivered.is_some_and(|n| n <= most);
                let wrong_kind = if reader_died { exact.1 == 0 } else { exact.0 == 0 };
                match right && !wrong_kind {
                    true => Ok(()),
                    false => Err(format!("{counters:?} left {left:?} before {:?}", scene.before)),
                }
            },
        );
        report.assert_ok(&format!(
            "reader died {reader_died}, {len} messages, next dequeues {next_dequeues}"
        ));
        figures.push((report.instructions, report.recovered));
    }
    announce(&format!("ring passing the dead: {}", total(&figures)));
}

/// Images in which a death left something to do, one of each kind (all of them in the soak).
fn images_to_recover(dir: &TestDir, operation: impl FnMut(&mut Queue, usize)) -> Vec<Image> {
    let path = dir.queue().join("q");
    let mut kinds = BTreeSet::new();
    let mut images = Vec::new();
    StepKill::new(dir)
        .run(
            || Queue::open(&path).unwrap(),
            operation,
            |moment| {
                let bytes = moment.image.bytes("q");
                let picture = Picture(bytes);
                let slots: Vec<bool> = (0..SLOTS).map(|slot| picture.slot_held(slot)).collect();
                let trailer = (32 + SLOTS as usize * picture.stride()).next_multiple_of(64);
                let intent = bytes[trailer + 128];
                let kind = (picture.header_held(), slots, intent, picture.start_and_len());
                if moment.running && (kind.0 || kind.1.contains(&true)) && (kinds.insert(kind) || soak()) {
                    images.push(moment.image.clone());
                }
                Ok(())
            },
        )
        .assert_ok("collecting images");
    images
}

#[test]
fn recovery_killed_at_every_instruction_is_recovered() {
    let _dog = Watchdog::start("killed recovery", Duration::from_secs(3600));
    let mut figures = Vec::new();
    for dequeues in [false, true] {
        let (shift, len) = if dequeues { (3, 3) } else { (0, 4) };
        let dir = TestDir::shm();
        prepare(&dir, SMALL, shift, len);
        let images = images_to_recover(&dir, |ring, _| match dequeues {
            true => drop(ring.try_dequeue().unwrap().unwrap()),
            false => assert!(ring.enqueue(&message(SMALL, len)).is_ok()),
        });
        assert!(
            images.len() >= 3 || !tracee::SUPPORTED,
            "only {} images need a recovery",
            images.len()
        );
        for image in images {
            let copy = TestDir::shm();
            image.write(&copy.queue());
            let path = copy.queue().join("q");
            // The verdict of an undisturbed recovery is what every interrupted one must come to.
            let undisturbed = TestDir::shm();
            image.write(&undisturbed.queue());
            let expected = recovered(&undisturbed.queue()).unwrap();
            let report = StepKill::new(&copy).run(
                || (),
                |(), _| drop(Queue::open(&path).unwrap()),
                |moment| match recovered(&moment.dir)? {
                    found if found == expected => Ok(()),
                    found => Err(format!("{found:?} after an interrupted recovery, {expected:?} without")),
                },
            );
            report.assert_ok(&format!("recovery of {}", Picture(image.bytes("q")).drawn()));
            figures.push((report.instructions, report.recovered));
        }
    }
    announce(&format!("ring recovery: {}", total(&figures)));
}

/// Really killed, beside a living participant that must go on at once.
#[test]
fn a_survivor_goes_on_after_a_death_at_every_instruction() {
    if !tracee::SUPPORTED {
        return announce("SKIPPED: step-kill needs x86-64");
    }
    let _dog = Watchdog::start("survivor", Duration::from_secs(1800));
    let dir = TestDir::shm();
    let path = dir.queue().join("q");
    let survivor = Queue::create(&path, SLOTS, SMALL).unwrap();
    let (mut deaths, mut slowest) = (0, Duration::ZERO);
    for dequeues in [false, true] {
        for steps in (0..).step_by(if soak() { 1 } else { 3 }) {
            for sequence in 0..4 {
                survivor.enqueue(&message(SMALL, sequence)).unwrap();
            }
            let before = survivor.counters().unwrap();
            let killed = StepKill::new(&dir).kill_at(
                steps,
                || Queue::open(&path).unwrap(),
                |ring, _| match dequeues {
                    true => drop(ring.try_dequeue().unwrap()),
                    false => assert!(ring.enqueue(&message(SMALL, 4)).is_ok()),
                },
            );
            let begun = std::time::Instant::now();
            survivor.enqueue(&message(SMALL, 5)).unwrap();
            let mut left = Vec::new();
            while let Some(message) = survivor.try_dequeue().unwrap() {
                left.push(message.data);
            }
            slowest = slowest.max(begun.elapsed());
            let left = sequences(left.into_iter()).unwrap();
            assert_eq!(left.last(), Some(&5), "after {steps} steps");
            let after = survivor.counters().unwrap();
            let fates = [after.overwritten, after.abandoned, after.lost_in_hands, after.discarded];
            let fates_before = [
                before.overwritten,
                before.abandoned,
                before.lost_in_hands,
                before.discarded,
            ];
            let gone: u64 = fates.iter().sum::<u64>() - fates_before.iter().sum::<u64>();
            let taken = after.enqueued - before.enqueued + 4 - left.len() as u64 - gone;
            // A dequeue that let its slot go has delivered.
            assert!(
                taken <= u64::from(dequeues),
                "after {steps} steps: {before:?} {after:?} {left:?}"
            );
            assert_eq!(after.queued, 0);
            deaths += 1;
            if !killed.running {
                break;
            }
        }
    }
    announce(&format!(
        "ring survivor: {deaths} deaths, the slowest recovery took {slowest:?}"
    ));
    assert!(deaths > 100);
}
