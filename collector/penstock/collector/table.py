"""What `penstock collector top` shows: a status, and what happened since the one before."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

_COLUMNS: Final = ("received/s", "sent/s", "held", "errors")
_NUMBER_WIDTH: Final = 11
_FIRST: Final = ("dropped", "failures", "quarantined", "waiting")
"""What is told first where there is little room."""


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
            used, most = info[name]["bytes"], info[name]["bytes_max"]
            share = 100 * used / most
            lines.append(
                _cut(f"{name:<13}{_bytes(used):>10} of {_bytes(most)} ({share:.1f} %)", width)
            )
    delivery = info.get("delivery")
    if delivery:
        flight, window = _bytes(delivery["flight_bytes"]), _bytes(delivery["window_bytes"])
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
