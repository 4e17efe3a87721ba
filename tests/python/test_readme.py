"""Every snippet of the README runs as it stands, but for the places where it puts its files."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"^```(python|sh)\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)


def identifier(block: tuple[str, str]) -> str:
    language, code = block
    return f"{language}-{code.split()[-1][:20]}"


@pytest.mark.parametrize("block", BLOCKS, ids=identifier)
@pytest.mark.timeout(240)
def test_snippet(block: tuple[str, str], tmp_path: Path) -> None:
    language, code = block
    code = re.sub(r"/dev/shm/|/data/", f"{tmp_path}/", code)
    binaries = Path(sys.executable).parent
    environment = os.environ | {"PATH": f"{binaries}:{os.environ['PATH']}"}
    interpreter = {"python": [sys.executable, "-W", "error"], "sh": ["bash", "-euo", "pipefail"]}[language]
    done = subprocess.run(
        [*interpreter, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=230,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_there_are_snippets() -> None:
    assert len(BLOCKS) >= 3
