"""Executors whose Python is shipped to them by spark-submit: an archive, unpacked by Spark on every node."""

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import pyspark

from spark_support import Cluster
from tailrace import qewqew
from tailrace._java import java_home

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

#: Run by spark-submit: which tailrace the executors have, then a batch and a stream through it.
JOB = """
import os, sys
from pyspark.sql import SparkSession
from tailrace.spark import pipe
source, target, checkpoint = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
where = spark.sparkContext.parallelize(range(8), 8).map(lambda _: (os.getcwd(), __import__("tailrace").__file__))
for directory, file in sorted(set(where.collect())):
    print("executor", directory, file, flush=True)
print("read", spark.read.format("tailrace").load(source).count(), flush=True)
print("moved", pipe(source, target, checkpoint=checkpoint, once=True, spark=spark), flush=True)
"""

#: For two executors on one machine; the rest of the command line is the recipe's.
SETTINGS = {
    "spark.driver.memory": "600m",
    "spark.executor.memory": "512m",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
}

#: What an executor imports, beside what Spark brings.
NEEDED = ("tailrace", "pyspark_tailrace", "pyarrow", "numpy", "pandas", "dateutil", "pytz", "six", "tzdata")


def packed(place: Path) -> Path:
    """Do what the recipe does (a new environment, pip install, tar), without fetching what is installed here."""
    venv.create(place / "env", with_pip=False, symlinks=True)
    installed = Path(sysconfig.get_path("purelib"))
    # Not a plain .tar: Spark unpacks that by itself and refuses the link to the interpreter.
    archive = place / "env.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        for entry in (place / "env").iterdir():
            tar.add(entry, arcname=entry.name)
        inside = Path("lib") / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
        for entry in installed.iterdir():
            if entry.name.partition("-")[0].removesuffix(".libs").removesuffix(".py") in NEEDED:
                tar.add(entry, arcname=str(inside / entry.name))
    return archive


def test_executors_run_in_an_environment_that_came_as_an_archive(tmp_path: Path, is_soak: bool) -> None:
    if not is_soak:
        pytest.skip("packs, sends and unpacks 300 MB twice: TAILRACE_SOAK=1")
    with qewqew.DurableQueue(tmp_path / "q", role="producer", sync="never") as queue:
        queue.enqueue_many([b"%064d" % number for number in range(10_000)])
    archive = packed(tmp_path)
    # Where there is no ./env beside it.
    (tmp_path / "elsewhere").mkdir()
    with Cluster(tmp_path) as cluster:
        # The first is for the executors, relative to where Spark unpacks the archive; the second for the driver's side.
        environment = os.environ | {
            "PYSPARK_PYTHON": "./env/bin/python",
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "JAVA_HOME": str(java_home()),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        job = tmp_path / "job.py"
        job.write_text(JOB)
        settings = SETTINGS | {"spark.local.dir": str(tmp_path / "local")}
        command: list[object] = [Path(pyspark.__file__).parent / "bin" / "spark-submit", "--master", cluster.url]
        command += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        command += ["--archives", f"{archive}#env", job]
        command += [f"qewqew:{tmp_path / 'q'}", f"qewqew:{tmp_path / 'to'}", tmp_path / "checkpoint"]
        done = subprocess.run(
            [str(word) for word in command],
            cwd=tmp_path / "elsewhere",
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    executors = [line.split() for line in done.stdout.splitlines() if line.startswith("executor")]
    assert len(executors) == 2, done.stdout
    for _, directory, file in executors:
        assert file.startswith(f"{directory}/env/lib/"), "from the archive, and from nowhere else"
    assert "read 10000" in done.stdout
    assert "moved 10000" in done.stdout
    with qewqew.DurableQueue(tmp_path / "to", role="consumer", sync="never") as queue:
        assert len(set(queue.dequeue_many(20_000))) == 10_000
