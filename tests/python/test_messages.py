"""Many messages as one argument: objects, or an Arrow array that is taken by its buffers."""

import sys
from pathlib import Path

import pyarrow as pa
import pytest

from tailrace import aq, qewqew, ring
from tailrace._kinds import KINDS


@pytest.fixture
def queue(tmp_path: Path) -> aq.Queue:
    return aq.Queue.create(tmp_path / "q", size=1 << 16)


def test_an_array_is_put_like_a_list(tmp_path: Path) -> None:
    texts = [b"one", b"", b"three" * 100]
    with qewqew.DurableQueue(tmp_path / "q", sync="never") as queue:
        queue.put_many(pa.array(texts, pa.binary()))
        queue.put_many(pa.array([b"skipped", *texts, b"skipped"], pa.binary()).slice(1, 3))
        queue.put_many(pa.array([], pa.binary()))
        queue.put_many(pa.array([b"", b""], pa.binary()))
        assert queue.get_many(10) == [*texts, *texts, b"", b""]


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (pa.array([b"a", None], pa.binary()), ValueError, "1 of the messages are null"),
        (pa.array(["text"]), TypeError, "of type binary is required, not string"),
        (pa.array([b"a"], pa.large_binary()), TypeError, "not large_binary"),
        (b"one", TypeError, "not one bytes object"),
        ("one", TypeError, "not one str object"),
        ([b"one", 2], TypeError, "'int'"),
    ],
)
def test_what_is_no_sequence_of_messages_is_refused_and_nothing_is_put(
    queue: aq.Queue, wrong: object, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        queue.put_many(wrong)  # type: ignore[arg-type]
    assert queue.qsize() == 0


def test_a_snapshot_of_a_ring_comes_as_arrow_with_its_numbers(tmp_path: Path) -> None:
    with ring.Queue.create(tmp_path / "ring", max_len=4, msg_size=1) as queue:
        queue.put_many(pa.array([b"%08d" % number for number in range(6)], pa.binary()))
        values, numbers = queue.snapshot_arrow()
        assert values.to_pylist() == [b"%08d" % number for number in range(2, 6)]
        assert [int.from_bytes(numbers[at : at + 8], "little") for at in range(0, 32, 8)] == [2, 3, 4, 5]
        assert queue.qsize() == 4


@pytest.mark.parametrize("scheme", ["aq", "conq", "mcp", "qewqew", "ring"])
def test_without_pyarrow_nothing_is_taken(scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rest = f"{tmp_path}/directory#NAME" if scheme in ("conq", "mcp") else f"{tmp_path}/queue"
    KINDS[scheme].create(rest, KINDS[scheme].parse({}))
    with KINDS[scheme].writer(rest) as writer, KINDS[scheme].reader(rest) as reader:
        writer.put(b"kept")
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, "pyarrow", None)
            with pytest.raises(ImportError, match=r"tailrace\[arrow\]"):
                reader.get_arrow(5, timeout=0)
        assert reader.get(timeout=0).rstrip(b"\0") == b"kept"
        writer.put(b"more")
        assert reader.get_arrow(5, timeout=1).to_pylist()[0].rstrip(b"\0") == b"more"
