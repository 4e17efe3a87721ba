//! Notes of commits: why one sync is enough for entries and their tail.
//!
//! The format has no checksum, so a tail must never reach the disk before its entries do. That is two ordered syncs: entries,
//! sync, tail, sync. A commit here writes its entries together with a note of where they are and of the CRC32C of all entries
//! up to them, in the same file, syncs *once*, and moves the tail then; the tail reaches the disk with the sync of the next
//! commit. After a power cut the tail may still be that of the commit before: the note leads from there to the one that was
//! acknowledged ([`Chunk::roll_forward`]). A note whose entries are not as it says is of a commit that was not, or of a chunk
//! that others have filled anew since.
//!
//! - There are two places for notes, taken in turns: a note must stay until the tail that it leads to is on the disk, which
//!   is when the next commit is synced. A tail that no note leads to (another mode has moved it, or a process before this one)
//!   is synced before the next note is written.
//! - Notes lie in the last bytes of the chunk, where one day entries will be. Whoever needs the place syncs the chunk and takes
//!   the notes away first ([`Chunk::settle_notes`]). A chunk that is left or closed has none: every byte is as the original
//!   would have it. For the same reason other bytes that are found there, left over in a chunk that has started over, are not
//!   touched: such a chunk is committed with two syncs.
//! - Where they lie depends on the length of the file, which producers alone change, under the commit lock (or with nothing to
//!   commit): those with different chunk sizes do without notes
//!   (`Side::agree_on`), as does `network=True`, where nobody can tell. So do producers beside one that syncs nothing: it
//!   moves tails that no note leads to.
//! - The original knows nothing of notes: when it is the first to open a queue after a power cut, it does not see the last
//!   commit. Ours has to come first then. And where it has started a chunk over, behind a kill or a cut, and has written the very
//!   messages again that were there, up to where a note begins, that note leads to one more.

use super::chunk::Chunk;
use super::disk::Disk;
use super::layout::{self, ChunkId, FIRST_ENTRY, NOTE_BYTES, NOTES_BYTES};
use crate::Result;

/// How much is read at a time.
const PIECE: u32 = 64 << 10;

/// What one commit has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    start: u32,
    end: u32,
    /// Of all entries from the first of the chunk to `end`.
    crc: u32,
}

impl Note {
    /// Of a commit of these entries behind others with the checksum `before`.
    fn of(start: u32, framed: &[u8], before: u32) -> Self {
        Note {
            start,
            end: start + framed.len() as u32,
            crc: crc32c::crc32c_append(before, framed),
        }
    }

    /// Of a chunk that is on the disk with these entries, and its tail behind them.
    pub(crate) fn of_new_chunk(entries: &[u8]) -> Self {
        let tail = FIRST_ENTRY + entries.len() as u32;
        Note::of(tail, &[], crc32c::crc32c(entries))
    }

    pub(crate) fn encode(self, id: ChunkId) -> [u8; NOTE_BYTES] {
        let mut bytes = [0; NOTE_BYTES];
        bytes[..4].copy_from_slice(&self.start.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.end.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.crc.to_le_bytes());
        let own = own_crc(&bytes, id);
        bytes[12..].copy_from_slice(&own.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; NOTE_BYTES], id: ChunkId) -> Option<Self> {
        let [start, end, crc, own] = std::array::from_fn(|i| {
            u32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]])
        });
        (own == own_crc(bytes, id) && FIRST_ENTRY <= start && start <= end).then_some(Note { start, end, crc })
    }
}

fn own_crc(bytes: &[u8; NOTE_BYTES], id: ChunkId) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&id.reference().to_le_bytes()), &bytes[..12])
}

/// What the two places hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Notes {
    at: u32,
    places: [Option<Note>; 2],
}

impl Notes {
    /// `None` where there is no place for notes, or something else is in it: a message can hold any bytes.
    fn read(chunk: &Chunk) -> Result<Option<Self>> {
        match layout::notes_at(chunk.length()) {
            Some(at) if chunk.raw_pointers()?.tail <= at => Notes::read_at(chunk, at),
            _ => Ok(None),
        }
    }

    fn read_at(chunk: &Chunk, at: u32) -> Result<Option<Self>> {
        let mut bytes = [0; NOTES_BYTES as usize];
        chunk.read(at, &mut bytes)?;
        Ok(Notes::decode(&bytes, chunk.id(), at))
    }

    /// Beside a note anything is one of which a power cut has left a part: it lies across two sectors.
    fn decode(bytes: &[u8; NOTES_BYTES as usize], id: ChunkId, at: u32) -> Option<Self> {
        let (first, second) = bytes.split_at(NOTE_BYTES);
        let places = [first, second].map(|place| place.try_into().ok().and_then(|place| Note::decode(place, id)));
        let notes = Notes { at, places };
        (notes.are_there() || *bytes == [0; NOTES_BYTES as usize]).then_some(notes)
    }

    fn are_there(&self) -> bool {
        self.places != [None; 2]
    }

    /// The place for the note of a commit that starts at `tail`, and the note in the other one if it leads to that tail.
    fn place_behind(&self, tail: u32) -> (usize, Option<Note>) {
        let leading = self.places.map(|place| place.filter(|note| note.end == tail));
        match leading {
            [Some(note), _] => (1, Some(note)),
            [None, Some(note)] => (0, Some(note)),
            // Of a commit from here that was not acknowledged: it must not be taken for the one to come.
            _ => (self.starts_at(tail).unwrap_or(0), None),
        }
    }

    fn starts_at(&self, tail: u32) -> Option<usize> {
        self.places
            .iter()
            .position(|place| place.is_some_and(|note| note.start == tail))
    }

    /// The tail to which the notes lead from `tail`, in at most two steps.
    fn follow(&self, chunk: &Chunk, tail: u32) -> Result<u32> {
        let (mut reached, mut crc) = (tail, chunk.crc_to(tail)?);
        for _ in self.places {
            let mut steps: Vec<Note> = self.places.into_iter().flatten().collect();
            steps.retain(|note| note.start == reached && note.end > reached && note.end <= self.at);
            steps.sort_by_key(|note| std::cmp::Reverse(note.end));
            for note in steps {
                let mut framed = Vec::new();
                chunk.append_to(note.start, note.end - note.start, &mut framed)?;
                if Note::of(note.start, &framed, crc) == note && layout::is_framed(&framed) {
                    (reached, crc) = (note.end, note.crc);
                    break;
                }
            }
        }
        Ok(reached)
    }
}

impl Chunk {
    /// Writes framed entries behind the tail at `offset`, then the tail, so that they stay through a power cut from here on:
    /// with one sync where a note can be left (`noted`), else with two. The caller holds the commit lock.
    pub(crate) fn commit(&self, disk: &Disk, offset: u32, framed: &[u8], noted: bool) -> Result<()> {
        let end = offset + framed.len() as u32;
        let notes = match noted {
            true => Notes::read(self)?.filter(|notes| end <= notes.at),
            false => None,
        };
        let Some(notes) = notes else {
            return self.commit_without_note(disk, offset, framed);
        };
        let (place, leading) = notes.place_behind(offset);
        let before = match leading {
            Some(note) => note.crc,
            None => {
                self.sync_with_tail(disk, offset)?;
                self.crc_to(offset)?
            }
        };
        self.write(disk, offset, framed)?;
        let note = Note::of(offset, framed, before).encode(self.id());
        self.write_far(disk, notes.at + (place * NOTE_BYTES) as u32, &note)?;
        self.sync_with_tail(disk, offset)?;
        self.write_tail(disk, end)
    }

    /// Syncs the chunk, with the tail that is in it: the kernel takes for written what it failed to write, and nobody but us
    /// would write the tail again when the commit is tried once more.
    fn sync_with_tail(&self, disk: &Disk, tail: u32) -> Result<()> {
        self.sync(disk).or_else(|error| {
            self.write_tail(disk, tail)?;
            Err(error)
        })
    }

    /// The checksum of all entries up to `end`.
    fn crc_to(&self, end: u32) -> Result<u32> {
        let (mut at, mut crc, mut bytes) = (FIRST_ENTRY, 0, Vec::new());
        while at < end {
            let length = (end - at).min(PIECE);
            bytes.clear();
            self.append_to(at, length, &mut bytes)?;
            crc = crc32c::crc32c_append(crc, &bytes);
            at += length;
        }
        Ok(crc)
    }

    fn commit_without_note(&self, disk: &Disk, offset: u32, framed: &[u8]) -> Result<()> {
        let is_synced = self.settle_notes(disk)?;
        // The pointers of a chunk that starts over must be on the disk before any old entry is overwritten: else a power cut
        // could leave the old pointers with the new bytes.
        if offset == FIRST_ENTRY && !is_synced {
            self.sync_with_tail(disk, offset)?;
        }
        self.write(disk, offset, framed)?;
        self.sync_with_tail(disk, offset)?;
        let end = offset + framed.len() as u32;
        self.write_tail(disk, end)?;
        self.sync_with_tail(disk, end)
    }

    /// Before entries up to `end` are written otherwise than by [`Self::commit`].
    #[inline]
    pub(crate) fn make_room(&self, disk: &Disk, end: u32) -> Result<()> {
        match layout::notes_at(self.length()) {
            Some(at) if end > at => self.settle_notes(disk).map(drop),
            _ => Ok(()),
        }
    }

    /// Takes the notes away, once the tail is on the disk without them; whether there were any.
    #[cold]
    pub(crate) fn settle_notes(&self, disk: &Disk) -> Result<bool> {
        let there = Notes::read(self)?.is_some_and(|notes| notes.are_there());
        if there {
            self.sync_with_tail(disk, self.raw_pointers()?.tail)?;
            self.clear_notes(disk)?;
        }
        Ok(there)
    }

    /// Takes the notes away where nothing depends on them.
    pub(crate) fn clear_notes(&self, disk: &Disk) -> Result<()> {
        self.clear(disk, Notes::read(self)?)
    }

    /// The same in front of a start over: all that they lead to is consumed, and with the next tail they would lead to something
    /// else. So would a message in their place that looks like them.
    pub(crate) fn clear_consumed_notes(&self, disk: &Disk) -> Result<()> {
        match layout::notes_at(self.length()) {
            Some(at) => self.clear(disk, Notes::read_at(self, at)?),
            None => Ok(()),
        }
    }

    fn clear(&self, disk: &Disk, notes: Option<Notes>) -> Result<()> {
        match notes.filter(Notes::are_there) {
            Some(notes) => self.write_far(disk, notes.at, &[0; NOTES_BYTES as usize]),
            None => Ok(()),
        }
    }

    /// After a power cut or a kill: moves the tail over what was committed and takes the notes away. Nobody else has the queue
    /// open.
    pub(crate) fn roll_forward(&self, disk: &Disk) -> Result<()> {
        let pointers = self.raw_pointers()?;
        let notes = Notes::read(self)?.filter(Notes::are_there);
        let Some(notes) = notes.filter(|_| pointers.are_within(self.length())) else {
            return Ok(());
        };
        let tail = notes.follow(self, pointers.tail)?;
        if tail != pointers.tail {
            // After a kill the entries may be in memory alone.
            self.sync_with_tail(disk, pointers.tail)?;
            self.write_tail(disk, tail)?;
        }
        self.settle_notes(disk).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_told_from_other_bytes() {
        let note = Note::of(10, b"\0\x03abc", 0);
        let bytes = note.encode(ChunkId::FIRST);
        assert_eq!(Note::decode(&bytes, ChunkId::FIRST), Some(note));
        assert_eq!(Note::decode(&bytes, ChunkId::FIRST.next()), None, "of another chunk");
        assert_eq!(Note::decode(&[0; NOTE_BYTES], ChunkId::FIRST), None);
        for bit in 0..8 * NOTE_BYTES {
            let mut wrong = bytes;
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Note::decode(&wrong, ChunkId::FIRST), None, "bit {bit}");
        }
    }

    #[test]
    fn a_note_that_a_cut_has_torn_does_not_hide_the_other() {
        let (at, id) = (1000, ChunkId::FIRST);
        let note = Note::of(10, b"\0\x03abc", 0);
        let both = |first: &[u8], second: &[u8]| Notes::decode(&[first, second].concat().try_into().unwrap(), id, at);
        let (whole, zeros, torn) = (note.encode(id), [0; NOTE_BYTES], [7; NOTE_BYTES]);
        let found = |places| Some(Notes { at, places });
        assert_eq!(both(&zeros, &zeros), found([None, None]));
        assert_eq!(both(&whole, &torn), found([Some(note), None]));
        assert_eq!(both(&torn, &whole), found([None, Some(note)]));
        assert_eq!(both(&torn, &zeros), None, "bytes of an entry");
    }

    #[test]
    fn the_note_that_leads_to_the_tail_stays() {
        let notes = |places| Notes { at: 1000, places };
        let (first, second) = (Note::of(10, &[0; 20], 0), Note::of(30, &[0; 10], 1));
        assert_eq!(notes([None, None]).place_behind(10), (0, None));
        assert_eq!(notes([Some(first), None]).place_behind(30), (1, Some(first)));
        assert_eq!(notes([Some(first), Some(second)]).place_behind(40), (0, Some(second)));
        // The second was not acknowledged.
        assert_eq!(notes([Some(first), Some(second)]).place_behind(30), (1, Some(first)));
        assert_eq!(notes([None, Some(second)]).place_behind(30), (1, None));
        assert_eq!(
            notes([Some(first), Some(second)]).place_behind(77),
            (0, None),
            "moved without a note"
        );
    }
}
