"""`penstock collector quarantine`: records that can never be delivered; another try."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from penstock.base.clock import SystemClock
from penstock.collector.agent.admin import ask_once
from penstock.collector.checkpoint.recovery import Sizes, open_data_directory
from penstock.collector.cli.directories import (
    is_running,
    journal_argument,
    of_workers,
    opened,
    socket_of,
)
from penstock.collector.cli.records import Facts, Records, query_options, socket_option
from penstock.collector.drops.query import RecordQuery
from penstock.collector.ledger import Ledger
from penstock.collector.spool.quarantine import facts_of, kept_in
from penstock.collector.spool.rejection_reasons import meaning
from penstock.collector.spool.replay import Outcome, Replayer, Wanted
from penstock.collector.spool.spool import Spool
from penstock.service import ExitCode, ServiceError
from penstock.service.cli import PenstockGroup

_DIRECTORY = journal_argument("quarantine")
_NOTHING = "nothing is in quarantine"
_NO_MATCH = "no record in quarantine matches: `penstock collector quarantine ls` counts them"
_QUARANTINE = "/var/lib/penstock/collector"
_SIZES = Sizes(spool=1 << 30, urgent=1 << 30, quarantine=1 << 30)
"""Sizes of a stopped collector's journals: a replay stops when its spool holds as many bytes."""


class ReplayStoppedError(ServiceError):
    """Error of a replay that could not put everything back."""

    exit_code = ExitCode.TEMPORARY


@click.group(cls=PenstockGroup, epilog="Example: penstock collector quarantine ls DIR")
def quarantine() -> None:
    """Look at records that can never be delivered, and try them again.

    DIR is the collector's data directory. A running collector is asked through its admin socket.
    """


@quarantine.command("ls", epilog=f"Example: penstock collector quarantine ls {_QUARANTINE}")
@_DIRECTORY
@query_options()
@socket_option
def quarantine_ls(directory: Path, query: RecordQuery, socket_path: Path | None) -> None:
    """Count what is in quarantine, by source and reason."""
    counts: Counter[tuple[str, str]] = Counter()
    replayed: Counter[tuple[str, str]] = Counter()
    for kept in _records(directory, socket_path).find(query):
        counts[kept["source"], kept["reason"]] += kept["records"]
        replayed[kept["source"], kept["reason"]] += kept["records"] * kept["replayed"]
    for key, count in sorted(counts.items()):
        facts = {"source": key[0], "reason": key[1], "records": count, "replayed": replayed[key]}
        click.echo(json.dumps(_explained(facts)))
    if not counts:
        click.echo(_NOTHING, err=True)


@quarantine.command("show", epilog=f"Example: penstock collector quarantine show {_QUARANTINE}")
@_DIRECTORY
@query_options()
@socket_option
def quarantine_show(directory: Path, query: RecordQuery, socket_path: Path | None) -> None:
    """Print every record in quarantine with its reason, one JSON object a line."""
    shown = 0
    for kept in _records(directory, socket_path).find(query):
        click.echo(json.dumps(_explained(kept)))
        shown += 1
    if not shown:
        click.echo(_NOTHING if query == RecordQuery() else _NO_MATCH, err=True)


def _explained(facts: dict[str, Any]) -> dict[str, Any]:
    """Add the meaning of a short reason behind it."""
    meant = meaning(facts["reason"])
    if meant is None:
        return facts
    found: dict[str, Any] = {}
    for name, value in facts.items():
        found[name] = value
        if name == "reason":
            found["meaning"] = meant
    return found


@quarantine.command(
    "replay",
    epilog=f"\b\nExample:\n  penstock collector quarantine replay {_QUARANTINE} --source app",
)
@_DIRECTORY
@click.option("--source", default="", help="Only what this source received.")
@click.option("--reason", default="", help="Only what has a reason that begins so.")
@click.option("--offset", "offsets", type=int, multiple=True, help="Only this one; repeatable.")
@socket_option
def quarantine_replay(
    directory: Path,
    source: str,
    reason: str,
    offsets: tuple[int, ...],
    socket_path: Path | None,
) -> None:
    """Put records back into the spool as they were received, each once, and mark them.

    A running collector is asked to, through its admin socket; a stopped one's are delivered when it
    starts. What is refused again is in quarantine again. Those of all workers are put back, also of
    such as run no more; with --offset only what DIR itself has.
    """
    wanted = Wanted(source, reason, frozenset(offsets))
    running = is_running(directory)
    outcome, workers = _replay_in(directory, wanted, socket_path)
    for index, other in ({} if offsets else of_workers(directory)).items():
        if str(index) in workers:
            continue
        workers.setdefault("0", asdict(outcome))
        try:
            more, _ = _replay_in(other, wanted, None)
        except ServiceError as error:
            more = Outcome(stopped=f"worker {index}: {error}")
        outcome.add(more)
        workers[str(index)] = asdict(more)
        if running and more.replayed and not is_running(other):
            click.echo(f"{other.parent}: delivered when the collector is started again", err=True)
    click.echo(json.dumps({**asdict(outcome), **({"workers": workers} if workers else {})}))
    if outcome.stopped:
        raise ReplayStoppedError(
            f"not everything was put back: {outcome.stopped}",
            fix="let the collector deliver what waits, and replay again",
        )


def _replay_in(
    directory: Path, wanted: Wanted, socket_path: Path | None
) -> tuple[Outcome, dict[str, Any]]:
    """Replay one quarantine, or through a running collector those of all its workers."""
    data_dir = directory.resolve().parent
    if not is_running(directory):
        return asyncio.run(_replay(data_dir, wanted)), {}
    request = {
        "do": "replay",
        "source": wanted.source,
        "reason": wanted.reason,
        "offsets": sorted(wanted.offsets),
    }
    answer = ask_once(socket_path or socket_of(data_dir), request)
    answer.pop("ok")
    workers = answer.pop("workers", {})
    return Outcome(**answer), workers


async def _replay(data_dir: Path, wanted: Wanted) -> Outcome:
    """Replay with the collector stopped."""
    found = open_data_directory(data_dir, _SIZES, where=str(data_dir))
    try:
        spool = Spool(found.spool, Ledger(), when_full=lambda _: "drop_newest")
        spool.recover(found.state.senders, found.state.cursor)
        replayer = Replayer(found.quarantine, spool, SystemClock(), done=found.state.replayed)
        commits = [asyncio.create_task(j.run()) for j in (found.quarantine, found.spool)]
        outcome = await replayer.replay(wanted)
        for commit in commits:
            commit.cancel()
        await asyncio.gather(*commits, return_exceptions=True)
        for journal in (found.quarantine, found.urgent, found.spool):
            await journal.close()
        return outcome
    finally:
        found.lock.release()


def _records(directory: Path, socket_path: Path | None) -> Records:
    return Records(directory, "quarantine", "kept", _read, socket_path)


def _read(directory: Path) -> Iterator[Facts]:
    with opened(directory) as log:
        for kept, replayed in kept_in(log):
            yield facts_of(kept, replayed=replayed)
