//! What a program says about its queue file before it opens it (sections 3.0 to 5.0).

use super::name::Name;
use crate::{Error, Result};

/// FPB.HDWR of a queue file. Both make the same queues; they differ in what a READ of an empty one gives (section 4.0).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Device {
    /// 61: an empty queue is INCOMPLETE.IO while there are writers.
    #[default]
    New,
    /// 62: an empty queue is end of file.
    Old,
}

impl Device {
    /// As in FPB.HDWR.
    pub fn number(self) -> u32 {
        match self {
            Device::New => 61,
            Device::Old => 62,
        }
    }

    /// 61 or 62.
    pub fn from_number(number: u32) -> Result<Self> {
        match number {
            61 => Ok(Device::New),
            62 => Ok(Device::Old),
            _ => Err(Error::Invalid(format!(
                "a queue file has device 61 (new) or 62 (old), not {number}"
            ))),
        }
    }
}

/// BUFFERS where a program does not say (behaviour 34).
pub const DEFAULT_BUFFERS: u32 = 2;
/// The limit of the document's eight-bit fields.
pub const STRICT_LIMIT: u32 = 255;
/// Our own limits.
const LIMIT: u32 = 1 << 24;
const FAMILY_LIMIT: u32 = 1 << 16;
const RECORD_LIMIT: u32 = 1 << 28;
/// Bytes of queue disk for one file.
const DISK_LIMIT: u64 = 1 << 40;

/// The parameters of a queue file. Its first opener binds them (behaviour 29).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FileParameters {
    /// MFID/FID, up to 20 characters.
    pub name: String,
    /// Q.MAX.MESSAGES: the messages at which each queue is full.
    pub max_messages: u32,
    /// Q.BUFFERS: the messages of each queue that may be in memory.
    pub buffers: u32,
    /// RECORD.SIZE: the longest message in bytes.
    pub record_size: u32,
    /// Q.FAMILY.SIZE: the members of a family; 0 is a single queue.
    pub family_size: u32,
    /// New or old queue file.
    pub device: Device,
}

impl FileParameters {
    /// Checks every value against its limit: the 1976 ones with `strict`.
    pub fn check(&self, strict: bool) -> Result<Name> {
        let name = Name::parse(&self.name)?;
        let limit = |ours: u32| if strict { STRICT_LIMIT } else { ours };
        let within = |what: &str, value: u32, low: u32, high: u32| {
            if (low..=high).contains(&value) {
                return Ok(());
            }
            let whose = if strict && high == STRICT_LIMIT {
                " in strict mode"
            } else {
                ""
            };
            Err(Error::Invalid(format!(
                "{what} must be {low} to {high}{whose}, not {value}"
            )))
        };
        within("max_messages", self.max_messages, 1, limit(LIMIT))?;
        within("buffers", self.buffers, 1, limit(LIMIT))?;
        within("family_size", self.family_size, 0, limit(FAMILY_LIMIT))?;
        within("record_size", self.record_size, 1, RECORD_LIMIT)?;
        if self.disk_bytes() > DISK_LIMIT {
            return Err(Error::Invalid(format!(
                "the queue disk would have {} bytes, the limit is {DISK_LIMIT}: lower max_messages, record_size or family_size",
                self.disk_bytes()
            )));
        }
        Ok(name)
    }

    /// Segments of queue disk for one queue: behaviour 12.
    pub fn disk_segments(&self) -> u64 {
        u64::from(self.max_messages) * super::layout::disk_segments(self.record_size)
    }

    /// Bytes of queue disk for all members.
    pub(super) fn disk_bytes(&self) -> u64 {
        let members = u64::from(self.family_size.max(1));
        members
            .saturating_mul(self.disk_segments())
            .saturating_mul(super::layout::DISK_SEGMENT)
    }
}
