"""A Spark standalone cluster of this host, from pyspark's own jars: a master and two workers."""

import os
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil
import pyspark

from penstock.router.spark.java import find_java
from tests.support.processes import free_port
from tests.support.waiting import wait_until

_HOME: Final = Path(pyspark.__file__).parent
_HOST: Final = "127.0.0.1"
WORKERS: Final = 2


class SparkCluster:
    """It listens on the loopback interface only.

    Args:
        directory: For what the processes write.
        secret: That they know each other by; empty: they ask for none.
        apart: Whether each worker has a separate address, as hosts have. Spark runs no task a
            second time on the host where it is running.

    Attributes:
        url: For `spark.master`.
        conf: For `spark.conf`: what fits a small machine.
    """

    def __init__(self, directory: Path, secret: str = "", *, apart: bool = False) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._hosts = [f"127.0.0.{number + 1 if apart else 1}" for number in range(WORKERS)]
        self._directory = directory
        self._secret = secret
        self._port = free_port()
        self._processes: list[subprocess.Popen[bytes]] = []
        self.url = f"spark://{_HOST}:{self._port}"
        self.conf = {
            "spark.executor.memory": "896m",
            "spark.executor.cores": "1",
        }

    def start(self) -> None:
        """Start it and wait until all workers are there."""
        self._launch(_HOST, "master.Master", "--port", str(self._port))
        self._expect("Starting Spark master", 0)
        for number, host in enumerate(self._hosts):
            home = self._directory / f"worker{number}"
            self._launch(host, "worker.Worker", "--cores", "1", "--memory", "1000m",
                         "--work-dir", str(home), self.url)  # fmt: skip
        for number in range(WORKERS):
            self._expect("Successfully registered with master", number + 1)

    def executors(self) -> list[psutil.Process]:
        """The JVMs that run a job's tasks now."""
        found: list[psutil.Process] = []
        for process in self._processes[1:]:
            with suppress(psutil.NoSuchProcess):
                children = psutil.Process(process.pid).children()
                found += [it for it in children if it.status() != psutil.STATUS_ZOMBIE]
        return found

    def lose_workers(self) -> None:
        """Kill the workers, and the executors with them; the master stays."""
        for process in self._processes[1:]:
            _lose(process)

    def lose_worker_of(self, task: psutil.Process) -> None:
        """Kill the worker that runs a task's process, and all that is below it."""
        above = [it.pid for it in task.parents()]
        (process,) = [it for it in self._processes[1:] if it.pid in above]
        _lose(process)

    def close(self) -> None:
        """End it, executors included."""
        family = self.executors()
        with suppress(psutil.NoSuchProcess):
            family += [below for it in list(family) for below in it.children(recursive=True)]
        for process in reversed(self._processes):
            process.kill()
            process.wait()
        for it in family:
            with suppress(psutil.NoSuchProcess):
                it.kill()
        psutil.wait_procs(family, timeout=20)
        self._processes.clear()

    def said(self, number: int) -> str:
        """What a process wrote: 0 is the master."""
        path = self._directory / f"{number}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _secrets(self) -> list[str]:
        if not self._secret:
            return []
        return [
            "-Dspark.authenticate=true",
            f"-Dspark.authenticate.secret={self._secret}",
        ]

    def _launch(self, host: str, name: str, *arguments: str) -> None:
        java = find_java(self._directory)
        environment = {
            **os.environ,
            "JAVA_HOME": str(java.home),
            "SPARK_HOME": str(_HOME),
            "SPARK_DAEMON_MEMORY": "192m",
            "SPARK_LOCAL_IP": host,
            "SPARK_LOCAL_DIRS": str(self._directory / "local"),
            "SPARK_DAEMON_JAVA_OPTS": " ".join(["-XX:+UseSerialGC", *self._secrets()]),
        }
        with (self._directory / f"{len(self._processes)}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [str(_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}",
                     "--webui-port", "0", "--host", host, *arguments],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
                    cwd=self._directory,
                )
            )  # fmt: skip

    def _expect(self, text: str, number: int) -> None:
        def is_there() -> bool:
            assert self._processes[number].poll() is None, self.said(number)[-2000:]
            return text in self.said(number)

        wait_until(is_there, within_s=90, what=f"{text!r} of process {number} of the cluster")


def _lose(process: subprocess.Popen[bytes]) -> None:
    family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    for it in family:
        with suppress(psutil.NoSuchProcess):
            it.kill()
