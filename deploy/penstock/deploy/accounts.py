"""The counts that the app and the collector leave behind when they end."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from penstock.deploy.core.reconcile import Account
from penstock.deploy.layout import Layout
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


def collector_account(status: Mapping[str, Any] | None) -> Account | None:
    """The collector's whole account: all its sources together."""
    sources = _reconciliation(status)
    if not sources:
        return None
    names = ("recovered", "received", "delivered", "filtered", "quarantined", "held")
    sums = {name: sum(source[name] for source in sources.values()) for name in names}
    return Account(**sums, dropped=sum(sum(s["dropped"].values()) for s in sources.values()))


def received_from_app(status: Mapping[str, Any] | None) -> int | None:
    """Records that came in through the Unix socket."""
    source = _reconciliation(status).get("unix")
    return None if source is None else int(source["received"])


def _reconciliation(status: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    info: Mapping[str, Any] = (status or {}).get("info", {})
    return cast("dict[str, dict[str, Any]]", info.get("reconciliation", {}))


def app_report(layout: Layout, *, since: int = 0) -> AppReport | None:
    """What the example app said in the last line it wrote; `since` as in `final_status`."""
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
