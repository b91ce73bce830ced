"""The console sink: how many records of which service and severity came, batch by batch.

It prints a small table, or a JSON line, for each batch and keeps the running totals in
`summary.json` in its state directory. The file also says up to which offset each partition is
counted, so a batch that comes again after a crash is counted once.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from penstock.base.files import atomic_write
from penstock.base.pluralize import pluralize
from penstock.router.delivery.batch_names import POSITION
from penstock.router.job.settings import SinkConfig
from penstock.router.sinks.sink import Guarantee, Replay, Sink, SinkContext

Key = tuple[str, str]
"""Service and severity; what has no severity is counted under its kind."""

UNKNOWN_SERVICE: Final = "-"
LINES_MAX: Final = 40
"""Rows of a printed table; the rest is summed up in one."""


class ConsoleSink(SinkConfig):
    """A summary by service and severity on standard output, and in a JSON file."""

    type: Literal["console"]
    format: Literal["text", "json"] = "text"

    @override
    def about(self) -> str:
        return "summary by service and severity on standard output"


class Console(Sink):
    """Counts and prints."""

    config_class = ConsoleSink
    guarantee = Guarantee(
        Replay.EXACTLY_ONCE,
        "totals in `checkpoint_dir`/SINK/summary.json count a record once; a batch may be printed"
        " twice",
    )
    columns = ("stream", "partition", "offset", "kind", "service", "severity_text", "status_code")

    def __init__(self, config: ConsoleSink, context: SinkContext) -> None:
        self._format = config.format
        self._context = context
        self._summary = context.state_dir / "summary.json"
        self._totals: Counter[Key] = Counter()
        self._next: dict[str, int] = {}

    @override
    def open(self) -> None:
        """Read the totals so far."""
        if self._summary.exists():
            document = json.loads(self._summary.read_text())
            self._next = document["next"]
            self._totals = Counter(
                {(row["service"], row["severity"]): row["records"] for row in document["totals"]}
            )

    @override
    def write(self, rows: pa.Table) -> None:
        """Count a batch, keep the totals, print both; nothing of a batch without rows."""
        if not rows.num_rows:
            return
        fresh, upto = self._not_counted(rows)
        counts = count_by_severity(fresh)
        totals = self._totals + counts
        moment = datetime.fromtimestamp(self._context.clock.unix_ns() // 10**9, UTC)
        summary = {
            "job": self._context.job,
            "sink": self._context.sink,
            "time": moment.isoformat(),
            "batch": _as_list(counts),
            "totals": _as_list(totals),
            "next": upto,
        }
        atomic_write(self._summary, json.dumps(summary, indent=1).encode(), parents=True)
        self._totals, self._next = totals, upto
        text = json.dumps(summary) if self._format == "json" else render(moment, counts, totals)
        print(text, file=sys.stdout, flush=True)  # noqa: T201 - this is a console
        self._context.meter.sent(rows.num_rows)

    def _not_counted(self, rows: pa.Table) -> tuple[pa.Table, dict[str, int]]:
        """The rows that no earlier batch counted, and the positions after them."""
        upto = dict(self._next)
        parts = rows.select(POSITION).group_by(["stream", "partition"])
        kept = []
        for part in parts.aggregate([("offset", "min")]).to_pylist():
            stream, partition = part["stream"], part["partition"]
            tag = self._context.stream_tag(stream, partition, part["offset_min"])
            name = f"{tag}/{partition}"
            of_part = pc.and_(
                pc.equal(rows.column("stream"), stream),
                pc.equal(rows.column("partition"), partition),
            )
            mine = rows.filter(of_part)
            kept.append(mine.filter(pc.greater_equal(mine.column("offset"), upto.get(name, 0))))
            upto[name] = max(upto.get(name, 0), pc.max(mine.column("offset")).as_py() + 1)
        return pa.concat_tables(kept), upto


def count_by_severity(rows: pa.Table) -> Counter[Key]:
    """Count rows by service and severity."""
    severity = pc.coalesce(
        rows.column("severity_text"),
        pc.if_else(
            pc.equal(rows.column("status_code"), "ERROR"),
            "span ERROR",
            pa.scalar(None, pa.string()),
        ),
        rows.column("kind"),
    )
    table = pa.table(
        {
            "service": pc.fill_null(rows.column("service"), UNKNOWN_SERVICE),
            "severity": severity,
        }
    )
    counted = table.group_by(["service", "severity"]).aggregate([([], "count_all")])
    return Counter(
        {(row["service"], row["severity"]): row["count_all"] for row in counted.to_pylist()}
    )


def render(moment: datetime, counts: Counter[Key], totals: Counter[Key]) -> str:
    """A table for people."""
    more = pluralize(counts.total(), "record", form=",")
    lines = [
        f"{moment:%H:%M:%S}  +{more}, {totals.total():,} in all",
        f"  {'service':<28} {'severity':<12} {'batch':>10} {'total':>12}",
    ]
    shown = sorted(counts)
    for service, severity in shown[:LINES_MAX]:
        key = (service, severity)
        lines.append(f"  {service:<28.28} {severity:<12.12} {counts[key]:>10,} {totals[key]:>12,}")
    if len(shown) > LINES_MAX:
        rest = sum(counts[key] for key in shown[LINES_MAX:])
        lines.append(f"  {f'and {len(shown) - LINES_MAX} more':<41} {rest:>10,}")
    return "\n".join(lines)


def _as_list(counts: Iterable[Key]) -> list[dict[str, Any]]:
    assert isinstance(counts, Counter)
    return [
        {"service": service, "severity": severity, "records": counts[service, severity]}
        for service, severity in sorted(counts)
    ]
