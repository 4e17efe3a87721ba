"""Found by Spark itself: makes ``format("tailrace")`` known in every session of an environment with this package."""

from tailrace.spark.source import TailraceSource as DefaultSource

__all__ = ["DefaultSource"]
