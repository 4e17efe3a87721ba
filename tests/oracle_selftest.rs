//! The oracle on trial: a clean history passes, and each planted fault is named by its own check and by no other.

mod common;

use common::dirs::TestDir;
use common::journal::{self, Journal, Record};
use common::oracle::{Delivery, Losses, Oracle, Order, Promise, Report};
use common::payload;

fn message(sequence: u64) -> Vec<u8> {
    payload::make(1, sequence, 40)
}

/// A producer's journal: 0..acked acknowledged, then one attempted.
fn producer(dir: &TestDir, acked: u64) -> Vec<Record> {
    let path = dir.scratch().join("producer");
    let mut journal = Journal::create(&path, 100);
    for sequence in 0..acked {
        let ticket = journal.attempt_put(0, &message(sequence));
        journal.acknowledged(ticket);
    }
    let _interrupted = journal.attempt_put(0, &message(acked));
    journal::read(&path)
}

/// A consumer's journal that got these bytes; with `interrupted`, killed inside one more get.
fn consumer(dir: &TestDir, name: &str, got: &[Vec<u8>], interrupted: bool) -> Vec<Record> {
    let path = dir.scratch().join(name);
    let mut journal = Journal::create(&path, 100);
    for bytes in got {
        let ticket = journal.attempt_get(0);
        let _ = journal.got(ticket, bytes);
    }
    if interrupted {
        let _ticket = journal.attempt_get(0);
    }
    journal::read(&path)
}

fn messages(sequences: impl IntoIterator<Item = u64>) -> Vec<Vec<u8>> {
    sequences.into_iter().map(message).collect()
}

/// Producer acked 0..10 and attempted 10; one consumer got `got`; `left` remains.
fn judge(promise: Promise, got: &[Vec<u8>], interrupted: bool, left: &[Vec<u8>]) -> Report {
    let dir = TestDir::shm();
    Oracle::new(promise)
        .journal(&producer(&dir, 10))
        .journal(&consumer(&dir, "consumer", got, interrupted))
        .left(0, left)
        .check()
}

/// Asserts that exactly this list of the report is not empty.
#[track_caller]
fn only(report: &Report, kind: &str) {
    let found: Vec<&str> = [
        ("lost", &report.lost),
        ("unexpected", &report.unexpected),
        ("duplicates", &report.duplicates),
        ("reordered", &report.reordered),
        ("corrupt", &report.corrupt),
        ("wrong CRC", &report.wrong_crc),
    ]
    .iter()
    .filter(|(_, list)| !list.is_empty())
    .map(|(name, _)| *name)
    .collect();
    assert_eq!(found, [kind], "{report}");
    assert!(!report.is_ok() && report.to_string().contains(kind));
    assert!(std::panic::catch_unwind(|| report.assert_ok("planted")).is_err());
}

#[test]
fn a_clean_history_passes_with_and_without_the_attempted_message() {
    for last in [10, 11] {
        let report = judge(Promise::exactly_once(), &messages(0..6), false, &messages(6..last));
        report.assert_ok("clean");
        assert_eq!((report.acked, report.attempted, report.got), (10, 1, 6));
    }
}

#[test]
fn a_loss_is_found_and_excused_only_by_the_promise() {
    let got = messages([0, 1, 2, 4, 5, 6, 7, 8, 9]);
    only(&judge(Promise::exactly_once(), &got, false, &[]), "lost");
    only(&judge(Promise::at_most_once(), &got, false, &[]), "lost");
    judge(Promise::at_most_once(), &got, true, &[]).assert_ok("one interrupted get excuses one loss");
    only(&judge(Promise::at_most_once(), &got[1..], true, &[]), "lost");
    let up_to = |n| Promise {
        losses: Losses::UpTo(n),
        ..Promise::exactly_once()
    };
    judge(up_to(2), &got[1..], false, &[]).assert_ok("two losses allowed");
    only(&judge(up_to(1), &got[1..], false, &[]), "lost");
}

#[test]
fn a_duplicate_is_found_between_consumers_and_in_what_is_left() {
    let mut twice = messages(0..10);
    twice.insert(4, message(3));
    only(&judge(Promise::exactly_once(), &twice, false, &[]), "duplicates");
    let dir = TestDir::shm();
    let report = Oracle::new(Promise::exactly_once())
        .journal(&producer(&dir, 10))
        .journal(&consumer(&dir, "a", &messages(0..6), false))
        .journal(&consumer(&dir, "b", &messages(5..10), false))
        .check();
    only(&report, "duplicates");
    let got_and_left = judge(Promise::exactly_once(), &messages(0..8), false, &messages(7..10));
    only(&got_and_left, "duplicates");
    let repeatable = Promise {
        delivery: Delivery::Repeatable,
        ..Promise::exactly_once()
    };
    let report = judge(repeatable, &twice, false, &[]);
    report.assert_ok("repeats allowed");
    assert_eq!(report.redelivered, 1);
}

#[test]
fn a_reorder_is_found_in_got_in_left_and_between_them() {
    let swapped = messages([0, 1, 3, 2, 4, 5]);
    only(
        &judge(Promise::exactly_once(), &swapped, false, &messages(6..10)),
        "reordered",
    );
    only(
        &judge(Promise::exactly_once(), &messages(0..6), false, &messages([7, 6, 8, 9])),
        "reordered",
    );
    let overtaken = messages([0, 1, 2, 3, 4, 6]);
    only(
        &judge(Promise::exactly_once(), &overtaken, false, &messages([5, 7, 8, 9])),
        "reordered",
    );
    let any = Promise {
        order: Order::Any,
        ..Promise::exactly_once()
    };
    judge(any, &swapped, false, &messages(6..10)).assert_ok("order not promised");
    let first = Promise {
        order: Order::FirstDelivery,
        ..Promise::exactly_once()
    };
    only(&judge(first, &swapped, false, &messages(6..10)), "reordered");
    judge(first, &swapped, true, &messages(6..10)).assert_ok("an interrupted get excuses one straggler");
}

#[test]
fn an_invented_message_and_a_failed_put_that_arrives_are_unexpected() {
    let mut invented = messages(0..10);
    invented.push(message(77));
    only(&judge(Promise::exactly_once(), &invented, false, &[]), "unexpected");
    let dir = TestDir::shm();
    let path = dir.scratch().join("fails");
    let mut journal = Journal::create(&path, 4);
    let ticket = journal.attempt_put(0, &message(0));
    journal.failed(ticket);
    let report = Oracle::new(Promise::exactly_once())
        .journal(&journal::read(&path))
        .left(0, messages([0]))
        .check();
    only(&report, "unexpected");
}

#[test]
fn damaged_bytes_and_a_wrong_crc_are_found() {
    let mut torn = messages(0..9);
    let mut damaged = message(9);
    damaged[30] ^= 1;
    torn.push(damaged.clone());
    let forgiving = Promise {
        losses: Losses::Any,
        ..Promise::exactly_once()
    };
    only(&judge(forgiving, &torn, false, &[]), "corrupt");
    only(&judge(forgiving, &messages(0..9), false, &[damaged]), "corrupt");
    // Well-formed, but not what the producer put: another length, so another CRC.
    let mut forged = messages(0..9);
    forged.push(payload::make(1, 9, 41));
    only(&judge(Promise::exactly_once(), &forged, false, &[]), "wrong CRC");
    only(
        &judge(
            Promise::exactly_once(),
            &messages(0..9),
            false,
            &[payload::make(1, 9, 41)],
        ),
        "wrong CRC",
    );
}

/// A consumer that gets and acks 0..n and then gets one more without its ack.
fn acking(dir: &TestDir, name: &str, from: u64, acked: u64) -> Vec<Record> {
    let path = dir.scratch().join(name);
    let mut journal = Journal::create(&path, 100);
    for sequence in from..=acked {
        let ticket = journal.attempt_get(0);
        let identity = journal.got(ticket, &message(sequence)).expect("whole");
        if sequence < acked {
            let ticket = journal.attempt_ack(0, identity);
            journal.acknowledged(ticket);
        }
    }
    journal::read(&path)
}

#[test]
fn until_acked_allows_redelivery_before_the_ack_and_never_after() {
    let dir = TestDir::shm();
    let put = producer(&dir, 10);
    let first = acking(&dir, "first", 0, 5);
    let oracle = || Oracle::new(Promise::until_acked()).journal(&put).journal(&first);
    let report = oracle().left(0, messages(5..10)).check();
    report.assert_ok("5 was not acked and is left");
    assert_eq!(report.redelivered, 1);
    oracle()
        .journal(&acking(&dir, "second", 5, 9))
        .left(0, messages([9]))
        .check()
        .assert_ok("5 came back to another consumer");
    // Got once, never acked, gone: that is a loss here although it was delivered.
    only(&oracle().left(0, messages(6..10)).check(), "lost");
    only(&oracle().left(0, messages(4..10)).check(), "duplicates");
    only(
        &oracle()
            .journal(&acking(&dir, "third", 4, 9))
            .left(0, messages([9]))
            .check(),
        "duplicates",
    );
}
