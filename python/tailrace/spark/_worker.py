"""What is done once in the life of each of Spark's Python workers."""

import gc
import sys
from typing import Any

__all__ = ["settle"]

#: The collections after the first tasks find all modules there; few, so that what dies later is not kept for ever.
FREEZES = 3


def settle() -> None:
    """Keep the garbage collector away from what a worker has imported.

    A worker collects garbage after every task, and looks at each object of pyspark, pyarrow and pandas again: 20 ms, as
    long as 100,000 rows take. What the first collections find alive is not looked at any more. Other processes than
    Spark's workers are left alone.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name == "pyspark.daemon":
        gc.callbacks.append(_freeze_survivors)


def _freeze_survivors(phase: str, info: dict[str, Any]) -> None:
    global _freezes
    if phase == "stop" and info["generation"] == 2 and _freezes < FREEZES:
        _freezes += 1
        gc.freeze()


_freezes = 0
