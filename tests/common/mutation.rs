//! One change to the bytes of a file, and how to say it.

use std::fmt;
use std::ops::Range;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Mutation {
    Flip {
        byte: usize,
        bit: u8,
    },
    Truncate(usize),
    /// These bytes over whatever is at `at`.
    Overwrite {
        at: usize,
        bytes: Vec<u8>,
    },
}

impl Mutation {
    pub fn apply(&self, file: &mut Vec<u8>) {
        match self {
            Self::Flip { byte, bit } => file[*byte] ^= 1 << bit,
            Self::Truncate(len) => file.truncate(*len),
            Self::Overwrite { at, bytes } => file[*at..at + bytes.len()].copy_from_slice(bytes),
        }
    }
}

impl fmt::Display for Mutation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flip { byte, bit } => write!(f, "bit {bit} of byte {byte} ({byte:#x}) flipped"),
            Self::Truncate(len) => write!(f, "truncated to {len} bytes"),
            Self::Overwrite { at, bytes } => write!(f, "bytes {at}.. ({at:#x}) set to {bytes:02x?}"),
        }
    }
}

/// The values that break arithmetic: around 0, around the signed and unsigned ends of 32 and 64 bits, around each limit.
pub fn boundary_numbers(limits: &[u64]) -> Vec<u64> {
    let ends = [0, u64::from(u32::MAX), 1 << 31, 1 << 63, u64::MAX];
    let mut numbers: Vec<u64> = ends
        .iter()
        .chain(limits)
        .flat_map(|n| [n.wrapping_sub(1), *n, n.wrapping_add(1)])
        .collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// Each boundary number over each aligned u32 and u64 of the range, little-endian and big-endian.
pub fn boundary_values(range: Range<usize>, limits: &[u64]) -> Vec<Mutation> {
    let mut patterns: Vec<Vec<u8>> = Vec::new();
    for number in boundary_numbers(limits) {
        patterns.push(number.to_le_bytes().to_vec());
        patterns.push(number.to_be_bytes().to_vec());
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the low half is the 32-bit boundary value"
        )]
        let low = number as u32;
        patterns.push(low.to_le_bytes().to_vec());
        patterns.push(low.to_be_bytes().to_vec());
    }
    patterns.sort();
    patterns.dedup();
    let places = |size: usize| {
        (range.start.next_multiple_of(size)..range.end)
            .step_by(size)
            .filter(move |at| at + size <= range.end)
    };
    patterns
        .iter()
        .flat_map(|bytes| {
            places(bytes.len()).map(move |at| Mutation::Overwrite {
                at,
                bytes: bytes.clone(),
            })
        })
        .collect()
}
