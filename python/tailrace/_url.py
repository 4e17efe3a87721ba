"""``tailrace.open(url)``: any queue by its URL."""

import importlib
from typing import Any

__all__ = ["open"]

#: What follows each scheme. A scheme is the name of the module that opens it.
FORMS = {
    "aq": "aq:PATH",
    "conq": "conq:DIR#NAME",
    "mcp": "mcp:DIR#NAME",
    "qewqew": "qewqew:PATH",
    "ring": "ring:PATH",
}


def open(url: str, **options: Any) -> Any:
    """Open a queue by URL; the options are those of its own module.

    The URLs are ``aq:PATH``, ``conq:DIR#NAME``, ``mcp:DIR#NAME``, ``qewqew:PATH`` and ``ring:PATH``. Nothing in them is
    escaped; the name begins after the first ``#``. The queue must exist, but for qewqew (an empty one has no files) and
    mcp (whoever opens a queue file first makes it).

    >>> import tailrace
    >>> tailrace.open("rabbit:/tmp/events")
    Traceback (most recent call last):
    ...
    ValueError: 'rabbit:/tmp/events' has an unknown scheme 'rabbit', not one of aq, conq, mcp, qewqew, ring
    """
    scheme, rest = split(url)
    return importlib.import_module(f"tailrace.{scheme}")._open_url(rest, **options)


def split(url: str) -> tuple[str, str]:
    """Check a URL and split it into its scheme and what follows.

    >>> split("ring:/dev/shm/latest")
    ('ring', '/dev/shm/latest')
    """
    if not isinstance(url, str):
        raise TypeError(f"a queue URL must be a str, not {url!r}")
    scheme, colon, rest = url.partition(":")
    if not colon:
        raise ValueError(f"{url!r} is not a queue URL: expected {_any_form()}")
    if scheme not in FORMS:
        raise ValueError(f"{url!r} has an unknown scheme {scheme!r}, not one of {', '.join(FORMS)}")
    if "\0" in rest:
        raise ValueError(f"{url!r} contains a null character")
    form = FORMS[scheme]
    if "#" in form:
        _directory_and_name(url, rest, form)
    elif not rest:
        raise ValueError(f"{url!r} has no path: expected {form}")
    return scheme, rest


def directory_and_name(rest: str) -> tuple[str, str]:
    """Split the ``DIR#NAME`` of a checked URL.

    >>> directory_and_name("/dev/shm/work#jobs")
    ('/dev/shm/work', 'jobs')
    """
    return _directory_and_name(rest, rest, "DIR#NAME")


def _directory_and_name(url: str, rest: str, form: str) -> tuple[str, str]:
    directory, separator, name = rest.partition("#")
    if not separator:
        raise ValueError(f"{url!r} has no '#' between directory and queue name: expected {form}")
    if not directory:
        raise ValueError(f"{url!r} has no directory: expected {form}")
    if not name:
        raise ValueError(f"{url!r} has no queue name after '#': expected {form}")
    return directory, name


def _any_form() -> str:
    *most, last = FORMS.values()
    return f"{', '.join(most)} or {last}"
