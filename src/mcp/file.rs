//! The queue file: how a program reaches its queues (sections 3.0 and 7.0). Opening, users, and the life of EOF.
//!
//! # End of file
//! EOF is raised when the last writer closes or dies, and a queue at EOF is one that is empty besides. Each opening for output
//! gets the next number of `WRITER_OPENS`; EOF carries the number that was current when it was raised, and a new writer, by
//! taking the next, clears it for everybody. An open file remembers the number whose EOF it has taken (so EOF counts as a
//! message only until then, and every further read gives it again), and the number whose EOF had been taken by somebody when
//! it was opened: that one is over for it, it waits for the next writer.

use std::sync::Arc;
use std::time::Duration;

use super::disk::QueueDisk;
use super::driver::{Entry, Inside, Stop};
use super::layout::{QueueState, queue};
use super::lifecycle::{Birth, Found};
use super::name::shown;
use super::parameters::{Device, FileParameters};
use super::queue::QKey;
use super::system::System;
use super::users::Mode;
use super::write::total_order;
use crate::os::clock::Clock;
use crate::os::fork;
use crate::shared::signal::{Turn, Wait};
use crate::shared::sync::{AtomicU32, AtomicU64, Ordering, PrivateFlag};
use crate::{Error, Result};

/// A file that finds nothing asks so often at most whether its peers live.
#[cfg(not(loom))]
const SWEEP_EVERY: Duration = Duration::from_millis(10);
/// In a model time does not count.
#[cfg(loom)]
const SWEEP_EVERY: Duration = Duration::ZERO;

/// How a queue file is opened, beside its parameters.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// The queue outlives its last user (until the next boot).
    pub keep: bool,
    /// Hold to the limits of 1976.
    pub strict: bool,
    /// A directory for the queue disk; the system's own where none is given.
    pub disk: Option<std::path::PathBuf>,
    /// Keys count from 0, and -1 is the unspecific read (behaviour 42).
    pub sdl_keys: bool,
}

/// A number of `WRITER_OPENS`, or none.
#[derive(Debug)]
pub(super) struct Epoch(AtomicU64);

impl Epoch {
    fn new(epoch: Option<u32>) -> Self {
        Epoch(AtomicU64::new(epoch.map_or(u64::MAX, u64::from)))
    }

    fn is(&self, opens: u32) -> bool {
        self.0.load(Ordering::Relaxed) == u64::from(opens)
    }

    fn set(&self, opens: u32) {
        self.0.store(opens.into(), Ordering::Relaxed);
    }
}

/// One queue of an open file.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) key: QKey,
    /// The EOF that was over when the file was opened.
    over: Epoch,
    /// The EOF that this file has taken.
    taken: Epoch,
}

/// An open queue file: a single queue or a family.
#[derive(Debug)]
pub struct QueueFile {
    pub(super) system: Arc<System>,
    pub(super) head: QKey,
    pub(super) members: Vec<Member>,
    pub(super) disk: QueueDisk,
    pub(super) sdl_keys: bool,
    parameters: FileParameters,
    mode: Mode,
    keep: bool,
    /// Number of forks in the high half, number of the user record in the low one.
    user: AtomicU64,
    closed: AtomicU32,
    /// Operations that are between their two steps.
    pub(super) in_flight: AtomicU32,
    /// Messages in this file's hands.
    pub(super) marks: AtomicU32,
    /// The last read found a message: the next one need not look before it enters.
    pub(super) finds: PrivateFlag,
    /// The last write found room.
    pub(super) fits: PrivateFlag,
    clock: Clock,
    /// When this file last asked whether its peers live.
    looked: AtomicU64,
}

impl QueueFile {
    /// Opens the queue file: links to the queue of that name, or creates it with these parameters.
    ///
    /// A name without a family size also finds a family; bound parameters are those of its creator, the device is the opener's.
    pub fn open(system: &Arc<System>, parameters: &FileParameters, mode: Mode, options: &OpenOptions) -> Result<Self> {
        QueueFile::open_waiting(system, parameters, mode, options, || Ok(()))
    }

    /// As [`QueueFile::open`]; an error of `idle` ends the wait for another process that is making the queue, and may have been
    /// stopped while it does.
    pub fn open_waiting(
        system: &Arc<System>,
        parameters: &FileParameters,
        mode: Mode,
        options: &OpenOptions,
        mut idle: impl FnMut() -> Result<()>,
    ) -> Result<Self> {
        let name = parameters.check(options.strict)?;
        let disk = checked_disk_directory(options.disk.as_deref())?;
        let driver = &system.driver;
        let me = driver.roster.me()?.word();
        system.sweep(None)?;
        let birth = Birth {
            parameters,
            name: &name,
            keep: options.keep,
            disk: &disk,
            owner: me,
        };
        enum Step {
            Linked(QKey, u32),
            Create(QKey),
        }
        let attempt = || -> Result<Option<Step>> {
            driver.inside(Wait::Forever, |inside| {
                let mut found = inside.find(&name, parameters.family_size > 0);
                if found == Found::Nothing && parameters.family_size == 0 {
                    found = inside.find(&name, true);
                }
                Ok(match found {
                    Found::Live(key) => Some(Step::Linked(key, inside.add_user(key, me, Some(mode))?)),
                    Found::Creating => None,
                    Found::Nothing => Some(Step::Create(inside.conceive(&birth)?)),
                })
            })
        };
        let look = || {
            system.sweep(None)?;
            idle()
        };
        let step = driver
            .any_insert()
            .wait_for(Wait::Forever, Turn::PeerMatters, look, attempt)?;
        let (key, user) = match step.expect("waits for ever") {
            Step::Linked(key, user) => (key, user),
            Step::Create(key) => {
                let path = system.disk_path(disk.as_bytes(), key);
                let made = QueueDisk::create(&path, parameters);
                let born = made.and_then(|()| {
                    driver.inside(Wait::Forever, |inside| {
                        inside.bear(key)?;
                        Ok(inside.add_user(key, me, Some(mode))?)
                    })
                });
                driver.any_insert().notify_all();
                match born {
                    Ok(user) => (key, user),
                    Err(error) => {
                        driver.inside(Wait::Forever, |inside| {
                            inside.doom(&inside.queue(key.slot), me);
                            Ok::<_, Stop>(())
                        })?;
                        system.settle(super::users::Aftermath {
                            doomed: vec![key],
                            ..Default::default()
                        })?;
                        return Err(error);
                    }
                }
            }
        };
        QueueFile::attach(system, key, user, mode, parameters.device, options.sdl_keys).inspect_err(|_| {
            let _ = leave(system, user, me, false, Wait::Forever);
        })
    }

    /// Reads what is bound, once, and opens the queue disk.
    fn attach(system: &Arc<System>, head: QKey, user: u32, mode: Mode, device: Device, sdl_keys: bool) -> Result<Self> {
        let (parameters, members, keep, directory) = system.driver.inside(Wait::Forever, |inside| {
            let q = inside.live(head)?;
            let parameters = FileParameters {
                name: file_name(&shown(&inside.name_of(&q)), q.get(queue::MEMBER)),
                max_messages: q.get(queue::MAX_MESSAGES),
                buffers: q.get(queue::BUFFERS),
                record_size: q.get(queue::RECORD_SIZE),
                family_size: q.get(queue::FAMILY_SIZE),
                device,
            };
            parameters
                .check(false)
                .map_err(|e| Error::Corrupt(format!("bound parameters: {e}")))?;
            let opens = q.get(queue::WRITER_OPENS);
            let ended = q.get(queue::WRITERS) == 0 && opens != 0;
            let members = inside.members(head, QueueState::Live)?.into_iter().map(|slot| {
                let member = inside.queue(slot);
                let over = ended && member.get(queue::EOF_TAKEN) == opens;
                Member {
                    key: QKey {
                        slot,
                        generation: member.get(queue::GENERATION),
                    },
                    over: Epoch::new(over.then_some(opens)),
                    taken: Epoch::new(None),
                }
            });
            let keep = q.get(queue::FLAGS) & queue::FLAG_KEEP != 0;
            let members: Vec<_> = members.collect();
            Ok((parameters, members, keep, inside.disk_directory(head.slot)))
        })?;
        if members.len() != parameters.family_size.max(1) as usize {
            return Err(Error::Corrupt(format!(
                "the family {} has {} members",
                parameters.name,
                members.len()
            )));
        }
        let disk = QueueDisk::open(&system.disk_path(&directory, head), &parameters, Some(mode))?;
        Ok(QueueFile {
            system: system.clone(),
            head,
            members,
            disk,
            sdl_keys,
            parameters,
            mode,
            keep,
            user: AtomicU64::new(u64::from(fork::generation()) << 32 | u64::from(user)),
            closed: AtomicU32::new(0),
            in_flight: AtomicU32::new(0),
            marks: AtomicU32::new(0),
            finds: PrivateFlag::new(false),
            fits: PrivateFlag::new(false),
            clock: Clock::monotonic(),
            looked: AtomicU64::new(0),
        })
    }

    /// The parameters that are bound, with this opener's device.
    pub fn parameters(&self) -> &FileParameters {
        &self.parameters
    }

    /// How it was opened.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Whether the queue outlives its users.
    pub fn keeps(&self) -> bool {
        self.keep
    }

    /// Whether keys count from 0 (behaviour 42).
    pub fn counts_from_zero(&self) -> bool {
        self.sdl_keys
    }

    /// The system it belongs to.
    pub fn system(&self) -> &Arc<System> {
        &self.system
    }

    /// Where the queue disk is, and how many descriptors this file has on it.
    pub fn disk(&self) -> (&std::path::Path, usize) {
        (self.disk.path(), self.disk.descriptors())
    }

    /// Whether [`QueueFile::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst) != 0
    }

    /// Whether a writer of this file ended without closing it, since there last was a first writer.
    pub fn abended(&self) -> Result<bool> {
        self.check_open()?;
        self.look_around()?;
        Ok(self.system.driver.queue_word(self.head.slot, queue::ABENDED) != 0)
    }

    /// The queue disappears with its last user after all.
    pub fn forget(&self) -> Result<()> {
        self.check_open()?;
        let driver = &self.system.driver;
        driver.inside(Entry::Soon, |inside| Ok(inside.forget(self.head)?))
    }

    /// Closes the file: what is in its hands goes back, and the last writer's close is the end of file.
    pub fn close(&self) -> Result<()> {
        self.close_idling(|| Ok(()))
    }

    /// As [`QueueFile::close`]. An error of `idle`, which is called while others are in the way, ends the wait; the file is
    /// open then as before.
    pub fn close_idling(&self, mut idle: impl FnMut() -> Result<()>) -> Result<()> {
        // SYNC: in flight (with `InFlight`)
        if self.closed.swap(1, Ordering::SeqCst) != 0 {
            return Ok(());
        }
        total_order();
        let (generation, user) = self.user_word();
        // A child that never used the file is no user of it; its parent still is.
        if generation != fork::generation() {
            return Ok(());
        }
        // Operations of other threads that are outside between their steps still need what they have taken.
        let is_alone = || (self.in_flight.load(Ordering::SeqCst) == 0).then_some(());
        self.system
            .driver
            .any_insert()
            .wait_for(Wait::Forever, Turn::PeerMatters, || Ok(()), || Ok(is_alone()))?;
        let me = self.system.driver.roster.me()?.word();
        let has_marks = self.marks.load(Ordering::Acquire) != 0;
        loop {
            match leave(&self.system, user, me, has_marks, Entry::Attempt) {
                Err(Error::TimedOut) => idle().inspect_err(|_| self.closed.store(0, Ordering::SeqCst))?,
                left => return left,
            }
        }
    }

    /// [`Error::Closed`] after a close.
    pub fn check_open(&self) -> Result<()> {
        if self.is_closed() { Err(Error::Closed) } else { Ok(()) }
    }

    /// Whether it was opened to be read, and still is.
    pub fn check_reads(&self) -> Result<()> {
        self.check_open()?;
        if self.mode.reads() {
            return Ok(());
        }
        Err(Error::Invalid(format!(
            "{} is open for output, not for input",
            self.parameters.name
        )))
    }

    pub(super) fn check_writes(&self) -> Result<()> {
        self.check_open()?;
        if self.mode.writes() {
            return Ok(());
        }
        Err(Error::Invalid(format!(
            "{} is open for input, not for output",
            self.parameters.name
        )))
    }

    fn user_word(&self) -> (u32, u32) {
        let word = self.user.load(Ordering::Acquire);
        ((word >> 32) as u32, word as u32)
    }

    /// The user record of this process. A forked child becomes a user of its own with its first operation.
    #[inline]
    pub(super) fn user(&self) -> Result<u32> {
        let (generation, user) = self.user_word();
        if generation == fork::generation() {
            return Ok(user);
        }
        self.become_user()
    }

    #[cold]
    fn become_user(&self) -> Result<u32> {
        let driver = &self.system.driver;
        let me = driver.roster.me()?.word();
        let seen = self.user.load(Ordering::Acquire);
        let user = driver.inside(Wait::Forever, |inside| {
            Ok(inside.add_user(self.head, me, Some(self.mode))?)
        })?;
        let mine = u64::from(fork::generation()) << 32 | u64::from(user);
        match self
            .user
            .compare_exchange(seen, mine, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => {
                self.in_flight.store(0, Ordering::Release);
                self.marks.store(0, Ordering::Release);
                Ok(user)
            }
            // Another thread of the child was faster.
            Err(now) => {
                leave(&self.system, user, me, false, Wait::Forever)?;
                Ok(now as u32)
            }
        }
    }

    /// Asks whether the other users live, if nobody has asked for a while; true when somebody was found dead.
    pub(super) fn look_around(&self) -> Result<bool> {
        let now = self.clock.now();
        let looked = self.looked.load(Ordering::Relaxed);
        if now.saturating_sub(looked) < SWEEP_EVERY.as_nanos() as u64 {
            return Ok(false);
        }
        self.looked.store(now, Ordering::Relaxed);
        self.system.sweep(Some(self.head))
    }

    /// The number of the EOF that a read of this member would give, messages aside.
    pub(super) fn ended(&self, inside: &Inside<'_>, member: &Member) -> Option<u32> {
        let file = inside.queue(self.head.slot);
        let opens = file.get(queue::WRITER_OPENS);
        (file.get(queue::WRITERS) == 0 && opens != 0 && !member.over.is(opens)).then_some(opens)
    }

    /// Whether EOF still counts as a message of this member.
    pub(super) fn eof_is_pending(&self, inside: &Inside<'_>, member: &Member) -> bool {
        let q = inside.queue(member.key.slot);
        let settled = q.get(queue::OCCUPIED) == q.get(queue::AVAILABLE);
        settled && self.ended(inside, member).is_some_and(|opens| !member.taken.is(opens))
    }

    /// A read takes EOF: all later reads get it, too, but it counts no more.
    pub(super) fn take_eof(&self, inside: &Inside<'_>, member: &Member, opens: u32) {
        member.taken.set(opens);
        inside.queue(member.key.slot).set(queue::EOF_TAKEN, opens);
    }
}

impl Drop for QueueFile {
    fn drop(&mut self) {
        let _ = self.close();
    }
}

fn leave(system: &System, user: u32, me: u64, has_marks: bool, entry: impl Into<Entry>) -> Result<()> {
    let driver = &system.driver;
    let aftermath = driver.inside(entry, |inside| {
        if inside.user(user).identity() != me {
            return Ok(None);
        }
        Ok(Some(inside.remove_user(user, false, has_marks, me)?))
    })?;
    aftermath.map_or(Ok(()), |aftermath| system.settle(aftermath))
}

/// A family is called by its MFID.
fn file_name(first: &str, member: u32) -> String {
    match member {
        0 => first.to_owned(),
        _ => first.split('/').next().unwrap_or(first).to_owned(),
    }
}

fn checked_disk_directory(directory: Option<&std::path::Path>) -> Result<String> {
    let Some(directory) = directory else {
        return Ok(String::new());
    };
    let found = directory
        .canonicalize()
        .map_err(|e| Error::io(format!("opening the disk directory {}", directory.display()), e))?;
    let text = found.to_str().filter(|text| text.len() <= queue::DISK_LIMIT);
    match text {
        Some(text) if found.is_dir() => Ok(text.to_owned()),
        _ => Err(Error::Invalid(format!(
            "the disk directory {} is not a directory whose name has at most {} bytes of UTF-8",
            directory.display(),
            queue::DISK_LIMIT
        ))),
    }
}
