//! The step-kill driver on trial: it sees every store in order, and finds a planted bug.

mod common;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use common::cuts::{FileWrite, cut_writes, prefixes};
use common::dirs::TestDir;
use common::image::Image;
use common::mapped::Mapped;
use common::stepkill::{Moment, StepKill};
use common::tracee;
use common::watchdog::Watchdog;

fn words(moment: &Moment<'_>) -> Vec<u64> {
    moment
        .image
        .bytes("words")
        .chunks(8)
        .map(|c| u64::from_le_bytes(c.try_into().expect("8 bytes")))
        .collect()
}

#[test]
fn three_stores_give_four_images_in_order() {
    let _dog = Watchdog::start("three stores", Duration::from_secs(60));
    let dir = TestDir::shm();
    let path = dir.queue().join("words");
    drop(Mapped::create(&path, 32));
    let mut seen = Vec::new();
    let report = StepKill::new(&dir).run(
        || Mapped::open(&path),
        |map, _| {
            for word in 0..3 {
                map.u64(word * 8).store(word as u64 + 1, Ordering::Release);
            }
        },
        |moment| {
            // The copy is what the image says.
            assert_eq!(
                std::fs::read(moment.dir.join("words")).expect("copy"),
                moment.image.bytes("words")
            );
            seen.push((words(moment), moment.completed, moment.running));
            Ok(())
        },
    );
    report.assert_ok("three stores");
    if !tracee::SUPPORTED {
        return;
    }
    let expected = [
        (vec![0, 0, 0, 0], 0, false),
        (vec![1, 0, 0, 0], 0, true),
        (vec![1, 2, 0, 0], 0, true),
        (vec![1, 2, 3, 0], 0, true),
        (vec![1, 2, 3, 0], 1, false),
    ];
    assert_eq!(seen, expected);
    assert_eq!(report.distinct_images, 4, "{:?}", report.changes);
}

/// A one-message queue: word 0 = length, then the data. `publish_first` is the planted bug.
fn put(map: &Mapped, publish_first: bool) {
    if publish_first {
        map.u64(0).store(16, Ordering::Release);
    }
    map.u64(8).store(0xaaaa, Ordering::Relaxed);
    map.u64(16).store(0xbbbb, Ordering::Relaxed);
    if !publish_first {
        map.u64(0).store(16, Ordering::Release);
    }
}

fn recover(moment: &Moment<'_>) -> Result<(), String> {
    let words = words(moment);
    match (words[0], words[1], words[2]) {
        (0, ..) if moment.completed == 0 => Ok(()),
        (0, ..) => Err("an acknowledged message is lost".to_owned()),
        (16, 0xaaaa, 0xbbbb) => Ok(()),
        torn => Err(format!("torn message delivered: {torn:x?}")),
    }
}

#[test]
fn a_length_published_before_its_data_is_found() {
    if !tracee::SUPPORTED {
        return common::announce("SKIPPED: step-kill needs x86-64");
    }
    let _dog = Watchdog::start("planted bug", Duration::from_secs(60));
    for publish_first in [false, true] {
        let dir = TestDir::shm();
        let path = dir.queue().join("words");
        drop(Mapped::create(&path, 32));
        let report = StepKill::new(&dir).run(|| Mapped::open(&path), |map, _| put(map, publish_first), recover);
        if publish_first {
            let torn = report
                .failures
                .iter()
                .filter(|f| f.running && f.text.contains("torn"))
                .count();
            assert_eq!((torn, report.failures.len()), (2, 2), "{report}");
            // The report names the instruction's source.
            assert!(report.to_string().contains("words bytes 0..1"), "{report}");
            assert!(std::panic::catch_unwind(|| report.assert_ok("planted")).is_err());
        } else {
            report.assert_ok("length after data");
        }
    }
}

#[test]
fn a_panic_in_recovery_and_a_death_of_the_operation_are_failures() {
    if !tracee::SUPPORTED {
        return;
    }
    let _dog = Watchdog::start("panic in recovery", Duration::from_secs(60));
    let dir = TestDir::shm();
    let path = dir.queue().join("words");
    drop(Mapped::create(&path, 32));
    let store = |map: &mut Mapped, _| map.u64(0).store(1, Ordering::Release);
    let report = StepKill::new(&dir).run(
        || Mapped::open(&path),
        store,
        |moment| {
            assert!(words(moment)[0] == 0, "planted panic");
            Ok(())
        },
    );
    assert!(
        report.failures.iter().any(|f| f.text.contains("planted panic")),
        "{report}"
    );
    let report = StepKill::new(&dir).run(|| (), |(), _| panic!("planted death"), |_| Ok(()));
    assert!(
        report
            .failures
            .iter()
            .any(|f| f.text.contains("planted death") && f.text.contains("Ok(101)")),
        "{report}"
    );
    let threads = std::panic::catch_unwind(|| {
        StepKill::new(&dir).run(|| (), |(), _| drop(std::thread::spawn(|| ()).join()), |_| Ok(()))
    });
    assert!(threads.is_err(), "a helper thread must be refused");
}

#[test]
fn file_names_sizes_and_cut_writes_are_part_of_the_image() {
    if !tracee::SUPPORTED {
        return;
    }
    let _dog = Watchdog::start("file names", Duration::from_secs(60));
    let dir = TestDir::disk();
    let queue = dir.queue();
    let mut states = Vec::new();
    let report = StepKill::new(&dir).run(
        || (),
        |(), _| {
            std::fs::create_dir(queue.join("sub")).expect("create directory");
            std::fs::write(queue.join("new.tmp"), vec![7; 1200]).expect("write");
            std::fs::rename(queue.join("new.tmp"), queue.join("sub/new")).expect("rename");
            std::fs::OpenOptions::new()
                .write(true)
                .open(queue.join("sub/new"))
                .and_then(|f| f.set_len(100))
                .expect("truncate");
            std::fs::remove_file(queue.join("sub/new")).expect("remove");
        },
        |moment| {
            assert_eq!(&Image::read(&moment.dir), moment.image);
            let sizes: Vec<String> = moment
                .image
                .files
                .iter()
                .map(|(n, f)| format!("{} {}", n.display(), f.bytes.len()))
                .collect();
            states.push(sizes.join(","));
            Ok(())
        },
    );
    report.assert_ok("file names");
    let cuts: Vec<String> = [1, 3, 7, 512, 601, 1024, 1199]
        .iter()
        .map(|n| format!("new.tmp {n}"))
        .collect();
    let mut expected = vec![String::new(), String::new(), "new.tmp 0".to_owned()];
    expected.extend(cuts);
    expected.extend(["new.tmp 1200", "sub/new 1200", "sub/new 100", "", ""].map(str::to_owned));
    // The two images with an empty `sub` are equal, so the second is shown only as the return.
    expected.remove(expected.len() - 1);
    assert_eq!(states, expected);
    assert_eq!(report.cut_images, 7);
}

#[test]
fn repeated_string_instructions_do_not_drown_the_run() {
    if !tracee::SUPPORTED {
        return;
    }
    let _dog = Watchdog::start("rep", Duration::from_secs(60));
    let dir = TestDir::shm();
    let path = dir.queue().join("words");
    drop(Mapped::create(&path, 16384));
    let mut longest = 0;
    let report = StepKill::new(&dir).run(
        || Mapped::open(&path),
        |map, _| common::mapped::fill_repeated(map, 0x55),
        |moment| {
            let filled = moment.image.bytes("words").iter().take_while(|b| **b == 0x55).count();
            assert!(filled >= longest && moment.image.bytes("words")[filled..].iter().all(|b| *b == 0));
            longest = filled;
            Ok(())
        },
    );
    report.assert_ok("rep stosb of 16 KiB");
    assert_eq!(longest, 16384);
    assert!(
        report.iterations_passed_over > 16_000 && report.distinct_images <= 20,
        "{report}"
    );
}

/// Counted by the handler below: the tracee is a fork, so it counts its own.
static SIGNALS: AtomicU32 = AtomicU32::new(0);

#[test]
fn signals_reach_a_stepped_operation_and_several_operations_are_told_apart() {
    if !tracee::SUPPORTED {
        return;
    }
    let _dog = Watchdog::start("signals", Duration::from_secs(60));
    let dir = TestDir::shm();
    let path = dir.queue().join("words");
    drop(Mapped::create(&path, 32));
    let mut returns = Vec::new();
    let report = StepKill::new(&dir).operations(3).run(
        || {
            common::process::on_signal(nix::sys::signal::Signal::SIGUSR1, || {
                SIGNALS.fetch_add(1, Ordering::SeqCst);
            });
            Mapped::open(&path)
        },
        |map, _| {
            nix::sys::signal::raise(nix::sys::signal::Signal::SIGUSR1).expect("raise");
            map.u64(0)
                .store(u64::from(SIGNALS.load(Ordering::SeqCst)), Ordering::Release);
        },
        |moment| {
            if !moment.running {
                returns.push((moment.completed, words(moment)[0]));
            }
            Ok(())
        },
    );
    report.assert_ok("signals");
    assert_eq!(returns, [(0, 0), (1, 1), (2, 2), (3, 3)]);
}

#[test]
fn kill_at_kills_after_exactly_so_many_instructions() {
    if !tracee::SUPPORTED {
        return;
    }
    let _dog = Watchdog::start("kill_at", Duration::from_secs(60));
    let dir = TestDir::shm();
    let path = dir.queue().join("words");
    let peer = Mapped::create(&path, 32);
    let operation = |map: &mut Mapped, n: usize| map.u64(0).store(n as u64 + 1, Ordering::Release);
    let (mut last, mut finished) = (0, false);
    for steps in (0..3000).step_by(7) {
        peer.u64(0).store(0, Ordering::SeqCst);
        let killed = StepKill::new(&dir)
            .operations(2)
            .kill_at(steps, || Mapped::open(&path), operation);
        let value = peer.u64(0).load(Ordering::SeqCst);
        assert!(
            value >= last && value as usize >= killed.completed && value as usize <= killed.completed + 1,
            "{killed:?} {value}"
        );
        last = value;
        finished = !killed.running;
        if finished {
            break;
        }
        assert_eq!(killed.steps, steps);
    }
    assert!(finished && last == 2);
}

#[test]
fn a_spinning_operation_is_stepped_at_speed() {
    if !tracee::SUPPORTED {
        return;
    }
    let _dog = Watchdog::start("spinning", Duration::from_secs(60));
    let dir = TestDir::shm();
    let path = dir.queue().join("words");
    drop(Mapped::create(&path, 65536));
    let report = StepKill::new(&dir).run(
        || Mapped::open(&path),
        |map, _| {
            for i in 0..5_000 {
                if map.u64(8).load(Ordering::Acquire) == 1 {
                    map.u64(0).store(i, Ordering::Release);
                }
            }
        },
        |_| Ok(()),
    );
    report.assert_ok("speed, one 64 KiB file");
    assert!(report.instructions > 60_000);
}

#[test]
fn writes_are_cut_at_sectors_and_odd_bytes() {
    assert_eq!(prefixes(500, 600), [1, 3, 7, 12, 301, 524, 599]);
    assert_eq!(prefixes(0, 1), [0_usize; 0]);
    assert_eq!(prefixes(0, 2), [1]);
    let mut before = Image::default();
    before.files.insert(
        "f".into(),
        common::image::FileImage {
            bytes: vec![0; 4],
            mode: 0o600,
        },
    );
    let after = before.with("f", |bytes| *bytes = vec![0, 0, 9, 9, 9, 9]);
    let write = FileWrite::between(&before, &after).expect("one file changed");
    assert_eq!((write.offset, write.bytes.as_slice()), (2, &[9, 9, 9, 9][..]));
    let cuts: Vec<Vec<u8>> = cut_writes(&before, &write)
        .map(|(_, image)| image.bytes("f").to_vec())
        .collect();
    assert_eq!(cuts, [vec![0, 0, 9, 0], vec![0, 0, 9, 9, 9]]);
    assert_eq!(FileWrite::between(&after, &after), None);
}
