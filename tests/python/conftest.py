"""What every test gets: a hang is a failure with the stacks of all threads, and thousands of rows differ in one line.

pytest-timeout ends a test that takes too long (`timeout` in pyproject.toml, `@pytest.mark.timeout` for one that may
take longer). Should even that not get through, because native code holds the GIL, faulthandler's own thread writes the
stacks and ends the process.
"""

import faulthandler
import itertools
import os
import signal
from collections import Counter
from collections.abc import Generator, Sequence
from typing import TextIO

import pytest

#: Seconds that native code may still hold the GIL after pytest-timeout should have struck.
GRACE = 60


@pytest.fixture(scope="session")
def is_soak() -> bool:
    """Whether the full numbers are asked for (`make soak`)."""
    return os.environ.get("TAILRACE_SOAK") == "1"


#: The real stderr: that of a running test is captured, and stacks written there would be lost with the process.
TERMINAL = pytest.StashKey[TextIO]()


def pytest_configure(config: pytest.Config) -> None:
    # Nothing is captured yet.
    config.stash[TERMINAL] = os.fdopen(os.dup(2), "w")
    # A shell starts what it runs in the background with Ctrl-C ignored, and that is inherited.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Where one of these is set pytest draws two collections that differ in full, whatever the hook below has told: for
    # 20,000 elements that takes longer than a test may.
    for name in ("CI", "BUILD_NUMBER"):
        os.environ.pop(name, None)


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[TERMINAL].close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    marker = item.get_closest_marker("timeout")
    limit = marker.args[0] if marker and marker.args else float(item.config.getini("timeout") or 0)
    limit = item.config.getoption("timeout") or limit
    if limit:
        # Its thread needs no GIL.
        faulthandler.dump_traceback_later(float(limit) + GRACE, exit=True, file=item.config.stash[TERMINAL])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


#: From so many elements on pytest's own comparison, line by line of everything, takes minutes where CI is set.
MANY = 200


@pytest.hookimpl(tryfirst=True)
def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Tell where two long collections differ, instead of drawing all of both."""
    if op != "==" or type(left) is not type(right) or not isinstance(left, list | tuple | set | Counter):
        return None
    assert isinstance(right, list | tuple | set | Counter)
    if max(len(left), len(right)) < MANY:
        return None
    told = [f"two of {type(left).__name__} with {len(left)} and {len(right)} elements"]
    if isinstance(left, Sequence) and isinstance(right, Sequence):
        pairs = enumerate(itertools.zip_longest(left, right, fillvalue="nothing"))
        told += [f"first difference at {at}: {a!r:.300} and {b!r:.300}" for at, (a, b) in pairs if a != b][:1]
    try:
        here, there = Counter(left), Counter(right)
    except TypeError:  # unhashable elements
        return told
    for name, more in (("only on the left", here - there), ("only on the right", there - here)):
        told.append(f"{name}: {more.total()}, such as {list(itertools.islice(more, 5))!r:.500}")
    return told
