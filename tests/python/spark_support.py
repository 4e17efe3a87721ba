"""What the Spark tests share: a driver in a process of its own, and finding the processes to kill."""

import contextlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyspark

from tailrace.spark.columns import Columns, offered
from tailrace.spark.options import Options
from tailrace.spark.queues import feed_for


def feed(url: str, **options: Any) -> Any:
    # As Spark does: nothing may be open when it travels.
    return pickle.loads(pickle.dumps(feed_for(Options.parse({"url": url} | {k: str(v) for k, v in options.items()}))))


def rows(reader: Any, parts: list[Any]) -> list[bytes]:
    columns = Columns(reader.options.scheme, offered(reader.options.scheme))
    batches = [batch for part in parts for batch in reader.read(pickle.loads(pickle.dumps(part)), columns)]
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def messages(first: int, count: int) -> list[bytes]:
    return [b"%08d" % number for number in range(first, first + count)]


def through_json(offset: dict[str, Any]) -> Any:
    return json.loads(json.dumps(offset))


#: Settings that start quickly; with more than some seconds of work the compilers that are left out here pay off.
QUICK_START = {"spark__driver__extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}

#: Run by a fresh interpreter: moves one qewqew URL to another in small micro-batches until nothing is left.
DRIVER = """
import sys
from tailrace.spark.reading import ADMITS
from tailrace.spark import pipe, session
source, target, checkpoint, master, rows, once = sys.argv[1:7]
spark = session(
    master,
    spark__local__dir=checkpoint + ".local",
    spark__driver__memory="600m",
    spark__executor__memory="512m",
    spark__driver__bindAddress="127.0.0.1",
    spark__driver__host="127.0.0.1",
    spark__ui__enabled=False,
    spark__driver__extraJavaOptions="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
)
spark.sparkContext.setLogLevel("ERROR")
report = lambda p: print("batch", p.batch, p.rows, flush=True)
options = {"maxRowsPerTrigger": rows} if ADMITS else {}
how = {"checkpoint": checkpoint, "once": once == "True", "options": options, "progress": report, "spark": spark}
print("moved", pipe(source, target, **how))
"""


@contextlib.contextmanager
def running_python(code: str, arguments: list[str], log: Path) -> Iterator[subprocess.Popen[str]]:
    """Run code in a fresh interpreter; however the test ends, it and its Spark are gone afterwards."""
    command = [sys.executable, "-c", code, *arguments]
    with (
        log.open("a") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True) as running,
    ):
        try:
            yield running
        finally:
            # One that has ended has taken its Spark with it, and its number may be somebody else's by now.
            for pid in [pid for pid, _, _ in descendants(running.pid)] if running.poll() is None else []:
                with contextlib.suppress(ProcessLookupError):
                    kill(pid)
            running.kill()


def driver(
    source: str, target: str, checkpoint: Path, master: str = "local[2,4]", rows: int = 10_000, once: bool = True
) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
    arguments = [source, target, str(checkpoint), master, str(rows), str(once)]
    return running_python(DRIVER, arguments, Path(f"{checkpoint}.log"))


#: The same for several queues at once, each into Parquet files of its own.
SEVERAL = """
import sys
from tailrace.spark.reading import ADMITS
from tailrace.spark import session
place, rows, once, *urls = sys.argv[1:]
spark = session(
    "local[2,4]",
    spark__local__dir=place + "/several.local",
    spark__driver__memory="600m",
    spark__driver__extraJavaOptions="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
)
spark.sparkContext.setLogLevel("ERROR")
queries = []
for number, url in enumerate(urls):
    options = {"maxRowsPerTrigger": rows} if ADMITS else {}
    if url.startswith("conq:"):
        options["leaseSeconds"] = "5"
    frame = spark.readStream.format("tailrace").options(**options).load(url)
    writer = frame.select("value").writeStream.format("parquet").option("path", f"{place}/out{number}")
    writer = writer.option("checkpointLocation", f"{place}/checkpoint{number}")
    queries.append(writer.trigger(availableNow=True).start() if once == "True" else writer.start())
    # Spark notes the environment of the workers in a map that all queries share, without a lock: when several begin at
    # the same moment, all of this session can fail ("Illegal size 5 of collection").
    while queries[-1].isActive and queries[-1].lastProgress is None:
        queries[-1].awaitTermination(0.05)
seen = -1
while any(query.isActive for query in queries):
    least = min(query.lastProgress["batchId"] if query.lastProgress else -1 for query in queries)
    if least > seen:
        seen = least
        print("batch", seen, flush=True)
    queries[0].awaitTermination(0.2)
    for query in queries:
        if query.exception() is not None:
            raise query.exception()
"""


def several(
    urls: list[str], place: Path, rows: int, once: bool
) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
    return running_python(SEVERAL, [str(place), str(rows), str(once), *urls], place / "several.log")


def processes() -> Iterator[tuple[int, int, str]]:
    """Every process that is not dead: its id, its parent's, and its command line."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
        except (OSError, ValueError):
            continue
        if state != "Z":
            yield int(entry.name), int(parent), command


def descendants(root: int) -> list[tuple[int, int, str]]:
    family, found = {root}, []
    everybody = sorted(processes())
    grew = True
    while grew:
        grew = False
        for one in everybody:
            if one[1] in family and one[0] not in family:
                family.add(one[0])
                found.append(one)
                grew = True
    return found


def workers_of(root: int) -> list[int]:
    """Python workers that run tasks: forked by the daemon, so with its command line."""
    family = descendants(root)
    daemons = {pid for pid, _, command in family if "pyspark.daemon pyspark.worker" in command}
    return [pid for pid, parent, _ in family if parent in daemons]


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def eventually(check: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, "it did not come to pass in time"
        time.sleep(0.02)


class Cluster:
    """A standalone master and two workers on loopback, each a process of its own."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.processes: list[subprocess.Popen[bytes]] = []
        self.url = ""

    def __enter__(self) -> "Cluster":
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"spark://127.0.0.1:{port}"
        self._start("Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
        for number in range(2):
            place = self.place / f"worker{number}"
            place.mkdir()
            worker = [
                "--host",
                "127.0.0.1",
                "--webui-port",
                "0",
                "--cores",
                "1",
                "--memory",
                "600m",
                "--work-dir",
                str(place),
            ]
            self._start("Worker", *worker, self.url)
        eventually(lambda: self._log().count("Registering worker") == 2, 90)
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self.processes):
            for pid, _, _ in descendants(process.pid):
                with contextlib.suppress(ProcessLookupError):
                    kill(pid)
            process.kill()
            process.wait()

    def executors(self) -> list[int]:
        """The JVMs that run tasks."""
        return [
            pid
            for process in self.processes
            for pid, _, command in descendants(process.pid)
            if "CoarseGrainedExecutorBackend" in command
        ]

    def _start(self, role: str, *arguments: str) -> None:
        launcher = Path(pyspark.__file__).parent / "bin" / "spark-class"
        name = f"org.apache.spark.deploy.{role.lower()}.{role}"
        environment = os.environ | {"SPARK_DAEMON_MEMORY": "256m", "SPARK_LOCAL_IP": "127.0.0.1"}
        with (self.place / "cluster.log").open("ab") as log:
            started = subprocess.Popen([launcher, name, *arguments], stdout=log, stderr=log, env=environment)
        self.processes.append(started)

    def _log(self) -> str:
        return (self.place / "cluster.log").read_text()
