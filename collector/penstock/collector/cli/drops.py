"""`penstock collector drops`: records that transforms dropped."""

import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import click

from penstock.base.pluralize import pluralize
from penstock.collector.cli.directories import journal_argument, opened
from penstock.collector.cli.records import Facts, Records, query_options, socket_option
from penstock.collector.drops.journal import find_drops
from penstock.collector.drops.query import RecordQuery
from penstock.collector.drops.sampler import Missed
from penstock.service.cli import PenstockGroup

_DIRECTORY = journal_argument("drops")
_PLACE = "/var/lib/penstock/collector"
_NOTHING = "the drop journal has none of them"
_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")


@click.group(cls=PenstockGroup, epilog="Example: penstock collector drops ls DIR")
def drops() -> None:
    """Look at records that transforms dropped: filtered, sampled, throttled, deduplicated.

    DIR is the collector's data directory. A running collector is asked through its admin socket.
    """


class _Journal:
    """The drop journal of a data directory, and the drops that it did not record."""

    def __init__(self, directory: Path, query: RecordQuery, socket_path: Path | None) -> None:
        self._query = query
        self._missed = Missed()
        self._records = Records(directory, "drops", "drop", self._read, socket_path)

    def find(self) -> Iterator[Facts]:
        yield from self._records.find(self._query)

    def missed(self) -> Counter[tuple[str, str, str]]:
        """Drops by source, step and reason that were not recorded; known after `find`."""
        found = Counter[tuple[str, str, str]]()
        for kind, count in self._missed.items():
            found[kind] += count
        for line in self._records.others:
            one = line["missed"]
            found[one["source"], one["step"], one["reason"]] += one["records"]
        return found

    def _read(self, directory: Path) -> Iterator[Facts]:
        with opened(directory) as log:
            yield from find_drops(log, self._query, self._missed)


@drops.command("ls", epilog=f"Example: penstock collector drops ls {_PLACE} --from 1h")
@_DIRECTORY
@query_options(step=True)
@_JSON
@socket_option
def drops_ls(
    directory: Path, query: RecordQuery, socket_path: Path | None, *, as_json: bool
) -> None:
    """Count what was dropped, by source, transform and reason.

    `not_recorded` counts drops that the journal has no record of, since they came faster than
    `drops.max_rate`.
    """
    journal = _Journal(directory, query, socket_path)
    counts = Counter((facts["source"], facts["step"], facts["reason"]) for facts in journal.find())
    missed = journal.missed()
    for key in sorted(counts.keys() | missed.keys()):
        source, step, reason = key
        if as_json:
            facts = {"source": source, "step": step, "reason": reason}
            facts |= {"recorded": counts[key], "not_recorded": missed[key]}
            click.echo(json.dumps(facts))
        else:
            more = f", {missed[key]:,} not recorded" if missed[key] else ""
            click.echo(f"{source} {step} {reason}: {counts[key]:,} recorded{more}")
    if not counts and not missed:
        click.echo(_NOTHING, err=True)


@drops.command(
    "show", epilog=f"\b\nExample:\n  penstock collector drops show {_PLACE} --service shop"
)
@_DIRECTORY
@query_options(step=True)
@_JSON
@socket_option
def drops_show(
    directory: Path, query: RecordQuery, socket_path: Path | None, *, as_json: bool
) -> None:
    """Print dropped records with the transform and the reason, oldest first."""
    journal = _Journal(directory, query, socket_path)
    shown = 0
    for facts in journal.find():
        click.echo(json.dumps(facts) if as_json else _line(facts))
        shown += 1
    if not shown:
        click.echo(_NOTHING, err=True)
    if missed := journal.missed().total():
        words = pluralize(missed, "further drop", form=",")
        click.echo(f"{words} not recorded: raise drops.max_rate to record more", err=True)


def _line(facts: Facts) -> str:
    moment = datetime.fromtimestamp(facts["time_unix_nano"] / 1e9, UTC)
    time = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    names = [
        f"{word} {facts[key]}"
        for word, key in (("trace", "trace_id"), ("record", "record_id"))
        if facts[key]
    ]
    first = f"{time} {facts['reason']} by {facts['step']}, source {facts['source']}"
    service = facts["service"] or "no service"
    return ", ".join([first, service, *names]) + f": {json.dumps(facts['text'])[1:-1]}"
