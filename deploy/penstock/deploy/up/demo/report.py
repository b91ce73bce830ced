"""The report at the end of `penstock demo`: what landed where, and whether all arrived."""

import json
import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from rich.table import Table
from rich.text import Text

from penstock.base.errors import ExitCode
from penstock.deploy.account.figures import CollectorFigures, Reading
from penstock.deploy.account.rows import Row, State, log_row, sink_row, worst
from penstock.deploy.account.table import account_table
from penstock.deploy.up.demo.failover import Failover
from penstock.deploy.up.demo.lake import (
    KindTotal,
    LakeFile,
    lake_files,
    landed_offsets,
    problem_rows,
    rows_of_instance,
    severities,
    totals,
)
from penstock.deploy.up.demo.reconciliation import Figures, Span, reconcile
from penstock.deploy.up.layout import Layout
from penstock.deploy.up.monitor import Monitor, Offsets
from penstock.deploy.up.progress import Screen
from penstock.deploy.up.topology import Topology
from penstock.service.admin import FINAL_STATUS

_TAIL_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class AppReport:
    """The example app's own account.

    Attributes:
        instance: Its `service.instance.id`, which every one of its records carries.
        acked: Records that were acknowledged, of every kind.
    """

    instance: str
    acked: int


def final_status(log: Path, *, since: int = 0) -> dict[str, Any] | None:
    """The status that a daemon logged as its last, None when it did not get that far.

    Args:
        log: Its log file, which holds earlier runs too.
        since: The size of the file when this run began.
    """
    for line in reversed(_tail(log, since)):
        if FINAL_STATUS not in line:
            continue
        document = _object(line)
        if document is not None and document.get("event") == FINAL_STATUS:
            return cast("dict[str, Any]", document["status"])
    return None


def app_report(layout: Layout, *, since: int = 0) -> AppReport | None:
    """Return the example app's report, the last line it wrote; `since` as in `final_status`."""
    for line in reversed(_tail(layout.log("app"), since)):
        report = _object(line)
        if report is not None and "acked" in report:
            return AppReport(str(report["instance"]), int(sum(report["acked"].values())))
    return None


def shown_by_console(checkpoint: Path, sink: str) -> int:
    """Records that a console sink has counted in all runs; 0 before its first batch."""
    summary = checkpoint / sink / "summary.json"
    if not summary.exists():
        return 0
    return sum(int(total["records"]) for total in json.loads(summary.read_text())["totals"])


def _tail(path: Path, since: int) -> list[str]:
    if not path.exists():
        return []
    with path.open("rb") as file:
        size = path.stat().st_size
        began = since if since <= size else 0  # a log that grew too large was set aside
        file.seek(max(began, size - _TAIL_BYTES))
        return file.read().decode(errors="replace").splitlines()


def _object(line: str) -> dict[str, Any] | None:
    try:
        document = json.loads(line)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


_SEVERITIES = ("trace", "debug", "info", "warn", "error", "fatal", "unset")


def conclude(
    topology: Topology,
    screen: Screen,
    restarts: Mapping[str, int],
    failover: Failover | None,
    watch: Monitor,
    *,
    json_path: Path | None,
) -> ExitCode:
    """Print the result, write it as JSON if asked for, and say how to exit."""
    files = lake_files(topology.layout.lake)
    landed, by_service = totals(files), severities(files)
    figures = _figures(topology, files, restarts, watch)
    findings = [*reconcile(figures), *rows_of_parts(watch.statuses)]
    for title, table in (
        ("What landed in the Parquet files, this run and earlier ones", landed_table(landed)),
        ("Log records by service and severity", severity_table(by_service)),
        ("Did everything arrive?", account_table(findings)),
    ):
        screen.console.print(Text(f"\n{title}", style="bold"))
        screen.console.print(table)
    if failover is not None:
        screen.console.print(Text(f"\n{failover.statement}"))
    verified = worst(findings) is not State.OFF
    screen.console.print()
    for line in _last_words(topology, findings, verified=verified):
        screen.console.print(line, soft_wrap=True)
    if json_path is not None:
        document = {"verified": verified, "failover": failover and asdict(failover)}
        _write_json(json_path, document, landed, by_service, findings)
    return ExitCode.OK if verified else ExitCode.FAILURE


def rows_of_parts(statuses: Mapping[str, dict[str, Any]]) -> list[Row]:
    """The accounts of logd and of the job's sinks, as of their last answers."""
    reading = Reading(statuses)
    rows = [log_row(part, None, figures) for part, figures in reading.logs().items()]
    for part, sinks in reading.sinks().items():
        rows += [sink_row(f"{part}/{sink}", figures) for sink, figures in sinks.items()]
    return rows


def _figures(
    topology: Topology, files: list[LakeFile], restarts: Mapping[str, int], watch: Monitor
) -> Figures:
    layout = topology.layout
    app = app_report(layout, since=watch.logs_began["app"])
    began = watch.logs_began["collector"]
    collector = final_status(layout.log("collector"), since=began)
    collector = collector or watch.statuses.get("collector")
    account = CollectorFigures.read(collector or {})
    return Figures(
        app_acked=app.acked if app else None,
        app_landed=rows_of_instance(files, app.instance) if app else 0,
        from_app=None if account is None else account.acked,
        collector=account,
        log_before=_spans(watch.offsets_before),
        log_after=_spans(watch.offsets_after),
        landed=landed_offsets(files),
        problems_landed=problem_rows(files),
        problems_shown=shown_by_console(layout.router_checkpoint, "problems"),
        restarted=frozenset(restarts),
        shared_log=topology.nats_url is not None,
    )


def _spans(offsets: Offsets | None) -> dict[str, Span]:
    return {name: Span(*span) for name, span in (offsets or {}).items()}


def landed_table(landed: list[KindTotal]) -> Table:
    """Rows, bytes and files by kind."""
    table = _table()
    table.add_column("kind")
    for title in ("rows", "KiB", "files"):
        table.add_column(title, justify="right")
    for total in landed:
        size = f"{total.bytes / 1024:,.0f}"
        table.add_row(total.kind, f"{total.rows:,}", size, f"{total.files:,}")
    rows, size, files = (sum(getattr(t, key) for t in landed) for key in ("rows", "bytes", "files"))
    table.add_section()
    table.add_row("all", f"{rows:,}", f"{size / 1024:,.0f}", f"{files:,}", style="bold")
    return table


def severity_table(by_service: Mapping[str, Mapping[str, int]]) -> Table:
    """Log records by service and severity."""
    shown = [name for name in _SEVERITIES if any(name in counts for counts in by_service.values())]
    table = _table()
    table.add_column("service")
    for name in shown:
        table.add_column(name, justify="right")
    for service, counts in sorted(by_service.items()):
        table.add_row(service, *(_count(name, counts.get(name, 0)) for name in shown))
    return table


def _count(severity: str, count: int) -> Text:
    style = {"error": "red", "fatal": "red", "warn": "yellow"}.get(severity, "") if count else "dim"
    return Text(f"{count:,}", style=style)


def _table() -> Table:
    return Table(box=None, header_style="dim", padding=(0, 2, 0, 0), pad_edge=False)


def _last_words(topology: Topology, findings: list[Row], *, verified: bool) -> list[Text]:
    root = topology.layout.root
    if not verified:
        failed = [f"{f.name}: {f.statement}" for f in findings if f.state is State.OFF]
        reasons = [Text(f"not verified: {reason}", style="bold red") for reason in failed]
        return [*reasons, Text(f"see the logs in {topology.layout.logs}")]
    query = (
        f"import pyarrow.dataset as d; t = d.dataset('{topology.layout.lake}/kind=log',"
        " partitioning='hive').head(5, columns=['time', 'body']); print(*t.to_pylist(), sep='\\n')"
    )
    return [
        Text("Everything that was accepted arrived, once.", style="bold green"),
        Text(f"files: {topology.layout.lake}   configuration and logs: {root}"),
        Text(f"problems, as they were routed to the console: {topology.layout.output('router')}"),
        Text(f'query: {shlex.quote(sys.executable)} -c "{query}"'),
    ]


def _write_json(
    path: Path,
    verdict: dict[str, Any],
    landed: list[KindTotal],
    by_service: Mapping[str, Mapping[str, int]],
    findings: list[Row],
) -> None:
    document = verdict | {
        "account": [row.as_dict() for row in findings],
        "landed": [asdict(total) for total in landed],
        "severities": by_service,
    }
    path.write_text(json.dumps(document, indent=2) + "\n")
