//! Messages that a reader has in its hands.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::mcp::Hold;

/// A message that stays in the queue, in the hands of the file that holds it, until it is acknowledged or given back.
///
/// >>> import tempfile
/// >>> from tailrace import mcp
/// >>> with tempfile.TemporaryDirectory() as d, mcp.QueueFile.open("JOBS", "input_output", system=d) as f:
/// ...     f.put(b"one")
/// ...     [held] = f.hold(1)
/// ...     bytes(held), f.qsize()
/// ...     f.acknowledge(held)
/// (b'one', 0)
#[pyclass(frozen, module = "tailrace.mcp")]
#[derive(Debug)]
pub(crate) struct HeldMessage {
    pub(super) hold: Hold,
    data: Py<PyBytes>,
}

impl HeldMessage {
    pub(super) fn new(py: Python<'_>, hold: Hold, data: &[u8]) -> Self {
        HeldMessage {
            hold,
            data: PyBytes::new(py, data).unbind(),
        }
    }
}

#[pymethods]
impl HeldMessage {
    /// The text of the message.
    #[getter]
    fn data(&self, py: Python<'_>) -> Py<PyBytes> {
        self.data.clone_ref(py)
    }

    /// The member it is from, counted from 1; 1 for a single queue.
    #[getter]
    fn member(&self) -> usize {
        self.hold.member()
    }

    /// Three numbers that name it to ``acknowledge`` and ``give_back`` of the same open file.
    #[getter]
    fn token(&self) -> (u32, u32, u64) {
        self.hold.to_parts()
    }

    fn __bytes__(&self, py: Python<'_>) -> Py<PyBytes> {
        self.data.clone_ref(py)
    }

    fn __len__(&self, py: Python<'_>) -> usize {
        self.data.as_bytes(py).len()
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let (length, member) = (self.data.as_bytes(py).len(), self.hold.member());
        format!("<HeldMessage of {length} bytes from member {member}>")
    }
}

/// One held message or token, or any iterable of them.
pub(super) struct Holds(pub(super) Vec<Hold>);

impl<'a, 'py> FromPyObject<'a, 'py> for Holds {
    type Error = PyErr;

    fn extract(value: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        if let Some(hold) = one(&value) {
            return Ok(Holds(vec![hold]));
        }
        let mut holds = Vec::new();
        for item in value.try_iter()? {
            let item = item?;
            let hold = one(&item).ok_or_else(|| {
                let kind = item.get_type();
                PyTypeError::new_err(format!(
                    "expected a HeldMessage or its token, not an instance of {kind}"
                ))
            })?;
            holds.push(hold);
        }
        Ok(Holds(holds))
    }
}

fn one(value: &Bound<'_, PyAny>) -> Option<Hold> {
    if let Ok(held) = value.cast::<HeldMessage>() {
        return Some(held.get().hold);
    }
    value.extract().ok().map(Hold::from_parts)
}
