"""Counts are read from what the processes left behind."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.deploy.account.figures import CollectorFigures
from penstock.deploy.up.demo.lake import (
    KindTotal,
    lake_files,
    landed_offsets,
    rows_of_instance,
    severities,
    totals,
)
from penstock.deploy.up.demo.reconciliation import Landed
from penstock.deploy.up.demo.report import (
    AppReport,
    app_report,
    final_status,
)
from penstock.deploy.up.layout import Layout

SOURCE = {
    "recovered": 1, "received": 10, "delivered": 7, "filtered": 0, "quarantined": 1,
    "dropped": {"too_large": 2}, "held": 1, "difference": 0,
}  # fmt: skip


def test_the_last_final_status_counts(tmp_path: Path) -> None:
    log = tmp_path / "collector.log"
    assert final_status(log) is None
    lines = [{"event": "final_status", "status": {"name": name}} for name in ("old", "new")]
    log.write_text("\n".join([*map(json.dumps, lines), '{"event": "other"}', "final_status", ""]))
    assert final_status(log) == {"name": "new"}
    size = log.stat().st_size
    assert final_status(log, since=size) is None
    assert final_status(log, since=size + 1) == {"name": "new"}


def test_the_account_is_that_of_all_sources() -> None:
    status = {"info": {"reconciliation": {"unix": SOURCE, "file": SOURCE | {"repeated": 1}}}}
    account = CollectorFigures.read(status)
    assert account is not None
    assert (account.recovered, account.sent, account.held) == (2, 13, 2)
    assert account.went["quarantined"] == 2
    assert account.went["dropped (too_large)"] == 4
    assert (account.difference, account.acked) == (0, 10)


def test_a_collector_that_left_nothing_has_no_account() -> None:
    assert CollectorFigures.read({}) is None
    assert CollectorFigures.read({"info": {}}) is None


def test_the_apps_last_line_is_its_report(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    assert app_report(layout) is None
    layout.logs.mkdir()
    reports = [{"instance": i, "acked": {"log": n, "span": 2}} for i, n in (("a", 1), ("b", 3))]
    layout.log("app").write_text("started\n" + "\n".join(map(json.dumps, reports)) + "\n")
    assert app_report(layout) == AppReport("b", 5)


def _write(path: Path, offsets: list[int], *, service: str | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    count = len(offsets)
    own = {} if service is None else {"service": [service] * count}
    pq.write_table(
        pa.table(
            own
            | {
                "stream": ["logs"] * count,
                "offset": pa.array(offsets, pa.int64()),
                "severity_text": ["INFO"] * (count - 1) + [None],
                "service_instance_id": ["me"] * (count - 1) + ["other"],
            }
        ),
        path,
    )


def test_the_lake_is_read_from_its_files(tmp_path: Path) -> None:
    """In each row is its service, or in the path where the lake is parted by it."""
    _write(tmp_path / "kind=log/date=2026-01-01/hour=08/a.parquet", [0, 1, 2], service="shop")
    _write(tmp_path / "kind=log/service=shop/date=2026-01-02/b.parquet", [2, 3])
    _write(tmp_path / "kind=log/service=__HIVE_DEFAULT_PARTITION__/date=2026-01-02/c.parquet", [9])
    _write(tmp_path / "_writing/lake/000.parquet", [4])
    files = lake_files(tmp_path)
    assert landed_offsets(files) == {"logs": Landed(rows=6, offsets=5, first=0, last=9)}
    assert rows_of_instance(files, "me") == 3
    assert severities(files) == {"shop": {"info": 3, "unset": 2}, "(unknown)": {"unset": 1}}
    assert [(t.kind, t.rows, t.files) for t in totals(files)] == [("log", 6, 3)]
    assert all(isinstance(total, KindTotal) for total in totals(files))


def test_an_empty_lake_is_no_error(tmp_path: Path) -> None:
    files = lake_files(tmp_path / "nothing")
    assert (files, landed_offsets(files), totals(files), severities(files)) == ([], {}, [], {})
