"""create and rm."""

from typing import Annotated

import typer

from tailrace._kinds import KINDS, find
from tailrace.cli.output import AsJson, print_json

__all__ = ["COMMANDS"]

Url = Annotated[
    str, typer.Argument(metavar="URL", help="aq:PATH, conq:DIR#NAME, mcp:DIR#NAME, qewqew:PATH or ring:PATH")
]

_OPTIONS = "; ".join(
    f"{kind.scheme}: {', '.join(f'{option.name}={option.default}' for option in kind.options)}"
    for kind in KINDS.values()
)


def create(
    url: Url,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", "-o", metavar="NAME=VALUE", help=f"A parameter; with their defaults: {_OPTIONS}"),
    ] = None,
    json: AsJson = False,
) -> None:
    """Create a queue that does not exist yet, with sensible parameters."""
    kind, rest = find(url)
    pairs = [name_and_value(text) for text in option or []]
    values = kind.parse({name.replace("-", "_"): value for name, value in pairs})
    kind.create(rest, values)
    if json:
        print_json({"url": url, "kind": kind.scheme, **values})


def name_and_value(text: str) -> tuple[str, str]:
    """Split what ``--option`` gets.

    >>> name_and_value("size=1M")
    ('size', '1M')
    """
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"option {text!r} has no value: expected NAME=VALUE")
    return name, value


def rm(
    url: Url,
    force: Annotated[
        bool, typer.Option("--force", "-f", help="Even if somebody uses it or messages are in it.")
    ] = False,
) -> None:
    """Remove a queue and its files."""
    kind, rest = find(url)
    if not force:
        from tailrace._metrics import metrics

        numbers = metrics(url)
        if numbers["depth"]:
            raise ValueError(f"{url!r} has {numbers['depth']} messages: drain it, or remove it with --force")
        if numbers["users_alive"]:
            raise ValueError(f"{url!r} is in use by {numbers['users_alive']}: remove it with --force")
    kind.remove(rest)


COMMANDS = (create, rm)
