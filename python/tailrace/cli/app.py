"""The commands put together, and what happens to errors: one clear line and an exit code, never a traceback."""

import errno
import os
import queue
import re
import sys
from typing import Annotated

import typer

import tailrace
from tailrace import errors
from tailrace.cli import checking, looking, making, messages, running
from tailrace.cli.output import complain

__all__ = ["run"]

#: The base of what typer itself complains about; old and new versions of typer keep it in different places.
UsageProblem = typer.BadParameter.__mro__[2]

#: Errors of Spark about what the user has written: SQL, columns, settings.
SPARKS_WRONG = ("AnalysisException", "ParseException", "IllegalArgumentException", "PySparkValueError")

#: Errors that come back from Spark's Python processes as text.
OURS = {name: getattr(errors, name) for name in errors.__all__} | {"ValueError": ValueError}

EMPTY, WRONG, FAILED, REFUSED, INTERRUPTED = 1, 2, 3, 4, 130

app = typer.Typer(
    name="tailrace",
    help="Make, fill, empty, watch and check queues. A queue is named by its URL: aq:PATH, conq:DIR#NAME, "
    "mcp:DIR#NAME, qewqew:PATH or ring:PATH.",
    epilog="Exit codes: 0 done; 1 nothing to take or no room in time; 2 wrong input; 3 a check failed; 4 refused.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for group in (making, messages, looking, checking, running):
    for command in group.COMMANDS:
        app.command(name=command.__name__.rstrip("_"))(command)


@app.callback(invoke_without_command=True)
def common(
    version: Annotated[bool, typer.Option("--version", help="Show the version and stop.")] = False,
) -> None:
    """Make, fill, empty, watch and check queues."""
    if version:
        print(f"tailrace {tailrace.__version__}")
        raise typer.Exit


def run(arguments: list[str]) -> int:
    """Run one command and give its exit code."""
    if sys.stdin is None or sys.stdout is None:
        # Found out later, it would cost the message that was taken to be printed.
        complain("standard input or output is closed: use /dev/null")
        return REFUSED
    command = typer.main.get_command(app)
    try:
        result = command.main(args=arguments, prog_name="tailrace", standalone_mode=False)
        # What was printed must be out before we say that all is well.
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit):
        # Whoever read our output has seen enough; typer makes an exit of that. Python would complain once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        return _explain(error)
    return result if isinstance(result, int) else 0


def _explain(error: Exception) -> int:
    """Say what is wrong in one line; an error that is not the user's or the system's goes on as it is."""
    if isinstance(error, UsageProblem):
        # Called without anything typer has shown the help already, and has nothing to add.
        if text := getattr(error, "format_message", lambda: str(error))():
            complain(text)
        return WRONG
    if isinstance(error, typer.Abort):
        return INTERRUPTED
    if isinstance(error, typer.Exit):
        return int(error.exit_code)
    if type(error).__module__.partition(".")[0] in ("pyspark", "py4j"):
        line, sparks_code = _sparks(error)
        complain(line)
        return sparks_code
    code = _code_of(error)
    if code is None:
        raise error
    complain(_said(error))
    return code


def _code_of(error: Exception) -> int | None:
    if isinstance(error, queue.Empty | queue.Full | errors.WaitTimeout | errors.EndOfFile):
        return EMPTY
    if isinstance(error, errors.AlreadyOpen | errors.QueueClosed):
        return REFUSED
    if isinstance(error, OSError):
        wrong = error.errno in (
            errno.ENOENT,
            errno.EEXIST,
            errno.ENOTDIR,
            errno.EISDIR,
            errno.ENAMETOOLONG,
            errno.ELOOP,
        )
        return WRONG if wrong else REFUSED
    if isinstance(error, errors.QueueError | ValueError | TypeError | LookupError | ImportError):
        return WRONG
    return REFUSED if isinstance(error, RuntimeError) else None


def _said(error: Exception) -> str:
    text = str(error) or type(error).__name__
    if isinstance(error, OSError) and error.filename is None and error.strerror:
        text = error.strerror
    return " ".join(text.split())


def _sparks(error: Exception) -> tuple[str, int]:
    """Give what matters of Spark's many lines, with a code: our own side's error if there is one, else the first."""
    # Behind this a failed stream describes itself.
    text = str(error).partition("=== Streaming Query ===")[0]
    code = WRONG if type(error).__name__ in SPARKS_WRONG else REFUSED
    behind = text.partition("Traceback (most recent call last)")[2]
    if raised := re.findall(r"^(?:\w+\.)*(\w+): (\S.*)$", behind, re.MULTILINE):
        name, chosen = raised[-1]
        kind = OURS.get(name)
        return " ".join(chosen.split()), (code if kind is None else _code_of(kind()) or code)
    javas = re.search(r"^: (?:[\w$]+\.)*[\w$]+: (\S.*)$", text, re.MULTILINE)
    first = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    return " ".join((javas[1] if javas else first).split()), code
