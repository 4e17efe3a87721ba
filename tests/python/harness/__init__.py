"""Real Python worker processes, real kills, one oracle: the twin of tests/common, with the same payloads and journals.

from harness import Args, Oracle, Promise, Watchdog, Workers, payload

def producer(args: Args) -> None:                      # at module level: it runs in a process of its own
    queue, journal = open_queue(args["queue"]), args.journal()
    args.ready()
    sequence = 0
    while not args.stop_requested():
        message = payload.make(args["id"], sequence, 100)
        with journal.put(0, message):                  # attempt; acknowledged, or failed when it raises
            queue.put(message)
        sequence += 1

def test_a_killed_producer_loses_nothing(tmp_path: Path) -> None:
    with Workers(tmp_path) as workers, Watchdog("killed producer", 30, workers):
        worker = workers.spawn(producer, queue=str(path), id=1)      # a fresh interpreter; or workers.fork(...)
        worker.wait_ready()
        time.sleep(0.05)
        worker.kill()
        Oracle(Promise.exactly_once()).journal(worker.records()).left(0, drain(path)).check().assert_ok("one producer")
"""

from . import payload
from .journal import Journal, Op, Record, State, read
from .oracle import Delivery, Losses, Oracle, Order, Promise, Report
from .resources import Allocations, held
from .watchdog import Hang, Watchdog
from .worker import Args, Worker, Workers

__all__ = [
    "Allocations",
    "Args",
    "Delivery",
    "Hang",
    "Journal",
    "Losses",
    "Op",
    "Oracle",
    "Order",
    "Promise",
    "Record",
    "Report",
    "State",
    "Watchdog",
    "Worker",
    "Workers",
    "held",
    "payload",
    "read",
]
