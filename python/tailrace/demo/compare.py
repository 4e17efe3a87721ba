"""The verdict: what arrived against a direct read of the data, row for row."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tailrace.demo.data import NUMBER, Flights

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Verdict", "compare"]

#: Rows that a verdict names.
EXAMPLES = 5


@dataclass(frozen=True)
class Verdict:
    """How the result differs from the data."""

    expected: int
    found: int
    missing: list[int] = field(default_factory=list)
    doubled: list[int] = field(default_factory=list)
    unexpected: list[int] = field(default_factory=list)
    #: Row number and the columns that differ.
    changed: dict[int, list[str]] = field(default_factory=dict)

    @property
    def is_equal(self) -> bool:
        """Whether nothing is lost, doubled, made up or changed."""
        return not (self.missing or self.doubled or self.unexpected or self.changed)

    def __str__(self) -> str:
        if self.is_equal:
            return f"all {self.expected:,} rows arrived, each exactly once and unchanged"
        parts = [
            _some("missing", self.missing),
            _some("doubled", self.doubled),
            _some("unexpected", self.unexpected),
            _some("changed", [f"{row} ({', '.join(columns)})" for row, columns in self.changed.items()]),
        ]
        return f"of {self.expected:,} rows {self.found:,} arrived: " + "; ".join(part for part in parts if part)


def _some(what: str, rows: "list[int] | list[str]") -> str:
    if not rows:
        return ""
    more = ", ..." if len(rows) > EXAMPLES else ""
    return f"{len(rows):,} {what} (row {', '.join(map(str, rows[:EXAMPLES]))}{more})"


def compare(flights: Flights, parquet: Path) -> Verdict:
    """Compare the Parquet files in a directory with the data itself."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    expected = flights.table()
    files = sorted(parquet.glob("*.parquet"))
    tables = [pq.read_table(file) for file in files]
    found = pa.concat_tables(tables).cast(expected.schema) if tables else expected.schema.empty_table()
    return compare_tables(expected, found)


def compare_tables(expected: "pa.Table", found: "pa.Table") -> Verdict:
    """Compare two tables by their row numbers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    wanted = set(expected[NUMBER].to_pylist())
    counts = {row["values"]: row["counts"] for row in pc.value_counts(found[NUMBER]).to_pylist()}
    missing = sorted(wanted - counts.keys())
    unexpected = sorted(counts.keys() - wanted, key=str)
    doubled = sorted(row for row, count in counts.items() if count > 1 and row in wanted)
    # One row of each number that both have, in the same order.
    first = found.group_by(NUMBER, use_threads=False).aggregate(
        [(name, "first") for name in found.column_names if name != NUMBER]
    )
    first = first.rename_columns([name.removesuffix("_first") for name in first.column_names]).select(
        expected.column_names
    )
    both = pa.array(sorted(wanted & counts.keys()), expected[NUMBER].type)
    left = expected.filter(pc.is_in(expected[NUMBER], both)).sort_by(NUMBER)
    right = first.filter(pc.is_in(first[NUMBER], both)).sort_by(NUMBER)
    return Verdict(expected.num_rows, found.num_rows, missing, doubled, unexpected, _changes(left, right))


def _changes(left: "pa.Table", right: "pa.Table") -> dict[int, list[str]]:
    import pyarrow.compute as pc

    changed: dict[int, list[str]] = {}
    rows = left[NUMBER].to_pylist()
    for name in left.column_names:
        a, b = left[name], right[name]
        same = pc.or_(pc.fill_null(pc.equal(a, b), False), pc.and_(pc.is_null(a), pc.is_null(b)))
        if pc.all(same).as_py() is not False:
            continue
        for row, equal in zip(rows, same.to_pylist(), strict=True):
            if not equal:
                changed.setdefault(row, []).append(name)
    return dict(sorted(changed.items()))
