"""The appliance as `penstock up` runs it, a publisher, and a fault now and then."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

from penstock.base.clock import SystemClock
from penstock.deploy.lake import lake_files
from penstock.deploy.layout import Layout
from penstock.deploy.topology import logd_parts
from tests.appliance_soak.figures import (
    SECOND_NS,
    Complaints,
    Count,
    FaultSpan,
    Sample,
    count_landed,
    read_complaints,
)
from tests.support.collector import UnixSender, log_line

PENSTOCK: Final = Path(sys.executable).parent / "penstock"
SENDER: Final = "appliance-soak"
SERVICE: Final = "soak"
BATCH: Final = 20
FROZEN_S: Final = 8.0
RECOVERED_S: Final = 240.0
SAMPLE_S: Final = 10.0
HEAP_EVERY: Final = 6
"""Looks from one at a JVM's heap to the next: each has it collect what is dead."""

UP_S: Final = 400.0
DOWN_S: Final = 300
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_BODY: Final = re.compile(r"number (\d+)")


class NotHealthyError(Exception):
    """The appliance is not well again in time after a fault, or does not start or stop."""


@dataclass(slots=True)
class Observed:
    """What a run has seen.

    Attributes:
        samples: Of each process, by part and number.
        recoveries: Seconds until all was well again after each fault.
    """

    samples: dict[tuple[str, int], list[Sample]] = field(default_factory=dict)
    faults: list[FaultSpan] = field(default_factory=list)
    recoveries: list[float] = field(default_factory=list)


class Appliance:
    """A launch in the background.

    Args:
        root: Its directory.
        nodes: Of logd.
    """

    def __init__(self, root: Path, nodes: int) -> None:
        self.layout = Layout(root)
        self.parts = ["nats", *logd_parts(nodes), "collector", "router", "console"]
        self._nodes = nodes

    @contextmanager
    def running(self) -> Iterator[None]:
        """Start it; at the end, if `stop` was not called, stop it anyhow."""
        options = ("--nodes", str(self._nodes), "--free-ports")
        self._run("up", "--detach", *options, within_s=UP_S)
        try:
            yield
        finally:
            self.stop()

    def stop(self) -> None:
        """Drain and end it; nothing happens when that was done."""
        self._run("down", "--timeout", str(DOWN_S), within_s=DOWN_S + 60)

    def wait_well(self, within_s: float) -> None:
        """Wait until each part says that all is well."""
        self._run("status", "--wait", str(within_s), "--json", within_s=within_s + 60)

    def statuses(self) -> dict[str, Any]:
        """What each part says of itself."""
        done = subprocess.run(
            [PENSTOCK, "status", "--dir", self.layout.root, "--json"],
            capture_output=True, text=True, check=False, timeout=120, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        return dict(json.loads(done.stdout)) if done.stdout.startswith("{") else {}

    def pids(self) -> dict[str, list[int]]:
        """The processes of each part: those with its configuration file on their command line."""
        found: dict[str, list[int]] = {part: [] for part in self.parts}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                command = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            for part in self.parts:
                suffix = "conf" if part == "nats" else "yaml"
                if f"{self.layout.config}/{part}.{suffix}" in command:
                    found[part].append(int(entry.name))
        return found

    def _run(self, command: str, *options: str, within_s: float) -> None:
        try:
            done = subprocess.run(
                [PENSTOCK, command, "--dir", self.layout.root, *options],
                capture_output=True, text=True, check=False, timeout=within_s,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise NotHealthyError(f"penstock {command} takes more than {within_s:g} s") from None
        if done.returncode:
            told = f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
            raise NotHealthyError(f"penstock {command} ended with {done.returncode}: {told}")


class Course:
    """One run.

    Args:
        appliance: It runs.
        rate: Records a second.
        every_s: From one fault to the next.
        tell: Told what happens.
    """

    def __init__(
        self, appliance: Appliance, rate: float, every_s: float, tell: Callable[[str], None]
    ) -> None:
        self.seen = Observed()
        self.sent = 0
        self._appliance = appliance
        self._rate, self._every_s = rate, every_s
        self._tell = tell
        self._clock = SystemClock()
        self._idle = threading.Event()
        self._looks = 0
        self._begun_ns = self._clock.monotonic_ns()

    def run(self, minutes: float) -> None:
        """Publish for so long, with a fault in each interval; then let everything arrive.

        Raises:
            NotHealthyError: It is not well again after a fault.
        """
        self._begun_ns = self._clock.monotonic_ns()
        end_ns = self._begun_ns + round(minutes * 60 * SECOND_NS)
        sampling = threading.Thread(target=self._sample_until_idle, daemon=True)
        sampling.start()
        with UnixSender(self._appliance.layout.socket, SENDER, self._batch, window=4) as sender:
            number = 0
            while self._wait_until(self._begun_ns + round((number + 1) * self._every_s * 1e9)):
                self._fault(number)
                number += 1
                self._tell(f"{sender.acked * BATCH:,} records acknowledged")
                if self._clock.monotonic_ns() >= end_ns:
                    break
        if sender.nacks:
            self._tell(f"{len(sender.nacks)} batches were refused and sent again")
        self.sent = sender.acked * BATCH
        self._idle.set()
        sampling.join()
        self._appliance.wait_well(RECOVERED_S)

    def _batch(self, number: int) -> list[bytes]:
        """Called on the sender's thread; waits until the batch is due."""
        due_ns = self._begun_ns + round(number * BATCH / self._rate * SECOND_NS)
        left_s = (due_ns - self._clock.monotonic_ns()) / SECOND_NS
        self._idle.wait(max(left_s, 0.0))
        first = (number - 1) * BATCH
        return [log_line(first + n, service=SERVICE) for n in range(BATCH)]

    def _wait_until(self, at_ns: int) -> bool:
        """Wait for a time of the clock; always True."""
        self._idle.wait(max((at_ns - self._clock.monotonic_ns()) / SECOND_NS, 0.0))
        return True

    def _fault(self, number: int) -> None:
        parts = self._appliance.parts
        part = parts[number % len(parts)]
        kind = "frozen" if (number // len(parts)) % 2 else "killed"
        found = self._appliance.pids()[part]
        begin_ns = self._clock.unix_ns()
        for pid in found:
            os.kill(pid, signal.SIGSTOP if kind == "frozen" else signal.SIGKILL)
        if kind == "frozen":
            self._idle.wait(FROZEN_S)
            for pid in found:
                os.kill(pid, signal.SIGCONT)
        else:
            self._wait_replaced(part, set(found))
        try:
            self._appliance.wait_well(RECOVERED_S)
        finally:
            end_ns = self._clock.unix_ns()
            self.seen.faults.append(FaultSpan(part, kind, begin_ns, end_ns))
        self.seen.recoveries.append((end_ns - begin_ns) / SECOND_NS)
        self._tell(f"{part} {kind}, all well after {self.seen.recoveries[-1]:.1f} s")

    def _wait_replaced(self, part: str, killed: set[int]) -> None:
        until_ns = self._clock.monotonic_ns() + round(RECOVERED_S * SECOND_NS)
        while not set(self._appliance.pids()[part]) - killed:
            if self._clock.monotonic_ns() > until_ns:
                raise NotHealthyError(f"{part} was killed, and not started again")
            self._idle.wait(0.2)

    def _sample_until_idle(self) -> None:
        while not self._idle.wait(SAMPLE_S):
            begun = _children()
            for part, pids in self._appliance.pids().items():
                for name, pid in _with_descendants(part, pids, begun):
                    self._take(name, pid, _resident(pid))
                    if name.endswith(" java") and self._looks % HEAP_EVERY == 0:
                        self._take(f"{name} heap", pid, live_heap(pid))
            self._looks += 1

    def _take(self, name: str, pid: int, size: int) -> None:
        if size:
            sample = Sample(self._clock.monotonic_ns(), size)
            self.seen.samples.setdefault((name, pid), []).append(sample)


def _children() -> dict[int, list[tuple[str, int]]]:
    """Programs and numbers of the processes that each process has begun."""
    found: dict[int, list[tuple[str, int]]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                program, _, rest = (entry / "stat").read_text().partition("(")[2].rpartition(")")
            except OSError:
                continue
            found.setdefault(int(rest.split()[1]), []).append((program, int(entry.name)))
    return found


def _with_descendants(
    part: str, pids: list[int], begun: dict[int, list[tuple[str, int]]]
) -> Iterator[tuple[str, int]]:
    """A part's processes, and what they have begun under the part's name with the program's."""
    waiting = [(part, pid) for pid in pids]
    while waiting:
        name, pid = waiting.pop()
        yield name, pid
        waiting += [(f"{part} {program}", child) for program, child in begun.get(pid, [])]


def _resident(pid: int) -> int:
    """Bytes a process has in memory; 0: it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except OSError:
        return 0


def live_heap(pid: int) -> int:
    """Bytes that live in a JVM's heap, once it has looked; 0: there is no `jcmd`, or it is gone."""
    try:
        jcmd = Path(f"/proc/{pid}/exe").readlink().with_name("jcmd")
        said = subprocess.run(
            [jcmd, str(pid), "GC.class_histogram"],
            capture_output=True, text=True, timeout=20, check=True,
        ).stdout  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return 0
    found = re.search(r"^Total +\d+ +(\d+)", said, re.MULTILINE)
    return int(found[1]) if found else 0


def landed(layout: Layout, acked: int) -> Count:
    """The publisher's records in the Parquet files, after the end."""
    numbers: list[int] = []
    for file in lake_files(layout.lake):
        if file.service != SERVICE:
            continue
        for body in pq.ParquetFile(file.path).read(columns=["body"]).column("body").to_pylist():
            found = _BODY.search(body or "")
            assert found is not None, body
            numbers.append(int(found[1]))
    return count_landed(acked, numbers)


def complaints(layout: Layout, faults: list[FaultSpan]) -> Complaints:
    """The errors in all logs."""
    found = Complaints()
    for path in sorted(layout.logs.glob("*.log*")):
        with path.open(errors="replace") as log:
            read_complaints(path.name.partition(".")[0], log, faults, found)
    return found
