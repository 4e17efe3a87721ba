//! The ring killed at every instruction of enqueue, of dequeue, of batches of both, and of a snapshot.
//!
//! The judge knows only the document and the counters. After each death every message that was ever in the ring has exactly
//! one fate, the counters say which, and nothing that is delivered is torn.

mod common;

use std::time::Duration;

use common::dirs::TestDir;
use common::ring_scene::{LARGE, Picture, SLOTS, SMALL, Scene, message, prepare, prepare_slots, recovered, total};
use common::stepkill::{Moment, StepKill};
use common::watchdog::Watchdog;
use common::{announce, payload, soak, tracee};
use tailrace::ring::{Counters, Queue};

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

/// The least that takes two at a time, three times two of them, and a seventh alone.
const BATCH_SLOTS: u32 = 8;
const BATCH: u64 = 7;
const IN_HAND: u64 = 2;

const BATCH_STATES: [(&str, u32, u64); 4] = [
    ("empty", 0, 0),
    ("half full", 5, 4),
    ("nearly full", 2, 7),
    ("full and wrapping", 7, 8),
];

/// What must hold after a death inside or behind the enqueue of a batch of messages from `len` on.
fn judge_enqueue_many(moment: &Moment<'_>, scene: &Scene) -> Result<(), String> {
    let (len, before) = (scene.len, scene.before);
    let picture = Picture(moment.image.bytes("q"));
    let (counters, left) = recovered(&moment.dir)?;
    let happened = counters.enqueued - before.enqueued;
    let gone = (len + happened).saturating_sub(BATCH_SLOTS.into());
    let delivered = left.iter().filter(|sequence| **sequence >= len).count() as u64;
    // They are unlocked in order, so whatever is delivered is the first ones.
    let expected: Vec<u64> = (gone..len + delivered).collect();
    let counted = Counters {
        enqueued: before.enqueued + happened,
        overwritten: before.overwritten + gone,
        abandoned: before.abandoned + happened - delivered,
        queued: len + happened - gone,
        ..before
    };
    if left != expected || counters != counted {
        return Err(format!(
            "left {left:?}, expected {expected:?}; counted {counters:?}, expected {counted:?}"
        ));
    }
    let held = picture.held();
    let undone = held - (happened - delivered);
    if held > IN_HAND || undone > u64::from(picture.header_held()) {
        return Err(format!("{held} in hand, {happened} happened, {delivered} delivered"));
    }
    if happened > BATCH || moment.completed > 0 && delivered < BATCH {
        return Err(format!("{happened} happened, {delivered} delivered"));
    }
    Ok(())
}

/// What must hold after a death inside or behind the dequeue of a batch.
fn judge_dequeue_many(moment: &Moment<'_>, scene: &Scene) -> Result<(), String> {
    let (len, before) = (scene.len, scene.before);
    let picture = Picture(moment.image.bytes("q"));
    let (counters, left) = recovered(&moment.dir)?;
    let taken = len - left.len() as u64;
    let lost = counters.lost_in_hands - before.lost_in_hands;
    let expected: Vec<u64> = (taken..len).collect();
    let counted = Counters {
        lost_in_hands: before.lost_in_hands + lost,
        queued: len - taken,
        ..before
    };
    if left != expected || counters != counted {
        return Err(format!(
            "left {left:?}, expected {expected:?}; counted {counters:?}, expected {counted:?}"
        ));
    }
    let held = picture.held();
    if held > IN_HAND || lost > taken || held - lost > u64::from(picture.header_held()) {
        return Err(format!("{held} in hand, {taken} taken, {lost} lost"));
    }
    if moment.completed > 0 && taken < len.min(BATCH) {
        return Err(format!("the dequeue returned and took {taken}"));
    }
    Ok(())
}

#[test]
fn killed_at_every_instruction_of_a_batch_enqueue() {
    let _dog = Watchdog::start("killed batch enqueue", Duration::from_secs(1800));
    let mut figures = Vec::new();
    for words in sizes() {
        for (name, shift, len) in BATCH_STATES {
            let dir = TestDir::shm();
            let scene = prepare_slots(&dir, BATCH_SLOTS, words, shift, len);
            let path = dir.queue().join("q");
            let batch: Vec<_> = (len..len + BATCH).map(|sequence| message(words, sequence)).collect();
            let batch: Vec<&[u8]> = batch.iter().map(Vec::as_slice).collect();
            let report = StepKill::new(&dir).run(
                || Queue::open(&path).unwrap(),
                |ring, _| ring.enqueue_many(&batch).unwrap(),
                |moment| judge_enqueue_many(moment, &scene),
            );
            report.assert_ok(&format!("enqueue of a batch of {words} words to {name}"));
            figures.push((report.instructions, report.recovered));
        }
    }
    announce(&format!("ring batch enqueue: {}", total(&figures)));
}

#[test]
fn killed_at_every_instruction_of_a_batch_dequeue() {
    let _dog = Watchdog::start("killed batch dequeue", Duration::from_secs(1800));
    let mut figures = Vec::new();
    for words in sizes() {
        for (name, shift, len) in BATCH_STATES.into_iter().filter(|state| state.2 > 0) {
            let dir = TestDir::shm();
            let scene = prepare_slots(&dir, BATCH_SLOTS, words, shift, len);
            let path = dir.queue().join("q");
            let report = StepKill::new(&dir).run(
                || Queue::open(&path).unwrap(),
                |ring, _| {
                    let got = ring.try_dequeue_many(BATCH as usize).unwrap();
                    let numbers = got.iter().map(|m| payload::parse_padded(&m.data).unwrap().sequence);
                    assert!(numbers.eq(0..len.min(BATCH)));
                },
                |moment| judge_dequeue_many(moment, &scene),
            );
            report.assert_ok(&format!("dequeue of a batch of {words} words from {name}"));
            figures.push((report.instructions, report.recovered));
        }
    }
    announce(&format!("ring batch dequeue: {}", total(&figures)));
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
