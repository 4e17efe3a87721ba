//! Messages that describe and check themselves.
//!
//! ```text
//! 0        4        8                16       20
//! | length | producer | sequence (u64) | CRC-32 | pattern ...   little-endian; the CRC covers all but itself
//! ```

use std::fmt;

/// The shortest message: the header alone.
pub const MIN: usize = 20;

/// Who sent which message; what the oracle counts by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Identity {
    pub producer: u32,
    pub sequence: u64,
    pub crc: u32,
    pub len: u32,
}

/// Why bytes are not a message that [`make`] made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Torn {
    TooShort(usize),
    WrongLength { stated: u32, actual: usize },
    WrongCrc { stated: u32, computed: u32 },
    NotPadding { offset: usize },
}

impl fmt::Display for Torn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooShort(len) => write!(f, "{len} bytes, shorter than the {MIN}-byte header"),
            Self::WrongLength { stated, actual } => write!(f, "header says {stated} bytes, got {actual}"),
            Self::WrongCrc { stated, computed } => write!(f, "CRC {stated:#010x} stated, {computed:#010x} computed"),
            Self::NotPadding { offset } => write!(f, "byte {offset} behind the message is not zero"),
        }
    }
}

/// A message of `len` bytes in all (at least [`MIN`]).
pub fn make(producer: u32, sequence: u64, len: usize) -> Vec<u8> {
    assert!(len >= MIN, "a test message has at least {MIN} bytes, {len} asked");
    let mut bytes = Vec::with_capacity(len);
    bytes.extend_from_slice(&u32::try_from(len).expect("length fits u32").to_le_bytes());
    bytes.extend_from_slice(&producer.to_le_bytes());
    bytes.extend_from_slice(&sequence.to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    let mut state = (u64::from(producer) << 40) ^ sequence ^ 0x9e37_79b9_7f4a_7c15;
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let word = state.to_le_bytes();
        let take = word.len().min(len - bytes.len());
        bytes.extend_from_slice(&word[..take]);
    }
    let crc = checksum(&bytes);
    bytes[16..20].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Checks length and CRC of a whole message.
pub fn parse(bytes: &[u8]) -> Result<Identity, Torn> {
    if bytes.len() < MIN {
        return Err(Torn::TooShort(bytes.len()));
    }
    let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
    let (len, crc) = (u32_at(0), u32_at(16));
    if len as usize != bytes.len() {
        return Err(Torn::WrongLength {
            stated: len,
            actual: bytes.len(),
        });
    }
    let computed = checksum(bytes);
    if computed != crc {
        return Err(Torn::WrongCrc { stated: crc, computed });
    }
    let sequence = u64::from_le_bytes(bytes[8..16].try_into().expect("8 bytes"));
    Ok(Identity {
        producer: u32_at(4),
        sequence,
        crc,
        len,
    })
}

/// As [`parse`], for fixed slots: zeros may follow the message.
pub fn parse_padded(slot: &[u8]) -> Result<Identity, Torn> {
    if slot.len() < MIN {
        return Err(Torn::TooShort(slot.len()));
    }
    let len = u32::from_le_bytes(slot[..4].try_into().expect("4 bytes"));
    let Some(message) = slot.get(..len as usize) else {
        return Err(Torn::WrongLength {
            stated: len,
            actual: slot.len(),
        });
    };
    let identity = parse(message)?;
    match slot[message.len()..].iter().position(|byte| *byte != 0) {
        Some(at) => Err(Torn::NotPadding {
            offset: message.len() + at,
        }),
        None => Ok(identity),
    }
}

fn checksum(bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&bytes[..16]);
    hasher.update(&bytes[MIN..]);
    hasher.finalize()
}
