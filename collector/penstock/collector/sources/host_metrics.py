"""This host's figures as metric records, named as OpenTelemetry's conventions name them."""

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Self

import psutil
from pydantic import Field
from typing_extensions import override

from penstock.collector.decode.metrics import metric_line
from penstock.collector.sources.settings import SourceSettings
from penstock.collector.sources.source import Source, SourceContext
from penstock.collector.spool.writer import Payload, SpoolWriter

Attributes = Mapping[str, str]


class HostMetricsSettings(SourceSettings):
    """This host's cpu, memory, disk, network, load and filesystem figures."""

    type: Literal["host_metrics"]
    interval_s: float = Field(default=5.0, ge=0.1, le=3600)
    service: str = Field(default="penstock.host", min_length=1)


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement; a `sum` counts since boot, a `gauge` is what is now."""

    name: str
    unit: str
    value: float
    attributes: Attributes
    is_sum: bool = False
    is_monotonic: bool = True


Failed = Callable[[str, Exception], None]
"""Gets the name of a group of figures, or the mount point of a file system, that this host does not
have or does not let us read, and why."""


def measure(failed: Failed) -> Iterator[Point]:
    """Everything that can be measured now; what cannot be costs nothing else."""
    groups: dict[str, Callable[[], Iterator[Point]]] = {
        **_GROUPS, "filesystem": partial(_filesystem, failed)
    }  # fmt: skip
    for name, group in groups.items():
        try:
            yield from group()
        except (psutil.Error, OSError, AttributeError) as error:
            failed(name, error)


def encode_points(
    points: Iterator[Point], *, now_ns: int, boot_ns: int, resource: Mapping[str, Any]
) -> list[bytes]:
    """Points as record lines."""
    return [
        metric_line(
            point.name, point.unit, point.attributes, _typed(point, min(boot_ns, now_ns)),
            time_ns=now_ns, observed_ns=now_ns, resource=resource,
        )
        for point in points
    ]  # fmt: skip


def _typed(point: Point, start_ns: int) -> dict[str, Any]:
    if not point.is_sum:
        return {"metric_type": "gauge", "value": point.value}
    return {
        "metric_type": "sum",
        "value": point.value,
        "start_time_unix_nano": start_ns,
        "is_monotonic": point.is_monotonic,
        "temporality": "cumulative",
    }


def _cpu() -> Iterator[Point]:
    times = psutil.cpu_times()._asdict()
    for mode in ("user", "system", "idle", "iowait", "nice", "irq", "steal"):
        if mode in times:
            yield Point("system.cpu.time", "s", times[mode], {"cpu.mode": mode}, is_sum=True)
    busy = psutil.cpu_percent(interval=None) / 100
    yield Point("system.cpu.utilization", "1", busy, {})
    yield Point("system.cpu.logical.count", "{cpu}", psutil.cpu_count() or 1, {})


def _memory() -> Iterator[Point]:
    memory = psutil.virtual_memory()
    for state in ("used", "free", "cached", "buffers"):
        value = getattr(memory, state, None)
        if value is not None:
            yield Point("system.memory.usage", "By", value, {"system.memory.state": state})
    yield Point("system.memory.utilization", "1", memory.percent / 100, {})
    swap = psutil.swap_memory()
    yield Point("system.paging.usage", "By", swap.used, {"system.paging.state": "used"})
    yield Point("system.paging.usage", "By", swap.free, {"system.paging.state": "free"})


def _disk() -> Iterator[Point]:
    for device, counts in (psutil.disk_io_counters(perdisk=True) or {}).items():
        for direction, size, operations in (
            ("read", counts.read_bytes, counts.read_count),
            ("write", counts.write_bytes, counts.write_count),
        ):
            attributes = {"system.device": device, "disk.io.direction": direction}
            yield Point("system.disk.io", "By", size, attributes, is_sum=True)
            yield Point(
                "system.disk.operations", "{operation}", operations, attributes, is_sum=True
            )


def _network() -> Iterator[Point]:
    for name, counts in (psutil.net_io_counters(pernic=True) or {}).items():
        for direction, size, packets, errors in (
            ("receive", counts.bytes_recv, counts.packets_recv, counts.errin),
            ("transmit", counts.bytes_sent, counts.packets_sent, counts.errout),
        ):
            attributes = {"network.interface.name": name, "network.io.direction": direction}
            yield Point("system.network.io", "By", size, attributes, is_sum=True)
            yield Point("system.network.packet.count", "{packet}", packets, attributes, is_sum=True)
            yield Point("system.network.errors", "{error}", errors, attributes, is_sum=True)


def _load() -> Iterator[Point]:
    for minutes, value in zip((1, 5, 15), os.getloadavg(), strict=True):
        yield Point(f"system.cpu.load_average.{minutes}m", "1", value, {})


def _filesystem(failed: Failed) -> Iterator[Point]:
    for partition in psutil.disk_partitions(all=False):
        try:
            usage = psutil.disk_usage(partition.mountpoint)
        except OSError as error:
            failed(partition.mountpoint, error)
            continue
        where = {
            "system.device": partition.device,
            "system.filesystem.mountpoint": partition.mountpoint,
            "system.filesystem.type": partition.fstype,
        }
        for state, value in (("used", usage.used), ("free", usage.free)):
            attributes = {**where, "system.filesystem.state": state}
            yield Point("system.filesystem.usage", "By", value, attributes)
        yield Point("system.filesystem.utilization", "1", usage.percent / 100, where)


_GROUPS: Mapping[str, Callable[[], Iterator[Point]]] = {
    "cpu": _cpu,
    "memory": _memory,
    "disk": _disk,
    "network": _network,
    "load": _load,
}


class HostMetricsSource(Source):
    """Measures at a fixed interval; one round is one unit of the spool."""

    settings = HostMetricsSettings

    @classmethod
    @override
    def from_settings(cls, settings: Any, context: SourceContext) -> Self:
        resource = {**context.resource, "service.name": settings.service}
        return cls(settings.interval_s, resource, spool_writer=context.spool_writer())

    def __init__(
        self,
        interval_s: float,
        resource: Mapping[str, Any],
        *,
        spool_writer: SpoolWriter,
        measure: Callable[[Failed], Iterator[Point]] = measure,
    ) -> None:
        self.name = spool_writer.source
        self._interval_s = interval_s
        self._resource = resource
        self._spool_writer = spool_writer
        self._points = measure
        self._boot_ns = int(psutil.boot_time() * 1e9)
        self._stopping = asyncio.Event()
        self._named: set[str] = set()

    @override
    async def start(self) -> None:
        psutil.cpu_percent(interval=None)  # the first call only sets the reference point

    @override
    async def run(self) -> None:
        while not self._stopping.is_set():
            lines, missing = await asyncio.to_thread(self._measure)
            self._spool_writer.note("figures_missing", len(missing))
            for name in missing.keys() - self._named:
                self._named.add(name)
                self._spool_writer.log.warning("figures_missing", group=name, error=missing[name])
            await self._spool_writer.persist_or_drop(
                Payload("ndjson", b"\n".join(lines), len(lines))
            )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._stopping.wait()

    @override
    async def stop(self) -> None:
        self._stopping.set()

    def _measure(self) -> tuple[list[bytes], dict[str, str]]:
        """The lines of one round, and why figures are missing, by what they are of."""
        now_ns = self._spool_writer.clock.unix_ns()
        missing: dict[str, str] = {}

        def fail(name: str, error: Exception) -> None:
            missing[name] = str(error) or type(error).__name__

        lines = encode_points(
            self._points(fail), now_ns=now_ns, boot_ns=self._boot_ns, resource=self._resource
        )
        return lines, missing
