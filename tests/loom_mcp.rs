//! Every interleaving of small queue files, explored by loom: the last writer's close against a new writer's open against
//! reads, and messages that move between memory and disk while they are read.
//!
//! At the end of every execution the books of the system are audited: each message in one place, no user too many.
#![cfg(loom)]

use std::sync::Arc;

use loom::thread;
use tailrace::mcp::{Batch, Device, End, FileParameters, Mode, OpenOptions, QueueFile, System, SystemParameters, Took};
use tailrace::shared::signal::Wait;

fn model(preemptions: usize, check: impl Fn(&Arc<System>) + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 100_000;
    builder.check(move || {
        let region = System::model(&SystemParameters {
            queues: 2,
            users: 3,
            participants: 2,
            messages: 10,
            memory: 4096,
            memory_limit: 4096,
        });
        let system = System::model_join(&region.unwrap()).unwrap();
        check(&system);
        system.audit().unwrap();
        system.model_end();
    });
}

fn parameters(max_messages: u32, buffers: u32) -> FileParameters {
    FileParameters {
        name: "MY.Q".into(),
        max_messages,
        buffers,
        record_size: 4,
        family_size: 0,
        device: Device::New,
    }
}

fn open(system: &Arc<System>, parameters: &FileParameters, mode: Mode) -> QueueFile {
    QueueFile::open(system, parameters, mode, &OpenOptions::default()).unwrap()
}

fn put(file: &QueueFile, number: u8, end: End) {
    assert!(file.write(None, &[number], end, Wait::No, || Ok(())).unwrap());
}

/// What one read came to.
#[derive(Debug, PartialEq, Eq)]
enum Got {
    Message(u8),
    Incomplete,
    Eof,
}

fn get(file: &QueueFile, wait: Wait) -> Got {
    let mut batch = Batch::new();
    match file.read(None, 1, &mut batch, wait, || Ok(())).unwrap() {
        Took::Messages(1) => Got::Message(batch.bytes()[0]),
        Took::Messages(count) => panic!("one message asked for, {count} read"),
        Took::Nothing => Got::Incomplete,
        Took::End => Got::Eof,
    }
}

/// A reader that sleeps is woken by the end; one that comes later finds it. A lost wake-up would be a deadlock.
#[test]
fn the_last_close_ends_a_waiting_reader() {
    model(3, |system| {
        let parameters = parameters(2, 2);
        let writer = open(system, &parameters, Mode::Output);
        let reader = open(system, &parameters, Mode::Input);
        let closing = thread::spawn(move || {
            put(&writer, 1, End::Back);
            writer.close().unwrap();
        });
        assert_eq!(get(&reader, Wait::Forever), Got::Message(1));
        assert_eq!(get(&reader, Wait::Forever), Got::Eof);
        closing.join().unwrap();
        assert_eq!(get(&reader, Wait::Forever), Got::Eof, "it is sticky");
        assert_eq!(reader.message_count().unwrap(), [0]);
    });
}

/// Whatever the order, a reader that got EOF between the two writers is not stuck in it: the new writer has cleared it.
#[test]
fn the_last_close_against_an_open_against_a_read() {
    model(2, |system| {
        let parameters = parameters(2, 2);
        let first = open(system, &parameters, Mode::Output);
        let reader = open(system, &parameters, Mode::Input);
        let closing = thread::spawn(move || first.close().unwrap());
        let opening = {
            let (system, parameters) = (system.clone(), parameters.clone());
            thread::spawn(move || {
                let second = open(&system, &parameters, Mode::Output);
                put(&second, 2, End::Back);
                second
            })
        };
        let early = get(&reader, Wait::No);
        closing.join().unwrap();
        let second = opening.join().unwrap();
        match early {
            Got::Message(number) => assert_eq!(number, 2),
            Got::Incomplete | Got::Eof => assert_eq!(get(&reader, Wait::No), Got::Message(2)),
        }
        assert_eq!(get(&reader, Wait::No), Got::Incomplete, "there is a writer");
        let counters = reader.counters();
        assert_eq!((counters.users, counters.writers, counters.readers), (2, 1, 1));
        second.close().unwrap();
        assert_eq!(reader.message_count().unwrap(), [1], "the end counts until it is taken");
        assert_eq!(get(&reader, Wait::No), Got::Eof);
        assert_eq!(reader.message_count().unwrap(), [0]);
    });
}

/// Two writers close at once: one of them is the last, and the end is raised once.
#[test]
fn two_closes_are_one_end() {
    model(2, |system| {
        let parameters = parameters(2, 2);
        let writers = [(); 2].map(|()| open(system, &parameters, Mode::Output));
        let reader = open(system, &parameters, Mode::Input);
        let closing = writers.map(|writer| thread::spawn(move || writer.close().unwrap()));
        assert_eq!(get(&reader, Wait::Forever), Got::Eof);
        for closing in closing {
            closing.join().unwrap();
        }
        assert_eq!(reader.counters().writers, 0);
        assert!(!reader.abended().unwrap());
    });
}

/// The opener links to the queue that its last user is leaving, or makes a new one: never a queue that is gone, never two.
#[test]
fn the_last_user_leaves_against_an_open() {
    model(2, |system| {
        let parameters = parameters(1, 1);
        let last = open(system, &parameters, Mode::InputOutput);
        let leaving = thread::spawn(move || last.close().unwrap());
        let file = open(system, &parameters, Mode::InputOutput);
        put(&file, 1, End::Back);
        leaving.join().unwrap();
        assert_eq!(get(&file, Wait::No), Got::Message(1));
        assert_eq!(file.counters().users, 1);
        let audit = system.audit().unwrap();
        assert_eq!((audit.queues, audit.users, system.model_disks()), (1, 1, 1));
        file.close().unwrap();
        let audit = system.audit().unwrap();
        assert_eq!((audit.queues, audit.users, system.model_disks()), (0, 0, 0));
    });
}

/// Two creators of one name: one makes it, the other links to it.
#[test]
fn two_creators_make_one_queue() {
    model(2, |system| {
        let other = {
            let system = system.clone();
            thread::spawn(move || open(&system, &parameters(1, 1), Mode::Output))
        };
        let reader = open(system, &parameters(2, 2), Mode::Input);
        let writer = other.join().unwrap();
        assert_eq!(writer.parameters(), reader.parameters(), "the first opener binds");
        assert_eq!(system.model_disks(), 1);
        put(&writer, 1, End::Back);
        assert_eq!(get(&reader, Wait::No), Got::Message(1));
    });
}

/// A record for the top pushes the tail-most message out to disk while somebody reads: each is read once, and whole.
#[test]
fn a_spill_flips_against_a_read() {
    model(2, |system| {
        let parameters = parameters(3, 2);
        let writer = open(system, &parameters, Mode::Output);
        let reader = open(system, &parameters, Mode::Input);
        put(&writer, 1, End::Back);
        let spilling = thread::spawn(move || {
            put(&writer, 2, End::Top);
            writer
        });
        let mut got = vec![get(&reader, Wait::Forever), get(&reader, Wait::Forever)];
        let writer = spilling.join().unwrap();
        assert_eq!(get(&reader, Wait::No), Got::Incomplete);
        got.sort_by_key(|got| *got == Got::Message(2));
        assert_eq!(got, [Got::Message(1), Got::Message(2)]);
        let counters = writer.counters();
        assert_eq!((counters.messages, counters.in_memory, counters.held), (0, 0, 0));
    });
}

/// The first reader's look-ahead brings the next message from disk to memory while the second reader wants it.
#[test]
fn a_look_ahead_flips_against_a_read() {
    model(2, |system| {
        let parameters = parameters(3, 2);
        let writer = open(system, &parameters, Mode::Output);
        let readers = [(); 2].map(|()| open(system, &parameters, Mode::Input));
        put(&writer, 1, End::Back);
        put(&writer, 2, End::Back);
        assert_eq!(writer.counters().spills, 1, "the second is on disk");
        let [one, two] = readers.map(|reader| thread::spawn(move || get(&reader, Wait::Forever)));
        let mut got = vec![one.join().unwrap(), two.join().unwrap()];
        got.sort_by_key(|got| *got == Got::Message(2));
        assert_eq!(got, [Got::Message(1), Got::Message(2)]);
        let counters = writer.counters();
        assert_eq!((counters.messages, counters.in_memory, counters.held), (0, 0, 0));
    });
}

/// A thread closes the file in which another is between the two steps of reading from disk: the message is read, or it is
/// there for the next reader; never in the hands of a file that is closed.
#[test]
fn a_close_against_a_read_of_the_same_file() {
    model(3, |system| {
        let parameters = parameters(2, 1);
        let writer = open(system, &parameters, Mode::Output);
        let reader = Arc::new(open(system, &parameters, Mode::Input));
        put(&writer, 1, End::Back);
        let reading = {
            let reader = reader.clone();
            thread::spawn(move || {
                let mut batch = Batch::new();
                match reader.read(None, 1, &mut batch, Wait::Forever, || Ok(())) {
                    Ok(took) => {
                        assert_eq!((took, batch.bytes()), (Took::Messages(1), &[1][..]));
                        true
                    }
                    Err(error) => {
                        assert!(matches!(error, tailrace::Error::Closed), "{error}");
                        false
                    }
                }
            })
        };
        reader.close().unwrap();
        let read = reading.join().unwrap();
        let audit = system.audit().unwrap();
        assert_eq!((audit.messages, audit.in_hands), (u32::from(!read), 0));
    });
}
