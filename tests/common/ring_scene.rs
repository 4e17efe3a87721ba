//! Small rings for the step-kill tests: what a picture of the document shows, a ring to begin with, what is recovered from it.

use std::path::Path;

use tailrace::ring::{Counters, Queue};

use super::dirs::TestDir;
use super::payload;

pub const SLOTS: u32 = 4;
/// Three words; a message of one word less than that shows the padding.
pub const SMALL: u32 = 3;
/// More than a page.
pub const LARGE: u32 = 513;

/// The documented words of an image.
pub struct Picture<'a>(pub &'a [u8]);

impl Picture<'_> {
    pub fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.0[at..at + 8].try_into().unwrap())
    }

    pub fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.0[at..at + 4].try_into().unwrap())
    }

    pub fn stride(&self) -> usize {
        8 + 8 * self.u32(12) as usize
    }

    pub fn header_held(&self) -> bool {
        self.u64(16) != 0
    }

    pub fn start_and_len(&self) -> (u32, u32) {
        (self.u32(24), self.u32(28))
    }

    /// Slots that somebody has in hand.
    pub fn held(&self) -> u64 {
        (0..self.u32(8)).filter(|slot| self.slot_held(*slot)).count() as u64
    }

    pub fn slot_held(&self, slot: u32) -> bool {
        self.u64(32 + slot as usize * self.stride()) != 0
    }

    /// As the document draws it.
    pub fn drawn(&self) -> String {
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

pub fn message(words: u32, sequence: u64) -> Vec<u8> {
    payload::make(1, sequence, 8 * words as usize - 1)
}

/// Before the first operation: START is `start`, messages `0..len` wait.
#[derive(Clone, Copy)]
pub struct Scene {
    pub start: u32,
    pub len: u64,
    pub before: Counters,
}

pub fn prepare(dir: &TestDir, words: u32, start: u32, len: u64) -> Scene {
    prepare_slots(dir, SLOTS, words, start, len)
}

/// As [`prepare`], with another number of slots.
pub fn prepare_slots(dir: &TestDir, slots: u32, words: u32, start: u32, len: u64) -> Scene {
    let ring = Queue::create(&dir.queue().join("q"), slots, words).unwrap();
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
    pub fn moved(&self, picture: &Picture<'_>) -> bool {
        picture.start_and_len() != (self.start, self.len as u32)
    }
}

/// Opens an image as a survivor would, twice, and takes everything out of it.
pub fn recovered(dir: &Path) -> Result<(Counters, Vec<u64>), String> {
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

pub fn sequences(messages: impl Iterator<Item = Vec<u8>>) -> Result<Vec<u64>, String> {
    messages
        .map(|data| {
            payload::parse_padded(&data)
                .map(|m| m.sequence)
                .map_err(|torn| format!("torn: {torn}"))
        })
        .collect()
}

pub fn total(figures: &[(u64, usize)]) -> String {
    let instructions: u64 = figures.iter().map(|f| f.0).sum();
    let images: usize = figures.iter().map(|f| f.1).sum();
    format!(
        "{} scenarios, {instructions} instructions, {images} images recovered",
        figures.len()
    )
}
