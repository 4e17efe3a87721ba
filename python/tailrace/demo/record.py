"""What the demo saw while it ran: samples of counts and depths, the moments of the kills, and what came of it."""

import itertools
from dataclasses import dataclass, field

from tailrace.demo.compare import Verdict

__all__ = ["QUEUES", "STAGES", "Kill", "Record", "Sample"]

#: The counts of a sample: how many flights have come past each stage.
STAGES = {
    "produced": "producers, into aq",
    "collected": "collector, into conq",
    "finished": "workers, into mcp",
    "spooled": "spooler, into qewqew",
    "stored": "Parquet",
}
#: The depths of a sample.
QUEUES = ("aq", "conq", "mcp", "qewqew", "ring")


@dataclass(frozen=True)
class Sample:
    """One look at everything."""

    #: Since the start, in seconds.
    seconds: float
    counts: dict[str, int]
    depths: dict[str, int]


@dataclass(frozen=True)
class Kill:
    """A process that was killed with -9."""

    seconds: float
    who: str
    pid: int
    #: Flights that it had handled.
    handled: int


@dataclass
class Record:
    """A whole run."""

    rows: int
    sink: str
    samples: list[Sample] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)
    #: Messages that came twice because a killed process could not say that it had finished them, by who noticed.
    repeats: dict[str, int] = field(default_factory=dict)
    #: Claims that a killed producer left behind without a commit.
    incomplete: int = 0
    verdict: Verdict | None = None

    @property
    def seconds(self) -> float:
        """How long the run took."""
        return self.samples[-1].seconds if self.samples else 0.0

    def rates(self, stage: str, smooth: float = 1.0) -> list[tuple[float, float]]:
        """Give (time, flights a second) for a stage, over windows of ``smooth`` seconds."""
        points = []
        window: list[tuple[float, int]] = []
        for sample in self.samples:
            window.append((sample.seconds, sample.counts[stage]))
            while len(window) > 2 and window[1][0] <= sample.seconds - smooth:
                window.pop(0)
            (t0, n0), (t1, n1) = window[0], window[-1]
            points.append((t1, (n1 - n0) / (t1 - t0) if t1 > t0 else 0.0))
        return points

    def busy(self, stage: str) -> tuple[float, float]:
        """Give the times at which a stage began and finished."""
        begin = end = 0.0
        for before, after in itertools.pairwise(self.samples):
            if before.counts[stage] == 0 < after.counts[stage]:
                begin = before.seconds
            if after.counts[stage] > before.counts[stage]:
                end = after.seconds
        return begin, end

    def rate(self, stage: str) -> float:
        """Give the mean rate of a stage while it was busy, in flights a second."""
        begin, end = self.busy(stage)
        count = self.samples[-1].counts[stage] if self.samples else 0
        return count / (end - begin) if end > begin else 0.0

    def table(self) -> list[dict[str, object]]:
        """Give the counts and rates as rows, for people and for JSON."""
        last = self.samples[-1].counts if self.samples else dict.fromkeys(STAGES, 0)
        return [
            {
                "stage": stage,
                "what": what,
                "count": last[stage],
                "seconds": round(self.busy(stage)[1] - self.busy(stage)[0], 2),
                "per_second": round(self.rate(stage)),
            }
            for stage, what in STAGES.items()
        ]

    def summary(self) -> dict[str, object]:
        """Give everything but the samples, for JSON."""
        verdict = self.verdict
        return {
            "rows": self.rows,
            "sink": self.sink,
            "seconds": round(self.seconds, 2),
            "stages": self.table(),
            "kills": [vars(kill) for kill in self.kills],
            "repeats": self.repeats,
            "incomplete": self.incomplete,
            "equal": verdict is not None and verdict.is_equal,
            "verdict": str(verdict) if verdict else "not compared",
        }
