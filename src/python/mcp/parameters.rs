//! `FileParameters`: what a program says about its queue file, and the notations for it.

use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple, PyType};

use super::super::buffer::Payload;
use super::super::number::whole;
use super::file::QueueFile;
use crate::mcp::{self, Device, notation};
use crate::{Error, Result};

/// The parameters of a queue file; the first opener binds them.
///
/// >>> from tailrace.mcp import FileParameters
/// >>> card = FileParameters.from_card("?FI MY.Q QUEUE Q.MAX.MESSAGES=20 BUFFERS=3 RECORD.SIZE=80;")
/// >>> card == FileParameters("MY.Q", max_messages=20, buffers=3, record_size=80)
/// True
#[pyclass(frozen, eq, hash, module = "tailrace.mcp")]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FileParameters {
    pub(super) inner: mcp::FileParameters,
}

type Parser = fn(&str) -> Result<Vec<mcp::FileParameters>>;

fn one(parse: Parser, text: &str) -> PyResult<FileParameters> {
    let mut files = parse(text)?;
    if files.len() != 1 {
        let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
        return Err(Error::Invalid(format!(
            "expected one declaration, found {}: {}",
            files.len(),
            names.join(", ")
        ))
        .into());
    }
    Ok(FileParameters { inner: files.remove(0) })
}

fn all(parse: Parser, text: &str) -> PyResult<Vec<FileParameters>> {
    Ok(parse(text)?.into_iter().map(|inner| FileParameters { inner }).collect())
}

#[pymethods]
impl FileParameters {
    #[new]
    #[pyo3(signature = (name, max_messages, record_size, buffers=2, family_size=0, device=61))]
    fn new(
        name: String,
        #[pyo3(from_py_with = whole)] max_messages: u32,
        #[pyo3(from_py_with = whole)] record_size: u32,
        #[pyo3(from_py_with = whole)] buffers: u32,
        #[pyo3(from_py_with = whole)] family_size: u32,
        #[pyo3(from_py_with = whole)] device: u32,
    ) -> PyResult<Self> {
        let inner = mcp::FileParameters {
            name,
            max_messages,
            buffers,
            record_size,
            family_size,
            device: Device::from_number(device)?,
        };
        inner.check(false)?;
        Ok(FileParameters { inner })
    }

    /// MFID/FID.
    #[getter]
    fn name(&self) -> &str {
        &self.inner.name
    }

    /// Q.MAX.MESSAGES.
    #[getter]
    fn max_messages(&self) -> u32 {
        self.inner.max_messages
    }

    /// Q.BUFFERS.
    #[getter]
    fn buffers(&self) -> u32 {
        self.inner.buffers
    }

    /// RECORD.SIZE in bytes.
    #[getter]
    fn record_size(&self) -> u32 {
        self.inner.record_size
    }

    /// Q.FAMILY.SIZE; 0 is a single queue.
    #[getter]
    fn family_size(&self) -> u32 {
        self.inner.family_size
    }

    /// 61 (new queue file) or 62 (old).
    #[getter]
    fn device(&self) -> u32 {
        self.inner.device.number()
    }

    /// Segments of 180 bytes of queue disk that each queue gets.
    ///
    /// >>> from tailrace.mcp import FileParameters
    /// >>> FileParameters("Q", max_messages=255, record_size=200).disk_segments
    /// 510
    #[getter]
    fn disk_segments(&self) -> u64 {
        self.inner.disk_segments()
    }

    /// Reads one ``?FI`` or ``?FILE`` card.
    #[staticmethod]
    fn from_card(text: &str) -> PyResult<Self> {
        one(notation::card::parse, text)
    }

    /// Reads all cards of a text.
    #[staticmethod]
    fn all_from_card(text: &str) -> PyResult<Vec<Self>> {
        all(notation::card::parse, text)
    }

    /// Reads one SDL ``FILE`` declaration.
    ///
    /// >>> from tailrace.mcp import FileParameters
    /// >>> FileParameters.from_sdl("FILE.MY.QFF(DEVICE=QUEUE(10)  FAMILY(3),  BUFFERS=2, RECORDS=80);").family_size
    /// 3
    #[staticmethod]
    fn from_sdl(text: &str) -> PyResult<Self> {
        one(notation::sdl::parse, text)
    }

    /// Reads all SDL ``FILE`` declarations of a text.
    #[staticmethod]
    fn all_from_sdl(text: &str) -> PyResult<Vec<Self>> {
        all(notation::sdl::parse, text)
    }

    /// Reads the ``SELECT`` and ``FD`` of one COBOL file.
    #[staticmethod]
    fn from_cobol(text: &str) -> PyResult<Self> {
        one(notation::cobol::parse, text)
    }

    /// Reads all COBOL files of a text.
    #[staticmethod]
    fn all_from_cobol(text: &str) -> PyResult<Vec<Self>> {
        all(notation::cobol::parse, text)
    }

    /// The file parameter block as packed bits; ``ValueError`` for values beyond its fields.
    fn to_fpb<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.inner.to_fpb()?))
    }

    /// Reads a file parameter block; name and record size are not in it.
    ///
    /// >>> from tailrace.mcp import FileParameters
    /// >>> p = FileParameters("MY.Q", max_messages=20, record_size=80)
    /// >>> FileParameters.from_fpb(p.to_fpb(), name="MY.Q", record_size=80) == p
    /// True
    #[staticmethod]
    #[pyo3(signature = (block, name, record_size))]
    fn from_fpb(block: Payload<'_>, name: &str, #[pyo3(from_py_with = whole)] record_size: u32) -> PyResult<Self> {
        let inner = mcp::FileParameters::from_fpb(block.as_bytes(), name, record_size)?;
        Ok(FileParameters { inner })
    }

    /// Opens the queue file with these parameters; the options are those of ``QueueFile.open``.
    #[pyo3(signature = (mode="input", system=None, keep=false, strict=false, disk=None, sdl_keys=false))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn open(
        &self,
        py: Python<'_>,
        mode: &str,
        system: Option<PathBuf>,
        keep: bool,
        strict: bool,
        disk: Option<PathBuf>,
        sdl_keys: bool,
    ) -> PyResult<QueueFile> {
        let options = mcp::OpenOptions {
            keep,
            strict,
            disk,
            sdl_keys,
        };
        QueueFile::open_with(py, &self.inner, mode, system, &options)
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyType>, Bound<'py, PyTuple>)> {
        let p = &slf.get().inner;
        let arguments = (
            &p.name,
            p.max_messages,
            p.record_size,
            p.buffers,
            p.family_size,
            p.device.number(),
        );
        Ok((slf.get_type(), arguments.into_pyobject(slf.py())?))
    }

    fn __repr__(&self) -> String {
        let p = &self.inner;
        format!(
            "FileParameters({:?}, max_messages={}, record_size={}, buffers={}, family_size={}, device={})",
            p.name,
            p.max_messages,
            p.record_size,
            p.buffers,
            p.family_size,
            p.device.number()
        )
    }
}
