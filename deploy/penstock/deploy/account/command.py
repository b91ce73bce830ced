"""`penstock account`: ask every part twice, and say whether every record is accounted for."""

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from penstock.base.clock import SystemClock
from penstock.base.errors import ExitCode, UnavailableError
from penstock.deploy.account.figures import Reading
from penstock.deploy.account.rows import Row, State, rows_of, worst
from penstock.deploy.account.table import account_table
from penstock.deploy.status import running_parts
from penstock.deploy.up.probe import get_json

READING_S: Final = 0.5
"""Seconds between two readings of all parts."""

_NATS: Final = "nats"
_WORDS: Final = {
    State.BALANCED: ("Every record is accounted for.", "bold green"),
    State.SETTLING: ("Records are on their way; nothing is missing beyond them.", "yellow"),
    State.UNKNOWN: ("Not everything could be compared.", "yellow"),
    State.OFF: ("Records are not accounted for: keep the logs of the parts named.", "bold red"),
}


def show_account(
    *, directory: Path | None, urls: tuple[str, ...], wait_s: float, as_json: bool
) -> None:
    """Print the account and exit: 0 balanced, 1 not, 69 when a part could not be asked.

    A console among the parts answers for all that it knows, and since it was started. Else the
    parts are asked here.

    Args:
        directory: The launch's directory, if it is not one of the usual.
        urls: Admin endpoints to ask instead.
        wait_s: Seconds to wait while rows settle or parts do not answer.
        as_json: Instead of a table.

    Raises:
        UnavailableError: Nothing runs there.
    """
    parts = {url: url for url in urls} if urls else running_parts(directory)["parts"]
    rows = asyncio.run(read_account(parts, wait_s))
    state = worst(rows)
    if as_json:
        document = {"state": state, "rows": [row.as_dict() for row in rows]}
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        console = Console(highlight=False)
        console.print(account_table(rows))
        words, style = _WORDS[state]
        console.print(Text(f"\n{words}", style=style))
    sys.exit(exit_code(rows))


def exit_code(rows: list[Row]) -> ExitCode:
    """The exit code that says what the rows say."""
    if worst(rows) is State.OFF:
        return ExitCode.FAILURE
    silent = any(row.state is State.UNKNOWN and row.is_silent for row in rows)
    return ExitCode.UNAVAILABLE if silent else ExitCode.OK


async def read_account(parts: Mapping[str, str], wait_s: float) -> list[Row]:
    """Read the parts until every row is settled or the time is over.

    Raises:
        UnavailableError: No part answers.
    """
    clock = SystemClock()
    until_ns = clock.monotonic_ns() + int(wait_s * 1e9)
    before = await _read(parts)
    while True:
        await asyncio.sleep(READING_S)
        after = await _read(parts)
        rows = _of_console(after)
        rows = rows_of(before, after) if rows is None else rows
        settled = worst(rows) is not State.SETTLING and not any(row.is_silent for row in rows)
        if settled or clock.monotonic_ns() >= until_ns:
            break
        before = after
    if not any(after.statuses.values()):
        raise UnavailableError(
            f"nothing answers at {', '.join(parts.values())}", fix="start it with: penstock up"
        )
    return rows


async def _read(parts: Mapping[str, str]) -> Reading:
    asked = {name: url for name, url in parts.items() if name != _NATS}
    answers = await asyncio.gather(
        *(get_json(f"{url.rstrip('/')}/status") for url in asked.values())
    )
    return Reading(dict(zip(asked, answers, strict=True)))


def _of_console(reading: Reading) -> list[Row] | None:
    """The rows of the first console that answered; None: there is none, or it has none yet."""
    for _, status in reading.of("console"):
        account: Any = status.get("info", {}).get("account")
        if isinstance(account, list) and account:
            return [Row.read(row) for row in account]
    return None
