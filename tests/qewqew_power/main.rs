//! Power cuts: simulated at every step of the disk, sector by sector, and real ones on ext4.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/loopfs.rs"]
mod loopfs;
mod mortal;
mod real;
mod run;
mod simulation;

use std::time::{Duration, Instant};

use common::watchdog::Watchdog;
use common::{announce, rounds};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use run::Run;
use tailrace::qewqew::{Options, Role, SyncMode};

/// Bytes of a chunk of which the first note lies across two sectors.
const TORN_NOTES: u64 = 1024 + 20;

/// Random work; returns how many images were opened.
fn simulate(seed: u64, sync: SyncMode, crc: bool, operations: usize, effort: usize) -> usize {
    let mut rng = StdRng::seed_from_u64(seed);
    let chunk_size = [220, 300, 700, TORN_NOTES, 1500, 4000][rng.random_range(0..6)];
    let options = Options {
        chunk_size,
        sync,
        crc,
        ..Options::default()
    };
    let name = format!("seed {seed} {sync:?} crc={crc} chunk_size={chunk_size}");
    let mut run = Run::start(&name, options, seed + 1, effort);
    for _ in 0..operations {
        match rng.random_range(0..100) {
            0..50 => {
                let longest = (run.queue().max_element_size() as usize).min(900);
                let lengths: Vec<usize> = (0..rng.random_range(1..4))
                    .map(|_| rng.random_range(20..longest))
                    .collect();
                run.put(&lengths);
            }
            50..55 => {
                let sync = [SyncMode::Always, SyncMode::Never][rng.random_range(0..2)];
                let size = [chunk_size, chunk_size, chunk_size + 100, chunk_size - 100][rng.random_range(0..4)];
                let lengths: Vec<usize> = (0..rng.random_range(1..4)).map(|_| rng.random_range(20..100)).collect();
                run.put_beside(sync, size, &lengths);
            }
            55..58 => {
                let size = [chunk_size, chunk_size, chunk_size + 100][rng.random_range(0..3)];
                let sync = [SyncMode::Always, SyncMode::Group][rng.random_range(0..2)];
                run.put_killed(sync, size, rng.random_range(20..200), rng.random_range(1..14));
                run.count();
            }
            58..60 if !seed.is_multiple_of(20) => {
                let lengths: Vec<usize> = (0..rng.random_range(1..5)).map(|_| rng.random_range(20..150)).collect();
                run.publish(&lengths, [0, 150][rng.random_range(0..2)]);
            }
            60..62 if !seed.is_multiple_of(20) => run.commit(rng.random_range(0..4)),
            62..63 => run.repair(),
            63..85 => run.take(),
            85..90 => run.sync(),
            90..93 => run.clear(),
            93..96 => run.take_many(rng.random_range(1..10)),
            _ => run.reopen(sync),
        }
    }
    run.finish()
}

#[test]
fn simulated_cuts_at_every_step_lose_nothing_that_was_synced() {
    let _dog = Watchdog::start("simulated power cuts", Duration::from_secs(3000));
    let begun = Instant::now();
    let enough = rounds(20_000, 100_000) as usize;
    let (mut images, mut seed) = (0, 0);
    while images < enough {
        for (sync, crc) in [
            (SyncMode::Always, false),
            (SyncMode::Always, true),
            (SyncMode::Group, false),
            (SyncMode::Group, true),
        ] {
            images += simulate(seed, sync, crc, 60, if common::soak() { 128 } else { 32 });
        }
        seed += 10;
    }
    announce(&format!(
        "{images} images of simulated power cuts opened in {:.1?}, 0 lost",
        begun.elapsed()
    ));
}

const SIZE: u64 = 4000;

fn noted(name: &str, chunk_size: u64) -> Run {
    let options = Options {
        chunk_size,
        ..Options::default()
    };
    Run::start(name, options, 1, 256)
}

/// What the notes of commits depend on, one thing after the other (see `qewqew/notes.rs`).
#[test]
fn notes_of_commits_lead_to_what_was_acknowledged() {
    let _dog = Watchdog::start("notes of commits", Duration::from_secs(600));
    for before in 1..=3 {
        // The tail is moved by somebody who leaves no note, then by somebody who does.
        let mut run = noted("beside", SIZE);
        for _ in 0..before {
            run.put(&[600]);
        }
        run.put_beside(SyncMode::Never, SIZE, &[50]);
        run.put(&[600]);
        run.put(&[600]);
        run.finish();

        // Somebody needs the place of the notes: a commit, a producer that syncs nothing, the next chunk.
        for sync in [SyncMode::Always, SyncMode::Never] {
            let mut run = noted("the place of the notes", SIZE);
            for _ in 0..before {
                run.put(&[600]);
            }
            let used = 10 + before * 602;
            run.put_beside(sync, SIZE, &[SIZE as usize - used - 2]);
            run.put(&[600]);
            run.finish();
        }

        // Somebody makes the chunk longer.
        for sync in [SyncMode::Always, SyncMode::Never] {
            let mut run = noted("longer chunks", SIZE);
            for _ in 0..before {
                run.put(&[600]);
            }
            run.put_beside(sync, SIZE + 1000, &[50]);
            run.put(&[600]);
            run.finish();
        }

        // A chunk starts over, and comes to the same tails.
        let mut run = noted("starting over", SIZE);
        for _ in 0..3 {
            for _ in 0..before {
                run.put(&[600]);
            }
            run.take_many(before as u64);
        }
        run.finish();
    }
}

/// A cut may leave half of a note: the other one still leads to what was acknowledged before it.
#[test]
fn a_torn_note_takes_nothing_with_it() {
    let mut run = noted("torn notes", TORN_NOTES);
    for _ in 0..6 {
        run.put(&[20, 40]);
    }
    run.take_many(4);
    for _ in 0..4 {
        run.put(&[20, 40]);
    }
    run.finish();
}

/// Zeros are written ahead of the entries in steps, and the notes lie at the end of the last one.
#[test]
fn notes_of_commits_stay_where_zeros_are_written_ahead() {
    let mut run = noted("written ahead", (128 << 10) + 3000);
    run.put(&[30_000; 4]);
    for _ in 0..12 {
        run.put(&[700]);
    }
    run.finish();
}

/// What is acknowledged as durable can be found: the chunks before it are on the disk, whoever has made them.
#[test]
fn what_was_not_synced_does_not_hide_what_was() {
    let options_of = |crc| Options {
        chunk_size: 700,
        sync: SyncMode::Never,
        crc,
        ..Options::default()
    };
    for crc in [false, true] {
        let mut run = Run::start(&format!("another mode before, crc={crc}"), options_of(crc), 1, 256);
        run.put(&[300; 5]);
        run.reopen(SyncMode::Always);
        run.put(&[300]);
        run.put(&[300; 2]);
        run.finish();

        // A producer that syncs comes to a consumer that does not, and was there first.
        let mut run = Run::start(&format!("a consumer before, crc={crc}"), options_of(crc), 1, 256);
        run.put(&[300; 5]);
        run.consume_only();
        run.put_beside(SyncMode::Always, 700, &[300]);
        run.put_beside(SyncMode::Always, 700, &[300; 2]);
        run.reopen(SyncMode::Never);
        run.finish();
    }
}

/// A producer is killed at every step of a commit, of a spill, of making a chunk longer and of starting it over; then nobody or somebody goes on, and the power fails.
#[test]
fn what_killed_producers_leave_is_put_in_order_before_anything_depends_on_it() {
    let _dog = Watchdog::start("kills and cuts", Duration::from_secs(600));
    for crc in [false, true] {
        let scenes = [(1, 0, SIZE), (6, 0, SIZE), (2, 0, SIZE + 1000), (2, 2, SIZE)];
        for (has_survivor, (before, taken, size)) in [false, true]
            .into_iter()
            .flat_map(|survivor| scenes.map(|scene| (survivor, scene)))
        {
            for steps in 1.. {
                let options = Options {
                    chunk_size: SIZE,
                    crc,
                    ..Options::default()
                };
                let name = format!("{steps} steps, {before} {taken} {size}, survivor={has_survivor} crc={crc}");
                let mut run = Run::start(&name, options, 1, 16);
                for _ in 0..before {
                    run.put(&[600]);
                }
                run.take_many(taken);
                if !has_survivor {
                    run.close();
                }
                let is_dead = run.put_killed(SyncMode::Always, size, 600, steps);
                if !has_survivor {
                    run.open();
                }
                run.count();
                for _ in 0..3 {
                    run.put(&[600]);
                }
                run.finish();
                if !is_dead {
                    break;
                }
            }
        }
    }
}

/// The same for consumers: what they have removed is not referred to, whoever goes on.
#[test]
fn what_killed_consumers_leave_is_put_in_order_before_anything_depends_on_it() {
    let _dog = Watchdog::start("killed consumers and cuts", Duration::from_secs(600));
    let works: [fn(&mut Run, SyncMode, usize) -> bool; 2] = [Run::take_killed, Run::clear_killed];
    for scene in 0..32 {
        let is = |bit: usize| scene >> bit & 1 == 1;
        let (crc, has_survivor, work) = (is(0), is(1), works[usize::from(is(2))]);
        let before = if is(3) { 3 } else { 1 };
        let sync = if is(4) { SyncMode::Never } else { SyncMode::Always };
        for steps in 1.. {
            let options = Options {
                chunk_size: 700,
                crc,
                role: Role::Producer,
                ..Options::default()
            };
            let name = format!("scene {scene}, killed after {steps} steps");
            let mut run = Run::start(&name, options, 1, 32);
            for _ in 0..before {
                run.put(&[600]);
            }
            if !has_survivor {
                run.close();
            }
            let is_dead = work(&mut run, sync, steps);
            if !has_survivor {
                run.open();
            }
            run.count_taken();
            run.put(&[600]);
            run.put(&[30]);
            run.finish();
            if !is_dead {
                break;
            }
        }
    }
}

/// Whoever consumes may commit what producers have staged, with whatever chunk size it was opened.
#[test]
fn a_consumer_with_another_chunk_size_does_not_move_the_place_of_the_notes() {
    let _dog = Watchdog::start("a consumer's chunk size", Duration::from_secs(600));
    for other in [SIZE - 1000, SIZE, SIZE + 1000] {
        let options = Options {
            chunk_size: SIZE,
            sync: SyncMode::Group,
            role: Role::Producer,
            ..Options::default()
        };
        let mut run = Run::start(&format!("a consumer with chunks of {other}"), options, 1, 256);
        run.put(&[600]);
        run.put(&[600]);
        run.sync();
        for _ in 0..3 {
            run.take_by(other);
        }
        for _ in 0..4 {
            run.put(&[300]);
            run.take_by(other);
            run.put(&[300]);
            run.sync();
        }
        run.finish();
    }
}
