//! The corrupt-image driver and the hostile peer on trial: each kind of disaster is caught and named, and nothing else is.

mod common;

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::corrupt::{Class, Corrupt, Verdict};
use common::dirs::TestDir;
use common::hostile::Hostile;
use common::image::Image;
use common::mapped::Mapped;
use common::mutation::{Mutation, boundary_values};
use common::watchdog::Watchdog;

/// A 64-byte file with a magic in byte 0, a length word at 8, and a second file beside it that every drain changes.
fn sample(dir: &TestDir) -> Image {
    let mut bytes = vec![0; 64];
    bytes[0] = 0x77;
    bytes[8] = 4;
    std::fs::write(dir.queue().join("q"), &bytes).expect("write");
    std::fs::write(dir.queue().join("side"), b"side").expect("write");
    Image::read(&dir.queue())
}

/// Opens the file as a careful queue would, and leaves a mess behind as any drain does.
fn careful(dir: &Path) -> Verdict {
    assert_eq!(
        std::fs::read(dir.join("side")).expect("side file"),
        b"side",
        "not restored"
    );
    assert!(!dir.join("new").exists(), "surplus file not removed");
    let bytes = std::fs::read(dir.join("q")).expect("queue file");
    std::fs::write(dir.join("side"), b"changed").expect("write");
    std::fs::write(dir.join("new"), b"surplus").expect("write");
    std::fs::remove_file(dir.join("q")).expect("remove");
    match bytes.as_slice() {
        short if short.len() < 64 => Verdict::Error("short".to_owned()),
        [0x77, ..] if bytes[8..16] == [4, 0, 0, 0, 0, 0, 0, 0] => Verdict::Harmless,
        [0x77, ..] => Verdict::Error("length".to_owned()),
        _ => Verdict::Error("magic".to_owned()),
    }
}

#[test]
fn a_careful_queue_is_clean_and_every_mutation_is_tried() {
    let _dog = Watchdog::start("careful queue", Duration::from_secs(60));
    let dir = TestDir::shm();
    let report = Corrupt::new(&dir, &sample(&dir), "q")
        .bit_flips(0..64)
        .truncations()
        .boundary_values(0..64, &[4])
        .run(careful);
    report.assert_clean("careful");
    assert_eq!(report.total(), 512 + 64 + boundary_values(0..64, &[4]).len());
    // One magic byte and eight length bytes are looked at: 72 flips are errors, and so are all truncations.
    let flips = Corrupt::new(&dir, &sample(&dir), "q").bit_flips(0..64).run(careful);
    assert_eq!((flips.of(Class::Error), flips.of(Class::Harmless)), (72, 440));
}

#[test]
fn each_disaster_is_caught_and_named() {
    let _dog = Watchdog::start("disasters", Duration::from_secs(60));
    let dir = TestDir::shm();
    let report = Corrupt::new(&dir, &sample(&dir), "q").bit_flips(0..64).run(|dir| {
        let bytes = std::fs::read(dir.join("q")).expect("queue file");
        match bytes.iter().position(|b| *b == 1) {
            Some(20) => common::process::die_of_sigbus(&dir.join("q")),
            Some(21) => std::process::abort(),
            Some(22) => panic!("planted panic"),
            Some(23) => std::thread::sleep(Duration::from_secs(30)),
            Some(24) => return Verdict::Wrong("planted wrong answer".to_owned()),
            Some(25) => common::process::exit_now(0),
            Some(26) => drop(std::hint::black_box(vec![1_u8; 5 << 30])),
            _ => {}
        }
        Verdict::Harmless
    });
    let mut found: Vec<(usize, Class)> = report
        .failures
        .iter()
        .map(|(class, mutation)| match mutation {
            Mutation::Flip { byte, bit: 0 } => (*byte, *class),
            other => panic!("{other} is blamed wrongly"),
        })
        .collect();
    found.sort();
    let expected = [
        (20, Class::Crash),
        (21, Class::Crash),
        (22, Class::Panic),
        (23, Class::Hang),
        (24, Class::Wrong),
        (25, Class::Crash),
        (26, Class::Crash),
    ];
    assert_eq!(found, expected, "{report}");
    assert_eq!((report.total(), report.of(Class::Unjudged)), (512, 0));
    let text = report.to_string();
    for part in [
        "SIGBUS",
        "SIGABRT",
        "planted panic",
        "planted wrong answer",
        "bit 0 of byte 23",
        "pid ",
    ] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
    assert!(std::panic::catch_unwind(|| report.assert_clean("planted")).is_err());
}

#[test]
fn a_cheap_open_is_tried_at_speed() {
    let _dog = Watchdog::start("corrupt speed", Duration::from_secs(120));
    let dir = TestDir::shm();
    let mut bytes = vec![0; 4096];
    bytes[0] = 0x77;
    bytes[8] = 4;
    std::fs::write(dir.queue().join("q"), &bytes).expect("write");
    let report = Corrupt::new(&dir, &Image::read(&dir.queue()), "q")
        .bit_flips(0..2048)
        .run(|dir| {
            let map = Mapped::open(&dir.join("q"));
            if map.u64(0).load(Ordering::Relaxed) == 0x77 {
                Verdict::Harmless
            } else {
                Verdict::Error(String::new())
            }
        });
    report.assert_clean("open + map of 4 KiB");
    assert_eq!((report.of(Class::Error), report.total()), (64, 16384));
}

#[test]
fn boundary_values_cover_both_widths_and_stay_in_range() {
    let mutations = boundary_values(4..24, &[1000]);
    assert!(mutations.contains(&Mutation::Overwrite {
        at: 4,
        bytes: 999_u32.to_le_bytes().to_vec()
    }));
    assert!(mutations.contains(&Mutation::Overwrite {
        at: 20,
        bytes: i32::MIN.to_be_bytes().to_vec()
    }));
    assert!(mutations.contains(&Mutation::Overwrite {
        at: 8,
        bytes: i64::MAX.to_le_bytes().to_vec()
    }));
    assert!(mutations.contains(&Mutation::Overwrite {
        at: 16,
        bytes: u64::MAX.to_le_bytes().to_vec()
    }));
    for mutation in &mutations {
        let Mutation::Overwrite { at, bytes } = mutation else {
            panic!("{mutation}")
        };
        assert!(*at >= 4 && at + bytes.len() <= 24 && at.is_multiple_of(bytes.len()));
    }
}

#[test]
fn a_hostile_peer_scribbles_inside_its_ranges_only() {
    let _dog = Watchdog::start("hostile peer", Duration::from_secs(60));
    let dir = TestDir::shm();
    let path = dir.queue().join("q");
    let map = Mapped::create(&path, 4096);
    let mut peer = Hostile::new(&path, [16..64, 1024..1025])
        .limits(&[4096])
        .seed(7)
        .start(&dir);
    // Boundary values, and the original put back. On a busy machine the two rarely run at once: wait for the sight.
    let (wanted, mut values) = ([0, 4097, u64::MAX], std::collections::HashSet::new());
    let seen = common::wait_until(Duration::from_secs(30), || {
        values.insert(map.u64(16).load(Ordering::Relaxed));
        values.insert(map.u64(24).load(Ordering::Relaxed));
        wanted.iter().all(|value| values.contains(value)) && peer.scribbles() > 1000
    });
    let scribbles = peer.finish();
    assert!(seen, "{scribbles} scribbles, {} values", values.len());
    let bytes = map.quiescent_bytes();
    let outside = (0..16).chain(64..1024).chain(1025..4096);
    assert!(outside.into_iter().all(|at| bytes[at] == 0));
}
