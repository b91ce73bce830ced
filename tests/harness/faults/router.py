"""Ends of a router's processes: the driver, its JVM, Spark's Python workers, executors."""

from contextlib import suppress

import psutil

from penstock.service import ExitCode
from tests.harness.faults import process
from tests.harness.systems.router import START_S, RouterUnderLoad

_STARTING_SHARE = 0.2
"""Of the starts in which the driver is killed before it is ready."""


def kill_driver(it: RouterUnderLoad) -> str:
    it.run.report.counts["driver killed"] += 1
    process.kill(it)
    if it.run.rng.random() >= _STARTING_SHARE:
        return "driver killed"
    longest_s = max(it.run.report.times_s["router ready"])
    return f"driver killed, {process.kill_again_while_it_starts(it, longest_s)}"


def kill_jvm(it: RouterUnderLoad) -> str:
    """The job must end, and say that it failed."""
    _end(it.jvm())
    code = it.daemon.wait(within_s=START_S)
    it.run.report.counts["JVM killed"] += 1
    it.run.demand(code == ExitCode.SOFTWARE, f"without its JVM the job ended with {code}")
    return "JVM killed"


def kill_worker(it: RouterUnderLoad) -> str:
    _end(it.python_worker())
    it.run.report.counts["Python worker killed"] += 1
    return "Python worker killed"


def kill_executor(it: RouterUnderLoad) -> str:
    _end(it.executor())
    it.run.report.counts["executor killed"] += 1
    return "executor killed"


def _end(victim: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        victim.kill()
