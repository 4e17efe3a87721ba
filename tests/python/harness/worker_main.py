"""The script that a fresh worker interpreter runs: loads the test file by its path and calls one function of it."""

import importlib.util
import json
import os
import sys
from pathlib import Path


def main() -> int:
    """Run the worker that the first argument describes."""
    source, name, base, parent, values = json.loads(sys.argv[1])
    # Tests are loaded by path, so the harness must be found by the worker as pytest finds it. This script's own
    # directory, which Python put first, holds modules called like those of other packages.
    sys.path[0] = str(Path(__file__).parent.parent)
    from harness.worker import run

    spec = importlib.util.spec_from_file_location("worker_module", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["worker_module"] = module
    spec.loader.exec_module(module)
    return run(getattr(module, name), values, Path(base), parent)


if __name__ == "__main__":
    os._exit(main())
