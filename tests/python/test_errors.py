"""The exception family: bases, texts, and the way through pickle that multiprocessing and Spark need."""

import pickle
import queue

import pytest

import tailrace
from tailrace import aq, conq, errors, mcp, qewqew, ring

FAMILY = {
    "QueueError": (Exception,),
    "QueueEmpty": (tailrace.QueueError, queue.Empty),
    "QueueFull": (tailrace.QueueError, queue.Full),
    "WaitTimeout": (tailrace.QueueError, TimeoutError, OSError),
    "EndOfFile": (tailrace.QueueError, EOFError),
    "InvalidKey": (tailrace.QueueError, KeyError),
    "QueueClosed": (tailrace.QueueError,),
    "AlreadyOpen": (tailrace.QueueError,),
    "QueueNotFound": (tailrace.QueueError, LookupError),
    "QueueExists": (tailrace.QueueError,),
    "MessageNotFound": (tailrace.QueueError, LookupError),
    "MessageTooLarge": (tailrace.QueueError, ValueError),
    "FormatError": (tailrace.QueueError, ValueError),
    "CorruptQueue": (tailrace.QueueError, tailrace.FormatError, ValueError),
}


def test_the_family_is_complete_and_public():
    assert set(errors.__all__) == set(FAMILY)
    defined = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert defined == set(FAMILY)
    for name in FAMILY:
        assert getattr(tailrace, name) is getattr(errors, name)
        assert name in tailrace.__all__


@pytest.mark.parametrize(("name", "bases"), FAMILY.items())
def test_bases_and_docstring(name, bases):
    cls = getattr(errors, name)
    for base in bases:
        assert issubclass(cls, base)
    assert cls.__doc__
    assert cls.__module__ == "tailrace.errors"


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("name", FAMILY)
def test_pickle_keeps_class_and_text(name, protocol):
    cls = getattr(errors, name)
    for error in (cls(), cls("jobs is gone")):
        error.add_note("seen by the reader")
        copy = pickle.loads(pickle.dumps(error, protocol))
        assert type(copy) is cls
        assert (copy.args, str(copy), copy.__notes__) == (error.args, str(error), error.__notes__)
    assert str(cls("jobs is gone")) == "jobs is gone"


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickle_keeps_the_fields(protocol):
    copy = pickle.loads(pickle.dumps(tailrace.MessageTooLarge("too large", 9, limit=8), protocol))
    assert (str(copy), copy.size, copy.limit) == ("too large", 9, 8)
    copy = pickle.loads(pickle.dumps(tailrace.InvalidKey("invalid key 9", 9), protocol))
    assert (str(copy), copy.key) == ("invalid key 9", 9)


def test_a_number_that_its_type_cannot_hold_is_a_wrong_value(tmp_path):
    path = tmp_path / "q"
    wrong = [
        (lambda n: aq.Queue.create(path, size=n), -1),
        (lambda n: aq.Queue.create(path, page_size=n), 2**64),
        (lambda n: ring.Queue.create(path, max_len=n), -1),
        (lambda n: qewqew.DurableQueue(path, chunk_size=n), -1),
        (lambda n: qewqew.DurableQueue(path, max_bytes=n), 2**64),
        (lambda n: conq.QueueManager().create_queue("q", max_messages=n), -1),
        (lambda n: conq.QueueManager().create_queue("q", max_deliveries=n), 2**32),
        (lambda n: mcp.QueueFile.open("Q", system=tmp_path, record_size=n), -1),
        (lambda n: mcp.FileParameters("Q", n, 80), 2**32),
        (lambda n: mcp.create_system(tmp_path, queues=n), -1),
        (lambda n: aq.Queue.anonymous(size=1 << 16).get_many(n), -1),
        (lambda n: aq.Queue.anonymous(size=1 << 16).writer().claim(n), 2**63),
        (lambda n: ring.Queue.anonymous(max_len=2, msg_size=1).get_many(n), -1),
    ]
    for call, number in wrong:
        with pytest.raises(ValueError, match=rf"from -?\d+ to \d+, not {number}\b"):
            call(number)
    assert not any(tmp_path.iterdir())
