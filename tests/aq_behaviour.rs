//! What the original's own tests say about claim, commit, retrieve and format (facts/aq 1.5), on a ring of 11 pages.

mod common;

use std::sync::atomic::Ordering;
use std::time::Duration;

use common::aq_ring::{PAGE, PAGES, Ring, unfinished};
use tailrace::aq::control::Reference;
use tailrace::aq::{Format, Options, Queue};
use tailrace::{Error, shared::region::Region};

// Claim

#[test]
fn a_claim_takes_whole_pages() {
    for (bytes, pages) in [(1, 1), (PAGE, 1), (PAGE + 1, 2), (2 * PAGE, 2)] {
        let ring = Ring::at(3, 3);
        let before = ring.available_pages();
        ring.writer.try_claim(bytes).unwrap().expect("there is room").abandon();
        assert_eq!(before - ring.available_pages(), pages, "{bytes} bytes");
    }
}

#[test]
fn impossible_sizes_are_refused_by_name() {
    let ring = Ring::new();
    for size in [0, 0x10_0000, usize::MAX] {
        let refused = ring.writer.try_claim(size).unwrap_err();
        assert!(
            matches!(&refused, Error::Invalid(text) if text.contains("1048575") && text.contains(&size.to_string()))
        );
    }
    assert!(ring.is_empty());
    assert!(
        ring.writer.try_claim(0xF_FFFF).unwrap().is_none(),
        "possible, but there is no room here"
    );
}

#[test]
fn claims_find_room_or_leave_the_ring_alone() {
    // (head, tail): pages asked for, and the page at which they are given.
    type Case = ((u32, u32), &'static [(usize, Option<u32>)]);
    let table: [Case; 15] = [
        ((0, 0), &[(10, Some(0)), (11, None)]),
        ((1, 1), &[(10, Some(1)), (11, None)]),
        ((2, 2), &[(9, Some(2)), (10, None)]),
        ((6, 6), &[(5, Some(6)), (6, None)]),
        ((7, 7), &[(4, Some(7)), (5, Some(0)), (6, Some(0)), (7, None)]),
        ((8, 0), &[(2, Some(8)), (3, None)]),
        ((8, 1), &[(3, Some(8)), (4, None)]),
        ((0, 8), &[(7, Some(0)), (8, None)]),
        ((1, 8), &[(6, Some(1)), (7, None)]),
        ((0, 10), &[(9, Some(0)), (10, None)]),
        ((1, 10), &[(8, Some(1)), (9, None)]),
        ((9, 9), &[(3, Some(0))]),
        ((4, 9), &[(4, Some(4)), (5, None)]),
        ((9, 3), &[(3, None)]),
        ((10, 3), &[(3, None)]),
    ];
    for ((head, tail), requests) in table {
        for &(pages, expected) in requests {
            // The last page may be used in part only.
            for bytes in [pages * PAGE, pages * PAGE - PAGE + 1] {
                let ring = Ring::at(head, tail);
                let (before, words) = (
                    ring.head(),
                    (0..PAGES).map(|page| ring.control(page)).collect::<Vec<_>>(),
                );
                let claim = ring.writer.try_claim(bytes).unwrap();
                let start = claim.as_ref().map(|claim| claim.queue_identifier() & 0xF_FFFF);
                assert_eq!(start, expected, "({head}, {tail}) {bytes} bytes");
                if claim.is_none() {
                    let after: Vec<u32> = (0..PAGES).map(|page| ring.control(page)).collect();
                    assert_eq!((ring.head(), after), (before, words));
                }
            }
        }
    }
}

#[test]
fn a_claim_that_wraps_leaves_waste_behind() {
    let ring = Ring::at(7, 7);
    ring.leave_claim('a', 5);
    assert_eq!(ring.control(7), 0x6010_0000 | (4 * PAGE as u32));
    assert_eq!(ring.control(0), 0x8020_0000 | (5 * PAGE as u32));
    assert_eq!((ring.head(), ring.tail()), (Reference::new(2, 5), Reference::new(1, 7)));
}

#[test]
fn identifiers_are_unique_the_same_at_both_ends_and_29_bits_wide() {
    for turn in [0, 0x1FE, 0xFFE] {
        let start = Reference::new(turn, 0);
        let mut ring = Ring::between(start, start, Options::default());
        let mut seen = std::collections::HashSet::new();
        for _ in 0..10 * PAGES {
            let claim = ring.claim('a', 1);
            let identifier = claim.queue_identifier();
            assert!(identifier < 1 << 29 && seen.insert(identifier), "{identifier:#x}");
            claim.commit().unwrap();
            let (_, item) = ring.retrieve().unwrap();
            assert_eq!(item.queue_identifier(), identifier);
            ring.reader.release(item).unwrap();
        }
    }
}

// Commit

#[test]
fn commits_work_in_any_order_around_the_end() {
    for (start, orders) in [(9, [[0, 1, 2], [2, 1, 0], [1, 2, 0]])] {
        for order in orders {
            let mut ring = Ring::at(start, start);
            let mut claims: Vec<_> = ['a', 'b', 'c'].map(|letter| Some(ring.claim(letter, 1))).into();
            for index in order {
                assert!(claims[index].take().unwrap().commit().unwrap());
            }
            drop(claims);
            assert_eq!(ring.letters(), "abc");
        }
    }
}

#[test]
fn a_commit_of_an_earlier_turn_fails() {
    let ring = Ring::at(3, 3);
    let late = ring.claim('a', 1);
    let word = ring.control(3);
    // Another turn has come to the same page.
    ring.set_control(3, word + (1 << 20));
    assert!(!late.commit().unwrap());
    assert_eq!((ring.control(3), ring.commits()), (word + (1 << 20), 0));
}

#[test]
fn an_expired_claim_that_was_released_cannot_be_committed() {
    let ring = Ring::at(0, 0);
    let Ring {
        writer,
        mut reader,
        clock,
        queue,
    } = ring;
    let late = writer.try_claim(8 * PAGE).unwrap().unwrap();
    assert!(reader.retrieve().unwrap().is_none());
    clock.advance(Duration::from_millis(1001));
    let item = reader.retrieve().unwrap().expect("expired, and little room");
    assert!(!item.is_committed());
    assert!(reader.release(item).unwrap());
    assert!(!late.commit().unwrap());
    assert_eq!(queue.commit_counter().unwrap(), 0);
}

#[test]
fn an_incomplete_item_that_is_committed_after_all_is_released_all_the_same() {
    let Ring {
        writer,
        mut reader,
        clock,
        queue,
    } = Ring::at(0, 0);
    let late = writer.try_claim(8 * PAGE).unwrap().unwrap();
    assert!(reader.retrieve().unwrap().is_none());
    clock.advance(Duration::from_millis(1001));
    let item = reader.retrieve().unwrap().unwrap();
    assert!(late.commit().unwrap());
    assert!(!reader.release(item).unwrap(), "it was committed in between");
    assert_eq!(queue.available_size().unwrap(), 8 * PAGE - PAGE);
}

#[test]
fn counters_count_and_wrap() {
    for start in [0, 77, u32::MAX] {
        let mut ring = Ring::at(3, 3);
        ring.queue.region().u32(36).store(start, Ordering::Relaxed);
        ring.queue.region().u32(40).store(start, Ordering::Relaxed);
        let claim = ring.claim('a', 2);
        assert_eq!(ring.commits(), start);
        claim.commit().unwrap();
        assert_eq!(ring.commits(), start.wrapping_add(1));
        let (_, item) = ring.retrieve().unwrap();
        assert_eq!(ring.frees(), start);
        ring.reader.release(item).unwrap();
        assert_eq!(ring.frees(), start.wrapping_add(1));
    }
}

// Retrieve

#[test]
fn an_empty_ring_gives_nothing() {
    for index in [0, 5, 10] {
        assert!(Ring::at(index, index).retrieve().is_none());
    }
}

#[test]
fn the_lowest_committed_item_comes_first_at_each_call() {
    // Five claims from this page on; commits and retrieves in turn.
    for start in [0, 8] {
        let ring = Ring::at(start, start);
        let Ring { writer, mut reader, .. } = ring;
        let mut claims: Vec<_> = (0..5)
            .map(|index| {
                let mut claim = writer.try_claim(PAGE).unwrap().unwrap();
                claim.write(None, &[b'0' + index; PAGE]).unwrap();
                Some(claim)
            })
            .collect();
        let mut order = Vec::new();
        for commits in [&[1_usize][..], &[4, 3], &[], &[0], &[2]] {
            for &index in commits {
                claims[index].take().unwrap().commit().unwrap();
            }
            let item = reader.retrieve().unwrap().unwrap();
            order.push(reader.to_vec(&item)[0] - b'0');
        }
        assert_eq!(order, [1, 3, 4, 0, 2], "from page {start}");
    }
}

#[test]
fn without_the_options_links_are_none_and_checksums_right() {
    let mut ring = Ring::new();
    ring.put('a', 1);
    let (_, item) = ring.retrieve().unwrap();
    assert_eq!((item.link_identifier(), item.is_checksum_valid()), (u32::MAX, true));
}

#[test]
fn the_timeout_and_the_quarter_rule() {
    for kind in ["unwritten", "at the tail", "behind the tail"] {
        for (low, expired) in [(true, false), (false, true), (true, true)] {
            let mut ring = unfinished(kind, low);
            let before = ring.letters();
            if expired {
                ring.expire();
            }
            let tail = ring.tail();
            let due = ring.retrieve();
            let context = format!("{kind}, low {low}, expired {expired}, before {before}");
            match (low && expired, kind) {
                (false, _) => assert!(due.is_none() && ring.tail() == tail, "{context}"),
                (true, "unwritten") => assert!(due.is_none() && ring.tail().index() == 1, "{context}"),
                (true, _) => {
                    let (letter, item) = due.expect(&context);
                    assert_eq!((letter, item.is_committed()), ('x', false), "{context}");
                }
            }
        }
    }
}

#[test]
fn the_timeout_is_passed_not_reached() {
    let mut ring = unfinished("at the tail", true);
    assert_eq!(ring.letters(), "z");
    ring.clock.advance(Duration::from_millis(1000));
    assert!(ring.retrieve().is_none());
    ring.clock.advance(Duration::from_millis(1));
    assert!(ring.retrieve().is_some());
}

#[test]
fn unwritten_pages_and_the_waste_behind_them_are_freed_together() {
    let mut ring = Ring::at(9, 9);
    ring.leave_unwritten(1);
    ring.put('a', 7);
    assert_eq!((ring.control(10) >> 29, ring.letters()), (0b011, "a".into()));
    ring.expire();
    assert!(ring.retrieve().is_none());
    assert_eq!((ring.tail(), ring.frees()), (Reference::new(2, 0), 2));
}

#[test]
fn full_rings_with_gaps_give_all_that_is_committed() {
    // Sizes from the tail on; those in capitals are committed.
    for pattern in ["aBCDEFGHIJ", "ABCDeFGHIJ", "aBcDeFgHiJ", "abCDefGHij", "ABCDEFGHIj"] {
        for start in [0, 4, 10] {
            let mut ring = Ring::at(start, start);
            for letter in pattern.chars() {
                if letter.is_uppercase() {
                    ring.put(letter, 1);
                } else {
                    ring.leave_claim(letter, 1);
                }
            }
            let committed: String = pattern.chars().filter(char::is_ascii_uppercase).collect();
            assert_eq!(ring.letters(), committed, "{pattern} from {start}");
        }
    }
    for (start, sizes) in [(0, [3, 2, 4, 1]), (6, [2, 2, 4, 1])] {
        let mut ring = Ring::at(start, start);
        for (letter, pages) in ['A', 'b', 'C', 'd'].into_iter().zip(sizes) {
            if letter.is_uppercase() {
                ring.put(letter, pages);
            } else {
                ring.leave_claim(letter, pages);
            }
        }
        assert_eq!(ring.letters(), "AC", "from {start}");
    }
}

#[test]
fn words_of_an_earlier_turn_are_not_there_yet() {
    // Released, and wasted, one turn ago: the writer has moved the head and written nothing.
    for stale in [0x4000_0004, 0x2000_0004, 0xa000_0004, 0x8000_0004, 0xc000_0004] {
        let mut ring = Ring::at(3, 3);
        ring.set_control(3, stale);
        ring.leave_unwritten(1);
        assert!(ring.retrieve().is_none(), "{stale:#x}");
        assert_eq!(ring.tail().index(), 3, "{stale:#x}");
        ring.set_control(3, 0xc010_0004);
        assert!(ring.retrieve().is_some(), "{stale:#x}");
    }
}

// Formatting

#[test]
fn what_is_not_formatted_is_refused() {
    let ring = Ring::new();
    ring.put('a', 1);
    let changes: [(usize, u32); 4] = [(28, 0), (0, 0), (0, 2), (4, 8)];
    for (at, value) in changes {
        let word = ring.queue.region().u32(at);
        let before = word.swap(value, Ordering::Relaxed);
        assert!(!ring.queue.is_formatted(), "word {at} = {value}");
        assert!(matches!(ring.writer.try_claim(1), Err(Error::Format(_))));
        assert!(ring.queue.geometry().is_err() && ring.queue.snapshot().is_err());
        word.store(before, Ordering::Relaxed);
    }
    let mut ring = ring;
    assert_eq!(ring.take(), Some('a'));
}

#[test]
fn too_small_a_region_is_refused_a_larger_one_is_not() {
    for size in [4, 52, 53, 67] {
        let queue = Queue::over(Region::heap(size).unwrap()).unwrap();
        let format = Format {
            page_size: 4,
            ..Format::default()
        };
        assert!(matches!(queue.format(&format), Err(Error::Invalid(_))), "{size} bytes");
    }
    let whole = Ring::new();
    let mut bytes = Vec::new();
    whole.queue.region().append_to(0, whole.queue.memory_size(), &mut bytes);
    for (length, formatted) in [(bytes.len(), true), (bytes.len() + 100, true), (bytes.len() - 1, false)] {
        let region = Region::heap(length).unwrap();
        region.copy_in(0, &bytes[..length.min(bytes.len())]);
        assert_eq!(Queue::over(region).unwrap().is_formatted(), formatted, "{length} bytes");
    }
}

#[test]
fn formatting_again_forgets_everything() {
    let mut ring = Ring::new();
    ring.put('a', 1);
    ring.leave_claim('x', 1);
    assert_eq!(ring.letters(), "a");
    let Ring {
        queue,
        writer,
        reader,
        clock,
    } = ring;
    assert!(matches!(
        queue.format(&common::aq_ring::format(Options::default())),
        Err(Error::AlreadyOpen(_))
    ));
    drop(reader);
    queue.format(&common::aq_ring::format(Options::default())).unwrap();
    let reader = queue.reader_with(clock.clone()).unwrap();
    let mut ring = Ring {
        queue,
        writer,
        reader,
        clock,
    };
    assert!(ring.is_empty());
    ring.put('b', 1);
    assert_eq!(ring.letters(), "b");
    let other = Format {
        page_size: 8,
        ..Format::default()
    };
    let Ring {
        queue, writer, reader, ..
    } = ring;
    drop(reader);
    queue.format(&other).unwrap();
    assert!(matches!(writer.try_claim(1), Err(Error::Format(text)) if text.contains("anew")));
}
