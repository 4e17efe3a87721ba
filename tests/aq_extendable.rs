//! What the original's own tests say about items that grow (facts/aq 1.5).

mod common;

use std::sync::atomic::Ordering;

use common::aq_ring::{PAGE, PAGES, Ring, link_word, scribble};
use tailrace::Error;
use tailrace::aq::Options;
use tailrace::aq::control::Reference;

const EXTENDABLE: Options = Options {
    crc32: false,
    link_identifier: false,
    extendable: true,
};

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| b'a' + (index % 26) as u8).collect()
}

/// Sizes around a page, written to items that hold so much already.
#[test]
fn extendable_items_grow_by_what_is_written() {
    for crc32 in [false, true] {
        for start in [0, 2, PAGE, PAGE + 2, 2 * PAGE, 3 * PAGE - 1] {
            for more in [0, 1, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE, 2 * PAGE + 1, 3 * PAGE + 1] {
                for first in [0, PAGE, 2 * PAGE] {
                    let mut ring = Ring::with(Options { crc32, ..EXTENDABLE });
                    let mut claim = ring.writer.try_claim(first).unwrap().unwrap();
                    assert_eq!((claim.size(), claim.capacity()), (0, first.max(PAGE)));
                    let data = pattern(start + more);
                    assert!(claim.write(None, &data[..start]).unwrap());
                    assert!(claim.write(None, &data[start..]).unwrap());
                    assert_eq!(claim.size(), start + more);
                    assert!(claim.commit().unwrap());
                    let (_, item) = ring.retrieve().unwrap();
                    let context = format!("{first} {start} {more}");
                    assert_eq!(ring.reader.to_vec(&item), data, "{context}");
                    assert!(item.is_committed() && item.is_checksum_valid(), "{context}");
                    let shown = ring.queue.snapshot().unwrap();
                    assert_eq!(shown.items()[0].bytes(), data, "{context}");
                    ring.reader.release(item).unwrap();
                    assert!(ring.is_empty(), "{context}");
                    let shown = ring.queue.snapshot().unwrap();
                    assert!(
                        shown.items()[0].is_released() && shown.items()[0].bytes() == data,
                        "{context}"
                    );
                }
            }
        }
    }
}

#[test]
fn items_grow_across_the_end_of_the_nine_bit_sequence() {
    for segments in [2, 3, 4] {
        for before in [1, 2] {
            let start = Reference::new(0x1FF, PAGES - before);
            let mut ring = Ring::between(start, start, EXTENDABLE);
            let mut claim = ring.writer.try_claim(0).unwrap().unwrap();
            let data = pattern(segments * PAGE);
            for part in data.chunks(PAGE) {
                assert!(claim.write(None, part).unwrap());
            }
            assert_eq!(claim.segment_count(), segments);
            claim.commit().unwrap();
            let (_, item) = ring.retrieve().unwrap();
            assert_eq!((ring.reader.to_vec(&item), item.segment_count()), (data, segments));
        }
    }
}

#[test]
fn an_extension_that_does_not_fit_changes_nothing() {
    for used in [0, 2] {
        let ring = Ring::with(EXTENDABLE);
        let mut claim = ring.writer.try_claim(0).unwrap().unwrap();
        claim.write(None, &pattern(used)).unwrap();
        let head = ring.head();
        assert!(!claim.write(None, &pattern(PAGES as usize * PAGE)).unwrap());
        assert!(matches!(claim.write(Some(0x20_0000), b"x"), Err(Error::Invalid(_))));
        assert_eq!((claim.size(), claim.capacity(), ring.head()), (used, PAGE, head));
    }
}

#[test]
fn extendable_writes_at_offsets() {
    let mut ring = Ring::with(EXTENDABLE);
    let mut claim = ring.writer.try_claim(0).unwrap().unwrap();
    assert!(claim.write(Some(9), b"jk").unwrap(), "past the end extends");
    assert_eq!((claim.size(), claim.segment_count()), (11, 2));
    assert!(claim.write(Some(0), b"abcdefghi").unwrap(), "inside keeps the size");
    assert_eq!(claim.size(), 11);
    assert!(claim.write(None, b"l").unwrap());
    claim.commit().unwrap();
    let (_, item) = ring.retrieve().unwrap();
    assert_eq!(ring.reader.to_vec(&item), b"abcdefghijkl");
}

#[test]
fn extendable_text_fills_what_is_left_and_is_cut_there() {
    let left = (PAGES as usize - 1) * PAGE;
    for (length, result) in [
        (PAGE, PAGE as isize),
        (PAGE + 1, PAGE as isize + 1),
        (3 * PAGE, 3 * PAGE as isize),
        (left, left as isize),
        (left + 1, !(left as isize)),
    ] {
        let mut ring = Ring::with(EXTENDABLE);
        let mut claim = ring.writer.try_claim(0).unwrap().unwrap();
        let text = String::from_utf8(pattern(length)).unwrap();
        assert_eq!(claim.print(None, format_args!("{text}")).unwrap(), result, "{length}");
        claim.commit().unwrap();
        let (_, item) = ring.retrieve().unwrap();
        assert_eq!(ring.reader.to_vec(&item), &text.as_bytes()[..length.min(left)]);
    }
}

/// Three segments of which the commit of one fails.
#[test]
fn a_failed_segment_stops_the_commit() {
    for failing in 0..3 {
        let ring = Ring::with(EXTENDABLE);
        let mut claim = ring.writer.try_claim(0).unwrap().unwrap();
        for part in pattern(3 * PAGE).chunks(PAGE) {
            claim.write(None, part).unwrap();
        }
        ring.set_control(failing, ring.control(failing) | 1 << 29);
        assert!(!claim.commit().unwrap());
        let committed: Vec<u32> = (0..3).filter(|&page| ring.control(page) & 1 << 30 != 0).collect();
        assert_eq!(committed, (0..failing).collect::<Vec<_>>());
    }
}

/// A writer that dies while it commits: so many of the three segments are committed.
fn interrupted(committed: u32) -> Ring {
    let ring = Ring::with(EXTENDABLE);
    let mut claim = ring.writer.try_claim(0).unwrap().unwrap();
    for part in pattern(3 * PAGE).chunks(PAGE) {
        claim.write(None, part).unwrap();
    }
    claim.commit().unwrap();
    for page in committed..3 {
        ring.set_control(page, ring.control(page) & !(1 << 30));
    }
    ring
}

#[test]
fn an_item_whose_commit_was_cut_short_is_delivered_incomplete_or_not_at_all() {
    for committed in 0..3_u32 {
        let mut ring = interrupted(committed);
        let mut claim = ring.writer.try_claim(0).unwrap().unwrap();
        claim.write(None, &[b'z'; 6 * PAGE]).unwrap();
        claim.commit().unwrap();
        assert_eq!(ring.letters(), "z", "{committed}: a later item is complete");
        ring.expire();
        match ring.retrieve() {
            None => assert_eq!((committed, ring.queue.incomplete_count().unwrap()), (0, 3)),
            Some((letter, item)) => {
                assert_eq!((letter, item.is_committed()), ('a', false));
                assert_eq!(item.segment_count() as u32, committed + 1);
            }
        }
        assert!(ring.retrieve().is_none());
    }
}

#[test]
fn segments_that_are_committed_late_complete_the_item() {
    for committed in 0..3 {
        let mut ring = interrupted(committed);
        assert!(ring.retrieve().is_none());
        for page in committed..3 {
            ring.set_control(page, ring.control(page) | 1 << 30);
            let found = ring.retrieve();
            assert_eq!(found.is_some(), page == 2, "{committed} {page}");
            if let Some((_, item)) = found {
                assert_eq!(ring.reader.to_vec(&item), pattern(3 * PAGE));
                ring.reader.release(item).unwrap();
                assert!(ring.is_empty());
            }
        }
    }
}

#[test]
fn a_segment_that_comes_before_its_predecessor_waits_for_it() {
    let mut ring = interrupted(3);
    ring.set_control(1, ring.control(1) & !(1 << 30));
    assert!(ring.retrieve().is_none());
    ring.set_control(1, ring.control(1) | 1 << 30);
    let (_, item) = ring.retrieve().unwrap();
    assert_eq!(ring.reader.to_vec(&item), pattern(3 * PAGE));
}

#[test]
fn a_damaged_segment_ends_the_item() {
    for damaged in 0..3 {
        let mut ring = Ring::with(Options {
            crc32: true,
            ..EXTENDABLE
        });
        let mut claim = ring.writer.try_claim(0).unwrap().unwrap();
        for part in pattern(3 * PAGE).chunks(PAGE) {
            claim.write(None, part).unwrap();
        }
        claim.commit().unwrap();
        scribble(&ring, damaged);
        let shown = ring.queue.snapshot().unwrap();
        let item = shown.items()[0].item();
        assert_eq!(
            (item.is_checksum_valid(), item.segment_count() as u32),
            (false, damaged + 1)
        );
        let (_, item) = ring.retrieve().unwrap();
        assert_eq!(
            (item.is_checksum_valid(), item.segment_count() as u32),
            (false, damaged + 1)
        );
        ring.reader.release(item).unwrap();
        assert!(ring.retrieve().is_none(), "the rest belongs to nothing");
        assert!(ring.is_empty(), "and its pages are free");
    }
}

#[test]
fn the_rest_of_an_item_whose_release_was_cut_short_is_let_go() {
    let mut ring = interrupted(3);
    // The last reader released the first segment and died.
    ring.set_control(0, ring.control(0) | 1 << 29);
    assert!(ring.retrieve().is_none());
    assert!(ring.is_empty());
}

#[test]
fn a_chain_with_a_damaged_link_is_given_out_as_incomplete() {
    for link in [0x2000_0000, 0x2000_0009, 0x3FFF_FFFF] {
        let mut ring = interrupted(3);
        link_word(&ring, 0).store(link, Ordering::Relaxed);
        let (_, item) = ring.retrieve().expect("the beginning");
        assert_eq!((item.is_committed(), item.segment_count()), (false, 1), "{link:#x}");
        ring.reader.release(item).unwrap();
        assert!(ring.retrieve().is_none());
        assert!(ring.is_empty(), "{link:#x}");
    }
}

#[test]
fn an_item_with_nothing_written_is_empty() {
    let mut ring = Ring::with(EXTENDABLE);
    ring.writer.try_claim(0).unwrap().unwrap().commit().unwrap();
    let (_, item) = ring.retrieve().unwrap();
    assert_eq!((item.size(), item.capacity(), item.is_committed()), (0, PAGE, true));
}

#[test]
fn snapshots_of_extendable_items() {
    for segments in [1, 2, 3] {
        for last in [1, PAGE] {
            let data = pattern((segments - 1) * PAGE + last);
            let mut ring = Ring::with(EXTENDABLE);
            assert!(ring.queue.snapshot().unwrap().items().is_empty());
            let mut claim = ring.writer.try_claim(0).unwrap().unwrap();
            for part in data.chunks(PAGE) {
                claim.write(None, part).unwrap();
            }
            claim.commit().unwrap();
            let show = |ring: &Ring| {
                let shown = ring.queue.snapshot().unwrap();
                let items = shown.items().iter();
                items
                    .map(|item| (item.bytes().to_vec(), item.is_released()))
                    .collect::<Vec<_>>()
            };
            assert_eq!(show(&ring), [(data.clone(), false)]);
            if segments > 1 {
                let part = ring.control(0);
                ring.set_control(0, part | 1 << 29);
                assert_eq!(show(&ring), [(data.clone(), true)], "released in part");
                ring.set_control(0, part);
            }
            let (_, item) = ring.retrieve().unwrap();
            ring.reader.release(item).unwrap();
            assert_eq!(show(&ring), [(data.clone(), true)]);
            // A ring full of others: while the first segment is there the item is shown, afterwards it is not.
            for _ in 0..PAGES as usize - segments {
                ring.writer.try_put(b"oooo").unwrap();
                ring.take();
                assert!(show(&ring).iter().any(|(bytes, _)| *bytes == data));
            }
            ring.writer.try_put(b"oooo").unwrap();
            assert!(show(&ring).iter().all(|(bytes, _)| *bytes != data));
        }
    }
}
