//! Options, reports and counters as Python sees them.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::qewqew::{DurableQueue, Info, Options, Report, Role, SyncMode};

pub(super) const SYNC_MODES: [(&str, SyncMode); 3] = [
    ("always", SyncMode::Always),
    ("group", SyncMode::Group),
    ("never", SyncMode::Never),
];
pub(super) const ROLES: [(&str, Role); 3] = [
    ("both", Role::Both),
    ("producer", Role::Producer),
    ("consumer", Role::Consumer),
];

/// The name under which Python knows a value.
pub(super) fn name_of<T: PartialEq>(value: T, names: &[(&'static str, T)]) -> &'static str {
    names
        .iter()
        .find(|(_, known)| *known == value)
        .map_or("", |(name, _)| name)
}

/// The keyword arguments that open the same queue in the same way.
pub(super) fn options<'py>(py: Python<'py>, options: &Options, waits_when_full: bool) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("chunk_size", options.chunk_size)?;
    dict.set_item("sync", name_of(options.sync, &SYNC_MODES))?;
    dict.set_item("role", name_of(options.role, &ROLES))?;
    dict.set_item("crc", options.crc)?;
    dict.set_item("network", options.network)?;
    dict.set_item("max_bytes", options.max_bytes)?;
    dict.set_item("when_full", if waits_when_full { "wait" } else { "refuse" })?;
    dict.set_item("create", options.create)?;
    Ok(dict)
}

/// What `verify` and `repair` found.
pub(super) fn report<'py>(py: Python<'py>, report: &Report) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("chunks", report.chunks)?;
    dict.set_item("messages", report.messages)?;
    dict.set_item("checked", report.checked)?;
    dict.set_item("unchecked", report.messages - report.checked)?;
    let mut problems = Vec::new();
    for problem in &report.problems {
        let entry = PyDict::new(py);
        entry.set_item("chunk", problem.chunk)?;
        entry.set_item("offset", problem.offset)?;
        entry.set_item("what", &problem.what)?;
        problems.push(entry);
    }
    dict.set_item("problems", problems)?;
    dict.set_item("put_aside", &report.put_aside)?;
    Ok(dict)
}

/// What there is to know about an open queue.
pub(super) fn info<'py>(py: Python<'py>, queue: &DurableQueue, info: &Info) -> PyResult<Bound<'py, PyDict>> {
    let own = queue.options();
    let counters = PyDict::new(py);
    counters.set_item("messages", info.messages)?;
    counters.set_item("chunks", info.chunks)?;
    counters.set_item("unread_bytes", info.unread_bytes)?;
    counters.set_item("appended", info.appended)?;
    counters.set_item("consumed", info.consumed)?;
    let participants = PyDict::new(py);
    let alive = info.participants.iter().filter(|(_, lives)| *lives).count();
    participants.set_item("alive", alive)?;
    participants.set_item("dead", info.participants.len() - alive)?;
    let parameters = options(py, own, false)?;
    parameters.del_item("when_full")?;
    parameters.del_item("create")?;
    parameters.set_item("max_element_size", queue.max_element_size())?;
    parameters.set_item("keeps_positions", info.keeps_positions)?;
    let dict = PyDict::new(py);
    dict.set_item("kind", "qewqew")?;
    dict.set_item("path", queue.path())?;
    dict.set_item("format", "QewQew chunk files, byte-compatible with the original")?;
    dict.set_item("parameters", parameters)?;
    dict.set_item("counters", counters)?;
    dict.set_item("participants", participants)?;
    dict.set_item("promises", promises(own))?;
    Ok(dict)
}

fn promises(options: &Options) -> Vec<&'static str> {
    let enqueue = match options.sync {
        SyncMode::Always => "an enqueue that returned survives a power cut",
        SyncMode::Group => "an enqueue that returned survives any process death, and a power cut once committed",
        SyncMode::Never => "an enqueue that returned survives any process death",
    };
    let damage = match options.crc {
        true => "damaged messages are noticed by their CRC32C",
        false => "damaged messages are not noticed: the format has no checksum (crc=True adds one)",
    };
    vec![
        enqueue,
        "a dequeue is never lost to a killed process, and may be repeated after a power cut",
        damage,
    ]
}
