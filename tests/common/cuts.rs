//! A file write cut between and inside: a system call is one step of the step-kill driver, but a kill or a full disk may
//! leave any prefix of it.

use std::path::PathBuf;

use super::image::Image;

const SECTOR: usize = 512;

/// One recorded write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileWrite {
    pub file: PathBuf,
    pub offset: usize,
    pub bytes: Vec<u8>,
}

impl FileWrite {
    /// The write that turned one image into the other; None unless bytes of exactly one existing file changed or grew.
    pub fn between(before: &Image, after: &Image) -> Option<Self> {
        let mut changed = after
            .files
            .iter()
            .filter(|(name, file)| before.files.get(*name) != Some(file));
        let (name, new) = changed.next()?;
        let old = before.files.get(name)?;
        if changed.next().is_some() || before.files.len() != after.files.len() || new.bytes.len() < old.bytes.len() {
            return None;
        }
        let differs = |at: usize| old.bytes.get(at) != Some(&new.bytes[at]);
        let first = (0..new.bytes.len()).find(|at| differs(*at))?;
        let last = (first..new.bytes.len()).rev().find(|at| differs(*at))?;
        Some(Self {
            file: name.clone(),
            offset: first,
            bytes: new.bytes[first..=last].to_vec(),
        })
    }
}

/// Where to cut a write: every sector boundary of the file, and bytes at odd places; never nothing, never all.
pub fn prefixes(offset: usize, len: usize) -> Vec<usize> {
    let sectors = (offset / SECTOR + 1..)
        .map(|sector| sector * SECTOR - offset)
        .take_while(|cut| *cut < len);
    let odd = [1, 3, 7, (len / 2) | 1, len.saturating_sub(1)];
    let mut cuts: Vec<usize> = sectors.chain(odd).filter(|cut| *cut > 0 && *cut < len).collect();
    cuts.sort_unstable();
    cuts.dedup();
    cuts
}

/// The images in which only a prefix of the write arrived, shortest first, with the length of the prefix.
pub fn cut_writes(before: &Image, write: &FileWrite) -> impl Iterator<Item = (usize, Image)> {
    prefixes(write.offset, write.bytes.len()).into_iter().map(|cut| {
        let image = before.with(&write.file, |bytes| {
            let end = write.offset + cut;
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            bytes[write.offset..end].copy_from_slice(&write.bytes[..cut]);
        });
        (cut, image)
    })
}
