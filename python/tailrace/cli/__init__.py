"""The command ``tailrace``: make, fill, empty, watch and check queues from a shell.

Exit codes, for scripts:

| code | meaning |
|---|---|
| 0 | done |
| 1 | nothing to take, or no room, within the time given |
| 2 | wrong input, no such queue, or the wrong kind of queue |
| 3 | a check failed: ``verify`` found damage, ``demo`` a difference |
| 4 | the queue or the system refused: a role is taken, no permission, no space |
| 130 | interrupted |
"""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line; the entry point of the command ``tailrace``."""
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ModuleNotFoundError as error:
        sys.exit(f"tailrace: the command line needs {error.name}: pip install 'tailrace[cli]'")
    from tailrace.cli.app import run

    sys.exit(run(sys.argv[1:]))
