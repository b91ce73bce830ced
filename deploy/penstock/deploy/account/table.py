"""The account as a table for people."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from penstock.deploy.account.rows import Row, State

_MARKS = {
    State.BALANCED: ("ok", "green"),
    State.SETTLING: ("settling", "yellow"),
    State.UNKNOWN: ("?", "yellow"),
    State.OFF: ("WRONG", "bold red"),
}


def account_table(rows: Sequence[Row]) -> Table:
    """Each row with its counts, its difference and what that means."""
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0), pad_edge=False)
    for title in ("", "stage", "part", "counts"):
        table.add_column(title)
    table.add_column("difference", justify="right")
    for row in rows:
        mark, style = _MARKS[row.state]
        part = Text(row.part, style="bold red" if row.state is State.OFF else "")
        compared = bool(row.came or row.went)
        difference = Text(f"{row.difference:,}" if compared else "", style=style)
        table.add_row(Text(mark, style=style), row.stage, part, row.statement, difference)
    return table
