"""The numbers of queues in Prometheus' text format, over HTTP on the loopback address only."""

import re
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tailrace import _metrics

__all__ = ["serve", "text_of"]

HOST = "127.0.0.1"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: The numbers that every kind has.
COMMON = {
    "depth": "Messages that wait in the queue.",
    "bytes": "Bytes that the files of the queue take.",
    "users_alive": "Participants that live.",
    "users_dead": "Participants that died without a goodbye.",
}


def text_of(urls: Iterable[str]) -> str:
    r"""Write the numbers of some queues; one that cannot be read is ``tailrace_up 0``.

    >>> text_of([])
    '# HELP tailrace_up Whether the queue could be read.\n# TYPE tailrace_up gauge\n'
    """
    samples: dict[str, list[tuple[str, float]]] = {"up": []}
    helps = {"up": "Whether the queue could be read.", **COMMON}
    for url in urls:
        labels = f'{{url="{_escaped(url)}",kind="{url.partition(":")[0]}"}}'
        try:
            numbers = _metrics.metrics(url)
        except Exception:
            samples["up"].append((labels, 0))
            continue
        samples["up"].append((labels, 1))
        for name in COMMON:
            samples.setdefault(name, []).append((labels, numbers[name]))
        for name, value in numbers["counters"].items():
            metric = f"{numbers['kind']}_{re.sub(r'[^a-zA-Z0-9_]', '_', name)}"
            samples.setdefault(metric, []).append((labels, value))
    lines = []
    for name, values in samples.items():
        lines.append(f"# HELP tailrace_{name} {helps.get(name, 'As info() of the queue says.')}")
        lines.append(f"# TYPE tailrace_{name} {'gauge' if name in helps else 'untyped'}")
        lines += [f"tailrace_{name}{labels} {value}" for labels, value in values]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def serve(port: int, urls: Callable[[], Iterable[str]]) -> ThreadingHTTPServer:
    """Make a server for ``/metrics``; port 0 takes a free one. The caller runs it."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.partition("?")[0] not in ("/", "/metrics"):
                self.send_error(404)
                return
            body = text_of(urls()).encode()
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Say nothing: a line every few seconds helps nobody."""

    return ThreadingHTTPServer((HOST, port), Handler)
