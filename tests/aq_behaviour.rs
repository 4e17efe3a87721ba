//! What the original's own tests say about claim, commit, retrieve and release (facts/aq 1.5), on a ring of 11 pages.

mod common;

use std::sync::atomic::Ordering;
use std::time::Duration;

use common::aq_ring::{PAGE, PAGES, Ring};
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

/// What is left unfinished, where, and how much room there is beside it.
fn unfinished(kind: &str, low: bool) -> Ring {
    let ring = Ring::at(0, 0);
    match kind {
        "unwritten" => ring.leave_unwritten(1),
        "at the tail" => ring.leave_claim('x', 1),
        "behind the tail" => {
            ring.put('a', 1);
            ring.leave_claim('x', 1);
        }
        other => panic!("{other}"),
    }
    if low {
        ring.put('z', 11 - 1 - ring.head().index() as usize);
    }
    ring
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

// Release

#[test]
fn everything_is_freed_in_whatever_order_it_is_released() {
    let orders: [&[usize]; 4] = [&[0, 1, 2, 3], &[3, 2, 1, 0], &[1, 2, 0, 3], &[2, 0, 3, 1]];
    for (start, sizes) in [
        (0, [1, 1, 1, 1]),
        (0, [3, 2, 4, 1]),
        (8, [2, 4, 1, 1]),
        (10, [1, 2, 3, 4]),
    ] {
        for order in orders {
            let mut ring = Ring::at(start, start);
            for pages in sizes {
                ring.put('a', pages);
            }
            let mut items: Vec<_> = std::iter::from_fn(|| ring.retrieve())
                .map(|(_, item)| Some(item))
                .collect();
            for (done, index) in order.iter().enumerate() {
                assert!(!ring.is_empty(), "{start} {sizes:?} {order:?} after {done}");
                ring.reader.release(items[*index].take().unwrap()).unwrap();
            }
            assert!(ring.is_empty(), "{start} {sizes:?} {order:?}");
        }
    }
}

#[test]
fn a_release_behind_the_tail_frees_nothing_yet() {
    let mut ring = Ring::new();
    ring.put('a', 2);
    ring.put('b', 2);
    let (_, a) = ring.retrieve().unwrap();
    let (_, b) = ring.retrieve().unwrap();
    ring.reader.release(b).unwrap();
    assert_eq!((ring.frees(), ring.tail().index()), (0, 0));
    ring.reader.release(a).unwrap();
    assert_eq!((ring.frees(), ring.tail().index()), (2, 4));
}

#[test]
fn waste_is_freed_with_the_item_before_it() {
    let mut ring = Ring::at(7, 7);
    ring.put('a', 2);
    ring.put('b', 5);
    assert_eq!(ring.take(), Some('a'));
    assert_eq!((ring.tail(), ring.frees()), (Reference::new(2, 0), 2));
    assert_eq!(ring.take(), Some('b'));
    assert!(ring.is_empty());
}

#[test]
fn a_second_release_and_one_of_an_earlier_turn_are_refused() {
    let mut ring = Ring::new();
    ring.put('a', 1);
    let (_, item) = ring.retrieve().unwrap();
    let again = item.clone();
    ring.reader.release(item).unwrap();
    assert!(matches!(ring.reader.release(again.clone()), Err(Error::Invalid(_))));
    for _ in 0..PAGES - 1 {
        ring.put('b', 1);
        ring.take();
    }
    ring.put('c', 1);
    assert!(
        matches!(ring.reader.release(again), Err(Error::Invalid(_))),
        "the next turn has come to its page"
    );
    assert_eq!(ring.take(), Some('c'));
}

#[test]
fn an_unfinished_claim_is_not_freed_by_the_release_of_others() {
    let mut ring = Ring::new();
    ring.leave_claim('x', 1);
    ring.put('a', 1);
    assert_eq!(ring.take(), Some('a'));
    assert_eq!(ring.tail().index(), 0);
}

#[test]
fn a_released_incomplete_item_is_freed_also_behind_the_tail() {
    let mut ring = Ring::new();
    ring.put('a', 1);
    ring.leave_claim('x', 1);
    ring.put('z', 8);
    let (_, a) = ring.retrieve().unwrap();
    let (_, z) = ring.retrieve().unwrap();
    assert!(ring.retrieve().is_none());
    ring.expire();
    let (letter, x) = ring.retrieve().unwrap();
    assert_eq!((letter, x.is_committed()), ('x', false));
    ring.reader.release(x).unwrap();
    assert_eq!(ring.tail().index(), 0);
    ring.reader.release(a).unwrap();
    assert_eq!((ring.tail().index(), ring.control(1)), (2, 0xa010_0004));
    ring.reader.release(z).unwrap();
    assert!(ring.is_empty());
}

#[test]
fn an_unwritten_page_at_the_tail_is_freed_by_a_release_when_its_time_is_up() {
    for (low, expired, freed) in [(true, true, true), (true, false, false), (false, true, false)] {
        let mut ring = Ring::new();
        ring.leave_unwritten(1);
        ring.put('a', 1);
        if low {
            ring.put('z', 7);
        }
        let (_, a) = ring.retrieve().unwrap();
        if expired {
            ring.expire();
        }
        ring.reader.release(a).unwrap();
        assert_eq!(ring.tail().index() > 0, freed, "low {low} expired {expired}");
    }
}

#[test]
fn a_reader_that_comes_new_sees_what_was_not_released() {
    let mut ring = Ring::new();
    for letter in ['a', 'b', 'c'] {
        ring.put(letter, 2);
    }
    assert_eq!(ring.take(), Some('a'));
    assert_eq!(ring.letters(), "bc");
    assert!(matches!(ring.queue.reader(), Err(Error::AlreadyOpen(_))));
    let Ring {
        queue,
        writer,
        reader,
        clock,
    } = ring;
    drop(reader);
    let reader = queue.reader_with(clock.clone()).unwrap();
    let mut ring = Ring {
        queue,
        writer,
        reader,
        clock,
    };
    assert_eq!(ring.letters(), "bc");
}

#[test]
fn a_free_that_was_cut_short_is_finished_by_the_next_reader() {
    let mut ring = Ring::new();
    ring.put('a', 3);
    ring.put('b', 1);
    // The control word says freed, the tail was not moved: the reader died in between.
    ring.set_control(0, 0x4010_0000 | (3 * PAGE as u32));
    assert_eq!(ring.letters(), "b");
    assert_eq!(ring.tail().index(), 3);
}

#[test]
fn a_claim_that_is_given_up_is_never_handed_out() {
    let mut ring = Ring::new();
    ring.claim('x', 2).give_up();
    ring.put('a', 1);
    assert_eq!(ring.take(), Some('a'));
    assert!(ring.is_empty());
    assert_eq!(ring.control(0), 0xa010_0000 | (2 * PAGE as u32));
}

#[test]
fn reaping_frees_what_the_quarter_rule_leaves() {
    let mut ring = Ring::new();
    ring.leave_claim('x', 2);
    ring.put('a', 1);
    ring.leave_unwritten(1);
    assert_eq!(ring.reader.reap().unwrap(), 0, "their time runs from now on");
    ring.expire();
    assert_eq!(ring.reader.reap().unwrap(), 1);
    assert_eq!((ring.queue.incomplete_count().unwrap(), ring.tail().index()), (1, 2));
    assert_eq!(ring.take(), Some('a'));
    assert_eq!(ring.reader.reap().unwrap(), 0);
    assert!(ring.is_empty());
}

#[test]
fn get_skips_and_counts_what_is_incomplete() {
    let mut ring = unfinished("behind the tail", true);
    let mut taken = String::new();
    let mut take = |ring: &mut Ring| {
        while let Some(letter) = ring
            .reader
            .take(|message| {
                let mut bytes = Vec::new();
                message.append_to(&mut bytes);
                Ok(char::from(bytes[0]))
            })
            .unwrap()
        {
            taken.push(letter);
        }
    };
    take(&mut ring);
    ring.put('y', 1);
    ring.expire();
    take(&mut ring);
    assert_eq!(taken, "azy");
    assert_eq!(ring.queue.incomplete_count().unwrap(), 1);
    assert!(ring.is_empty());
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
