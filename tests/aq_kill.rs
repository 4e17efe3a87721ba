//! Real processes, really killed and stopped: producers and the consumer of one queue, a stopped writer, two readers.

mod common;

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use common::dirs::TestDir;
use common::journal::{Journal, Record};
use common::oracle::{Oracle, Promise};
use common::payload;
use common::watchdog::Watchdog;
use common::worker::{self, Args, Exit, Spawn, Worker};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tailrace::Error;
use tailrace::aq::{Format, Options, Queue, Reader, Writer};
use tailrace::shared::signal::Wait;

#[test]
fn worker_main() {
    worker::dispatch(&[("producer", producer), ("consumer", consumer)]);
}

fn create(dir: &TestDir, size: usize, options: Options, timeout_ms: u32) -> PathBuf {
    let path = dir.queue().join("q");
    let format = Format {
        page_size: 32,
        commit_timeout_ms: timeout_ms,
        options,
    };
    Queue::create(&path, size, &format).unwrap();
    path
}

fn soon() -> Wait {
    Wait::from_timeout(Some(Duration::from_millis(50)))
}

/// Puts messages until it is killed, or asked to stop.
fn producer(args: &Args) {
    let queue = Queue::open(&args.path("queue")).unwrap();
    let writer = queue.writer().unwrap();
    let mut journal = args.journal();
    args.ready();
    for sequence in 0..args.get("most") {
        if args.stop_requested() {
            break;
        }
        if sequence % 16 == 0 {
            std::thread::sleep(Duration::from_micros(50));
        }
        let message = |sequence: u64| payload::make(args.get("id"), sequence, 20 + (sequence * 37 % 300) as usize);
        let put = match args.get::<u32>("id") % 3 {
            // The journal has room for one message a turn.
            0 if 5 * sequence >= args.get::<u64>("most") - 5 => break,
            0 => {
                put_batch(
                    &writer,
                    &mut journal,
                    &[0, 1, 2, 3, 4].map(|n| message(5 * sequence + n)),
                );
                continue;
            }
            1 => put_slowly,
            _ => |writer: &Writer, message: &[u8]| writer.put(message, soon(), || Ok(())),
        };
        let message = message(sequence);
        let ticket = journal.attempt_put(0, &message);
        match put(&writer, &message) {
            Ok(()) => journal.acknowledged(ticket),
            Err(Error::Full(_)) => journal.failed(ticket),
            Err(error) => panic!("{error}"),
        }
    }
    while !args.stop_requested() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// As many of a batch as there is room for.
fn put_batch(writer: &Writer, journal: &mut Journal, batch: &[Vec<u8>]) {
    let tickets: Vec<_> = batch.iter().map(|message| journal.attempt_put(0, message)).collect();
    let put = writer.try_put_many(batch.iter().map(Vec::as_slice)).unwrap();
    for (number, ticket) in tickets.into_iter().enumerate() {
        if number < put {
            journal.acknowledged(ticket);
        } else {
            journal.failed(ticket);
        }
    }
}

/// Takes its time between claim and commit, so that many kills fall in between.
fn put_slowly(writer: &Writer, message: &[u8]) -> tailrace::Result<()> {
    let mut claim = writer.claim(message.len(), soon(), || Ok(()))?;
    let (begin, end) = message.split_at(message.len() / 2);
    assert!(claim.write(None, begin)?);
    std::thread::sleep(Duration::from_micros(20));
    assert!(claim.write(None, end)?);
    assert!(claim.commit()?, "no claim expires here");
    Ok(())
}

/// Retrieves and releases until it is killed, or asked to stop; counts the incomplete items it was shown.
fn consumer(args: &Args) {
    let queue = Queue::open(&args.path("queue")).unwrap();
    let mut journal = args.journal();
    let mut reader = queue.reader().unwrap();
    args.ready();
    while !args.stop_requested() {
        let ticket = journal.attempt_get(0);
        let Some(item) = reader.retrieve_within(soon(), || Ok(())).unwrap() else {
            journal.nothing(ticket);
            continue;
        };
        if !item.is_committed() {
            journal.nothing(ticket);
            args.word(0).fetch_add(1, Ordering::SeqCst);
            reader.release(item).unwrap();
            continue;
        }
        let identity = journal.got(ticket, &reader.to_vec(&item)).unwrap();
        let ticket = journal.attempt_ack(0, identity);
        reader.release(item).unwrap();
        journal.acknowledged(ticket);
    }
}

/// More than a producer gets to in its short life.
const MOST: u64 = 100_000;

fn start_producer(dir: &TestDir, path: &Path, id: u32) -> Worker {
    let spawn = Spawn::new(dir, "producer")
        .arg("queue", path.display())
        .arg("id", id)
        .arg("most", MOST)
        .journal(MOST as usize);
    spawn.start_forked(producer)
}

fn start_consumer(dir: &TestDir, path: &Path) -> Worker {
    let spawn = Spawn::new(dir, "consumer")
        .arg("queue", path.display())
        .journal(600_000);
    spawn.start_forked(consumer)
}

/// What is left, taken by a new reader; and how many claims of the dead there were.
fn drain(queue: &Queue) -> (Vec<Vec<u8>>, usize) {
    let mut reader = reader_of(queue);
    let (mut left, mut holes) = (Vec::new(), 0);
    while let Some(item) = reader
        .retrieve_within(Wait::from_timeout(Some(Duration::from_millis(250))), || Ok(()))
        .unwrap()
    {
        if item.is_committed() {
            left.push(reader.to_vec(&item));
        } else {
            holes += 1;
        }
        reader.release(item).unwrap();
    }
    (left, holes)
}

/// The reader's role, once the kernel has taken it from whoever was killed.
fn reader_of(queue: &Queue) -> Reader {
    let start = Instant::now();
    loop {
        match queue.reader() {
            Ok(reader) => return reader,
            Err(Error::AlreadyOpen(_)) if start.elapsed() < Duration::from_secs(2) => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Four producers and a consumer; one of them dies at a random moment, again and again.
#[test]
fn random_kills_lose_nothing() {
    let _dog = Watchdog::start("random kills", Duration::from_secs(3000));
    let rounds = common::rounds(150, 2_000);
    let per_queue = 50;
    let mut random = StdRng::seed_from_u64(7);
    let (mut acked, mut holes, mut slowest) = (0, 0, Duration::ZERO);
    for batch in 0..rounds.div_ceil(per_queue) {
        let dir = TestDir::shm();
        // No claim ever expires: only the death of its owner ends it.
        let path = create(&dir, 1 << 14, Options::default(), 3_600_000);
        let queue = Queue::open(&path).unwrap();
        let mut journals: Vec<Vec<Record>> = Vec::new();
        let mut next = 0;
        let mut fresh = || {
            next += 1;
            start_producer(&dir, &path, next)
        };
        let mut producers: Vec<Worker> = (0..4).map(|_| fresh()).collect();
        let mut reading = start_consumer(&dir, &path);
        for _ in 0..per_queue {
            std::thread::sleep(Duration::from_micros(random.random_range(0..4_000)));
            let victim = random.random_range(0..5);
            let commits = queue.commit_counter().unwrap();
            let killed = Instant::now();
            let worker = if victim == 4 {
                &mut reading
            } else {
                &mut producers[victim]
            };
            worker.assert_no_accident();
            worker.kill();
            journals.push(worker.journal());
            if victim == 4 {
                holes += worker.word(0).load(Ordering::SeqCst);
                *worker = start_consumer(&dir, &path);
            } else {
                *worker = fresh();
            }
            // Somebody gets on with it.
            let moved = common::wait_until(Duration::from_secs(2), || queue.commit_counter().unwrap() != commits);
            assert!(moved, "nothing moves after a kill");
            slowest = slowest.max(killed.elapsed());
        }
        for worker in &mut producers {
            worker.assert_no_accident();
            worker.kill();
            journals.push(worker.journal());
        }
        reading.assert_no_accident();
        reading.kill();
        holes += reading.word(0).load(Ordering::SeqCst);
        journals.push(reading.journal());
        let (left, more) = drain(&queue);
        holes += more as u64;
        let judged = journals
            .iter()
            .fold(Oracle::new(Promise::until_acked()), |oracle, j| oracle.journal(j));
        let report = judged.left(0, left).check();
        report.assert_ok(&format!("batch {batch}"));
        assert!(queue.is_empty().unwrap());
        acked += report.acked;
    }
    assert!(holes > 0, "no kill fell between claim and commit");
    common::announce(&format!(
        "{rounds} kills: {acked} acknowledged, none lost; {holes} holes reported; slowest progress {slowest:?}"
    ));
}

/// A writer that is stopped between claim and commit and goes on after twice the timeout, when its claim was given out as
/// incomplete and released: nobody else's message is damaged, and its commit is refused or harmless.
#[test]
fn a_stopped_writer_damages_nothing_when_it_goes_on() {
    let _dog = Watchdog::start("stopped writer", Duration::from_secs(1200));
    let timeout = Duration::from_millis(20);
    let (mut refused, mut reported) = (0, 0);
    let rounds = common::rounds(20, 200);
    for round in 0..rounds {
        let dir = TestDir::shm();
        let path = create(&dir, 1 << 12, Options::default(), 20);
        let queue = Queue::open(&path).unwrap();
        let mut reader = queue.reader().unwrap();
        let mut stopped = Spawn::new(&dir, "stopped")
            .arg("queue", path.display())
            .start_forked(|args| {
                let queue = Queue::open(&args.path("queue")).unwrap();
                let writer = queue.writer().unwrap();
                let mut claim = writer.try_claim(200).unwrap().unwrap();
                args.ready();
                args.wait_go();
                // Late scribbles over all of its pages, and a late commit.
                for _ in 0..100 {
                    claim.write(Some(0), &[0xEE; 200]).unwrap();
                }
                args.word(0)
                    .store(1 + u64::from(claim.commit().unwrap()), Ordering::SeqCst);
            });
        stopped.wait_ready();
        stopped.stop();
        let writer = queue.writer().unwrap();
        let begun = Instant::now();
        let mut sequence = 0;
        let mut taken = 0;
        let mut resumed = false;
        // Turn the ring until long after the writer has gone on.
        while begun.elapsed() < 4 * timeout || taken < 2_000 {
            let message = payload::make(1, sequence, 20 + (sequence % 90) as usize);
            if writer.try_put(&message).unwrap() {
                sequence += 1;
            }
            while let Some(item) = reader.retrieve().unwrap() {
                if item.is_committed() {
                    let bytes = reader.to_vec(&item);
                    if bytes != [0xEE; 200] {
                        payload::parse(&bytes).unwrap_or_else(|torn| panic!("round {round}: {torn}"));
                        taken += 1;
                    }
                } else {
                    reported += 1;
                }
                reader.release(item).unwrap();
            }
            if !resumed && begun.elapsed() > 2 * timeout {
                resumed = true;
                stopped.cont();
                stopped.go();
            }
            assert!(
                begun.elapsed() < Duration::from_secs(20),
                "round {round}: stuck after {taken} messages"
            );
        }
        assert_eq!(
            stopped.wait(Duration::from_secs(5)),
            Exit::Code(0),
            "{}",
            stopped.stderr()
        );
        refused += u64::from(stopped.word(0).load(Ordering::SeqCst) == 1);
    }
    common::announce(&format!(
        "{rounds} stopped writers: {reported} reported, {refused} late commits refused"
    ));
    assert_eq!((reported, refused), (rounds, rounds));
}

#[test]
fn a_second_reader_is_refused_and_admitted_once_the_first_is_dead() {
    let _dog = Watchdog::start("two readers", Duration::from_secs(60));
    let dir = TestDir::shm();
    let path = create(&dir, 1 << 12, Options::default(), 500);
    let queue = Queue::open(&path).unwrap();
    for _ in 0..common::rounds(20, 200) {
        let mut first = start_consumer(&dir, &path);
        first.wait_ready();
        assert!(matches!(queue.reader(), Err(Error::AlreadyOpen(_))));
        first.stop();
        assert!(
            matches!(queue.reader(), Err(Error::AlreadyOpen(_))),
            "stopped is not dead"
        );
        first.kill();
        drop(reader_of(&queue));
    }
}

#[test]
fn contending_opens_never_give_two_readers() {
    let _dog = Watchdog::start("contending readers", Duration::from_secs(120));
    let dir = TestDir::shm();
    let path = create(&dir, 1 << 12, Options::default(), 500);
    let each = 500_u64;
    let mut contenders: Vec<Worker> = (0..2)
        .map(|_| {
            Spawn::new(&dir, "contender")
                .arg("queue", path.display())
                .start_forked(|args| {
                    let queue = Queue::open(&args.path("queue")).unwrap();
                    // A word in the region that nobody else uses: the reserved one of the trailer.
                    let holders = queue.region().u32((1_usize << 12) + 28);
                    args.ready();
                    args.wait_go();
                    for _ in 0..each {
                        if let Ok(reader) = queue.reader() {
                            assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "two readers");
                            args.word(0).fetch_add(1, Ordering::SeqCst);
                            std::thread::sleep(Duration::from_micros(20));
                            holders.fetch_sub(1, Ordering::SeqCst);
                            drop(reader);
                        }
                    }
                })
        })
        .collect();
    contenders.iter_mut().for_each(Worker::wait_ready);
    contenders.iter().for_each(Worker::go);
    contenders
        .iter_mut()
        .for_each(|worker| worker.expect_success(Duration::from_secs(60)));
    let admitted: u64 = contenders
        .iter()
        .map(|worker| worker.word(0).load(Ordering::SeqCst))
        .sum();
    assert!(admitted > 0 && admitted < 2 * each);
    common::announce(&format!(
        "{} contending opens, {admitted} admitted, never two at once",
        2 * each
    ));
}

/// A claim of a killed process is reported at once, one of a living process waits for its time.
#[test]
fn only_the_dead_are_reported_before_their_time() {
    let _dog = Watchdog::start("dead owners", Duration::from_secs(60));
    let dir = TestDir::shm();
    let path = create(&dir, 1 << 12, Options::default(), 3_600_000);
    let queue = Queue::open(&path).unwrap();
    let mut reader = queue.reader().unwrap();
    let mut owner = Spawn::new(&dir, "owner")
        .arg("queue", path.display())
        .start_forked(|args| {
            let queue = Queue::open(&args.path("queue")).unwrap();
            let writer = queue.writer().unwrap();
            let claims: Vec<_> = (0..20).map(|_| writer.try_claim(40).unwrap().unwrap()).collect();
            args.ready();
            args.wait_go();
            drop(claims);
        });
    owner.wait_ready();
    queue.writer().unwrap().try_put(b"other").unwrap();
    assert!(reader.retrieve().unwrap().unwrap().is_committed());
    assert!(reader.retrieve().unwrap().is_none(), "the owner lives");
    owner.kill();
    for claim in 0..20 {
        let wait = Wait::from_timeout(Some(Duration::from_secs(5)));
        let item = reader.retrieve_within(wait, || Ok(())).unwrap();
        assert!(item.is_some_and(|item| !item.is_committed()), "claim {claim}");
    }
    assert!(reader.retrieve().unwrap().is_none());
}
