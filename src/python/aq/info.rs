//! What is known about a queue, for people and metrics.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::Queue;

impl Queue {
    pub(super) fn described<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let queue = self.handle.open()?;
        let info = queue.info()?;
        let dict = PyDict::new(py);
        dict.set_item("kind", "aq")?;
        dict.set_item("path", self.handle.path.as_ref().map(|path| path.display().to_string()))?;
        dict.set_item("memory", self.kind)?;
        dict.set_item("format", info.geometry.map(|_| 1))?;
        dict.set_item("memory_size", queue.memory_size())?;
        if let Some(geometry) = info.geometry {
            dict.set_item("page_size", geometry.page_size())?;
            dict.set_item("page_count", geometry.page_count)?;
            dict.set_item("commit_timeout", f64::from(geometry.commit_timeout_ms) / 1000.0)?;
            dict.set_item("crc32", geometry.options.crc32)?;
            dict.set_item("link_identifier", geometry.options.link_identifier)?;
            dict.set_item("extendable", geometry.options.extendable)?;
            dict.set_item("available_size", queue.available_size()?)?;
            dict.set_item("message_count", queue.len()?)?;
            dict.set_item("commit_counter", queue.commit_counter()?)?;
            dict.set_item("free_counter", queue.free_counter()?)?;
            dict.set_item("claim_contention_count", queue.claim_contention_count()?)?;
            dict.set_item("incomplete_count", queue.incomplete_count()?)?;
            dict.set_item("corrupt_count", queue.corrupt_count()?)?;
        }
        let alive = info.participants.iter().filter(|(_, lives)| *lives).count();
        let participants = PyDict::new(py);
        participants.set_item("alive", alive)?;
        participants.set_item("dead", info.participants.len() - alive)?;
        dict.set_item("participants", participants)?;
        dict.set_item("trailer", info.has_trailer)?;
        let promises: &[&str] = if info.has_trailer {
            &[
                "owners of claims are known: a dead writer's claim is reported at once",
                "a living writer's pages are not reused under it",
                "sleepers are woken",
            ]
        } else {
            &[
                "no owner records: the commit timeout alone decides about unfinished claims",
                "sleepers poll",
            ]
        };
        dict.set_item("promises", promises)?;
        Ok(dict)
    }
}
