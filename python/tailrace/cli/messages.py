"""put, get, drain and tail: messages from and to files, lines and JSON lines, none of which touches a byte of them."""

import base64
import enum
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from io import BufferedIOBase
from pathlib import Path
from typing import Annotated, cast

import typer

from tailrace._kinds import Kind, find
from tailrace.cli.making import Url
from tailrace.cli.output import AsJson
from tailrace.errors import EndOfFile, QueueEmpty

__all__ = ["COMMANDS"]

#: Messages that are moved at a time.
BATCH = 512


class Form(enum.StrEnum):
    """How messages are told apart in a stream of bytes."""

    LINE = "line"
    NUL = "nul"
    JSON = "json"
    FILE = "file"


In = Annotated[
    Form,
    typer.Option(
        "--each",
        help="What a message is: a line; what ends with a null byte (nul); a JSON line {'data': TEXT} or "
        "{'base64': TEXT}; a file.",
    ),
]
Out = Annotated[
    Form,
    typer.Option(
        "--each",
        help="What ends a message: a newline; a null byte; JSON lines as put takes them; nothing at all (file), "
        "with the null bytes that fill the slots of a ring.",
    ),
]
Timeout = Annotated[float | None, typer.Option("--timeout", "-t", min=0, help="Seconds to wait.")]


def put(
    url: Url,
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="[FILE]...", help="Standard input if none is given.")
    ] = None,
    message: Annotated[list[str] | None, typer.Option("--message", "-m", help="The text of a message.")] = None,
    each: In = Form.LINE,
    timeout: Timeout = None,
    json: AsJson = False,
) -> None:
    """Put messages into a queue: a message per line of standard input, unless told otherwise.

    Lines of a pipe are put as they come. A JSON line that is wrong ends it; those before it were put, and no other.
    """
    kind, rest = find(url)
    if message and files:
        raise ValueError("give files or --message, not both")
    texts = [text.encode(errors="surrogateescape") for text in message or []]
    # Opened before the first byte of input is read: a wrong URL must not cost anybody a pipe's content.
    with kind.writer(rest) as queue:
        count = 0
        for batch in _batches([texts] if texts else _read(files or [], each)):
            done = queue.put_many(batch, timeout=timeout)
            # Some kinds say how many went in before the queue was full; the next one alone says what is wrong.
            for data in batch[len(batch) if done is None else done :]:
                queue.put(data, timeout=timeout)
            count += len(batch)
    if json:
        print(f'{{"put": {count}}}')


def get(
    url: Url,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Messages to take.")] = 1,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Take on and on.")] = False,
    each: Out = Form.LINE,
    timeout: Timeout = 0,
    json: AsJson = False,
) -> None:
    """Take messages and print them; waits for each only as long as --timeout says."""
    kind, rest = find(url)
    write = _writer(kind, Form.JSON if json else each)
    with kind.reader(rest) as queue:
        for _ in itertools.count() if follow else range(count):
            try:
                message = queue.get(timeout=None if follow else timeout)
            except EndOfFile:
                if follow:
                    return
                raise
            write([message])


def drain(
    url: Url,
    each: Out = Form.LINE,
    timeout: Annotated[float, typer.Option("--timeout", "-t", min=0, help="Seconds of silence that mean empty.")] = 0,
    json: AsJson = False,
) -> None:
    """Take all messages and print them; ends when the queue is empty.

    What was taken and could not be printed, because the reader of a pipe went away, is gone: at most 512 messages.
    """
    kind, rest = find(url)
    write = _writer(kind, Form.JSON if json else each)
    with kind.reader(rest) as queue:
        while True:
            try:
                messages = queue.get_many(BATCH, timeout=timeout)
            except (QueueEmpty, EndOfFile):
                return
            if not messages:
                return
            write(messages)


def tail(
    url: Url,
    count: Annotated[int, typer.Option("--count", "-n", min=0, help="Messages to show.")] = 10,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Show new ones as they come, until Ctrl-C.")] = False,
    each: Out = Form.LINE,
    json: AsJson = False,
) -> None:
    """Show the newest messages and leave them in the queue (aq, qewqew, ring)."""
    kind, rest = find(url)
    write = _writer(kind, Form.JSON if json else each)
    seen, messages = kind.news(rest, None)
    write(list(messages[-count:]) if count else [])
    while follow:
        time.sleep(0.1)
        seen, messages = kind.news(rest, seen)
        write(messages)


def _read(files: list[Path], each: Form) -> Iterator[list[bytes]]:
    """Give the messages of files in groups: of a pipe those that have come, without waiting for more."""
    if not files:
        yield from _split(cast("BufferedIOBase", sys.stdin.buffer), each, "standard input")
    for path in files:
        with path.open("rb") as file:
            yield from _split(file, each, str(path))


def _split(file: BufferedIOBase, each: Form, name: str) -> Iterator[list[bytes]]:
    if each is Form.FILE:
        yield [file.read()]
    elif each is Form.JSON:
        number = 0
        for lines in _ended_by(b"\n", file):
            messages = []
            for line in lines:
                number += 1
                try:
                    messages.append(_from_json(line, f"line {number} of {name}"))
                except ValueError:
                    # What was in front of it is put, all of it: one can go on from this line.
                    yield messages
                    raise
            yield messages
    else:
        yield from _ended_by({Form.LINE: b"\n", Form.NUL: b"\0"}[each], file)


def _ended_by(end: bytes, file: BufferedIOBase) -> Iterator[list[bytes]]:
    """Split what comes, block by block; the last message may lack its end.

    >>> import io
    >>> list(_ended_by(b"|", io.BytesIO(b"a||bc")))
    [[b'a', b''], [b'bc']]
    """
    begun: list[bytes] = []
    while block := file.read1(1 << 16):
        first, *others = block.split(end)
        begun.append(first)
        if others:
            yield [b"".join(begun), *others[:-1]]
            begun = others[-1:]
    if last := b"".join(begun):
        yield [last]


def _from_json(line: bytes, where: str) -> bytes:
    r"""Read what ``--json`` prints.

    >>> _from_json(b'{"base64": "AAE="}', "line 1")
    b'\x00\x01'
    """
    try:
        value = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{where} is not JSON: {error}") from None
    if isinstance(value, dict) and isinstance(value.get("data"), str):
        return str(value["data"]).encode(errors="surrogateescape")
    if isinstance(value, dict) and isinstance(value.get("base64"), str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except ValueError as error:
            raise ValueError(f"{where} is not base64: {error}") from None
    raise ValueError(f'{where} is neither {{"data": TEXT}} nor {{"base64": TEXT}}')


def to_json(message: bytes) -> str:
    """Write a message as JSON: text as text, other bytes as base64.

    >>> to_json(b"hello"), to_json(bytes([0xFF]))
    ('{"data": "hello"}', '{"base64": "/w=="}')
    """
    try:
        return json.dumps({"data": message.decode()})
    except UnicodeDecodeError:
        return json.dumps({"base64": base64.b64encode(message).decode()})


def _batches(groups: Iterable[list[bytes]]) -> Iterator[list[bytes]]:
    for group in groups:
        for start in range(0, len(group), BATCH):
            yield group[start : start + BATCH]


def _writer(kind: Kind, each: Form) -> Callable[[list[bytes]], None]:
    out = sys.stdout.buffer
    end = {Form.LINE: b"\n", Form.NUL: b"\0", Form.FILE: b"", Form.JSON: b"\n"}[each]

    def write(messages: list[bytes]) -> None:
        if kind.pads and each is not Form.FILE:
            messages = [message.rstrip(b"\0") for message in messages]
        if each is Form.JSON:
            messages = [to_json(message).encode() for message in messages]
        for message in messages:
            out.write(message + end)
        # A message that was taken is out of the queue: it must not be lost in a buffer.
        out.flush()

    return write


COMMANDS = (put, get, drain, tail)
