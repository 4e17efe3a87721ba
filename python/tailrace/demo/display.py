"""The live display of the demo: a bar for each stage, what waits in each queue, and the latest flight in the ring."""

from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from tailrace.demo.record import STAGES, Record, Sample

__all__ = ["Display"]


class Display:
    """Shows a run while it goes on; silent when told so."""

    def __init__(self, rows: int, *, quiet: bool) -> None:
        self._quiet = quiet
        columns = (
            TextColumn("{task.description:24}"),
            BarColumn(40),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
        )
        self._bars = Progress(*columns, auto_refresh=False)
        self._tasks = {stage: self._bars.add_task(what, total=rows, rate="") for stage, what in STAGES.items()}
        self._live = Live(self._bars, console=Console(stderr=True), auto_refresh=False)

    def __enter__(self) -> "Display":
        if not self._quiet:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._quiet:
            self._live.stop()
            if not self._live.console.is_terminal:
                # Into a file the last picture is written without an end of line.
                self._live.console.print()

    def show(self, record: Record, sample: Sample, latest: bytes | None) -> None:
        """Show a new sample."""
        if self._quiet:
            return
        for stage, task in self._tasks.items():
            rate = record.rates(stage)[-1][1]
            self._bars.update(task, completed=sample.counts[stage], rate=f"{rate:>9,.0f}/s")
        depths = "   ".join(f"{queue} {depth:,}" for queue, depth in sample.depths.items())
        kills = "".join(
            f"\nkill -9 {kill.who} (process {kill.pid}) after {kill.seconds:.1f} s" for kill in record.kills
        )
        seen = (latest or b"").rstrip(b"\0").decode(errors="replace")
        text = Text.assemble(("in the queues: ", "bold"), depths, ("\nlatest flight: ", "bold"), seen, (kills, "red"))
        self._live.update(Group(self._bars, text), refresh=True)
