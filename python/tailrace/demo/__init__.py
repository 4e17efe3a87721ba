r"""The demonstration: a year of flights through all five queues, with kills on the way, into Parquet by Spark.

``make demo`` or ``tailrace demo`` runs it, :func:`tailrace.demo.run.run` is the same from Python. What happens::

    producers ==> aq ==> collector ==> conq ==> workers ==> mcp ==> spooler ==> qewqew ==> Spark ==> Parquet
    (one is killed)                     (one is killed)  \=> ring: the live view

Every flight is one message in each queue. A producer and a worker die by ``kill -9`` and are replaced. At the end what
is in Parquet is compared, row for row, with a direct read of the data: nothing lost, nothing doubled, nothing changed.
"""
