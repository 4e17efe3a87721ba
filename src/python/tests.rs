//! The base layer inside an embedded interpreter (`cargo test --features python`, where a libpython can be linked).
//!
//! The classes that make the helpers visible to Python exist only here: the shipped module has no test hooks.

use std::ffi::CStr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, LazyLock, Mutex};
use std::thread;
use std::time::Duration;

use pyo3::exceptions::{
    PyBufferError, PyFileNotFoundError, PyImportError, PyKeyError, PyOSError, PyPermissionError, PyTypeError,
    PyValueError,
};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use super::_core;
use super::arrow::{BatchBuilder, MessageBatch};
use super::buffer::{Access, Payload, View};
use super::wait::{Timeout, waiting};
use crate::Error;
use crate::shared::region::Region;
use crate::shared::signal::Wait;

/// An item as a queue would make it: its memoryview is the view's memory, releasing it closes the view.
#[pyclass(frozen, extends = View)]
struct Item;

#[pymethods]
impl Item {
    fn release(slf: &Bound<'_, Self>) -> PyResult<bool> {
        slf.as_super().get().try_close()
    }
}

fn item<'py>(py: Python<'py>, bytes: &[u8]) -> Bound<'py, Item> {
    let view = View::of_copy(bytes.into());
    Bound::new(py, PyClassInitializer::from(view).add_subclass(Item)).unwrap()
}

type Job = Box<dyn FnOnce(Python<'_>) + Send>;

/// Runs `test` with `tailrace` importable (its Python files from this tree, its native module from this very binary), on
/// the thread that started the interpreter: the only one that Python lets handle signals.
fn with_tailrace(test: impl FnOnce(Python<'_>) + Send + 'static) {
    static MAIN_THREAD: LazyLock<Mutex<Sender<Job>>> = LazyLock::new(|| {
        let (jobs, incoming) = channel::<Job>();
        thread::spawn(move || {
            Python::initialize();
            Python::attach(|py| {
                let sys = py.import("sys").unwrap();
                let path = concat!(env!("CARGO_MANIFEST_DIR"), "/python");
                sys.getattr("path").unwrap().call_method1("insert", (0, path)).unwrap();
                let native = pyo3::wrap_pymodule!(_core)(py);
                sys.getattr("modules")
                    .unwrap()
                    .set_item("tailrace._core", native)
                    .unwrap();
            });
            for job in incoming {
                Python::attach(job);
            }
        });
        Mutex::new(jobs)
    });
    let (done, outcome) = channel();
    let job: Job = Box::new(move |py| {
        done.send(catch_unwind(AssertUnwindSafe(|| test(py)))).unwrap();
    });
    MAIN_THREAD.lock().unwrap().send(job).unwrap();
    if let Err(panic) = outcome.recv().unwrap() {
        resume_unwind(panic);
    }
}

fn run(py: Python<'_>, names: &Bound<'_, PyDict>, code: &CStr) {
    if let Err(error) = py.run(code, Some(names), None) {
        error.print(py);
        panic!("the Python part failed");
    }
}

#[test]
fn a_view_shows_the_bytes_and_refuses_to_close_while_exported() {
    with_tailrace(|py| {
        let names = PyDict::new(py);
        names.set_item("item", item(py, b"hello")).unwrap();
        run(
            py,
            &names,
            cr#"
view = memoryview(item)
second = memoryview(item)
assert bytes(view) == b"hello" and view.readonly and view.contiguous and view.format == "B"
part = view[1:3]
for exported in (second, part, view):
    try:
        item.release()
    except BufferError as error:
        assert "memoryview" in str(error)
    else:
        raise AssertionError("released while exported")
    exported.release()
assert item.release() is True
assert item.release() is False
for attempt in (memoryview, bytes):
    try:
        attempt(item)
    except (ValueError, BufferError) as error:
        assert "no longer accessible" in str(error), error
    else:
        raise AssertionError("a released item was read")
"#,
        );
    });
}

#[test]
fn a_view_keeps_its_memory_when_the_item_is_gone() {
    with_tailrace(|py| {
        let names = PyDict::new(py);
        names.set_item("item", item(py, &[7; 100_000])).unwrap();
        run(
            py,
            &names,
            c"view = memoryview(item); del item; import gc; gc.collect(); assert bytes(view) == b'\\x07' * 100_000",
        );
    });
}

#[test]
fn a_read_only_view_refuses_a_writable_export_and_stays_closable() {
    with_tailrace(|py| {
        let names = PyDict::new(py);
        names.set_item("item", item(py, b"hello")).unwrap();
        run(
            py,
            &names,
            cr#"
import io
try:
    io.BytesIO(b"world").readinto(item)
except (TypeError, BufferError):
    pass
else:
    raise AssertionError("a read-only item was written")
assert bytes(item) == b"hello"
assert item.release() is True  # the refused export was not counted
"#,
        );
    });
}

#[test]
fn a_view_of_a_region_is_the_memory_itself() {
    with_tailrace(|py| {
        let region = Arc::new(Region::heap(4096).unwrap());
        let view = View::of_region(&region, 100, 5, Access::ReadWrite).unwrap();
        let item = Bound::new(py, PyClassInitializer::from(view).add_subclass(Item)).unwrap();
        let names = PyDict::new(py);
        names.set_item("item", item).unwrap();
        run(
            py,
            &names,
            c"view = memoryview(item); assert not view.readonly; view[:] = b'hello'; del item",
        );
        let mut written = [0; 7];
        region.copy_out(99, &mut written);
        assert_eq!(&written, b"\0hello\0");
        region.copy_in(101, b"u");
        run(py, &names, c"assert bytes(view) == b'hullo', bytes(view)");
        let memory = Arc::downgrade(&region);
        drop(region);
        run(py, &names, c"assert bytes(view) == b'hullo'; view.release(); del view");
        assert!(memory.upgrade().is_none(), "the mapping went with its last view");
    });
}

#[test]
fn a_view_outside_of_the_region_is_refused() {
    let region = Arc::new(Region::heap(4096).unwrap());
    for (offset, len) in [(4096, 1), (4097, 0), (0, 4097), (usize::MAX, 2), (2, usize::MAX)] {
        let error = View::of_region(&region, offset, len, Access::ReadOnly).unwrap_err();
        assert!(matches!(error, Error::Corrupt(_)), "{error}");
    }
    View::of_region(&region, 4096, 0, Access::ReadOnly).unwrap();
}

#[test]
fn exports_and_closes_from_many_threads_never_overlap() {
    with_tailrace(|py| {
        let names = PyDict::new(py);
        names
            .set_item(
                "make",
                pyo3::types::PyCFunction::new_closure(py, None, None, |args, _| {
                    Ok::<_, PyErr>(item(args.py(), b"x").unbind())
                })
                .unwrap(),
            )
            .unwrap();
        run(
            py,
            &names,
            cr#"
import sys, threading
sys.setswitchinterval(1e-5)
for round in range(200):
    item, wins, start = make(), [], threading.Barrier(4)
    def reader(item=item, start=start):
        start.wait()
        while True:
            try:
                with memoryview(item) as view:
                    assert bytes(view) == b"x"
            except ValueError:
                return
    def closer(item=item, start=start, wins=wins):
        start.wait()
        while True:
            try:
                wins.append(item.release())
                return
            except BufferError:
                pass
    threads = [threading.Thread(target=target) for target in (reader, reader, closer, closer)]
    [thread.start() for thread in threads]
    [thread.join(20) for thread in threads]
    assert not any(thread.is_alive() for thread in threads)
    assert sorted(wins) == [False, True], wins
"#,
        );
    });
}

#[test]
fn a_payload_is_any_contiguous_buffer() {
    with_tailrace(|py| {
        let cases = [
            (c"b'abc'", &b"abc"[..]),
            (c"b''", b""),
            (c"bytearray()", b""),
            (c"bytearray(b'abc')", b"abc"),
            (c"memoryview(b'abcd')[1:3]", b"bc"),
            (c"__import__('array').array('H', [1, 0x203])", b"\x01\x00\x03\x02"),
            (c"memoryview(bytes(6)).cast('B', (2, 3))", &[0; 6]),
        ];
        for (code, expected) in cases {
            let object = py.eval(code, None, None).unwrap();
            let payload: Payload<'_> = object.extract().unwrap();
            assert_eq!(payload.as_bytes(), expected, "{code:?}");
        }
        let bytes = PyBytes::new(py, b"abc");
        let payload: Payload<'_> = bytes.extract().unwrap();
        assert_eq!(
            payload.as_bytes().as_ptr(),
            bytes.as_bytes().as_ptr(),
            "bytes are borrowed"
        );
    });
}

#[test]
fn a_payload_that_is_no_contiguous_buffer_is_refused_by_name() {
    with_tailrace(|py| {
        for (code, kind) in [
            (c"'text'", "'str'"),
            (c"7", "'int'"),
            (c"None", "'NoneType'"),
            (c"[1]", "'list'"),
        ] {
            let error = py.eval(code, None, None).unwrap().extract::<Payload<'_>>().unwrap_err();
            assert!(
                error.is_instance_of::<PyTypeError>(py) && error.to_string().contains(kind),
                "{error}"
            );
        }
        let strided = py.eval(c"memoryview(b'abcd')[::2]", None, None).unwrap();
        let error = strided.extract::<Payload<'_>>().unwrap_err();
        assert!(
            error.is_instance_of::<PyBufferError>(py) && error.to_string().contains("contiguous"),
            "{error}"
        );
    });
}

#[test]
fn a_timeout_is_none_or_seconds() {
    with_tailrace(|py| {
        let parsed = |code| py.eval(code, None, None).unwrap().extract::<Timeout>().unwrap();
        assert_eq!(parsed(c"None"), Timeout::FOREVER);
        assert_eq!(parsed(c"0"), Timeout::ZERO);
        assert!(matches!(parsed(c"None").wait(), Wait::Forever));
        assert!(matches!(parsed(c"0.0").wait(), Wait::No));
        assert!(matches!(parsed(c"1.5").wait(), Wait::Until(_)));
        assert_eq!(parsed(c"1.5"), Timeout(Some(Duration::from_millis(1500))));
        assert_eq!(
            parsed(c"__import__('threading').TIMEOUT_MAX").0.unwrap().as_secs(),
            9_223_372_036
        );
        assert_eq!(
            parsed(c"__import__('fractions').Fraction(1, 4)").0,
            Some(Duration::from_millis(250))
        );
        for wrong in [c"-1", c"-1e-9", c"float('nan')", c"float('inf')", c"1e300", c"10**400"] {
            let value = py.eval(wrong, None, None).unwrap();
            let error = value.extract::<Timeout>().unwrap_err();
            assert!(error.is_instance_of::<PyValueError>(py), "{error}");
            assert!(
                error.to_string().contains(&value.repr().unwrap().to_string()),
                "{error}"
            );
        }
        for wrong in [c"'soon'", c"[1]", c"b'1'"] {
            let value = py.eval(wrong, None, None).unwrap();
            let error = value.extract::<Timeout>().unwrap_err();
            assert!(error.is_instance_of::<PyTypeError>(py), "{error}");
            assert!(
                error.to_string().contains(&value.repr().unwrap().to_string()),
                "{error}"
            );
        }
    });
}

#[test]
fn waiting_hands_back_results_and_errors() {
    with_tailrace(|py| {
        assert_eq!(waiting(py, |idle| idle().map(|()| 7)).unwrap(), 7);
        let error = waiting(py, |_| Err::<(), _>(Error::Closed)).unwrap_err();
        assert!(error.is_instance_of::<super::error::QueueClosed>(py));
    });
}

#[test]
fn a_signal_handler_that_raises_ends_the_wait_with_its_exception() {
    with_tailrace(|py| {
        run(
            py,
            &PyDict::new(py),
            cr#"
import signal
def handler(number, frame):
    raise LookupError("from the handler")
signal.signal(signal.SIGUSR1, handler)
"#,
        );
        let sender = thread::spawn(|| {
            // The handler must run in the wait, not before it: attaching here succeeds only once it is detached.
            Python::attach(|py| {
                py.run(c"import os, signal; os.kill(os.getpid(), signal.SIGUSR1)", None, None)
                    .unwrap()
            })
        });
        let error = waiting(py, |idle| {
            for _ in 0..2_000 {
                idle()?;
                thread::sleep(Duration::from_millis(10));
            }
            Ok(())
        })
        .unwrap_err();
        sender.join().unwrap();
        assert!(error.to_string().contains("from the handler"), "{error}");
        assert_eq!(
            waiting(py, |idle| idle().map(|()| 7)).unwrap(),
            7,
            "the next wait starts clean"
        );
    });
}

#[test]
fn other_python_threads_run_while_one_waits() {
    with_tailrace(|py| {
        let (sender, receiver) = channel();
        let other = thread::spawn(move || Python::attach(|_| sender.send(()).unwrap()));
        let seen = waiting(py, move |_| Ok(receiver.recv_timeout(Duration::from_secs(20)).is_ok())).unwrap();
        assert!(seen, "another thread could not attach while this one waited");
        other.join().unwrap();
    });
}

#[test]
fn each_error_becomes_its_exception() {
    with_tailrace(|py| {
        let errors = py.import("tailrace.errors").unwrap();
        let cases: [(Error, &str); 14] = [
            (Error::Full("4 of 4 slots".into()), "QueueFull"),
            (Error::Empty, "QueueEmpty"),
            (Error::TimedOut, "WaitTimeout"),
            (Error::EndOfFile, "EndOfFile"),
            (Error::Closed, "QueueClosed"),
            (Error::AlreadyOpen("reader".into()), "AlreadyOpen"),
            (Error::NotFound("jobs".into()), "QueueNotFound"),
            (Error::Exists("jobs".into()), "QueueExists"),
            (Error::MessageNotFound("7".into()), "MessageNotFound"),
            (Error::TooLarge { size: 9, limit: 8 }, "MessageTooLarge"),
            (
                Error::InvalidKey {
                    key: 9,
                    expected: "1 to 3".into(),
                },
                "InvalidKey",
            ),
            (Error::Format("not an aq file".into()), "FormatError"),
            (Error::Corrupt("head 9 of 8".into()), "CorruptQueue"),
            (Error::Corrupt("head 9 of 8".into()), "QueueError"),
        ];
        for (error, class) in cases {
            let text = error.to_string();
            let raised = PyErr::from(error);
            assert!(
                raised.value(py).is_instance(&errors.getattr(class).unwrap()).unwrap(),
                "{class}: {raised}"
            );
            assert_eq!(raised.value(py).to_string(), text);
        }
        let refused = PyErr::from(Error::TooLarge { size: 9, limit: 8 });
        assert_eq!(refused.value(py).getattr("limit").unwrap().extract::<u64>().unwrap(), 8);
        let refused = PyErr::from(Error::InvalidKey {
            key: 9,
            expected: "1 to 3".into(),
        });
        assert!(refused.is_instance_of::<PyKeyError>(py));
        assert_eq!(refused.value(py).getattr("key").unwrap().extract::<i64>().unwrap(), 9);
    });
}

#[test]
fn what_the_system_refused_stays_an_os_error_with_its_number() {
    with_tailrace(|py| {
        let raised = |errno| PyErr::from(Error::io("open /no/such", std::io::Error::from_raw_os_error(errno)));
        assert!(raised(2).is_instance_of::<PyFileNotFoundError>(py));
        assert!(raised(13).is_instance_of::<PyPermissionError>(py));
        let full = raised(28);
        assert!(full.is_instance_of::<PyOSError>(py));
        assert_eq!(full.value(py).getattr("errno").unwrap().extract::<i32>().unwrap(), 28);
        assert_eq!(
            full.value(py).to_string(),
            "[Errno 28] open /no/such: No space left on device"
        );
        assert!(PyErr::from(Error::Invalid("size 0".into())).is_instance_of::<PyValueError>(py));
    });
}

#[test]
fn a_batch_crosses_the_arrow_interface() {
    with_tailrace(|py| {
        let mut builder = BatchBuilder::with_capacity(2, 8);
        builder.append(b"one").unwrap();
        builder.append_with(0, |_| Ok(())).unwrap();
        let failed = builder.append_with(4, |tail| {
            tail.fill(9);
            Err(Error::Empty)
        });
        assert!(failed.is_err());
        builder
            .append_with(3, |tail| {
                tail.copy_from_slice(b"two");
                Ok(())
            })
            .unwrap();
        assert_eq!(builder.len(), 3);
        let batch = Bound::new(py, builder.finish().unwrap()).unwrap();
        let names = PyDict::new(py);
        names.set_item("batch", &batch).unwrap();
        run(
            py,
            &names,
            cr#"
assert len(batch) == 3
schema, array = batch.__arrow_c_array__()
assert '"arrow_schema"' in repr(schema) and '"arrow_array"' in repr(array)
batch.__arrow_c_array__(None), batch.__arrow_c_array__(requested_schema=schema)
"#,
        );
        // Without pyarrow in this interpreter the error must name the extra; the wheel's tests have pyarrow.
        if py.import("pyarrow").is_err() {
            let error = MessageBatch::to_pyarrow(&batch).unwrap_err();
            assert!(
                error.is_instance_of::<PyImportError>(py) && error.to_string().contains("tailrace[arrow]"),
                "{error}"
            );
        } else {
            let list = MessageBatch::to_pyarrow(&batch)
                .unwrap()
                .call_method0("to_pylist")
                .unwrap();
            assert_eq!(
                list.extract::<Vec<Vec<u8>>>().unwrap(),
                [b"one".to_vec(), vec![], b"two".to_vec()]
            );
        }
    });
}

#[test]
fn a_batch_refuses_more_than_32_bit_offsets_reach() {
    let mut builder = BatchBuilder::with_capacity(0, 0);
    builder.append(b"one").unwrap();
    assert_eq!(builder.room(), i32::MAX as usize - 3);
    for len in [builder.room() + 1, usize::MAX] {
        let error = builder.append_with(len, |_| unreachable!()).unwrap_err().to_string();
        assert!(error.contains("2147483647"), "{error}");
    }
    assert_eq!(builder.len(), 1);
}
