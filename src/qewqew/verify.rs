//! Looking for damage, and stepping over it: reported, never silent, and nothing is thrown away.
//!
//! The format has no redundancy: without checksum files only lengths and references can be wrong in a way that shows. What
//! `repair` takes out of the queue it puts aside as `NAME.<id>.damaged`.

use std::collections::HashSet;
use std::fs;
use std::path::PathBuf;

use super::checks::Checks;
use super::chunk::Chunk;
use super::layout::{ChunkId, FIRST_ENTRY, LENGTH_BYTES, Pointers};
use super::publish::framed_messages;
use super::queue::DurableQueue;
use super::reader::Reader;
use super::records::{Check, Cover, State, Table};
use super::session::Session;
use super::store::Store;
use super::writer::Writer;
use crate::os::file;
use crate::{Error, Result};

/// How often a look is begun anew: after that a consumer is faster than it.
const LOOKS: usize = 10;

/// What [`DurableQueue::verify`] or [`DurableQueue::repair`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Chunks in the chain.
    pub chunks: usize,
    /// Unread messages that are as they should be.
    pub messages: u64,
    /// How many of them have a checksum.
    pub checked: u64,
    /// Everything that is not as it should be.
    pub problems: Vec<Problem>,
    /// Where `repair` put what it took out.
    pub put_aside: Vec<PathBuf>,
}

/// One thing that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The number of the chunk; `None` for the head file.
    pub chunk: Option<u16>,
    /// Where in the chunk.
    pub offset: Option<u32>,
    /// What is wrong.
    pub what: String,
}

/// A chunk as examined: the unread entries that are sound, and whether that is all of it.
struct Examined {
    sound: Vec<u8>,
    messages: u64,
    checked: u64,
    next: Option<ChunkId>,
    problems: Vec<Problem>,
}

impl DurableQueue {
    /// Looks at every unread message, and at every checksum where there are any. Changes nothing. Others may go on meanwhile.
    pub fn verify(&self) -> Result<Report> {
        let session = self.session()?;
        session.check_open()?;
        let waiting = session.store.side.as_ref().filter(|side| side.has_staged());
        let committed = waiting.map_or(Ok(()), |side| DurableQueue::commit_staged(session, side));
        let mut report = look(&session.store)?;
        if !report.problems.is_empty() {
            // Chunks that came or went during the look seem to be lost: only what is found a second time is wrong.
            let before = std::mem::replace(&mut report, look(&session.store)?).problems;
            report.problems.retain(|problem| before.contains(problem));
        }
        if let Err(error) = committed {
            // They are safe where they wait; for want of space, as a rule.
            report.messages += session.count_staged();
            if let Error::Corrupt(what) = error {
                report.note(None, None, &what);
            }
        }
        Ok(report)
    }

    /// Takes damaged messages and chunks out of the chain, so that the rest can be read; nobody else may have the queue open.
    /// What was taken out is in the report, and put aside in files.
    pub fn repair(&self) -> Result<Report> {
        let session = self.consumer()?;
        let mut reader = session.reader()?;
        let _commits = session
            .commits
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut writer = session.writer()?;
        let shown = session.store.shown();
        session.with_roles(|roles| {
            roles.close_gate(&shown, &mut || Ok(()))?;
            let done = match roles.is_alone() {
                Ok(true) => repair_alone(session, &mut reader, &mut writer),
                Ok(false) => Err(Error::AlreadyOpen(format!(
                    "{shown} must be open only once to be repaired"
                ))),
                Err(error) => Err(error),
            };
            reader.start_anew();
            writer.forget();
            roles.open_gate()?;
            done
        })
    }
}

/// One walk through the chain, begun anew when the consumer has removed a chunk on the way.
fn look(store: &Store) -> Result<Report> {
    let mut report = Report::default();
    for _ in 0..LOOKS {
        let first = store.head.first()?;
        report = walk(store, first)?;
        if report.problems.is_empty() || store.head.first()? == first {
            break;
        }
    }
    Ok(report)
}

fn walk(store: &Store, first: Option<ChunkId>) -> Result<Report> {
    let mut report = Report::default();
    let mut seen = HashSet::new();
    let mut at = first;
    while let Some(id) = at {
        if !seen.insert(id) {
            report.note(Some(id), None, "the chain of chunks goes in a circle here");
            break;
        }
        // Nothing is appended and no chunk started over while it is looked at.
        let append = store.side.as_ref().map(|side| side.append_lock(Store::patience()));
        let _append = append.transpose()?;
        match examine(store, id) {
            Ok(examined) => {
                at = examined.next;
                report.add(examined);
            }
            Err(error) => {
                report.note(Some(id), None, &error.to_string());
                break;
            }
        }
    }
    if let Some(first) = store.unreached()? {
        report.note(
            None,
            None,
            &format!("the head file does not lead to chunk {first}, which was closed unread"),
        );
    }
    for id in unlinked(store, seen)? {
        report.note(Some(id), None, "no chunk refers to this one");
    }
    Ok(report)
}

/// Chunks that are neither among those seen nor in the chain as it is now.
fn unlinked(store: &Store, mut seen: HashSet<ChunkId>) -> Result<Vec<ChunkId>> {
    // A producer that has made a chunk links it before it lets go of this lock.
    let append = store.side.as_ref().map(|side| side.append_lock(Store::patience()));
    let _append = append.transpose()?;
    // A damaged chain was reported already.
    seen.extend(store.chain().unwrap_or_default().iter().map(|link| link.id));
    let present = store.present()?;
    seen.extend(store.consumed_chunks()?);
    Ok(present.into_iter().filter(|id| !seen.contains(id)).collect())
}

/// Nobody else has the queue open, and no other thread of this handle touches it.
fn repair_alone(session: &Session, reader: &mut Reader, writer: &mut Writer) -> Result<Report> {
    let store = &session.store;
    // Messages that wait for a commit belong behind the tail as it is now; those that cannot get there come after the repair.
    writer.forget();
    if let Some(side) = &store.side {
        match session.commit_all(side, writer) {
            Err(Error::Corrupt(_)) => {}
            done => done?,
        }
    }
    // What is consumed must not be taken for a part of the chain that was lost.
    reader.remove_consumed(store)?;
    let report = repair_chain(session)?;
    writer.forget();
    if let Some(side) = store.side.as_ref().filter(|side| side.has_staged()) {
        for staged in side.staged() {
            writer.append(store, &framed_messages(&staged.bytes)?, true)?;
        }
        side.empty_stage(0);
        side.empty_stage(1);
    }
    if let Some(side) = &store.side {
        // Which of the chunks a handle without syncs has left nobody knows any more.
        side.set_unsynced_past(true);
    }
    Ok(report)
}

fn repair_chain(session: &Session) -> Result<Report> {
    let store = &session.store;
    let mut report = Report::default();
    let mut seen = HashSet::new();
    let mut previous: Option<Chunk> = None;
    if let Some(first) = store.unreached()? {
        report.note(
            None,
            None,
            &format!("the head file does not lead to chunk {first}, which was closed unread"),
        );
        relink(store, None, Some(first))?;
    }
    if store.head.first()?.is_none() {
        // Nothing was consumed from a queue that has messages and no first chunk; or a power cut brought consumed ones back.
        let has_messages = |_, chunk: &Chunk| chunk.pointers().is_ok_and(|p| p.is_some_and(|p| !p.is_exhausted()));
        if let Some(first) = store.first_outside(&[], has_messages)? {
            report.note(
                None,
                None,
                &format!("the head file names no chunk, and chunk {first} holds messages"),
            );
            relink(store, None, Some(first))?;
        }
    }
    let mut at = store.head.first()?;
    while let Some(id) = at {
        let broken = if seen.contains(&id) {
            Some("the chain of chunks goes in a circle here".to_owned())
        } else {
            examine(store, id).err().map(|error| error.to_string())
        };
        if let Some(what) = broken {
            report.note(Some(id), None, &what);
            if !seen.contains(&id) {
                put_aside(store, id, &mut report)?;
            }
            // The chunk that would have come next, if any is left that nothing refers to.
            let next = following(store, id, &seen)?;
            relink(store, previous.as_ref(), next)?;
            at = next;
            continue;
        }
        seen.insert(id);
        let examined = examine(store, id)?;
        at = examined.next;
        if !examined.problems.is_empty() {
            rebuild(store, id, &examined, &mut report)?;
        }
        report.add(examined);
        previous = Some(store.glance(id)?);
    }
    let consumed = store.consumed_chunks()?;
    for id in store.present()? {
        if !seen.contains(&id) && !consumed.contains(&id) {
            report.note(Some(id), None, "no chunk refers to this one");
            put_aside(store, id, &mut report)?;
        }
    }
    if !report.problems.is_empty() {
        let first = store.head.first()?;
        store.with_positions(|positions| positions.new_epoch(&store.disk, first, true))?;
        store.disk.sync_directory()?;
    }
    Ok(report)
}

/// Reads a chunk's unread entries one by one; [`Error::Corrupt`] when its pointers are of no use.
fn examine(store: &Store, id: ChunkId) -> Result<Examined> {
    let chunk = match store.open_chunk(id) {
        Err(Error::NotFound(_)) => return Err(store.missing(id)),
        opened => opened?,
    };
    let mut found = Examined {
        sound: Vec::new(),
        messages: 0,
        checked: 0,
        next: chunk.next()?,
        problems: Vec::new(),
    };
    let (state, mut table) = match read_checks(store, id) {
        Ok(read) => read,
        Err(error) => {
            found.problem(id, None, format!("its checksums cannot be used: {error}"));
            (State::Open, None)
        }
    };
    let Pointers { head, tail } = match (state, chunk.pointers()) {
        (State::Damaged(seen), now) if seen.pointers.are_within(chunk.length()) => {
            let now = now.ok().flatten().map(|pointers| (pointers, shown(found.next)));
            let then = (seen.pointers, shown(ChunkId::from_ref(seen.next)));
            found.problem(id, None, format!("it was closed as {then:?} and is {now:?}"));
            found.next = ChunkId::from_ref(seen.next);
            seen.pointers
        }
        (_, now) => now?.ok_or_else(|| Error::Corrupt(format!("{} changes its length", chunk.path().display())))?,
    };
    let mut tail = tail;
    if let Some(end) = table.as_ref().and_then(|table| table.end) {
        if end.tail != tail && (head..=chunk.length()).contains(&end.tail) {
            found.problem(
                id,
                None,
                format!("the entries end at {tail}, the checksums at {}", end.tail),
            );
            tail = end.tail;
        }
        let next = ChunkId::from_ref(end.next);
        if found.next != next {
            let (next, now) = (shown(next), shown(found.next));
            found.problem(id, None, format!("its next chunk was {next}, now it is {now}"));
            found.next = ChunkId::from_ref(end.next);
        }
    }
    let table = table.get_or_insert_with(|| Table::new(u32::MAX));
    let mut at = head;
    let mut bytes = Vec::new();
    while at < tail {
        let cover = table.find(at);
        let length = match (chunk.entry_length(at, tail), cover) {
            (Ok(length), Cover::Checked(check)) if length != u32::from(check.length) => {
                found.problem(id, Some(at), format!("the length {length} is not {}", check.length));
                at = table.next_behind(at).unwrap_or(tail);
                continue;
            }
            (Ok(_), Cover::Missing) => {
                let next = table.next_behind(at).unwrap_or(tail).min(tail);
                found.problem(id, Some(at), format!("what lies from here to {next} has no checksum"));
                at = next;
                continue;
            }
            (Ok(length), _) => length,
            (Err(error), _) => {
                found.problem(id, Some(at), error.to_string());
                at = table.next_behind(at).unwrap_or(tail);
                continue;
            }
        };
        bytes.clear();
        chunk.append_to(at + LENGTH_BYTES, length, &mut bytes)?;
        match cover {
            Cover::Checked(check) if check != Check::of(at, &bytes) => found.problem(
                id,
                Some(at),
                format!("a message of {length} bytes does not have its checksum"),
            ),
            _ => {
                found.messages += 1;
                found.checked += u64::from(cover != Cover::Unchecked);
                super::layout::frame(&bytes, &mut found.sound);
            }
        }
        at += LENGTH_BYTES + length;
    }
    Ok(found)
}

fn shown(id: Option<ChunkId>) -> String {
    id.map_or_else(|| "none".to_owned(), |id| id.to_string())
}

fn read_checks(store: &Store, id: ChunkId) -> Result<(State, Option<Table>)> {
    match Checks::open(&store.names.checks(id))? {
        Some(checks) => Ok((checks.header()?.state, Some(checks.read()?))),
        None => Ok((State::Open, None)),
    }
}

/// Puts a chunk with only the sound entries in the place of a damaged one, in a single step.
fn rebuild(store: &Store, id: ChunkId, examined: &Examined, report: &mut Report) -> Result<()> {
    let aside = free_name(store, id);
    let size = store
        .glance(id)?
        .length()
        .max(FIRST_ENTRY + examined.sound.len() as u32);
    let access = super::chunk::Access {
        mapped: false,
        durable: true,
        logged: false,
    };
    let fresh = Chunk::prepare(&aside, id, size, &examined.sound, access)?.publish(&store.disk, None)?;
    if let Some(next) = examined.next {
        fresh.set_next(&store.disk, Some(next))?;
        fresh.sync(&store.disk)?;
    }
    let checks = store.names.checks(id);
    if checks.exists() {
        let fresh = Checks::create(&store.disk, &checks, FIRST_ENTRY, &examined.sound, true)?;
        fresh.finish(&store.disk, FIRST_ENTRY + examined.sound.len() as u32, examined.next)?;
    }
    file::exchange(&store.names.chunk(id), &aside)?;
    report.put_aside.push(aside);
    Ok(())
}

fn put_aside(store: &Store, id: ChunkId, report: &mut Report) -> Result<()> {
    let path = store.names.chunk(id);
    let aside = free_name(store, id);
    store.disk.unlink(&store.names.checks(id))?;
    match fs::rename(&path, &aside) {
        Ok(()) => report.put_aside.push(aside),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        Err(e) => return Err(Error::io(format!("putting {} aside", path.display()), e)),
    }
    Ok(())
}

fn free_name(store: &Store, id: ChunkId) -> PathBuf {
    let plain = store.names.damaged(id);
    let numbered = (2..).map(|n| plain.with_extension(format!("damaged{n}")));
    std::iter::once(plain.clone())
        .chain(numbered)
        .find(|path| !path.exists())
        .expect("endless")
}

fn relink(store: &Store, previous: Option<&Chunk>, next: Option<ChunkId>) -> Result<()> {
    match previous {
        Some(chunk) => {
            chunk.set_next(&store.disk, next)?;
            chunk.sync(&store.disk)?;
            match Checks::open(&store.names.checks(chunk.id()))? {
                Some(checks) => checks.finish(&store.disk, chunk.raw_pointers()?.tail, next),
                None => Ok(()),
            }
        }
        None => {
            store.head.set(&store.disk, next)?;
            store.head.sync(&store.disk)
        }
    }
}

/// The first chunk behind `id`, in the order in which ids are given, that exists and is not in the chain so far.
fn following(store: &Store, id: ChunkId, seen: &HashSet<ChunkId>) -> Result<Option<ChunkId>> {
    let distance = |other: ChunkId| (u32::from(other.number()) + 65_535 - u32::from(id.number())) % 65_535;
    let candidates = store
        .present()?
        .into_iter()
        .filter(|other| !seen.contains(other) && distance(*other) != 0);
    Ok(candidates.min_by_key(|other| distance(*other)))
}

impl Report {
    fn note(&mut self, chunk: Option<ChunkId>, offset: Option<u32>, what: &str) {
        self.problems.push(Problem {
            chunk: chunk.map(ChunkId::number),
            offset,
            what: what.to_owned(),
        });
    }

    fn add(&mut self, examined: Examined) {
        self.chunks += 1;
        self.messages += examined.messages;
        self.checked += examined.checked;
        self.problems.extend(examined.problems);
    }
}

impl Examined {
    fn problem(&mut self, id: ChunkId, offset: Option<u32>, what: String) {
        self.problems.push(Problem {
            chunk: Some(id.number()),
            offset,
            what,
        });
    }
}
