//! What the original's own tests say about writing into items, checksums, links and extendable items (facts/aq 1.5).

mod common;

use std::sync::atomic::Ordering;

use common::aq_ring::{PAGE, PAGES, Ring};
use tailrace::Error;
use tailrace::aq::control::Reference;
use tailrace::aq::{Item, Options};

const FIXED: Options = Options {
    crc32: false,
    link_identifier: false,
    extendable: false,
};
const CRC: Options = Options { crc32: true, ..FIXED };
const LINK: Options = Options {
    link_identifier: true,
    ..FIXED
};
const EXTENDABLE: Options = Options {
    extendable: true,
    ..FIXED
};

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| b'a' + (index % 26) as u8).collect()
}

/// Changes a byte of a page behind everybody's back.
fn scribble(ring: &Ring, page: u32) {
    let at = ring.queue.geometry().unwrap().memory_offset as usize + page as usize * PAGE;
    let mut byte = [0];
    ring.queue.region().copy_out(at, &mut byte);
    ring.queue.region().copy_in(at, &[byte[0] ^ 0x40]);
}

fn link_word(ring: &Ring, page: u32) -> &std::sync::atomic::AtomicU32 {
    ring.queue.region().u32(52 + 4 * (PAGES + page) as usize)
}

// Writing

#[test]
fn fixed_items_are_written_at_offsets_and_behind_the_highest_byte() {
    let mut ring = Ring::new();
    let mut claim = ring.writer.try_claim(10).unwrap().unwrap();
    assert_eq!((claim.size(), claim.capacity()), (10, 10));
    assert!(claim.write(None, b"ab").unwrap());
    assert!(claim.write(Some(4), b"ef").unwrap());
    assert!(claim.write(Some(2), b"cd").unwrap(), "inside: the position stays");
    assert!(claim.write(None, b"gh").unwrap());
    assert!(!claim.write(None, b"xyz").unwrap(), "one too many");
    assert!(!claim.write(Some(10), b"").unwrap(), "at the capacity");
    assert!(!claim.write(Some(11), b"").unwrap());
    assert!(!claim.write(Some(9), b"ij").unwrap());
    assert!(claim.write(Some(8), b"").unwrap());
    assert!(claim.write(None, b"ij").unwrap());
    assert!(claim.write(None, b"").unwrap());
    assert!(!claim.write(None, b"k").unwrap());
    claim.commit().unwrap();
    let (_, item) = ring.retrieve().unwrap();
    assert_eq!(ring.reader.to_vec(&item), b"abcdefghij");
}

#[test]
fn a_write_of_nothing_moves_the_position() {
    let mut ring = Ring::new();
    let mut claim = ring.claim('.', 2);
    claim.abandon();
    claim = ring.writer.try_claim(8).unwrap().unwrap();
    claim.write(Some(0), b"........").unwrap();
    claim.commit().unwrap();
    let mut claim = ring.writer.try_claim(8).unwrap().unwrap();
    assert!(claim.write(Some(4), b"").unwrap());
    assert!(claim.write(None, b"late").unwrap());
    assert!(claim.write(Some(0), b"soon").unwrap());
    claim.commit().unwrap();
    let items: Vec<Item> = std::iter::from_fn(|| ring.reader.retrieve().unwrap()).collect();
    assert_eq!(ring.reader.to_vec(&items[1]), b"soonlate");
}

#[test]
fn text_is_cut_where_the_item_ends() {
    // Written before, offset, text, result, content.
    let table: [(&str, Option<usize>, &str, isize, &str); 10] = [
        ("", None, "", 0, "........"),
        ("", None, "abc", 3, "abc....."),
        ("", None, "abcdefgh", 8, "abcdefgh"),
        ("", None, "abcdefghi", !8, "abcdefgh"),
        ("12345678", None, "a", !0, "12345678"),
        ("1234", None, "abcd", 4, "1234abcd"),
        ("1234", None, "abcde", !4, "1234abcd"),
        ("1234", Some(6), "ab", 2, "1234..ab"),
        ("1234", Some(6), "abc", !2, "1234..ab"),
        ("1234", Some(8), "a", !0, "1234...."),
    ];
    for (before, offset, text, result, content) in table {
        let mut ring = Ring::new();
        let mut claim = ring.writer.try_claim(8).unwrap().unwrap();
        claim.write(Some(0), b"").unwrap();
        for at in 0..8 {
            // Fills without moving the position: what is not written would be the last turn's bytes.
            let page = ring.queue.geometry().unwrap().memory_offset as usize;
            ring.queue.region().copy_in(page + at, b".");
        }
        claim.write(None, before.as_bytes()).unwrap();
        let context = format!("{before:?} {offset:?} {text:?}");
        assert_eq!(
            claim.print(offset, format_args!("{text}")).unwrap(),
            result,
            "{context}"
        );
        claim.commit().unwrap();
        let (_, item) = ring.retrieve().unwrap();
        assert_eq!(ring.reader.to_vec(&item), content.as_bytes(), "{context}");
    }
}

#[test]
fn links_are_refused_where_the_queue_keeps_none() {
    for options in [FIXED, CRC, EXTENDABLE] {
        let ring = Ring::with(options);
        let mut claim = ring.writer.try_claim(4).unwrap().unwrap();
        let refused = claim.set_link_identifier(7).unwrap_err();
        assert!(matches!(refused, Error::Invalid(text) if text.contains('7')));
    }
}

// Checksums and links

#[test]
fn checksums_hold_over_sizes_waste_and_turns() {
    for options in [CRC, Options { crc32: true, ..LINK }] {
        let mut ring = Ring::with(options);
        for (index, pages) in [1, 3, 5, 2, 1, 4].into_iter().cycle().take(60).enumerate() {
            let mut claim = ring.claim('a', pages);
            if options.link_identifier {
                claim.set_link_identifier(7 * index as u32).unwrap();
            }
            claim.commit().unwrap();
            let shown = ring.queue.snapshot().unwrap();
            assert!(
                shown.items().iter().all(|item| item.item().is_checksum_valid()),
                "{index}"
            );
            let (_, item) = ring.retrieve().unwrap();
            assert!(item.is_checksum_valid() && item.is_committed(), "{index}");
            if options.link_identifier {
                assert_eq!(item.link_identifier(), 7 * index as u32);
            }
            ring.reader.release(item).unwrap();
        }
    }
}

#[test]
fn changed_bytes_sizes_and_links_are_found() {
    let options = Options { crc32: true, ..LINK };
    type Change = (&'static str, fn(&Ring));
    let changes: [Change; 5] = [
        ("first page", |ring| scribble(ring, 0)),
        ("middle page", |ring| scribble(ring, 1)),
        ("last page", |ring| scribble(ring, 2)),
        ("size", |ring| ring.set_control(0, ring.control(0) - 1)),
        ("link", |ring| link_word(ring, 0).store(8, Ordering::Relaxed)),
    ];
    for (name, change) in changes {
        for released in [false, true] {
            let mut ring = Ring::with(options);
            let mut claim = ring.claim('a', 3);
            claim.set_link_identifier(7).unwrap();
            claim.commit().unwrap();
            if released {
                ring.take();
                if name == "size" {
                    continue;
                }
            }
            change(&ring);
            let shown = ring.queue.snapshot().unwrap();
            assert!(
                !shown.items()[0].item().is_checksum_valid(),
                "{name}, released {released}"
            );
            if !released {
                let (_, item) = ring.retrieve().unwrap();
                assert!(!item.is_checksum_valid(), "{name}");
            }
        }
    }
}

#[test]
fn get_never_hands_out_wrong_bytes_where_there_is_a_checksum() {
    let mut ring = Ring::with(CRC);
    ring.put('a', 2);
    ring.put('b', 2);
    scribble(&ring, 1);
    let taken = ring.reader.take(|message| Ok(message.size())).unwrap();
    assert_eq!((taken, ring.queue.corrupt_count().unwrap()), (Some(2 * PAGE), 1));
    assert!(ring.is_empty());
}

#[test]
fn an_uncommitted_twin_of_the_last_item_has_a_wrong_checksum() {
    let mut ring = Ring::with(CRC);
    ring.put('a', 9);
    ring.take();
    ring.put('b', 2);
    ring.take();
    ring.leave_claim('a', 9);
    assert!(ring.retrieve().is_none());
    ring.expire();
    let (letter, item) = ring.retrieve().unwrap();
    assert_eq!(
        (letter, item.is_committed(), item.is_checksum_valid()),
        ('a', false, false)
    );
}

#[test]
fn a_writer_that_dies_right_before_the_commit_leaves_a_right_checksum() {
    let mut ring = Ring::with(CRC);
    ring.put('a', 9);
    // As if the last swap had not happened: link and CRC are written before it.
    ring.set_control(0, ring.control(0) & !(1 << 30));
    assert!(ring.retrieve().is_none());
    ring.expire();
    let (_, item) = ring.retrieve().unwrap();
    assert!(!item.is_committed() && item.is_checksum_valid());
}

#[test]
fn the_link_of_an_uncommitted_item_is_not_that_of_an_earlier_one() {
    let mut ring = Ring::with(LINK);
    let mut claim = ring.claim('a', 9);
    claim.set_link_identifier(99).unwrap();
    claim.commit().unwrap();
    ring.take();
    ring.put('b', 2);
    ring.take();
    ring.leave_claim('x', 9);
    assert!(ring.retrieve().is_none());
    ring.expire();
    let (_, item) = ring.retrieve().unwrap();
    assert_eq!(item.link_identifier(), u32::MAX);
}

// Extendable items

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
