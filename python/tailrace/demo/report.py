"""The report of a run: one HTML file with the verdict, the counts, and plots of rates and depths with the kills."""

from tailrace import __version__, _plot
from tailrace._html import escape, page
from tailrace._plot import Line, Mark, line_plot
from tailrace.demo.record import QUEUES, STAGES, Record

__all__ = ["report"]

_STYLE = """
.verdict { padding: .6rem 1rem; border-radius: .4rem; font-weight: 600; margin: 1rem 0; color: #ffffff; }
.equal { background: #1d7a4f; } .different { background: #b3202f; }
"""


def report(record: Record) -> str:
    """Write the report of a run."""
    verdict = record.verdict
    outcome = "equal" if verdict is not None and verdict.is_equal else "different"
    marks = [Mark(kill.seconds, f"kill -9 {kill.who}") for kill in record.kills]
    rates = [Line(stage, record.rates(stage)) for stage in STAGES]
    depths = [Line(queue, [(sample.seconds, sample.depths[queue]) for sample in record.samples]) for queue in QUEUES]
    body = [
        "<h1>tailrace: a year of flights through five queues</h1>",
        f'<p class="soft">{record.rows:,} messages in {record.seconds:.1f} s, drained into Parquet by '
        f"{escape(record.sink)}; tailrace {escape(__version__)}</p>",
        f'<p id="verdict" class="verdict {outcome}">{escape(str(verdict) if verdict else "not compared")}</p>',
        "<h2>Counts and rates</h2>",
        _table(
            ["stage", "where to", "flights", "busy for", "a second"],
            [
                [row["stage"], row["what"], f"{row['count']:,}", f"{row['seconds']} s", f"{row['per_second']:,}"]
                for row in record.table()
            ],
            numbers_from=2,
        ),
        "<h2>Flights a second</h2>",
        line_plot("Flights a second, by stage", rates, marks),
        "<h2>Messages in each queue</h2>",
        line_plot("Messages in each queue", depths, marks),
        "<h2>Kills and what they left</h2>",
        _table(
            ["after", "killed with -9", "process", "flights it had handled"],
            [[f"{kill.seconds:.1f} s", kill.who, str(kill.pid), f"{kill.handled:,}"] for kill in record.kills],
            numbers_from=2,
        ),
        f"<p>{escape(aftermath(record))}</p>",
    ]
    return page("tailrace demo", "\n".join(body), _plot.STYLE + _STYLE)


def aftermath(record: Record) -> str:
    """Say in a sentence what the kills left behind."""
    repeats = ", ".join(f"{count:,} by the {who}" for who, count in record.repeats.items())
    return (
        f"Claims left uncommitted and skipped: {record.incomplete:,}. "
        f"Messages that came again after a kill and were recognised: {repeats or 'none'}."
    )


def _table(heads: list[str], rows: list[list[object]], numbers_from: int) -> str:
    def cells(tag: str, values: list[object]) -> str:
        classes = [' class="number"' if index >= numbers_from else "" for index in range(len(values))]
        return "".join(f"<{tag}{c}>{escape(str(v))}</{tag}>" for c, v in zip(classes, values, strict=True))

    lines = [f"<tr>{cells('th', list(heads))}</tr>", *(f"<tr>{cells('td', row)}</tr>" for row in rows)]
    return f"<table>{''.join(lines)}</table>"
