"""`penstock collector reload`, `tap` and `top`: a running collector, through its admin socket."""

import json
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from penstock.base.backoff import Backoff
from penstock.base.clock import SystemClock
from penstock.collector.agent.admin import ask, ask_once
from penstock.collector.agent.taps import POINTS
from penstock.collector.cli.directories import socket_of
from penstock.service import UnavailableError
from penstock.service.cli import FloatRange, IntRange

_COLUMNS: Final = ("received/s", "sent/s", "held", "errors")
_NUMBER_WIDTH: Final = 11
_FIRST: Final = ("dropped", "failures", "quarantined", "waiting")
"""The counts that are shown first where there is little room."""


def rates(
    before: Mapping[str, Any] | None, after: Mapping[str, Any], elapsed_s: float
) -> list[dict[str, Any]]:
    """A row a stage.

    Args:
        before: A status; None: there is none, and no rates.
        after: The status now.
        elapsed_s: Seconds between the two.
    """
    old = {} if before is None else {stage["name"]: stage for stage in before["stages"]}
    rows = []
    for stage in after["stages"]:
        last = old.get(stage["name"])
        row = {"stage": stage["name"], "held": stage["lag"], "errors": stage["errors"]}
        for key in ("received", "sent"):
            row[key] = stage[key]
            known = last is not None and elapsed_s > 0
            change = stage[key] - last[key] if known and last is not None else 0
            row[f"{key}_per_s"] = round(max(0, change) / elapsed_s, 1) if known else None
        details = [(key, count) for key, count in stage["detail"].items() if count]
        row["detail"] = dict(sorted(details, key=lambda item: not item[0].startswith(_FIRST)))
        rows.append(row)
    return rows


def render(status: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], *, width: int) -> str:
    """The table as text of at most so many columns."""
    names = [row["stage"] for row in rows]
    room = width - len(_COLUMNS) * _NUMBER_WIDTH
    name_width = max(12, min(max(map(len, names), default=0), room))
    wide = room - name_width
    head = f"{status['name']}  {status['health']}"
    lines = [_cut(head, width)]
    lines += [_cut(f"  ! {reason}", width) for reason in status["reasons"]]
    title = f"{'stage':<{name_width}}" + "".join(f"{name:>{_NUMBER_WIDTH}}" for name in _COLUMNS)
    lines += ["", title]
    for row in rows:
        numbers = (
            _rate(row["received_per_s"]),
            _rate(row["sent_per_s"]),
            row["held"],
            row["errors"],
        )
        text = f"{_cut(row['stage'], name_width):<{name_width}}"
        text += "".join(f"{number:>{_NUMBER_WIDTH}}" for number in numbers)
        detail = "  " + " ".join(f"{key}={count}" for key, count in row["detail"].items())
        lines.append((text + _cut(detail, wide) if wide > 4 and row["detail"] else text).rstrip())
    lines += ["", *_footer(status["info"], width)]
    return "\n".join(lines)


def _footer(info: Mapping[str, Any], width: int) -> list[str]:
    lines = []
    for name in ("spool", "spool_urgent", "quarantine"):
        if name in info:
            used, most = info[name]["bytes"], info[name]["max_bytes"]
            share = 100 * used / most
            lines.append(
                _cut(f"{name:<13}{_bytes(used):>10} of {_bytes(most)} ({share:.1f} %)", width)
            )
    delivery = info.get("delivery")
    if delivery:
        flight, window = _bytes(delivery["in_flight_bytes"]), _bytes(delivery["window_bytes"])
        shortest_ms = delivery["ack_shortest_s"] * 1000
        lines.append(
            _cut(
                f"{'in flight':<13}{flight:>10} of {window}, acks from {shortest_ms:.1f} ms", width
            )
        )
    off = sum(account["difference"] for account in info.get("reconciliation", {}).values())
    lines.append(_cut("account      balances" if not off else f"account      OFF BY {off}", width))
    return lines


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


_RETRY_FIRST_S: Final = 0.1
_RETRY_MAX_S: Final = 5.0
_CLEAR = "\x1b[H\x1b[J"
_Function = Callable[..., Any]


def _place(function: _Function) -> _Function:
    """Return the collector's data directory or its socket."""
    return click.argument(
        "place",
        metavar="DIR",
        type=click.Path(path_type=Path, exists=True),
    )(function)


def _socket(place: Path) -> Path:
    return socket_of(place) if place.is_dir() else place


@click.command(epilog="Example: penstock collector reload /var/lib/penstock/collector")
@_place
def reload(place: Path) -> None:
    """Let the collector with the data directory DIR read its configuration again.

    Parts whose configuration did not change go on. When the new configuration cannot be used,
    nothing changes and the command prints the reason: exit code 78 when the configuration is wrong,
    69 when something cannot be reached. DIR may also be the collector's admin socket.
    """
    answer = ask_once(_socket(place), {"do": "reload"})
    click.echo(json.dumps(answer["report"]))


@click.command(
    epilog="\b\nExample:\n"
    "  penstock collector tap /var/lib/penstock/collector --point out --source app"
)
@_place
@click.option(
    "--point", type=click.Choice(POINTS), default="out", show_default=True,
    help="Look at what comes in, what is published, or what goes to quarantine.",
)  # fmt: skip
@click.option("--source", default="*", help="Only sources with such a name, as in app*.")
@click.option("--subject", default="*", help="Only such subjects; with --point out.")
@click.option("--every", type=IntRange(min=1), default=1, help="Show one of so many.")
@click.option("--limit", type=IntRange(min=1), help="End after so many.")
def tap(place: Path, point: str, source: str, subject: str, every: int, limit: int | None) -> None:
    """Show records as they pass, one JSON object a line; no record waits for a slow reader.

    It goes on after the collector was away, and says so once.

    `in`: as they were decoded; `out`: as they go into the log; `quarantine`: what was refused, and
    why. `missed` counts those that were not shown because they came too fast.
    """
    request = {
        "do": "tap",
        "follow": True,
        "point": point,
        "source": source,
        "subject": subject,
        "every": every,
    }
    shown = 0
    for answer in _following(_socket(place), request):
        if answer.get("ok") is False:
            raise UnavailableError(str(answer["error"]), fix="mend what it says")
        if "record" in answer:
            click.echo(json.dumps(answer))
            sys.stdout.flush()
            shown += 1
            if shown == limit:
                return


@click.command(epilog="Example: penstock collector top /var/lib/penstock/collector")
@_place
@click.option(
    "--interval", type=FloatRange(min=0.1), default=1.0, show_default=True,
    help="Seconds from one look to the next.",
)  # fmt: skip
@click.option("--once", is_flag=True, help="Show one interval, and end.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object an interval.")
def top(place: Path, interval: float, *, once: bool, as_json: bool) -> None:
    """Show the stages of the collector with the data directory DIR, until it is interrupted."""
    clock, pause = SystemClock(), threading.Event()
    before: dict[str, Any] | None = None
    before_ns, path, away = 0, _socket(place), _Away()
    while True:
        try:
            status = ask_once(path, {"do": "status"})["status"]
        except UnavailableError as error:
            if once or before_ns == 0:
                raise
            before = None  # it counts from zero after a restart
            away.wait(error.reason)
            continue
        away.over()
        now_ns = clock.monotonic_ns()
        if before is not None or not once:
            rows = rates(before, status, (now_ns - before_ns) / 1e9)
            _show(status, rows, as_json=as_json, clear=not once)
            if once:
                return
        before, before_ns = status, now_ns
        pause.wait(interval)


def _following(path: Path, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Answers without end: it is asked again when the collector was away.

    Raises:
        UnavailableError: There was none to begin with.
    """
    reached, away = False, _Away()
    while True:
        try:
            for answer in ask(path, request):
                away.over()
                yield answer
        except UnavailableError as error:
            if not reached:
                raise
            away.wait(error.reason)
        else:
            reached = True
            away.wait("the collector ended the connection")


class _Away:
    """Waits for a collector that does not answer, longer each time, and says so once."""

    def __init__(self) -> None:
        self._backoff = Backoff(_RETRY_FIRST_S, _RETRY_MAX_S)

    def wait(self, problem: str) -> None:
        """Wait until it is worth asking again."""
        if not self._backoff.failures:
            click.echo(f"{problem}; it is tried again", err=True)
        threading.Event().wait(self._backoff.next_wait())

    def over(self) -> None:
        """It answers."""
        if self._backoff.failures:
            click.echo("the collector answers again", err=True)
        self._backoff.reset()


def _show(
    status: dict[str, Any], rows: list[dict[str, Any]], *, as_json: bool, clear: bool
) -> None:
    if as_json:
        facts = {key: status[key] for key in ("name", "health", "reasons")}
        click.echo(json.dumps({**facts, "stages": rows, "info": status["info"]}))
    else:
        text = render(status, rows, width=shutil.get_terminal_size((80, 24)).columns)
        click.echo(f"{_CLEAR if clear and sys.stdout.isatty() else ''}{text}")
    sys.stdout.flush()
