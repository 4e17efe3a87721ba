//! The Python module `tailrace._core`: a thin layer, one file per queue, and the only home of `pyo3`.
//!
//! - [`error`]: the one place where a crate error becomes a Python exception
//! - [`wait`]: timeouts, and waiting without the GIL but with Ctrl-C
//! - [`buffer`]: bytes-like arguments, and views of queue memory that can be closed
//! - [`messages`]: many messages as one argument, from objects or from an Arrow array
//! - [`number`]: whole numbers as arguments
//! - [`arrow`]: drained messages as an Arrow array
//! - [`closable`]: what an object opened, until it is closed
//!
//! A queue brings `src/python/<queue>.rs` with a nested `#[pymodule]` of its name, one `#[pymodule_export]` line
//! below, and `python/tailrace/<queue>.py`, which is what people import.

mod aq;
mod arrow;
mod buffer;
mod closable;
mod conq;
mod conq_queue;
mod conq_room;
mod conq_tokens;
mod error;
mod mcp;
mod messages;
mod number;
mod qewqew;
mod ring;
#[cfg(test)]
mod tests;
mod tokens;
mod wait;

/// The native part of tailrace; import `tailrace` and its public modules instead.
#[pyo3::pymodule]
mod _core {
    #[pymodule_export]
    use super::aq::aq;
    #[pymodule_export]
    use super::arrow::MessageBatch;
    #[pymodule_export]
    use super::conq::conq;
    #[pymodule_export]
    use super::mcp::mcp;
    #[pymodule_export]
    use super::qewqew::qewqew;
    #[pymodule_export]
    use super::ring::ring;

    /// The version of the crate, which is also that of the package.
    #[pymodule_export]
    #[allow(non_upper_case_globals, reason = "the name is Python's")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
