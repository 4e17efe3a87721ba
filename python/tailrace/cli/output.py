"""What the commands print: tables for people, JSON for programs, complaints on stderr."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["AsJson", "add_row", "complain", "console", "print_json", "print_pairs", "print_table", "shown"]

#: The option of everything that prints data.
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def console() -> Console:
    """Give a console on stdout; a file or pipe has no width that something would have to be cut to."""
    return Console() if sys.stdout.isatty() else Console(width=1000, no_color=True, highlight=False)


def complain(text: str) -> None:
    """Say what is wrong in one line on stderr."""
    print(f"tailrace: {text}", file=sys.stderr)


def print_json(value: Any) -> None:
    """Print one JSON document in one line, for whoever reads along."""
    print(json.dumps(value, default=_plain), flush=True)


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return list(value)


def print_table(columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Print rows under heads; numbers stand on the right."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    rows = list(rows)
    for name, head in columns.items():
        numeric = any(isinstance(row[name], int | float) for row in rows)
        table.add_column(head, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        add_row(table, (row[name] for name in columns))
    console().print(table)


def add_row(table: Table, values: Iterable[Any]) -> None:
    """Add a row of values as they are: what a message or a path has in brackets is no markup."""
    table.add_row(*(Text(shown(value)) for value in values))


def print_pairs(value: Mapping[str, Any], indent: int = 0) -> None:
    """Print names and values, one pair in a line, nested ones indented."""
    width = max((len(str(name)) for name in value), default=0)
    for name, item in value.items():
        lead = " " * indent
        if isinstance(item, Mapping):
            print(f"{lead}{name}")
            print_pairs(item, indent + 2)
        elif isinstance(item, Sequence) and not isinstance(item, str | bytes):
            print(f"{lead}{name}")
            for entry in item:
                print(f"{lead}  - {shown(entry)}")
        else:
            print(f"{lead}{name:{width}}  {shown(item)}")


def shown(value: Any) -> str:
    """Write a value for people.

    >>> shown(1234567), shown(None), shown(True), shown(0.5)
    ('1,234,567', '-', 'yes', '0.5')
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    return str(value)
