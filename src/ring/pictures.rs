//! Every picture of the document, word by word, the states in between included.
//!
//! The protocol is walked step by step with the functions that [`Queue::enqueue`] and [`Queue::try_dequeue`] are made of;
//! that those pass through the same states at full speed is shown instruction by instruction in `tests/ring_steps.rs`.

use super::layout::Range;
use super::queue::Queue;
use super::read::{self, ReadHold};
use super::suspects::Suspects;
use super::write::{self, WriteHold};
use crate::shared::identity::Purpose;
use crate::shared::signal::Wait;
use crate::shared::sync::Ordering;

/// The ring of the document: five slots of three words. Letters stand for a word of that byte, dots for zeros.
fn ring(start: u32, len: u32, slots: [&str; 5]) -> Queue {
    let ring = Queue::anonymous(5, 3).unwrap();
    for (slot, letters) in (0..).zip(slots) {
        ring.memory.write(slot, &data(letters));
    }
    ring.move_to(Range { start, len });
    assert_picture(
        &ring,
        &format!("[. {start} {len}]"),
        slots.map(|letters| format!("{{. {letters}}}")),
    );
    ring
}

fn data(letters: &str) -> Vec<u8> {
    letters
        .bytes()
        .flat_map(|letter| [if letter == b'.' { 0 } else { letter }; 8])
        .collect()
}

/// Draws the ring as the document does and compares.
#[track_caller]
fn assert_picture(ring: &Queue, header: &str, slots: [String; 5]) {
    let memory = &ring.memory;
    let lock = |word: u64| if word == 0 { '.' } else { 'X' };
    let range = memory.range().unwrap();
    let held = lock(memory.header_lock().load(Ordering::Relaxed));
    assert_eq!(format!("[{held} {} {}]", range.start, range.len), header);
    let drawn = [0, 1, 2, 3, 4].map(|slot| {
        let mut bytes = [0; 24];
        memory.read(slot, &mut bytes);
        let letters: String = bytes
            .chunks(8)
            .map(|word| {
                assert!(word.iter().all(|byte| *byte == word[0]), "half a word in slot {slot}");
                if word[0] == 0 { '.' } else { char::from(word[0]) }
            })
            .collect();
        format!("{{{} {letters}}}", lock(memory.lock(slot).load(Ordering::Relaxed)))
    });
    assert_eq!(drawn, slots);
    // The same words once more, as a program that knows only the document reads them.
    assert_eq!(
        ring.memory.ring().u64(24).load(Ordering::Relaxed),
        u64::from(range.start) | u64::from(range.len) << 32
    );
}

/// Walks through an enqueue; the pictures are those behind "Queue is ..." in the document, with the one that it leaves out
/// (the slot is locked before START and LEN say so) in third place.
fn enqueue(ring: &Queue, letters: &str, pictures: [(&str, [&str; 5]); 6]) {
    let mut pictures = pictures.into_iter();
    let mut check = || {
        let (header, slots) = pictures.next().expect("one picture for each step");
        assert_picture(ring, header, slots.map(str::to_owned));
    };
    let header = ring.header(Wait::No).unwrap();
    check();
    let write::Choice::Take(taking) = ring.choose(&Suspects::default()).unwrap() else {
        panic!("nothing is in the way");
    };
    let word = ring.roster.me().unwrap().with(Purpose::Work).word();
    let sequence = ring.lock_slot(&taking, word).expect("the slot is free");
    check();
    ring.publish(&taking, sequence);
    check();
    drop(header);
    check();
    let hold = WriteHold {
        queue: ring,
        slot: taking.slot,
        word,
        sequence,
    };
    hold.write(&data(letters));
    check();
    hold.unlock();
    check();
}

/// Walks through a dequeue, and checks what came out.
fn dequeue(ring: &Queue, letters: &str, pictures: [(&str, [&str; 5]); 6]) {
    let mut pictures = pictures.into_iter();
    let mut check = || {
        let (header, slots) = pictures.next().expect("one picture for each step");
        assert_picture(ring, header, slots.map(str::to_owned));
    };
    let header = ring.header(Wait::No).unwrap();
    check();
    let read::Choice::Take(taking) = ring.choose_message(&Suspects::default()).unwrap() else {
        panic!("a message is there");
    };
    let word = ring.reader_word(Purpose::Read).unwrap();
    let enqueued = ring.lock_slot(&taking, word).expect("the slot is free");
    check();
    ring.publish(&taking, enqueued);
    check();
    drop(header);
    check();
    let hold = ReadHold {
        queue: ring,
        slot: taking.slot,
        word,
        sequence: None,
    };
    let mut out = vec![0; 24];
    ring.memory.read(hold.slot, &mut out);
    check();
    assert!(hold.finish().is_some());
    check();
    assert_eq!(out, data(letters));
}

const FREE: &str = "{. ...}";

#[test]
fn enqueue_to_empty() {
    let ring = ring(0, 0, ["..."; 5]);
    enqueue(
        &ring,
        "aaa",
        [
            ("[X 0 0]", [FREE; 5]),
            ("[X 0 0]", ["{X ...}", FREE, FREE, FREE, FREE]),
            ("[X 0 1]", ["{X ...}", FREE, FREE, FREE, FREE]),
            ("[. 0 1]", ["{X ...}", FREE, FREE, FREE, FREE]),
            ("[. 0 1]", ["{X aaa}", FREE, FREE, FREE, FREE]),
            ("[. 0 1]", ["{. aaa}", FREE, FREE, FREE, FREE]),
        ],
    );
}

#[test]
fn enqueue_to_full() {
    let ring = ring(0, 5, ["aaa", "bbb", "ccc", "ddd", "eee"]);
    let rest = ["{. bbb}", "{. ccc}", "{. ddd}", "{. eee}"];
    let with = |first| [first, rest[0], rest[1], rest[2], rest[3]];
    enqueue(
        &ring,
        "fff",
        [
            ("[X 0 5]", with("{. aaa}")),
            ("[X 0 5]", with("{X aaa}")),
            ("[X 1 5]", with("{X aaa}")),
            ("[. 1 5]", with("{X aaa}")),
            ("[. 1 5]", with("{X fff}")),
            ("[. 1 5]", with("{. fff}")),
        ],
    );
    assert_eq!(ring.counters().unwrap().overwritten, 1);
}

#[test]
fn enqueue_to_full_with_max_shift() {
    let ring = ring(4, 5, ["fff", "ggg", "hhh", "iii", "eee"]);
    let with = |last| ["{. fff}", "{. ggg}", "{. hhh}", "{. iii}", last];
    enqueue(
        &ring,
        "jjj",
        [
            ("[X 4 5]", with("{. eee}")),
            ("[X 4 5]", with("{X eee}")),
            ("[X 0 5]", with("{X eee}")),
            ("[. 0 5]", with("{X eee}")),
            ("[. 0 5]", with("{X jjj}")),
            ("[. 0 5]", with("{. jjj}")),
        ],
    );
}

#[test]
fn dequeue_from_empty_waits_and_then_goes_on_as_below() {
    let ring = ring(4, 0, ["..."; 5]);
    assert!(ring.try_dequeue().unwrap().is_none());
    assert_picture(&ring, "[. 4 0]", [FREE; 5].map(str::to_owned));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| ring.dequeue(Wait::Forever).unwrap());
        // START keeps its value when the queue runs empty.
        assert_eq!(ring.enqueue(&data("kkk")).unwrap(), 0);
        assert_eq!(reader.join().unwrap().data, data("kkk"));
    });
    assert_picture(&ring, "[. 0 0]", [FREE, FREE, FREE, FREE, "{. kkk}"].map(str::to_owned));
}

#[test]
fn dequeue_from_half_full() {
    let ring = ring(0, 3, ["aaa", "bbb", "ccc", "...", "..."]);
    let with = |first| [first, "{. bbb}", "{. ccc}", FREE, FREE];
    dequeue(
        &ring,
        "aaa",
        [
            ("[X 0 3]", with("{. aaa}")),
            ("[X 0 3]", with("{X aaa}")),
            ("[X 1 2]", with("{X aaa}")),
            ("[. 1 2]", with("{X aaa}")),
            ("[. 1 2]", with("{X aaa}")),
            ("[. 1 2]", with("{. aaa}")),
        ],
    );
}

#[test]
fn dequeue_from_shifted() {
    let ring = ring(3, 3, ["fff", "...", "...", "ddd", "eee"]);
    let with = |fourth| ["{. fff}", FREE, FREE, fourth, "{. eee}"];
    dequeue(
        &ring,
        "ddd",
        [
            ("[X 3 3]", with("{. ddd}")),
            ("[X 3 3]", with("{X ddd}")),
            ("[X 4 2]", with("{X ddd}")),
            ("[. 4 2]", with("{X ddd}")),
            ("[. 4 2]", with("{X ddd}")),
            ("[. 4 2]", with("{. ddd}")),
        ],
    );
}

#[test]
fn a_panicking_writer_abandons_and_a_panicking_reader_loses() {
    let ring = ring(0, 0, ["..."; 5]);
    drop(ring.claim(Wait::No).unwrap());
    drop(ring.claim_many(2).unwrap());
    ring.enqueue(&data("bbb")).unwrap();
    ring.enqueue(&data("ccc")).unwrap();
    drop(
        ring.take_oldest(&mut Suspects::default())
            .unwrap()
            .expect("bbb is there"),
    );
    assert_eq!(ring.try_dequeue().unwrap().unwrap().data, data("ccc"));
    let counters = ring.counters().unwrap();
    assert_eq!(
        (
            counters.enqueued,
            counters.abandoned,
            counters.lost_in_hands,
            counters.queued
        ),
        (5, 3, 1, 0)
    );
}

/// A writer keeps its slot while a whole turn of the ring goes past it: its message is then among newer ones.
#[test]
fn looks_know_an_overtaken_message() {
    let ring = Queue::anonymous(3, 1).unwrap();
    let slow = ring.claim(Wait::No).unwrap();
    let sequences = || -> Vec<_> {
        let messages = ring.snapshot().unwrap();
        messages.iter().map(|message| message.sequence.unwrap()).collect()
    };
    for number in 1..=5 {
        assert_eq!(ring.enqueue(&[number]).unwrap(), u64::from(number));
    }
    slow.write(b"late");
    slow.unlock();
    assert_eq!(sequences(), [0, 4, 5]);
    for number in 6..=8 {
        assert_eq!(ring.latest().unwrap().unwrap().sequence, Some(number - 1));
        ring.enqueue(&[number as u8]).unwrap();
    }
    assert_eq!(sequences(), [6, 7, 8]);
    assert_eq!(ring.latest().unwrap().unwrap().data[0], 8);
}

#[test]
fn the_latest_is_an_overtaken_message_only_where_there_is_no_other() {
    let ring = Queue::anonymous(3, 1).unwrap();
    let slow = ring.claim(Wait::No).unwrap();
    ring.enqueue(b"1").unwrap();
    ring.enqueue(b"2").unwrap();
    let writing = ring.claim(Wait::No).unwrap();
    slow.write(b"late");
    slow.unlock();
    assert_eq!(ring.latest().unwrap().unwrap().sequence, Some(2));
    assert_eq!(ring.try_dequeue().unwrap().unwrap().sequence, Some(2));
    assert_eq!(ring.latest().unwrap().unwrap().sequence, Some(0));
    writing.write(b"3");
    writing.unlock();
    assert_eq!(ring.latest().unwrap().unwrap().sequence, Some(3));
}
