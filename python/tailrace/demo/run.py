"""The supervisor of the demo: starts the processes, kills two of them, takes samples, and compares the result."""

import itertools
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailrace import aq, conq, mcp, qewqew, ring
from tailrace.demo.compare import compare
from tailrace.demo.data import Flights
from tailrace.demo.display import Display
from tailrace.demo.processes import Processes
from tailrace.demo.record import Kill, Record, Sample
from tailrace.demo.stages import Places

__all__ = ["Plan", "run"]

PRODUCERS = WORKERS = 2
#: Seconds between two samples, and between two looks at who is to be killed.
SAMPLE, LOOK = 0.25, 0.002
#: The first producer and the first worker to have handled this part of an even share are killed.
KILL_AT = 0.3


@dataclass(frozen=True)
class Plan:
    """What to run."""

    #: Only so many flights; None is all of them.
    rows: int | None = None
    #: "spark" or "arrow".
    sink: str = "spark"
    #: Keep the Parquet files here.
    keep: Path | None = None
    quiet: bool = False
    #: A row that a producer is to lose, to see that the comparison finds it.
    drop: int | None = None


def run(plan: Plan) -> Record:
    """Run the demo and give its record, with the verdict."""
    _check_sink(plan.sink)
    flights = Flights(plan.rows)
    rows = len(flights.csv.splitlines()) - 1
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    directory = Path(tempfile.mkdtemp(prefix="tailrace-demo-", dir=memory))
    disk = Path(tempfile.mkdtemp(prefix="tailrace-demo-"))
    parquet = plan.keep or disk / "parquet"
    try:
        places = Places(directory, disk / "spool")
        record = Record(rows, _sink_name(plan.sink))
        with Processes(directory, disk / "spool") as processes, Display(rows, quiet=plan.quiet) as display:
            _Run(plan, rows, parquet, places, processes, record, display).go()
        record.verdict = compare(flights, parquet)
        return record
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        shutil.rmtree(disk, ignore_errors=True)


class _Run:
    def __init__(
        self,
        plan: Plan,
        rows: int,
        parquet: Path,
        places: Places,
        processes: Processes,
        record: Record,
        display: Display,
    ) -> None:
        self.plan, self.rows, self.parquet = plan, rows, parquet
        self.places, self.processes, self.record, self.display = places, processes, record, display
        cuts = [rows * index // PRODUCERS for index in range(PRODUCERS + 1)]
        self.shares = [[first, last] for first, last in itertools.pairwise(cuts)]
        self.counters = {
            name: places.progress(name)
            for name in ("collector", "spooler", "sink", *self._names("producer"), *self._names("worker"))
        }
        #: The roles of which one has still to be killed, and after how many messages.
        self.due = {"producer": int(KILL_AT * rows / PRODUCERS), "worker": int(KILL_AT * rows / WORKERS)}
        #: Where a process waits for the kill if the supervisor is slow: nobody escapes by being done.
        self.patience = {role: 2 * due for role, due in self.due.items()}
        self.begin = time.monotonic()

    @staticmethod
    def _names(role: str) -> list[str]:
        return [f"{role}-{index}" for index in range({"producer": PRODUCERS, "worker": WORKERS}[role])]

    def go(self) -> None:
        self.places.create()
        # Held until the end, so that sampling opens nothing; none of them has a role that the stages need.
        with (
            aq.Queue.open(self.places.aq) as flights,
            conq.QueueManager.open(self.places.conq).queue("flights") as jobs,
            ring.Queue.open(self.places.ring) as latest,
            qewqew.DurableQueue(self.places.qewqew, sync="never", role="producer") as spool,
        ):
            self.begin = time.monotonic()
            self._start_all()
            queues = {"aq": flights, "conq": jobs, "qewqew": spool, "ring": latest}
            next_sample = 0.0
            while True:
                runs = self.processes.check()
                self._kill_who_is_due()
                if self._seconds() >= next_sample or not runs:
                    self._sample(queues)
                    next_sample = self._seconds() + SAMPLE
                if not runs:
                    break
                time.sleep(LOOK)
        self.record.repeats = {name: self.counters[name]["repeats"] for name in ("collector", "spooler")}
        self.record.incomplete = self.counters["collector"]["incomplete"]

    def _start_all(self) -> None:
        self.processes.start("sink", "sink", sink=self.plan.sink, parquet=str(self.parquet))
        self.processes.start("spooler", "spool", rows=self.rows)
        self.processes.start("collector", "collect", shares=self.shares)
        for name in (*self._names("worker"), *self._names("producer")):
            self._start(name)

    def _start(self, name: str) -> None:
        role, index = name.split("-")
        if role == "worker":
            self.processes.start(name, "work", who=name, patience=self.patience[role])
        else:
            first, last = self.shares[int(index)]
            given = {"limit": self.plan.rows, "first": first, "last": last, "drop": self.plan.drop}
            self.processes.start(name, "produce", who=name, patience=self.patience[role], **given)

    def _kill_who_is_due(self) -> None:
        for role, due in list(self.due.items()):
            name = max(self._names(role), key=lambda name: self.counters[name]["handled"])
            if self.counters[name]["handled"] < due:
                continue
            pid = self.processes.kill(name)
            self.record.kills.append(Kill(self._seconds(), name, pid, self.counters[name]["handled"]))
            del self.due[role]
            for spared in self._names(role):
                self.counters[spared]["spared"] = 1
            self._start(name)

    def _sample(self, queues: dict[str, Any]) -> None:
        depths = {name: queue.qsize() for name, queue in queues.items()}
        results = [queue["messages"] for queue in mcp.queues(self.places.mcp)]
        depths["mcp"] = sum(results)
        counts = {
            "produced": sum(self.counters[name]["handled"] for name in self._names("producer")),
            "collected": self.counters["collector"]["handled"],
            "finished": sum(self.counters[name]["handled"] for name in self._names("worker")),
            "spooled": self.counters["spooler"]["handled"],
            "stored": self.counters["sink"]["handled"],
        }
        sample = Sample(self._seconds(), counts, depths)
        self.record.samples.append(sample)
        self.display.show(self.record, sample, queues["ring"].latest())

    def _seconds(self) -> float:
        return time.monotonic() - self.begin


def _check_sink(sink: str) -> None:
    if sink == "spark":
        # Says in a sentence what is missing, before anything is started.
        from tailrace._java import java_home
        from tailrace.spark import session  # noqa: F401

        java_home()


def _sink_name(sink: str) -> str:
    if sink == "arrow":
        return "Arrow"
    import pyspark

    return f"Spark {pyspark.__version__}"
