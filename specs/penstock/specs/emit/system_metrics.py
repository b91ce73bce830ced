"""Figures of the machine and this process, for every record.

Read at most once a second, by the first record after that; about 50 microseconds. Where
``/proc`` is not (only Linux has it), its figures are left out.
"""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

PERIOD_NS: Final = 1_000_000_000
_SET_BACK_NS: Final = 60 * PERIOD_NS
"""A record so much older than the last says that the clock was set back."""
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_NOTHING: Final[Mapping[str, Any]] = {}


class MachineFacts:
    """OpenTelemetry's system and process figures, as attributes.

    ``process.cpu.utilization`` and ``system.cpu.utilization``: share of all processors since the
    reading before, 0 to 1; absent at first. ``process.memory.usage``: bytes that are resident.
    ``system.memory.utilization``: share of memory that is not available, 0 to 1.

    Attributes:
        since_ns: Records from this Unix time on may have the figures that are known,
        until_ns: up to this one, which is not included.
    """

    def __init__(self, proc: Path = Path("/proc"), processors: int | None = None) -> None:
        self._proc = proc
        self._processors = processors or os.cpu_count() or 1
        self.since_ns = self.until_ns = 0
        self._before: tuple[float, float, float] | None = None
        self._facts: Mapping[str, Any] = _NOTHING

    def at(self, now_ns: int) -> Mapping[str, Any]:
        """The figures for a record of this Unix time: at most a second older than the newest."""
        if not self.since_ns <= now_ns < self.until_ns:
            self.since_ns, self.until_ns = now_ns - _SET_BACK_NS, now_ns + PERIOD_NS
            self._facts = self._read()
        return self._facts

    def _read(self) -> dict[str, Any]:
        facts: dict[str, Any] = {}
        try:
            up, idle = map(float, (self._proc / "uptime").read_bytes().split()[:2])
            facts |= self._utilization(up, idle)
            resident = int((self._proc / "self" / "statm").read_bytes().split()[1])
            facts["process.memory.usage"] = resident * _PAGE_BYTES
            facts["system.memory.utilization"] = self._memory()
        except (OSError, ValueError, IndexError, KeyError, ZeroDivisionError):
            return facts  # not Linux, or a container that hides it
        return facts

    def _utilization(self, up: float, idle: float) -> dict[str, float]:
        """Seconds since boot, and idle seconds of all processors since then, against before."""
        now, before = (up, idle, time.process_time()), self._before
        self._before = now
        if before is None or now[0] <= before[0]:
            return {}
        available = (now[0] - before[0]) * self._processors
        idle_share, own_share = ((now[i] - before[i]) / available for i in (1, 2))
        return {
            "process.cpu.utilization": _share(own_share),
            "system.cpu.utilization": _share(1 - idle_share),
        }

    def _memory(self) -> float:
        lines = (self._proc / "meminfo").read_bytes().splitlines()[:3]
        kib = {line.split(b":")[0]: int(line.split()[1]) for line in lines}
        return _share(1 - kib[b"MemAvailable"] / kib[b"MemTotal"])


def _share(value: float) -> float:
    return round(min(1.0, max(0.0, value)), 3)
