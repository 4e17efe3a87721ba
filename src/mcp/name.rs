//! Names of queues: MFID/FID, ten characters each (section 3.0, behaviours 26 to 28).

use std::fmt;

use super::layout::queue::NAME_LENGTH;
use crate::{Error, Result};

const PART: usize = 10;

/// The 20-character name of a queue file.
///
/// ```
/// use tailrace::mcp::Name;
///
/// assert_eq!(Name::parse("MY.Q")?.to_string(), "MY.Q");
/// assert_eq!(Name::parse("PAYROLL/INPUT")?, Name::parse("PAYROLL   INPUT")?);
/// assert!(Name::parse("TWENTY.ONE.CHARACTERS").is_err());
/// # Ok::<(), tailrace::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Name {
    mfid: [u8; PART],
    fid: [u8; PART],
}

impl Name {
    /// Reads `MFID/FID`, or up to 20 characters of which the first ten are the MFID.
    pub fn parse(text: &str) -> Result<Self> {
        let printable = |b: u8| b.is_ascii_graphic() || b == b' ';
        if let Some(wrong) = text.chars().find(|c| !c.is_ascii() || !printable(*c as u8)) {
            return Err(Error::Invalid(format!(
                "a queue name has printable ASCII characters only, {text:?} has {wrong:?}"
            )));
        }
        let (mfid, fid) = match text.split_once('/') {
            Some(parts) => parts,
            None if text.len() > PART => text.split_at(PART),
            None => (text, ""),
        };
        let (mfid, fid) = (mfid.trim_end(), fid.trim_end());
        if mfid.is_empty() {
            return Err(Error::Invalid(format!("the queue name {text:?} has no MFID")));
        }
        if mfid.len() > PART || fid.len() > PART || fid.contains('/') {
            return Err(Error::Invalid(format!(
                "a queue name has at most 20 characters, ten of MFID and ten of FID; {text:?} does not fit"
            )));
        }
        Ok(Name {
            mfid: padded(mfid.as_bytes()),
            fid: padded(fid.as_bytes()),
        })
    }

    /// As stored for a single queue.
    pub(super) fn single(&self) -> [u8; NAME_LENGTH] {
        self.stored(&self.fid)
    }

    /// As stored for a member of the family: the MFID, and the FID as the document prints it.
    pub(super) fn member(&self, number: u32) -> [u8; NAME_LENGTH] {
        self.stored(format!("###{number:08}").as_bytes())
    }

    fn stored(&self, fid: &[u8]) -> [u8; NAME_LENGTH] {
        let mut name = [b' '; NAME_LENGTH];
        name[..PART].copy_from_slice(&self.mfid);
        name[PART..PART + fid.len()].copy_from_slice(fid);
        name
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&shown(&self.single()))
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Name({self})")
    }
}

/// A stored name as people write it.
pub(super) fn shown(stored: &[u8; NAME_LENGTH]) -> String {
    let text = |part: &[u8]| String::from_utf8_lossy(part).trim_end().to_owned();
    let (mfid, fid) = (text(&stored[..PART]), text(&stored[PART..]));
    if fid.is_empty() { mfid } else { format!("{mfid}/{fid}") }
}

fn padded(part: &[u8]) -> [u8; PART] {
    let mut name = [b' '; PART];
    name[..part.len()].copy_from_slice(part);
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_named_as_printed() {
        let name = Name::parse("MY.QFF").unwrap();
        assert_eq!(shown(&name.member(1)), "MY.QFF/###00000001");
        assert_eq!(shown(&name.member(99_999_999)), "MY.QFF/###99999999");
    }

    #[test]
    fn boundaries_of_the_twenty_characters() {
        assert_eq!(
            Name::parse("ABCDEFGHIJKLMNOPQRST").unwrap().to_string(),
            "ABCDEFGHIJ/KLMNOPQRST"
        );
        for bad in [
            "",
            "ABCDEFGHIJKLMNOPQRSTU",
            "ABCDEFGHIJK/X",
            "A/BCDEFGHIJKL",
            "/X",
            "A/B/C",
            "SCH\u{d6}N",
            "A\n",
        ] {
            assert!(Name::parse(bad).is_err(), "{bad:?}");
        }
    }
}
