"""Stubs of the native module, kept by hand; stubtest compares them with what was built."""

from typing import final

import pyarrow
from typing_extensions import CapsuleType

from tailrace._core import aq as aq
from tailrace._core import conq as conq
from tailrace._core import mcp as mcp
from tailrace._core import qewqew as qewqew
from tailrace._core import ring as ring

__all__ = ["MessageBatch", "__version__", "aq", "conq", "mcp", "qewqew", "ring"]

__version__: str

@final
class MessageBatch:
    def __len__(self) -> int: ...
    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[CapsuleType, CapsuleType]: ...
    def to_pyarrow(self) -> pyarrow.BinaryArray: ...
