//! Queue files killed at every instruction: of open, close, read, write, top, spill, look-ahead, hold, reclaim and of the
//! recovery itself. In every image each message is in exactly one place, in order, and no user is left over.

mod common;
mod mcp_kit;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use common::dirs::TestDir;
use common::image::Image;
use common::stepkill::{Moment, Report, StepKill};
use common::watchdog::Watchdog;
use common::{announce, payload, tracee};
use mcp_kit::*;
use tailrace::mcp::{Batch, End, FileParameters, Mode, QueueFile, System, Took};
use tailrace::shared::signal::Wait;

const LARGE: usize = 5000;

/// Small enough to be copied for every instruction, with room for one long message.
fn parameters(buffers: u32, record_size: u32) -> FileParameters {
    FileParameters {
        max_messages: 6,
        buffers,
        record_size,
        ..my_q()
    }
}

fn system(dir: &Path) -> Arc<System> {
    let sizes = tailrace::mcp::SystemParameters {
        memory: 16384,
        ..tiny()
    };
    System::open(dir, &sizes).expect("open the system")
}

fn open_kept(dir: &Path, parameters: &FileParameters, mode: Mode) -> QueueFile {
    QueueFile::open(&system(dir), parameters, mode, &kept()).expect("open the queue file")
}

fn message(sequence: u64, size: usize) -> Vec<u8> {
    payload::make(1, sequence, size)
}

/// A kept queue with messages `0..count`, and nobody alive.
fn prepare(dir: &TestDir, parameters: &FileParameters, count: u64, size: usize) {
    let file = open_kept(&dir.queue(), parameters, Mode::InputOutput);
    for sequence in 0..count {
        assert!(put(&file, None, message(sequence, size)).unwrap());
    }
}

fn sequences(messages: &[Vec<u8>]) -> Result<Vec<u64>, String> {
    let parse = |bytes: &Vec<u8>| payload::parse(bytes).map(|m| m.sequence).map_err(|e| e.to_string());
    messages.iter().map(parse).collect()
}

/// Opens an image as a survivor would, checks its books, takes everything out, and leaves nothing behind.
fn recover(dir: &Path, parameters: &FileParameters) -> Result<Vec<u64>, String> {
    let text = |e: tailrace::Error| e.to_string();
    let system = system(dir);
    let file = QueueFile::open(&system, parameters, Mode::Input, &kept()).map_err(text)?;
    let audit = system.audit().map_err(text)?;
    if (audit.users, audit.in_hands, audit.filling) != (1, 0, 0) {
        return Err(format!("somebody dead is still there: {audit:?}"));
    }
    let got = sequences(&drain(&file).map_err(text)?)?;
    if got.len() != audit.messages as usize {
        return Err(format!("{} messages read of {audit:?}", got.len()));
    }
    let audit = system.audit().map_err(text)?;
    let counters = system.counters().map_err(text)?;
    if (audit.messages, counters.descriptors_in_use, counters.buffers_in_use) != (0, 0, 0) {
        return Err(format!("empty, but {audit:?} {counters:?}"));
    }
    file.forget().map_err(text)?;
    file.close().map_err(text)?;
    let disks = std::fs::read_dir(dir).expect("directory").flatten();
    let disks: Vec<_> = disks
        .filter(|e| e.path().extension().is_some_and(|x| x == "disk"))
        .collect();
    if !disks.is_empty() {
        return Err(format!("disk that was not returned: {disks:?}"));
    }
    Ok(got)
}

fn expect(got: &[u64], allowed: &[Vec<u64>]) -> Result<(), String> {
    if allowed.iter().any(|expected| expected == got) {
        return Ok(());
    }
    Err(format!("the queue held {got:?}, not one of {allowed:?}"))
}

fn watch(name: &'static str) -> Watchdog {
    Watchdog::start(name, Duration::from_secs(if common::soak() { 3600 } else { 240 }))
}

fn proven(report: &Report, what: &str) {
    report.assert_ok(what);
    if tracee::SUPPORTED {
        assert!(report.distinct_images > 3, "{what} changed nothing");
    }
}

/// Steps through writes of messages `before..` and judges every image.
fn writes(what: &'static str, parameters: &FileParameters, before: u64, size: usize, end: End) {
    let _dog = watch(what);
    let dir = TestDir::shm();
    prepare(&dir, parameters, before, size);
    let report = StepKill::new(&dir).operations(2).run(
        || open_kept(&dir.queue(), parameters, Mode::Output),
        |file, i| {
            let written = file.write(None, &message(before + i as u64, size), end, Wait::No, || Ok(()));
            assert!(written.expect("write"));
        },
        |moment| {
            let list = |count: u64| -> Vec<u64> {
                match end {
                    End::Back => (0..before + count).collect(),
                    End::Top => (before..before + count).rev().chain(0..before).collect(),
                }
            };
            let done = moment.completed as u64;
            let got = recover(&moment.dir, parameters)?;
            expect(&got, &[list(done), list(done + u64::from(moment.running))])
        },
    );
    proven(&report, what);
}

/// Steps through reads and judges every image.
fn reads(what: &'static str, parameters: &FileParameters, before: u64, size: usize) {
    let _dog = watch(what);
    let dir = TestDir::shm();
    prepare(&dir, parameters, before, size);
    let report = StepKill::new(&dir).operations(2).run(
        || (open_kept(&dir.queue(), parameters, Mode::Input), Batch::new()),
        |(file, batch), _| {
            batch.clear();
            let took = file.read(None, 1, batch, Wait::No, || Ok(())).expect("read");
            assert_eq!(took, Took::Messages(1));
        },
        |moment| {
            let done = moment.completed as u64;
            let got = recover(&moment.dir, parameters)?;
            expect(
                &got,
                &[
                    (done..before).collect(),
                    (done + u64::from(moment.running)..before).collect(),
                ],
            )
        },
    );
    proven(&report, what);
}

#[test]
fn write_in_memory() {
    writes("write in memory", &parameters(6, 100), 1, 60, End::Back);
}

#[test]
fn write_that_spills() {
    writes("write that spills", &parameters(2, 400), 1, 300, End::Back);
}

#[test]
fn write_of_a_long_record() {
    writes(
        "write of a long record",
        &parameters(6, LARGE as u32),
        0,
        LARGE,
        End::Back,
    );
}

#[test]
fn write_to_top_that_pushes_another_out() {
    writes("write to top that pushes out", &parameters(3, 100), 2, 60, End::Top);
}

#[test]
fn read_in_memory() {
    reads("read in memory", &parameters(6, 100), 3, 60);
}

#[test]
fn read_from_disk_with_look_ahead() {
    reads("read from disk with look-ahead", &parameters(2, 400), 4, 300);
}

#[test]
fn read_of_a_long_record() {
    reads("read of a long record", &parameters(6, LARGE as u32), 2, LARGE);
}

#[test]
fn open_that_creates() {
    let _dog = watch("open that creates");
    for family_size in [0, 3] {
        let dir = TestDir::shm();
        drop(system(&dir.queue()));
        let parameters = FileParameters {
            family_size,
            ..parameters(2, 100)
        };
        let report = StepKill::new(&dir).run(
            || system(&dir.queue()),
            |system, _| {
                let file = QueueFile::open(system, &parameters, Mode::Output, &kept()).expect("open");
                std::mem::forget(file);
            },
            |moment| {
                // Whatever the creator had come to, the next opener gets a whole queue file.
                let file = open_kept(&moment.dir, &parameters, Mode::InputOutput);
                let key = (family_size > 0).then_some(3);
                assert!(put(&file, key, "x").map_err(|e| e.to_string())?);
                assert_eq!(get(&file, None).unwrap(), text("x"));
                let audit = file.system().audit().map_err(|e| e.to_string())?;
                assert_eq!((audit.queues, audit.users), (family_size.max(1), 1), "{audit:?}");
                drop(file);
                recover(&moment.dir, &parameters).and_then(|got| expect(&got, &[vec![]]))
            },
        );
        proven(
            &report,
            if family_size == 0 {
                "open that creates"
            } else {
                "open that creates a family"
            },
        );
    }
}

#[test]
fn the_first_open_of_a_system() {
    let _dog = watch("first open of a system");
    let dir = TestDir::shm();
    let parameters = parameters(2, 100);
    let report = StepKill::new(&dir).run(
        || (),
        |(), _| drop(system(&dir.queue())),
        |moment| {
            let file = open_kept(&moment.dir, &parameters, Mode::InputOutput);
            assert!(put(&file, None, message(0, 60)).map_err(|e| e.to_string())?);
            drop(file);
            recover(&moment.dir, &parameters).and_then(|got| expect(&got, &[vec![0]]))
        },
    );
    proven(&report, "first open of a system");
}

#[test]
fn open_that_links() {
    let _dog = watch("open that links");
    let dir = TestDir::shm();
    let parameters = parameters(2, 100);
    prepare(&dir, &parameters, 3, 60);
    let report = StepKill::new(&dir).run(
        || system(&dir.queue()),
        |system, _| {
            let file = QueueFile::open(system, &parameters, Mode::Output, &kept()).expect("open");
            std::mem::forget(file);
        },
        |moment| recover(&moment.dir, &parameters).and_then(|got| expect(&got, &[vec![0, 1, 2]])),
    );
    proven(&report, "open that links");
}

#[test]
fn close_that_ends_the_queue() {
    let _dog = watch("close that ends the queue");
    let dir = TestDir::shm();
    let system_dir = dir.queue();
    let plain = FileParameters {
        family_size: 2,
        ..parameters(2, 100)
    };
    drop(system(&system_dir));
    let report = StepKill::new(&dir).run(
        || {
            let file = open(&system(&system_dir), &plain, Mode::InputOutput);
            for n in 0..4 {
                assert!(put(&file, 1 + n % 2, message(n as u64, 60)).unwrap());
            }
            file
        },
        |file, _| file.close().expect("close"),
        |moment| {
            // Everybody is dead, so the queue is gone whether the close was done or not, and its disk with it.
            let system = system(&moment.dir);
            let audit = system.audit().map_err(|e| e.to_string())?;
            let counters = system.counters().map_err(|e| e.to_string())?;
            assert_eq!((audit.queues, audit.messages, audit.users), (0, 0, 0), "{audit:?}");
            assert_eq!((counters.descriptors_in_use, counters.buffers_in_use), (0, 0));
            recover(&moment.dir, &plain).and_then(|got| expect(&got, &[vec![]]))
        },
    );
    proven(&report, "close that ends the queue");
}

#[test]
fn hold_acknowledge_and_give_back() {
    let _dog = watch("hold, acknowledge, give back");
    let dir = TestDir::shm();
    let parameters = parameters(3, 100);
    prepare(&dir, &parameters, 4, 60);
    let report = StepKill::new(&dir).operations(3).run(
        || (open_kept(&dir.queue(), &parameters, Mode::Input), Vec::new()),
        |(file, holds), i| match i {
            0 => {
                let (_, held) = file
                    .hold(None, 3, &mut Batch::new(), Wait::No, || Ok(()))
                    .expect("hold");
                *holds = held;
            }
            1 => file.acknowledge(&holds[1..2]).expect("acknowledge"),
            _ => file.give_back(&[holds[2], holds[0]]).expect("give back"),
        },
        |moment| {
            let got = recover(&moment.dir, &parameters)?;
            match (moment.completed, moment.running) {
                (0, _) | (1, false) => expect(&got, &[vec![0, 1, 2, 3]]),
                (1, true) => expect(&got, &[vec![0, 1, 2, 3], vec![0, 2, 3]]),
                _ => expect(&got, &[vec![0, 2, 3]]),
            }
        },
    );
    proven(&report, "hold, acknowledge, give back");
}

#[test]
fn reclaim_rolls_out() {
    let _dog = watch("reclaim");
    let dir = TestDir::shm();
    let parameters = parameters(6, 100);
    prepare(&dir, &parameters, 3, 60);
    let report = StepKill::new(&dir).run(
        || system(&dir.queue()),
        |system, _| assert_eq!(system.reclaim().expect("reclaim"), 3),
        |moment| recover(&moment.dir, &parameters).and_then(|got| expect(&got, &[vec![0, 1, 2]])),
    );
    proven(&report, "reclaim");
}

#[test]
fn the_recovery_itself() {
    // An image from the middle of a write, with the lock held: its repair is killed at every instruction, too.
    let _dog = watch("recovery");
    if !tracee::SUPPORTED {
        return announce("SKIPPED: step-kill needs x86-64");
    }
    let dir = TestDir::shm();
    let parameters = parameters(2, 400);
    prepare(&dir, &parameters, 3, 300);
    let mut held: Vec<Image> = Vec::new();
    let lock = |image: &Image| {
        let (_, file) = image
            .files
            .iter()
            .find(|(name, _)| name.extension().is_some_and(|x| x == "system"))
            .unwrap();
        u64::from_le_bytes(file.bytes[64..72].try_into().unwrap())
    };
    let mut note = |moment: &Moment<'_>| {
        if lock(moment.image) != 0 {
            held.push(moment.image.clone());
        }
        Ok(())
    };
    StepKill::new(&dir)
        .run(
            || open_kept(&dir.queue(), &parameters, Mode::InputOutput),
            |file, _| {
                assert!(put(file, None, message(3, 300)).expect("write"));
                get(file, None).expect("read");
            },
            &mut note,
        )
        .assert_ok("images to be recovered");
    assert!(held.len() > 20, "only {} images with the lock held", held.len());
    let picks = common::rounds(3, 24) as usize;
    let (mut instructions, mut images) = (0, 0);
    for image in held.iter().step_by(held.len().div_ceil(picks)) {
        let dir = TestDir::shm();
        image.write(&dir.queue());
        let report = StepKill::new(&dir).run(
            || (),
            |(), _| std::mem::forget(open_kept(&dir.queue(), &parameters, Mode::Input)),
            |moment| {
                let got = recover(&moment.dir, &parameters)?;
                let whole = [vec![0, 1, 2], vec![0, 1, 2, 3], vec![1, 2, 3]];
                expect(&got, &whole)
            },
        );
        report.assert_ok("recovery killed at every instruction");
        instructions += report.instructions;
        images += report.recovered;
    }
    announce(&format!(
        "mcp recovery: {instructions} instructions, {images} images recovered"
    ));
}
