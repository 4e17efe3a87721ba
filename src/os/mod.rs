//! What the queues need from Linux, and the only callers of `libc` and `rustix`: nothing here knows a file format.

pub mod clock;
pub mod file;
pub mod fork;
pub mod futex;
pub mod locks;
