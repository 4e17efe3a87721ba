//! What the original's own tests say about writing into items, checksums and links (facts/aq 1.5).

mod common;

use std::sync::atomic::Ordering;

use common::aq_ring::{PAGE, Ring, link_word, scribble};
use tailrace::Error;
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
