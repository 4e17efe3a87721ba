//! Taking lazily: messages are gone when they are taken, whoever dies; their room comes free a little later, and never later
//! than somebody who waits for it can stand.

mod common;

use std::time::Duration;

use common::dirs::TestDir;
use common::stepkill::{Moment, StepKill};
use common::wait_until;
use common::watchdog::Watchdog;
use tailrace::aq::{Format, Queue, Reader};
use tailrace::shared::signal::Wait;

const PAGE: usize = 64;
/// Large enough for a sixteenth of the ring to be 16 messages of a page.
const SIZE: usize = 32 << 10;

fn format() -> Format {
    Format {
        page_size: PAGE as u64,
        commit_timeout_ms: 60_000,
        ..Format::default()
    }
}

fn message(number: u64) -> Vec<u8> {
    common::payload::make(1, number, PAGE)
}

fn take(reader: &mut Reader) -> Option<u64> {
    reader
        .take_lazily(|message| {
            let mut bytes = Vec::new();
            message.append_to(&mut bytes);
            Ok(common::payload::parse(&bytes).expect("whole").sequence)
        })
        .unwrap()
}

fn put(queue: &Queue, numbers: std::ops::Range<u64>) {
    let writer = queue.writer().unwrap();
    for number in numbers {
        assert!(writer.try_put(&message(number)).unwrap());
    }
}

#[test]
fn room_comes_free_by_sixteen_and_when_the_last_known_message_is_taken() {
    let queue = Queue::anonymous(SIZE, &format()).unwrap();
    let mut reader = queue.reader().unwrap();
    put(&queue, 0..40);
    let freed = |queue: &Queue| queue.free_counter().unwrap();
    let mut seen = Vec::new();
    for number in 0..40 {
        assert_eq!(queue.len().unwrap() as u64, 40 - number, "released at once");
        assert_eq!(take(&mut reader), Some(number));
        seen.push(freed(&queue));
    }
    assert!(seen[..15].iter().all(|count| *count == 0), "{seen:?}");
    assert_eq!((seen[15], seen[30], seen[31], seen[38]), (16, 16, 32, 32));
    assert_eq!(seen[39], 40, "an empty queue has all its room");
    assert_eq!(take(&mut reader), None);
}

#[test]
fn it_can_be_given_back_at_once_and_is_when_the_reader_ends() {
    let queue = Queue::anonymous(SIZE, &format()).unwrap();
    put(&queue, 0..10);
    let mut reader = queue.reader().unwrap();
    assert_eq!(take(&mut reader), Some(0));
    assert_eq!(queue.free_counter().unwrap(), 0);
    reader.give_back().unwrap();
    assert_eq!(queue.free_counter().unwrap(), 1);
    assert_eq!(take(&mut reader), Some(1));
    drop(reader);
    assert_eq!(queue.free_counter().unwrap(), 2);
    let mut reader = queue.reader().unwrap();
    assert_eq!(take(&mut reader), Some(2), "what was taken does not come again");
}

#[test]
fn where_little_is_free_it_comes_free_at_once() {
    let queue = Queue::anonymous(SIZE, &format()).unwrap();
    let mut reader = queue.reader().unwrap();
    let writer = queue.writer().unwrap();
    let mut number = 0;
    while writer.try_put(&message(number)).unwrap() {
        number += 1;
    }
    for taken in 0..number / 4 {
        assert_eq!(take(&mut reader), Some(taken));
        assert!(
            writer.try_put(&message(number + taken)).unwrap(),
            "as much room as was taken"
        );
    }
}

#[test]
fn a_sleeping_writer_gets_its_room_with_the_next_message_that_is_taken() {
    let _dog = Watchdog::start("sleeping writer", Duration::from_secs(60));
    let queue = Queue::anonymous(SIZE, &format()).unwrap();
    let mut reader = queue.reader().unwrap();
    put(&queue, 0..10);
    assert_eq!(take(&mut reader), Some(0));
    // Too large as long as there is anything else in the queue.
    let large = vec![7; queue.available_size().unwrap() + PAGE];
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let writer = queue.writer().unwrap();
            writer.put(&large, Wait::from_timeout(Some(Duration::from_secs(30))), || Ok(()))
        });
        // Taking one by one, as a reader does that works on each.
        let mut taken = 1;
        assert!(wait_until(Duration::from_secs(30), || {
            if taken < 10 && take(&mut reader) == Some(taken) {
                taken += 1;
            }
            writer.is_finished()
        }));
        writer.join().unwrap().unwrap();
    });
}

#[test]
fn a_reader_killed_at_any_instruction_gives_nothing_twice() {
    let _dog = Watchdog::start("stepped lazy reader", Duration::from_secs(600));
    let dir = TestDir::shm();
    let path = dir.queue().join("q");
    put(&Queue::create(&path, SIZE, &format()).unwrap(), 0..5);
    let report = StepKill::new(&dir).operations(4).run(
        || {
            let queue = Queue::open(&path).unwrap();
            let reader = queue.reader().unwrap();
            (queue, reader)
        },
        |(_, reader), number| assert_eq!(take(reader), Some(number as u64)),
        recover,
    );
    report.assert_ok("taken lazily");
}

/// What was taken never comes again, the rest always does; the message of the running call may do either.
fn recover(moment: &Moment<'_>) -> Result<(), String> {
    let queue = Queue::open(&moment.dir.join("q")).unwrap();
    let mut reader = queue.reader().unwrap();
    let left: Vec<u64> = std::iter::from_fn(|| take(&mut reader)).collect();
    let first = 5 - left.len() as u64;
    let least = moment.completed as u64;
    let most = least + u64::from(moment.running);
    if left != (first..5).collect::<Vec<_>>() || !(least..=most).contains(&first) {
        return Err(format!("{left:?} are left after {} calls", moment.completed));
    }
    // All of the room is there again.
    let whole = queue.available_size().unwrap();
    let pages = queue.geometry().unwrap().page_count as usize;
    if whole + PAGE * 8 < (pages - 1) * PAGE {
        return Err(format!("{whole} bytes are free in a ring of {pages} pages"));
    }
    Ok(())
}
