//! The ring killed at every instruction: of enqueue, of dequeue, of a snapshot, of the recovery itself, and beside a survivor.
//!
//! The judge knows only the document and the counters. After each death every message that was ever in the ring has exactly
//! one fate, the counters say which, and nothing that is delivered is torn.

mod common;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use common::dirs::TestDir;
use common::image::Image;
use common::stepkill::{Moment, StepKill};
use common::watchdog::Watchdog;
use common::{announce, payload, soak, tracee};
use tailrace::ring::{Counters, Queue};

const SLOTS: u32 = 4;
/// Three words; a message of one word less than that shows the padding.
const SMALL: u32 = 3;
/// More than a page.
const LARGE: u32 = 513;

/// The documented words of an image.
struct Picture<'a>(&'a [u8]);

impl Picture<'_> {
    fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.0[at..at + 8].try_into().unwrap())
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.0[at..at + 4].try_into().unwrap())
    }

    fn stride(&self) -> usize {
        8 + 8 * self.u32(12) as usize
    }

    fn header_held(&self) -> bool {
        self.u64(16) != 0
    }

    fn start_and_len(&self) -> (u32, u32) {
        (self.u32(24), self.u32(28))
    }

    fn slot_held(&self, slot: u32) -> bool {
        self.u64(32 + slot as usize * self.stride()) != 0
    }

    /// As the document draws it.
    fn drawn(&self) -> String {
        let lock = |word| if word == 0 { '.' } else { 'X' };
        let (start, len) = self.start_and_len();
        let mut text = format!("[{} {start} {len}]", lock(self.u64(16)));
        for slot in 0..self.u32(8) as usize {
            let at = 32 + slot * self.stride();
            let words = (1..self.stride() / 8).map(|word| match self.0[at + 8 * word] {
                0 => '.',
                letter => char::from(letter),
            });
            text += &format!(" {{{} {}}}", lock(self.u64(at)), words.collect::<String>());
        }
        text
    }
}

fn message(words: u32, sequence: u64) -> Vec<u8> {
    payload::make(1, sequence, 8 * words as usize - 1)
}

/// Before the first operation: START is `start`, messages `0..len` wait.
#[derive(Clone, Copy)]
struct Scene {
    start: u32,
    len: u64,
    before: Counters,
}

fn prepare(dir: &TestDir, words: u32, start: u32, len: u64) -> Scene {
    let ring = Queue::create(&dir.queue().join("q"), SLOTS, words).unwrap();
    for _ in 0..start {
        ring.enqueue(&message(words, 1000)).unwrap();
        ring.try_dequeue().unwrap().unwrap();
    }
    for sequence in 0..len {
        ring.enqueue(&message(words, sequence)).unwrap();
    }
    Scene {
        start,
        len,
        before: ring.counters().unwrap(),
    }
}

impl Scene {
    fn moved(&self, picture: &Picture<'_>) -> bool {
        picture.start_and_len() != (self.start, self.len as u32)
    }
}

/// Opens an image as a survivor would, twice, and takes everything out of it.
fn recovered(dir: &Path) -> Result<(Counters, Vec<u64>), String> {
    let path = dir.join("q");
    let first = Queue::open(&path)
        .and_then(|ring| ring.counters())
        .map_err(|e| e.to_string())?;
    let ring = Queue::open(&path).map_err(|e| e.to_string())?;
    let counters = ring.counters().map_err(|e| e.to_string())?;
    if first != counters {
        return Err(format!(
            "the second recovery counts differently: {first:?}, {counters:?}"
        ));
    }
    let seen = sequences(ring.snapshot().map_err(|e| e.to_string())?.into_iter().map(|m| m.data))?;
    let mut taken = Vec::new();
    while let Some(message) = ring.try_dequeue().map_err(|e| e.to_string())? {
        taken.push(message.data);
    }
    let taken = sequences(taken.into_iter())?;
    if seen != taken {
        return Err(format!("the snapshot shows {seen:?}, the queue gives {taken:?}"));
    }
    // The ring goes on as ever.
    let words = ring.msg_size();
    ring.enqueue(&message(words, 77)).map_err(|e| e.to_string())?;
    let after = ring
        .try_dequeue()
        .map_err(|e| e.to_string())?
        .ok_or("a message put after the recovery is gone")?;
    (sequences([after.data].into_iter())? == [77])
        .then_some(())
        .ok_or("another message came back")?;
    Ok((counters, taken))
}

fn sequences(messages: impl Iterator<Item = Vec<u8>>) -> Result<Vec<u64>, String> {
    messages
        .map(|data| {
            payload::parse_padded(&data)
                .map(|m| m.sequence)
                .map_err(|torn| format!("torn: {torn}"))
        })
        .collect()
}

/// What must hold after a death inside or behind the enqueue of message `len`.
fn judge_enqueue(moment: &Moment<'_>, scene: &Scene) -> Result<(), String> {
    let (len, before) = (scene.len, scene.before);
    let picture = Picture(moment.image.bytes("q"));
    let (counters, left) = recovered(&moment.dir)?;
    let full = len == u64::from(SLOTS);
    let old: Vec<u64> = (0..len).collect();
    let happened = counters.enqueued - before.enqueued;
    let released = !picture.header_held() && scene.moved(&picture);
    if happened > 1 || (moment.completed > 0 || released) && happened == 0 {
        return Err(format!("enqueued {happened} times, header released {released}"));
    }
    let mut expected = old[(happened as usize).min(usize::from(full))..].to_vec();
    let delivered = left.last() == Some(&len);
    if happened == 1 && delivered {
        expected.push(len);
    }
    let counted = Counters {
        enqueued: before.enqueued + happened,
        overwritten: before.overwritten + u64::from(full) * happened,
        abandoned: before.abandoned + u64::from(happened == 1 && !delivered),
        // An abandoned message stays in the queue until a reader passes it.
        queued: expected.len() as u64 + u64::from(happened == 1 && !delivered),
        ..before
    };
    if left != expected || counters != counted {
        return Err(format!(
            "left {left:?}, expected {expected:?}; counted {counters:?}, expected {counted:?}"
        ));
    }
    if moment.completed > 0 && !delivered {
        return Err("the enqueue returned and its message is lost".to_owned());
    }
    Ok(())
}

/// What must hold after a death inside or behind the dequeue of message 0.
fn judge_dequeue(moment: &Moment<'_>, scene: &Scene) -> Result<(), String> {
    let (len, before) = (scene.len, scene.before);
    let picture = Picture(moment.image.bytes("q"));
    let (counters, left) = recovered(&moment.dir)?;
    let moved = scene.moved(&picture);
    let in_hands = picture.slot_held(scene.start);
    let taken = left.len() as u64 + 1 == len;
    let lost = counters.lost_in_hands - before.lost_in_hands;
    let possible = match (moved, picture.header_held(), in_hands) {
        (false, ..) => !taken && lost == 0,
        // Whether it stands or is undone is up to the intent.
        (true, true, _) => taken == (lost == 1),
        (true, false, true) => taken && lost == 1,
        (true, false, false) => taken && lost == 0,
    };
    if !possible || (moment.completed > 0 && !taken) {
        return Err(format!(
            "moved {moved}, in hands {in_hands}, taken {taken}, lost {lost}"
        ));
    }
    let expected: Vec<u64> = (u64::from(taken)..len).collect();
    let counted = Counters {
        lost_in_hands: before.lost_in_hands + lost,
        queued: expected.len() as u64,
        ..before
    };
    if left != expected || counters != counted {
        return Err(format!(
            "left {left:?}, expected {expected:?}; counted {counters:?}, expected {counted:?}"
        ));
    }
    Ok(())
}

const STATES: [(&str, u32, u64); 5] = [
    ("empty", 0, 0),
    ("half full", 0, 2),
    ("full", 0, 4),
    ("wrapping", 3, 2),
    ("full and wrapping", 3, 4),
];

fn sizes() -> Vec<u32> {
    if soak() {
        vec![1 + SMALL, SMALL, 8, LARGE]
    } else {
        vec![SMALL]
    }
}

fn total(figures: &[(u64, usize)]) -> String {
    let instructions: u64 = figures.iter().map(|f| f.0).sum();
    let images: usize = figures.iter().map(|f| f.1).sum();
    format!(
        "{} scenarios, {instructions} instructions, {images} images recovered",
        figures.len()
    )
}

#[test]
fn killed_at_every_instruction_of_enqueue() {
    let _dog = Watchdog::start("killed enqueue", Duration::from_secs(1800));
    let mut figures = Vec::new();
    for words in sizes() {
        for (name, shift, len) in STATES {
            let dir = TestDir::shm();
            let scene = prepare(&dir, words, shift, len);
            let path = dir.queue().join("q");
            let report = StepKill::new(&dir).run(
                || Queue::open(&path).unwrap(),
                |ring, _| assert!(ring.enqueue(&message(words, len)).is_ok()),
                |moment| judge_enqueue(moment, &scene),
            );
            report.assert_ok(&format!("enqueue of {words} words to {name}"));
            figures.push((report.instructions, report.recovered));
        }
    }
    announce(&format!("ring enqueue: {}", total(&figures)));
}

#[test]
fn killed_at_every_instruction_of_dequeue() {
    let _dog = Watchdog::start("killed dequeue", Duration::from_secs(1800));
    let mut figures = Vec::new();
    for words in sizes() {
        for (name, shift, len) in STATES.into_iter().filter(|state| state.2 > 0) {
            let dir = TestDir::shm();
            let scene = prepare(&dir, words, shift, len);
            let path = dir.queue().join("q");
            let report = StepKill::new(&dir).run(
                || Queue::open(&path).unwrap(),
                |ring, _| {
                    let got = ring.try_dequeue().unwrap().expect("a message is there");
                    assert_eq!(payload::parse_padded(&got.data).unwrap().sequence, 0);
                },
                |moment| judge_dequeue(moment, &scene),
            );
            report.assert_ok(&format!("dequeue of {words} words from {name}"));
            figures.push((report.instructions, report.recovered));
        }
    }
    announce(&format!("ring dequeue: {}", total(&figures)));
}

#[test]
fn killed_at_every_instruction_of_a_snapshot_nothing_changes() {
    let _dog = Watchdog::start("killed snapshot", Duration::from_secs(600));
    let dir = TestDir::shm();
    let before = prepare(&dir, SMALL, 3, 3).before;
    let path = dir.queue().join("q");
    let report = StepKill::new(&dir).operations(2).run(
        || Queue::open(&path).unwrap(),
        |ring, number| match number {
            0 => assert_eq!(ring.snapshot().unwrap().len(), 3),
            _ => assert_eq!(ring.latest().unwrap().unwrap().sequence, Some(5)),
        },
        |moment| match recovered(&moment.dir)? {
            (counters, left) if counters == before && left == [0, 1, 2] => Ok(()),
            other => Err(format!("{other:?}")),
        },
    );
    report.assert_ok("snapshot and latest");
    announce(&format!(
        "ring snapshot: {}",
        total(&[(report.instructions, report.recovered)])
    ));
}

/// The pictures of the document, met by the real enqueue and dequeue one instruction after the other.
#[test]
fn full_speed_passes_through_the_pictures_of_the_document() {
    if !tracee::SUPPORTED {
        return announce("SKIPPED: step-kill needs x86-64");
    }
    let _dog = Watchdog::start("pictures", Duration::from_secs(120));
    let dir = TestDir::shm();
    let path = dir.queue().join("q");
    drop(Queue::create(&path, 2, 3).unwrap());
    let mut seen: Vec<String> = Vec::new();
    let report = StepKill::new(&dir).operations(5).run(
        || Queue::open(&path).unwrap(),
        |ring, number| match number {
            0..3 => assert!(ring.enqueue(&[b"abc"[number]; 24]).is_ok()),
            _ => assert_eq!(ring.try_dequeue().unwrap().unwrap().data, [b"bc"[number - 3]; 24]),
        },
        |moment| {
            let drawn = Picture(moment.image.bytes("q")).drawn();
            if seen.last() != Some(&drawn) {
                seen.push(drawn);
            }
            Ok(())
        },
    );
    report.assert_ok("pictures");
    let expected = [
        "[. 0 0] {. ...} {. ...}",
        "[X 0 0] {. ...} {. ...}",
        "[X 0 0] {X ...} {. ...}",
        "[X 0 1] {X ...} {. ...}",
        "[. 0 1] {X ...} {. ...}",
        "[. 0 1] {X a..} {. ...}",
        "[. 0 1] {X aa.} {. ...}",
        "[. 0 1] {X aaa} {. ...}",
        "[. 0 1] {. aaa} {. ...}",
        "[X 0 1] {. aaa} {. ...}",
        "[X 0 1] {. aaa} {X ...}",
        "[X 0 2] {. aaa} {X ...}",
        "[. 0 2] {. aaa} {X ...}",
        "[. 0 2] {. aaa} {X b..}",
        "[. 0 2] {. aaa} {X bb.}",
        "[. 0 2] {. aaa} {X bbb}",
        "[. 0 2] {. aaa} {. bbb}",
        "[X 0 2] {. aaa} {. bbb}",
        "[X 0 2] {X aaa} {. bbb}",
        "[X 1 2] {X aaa} {. bbb}",
        "[. 1 2] {X aaa} {. bbb}",
        "[. 1 2] {X caa} {. bbb}",
        "[. 1 2] {X cca} {. bbb}",
        "[. 1 2] {X ccc} {. bbb}",
        "[. 1 2] {. ccc} {. bbb}",
        "[X 1 2] {. ccc} {. bbb}",
        "[X 1 2] {. ccc} {X bbb}",
        "[X 0 1] {. ccc} {X bbb}",
        "[. 0 1] {. ccc} {X bbb}",
        "[. 0 1] {. ccc} {. bbb}",
        "[X 0 1] {. ccc} {. bbb}",
        "[X 0 1] {X ccc} {. bbb}",
        "[X 1 0] {X ccc} {. bbb}",
        "[. 1 0] {X ccc} {. bbb}",
        "[. 1 0] {. ccc} {. bbb}",
    ];
    assert_eq!(seen, expected);
}

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
