"""The command line, as a shell uses it: real processes, bytes in, bytes out, exit codes."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

from tailrace.cli.app import _sparks

COMMAND = [sys.executable, "-m", "tailrace.cli"]
URLS = ["aq:{}/queue", "conq:{}/jobs#mail", "mcp:{}/system#MY.Q", "qewqew:{}/queue", "ring:{}/queue"]
#: Everything that a line can hold.
BINARY = [bytes(range(256)).replace(b"\n", b""), b"", "é".encode(), b"\xff\xfe"]


def tailrace(*arguments, stdin=b"", check=0):
    answer = subprocess.run([*COMMAND, *map(str, arguments)], input=stdin, capture_output=True, timeout=60, check=False)
    assert answer.returncode == check, (answer.returncode, answer.stdout, answer.stderr)
    return answer


def complaint(*arguments, code=2, stdin=b""):
    """What a command says when it refuses: one line on stderr, nothing on stdout."""
    answer = tailrace(*arguments, stdin=stdin, check=code)
    lines = answer.stderr.decode().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("tailrace: ")
    assert answer.stdout == b""
    return lines[0]


@pytest.fixture(params=URLS, ids=lambda url: url.partition(":")[0])
def url(request, tmp_path):
    url = request.param.format(tmp_path)
    options = ["-o", "msg_size=40"] if url.startswith("ring") else []
    tailrace("create", url, *options)
    return url


def test_lines_go_in_and_come_out_in_order(url):
    tailrace("put", url, stdin=b"one\ntwo\nthree")
    assert tailrace("get", url).stdout == b"one\n"
    assert tailrace("drain", url).stdout == b"two\nthree\n"
    assert tailrace("drain", url).stdout == b""
    tailrace("get", url, check=1)


def test_no_byte_is_touched(url, tmp_path):
    # The items of an aq have at least one byte; in a ring an empty message is a slot full of null bytes.
    messages = [data for data in BINARY if data] if url.startswith("aq") else BINARY
    lines = b"".join(data + b"\n" for data in messages)
    tailrace("put", url, stdin=lines)
    assert tailrace("drain", url).stdout == lines
    file = tmp_path / "input"
    file.write_bytes(b"with\nnewline\0second")
    tailrace("put", url, file, "--each", "nul")
    assert tailrace("drain", url, "--each", "nul").stdout == b"with\nnewline\0second\0"


def test_json_lines_carry_text_and_bytes(url):
    given = b'{"data": "h\\u00e9llo"}\n{"base64": "/wD/"}\n'
    assert json.loads(tailrace("put", url, "--each", "json", "--json", stdin=given).stdout) == {"put": 2}
    lines = tailrace("drain", url, "--json").stdout.splitlines()
    assert [json.loads(line) for line in lines] == [{"data": "héllo"}, {"base64": "/wD/"}]


def test_info_ls_and_top_agree_on_what_is_there(url, tmp_path):
    tailrace("put", url, "-m", "one", "-m", "two")
    info = json.loads(tailrace("info", url, "--json").stdout)
    kind = url.partition(":")[0]
    assert info["kind"] == kind
    assert info["url"] == url
    [row] = json.loads(tailrace("ls", tmp_path, "--json").stdout)
    assert row["url"] == url
    assert (row["kind"], row["depth"], row["users_dead"], row["error"]) == (kind, 2, 0, None)
    assert row["bytes"] > 0
    [looked] = json.loads(tailrace("top", url, "-n", "1", "--json").stdout)
    assert looked["depth"] == 2
    shown = tailrace("ls", tmp_path).stdout.decode()
    assert url in shown
    assert kind in tailrace("info", url).stdout.decode()


def test_what_looks_like_markup_is_shown_as_it_is(tmp_path):
    url = f"aq:{tmp_path}/[red]q[bold]:smile:"
    tailrace("create", url)
    messages = ["[bold]x[/red]", "y[/]", ":smile:"]
    tailrace("put", url, *(part for message in messages for part in ("-m", message)))
    shown = tailrace("snapshot", url).stdout.decode()
    assert all(message in shown for message in messages)
    assert url in tailrace("ls", tmp_path).stdout.decode()
    assert url in tailrace("top", url, "-n", "1").stdout.decode()


def test_each_look_of_top_is_there_at_once(tmp_path):
    url = f"ring:{tmp_path}/queue"
    tailrace("create", url)
    with subprocess.Popen([*COMMAND, "top", url, "--json", "-i", "30"], stdout=subprocess.PIPE) as top:
        assert json.loads(top.stdout.readline())[0]["depth"] == 0
        top.send_signal(signal.SIGINT)
    assert top.returncode == 130


def test_looks_go_into_a_pipe_one_by_one(tmp_path):
    url = f"ring:{tmp_path}/queue"
    tailrace("create", url)
    with subprocess.Popen([*COMMAND, "top", url, "-i", "30"], stdout=subprocess.PIPE) as top:
        while url.encode() not in top.stdout.readline():
            pass
        top.send_signal(signal.SIGINT)
    assert top.returncode == 130


def test_lines_of_a_pipe_are_put_as_they_come(url):
    with subprocess.Popen([*COMMAND, "put", url], stdin=subprocess.PIPE) as put:
        for part in (b"one\ntwo\nth", b"ree\n"):
            put.stdin.write(part)
            put.stdin.flush()
            whole = part.count(b"\n")
            assert tailrace("get", url, "-n", str(whole), "--timeout", "20").stdout.count(b"\n") == whole
        assert put.poll() is None
        put.stdin.write(b"without an end")
    assert put.returncode == 0
    assert tailrace("get", url).stdout == b"without an end\n"


def test_rm_asks_for_force_and_leaves_nothing(url, tmp_path):
    tailrace("put", url, "-m", "precious")
    assert "has 1 messages" in complaint("rm", url)
    assert tailrace("get", url).stdout == b"precious\n"
    tailrace("put", url, "-m", "precious")
    tailrace("rm", url, "--force")
    assert json.loads(tailrace("ls", tmp_path, "--json").stdout) == []
    if not url.startswith("qewqew"):
        complaint("get", url)


def test_tail_takes_nothing(url):
    tailrace("put", url, stdin=b"one\ntwo\nthree\n")
    assert tailrace("tail", url, "-n", "2").stdout == b"two\nthree\n"
    assert tailrace("tail", url, "-n", "0").stdout == b""
    assert tailrace("drain", url).stdout == b"one\ntwo\nthree\n"


def test_a_second_queue_of_the_same_name_is_refused(url):
    complaint("create", url)


def test_get_waits_for_a_message(url):
    with subprocess.Popen([*COMMAND, "get", url, "--timeout", "50"], stdout=subprocess.PIPE) as getter:
        # Long enough to be asleep on most runs; the outcome is the same on all.
        time.sleep(0.5)
        tailrace("put", url, "-m", "late")
        assert getter.stdout.read() == b"late\n"
    assert getter.returncode == 0


def test_a_missing_durable_queue_is_made_by_put(tmp_path):
    url = f"qewqew:{tmp_path}/spool"
    tailrace("put", url, "-m", "first")
    assert tailrace("get", url).stdout == b"first\n"
    # Emptied, it has no files: that is an empty queue, not a mistake.
    assert tailrace("drain", url).stdout == b""
    tailrace("get", url, check=1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nonsense"], "No such command"),
        (["get"], "Missing argument"),
        (["get", "rabbit:x"], "unknown scheme 'rabbit'"),
        (["get", "aq:{}/missing"], "no such queue"),
        (["put", "ring:{}/missing"], "no such queue"),
        (["drain", "conq:{}/none#mail"], "no queues in the directory"),
        (["drain", "conq:{}#mail"], "no queues in the directory"),
        (["get", "mcp:{}#NONE"], "no queue 'NONE'"),
        (["info", "qewqew:{}/missing"], "no such queue"),
        (["get", "qewqew:{}/none/missing"], "No such file or directory"),
        (["info", "ring:{}/text"], "not a ring"),
        (["create", "aq:{}/new", "-o", "size=many"], "'many' is not a size"),
        (["create", "aq:{}/new", "-o", "page_size=3"], "power of two"),
        (["create", "aq:{}/new", "-o", "size=99999999999999999999"], "from 0 to 18446744073709551615"),
        (["create", "ring:{}/new", "-o", "max_len=-1"], "max_len: '-1' is not a whole number from 0 to 4294967295"),
        (["create", "ring:{}/new", "-o", "msg_size=4294967296"], "msg_size: '4294967296' is not a whole number"),
        (["create", "mcp:{}/new#Q", "-o", "record_size=10G"], "from 0 to 4294967295, not 10737418240"),
        (["info", "aq:{}/text"], "is not formatted"),
        (["rm", "aq:{}/text", "--force"], "is not formatted"),
        (["rm", "ring:{}/text", "--force"], "not a ring"),
        (["create", "aq:{}/new", "-o", "colour=red"], "no option 'colour'"),
        (["create", "aq:{}/new", "-o", "size"], "expected NAME=VALUE"),
        (["verify", "aq:{}/text"], "only qewqew"),
        (["snapshot", "ring:{}/text"], "only aq"),
        (["top", "aq:{}/missing", "-n", "1"], "no such queue"),
        (["ls", "{}/none"], "No such file or directory"),
        (["get", "aq:{}/text", "-n", "few"], "--count"),
        (["exporter"], "name queues"),
        (["bench", "--only", "carrier pigeon"], "nothing that can be measured"),
        (["demo", "--sink", "bucket"], "spark or arrow"),
    ],
)
def test_wrong_input_is_one_clear_line_and_code_2(tmp_path, arguments, said):
    (tmp_path / "text").write_bytes(b"this is no queue at all, only some text\n" * 100)
    assert said in complaint(*(text.format(tmp_path) for text in arguments))
    assert (tmp_path / "text").exists()


def test_wrong_json_names_the_line_and_only_what_is_before_it_is_put(tmp_path):
    url = f"aq:{tmp_path}/queue"
    tailrace("create", url)
    wrong = b"".join(b'{"data": "%d"}\n' % line for line in range(600)) + b'{\n{"data": "behind"}\n'
    assert "line 601 of standard input is not JSON" in complaint("put", url, "--each", "json", stdin=wrong)
    assert tailrace("drain", url).stdout.split() == [b"%d" % line for line in range(600)]
    assert "is neither" in complaint("put", url, "--each", "json", stdin=b"[1]")
    assert "is not base64" in complaint("put", url, "--each", "json", stdin=b'{"base64": "%"}')
    tailrace("get", url, check=1)


def test_a_full_queue_is_code_1_and_a_taken_role_is_code_4(tmp_path):
    small = f"aq:{tmp_path}/small"
    tailrace("create", small, "-o", "size=4K")
    assert "full" in complaint("put", small, "-t", "0", stdin=b"x" * 60 + b"\n" + (b"y" * 60 + b"\n") * 100, code=1)
    spool = f"qewqew:{tmp_path}/spool"
    tailrace("put", spool, "-m", "first", "-m", "second")
    with subprocess.Popen([*COMMAND, "get", spool, "-f"], stdout=subprocess.PIPE) as consumer:
        assert consumer.stdout.readline() == b"first\n"
        complaint("get", spool, code=4)
        consumer.send_signal(signal.SIGINT)
    assert consumer.returncode == 130


def test_verify_finds_damage_and_repair_ends_it(tmp_path):
    url = f"qewqew:{tmp_path}/spool"
    tailrace("put", url, stdin=b"one\ntwo\nthree\n")
    assert json.loads(tailrace("verify", url, "--json").stdout)["problems"] == []
    # The length of the first message, beyond the end of what was written.
    chunk = tmp_path / "spool.1"
    data = bytearray(chunk.read_bytes())
    data[10:12] = b"\xff\xff"
    chunk.write_bytes(data)
    report = json.loads(tailrace("verify", url, "--json", check=3).stdout)
    assert len(report["problems"]) == 1
    assert "chunk 1, offset 10" in tailrace("verify", url, check=3).stdout.decode()
    repaired = json.loads(tailrace("repair", url, "--json").stdout)
    assert repaired["put_aside"]
    assert tailrace("drain", url).stdout == b""


def test_top_tells_how_long_the_oldest_message_was_seen_to_wait(tmp_path):
    url = f"ring:{tmp_path / 'ring'}"
    tailrace("create", url)
    empty = [json.loads(line) for line in tailrace("top", url, "-n", "1", "--json").stdout.splitlines()]
    assert empty[0][0]["oldest_age"] is None
    tailrace("put", url, stdin=b"waiting\n")
    looks = [json.loads(line) for line in tailrace("top", url, "-n", "3", "-i", "0.1", "--json").stdout.splitlines()]
    ages = [look[0]["oldest_age"] for look in looks]
    assert ages[0] == 0
    assert 0.1 <= ages[1] < ages[2]


def test_a_reader_of_our_output_may_stop_early(tmp_path):
    url = f"aq:{tmp_path}/queue"
    tailrace("create", url)
    tailrace("put", url, stdin=b"".join(b"%d\n" % number for number in range(5000)))
    shell = f"{' '.join(COMMAND)} drain {url} | head -n 1; exit ${{PIPESTATUS[0]}}"
    answer = subprocess.run(["bash", "-c", shell], capture_output=True, timeout=60, check=False)
    assert answer.stdout == b"0\n"
    assert answer.stderr == b""
    assert answer.returncode == 0


@pytest.mark.parametrize(("command", "closed"), [("get", ">&-"), ("put", "<&-"), ("info", ">&-")])
def test_a_closed_stream_costs_no_message(tmp_path, command, closed):
    url = f"ring:{tmp_path}/queue"
    tailrace("create", url)
    tailrace("put", url, "-m", "kept")
    shell = f"{' '.join(COMMAND)} {command} {url} {closed}"
    answer = subprocess.run(["bash", "-c", shell], capture_output=True, timeout=60, check=False)
    assert (answer.returncode, answer.stdout) == (4, b"")
    assert len(answer.stderr.splitlines()) == 1
    assert tailrace("get", url).stdout == b"kept\n"


def test_bench_measures_ours_beside_a_peer():
    rows = json.loads(tailrace("bench", "-n", "2000", "--only", "i", "--json").stdout)
    names = {row["queue"] for row in rows}
    assert {"tailrace aq", "tailrace ring", "tailrace mcp", "tailrace conq", "tailrace qewqew"} <= names
    assert "multiprocessing.Queue" in names
    assert all(row["per_second"] > 0 for row in rows)


def test_the_exporter_serves_loopback_only(tmp_path):
    url = f'aq:{tmp_path}/a "b"'
    tailrace("create", url)
    tailrace("put", url, "-m", "x")
    gone = f"ring:{tmp_path}/gone"
    with subprocess.Popen([*COMMAND, "exporter", url, gone, "--port", "0"], stdout=subprocess.PIPE) as exporter:
        try:
            address = exporter.stdout.readline().decode().strip()
            assert address.startswith("http://127.0.0.1:")
            with urllib.request.urlopen(address, timeout=30) as answer:
                assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
                lines = answer.read().decode().splitlines()
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(address.replace("/metrics", "/other"), timeout=30)
            port = int(address.split(":")[2].split("/")[0])
            listening = [line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
            assert f"0100007F:{port:04X}" in listening
            assert f"00000000:{port:04X}" not in listening
        finally:
            exporter.send_signal(signal.SIGINT)
    labels = f'{{url="aq:{tmp_path}/a \\"b\\"",kind="aq"}}'
    assert f"tailrace_up{labels} 1" in lines
    assert f"tailrace_depth{labels} 1" in lines
    assert f'tailrace_up{{url="{gone}",kind="ring"}} 0' in lines
    assert [line for line in lines if line.startswith("# TYPE tailrace_depth")] == ["# TYPE tailrace_depth gauge"]
    assert exporter.returncode == 130


def test_ls_shows_the_dead(tmp_path):
    url = f"aq:{tmp_path}/queue"
    tailrace("create", url)
    code = f"import os, tailrace; q = tailrace.open({url!r}); q.put(b'x'); print('ready', flush=True); os.read(0, 1)"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as user:
        user.stdout.readline()
        [row] = json.loads(tailrace("ls", tmp_path, "--json").stdout)
        assert (row["users_alive"], row["users_dead"]) == (1, 0)
        user.kill()
        user.wait()
    [row] = json.loads(tailrace("ls", tmp_path, "--json").stdout)
    # The slot of the dead may have been swept by whoever joined next, but never counts as alive.
    assert row["users_alive"] == 0


def test_without_typer_one_line_names_the_extra(tmp_path):
    (tmp_path / "typer.py").write_text("raise ModuleNotFoundError(\"No module named 'typer'\", name='typer')")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    answer = subprocess.run(COMMAND, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert answer.returncode == 1
    assert answer.stderr == "tailrace: the command line needs typer: pip install 'tailrace[cli]'\n"


@pytest.mark.timeout(300)
def test_pipe_moves_a_queue_into_files(tmp_path):
    pytest.importorskip("pyspark")
    url = f"qewqew:{tmp_path}/spool"
    tailrace("put", url, stdin=b'{"n": 1}\n{"n": 2}\n')
    target, checkpoint = tmp_path / "out", tmp_path / "checkpoint"
    command = [
        "pipe",
        "--from",
        url,
        "--to",
        f"json:{target}",
        "--checkpoint",
        checkpoint,
        "--once",
        "--json",
        "--schema",
        "n int",
    ]
    command += ["--sql", "select n * 10 as ten from messages"]
    answer = subprocess.run([*COMMAND, *map(str, command)], capture_output=True, timeout=280, check=False)
    assert answer.returncode == 0, answer.stderr
    assert b"Exception" not in answer.stderr, "nor when its listeners are taken down"
    assert json.loads(answer.stdout.splitlines()[-1]) == {"rows": 2}
    rows = [line for file in target.glob("*.json") for line in file.read_text().splitlines()]
    assert sorted(json.loads(row)["ten"] for row in rows) == [10, 20]


STREAM_FAILED = """[STREAM_FAILED] Query [id = 9f3d, runId = b550] terminated with exception: {}
=== Streaming Query ===
Identifier: [id = 9f3d, runId = b550]
Current Available Offsets: {{}}
"""


@pytest.mark.parametrize(
    ("text", "line", "code"),
    [
        (
            STREAM_FAILED.format(
                "[PYTHON_EXCEPTION] Traceback (most recent call last):\n  File ...\n"
                "tailrace.errors.QueueNotFound: there is no ring at /x\n SQLSTATE: 38000"
            ),
            "there is no ring at /x",
            2,
        ),
        (
            STREAM_FAILED.format("Traceback (most recent call last):\ntailrace.errors.QueueFull: 'aq:/x' was full"),
            "'aq:/x' was full",
            1,
        ),
        (
            STREAM_FAILED.format("Traceback (most recent call last):\nValueError: 'aq:/x' can only be read"),
            "'aq:/x' can only be read",
            2,
        ),
        (
            STREAM_FAILED.format("[NO_TEXT] no binary"),
            "[STREAM_FAILED] Query [id = 9f3d, runId = b550] terminated with exception: [NO_TEXT] no binary",
            4,
        ),
        (
            "An error occurred while calling o1.start.\n: org.fs.Already$Exists: is no directory\n\tat",
            "is no directory",
            4,
        ),
    ],
)
def test_of_sparks_many_lines_the_one_that_matters_is_said(text, line, code):
    assert _sparks(RuntimeError(text)) == (line, code)


def test_help_and_version():
    assert b"drain" in tailrace("--help").stdout
    assert b"--timeout" in tailrace("get", "--help").stdout
    assert tailrace("--version").stdout.startswith(b"tailrace ")
    alone = tailrace(check=2)
    assert b"drain" in alone.stdout + alone.stderr
    assert b"tailrace: \n" not in alone.stderr
