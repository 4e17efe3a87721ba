//! Five crash-proof queues over mapped memory.
//!
//! Layers, arrows point right only:
//!
//! ```text
//! python/tailrace -> tailrace._core (src/python) -> aq conq ring mcp qewqew -> shared -> os
//! ```
//!
//! - A queue never imports another queue, `shared` never imports a queue, `os` knows no file format.
//! - `pyo3` only in `src/python`; `libc` and `rustix` only in `src/os`.
//! - `unsafe` only in `src/os`, `src/shared/region.rs` and `src/python/buffer.rs`.
//! - `layout.rs` and `control.rs` of a queue are pure: every offset and bit of its format, no atomics, no I/O.
//! - Algorithms never block and never read a clock: they take `now` and return; waiting is [`shared::signal`], time is [`os::clock`].

#[cfg(not(all(target_os = "linux", target_endian = "little", target_pointer_width = "64")))]
compile_error!("tailrace runs on 64-bit little-endian Linux (x86-64, arm64): it needs futexes, OFD locks and memfd");

pub mod aq;
pub mod conq;
mod error;
pub mod mcp;
pub mod os;
#[cfg(feature = "python")]
mod python;
#[cfg(not(loom))]
pub mod qewqew;
/// Of the durable queue only what happens in memory: the rest is files.
#[cfg(loom)]
#[allow(dead_code, missing_docs)]
pub mod qewqew {
    pub mod layout;
    pub mod word;
}
pub mod ring;
pub mod shared;

pub use error::{Error, Result};
