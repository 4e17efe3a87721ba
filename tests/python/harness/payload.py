"""Messages that describe and check themselves, byte for byte those of tests/common/payload.rs.

length u32 | producer u32 | sequence u64 | CRC-32 u32 | pattern; little-endian, the CRC covers all but itself.
"""

import struct
import zlib
from typing import NamedTuple

HEADER = struct.Struct("<IIQI")
MIN = HEADER.size
_MASK = (1 << 64) - 1


class Identity(NamedTuple):
    """Who sent which message."""

    producer: int
    sequence: int
    crc: int
    length: int


class Torn(ValueError):
    """Bytes that no producer made."""


def make(producer: int, sequence: int, length: int) -> bytes:
    """Return a message of `length` bytes in all (at least MIN)."""
    if length < MIN:
        msg = f"a test message has at least {MIN} bytes, {length} asked"
        raise ValueError(msg)
    state = ((producer << 40) ^ sequence ^ 0x9E3779B97F4A7C15) & _MASK
    pattern = bytearray()
    while len(pattern) < length - MIN:
        state ^= (state << 13) & _MASK
        state ^= state >> 7
        state ^= (state << 17) & _MASK
        pattern += state.to_bytes(8, "little")
    del pattern[length - MIN :]
    crc = zlib.crc32(pattern, zlib.crc32(HEADER.pack(length, producer, sequence, 0)[:16]))
    return HEADER.pack(length, producer, sequence, crc) + pattern


def parse(data: bytes, *, padded: bool = False) -> Identity:
    """Check length and CRC; with `padded`, zeros may follow the message (fixed slots)."""
    if len(data) < MIN:
        msg = f"{len(data)} bytes, shorter than the {MIN}-byte header"
        raise Torn(msg)
    length, producer, sequence, crc = HEADER.unpack_from(data)
    if length > len(data) or length < MIN or (length < len(data) and not padded):
        msg = f"header says {length} bytes, got {len(data)}"
        raise Torn(msg)
    if any(data[length:]):
        msg = "bytes behind the message are not zero"
        raise Torn(msg)
    computed = zlib.crc32(data[MIN:length], zlib.crc32(data[:16]))
    if computed != crc:
        msg = f"CRC {crc:#010x} stated, {computed:#010x} computed"
        raise Torn(msg)
    return Identity(producer, sequence, crc, length)
