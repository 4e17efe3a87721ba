"""verify and repair."""

from typing import Any

import typer

from tailrace._kinds import find
from tailrace.cli.making import Url
from tailrace.cli.output import AsJson, print_json, print_pairs

__all__ = ["COMMANDS"]


def verify(url: Url, json: AsJson = False) -> None:
    """Check every chunk and message of a qewqew queue; exit code 3 when something is damaged."""
    with _durable(url) as queue:
        report = queue.verify()
    _show(url, report, json)
    if report["problems"]:
        raise typer.Exit(3)


def repair(url: Url, json: AsJson = False) -> None:
    """Step over what is damaged in a qewqew queue; it is put aside, never silently dropped."""
    with _durable(url) as queue:
        report = queue.repair()
    _show(url, report, json)


def _durable(url: str) -> Any:
    kind, rest = find(url)
    if kind.scheme != "qewqew":
        raise ValueError(f"{url!r} cannot be verified: only qewqew queues are made to outlive a crash of the machine")
    from tailrace import qewqew

    return qewqew.DurableQueue(rest, role="both", create=bool(kind.files(rest)))


def _show(url: str, report: dict[str, Any], json: bool) -> None:
    if json:
        print_json({"url": url, **report})
        return
    problems = [f"chunk {p['chunk']}, offset {p['offset']}: {p['what']}" for p in report["problems"]]
    print_pairs({**report, "problems": problems or "none", "put_aside": list(report["put_aside"]) or "nothing"})


COMMANDS = (verify, repair)
