//! What a queue file tells about itself: its parameters, its counters and everything.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::mode_name;
use super::system::system_counters;
use crate::Error;
use crate::mcp::QueueFile;

/// What `info()` tells of a file, beside what can only be read by looking for the dead.
pub(super) fn info<'py>(py: Python<'py>, file: &QueueFile) -> PyResult<Bound<'py, PyDict>> {
    let system = file.system();
    let (participants, of_system) = py.detach(|| Ok::<_, Error>((system.participants()?, system.counters()?)))?;
    let alive = participants.iter().filter(|(_, lives)| *lives).count();
    let dict = PyDict::new(py);
    dict.set_item("kind", "mcp")?;
    dict.set_item("path", system.directory())?;
    dict.set_item("name", &file.parameters().name)?;
    dict.set_item("format", "queue system, version 1")?;
    dict.set_item("parameters", parameters(py, file)?)?;
    dict.set_item("counters", counters(py, file)?)?;
    dict.set_item("system", system_counters(py, &of_system)?)?;
    let who = PyDict::new(py);
    who.set_item("alive", alive)?;
    who.set_item("dead", participants.len() - alive)?;
    dict.set_item("participants", who)?;
    let promises = [
        "a message is in exactly one place at every moment, whoever is killed",
        "a message that a killed reader had not returned is read by somebody else",
        "readers see the end within 100 ms of the last writer's close or death",
        "nothing survives a reboot",
    ];
    dict.set_item("promises", promises)?;
    Ok(dict)
}

/// What happened to the queues of a file, and what is in them.
pub(super) fn counters<'py>(py: Python<'py>, file: &QueueFile) -> PyResult<Bound<'py, PyDict>> {
    let counters = file.counters();
    let dict = PyDict::new(py);
    dict.set_item("written", counters.written)?;
    dict.set_item("read", counters.read)?;
    dict.set_item("spills", counters.spills)?;
    dict.set_item("look_aheads", counters.look_aheads)?;
    dict.set_item("given_back", counters.given_back)?;
    dict.set_item("held", counters.held)?;
    dict.set_item("in_memory", counters.in_memory)?;
    dict.set_item("messages", counters.messages)?;
    dict.set_item("writers", counters.writers)?;
    dict.set_item("readers", counters.readers)?;
    dict.set_item("users", counters.users)?;
    Ok(dict)
}

fn parameters<'py>(py: Python<'py>, file: &QueueFile) -> PyResult<Bound<'py, PyDict>> {
    let p = file.parameters();
    let dict = PyDict::new(py);
    dict.set_item("name", &p.name)?;
    dict.set_item("max_messages", p.max_messages)?;
    dict.set_item("buffers", p.buffers)?;
    dict.set_item("record_size", p.record_size)?;
    dict.set_item("family_size", p.family_size)?;
    dict.set_item("device", p.device.number())?;
    dict.set_item("mode", mode_name(file.mode()))?;
    dict.set_item("keep", file.keeps())?;
    dict.set_item("disk", file.disk().0)?;
    Ok(dict)
}
