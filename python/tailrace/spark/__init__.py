"""Spark over the five queues: ``format("tailrace")`` for batches and streams, to read and to write.

>>> from tailrace.spark import session                                              # doctest: +SKIP
>>> spark = session("local[2]")                                                     # doctest: +SKIP
>>> events = spark.readStream.format("tailrace").option("url", "qewqew:/data/events").load()  # doctest: +SKIP
>>> query = (
...     events.writeStream.format("parquet").option("path", "/data/out").option("checkpointLocation", "/data/ckpt")
...     .trigger(availableNow=True).start()
... )                                                                               # doctest: +SKIP

Spark finds the format by itself (the package ``pyspark_tailrace`` lies beside this one); any session works whose
``PYSPARK_PYTHON`` is an interpreter that has tailrace. :func:`session` makes one.

What is promised for each queue stands in :mod:`tailrace.spark.queues`; the options in :mod:`tailrace.spark.options`.
"""

from typing import TYPE_CHECKING, Any

from tailrace.spark._worker import settle

if TYPE_CHECKING:
    from tailrace.spark._pipe import Progress, pipe
    from tailrace.spark._session import session

__all__ = ["Progress", "pipe", "session"]

settle()


def __getattr__(name: str) -> Any:
    # pyspark is large and optional: it is imported by whoever asks for it.
    if name not in __all__:
        raise AttributeError(f"module 'tailrace.spark' has no attribute {name!r}")
    try:
        from tailrace.spark import _pipe, _session
    except ModuleNotFoundError as error:
        if error.name not in ("pyspark", "py4j", "pyarrow", "pandas", "numpy"):
            raise
        raise ModuleNotFoundError(
            f"tailrace.spark needs {error.name}: pip install 'tailrace[spark]'", name=error.name
        ) from error
    return _session.session if name == "session" else getattr(_pipe, name)
