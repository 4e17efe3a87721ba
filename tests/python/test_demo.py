"""The demo on a few thousand flights: all five queues, real kills, and a comparison that can fail."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("typer")
pytest.importorskip("rich")

from tailrace.demo.compare import compare_tables
from tailrace.demo.data import Flights, finish, number_of

ROWS = 12_000


def demo(tmp_path, *arguments, check=0):
    report = tmp_path / "report.html"
    command = [sys.executable, "-m", "tailrace.cli", "demo", "--rows", str(ROWS), "--sink", "arrow", "--json"]
    command += ["--report", str(report), *arguments]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert answer.returncode == check, (answer.stdout, answer.stderr)
    return json.loads(answer.stdout), report.read_text(), answer.stderr


def test_two_kills_lose_and_double_nothing(tmp_path):
    summary, report, _ = demo(tmp_path, "--keep", str(tmp_path / "kept"))
    assert summary["equal"]
    assert [stage["count"] for stage in summary["stages"] if stage["stage"] in ("spooled", "stored")] == [ROWS, ROWS]
    assert sorted(kill["who"].split("-")[0] for kill in summary["kills"]) == ["producer", "worker"]
    # Both were killed in the middle of their work.
    assert all(0 < kill["handled"] < ROWS for kill in summary["kills"])
    assert "all 12,000 rows arrived, each exactly once and unchanged" in report
    assert all(f"kill -9 {kill['who']}" in report for kill in summary["kills"])
    assert list((tmp_path / "kept").glob("*.parquet"))


def test_a_message_that_is_dropped_on_purpose_is_an_error(tmp_path):
    summary, report, said = demo(tmp_path, "--drop", "4321", check=3)
    assert not summary["equal"]
    assert said.splitlines()[-1].endswith(f"of {ROWS:,} rows {ROWS - 1:,} arrived: 1 missing (row 4321)")
    assert 'class="verdict different"' in report


def test_the_comparison_finds_every_kind_of_difference():
    import pyarrow as pa

    data = Flights(limit=100).table()
    assert compare_tables(data, data).is_equal
    # The order in which rows arrive means nothing.
    assert compare_tables(data, data.sort_by([("row", "descending")])).is_equal
    lost = compare_tables(data, pa.concat_tables([data.slice(0, 50), data.slice(51)]))
    assert (lost.missing, lost.doubled, lost.changed) == ([50], [], {})
    doubled = compare_tables(data, pa.concat_tables([data, data.slice(7, 1)]))
    assert (doubled.missing, doubled.doubled) == ([], [7])
    # One is lost and another doubled: the count alone would not tell.
    swapped = compare_tables(data, pa.concat_tables([data.slice(1), data.slice(7, 1)]))
    assert (swapped.found, swapped.missing, swapped.doubled) == (100, [0], [7])
    delays = data["dep_delay"].to_pylist()
    delays[3] = None
    place = data.column_names.index("dep_delay")
    changed = compare_tables(data, data.set_column(place, "dep_delay", pa.array(delays, pa.int32())))
    assert changed.changed == {3: ["dep_delay"]}
    assert not changed.is_equal
    assert "1 changed (row 3 (dep_delay))" in str(changed)
    strange = compare_tables(data.slice(0, 99), data)
    assert strange.unexpected == [99]
    nothing = compare_tables(data, data.slice(0, 0))
    assert len(nothing.missing) == 100


def test_the_data_is_all_there():
    flights = Flights()
    messages = flights.messages()
    assert len(messages) == 336_776
    assert [number_of(message) for message in messages[:3]] == [0, 1, 2]
    airlines = flights.airlines()
    assert len(airlines) == 16
    assert finish(messages[0], airlines) == messages[0] + b",United Air Lines Inc.,-9"
    # A cancelled flight has no delays to make good.
    cancelled = next(message for message in messages if b",NA," in message)
    assert finish(cancelled, airlines).endswith(b",NA")


def test_without_the_data_one_line_names_the_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"tailrace\[demo\]"):
        _ = Flights().folder
