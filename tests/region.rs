//! Creating and opening the files behind a region: one creator, no half-made file, nothing planted, no signal.

mod common;

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;

use common::dirs::TestDir;
use common::watchdog::Watchdog;
use common::worker::{Exit, Spawn};
use common::{is_root, rounds, skip_without_root};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use tailrace::Error;
use tailrace::os::file;
use tailrace::shared::region::Region;
use tailrace::shared::sync::Ordering;

const MARK: u32 = 0x7461_696c;

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn create(path: &Path) -> Region {
    let formatted = Region::create(path, 4096, |region| {
        region.u32(0).store(MARK, Ordering::Relaxed);
        Ok(())
    });
    formatted.unwrap().0
}

#[test]
fn a_created_file_is_private_complete_and_opens_again() {
    let dir = TestDir::shm();
    let path = dir.queue().join("q");
    let region = create(&path);
    let meta = fs::metadata(&path).unwrap();
    assert_eq!((meta.len(), meta.mode() & 0o777, meta.nlink()), (4096, 0o600, 1));
    assert_eq!(meta.blocks() * 512, 4096, "allocated, not sparse");
    let again = Region::open(&path).unwrap();
    again.u32(8).store(7, Ordering::Relaxed);
    assert_eq!(
        (
            region.u32(8).load(Ordering::Relaxed),
            region.u32(0).load(Ordering::Relaxed)
        ),
        (7, MARK)
    );
    assert_eq!(names(&dir.queue()), ["q"]);
}

#[test]
fn a_name_that_is_taken_is_refused_and_nothing_is_left_over() {
    let dir = TestDir::disk();
    let path = dir.queue().join("q");
    let _first = create(&path);
    let second = Region::create(&path, 4096, |_| Ok(())).unwrap_err();
    assert!(
        matches!(&second, Error::Exists(shown) if shown.ends_with("/q")),
        "{second}"
    );
    assert_eq!(names(&dir.queue()), ["q"]);
}

#[test]
fn a_format_that_fails_leaves_no_file() {
    let dir = TestDir::shm();
    let failed = Region::create(&dir.queue().join("q"), 4096, |_| -> tailrace::Result<()> {
        Err(Error::Empty)
    });
    assert!(matches!(failed, Err(Error::Empty)));
    assert!(names(&dir.queue()).is_empty());
}

#[test]
fn of_racing_creators_exactly_one_creates() {
    let _dog = Watchdog::start("racing creators", Duration::from_secs(120));
    for _ in 0..rounds(25, 500) {
        let dir = TestDir::shm();
        let path = dir.queue().join("q");
        let mut racers: Vec<_> = (0..4)
            .map(|_| {
                let path = path.clone();
                Spawn::new(&dir, "racer").start_forked(move |args| {
                    args.ready();
                    args.wait_go();
                    let (region, created) = Region::open_or_create(&path, 4096, |region| {
                        region.u32(0).store(MARK, Ordering::Relaxed);
                        Ok(())
                    })
                    .unwrap();
                    assert_eq!(
                        region.u32(0).load(Ordering::Relaxed),
                        MARK,
                        "a half-made file was visible"
                    );
                    region.u32(4).fetch_add(1, Ordering::Relaxed);
                    args.word(0)
                        .store(u64::from(created.is_some()), std::sync::atomic::Ordering::Relaxed);
                })
            })
            .collect();
        racers.iter_mut().for_each(|racer| racer.wait_ready());
        racers.iter().for_each(|racer| racer.go());
        let mut creators = 0;
        for racer in &mut racers {
            assert_eq!(racer.wait(Duration::from_secs(20)), Exit::Code(0), "{}", racer.stderr());
            creators += racer.word(0).load(std::sync::atomic::Ordering::Relaxed);
        }
        assert_eq!(creators, 1);
        assert_eq!(
            Region::open(&path).unwrap().u32(4).load(Ordering::Relaxed),
            4,
            "all four share one file"
        );
    }
}

#[test]
fn what_is_not_our_own_regular_file_is_refused() {
    let dir = TestDir::shm();
    let at = |name: &str| dir.queue().join(name);
    let refused = |name: &str| Region::open(&at(name)).unwrap_err().to_string();
    drop(create(&at("real")));

    symlink(at("real"), at("link")).unwrap();
    assert!(refused("link").contains("is a symbolic link"), "{}", refused("link"));
    fs::create_dir(at("directory")).unwrap();
    assert!(
        refused("directory").contains("is a directory"),
        "{}",
        refused("directory")
    );
    nix::unistd::mkfifo(&at("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(fs::symlink_metadata(at("fifo")).unwrap().file_type().is_fifo());
    assert!(refused("fifo").contains("is not a regular file"), "{}", refused("fifo"));
    fs::write(at("empty"), b"").unwrap();
    assert!(refused("empty").contains("is empty"), "{}", refused("empty"));
    assert!(matches!(Region::open(&at("missing")), Err(Error::NotFound(_))));
    fs::hard_link(at("real"), at("second name")).unwrap();
    assert!(refused("real").contains("has 2 names"), "{}", refused("real"));
    fs::remove_file(at("second name")).unwrap();
    Region::open(&at("real")).unwrap();
}

#[test]
fn another_users_file_is_refused() {
    if skip_without_root("giving a file to another user") {
        return;
    }
    let dir = TestDir::shm();
    let path = dir.queue().join("q");
    drop(create(&path));
    std::os::unix::fs::chown(&path, Some(12345), None).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    let refused = Region::open(&path).unwrap_err();
    assert!(refused.to_string().contains("belongs to user 12345"), "{refused}");
}

#[test]
fn a_full_file_system_is_an_error_and_no_signal() {
    if skip_without_root("mounting a small tmpfs") {
        return;
    }
    assert!(is_root());
    let dir = TestDir::shm();
    let small = dir.scratch().join("small");
    fs::create_dir(&small).unwrap();
    mount(Some("none"), &small, Some("tmpfs"), MsFlags::empty(), Some("size=1m")).unwrap();
    let full = Region::create(&small.join("q"), 4 << 20, |_| Ok(()));
    let left = names(&small);
    let fits = Region::create(&small.join("q"), 512 << 10, |_| Ok(())).map(drop);
    umount2(&small, MntFlags::MNT_DETACH).unwrap();
    let full = full.unwrap_err();
    assert!(full.to_string().contains("No space left"), "{full}");
    assert!(left.is_empty(), "{left:?}");
    fits.expect("the failed attempt gave its space back");
}

#[test]
fn names_that_people_give_are_checked() {
    for good in ["jobs", "Ünicode queue", "a.b", &"x".repeat(200)] {
        file::check_name(good).unwrap();
    }
    for bad in ["", ".hidden", "..", "a/b", "a\0b", &"x".repeat(201)] {
        assert!(matches!(file::check_name(bad), Err(Error::Invalid(_))), "{bad:?}");
    }
}
