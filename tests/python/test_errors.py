"""The exception family: bases, texts, and the way through pickle that multiprocessing and Spark need."""

import pickle
import queue

import pytest

import tailrace
from tailrace import errors

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
