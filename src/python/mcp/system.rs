//! What concerns a whole queue system: its making, its queues, its memory, and the WAIT.

use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::super::number::whole;
use super::super::wait::{Timeout, waiting};
use super::file::QueueFile;
use super::{open_system, present_system};
use crate::mcp::{self, System, SystemParameters};
use crate::shared::signal::Wait;

/// Waits for time or for Q.INSERT.OCCURRED of any of the files: 0 when the time is up, else the place of the first file that
/// has a message or an end of file that it has not taken, counted from 1.
///
/// ``wait(None, f, g)`` waits for ever.
///
/// >>> import tempfile
/// >>> from tailrace import mcp
/// >>> with tempfile.TemporaryDirectory() as d, mcp.QueueFile.open("MY.Q", "input_output", system=d) as f:
/// ...     before = mcp.wait(0.01, f)
/// ...     f.put(b"x")
/// ...     before, mcp.wait(10.0, f)
/// (0, 1)
#[pyfunction]
#[pyo3(signature = (timeout, /, *files))]
pub(super) fn wait(py: Python<'_>, timeout: Timeout, files: &Bound<'_, PyTuple>) -> PyResult<usize> {
    let files: Vec<Bound<'_, QueueFile>> = files
        .iter()
        .map(|file| Ok(file.cast_into::<QueueFile>()?))
        .collect::<PyResult<_>>()?;
    let files: Vec<&mcp::QueueFile> = files.iter().map(|file| &*file.get().file).collect();
    let wait = Wait::from_timeout(timeout.0);
    match mcp::wait(&files, Wait::No, || Ok(()))? {
        0 if wait != Wait::No => waiting(py, |idle| mcp::wait(&files, wait, idle)),
        place => Ok(place),
    }
}

/// Makes a queue system of other than the usual sizes in a directory; a system that exists keeps its own.
///
/// ``queues`` (members of families count), ``users`` (open queue files), ``participants`` (processes) and ``messages`` are
/// limits over all queues; ``memory`` is the S-memory in bytes to begin with, ``memory_limit`` what it may grow to.
///
/// >>> import tempfile
/// >>> from tailrace import mcp
/// >>> with tempfile.TemporaryDirectory() as d:
/// ...     mcp.create_system(d, queues=8, users=16)
/// ...     mcp.queues(d)
/// []
#[pyfunction]
#[pyo3(signature = (directory, *, queues=1024, users=4096, participants=4096, messages=1_048_576, memory=1_048_576, memory_limit=1_073_741_824))]
#[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
pub(super) fn create_system(
    py: Python<'_>,
    directory: PathBuf,
    #[pyo3(from_py_with = whole)] queues: u32,
    #[pyo3(from_py_with = whole)] users: u32,
    #[pyo3(from_py_with = whole)] participants: u32,
    #[pyo3(from_py_with = whole)] messages: u32,
    #[pyo3(from_py_with = whole)] memory: u64,
    #[pyo3(from_py_with = whole)] memory_limit: u64,
) -> PyResult<()> {
    let parameters = SystemParameters {
        queues,
        users,
        participants,
        messages,
        memory,
        memory_limit,
    };
    Ok(py.detach(|| System::open(&directory, &parameters).map(drop))?)
}

/// The directory of this user's own queue system, which is used where none is named.
///
/// >>> from tailrace import mcp
/// >>> mcp.default_system().name
/// 'mcp'
#[pyfunction]
pub(super) fn default_system() -> PyResult<PathBuf> {
    Ok(System::default_directory()?)
}

/// All queues of a system, each as a dict; a member of a family is a queue of its own. Where there is no system there are
/// none, and none is made.
///
/// >>> import tempfile
/// >>> from tailrace import mcp
/// >>> with tempfile.TemporaryDirectory() as d, mcp.QueueFile.open("MY.QFF", "input", system=d, family_size=2):
/// ...     [queue["name"] for queue in mcp.queues(d)]
/// ['MY.QFF/###00000001', 'MY.QFF/###00000002']
#[pyfunction]
#[pyo3(signature = (system=None))]
pub(super) fn queues<'py>(py: Python<'py>, system: Option<PathBuf>) -> PyResult<Vec<Bound<'py, PyDict>>> {
    let queues = py.detach(|| present_system(system)?.map_or_else(|| Ok(Vec::new()), |system| system.queues()))?;
    queues
        .into_iter()
        .map(|queue| {
            let dict = PyDict::new(py);
            dict.set_item("name", queue.name)?;
            dict.set_item("member", queue.member)?;
            dict.set_item("family_size", queue.family_size)?;
            dict.set_item("messages", queue.messages)?;
            dict.set_item("held", queue.held)?;
            dict.set_item("in_memory", queue.in_memory)?;
            dict.set_item("readers", queue.readers)?;
            dict.set_item("writers", queue.writers)?;
            dict.set_item("users", queue.users)?;
            dict.set_item("keep", queue.keep)?;
            Ok(dict)
        })
        .collect()
}

/// What the pools of a system hold, and what has happened in it.
///
/// >>> import tempfile
/// >>> from tailrace import mcp
/// >>> with tempfile.TemporaryDirectory() as d, mcp.QueueFile.open("MY.Q", "output", system=d) as f:
/// ...     f.put(b"x")
/// ...     mcp.counters(d)["descriptor_blocks"]
/// 1
#[pyfunction]
#[pyo3(signature = (system=None))]
pub(super) fn counters<'py>(py: Python<'py>, system: Option<PathBuf>) -> PyResult<Bound<'py, PyDict>> {
    let counters = py.detach(|| open_system(system)?.counters())?;
    system_counters(py, &counters)
}

pub(super) fn system_counters<'py>(py: Python<'py>, counters: &mcp::SystemCounters) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("descriptors_in_use", counters.descriptors_in_use)?;
    dict.set_item("descriptor_blocks", counters.descriptor_blocks)?;
    dict.set_item("buffers_in_use", counters.buffers_in_use)?;
    dict.set_item("buffers_in_pool", counters.buffers_in_pool)?;
    dict.set_item("memory", counters.memory)?;
    dict.set_item("spills", counters.spills)?;
    dict.set_item("look_aheads", counters.look_aheads)?;
    dict.set_item("roll_outs", counters.roll_outs)?;
    dict.set_item("repairs", counters.repairs)?;
    dict.set_item("deaths", counters.deaths)?;
    dict.set_item("created", counters.created)?;
    dict.set_item("destroyed", counters.destroyed)?;
    dict.set_item("users", counters.users)?;
    Ok(dict)
}

/// The role of GETSPACE: rolls all messages that are in memory out to queue disk, and gives spare descriptors and pooled
/// buffers back. How many messages were rolled out.
///
/// >>> import tempfile
/// >>> from tailrace import mcp
/// >>> with tempfile.TemporaryDirectory() as d, mcp.QueueFile.open("MY.Q", "input_output", system=d) as f:
/// ...     f.put(b"x")
/// ...     mcp.reclaim(d), f.get()
/// (1, b'x')
#[pyfunction]
#[pyo3(signature = (system=None))]
pub(super) fn reclaim(py: Python<'_>, system: Option<PathBuf>) -> PyResult<u64> {
    Ok(py.detach(|| present_system(system)?.map_or(Ok(0), |system| system.reclaim()))?)
}
