"""A job under `spark-submit`: Spark's JVM runs already, and has started this process.

`spark-submit` tells the process by two variables of its environment how to reach the JVM. What was
said on its command line and in `spark-defaults.conf` is in the JVM's configuration; of what a job
file says of Spark, `conf` goes before that. The JVM ends when this process does, with its code.
"""

import os
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any, Final

import psutil

from penstock.router.job.config import Spark

_PORT: Final = "PYSPARK_GATEWAY_PORT"
"""Set by Spark for the programs that it starts (`pyspark/java_gateway.py`)."""

UNKNOWN_CODE: Final = -1
"""In place of the exit code of a process that is not ours to wait for."""

_OF_THE_START: Final = (
    "spark.driver.defaultJavaOptions",
    "spark.driver.extraJavaOptions",
    "spark.driver.memory",
)
"""Settings that only the start of a JVM can follow."""


def is_submitted() -> bool:
    """Return whether `spark-submit` has started this process."""
    return _PORT in os.environ


@cache
def submitted_gateway() -> Any:
    """The way to the JVM that has started this process; pyspark leaves it untyped."""
    from pyspark.java_gateway import launch_gateway

    return launch_gateway()


def with_submitted(config: Spark) -> Spark:
    """Return a job's settings of Spark, completed with those of the JVM.

    `master` and `driver_memory` are the JVM's.
    """
    jvm = submitted_gateway().jvm
    conf = {it._1(): it._2() for it in jvm.org.apache.spark.SparkConf().getAll()}  # noqa: SLF001 - Scala's name
    master = conf.pop("spark.master", config.master)
    heap = int(jvm.java.lang.Runtime.getRuntime().maxMemory())
    conf.pop("spark.app.name", None)
    return config.model_copy(
        update={
            "master": master,
            "driver_memory": f"{heap // 2**20}m",
            "conf": {**conf, **config.conf},
        }
    )


def for_running_jvm(settings: Mapping[str, str], config: Spark) -> dict[str, str]:
    """Return a job's settings without those that the router has for a JVM that it starts."""
    return {
        key: value
        for key, value in settings.items()
        if key not in _OF_THE_START or key in config.conf
    }


class SubmittedJvm:
    """The process of the JVM, with what a session needs of a `Popen`.

    Args:
        gateway: The way to it.
    """

    def __init__(self, gateway: Any) -> None:
        self.pid = int(gateway.jvm.java.lang.ProcessHandle.current().pid())
        self._process = psutil.Process(self.pid)

    def poll(self) -> int | None:
        """Return None while it runs."""
        with suppress(psutil.NoSuchProcess):
            if self._process.is_running() and self._process.status() != psutil.STATUS_ZOMBIE:
                return None
        return UNKNOWN_CODE

    def wait(self, timeout: float) -> int:
        """Wait until it has ended.

        Raises:
            subprocess.TimeoutExpired: It runs on.
        """
        try:
            self._process.wait(timeout)
        except psutil.TimeoutExpired:
            raise subprocess.TimeoutExpired("spark-submit", timeout) from None
        return UNKNOWN_CODE
