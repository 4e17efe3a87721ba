//! What the original's own tests say about release (facts/aq 1.5), and what comes of claims that nobody finishes, on a ring of
//! 11 pages.

mod common;

use common::aq_ring::{PAGE, PAGES, Ring, unfinished};
use tailrace::Error;
use tailrace::aq::control::Reference;

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
