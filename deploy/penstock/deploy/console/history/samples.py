"""Samples of a pipeline: rates since the last sample, and present levels.

    kind        figures
    pipeline    received, stored, delivered: records/s · waiting_collectors, waiting_sinks: records
                errors, drops, app_drops: records/s · stored_bytes, spool_bytes, free_bytes
    stream      stored, errors, drops: records/s · waiting_sinks: records · stored_bytes
    collector   received, delivered, errors, drops, app_drops: records/s · waiting: records
                spool_bytes
    job         received, delivered, errors, drops: records/s · waiting: records
    sink        as a job; its name is that of the job's part, a slash, and its own

`drops` are records that will not arrive: of a collector those that it dropped, of a stream those
that logd lost, of a job and a sink its dead letters. `app_drops` are those that applications report
to have dropped before they sent them. A record waits at a sink from logd on.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.deploy.account.figures import number
from penstock.deploy.console.history.rings import Series
from penstock.deploy.console.rates import SECOND_NS, Rates
from penstock.deploy.console.snapshot import PartSnapshot, describe_routers

Sample = dict[Series, float]


@dataclass(slots=True)
class Meter:
    """Rates of counters between one look and the next; a counter that fell began again at 0."""

    _last: dict[Hashable, tuple[float, int]] = field(default_factory=dict)
    _now: dict[Hashable, tuple[float, int]] = field(default_factory=dict)

    def rate(self, key: Hashable, total: float, at_ns: int) -> float | None:
        """Return a counter's growth a second since the last sample; None: it was not seen then."""
        self._now[key] = (total, at_ns)
        before = self._last.get(key)
        if before is None or at_ns <= before[1]:
            return None
        grown = total - before[0] if total >= before[0] else total
        return grown * SECOND_NS / (at_ns - before[1])

    def end_look(self) -> None:
        """Forget counters that this sample did not see."""
        self._last, self._now = self._now, {}


class Sampler:
    """Looks at the pipeline."""

    def __init__(self) -> None:
        self._meter = Meter()

    def look(
        self,
        parts: Sequence[PartSnapshot],
        streams: Sequence[Mapping[str, Any]],
        *,
        free_bytes: int | None,
        now_ns: int,
    ) -> Sample:
        """A sample.

        Args:
            parts: The parts' last answers; those that do not answer now have no figures.
            streams: Partitions, as `penstock.deploy.console.streams.Streams.rows`; empty when logd
                does not answer.
            free_bytes: The room on the console's own disk, if that is known.
            now_ns: Monotonic.
        """
        well = [part for part in parts if part.health != "unreachable" and part.age_ms is not None]
        sample: Sample = {}
        routers = [part for part in well if part.component == "router"]
        collectors = [part for part in well if part.component == "collector"]
        for part in collectors:
            self._collector(part, sample, now_ns)
        behind = self._routers(routers, sample, now_ns)
        self._streams(streams, behind, sample, now_ns)
        for part in well:
            if part.component == "logd":
                self._logd(part, sample, now_ns)
        _sum_up(sample, free_bytes)
        self._meter.end_look()
        # What is of all comes first: it has a column even when there are too few.
        return dict(sorted(sample.items(), key=lambda one: one[0].kind == "stream"))

    def _rates(
        self, part: PartSnapshot, now_ns: int, counters: Iterable[tuple[str, str, float]]
    ) -> dict[str, float]:
        """Sums of rates by figure, of counters as (figure, what is counted, total)."""
        at_ns = now_ns - (part.age_ms or 0) * 1_000_000
        sums: dict[str, float] = {}
        for figure, counter, total in counters:
            rate = self._meter.rate((part.name, figure, counter), total, at_ns)
            if rate is not None:
                sums[figure] = sums.get(figure, 0.0) + rate
        return sums

    def _collector(self, part: PartSnapshot, sample: Sample, now_ns: int) -> None:
        counters: list[tuple[str, str, float]] = []
        waiting = 0
        for stage in part.stages():
            name = str(stage["name"])
            if name.startswith("source/"):
                counters.append(("received", name, number(stage.get("received"))))
                counters.append(("delivered", name, number(stage.get("sent"))))
                counters.append(("errors", name, number(stage.get("errors"))))
                waiting += number(stage.get("lag"))
        for source, account in part.info("reconciliation").items():
            for figure, key in (("drops", "dropped"), ("app_drops", "sender_dropped")):
                counted = account.get(key) if isinstance(account, Mapping) else None
                held = counted.values() if isinstance(counted, Mapping) else ()
                counters.append((figure, source, sum(number(one) for one in held)))
        for figure, rate in self._rates(part, now_ns, counters).items():
            sample[Series("collector", part.name, figure)] = rate
        spools = (part.info(name) for name in ("spool", "spool_urgent", "quarantine"))
        levels = {
            "waiting": waiting,
            "spool_bytes": sum(number(spool.get("bytes")) for spool in spools),
        }
        for figure, level in levels.items():
            sample[Series("collector", part.name, figure)] = level

    def _routers(
        self, parts: Sequence[PartSnapshot], sample: Sample, now_ns: int
    ) -> dict[str, int]:
        """Returns what waits of each stream, at the sink that is farthest behind."""
        behind: dict[str, int] = {}
        ages = {part.name: part for part in parts}
        for job in describe_routers(parts, Rates(SECOND_NS), now_ns):
            part, figures = ages[job["name"]], []
            for sink in job["sinks"]:
                counters = [
                    ("received", sink["name"], sink["received"]),
                    ("delivered", sink["name"], sink["sent"]),
                    ("errors", sink["name"], sink["errors"]),
                    ("drops", sink["name"], sink["dead_letters"]),
                ]
                found = self._rates(part, now_ns, counters) | {"waiting": sink["lag"]}
                figures.append(found)
                _keep(sample, "sink", f"{job['name']}/{sink['name']}", found)
                for stream, lag in sink["behind"].items():
                    behind[stream] = max(lag, behind.get(stream, 0))
            if figures:
                _keep(sample, "job", job["name"], _of_job(figures))
        return behind

    def _streams(
        self,
        rows: Sequence[Mapping[str, Any]],
        behind: Mapping[str, int],
        sample: Sample,
        now_ns: int,
    ) -> None:
        for row in rows:
            if row["end"] is None:
                continue
            key = ("stream", row["stream"], row["partition"])
            _add(sample, row["stream"], "stored", self._meter.rate(key, row["end"], now_ns))
            _add(sample, row["stream"], "stored_bytes", row["size"])
            if row["stream"] in behind:
                waiting = Series("stream", row["stream"], "waiting_sinks")
                sample[waiting] = behind[row["stream"]]

    def _logd(self, part: PartSnapshot, sample: Sample, now_ns: int) -> None:
        known = {series.name for series in sample if series.kind == "stream"}
        at_ns = now_ns - (part.age_ms or 0) * 1_000_000
        for stage in part.stages():
            name = str(stage["name"]).removeprefix("stream/")
            stream = name if name in known else name.rpartition("/")[0]
            if stream not in known:
                continue
            detail = stage.get("detail")
            lost = number(detail.get("lost")) if isinstance(detail, Mapping) else 0
            for figure, total in (("errors", number(stage.get("errors"))), ("drops", lost)):
                rate = self._meter.rate((part.name, name, figure), total, at_ns)
                _add(sample, stream, figure, rate)


def _keep(sample: Sample, kind: str, name: str, figures: Mapping[str, float]) -> None:
    for figure, value in figures.items():
        sample[Series(kind, name, figure)] = value


def _add(sample: Sample, stream: str, figure: str, value: float | None) -> None:
    if value is not None:
        series = Series("stream", stream, figure)
        sample[series] = sample.get(series, 0.0) + value


def _of_job(sinks: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Each sink is offered every record, so the busiest one says what a job receives."""
    found: dict[str, float] = {}
    for figure in ("received", "waiting"):
        values = [sink[figure] for sink in sinks if figure in sink]
        if values:
            found[figure] = max(values)
    for figure in ("delivered", "errors", "drops"):
        values = [sink[figure] for sink in sinks if figure in sink]
        if values:
            found[figure] = sum(values)
    return found


_OF_ALL = {
    ("collector", "received"): "received",
    ("collector", "waiting"): "waiting_collectors",
    ("collector", "app_drops"): "app_drops",
    ("collector", "drops"): "drops",
    ("collector", "errors"): "errors",
    ("collector", "spool_bytes"): "spool_bytes",
    ("stream", "stored"): "stored",
    ("stream", "drops"): "drops",
    ("stream", "errors"): "errors",
    ("stream", "stored_bytes"): "stored_bytes",
    ("job", "delivered"): "delivered",
    ("job", "waiting"): "waiting_sinks",
    ("job", "drops"): "drops",
    ("job", "errors"): "errors",
}
"""Figures of one thing that count for the pipeline, and their names there."""


def _sum_up(sample: Sample, free_bytes: int | None) -> None:
    found: dict[str, float] = {}
    for series, value in sample.items():
        figure = _OF_ALL.get((series.kind, series.figure))
        # logd's own streams hold no telemetry: they count for the disk alone.
        if figure is not None and (figure == "stored_bytes" or not series.name.startswith("__")):
            found[figure] = found.get(figure, 0.0) + value
    if free_bytes is not None:
        found["free_bytes"] = free_bytes
    _keep(sample, "pipeline", "", found)
