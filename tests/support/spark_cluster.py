"""A Spark standalone cluster of processes: a master and workers, out of the pyspark package."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from penstock.router.java import find_java
from tests.support.processes import free_port
from tests.support.waiting import wait_until

_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"


@contextmanager
def running_spark_cluster(directory: Path, *, workers: int = 2) -> Iterator[str]:
    """Start a cluster with one core for each worker; yields the master's URL."""
    directory.mkdir(parents=True)
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    with ExitStack() as stack:
        master = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
        stack.enter_context(_daemon(directory, "master", _MASTER, *master))
        wait_until(lambda: "I have been elected" in _said(directory, "master"), within_s=60)
        for number in range(workers):
            worker = ["--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", "0"]
            work = ["--work-dir", str(directory / f"work-{number}"), url]
            stack.enter_context(_daemon(directory, f"worker-{number}", _WORKER, *worker, *work))
        registered = re.compile("Registering worker")
        wait_until(
            lambda: len(registered.findall(_said(directory, "master"))) == workers,
            within_s=60,
            what="workers registered",
        )
        yield url


@contextmanager
def _daemon(directory: Path, name: str, main: str, *arguments: str) -> Iterator[None]:
    home = Path(pyspark.__file__).parent
    environment = os.environ | {
        "JAVA_HOME": str(find_java(directory).home),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(directory / f"{name}-local"),
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
    }
    with (directory / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [str(home / "bin" / "spark-class"), main, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=30)


def _said(directory: Path, name: str) -> str:
    return (directory / f"{name}.log").read_text(errors="replace")
