"""How `penstock demo` ends: what landed where, and whether all of it arrived."""

import json
import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from penstock.base.errors import ExitCode
from penstock.deploy.accounts import (
    app_report,
    collector_account,
    final_status,
    received_from_app,
    shown_by_console,
)
from penstock.deploy.core.reconcile import Figures, Finding, Span, reconcile
from penstock.deploy.lake import (
    KindTotal,
    LakeFile,
    lake_files,
    landed_offsets,
    problem_rows,
    rows_of_instance,
    severities,
    totals,
)
from penstock.deploy.progress import Screen
from penstock.deploy.topology import Topology
from penstock.deploy.watch import Offsets, Watch

if TYPE_CHECKING:
    from penstock.deploy.launch import Outcome

_SEVERITIES = ("trace", "debug", "info", "warn", "error", "fatal", "unset")


def conclude(
    topology: Topology,
    screen: Screen,
    outcome: "Outcome",
    watch: Watch,
    json_path: Path | None,
) -> ExitCode:
    """Print the result, write it as JSON if asked for, and say how to exit."""
    files = lake_files(topology.layout.lake)
    landed, by_service = totals(files), severities(files)
    figures = _figures(topology, files, outcome.restarts, watch)
    findings = reconcile(figures)
    for title, table in (
        ("What landed in the Parquet files, this run and earlier ones", landed_table(landed)),
        ("Log records by service and severity", severity_table(by_service)),
        ("Did everything arrive?", findings_table(findings)),
    ):
        screen.console.print(Text(f"\n{title}", style="bold"))
        screen.console.print(table)
    if outcome.failover is not None:
        screen.console.print(Text(f"\n{outcome.failover.statement}"))
    verified = all(finding.holds is not False for finding in findings)
    screen.console.print()
    for line in _last_words(topology, findings, verified=verified):
        screen.console.print(line, soft_wrap=True)
    if json_path is not None:
        document = {"verified": verified, "failover": outcome.failover and asdict(outcome.failover)}
        _write_json(json_path, document, landed, by_service, findings)
    return ExitCode.OK if verified else ExitCode.FAILURE


def _figures(
    topology: Topology, files: list[LakeFile], restarts: Mapping[str, int], watch: Watch
) -> Figures:
    layout = topology.layout
    app = app_report(layout, since=watch.logs_began["app"])
    began = watch.logs_began["collector"]
    collector = final_status(layout.log("collector"), since=began)
    collector = collector or watch.statuses.get("collector")
    return Figures(
        app_acked=app.acked if app else None,
        app_landed=rows_of_instance(files, app.instance) if app else 0,
        from_app=received_from_app(collector),
        collector=collector_account(collector),
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
    """Rows, bytes and files by kind and service."""
    table = _table()
    for title in ("kind", "service"):
        table.add_column(title)
    for title in ("rows", "KiB", "files"):
        table.add_column(title, justify="right")
    kind_before = ""
    for total in landed:
        kind = "" if total.kind == kind_before else total.kind
        kind_before = total.kind
        size = f"{total.bytes / 1024:,.0f}"
        table.add_row(kind, total.service, f"{total.rows:,}", size, f"{total.files:,}")
    rows, size, files = (sum(getattr(t, key) for t in landed) for key in ("rows", "bytes", "files"))
    table.add_section()
    table.add_row("all", "", f"{rows:,}", f"{size / 1024:,.0f}", f"{files:,}", style="bold")
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


def findings_table(findings: list[Finding]) -> Table:
    """Each comparison with its verdict."""
    table = _table()
    for title in ("", "stage", "counts"):
        table.add_column(title)
    marks = {True: ("ok", "green"), False: ("WRONG", "bold red"), None: ("?", "yellow")}
    for finding in findings:
        text, style = marks[finding.holds]
        table.add_row(Text(text, style=style), finding.name, finding.statement)
    return table


def _table() -> Table:
    return Table(box=None, header_style="dim", padding=(0, 2, 0, 0), pad_edge=False)


def _last_words(topology: Topology, findings: list[Finding], *, verified: bool) -> list[Text]:
    root = topology.layout.root
    if not verified:
        failed = [f"{f.name}: {f.statement}" for f in findings if f.holds is False]
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
    findings: list[Finding],
) -> None:
    document = verdict | {
        "findings": [asdict(finding) for finding in findings],
        "landed": [asdict(total) for total in landed],
        "severities": by_service,
    }
    path.write_text(json.dumps(document, indent=2) + "\n")
