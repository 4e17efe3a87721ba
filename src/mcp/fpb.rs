//! The file parameter block as packed bits, most significant first (section 5.0, behaviour 33).
//!
//! ```text
//! HDWR 6 | BUFFERS 24 | INV.CHARS 2 | SERIAL 6 x 8 | Q.FAMILY.SIZE 8 | Q.MAX.MESSAGES 8 | QUEUE.FILE 1 | 7 unused
//! ```
//!
//! The name and the record size are not in it. INV.CHARS is 0 and SERIAL blank when we write, and neither counts when we read.

use super::parameters::{Device, FileParameters};
use crate::{Error, Result};

/// Bits of the block.
pub const FPB_BITS: usize = 6 + 24 + 2 + 48 + 8 + 8 + 1;
const BYTES: usize = FPB_BITS.div_ceil(8);
const BLANK_SERIAL: u64 = u64::from_be_bytes(*b"\0\0      ");

impl FileParameters {
    /// Packs the block; [`Error::Invalid`] for values that do not fit its fields.
    pub fn to_fpb(&self) -> Result<Vec<u8>> {
        let fits = |what: &str, value: u32, bits: u32| {
            if u64::from(value) < 1 << bits {
                return Ok(u64::from(value));
            }
            let most = (1_u64 << bits) - 1;
            Err(Error::Invalid(format!(
                "{what} {value} does not fit the {bits} bits of the FPB, the limit is {most}"
            )))
        };
        let mut bits = Bits::default();
        bits.push(self.device.number().into(), 6);
        bits.push(fits("buffers", self.buffers, 24)?, 24);
        bits.push(0, 2);
        bits.push(BLANK_SERIAL, 48);
        bits.push(fits("family_size", self.family_size, 8)?, 8);
        bits.push(fits("max_messages", self.max_messages, 8)?, 8);
        bits.push(u64::from(self.family_size > 0), 1);
        Ok(bits.bytes)
    }

    /// Unpacks a block; what is not in it comes from the caller.
    pub fn from_fpb(block: &[u8], name: &str, record_size: u32) -> Result<Self> {
        if block.len() != BYTES {
            return Err(Error::Invalid(format!("an FPB has {BYTES} bytes, not {}", block.len())));
        }
        let field = |start: usize, bits: usize| -> u32 {
            (start..start + bits).fold(0, |value, bit| {
                value << 1 | u32::from(block[bit / 8] >> (7 - bit % 8) & 1)
            })
        };
        let parameters = FileParameters {
            name: name.to_owned(),
            device: Device::from_number(field(0, 6))?,
            buffers: field(6, 24),
            family_size: field(80, 8),
            max_messages: field(88, 8),
            record_size,
        };
        let family = field(96, 1) == 1;
        if family != (parameters.family_size > 0) {
            return Err(Error::Invalid(format!(
                "FPB.QUEUE.FILE is {}, but FPB.Q.FAMILY.SIZE is {}",
                u32::from(family),
                parameters.family_size
            )));
        }
        parameters.check(false)?;
        Ok(parameters)
    }
}

#[derive(Default)]
struct Bits {
    bytes: Vec<u8>,
    used: usize,
}

impl Bits {
    fn push(&mut self, value: u64, bits: u32) {
        for bit in (0..bits).rev() {
            if self.used.is_multiple_of(8) {
                self.bytes.push(0);
            }
            let last = self.bytes.last_mut().expect("just pushed");
            *last |= ((value >> bit & 1) as u8) << (7 - self.used % 8);
            self.used += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bits_are_where_the_document_has_them() {
        let parameters = FileParameters {
            name: "MY.QFF".into(),
            max_messages: 10,
            buffers: 2,
            record_size: 80,
            family_size: 3,
            device: Device::New,
        };
        let block = parameters.to_fpb().unwrap();
        let expected = [0xF4, 0, 0, 0x08, b' ', b' ', b' ', b' ', b' ', b' ', 3, 10, 0x80];
        assert_eq!(block, expected);
        assert_eq!(FileParameters::from_fpb(&block, "MY.QFF", 80).unwrap(), parameters);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let mut parameters = FileParameters {
            name: "Q".into(),
            max_messages: 256,
            buffers: 2,
            record_size: 80,
            family_size: 0,
            device: Device::Old,
        };
        let error = parameters.to_fpb().unwrap_err().to_string();
        assert!(error.contains("max_messages 256") && error.contains("255"), "{error}");
        parameters.max_messages = 255;
        let mut block = parameters.to_fpb().unwrap();
        assert_eq!(FileParameters::from_fpb(&block, "Q", 80).unwrap(), parameters);
        block[12] = 0x80;
        assert!(FileParameters::from_fpb(&block, "Q", 80).is_err(), "a family of none");
        assert!(FileParameters::from_fpb(&block[..12], "Q", 80).is_err());
    }
}
