"""The demo's processes: started, watched, killed with -9 and replaced, and never left behind."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["Processes"]


class Processes:
    """The processes of a run, by name. Use it in a ``with``: what still runs at its end is killed."""

    def __init__(self, directory: Path, spool: Path) -> None:
        self._common = {"directory": str(directory), "spool": str(spool)}
        self._logs = directory
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running.values():
            process.kill()
        for process in self._running.values():
            process.wait()

    def start(self, name: str, stage: str, **given: Any) -> None:
        """Start a stage under a name; a new process under an old name takes the old one's place."""
        command = [sys.executable, "-m", "tailrace.demo.stages", stage, json.dumps({**self._common, **given})]
        with self._log(name).open("ab") as log:
            self._running[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self, name: str) -> int:
        """Kill a process with -9 and give its number."""
        process = self._running.pop(name)
        process.kill()
        process.wait()
        return process.pid

    def check(self) -> bool:
        """Tell whether any process still runs; one that failed is an error."""
        codes = {name: process.poll() for name, process in self._running.items()}
        for name, code in codes.items():
            if code:
                raise RuntimeError(f"the {name} of the demo ended with {code}: {self._last_words(name)}")
        return any(code is None for code in codes.values())

    def _last_words(self, name: str) -> str:
        """Find the error in what a process has written: of Spark's many lines, the last that names one."""
        text = self._log(name).read_text(errors="replace").strip()
        named = re.findall(r"^(?:\w+\.)*[A-Z]\w+: \S.*$", text.partition("=== Streaming Query ===")[0], re.MULTILINE)
        return named[-1] if named else " / ".join(text.splitlines()[-3:]) or "no message"

    def _log(self, name: str) -> Path:
        return self._logs / f"{name}.log"
