"""bench, pipe, demo and exporter: what runs for a while."""

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from tailrace._kinds import find, queues_in
from tailrace.cli.making import name_and_value
from tailrace.cli.output import AsJson, complain, print_json, print_table

__all__ = ["COMMANDS"]


def bench(
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Messages.")] = 100_000,
    size: Annotated[int, typer.Option("--size", "-s", min=1, max=65_000, help="Bytes of each.")] = 100,
    only: Annotated[str | None, typer.Option("--only", help="Only what has this in its name.")] = None,
    json: AsJson = False,
) -> None:
    """Measure this machine: messages from one process to another, our queues and whatever peers are installed."""
    from tailrace.cli import bench as measuring

    names = [name for name in measuring.subjects() if only is None or only in name]
    if not names:
        raise ValueError(f"nothing that can be measured has {only!r} in its name: {', '.join(measuring.subjects())}")
    rows = []
    for name in names:
        try:
            rows.append(measuring.measure(name, count, size))
        except Exception as error:
            complain(f"{name} was not measured: {error}")
    if json:
        print_json(rows)
        return
    columns = {"queue": "queue", "seconds": "seconds", "per_second": "messages/s", "mib_per_second": "MiB/s"}
    print_table(columns, sorted(rows, key=lambda row: -row["per_second"]))


def pipe(
    source: Annotated[str, typer.Option("--from", metavar="URL", help="A queue.")],
    target: Annotated[
        str, typer.Option("--to", metavar="URL", help="A queue, or parquet:DIR, json:DIR, orc:DIR, csv:DIR, text:DIR.")
    ],
    checkpoint: Annotated[Path, typer.Option("--checkpoint", help="The directory from which a next run goes on.")],
    sql: Annotated[str | None, typer.Option("--sql", help="A query over the table messages.")] = None,
    schema: Annotated[str | None, typer.Option("--schema", help="Columns of JSON messages, as DDL.")] = None,
    once: Annotated[bool, typer.Option("--once", help="End when what is there now is moved.")] = False,
    interval: Annotated[float, typer.Option("--interval", min=0, help="Seconds between two micro-batches.")] = 0.0,
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", metavar="NAME=VALUE", help="An option of the source.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Move messages from a queue into files or another queue by Spark structured streaming, through SQL if you like."""
    find(source)
    given = dict(name_and_value(text) for text in option or [])
    from tailrace import spark
    from tailrace.spark._pipe import split_target

    # Before a Java is started for it.
    split_target(target)

    def show(progress: Any) -> None:
        if json:
            print_json(vars(progress))
        else:
            print(f"micro-batch {progress.batch}: {progress.rows:,} rows in {progress.seconds:.1f} s", flush=True)

    # What fails is said in one line in the end.
    logging.disable()
    session = spark.session(spark__log__level="OFF")
    try:
        moved = spark.pipe(
            source,
            target,
            checkpoint=checkpoint,
            sql=sql,
            schema=schema,
            once=once,
            interval=interval,
            options=given,
            progress=show,
            spark=session,
        )
    finally:
        # Otherwise its listeners complain that this process is gone.
        session.stop()
    if json:
        print_json({"rows": moved})
    else:
        print(f"{moved:,} rows moved")


def demo(
    rows: Annotated[int | None, typer.Option("--rows", min=100, help="Only the first so many flights.")] = None,
    report: Annotated[Path, typer.Option("--report", help="Where the HTML report goes.")] = Path("report.html"),
    sink: Annotated[
        str, typer.Option("--sink", help="What drains into Parquet: spark, or arrow without Spark.")
    ] = "spark",
    keep: Annotated[Path | None, typer.Option("--keep", help="Keep the Parquet files in this new directory.")] = None,
    drop: Annotated[
        int | None, typer.Option("--drop", min=0, help="Lose this row on purpose: the end is an error.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Send a year of flights through all five queues, with kills on the way, and compare what arrives row for row."""
    from tailrace.demo.run import Plan, run

    if sink not in ("spark", "arrow"):
        raise ValueError(f"--sink must be spark or arrow, not {sink!r}")
    if keep is not None and keep.exists():
        raise ValueError(f"--keep must name a new directory, {str(keep)!r} exists")
    record = run(Plan(rows=rows, sink=sink, keep=keep, quiet=json, drop=drop))
    from tailrace.demo.report import aftermath
    from tailrace.demo.report import report as written

    report.write_text(written(record))
    if json:
        print_json({**record.summary(), "report": str(report)})
    else:
        columns = {
            "stage": "stage",
            "what": "where to",
            "count": "flights",
            "seconds": "seconds",
            "per_second": "a second",
        }
        print_table(columns, record.table())
        print(aftermath(record))
        print(f"{record.verdict} ({record.seconds:.1f} s, report: {report})")
    if record.verdict is None or not record.verdict.is_equal:
        complain(f"the result differs from the data: {record.verdict}")
        raise typer.Exit(3)


def exporter(
    urls: Annotated[list[str] | None, typer.Argument(metavar="[URL]...", help="The queues.")] = None,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="All queues in this directory, as they come and go.")
    ] = None,
    port: Annotated[int, typer.Option("--port", "-p", min=0, max=65535, help="0 takes a free one.")] = 9464,
) -> None:
    """Serve metrics in Prometheus' text format on 127.0.0.1, until Ctrl-C."""
    from tailrace.cli.exporter import serve

    fixed = list(urls or [])
    for url in fixed:
        find(url)
    if not fixed and directory is None:
        raise ValueError("name queues, or a directory with --dir")
    if directory is not None and not directory.is_dir():
        raise ValueError(f"--dir {str(directory)!r} is no directory")

    def queues() -> Iterable[str]:
        return [*fixed, *(queues_in(directory, 2) if directory else ())]

    with serve(port, queues) as server:
        print(f"http://127.0.0.1:{server.server_port}/metrics", flush=True)
        server.serve_forever(poll_interval=0.1)


COMMANDS = (bench, pipe, demo, exporter)
