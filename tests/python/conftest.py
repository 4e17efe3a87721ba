"""What every test gets: a hang is a failure with the stacks of all threads, never a silent stop.

pytest-timeout ends a test that takes too long (`timeout` in pyproject.toml, `@pytest.mark.timeout` for one that may
take longer). Should even that not get through, because native code holds the GIL, faulthandler's own thread writes the
stacks and ends the process.
"""

import faulthandler
import os
from collections.abc import Generator
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
