"""Processes that publish or read, and how the bench starts them together.

A worker reads its job as a line of JSON from standard input, prepares, writes "ready", waits for
another line, works, and writes its result as a line of JSON. It ends by itself after `timeout_s`,
and when the bench is gone.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns, process_time_ns
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

Result = dict[str, Any]


def json_line(document: dict[str, Any]) -> str:
    """A line of JSON."""
    return json.dumps(document) + "\n"


def work(prepare: Callable[[dict[str, Any]], Callable[[], Result]]) -> None:
    """Be a worker: the other side of `Workers`."""
    job = json.loads(sys.stdin.readline())
    signal.alarm(job.pop("timeout_s"))
    run = prepare(job)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    if not sys.stdin.readline():
        return
    begun_ns, used_ns = perf_counter_ns(), process_time_ns()
    result = run()
    ended_ns, used_ns = perf_counter_ns(), process_time_ns() - used_ns
    took = {"begun_ns": begun_ns, "ended_ns": ended_ns, "used_ns": used_ns}
    sys.stdout.write(json_line(took | result))
    sys.stdout.flush()


@dataclass(frozen=True, slots=True)
class Run:
    """What workers that ran together did.

    Attributes:
        processor_s: CPU time that the system they worked with used, where it was looked at.
    """

    results: list[Result]
    processor_s: float = 0.0

    @property
    def begun_ns(self) -> int:
        """When the first began."""
        return min(int(result["begun_ns"]) for result in self.results)

    @property
    def ended_ns(self) -> int:
        """When the last ended."""
        return max(int(result["ended_ns"]) for result in self.results)

    @property
    def seconds(self) -> float:
        """From the first beginning to the last end."""
        return (self.ended_ns - self.begun_ns) / 1e9

    def total(self, key: str) -> int:
        """The sum of a field of the results."""
        return sum(int(result[key]) for result in self.results)

    def processor_us(self, key: str) -> float:
        """Microseconds of the system's CPU time for each unit of that sum."""
        return self.processor_s * 1e6 / self.total(key)

    def workers_us(self, key: str) -> float:
        """Microseconds of the workers' own CPU time for each unit of that sum."""
        return self.total("used_ns") / 1e3 / self.total(key)

    def rate(self, key: str) -> float:
        """That sum a second."""
        return self.total(key) / self.seconds


class Workers:
    """Worker processes of one module, ready to go.

    Raises:
        AssertionError: A worker failed; with what it said.
    """

    def __init__(self, module: str, jobs: Sequence[dict[str, Any]], *, timeout_s: int) -> None:
        command = [sys.executable, "-m", f"tests.bench.{module}"]
        self._processes: list[subprocess.Popen[str]] = []
        try:
            for _ in jobs:
                self._processes.append(
                    subprocess.Popen(
                        command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
                    )
                )
            for process, job in zip(self._processes, jobs, strict=True):
                self._write(process, json_line(job | {"timeout_s": timeout_s}))
            for process in self._processes:
                self._read(process)
        except BaseException:
            self.close()
            raise

    def go(self) -> None:
        """Let them begin."""
        for process in self._processes:
            self._write(process, "go\n")

    def results(self) -> Run:
        """Wait for all results."""
        return Run([json.loads(self._read(process)) for process in self._processes])

    def close(self) -> None:
        """End what still runs."""
        for process in self._processes:
            process.kill()
            process.wait()
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()
            process.stdout.close()

    @staticmethod
    def _write(process: "subprocess.Popen[str]", line: str) -> None:
        assert process.stdin is not None
        process.stdin.write(line)
        process.stdin.flush()

    @staticmethod
    def _read(process: "subprocess.Popen[str]") -> str:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, f"worker ended with {process.wait()}: it failed, or took too long"
        return line


@contextmanager
def workers(
    module: str, jobs: Sequence[dict[str, Any]], *, timeout_s: int = 300
) -> Iterator[Workers]:
    """Workers that are ended with the block."""
    found = Workers(module, jobs, timeout_s=timeout_s)
    try:
        yield found
    finally:
        found.close()


def run_workers(module: str, jobs: Sequence[dict[str, Any]], *, timeout_s: int = 300) -> Run:
    """Start workers, let them begin together, and wait for all of them."""
    with workers(module, jobs, timeout_s=timeout_s) as started:
        started.go()
        return started.results()
