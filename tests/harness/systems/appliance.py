"""The whole appliance as `penstock up` runs it, a publisher on its socket, and its memory."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
from typing_extensions import override

from penstock.deploy.up.demo.lake import lake_files
from penstock.deploy.up.layout import Layout
from penstock.deploy.up.topology import logd_parts
from tests.harness.checkers.claims import Arrived, each_once, judge
from tests.harness.checkers.steady import (
    Complaints,
    FaultSpan,
    Sample,
    growth,
    read_complaints,
)
from tests.harness.faults.process import freeze, thaw
from tests.harness.plan import SECOND_NS, BrokenPromiseError, Run, System
from tests.support.collector import UnixSender, log_line
from tests.support.waiting import PATIENCE, wait_until

_PENSTOCK: Final = Path(sys.executable).parent / "penstock"
_SENDER: Final = "appliance-soak"
_SERVICE: Final = "soak"
_BATCH: Final = 20
_WINDOW: Final = 4
_FROZEN_S: Final = 8.0
_RECOVERED_S: Final = 240.0
_SAMPLE_S: Final = 10.0
_HEAP_EVERY: Final = 6
"""Looks from one at a JVM's heap to the next: each has it collect what is dead."""

_UP_S: Final = 400.0
_DOWN_S: Final = 300
_SHOWN: Final = 20
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_BODY: Final = re.compile(r"number (\d+)")


class Appliance(System):
    """A launch in the background, which a fault meets part by part.

    Args:
        run: Says where, how many nodes of logd, how many records a second, and how often a fault
            comes (`--nodes`, `--rate`, `--every`).
    """

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._layout = Layout(run.directory / "state")
        self.parts = ["nats", *logd_parts(run.options.nodes), "collector", "router", "console"]
        self._faults: list[FaultSpan] = []
        self._samples: dict[tuple[str, int], list[Sample]] = {}
        self._sender = UnixSender(self._layout.socket, _SENDER, self._batch, window=_WINDOW)
        self._idle = threading.Event()
        self._sampling = threading.Thread(target=self._sample_until_idle, daemon=True)

    @override
    def begin(self, stack: ExitStack) -> None:
        stack.callback(self._stop)
        options = ("--nodes", str(self.run.options.nodes), "--free-ports")
        self._command("up", "--detach", *options, within_s=_UP_S)
        self._begun_ns = self.run.clock.monotonic_ns()
        self._sampling.start()
        stack.callback(self._end_load)
        self._sender.__enter__()

    def kill(self, part: str) -> str:
        """kill -9 of all processes of a part, which is started again."""
        killed, begin_ns = self.pids()[part], self.run.clock.unix_ns()
        self._faults.append(FaultSpan(part, "killed", begin_ns, begin_ns))
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        wait_until(
            lambda: set(self.pids()[part]) - set(killed),
            within_s=_RECOVERED_S / PATIENCE, what=f"{part}, which was killed, is started again",
        )  # fmt: skip
        return f"{part} killed"

    def freeze(self, part: str) -> str:
        """SIGSTOP of all processes of a part, for a while."""
        frozen, begin_ns = self.pids()[part], self.run.clock.unix_ns()
        self._faults.append(FaultSpan(part, "frozen", begin_ns, begin_ns))
        freeze(frozen)
        try:
            self.run.pause(_FROZEN_S)
        finally:
            thaw(frozen)
        return f"{part} frozen"

    @override
    def recover(self) -> str:
        fault = self._faults[-1]
        try:
            self._wait_well()
        finally:
            fault = fault._replace(end_ns=self.run.clock.unix_ns())
            self._faults[-1] = fault
        took_s = (fault.end_ns - fault.begin_ns) / SECOND_NS
        self.run.report.took("all well after a fault", took_s)
        return f"all well after {took_s:.1f} s; {self._acked:,} records acknowledged"

    @override
    def conclude(self) -> None:
        self._end_load()
        self._wait_well()
        self._stop()
        report = self.run.report
        report.counts["acknowledged"] = self._acked
        report.counts["batches refused, and sent again"] = len(self._sender.nacks)
        self.run.demand(self._acked > 0, "no record was acknowledged: the run proves nothing")
        issued = self._acked + _WINDOW * _BATCH
        report.broken += judge({_SENDER: each_once(self._acked, issued)}, self._landed())
        report.broken += self._grown()
        complaints = self._complaints()
        report.counts += Counter({f"explained: {it}": n for it, n in complaints.explained.items()})
        report.counts["errors not explained"] = len(complaints.unexplained)
        report.broken += [
            f"not explained by a fault: {it}" for it in complaints.unexplained[:_SHOWN]
        ]

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
                if f"{self._layout.config}/{part}.{suffix}" in command:
                    found[part].append(int(entry.name))
        return found

    @property
    def _acked(self) -> int:
        return self._sender.acked * _BATCH

    def _batch(self, number: int) -> list[bytes]:
        """Called on the sender's thread; waits until the batch is due."""
        due_ns = self._begun_ns + round(number * _BATCH / self.run.options.rate * SECOND_NS)
        left_s = (due_ns - self.run.clock.monotonic_ns()) / SECOND_NS
        self._idle.wait(max(left_s, 0.0))
        first = (number - 1) * _BATCH
        return [log_line(first + n, service=_SERVICE) for n in range(_BATCH)]

    def _end_load(self) -> None:
        if not self._idle.is_set():
            self._idle.set()
            self._sender.stop()
            self._sampling.join()

    def _wait_well(self) -> None:
        """Wait until each part says that all is well."""
        within = ("--wait", str(_RECOVERED_S), "--json")
        self._command("status", *within, within_s=_RECOVERED_S + 60)

    def _stop(self) -> None:
        """Drain and end it; nothing happens when that was done."""
        self._command("down", "--timeout", str(_DOWN_S), within_s=_DOWN_S + 60)

    def _command(self, command: str, *options: str, within_s: float) -> None:
        try:
            done = subprocess.run(
                [_PENSTOCK, command, "--dir", self._layout.root, *options],
                capture_output=True, text=True, check=False, timeout=within_s,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            message = f"penstock {command} takes more than {within_s:g} s"
            raise BrokenPromiseError(message) from None
        told = f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
        self.run.demand(
            done.returncode == 0, f"penstock {command} ended with {done.returncode}: {told}"
        )

    def _sample_until_idle(self) -> None:
        looks = 0
        while not self._idle.wait(_SAMPLE_S):
            begun = _children()
            for part, pids in self.pids().items():
                for name, pid in _with_descendants(part, pids, begun):
                    self._take(name, pid, _resident(pid))
                    if name.endswith(" java") and looks % _HEAP_EVERY == 0:
                        self._take(f"{name} heap", pid, _live_heap(pid))
            looks += 1

    def _take(self, name: str, pid: int, size: int) -> None:
        if size:
            sample = Sample(self.run.clock.monotonic_ns(), size)
            self._samples.setdefault((name, pid), []).append(sample)

    def _grown(self) -> list[str]:
        """A line for each process whose memory grows."""
        grown = [growth(part, pid, taken) for (part, pid), taken in sorted(self._samples.items())]
        self.run.report.facts["memory"] = [asdict(it) | {"flat": it.is_flat} for it in grown]
        return [
            f"{it.part} {it.pid} grows: {it.last_mib:.0f} MiB after {it.lived_s / 60:.0f} min;"
            f" minute by minute: {' '.join(map(str, it.curve_mib))} MiB"
            for it in grown
            if not it.is_flat
        ]

    def _landed(self) -> Iterator[Arrived]:
        """The publisher's records in the Parquet files, after the end."""
        for file in lake_files(self._layout.lake):
            if file.service != _SERVICE:
                continue
            for body in pq.ParquetFile(file.path).read(columns=["body"]).column("body").to_pylist():
                found = _BODY.fullmatch(body or "")
                yield (_SENDER, int(found[1])) if found else f"{file.path}: {body!r}"

    def _complaints(self) -> Complaints:
        """The errors in all logs."""
        found = Complaints()
        for path in sorted(self._layout.logs.glob("*.log*")):
            with path.open(errors="replace") as log:
                read_complaints(path.name.partition(".")[0], log, self._faults, found)
        return found


def _children() -> dict[int, list[tuple[str, int]]]:
    """Programs and numbers of the processes that each process has begun."""
    found: dict[int, list[tuple[str, int]]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                program, _, rest = (
                    (entry / "stat").read_text(errors="replace").partition("(")[2].rpartition(")")
                )
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


def _live_heap(pid: int) -> int:
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
