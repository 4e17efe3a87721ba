//! Where everything is in the file of one queue, from the numbers that people chose; pure. The layout itself is drawn in
//! [`super::layout`].

use super::layout::{MAX_MESSAGE_SIZE, MAX_MESSAGES, SLOT_BITS, header, slot};
use super::options::Options;
use crate::shared::roster::Table;
use crate::{Error, Result};

const NODE: usize = 16;
const PAGE: usize = 4096;
const LARGEST_SEGMENT_UNITS: u32 = 4096;
const SMALLEST_SEGMENT_UNITS: u32 = 64;
const SMALLEST_UNIT: u32 = 128;
const MAX_CLASSES: usize = 26;

/// Where everything is; computed once from checked numbers and never read from the file again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// See [`Options`].
    pub max_messages: u32,
    /// See [`Options`].
    pub max_message_size: u32,
    /// Places in the roster.
    pub participants: u32,
    /// Bytes of a unit, a power of two.
    pub unit: u32,
    /// Units of a segment, a power of two.
    pub units: u32,
    /// Segments of the file.
    pub segments: u32,
    /// Units at the start of a segment that hold its state words and hints.
    pub reserved_units: u32,
    /// Places of the ring, a power of two.
    pub places: u64,
    // Powers of two as shifts: these are used with every message.
    unit_shift: u32,
    units_shift: u32,
    segment_shift: u32,
    places_shift: u32,
    strides: [u32; MAX_CLASSES],
    slots: [u32; MAX_CLASSES],
    classes: usize,
    open_words: usize,
    states: usize,
    table: usize,
    open: usize,
    ring: usize,
    heap: usize,
    first_segment: usize,
    length: usize,
}

impl Geometry {
    /// The file for `options`, or why there is none.
    pub fn new(options: &Options) -> Result<Self> {
        let range = |name: &str, value: u64, least: u64, most: u64| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            Err(Error::Invalid(format!(
                "{name} must be between {least} and {most}, not {value}"
            )))
        };
        range("max_messages", options.max_messages.into(), 1, MAX_MESSAGES.into())?;
        range(
            "max_message_size",
            options.max_message_size.into(),
            1,
            MAX_MESSAGE_SIZE.into(),
        )?;
        let slots = crate::shared::identity::SLOTS;
        range("participants", options.participants.into(), 1, slots.into())?;
        let (mut unit, mut units) = (SMALLEST_UNIT, LARGEST_SEGMENT_UNITS);
        // A small queue has small segments, so that several size classes find room in it.
        while units > SMALLEST_SEGMENT_UNITS && u64::from(unit * units) * 8 > options.max_bytes {
            units /= 2;
        }
        while !fits(unit, units, options.max_message_size) {
            if units < LARGEST_SEGMENT_UNITS {
                units *= 2;
            } else {
                unit *= 2;
            }
        }
        let segment = u64::from(unit) * u64::from(units);
        let most_segments = (1u64 << SLOT_BITS) / u64::from(units) - 1;
        range("max_bytes", options.max_bytes, segment, segment * most_segments)?;
        let segments = (options.max_bytes / segment) as u32;
        Geometry::from_parts(
            options.max_messages,
            options.max_message_size,
            options.participants,
            unit,
            units,
            segments,
        )
        .ok_or_else(|| Error::Invalid(format!("{options:?} needs more memory than can be addressed")))
    }

    /// Computes the places; `None` when the numbers cannot be those of a queue.
    pub fn from_parts(
        max_messages: u32,
        max_message_size: u32,
        participants: u32,
        unit: u32,
        units: u32,
        segments: u32,
    ) -> Option<Self> {
        let sound = (1..=MAX_MESSAGES).contains(&max_messages)
            && (1..=MAX_MESSAGE_SIZE).contains(&max_message_size)
            && (1..=crate::shared::identity::SLOTS).contains(&participants)
            && unit.is_power_of_two()
            && (64..=1 << 30).contains(&unit)
            && units.is_power_of_two()
            && (SMALLEST_SEGMENT_UNITS..=LARGEST_SEGMENT_UNITS).contains(&units)
            && segments >= 1
            && u64::from(segments) * u64::from(units) < 1 << SLOT_BITS
            && fits(unit, units, max_message_size);
        if !sound {
            return None;
        }
        let (strides, classes) = strides(units_for(unit, max_message_size));
        let usable = units - reserved_units(unit, units);
        let places = u64::from(max_messages).next_power_of_two();
        let table = header::LENGTH + roster(participants).length();
        let open = align(table.checked_add(4 * segments as usize)?, 64)?;
        let ring = align(open.checked_add(8 * classes * open_words(segments))?, 64)?;
        let heap = align(ring.checked_add(8 * places as usize)?, 64)?;
        let first_segment = align(heap.checked_add(NODE * max_messages as usize)?, PAGE)?;
        let segment = unit as usize * units as usize;
        let length = first_segment.checked_add(segment.checked_mul(segments as usize)?)?;
        Some(Geometry {
            max_messages,
            max_message_size,
            participants,
            unit,
            units,
            segments,
            reserved_units: reserved_units(unit, units),
            places,
            unit_shift: unit.trailing_zeros(),
            units_shift: units.trailing_zeros(),
            segment_shift: unit.trailing_zeros() + units.trailing_zeros(),
            places_shift: places.trailing_zeros(),
            strides,
            slots: strides.map(|stride| usable.checked_div(stride).unwrap_or(0)),
            classes,
            open_words: open_words(segments),
            states: 8 + units as usize / 8,
            table,
            open,
            ring,
            heap,
            first_segment,
            length: isize::try_from(length).ok()? as usize,
        })
    }

    /// Bytes of the whole file.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Bytes from the start that have to have space on disk before anything works.
    pub fn always_allocated(&self) -> usize {
        self.ring
    }

    /// Where the roster is.
    pub fn roster(&self) -> Table {
        roster(self.participants)
    }

    /// How many size classes there are.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// Units of each slot of a class.
    pub fn stride(&self, class: usize) -> u32 {
        self.strides[class]
    }

    /// The class whose slots are just large enough; `None` when the message is too large for all.
    #[inline]
    pub fn class_for(&self, message: usize) -> Option<usize> {
        if message > self.max_message_size as usize {
            return None;
        }
        let units = (message as u32 + slot::BYTES as u32 + self.unit - 1) >> self.unit_shift;
        self.strides[..self.classes].iter().position(|stride| *stride >= units)
    }

    /// Slots of this class in a segment.
    #[inline]
    pub fn slots_in_segment(&self, class: usize) -> u32 {
        self.slots[class]
    }

    /// The word of a segment in the table.
    #[inline]
    pub fn table_word(&self, segment: u32) -> usize {
        self.table + 4 * segment as usize
    }

    /// Words of the open hints of one class.
    #[inline]
    pub fn open_words(&self) -> usize {
        self.open_words
    }

    /// One word of the open hints of a class.
    #[inline]
    pub fn open_word(&self, class: usize, word: usize) -> usize {
        self.open + 8 * (class * self.open_words() + word)
    }

    /// The place of a ticket.
    #[inline]
    pub fn place(&self, ticket: u64) -> usize {
        self.ring + 8 * (ticket & (self.places - 1)) as usize
    }

    /// How often the ring had been gone around when this ticket was given.
    #[inline]
    pub fn lap(&self, ticket: u64) -> u64 {
        ticket >> self.places_shift
    }

    /// A node of the heap; `node` is below `max_messages`.
    #[inline]
    pub fn node(&self, node: u32) -> usize {
        debug_assert!(node < self.max_messages);
        self.heap + NODE * node as usize
    }

    /// First byte and length of a segment.
    #[inline]
    pub fn segment(&self, segment: u32) -> (usize, usize) {
        let shift = self.segment_shift;
        (self.first_segment + ((segment as usize) << shift), 1 << shift)
    }

    /// The groups of a segment that have no free slot.
    #[inline]
    pub fn full_groups(&self, segment: u32) -> usize {
        self.segment(segment).0
    }

    /// The taken slots of one group of 64.
    #[inline]
    pub fn taken(&self, segment: u32, group: u32) -> usize {
        self.segment(segment).0 + 8 + 8 * group as usize
    }

    /// The slot that a number found in the file names, if it can be one.
    #[inline]
    pub fn slot(&self, number: u32) -> Option<Slot> {
        let (segment, unit) = (number >> self.units_shift, number & (self.units - 1));
        (segment < self.segments && unit >= self.reserved_units).then(|| self.slot_of(segment, unit))
    }

    /// A slot by its segment, class and place in the segment.
    #[inline]
    pub fn slot_at(&self, segment: u32, class: usize, index: u32) -> Slot {
        self.slot_of(segment, self.reserved_units + index * self.stride(class))
    }

    #[inline]
    fn slot_of(&self, segment: u32, unit: u32) -> Slot {
        let start = self.segment(segment).0;
        Slot {
            number: segment << self.units_shift | unit,
            unit,
            head: start + ((unit as usize) << self.unit_shift),
            state: start + self.states + 4 * unit as usize,
        }
    }

    /// The place of a slot in its segment when that has this class; `None` when no slot of the class starts there.
    #[inline]
    pub fn index_of(&self, slot: Slot, class: usize) -> Option<u32> {
        let (unit, stride) = (slot.unit - self.reserved_units, self.stride(class));
        // Most messages are small, and a division is slow.
        let index = if stride == 1 { unit } else { unit / stride };
        (index * stride == unit && index < self.slots_in_segment(class)).then_some(index)
    }

    /// The segment that a slot is in.
    #[inline]
    pub fn segment_of(&self, slot: Slot) -> u32 {
        slot.number >> self.units_shift
    }

    /// The state word of a slot.
    #[inline]
    pub fn state(&self, slot: Slot) -> usize {
        slot.state
    }

    /// A field of a slot, see [`slot`].
    #[inline]
    pub fn field(&self, slot: Slot, field: usize) -> usize {
        slot.head + field
    }

    /// Where a message of this length lies; `None` when no honest message can have it in this slot.
    #[inline]
    pub fn bytes(&self, slot: Slot, length: u32) -> Option<usize> {
        let room = ((self.units - slot.unit) as usize) << self.unit_shift;
        let room = room - slot::BYTES;
        (length <= self.max_message_size && length as usize <= room).then(|| self.field(slot, slot::BYTES))
    }
}

/// A slot that is inside the file. Where its words are is computed once, when it is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slot {
    number: u32,
    unit: u32,
    head: usize,
    state: usize,
}

impl Slot {
    /// As stored.
    #[inline]
    pub fn number(self) -> u32 {
        self.number
    }
}

fn roster(participants: u32) -> Table {
    Table {
        offset: header::LENGTH,
        slots: participants,
    }
}

fn open_words(segments: u32) -> usize {
    segments.div_ceil(64) as usize
}

fn align(offset: usize, to: usize) -> Option<usize> {
    offset.checked_next_multiple_of(to)
}

fn units_for(unit: u32, message: u32) -> u32 {
    (message + slot::BYTES as u32).div_ceil(unit)
}

fn reserved_units(unit: u32, units: u32) -> u32 {
    (8 + units / 64 * 8 + units * 4).div_ceil(unit).max(1)
}

fn fits(unit: u32, units: u32, message: u32) -> bool {
    units > reserved_units(unit, units) && units_for(unit, message) <= units - reserved_units(unit, units)
}

/// 1, 2, 3, 4, 6, 8, 12, 16, ... up to what the largest message needs: at most a third of a slot is wasted.
fn strides(largest: u32) -> ([u32; MAX_CLASSES], usize) {
    let mut strides = [0; MAX_CLASSES];
    let mut classes = 0;
    let mut power = 1;
    while power < largest {
        strides[classes] = power;
        classes += 1;
        if power > 1 && power / 2 * 3 < largest {
            strides[classes] = power / 2 * 3;
            classes += 1;
        }
        power *= 2;
    }
    strides[classes] = largest;
    (strides, classes + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_default_queue_is_addressable_and_small_at_first() {
        let geometry = Geometry::new(&Options::default()).unwrap();
        assert_eq!((geometry.unit, geometry.units, geometry.segments), (128, 4096, 2048));
        assert!(geometry.length() > 1 << 30);
        assert!(geometry.always_allocated() < 64 << 10);
    }

    #[test]
    fn every_size_finds_the_smallest_class_that_holds_it() {
        for (size, max_bytes) in [(1, 1 << 20), (1000, 1 << 20), (65_536, 1 << 30), (1 << 20, 1 << 30)] {
            let options = Options {
                max_message_size: size,
                max_bytes,
                ..Options::default()
            };
            let geometry = Geometry::new(&options).unwrap();
            for length in (0..=size).step_by(97).chain([size]) {
                let class = geometry.class_for(length as usize).unwrap();
                let room = |class| (geometry.stride(class) * geometry.unit) as usize - slot::BYTES;
                assert!(room(class) >= length as usize);
                assert!(class == 0 || room(class - 1) < length as usize);
                assert!(geometry.slots_in_segment(class) >= 1);
            }
            assert_eq!(geometry.class_for(size as usize + 1), None);
        }
    }

    #[test]
    fn slots_stay_inside_their_segment_and_come_back_from_their_number() {
        let options = Options {
            max_bytes: 64 << 10,
            max_message_size: 1000,
            ..Options::default()
        };
        let geometry = Geometry::new(&options).unwrap();
        for segment in 0..geometry.segments {
            let (start, length) = geometry.segment(segment);
            for class in 0..geometry.classes() {
                for index in 0..geometry.slots_in_segment(class) {
                    let slot = geometry.slot_at(segment, class, index);
                    assert_eq!(geometry.slot(slot.number()), Some(slot));
                    assert_eq!(geometry.index_of(slot, class), Some(index));
                    let reserved = start + (geometry.reserved_units * geometry.unit) as usize;
                    assert!(geometry.state(slot) + 4 <= reserved);
                    let end = geometry.field(slot, 0) + (geometry.stride(class) * geometry.unit) as usize;
                    assert!(geometry.field(slot, 0) >= reserved && end <= start + length);
                }
            }
        }
        assert_eq!(geometry.slot(0), None, "the state words are no slot");
        assert_eq!(geometry.slot(geometry.segments * geometry.units), None);
        assert_eq!(geometry.slot(u32::MAX), None);
    }

    #[test]
    fn wrong_numbers_are_refused_with_their_limits() {
        let refused = |options: Options| Geometry::new(&options).unwrap_err().to_string();
        let default = Options::default;
        let text = refused(Options {
            max_messages: 0,
            ..default()
        });
        assert!(
            text.contains("max_messages must be between 1 and 67108864, not 0"),
            "{text}"
        );
        let text = refused(Options {
            max_message_size: 0,
            ..default()
        });
        assert!(text.contains("max_message_size"), "{text}");
        let text = refused(Options {
            max_bytes: 1000,
            ..default()
        });
        assert!(text.contains("max_bytes"), "{text}");
        assert_eq!(
            Geometry::from_parts(8, 200, 16, 100, 64, 2),
            None,
            "a unit of 100 bytes"
        );
        assert_eq!(Geometry::from_parts(8, 200, 16, 128, 64, 0), None, "no segment");
        assert_eq!(
            Geometry::from_parts(8, 1 << 20, 16, 128, 64, 2),
            None,
            "no slot is so large"
        );
        assert_eq!(Geometry::from_parts(8, 200, 16, 128, 64, u32::MAX), None);
    }
}
