"""`penstock collector quarantine`: records that can never be delivered; another try."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from penstock.collector.control import ask, ask_once
from penstock.collector.core.ledger import Ledger
from penstock.collector.directories import is_running, journal_argument, opened, socket_of
from penstock.collector.opening import Sizes, open_data_directory
from penstock.collector.quarantine import facts_of, kept_in
from penstock.collector.replay import Outcome, Replayer, Wanted
from penstock.collector.spool import Spool
from penstock.service import ExitCode, ServiceError, UnavailableError
from penstock.service.clock import SystemClock
from penstock.service.command import PenstockGroup

_DIRECTORY = journal_argument("quarantine")
_QUARANTINE = "/var/lib/penstock/collector"
_SOCKET = click.option(
    "--socket",
    "socket_path",
    type=click.Path(path_type=Path),
    help="The running collector's admin socket, where it is not in the data directory.",
)
_SIZES = Sizes(spool=1 << 30, urgent=1 << 30, quarantine=1 << 30)
"""Of a stopped collector's journals: replaying stops when the spool holds so many bytes."""


class ReplayStoppedError(ServiceError):
    """Not everything could be put back."""

    exit_code = ExitCode.TEMPORARY


@click.group(cls=PenstockGroup, epilog="Example: penstock collector quarantine ls DIR")
def quarantine() -> None:
    """Look at records that can never be delivered, and try them again.

    DIR is the collector's data directory. A running collector is asked through its admin socket.
    """


@quarantine.command("ls", epilog=f"Example: penstock collector quarantine ls {_QUARANTINE}")
@_DIRECTORY
@_SOCKET
def quarantine_ls(directory: Path, socket_path: Path | None) -> None:
    """Count what is in quarantine, by source and reason."""
    counts: Counter[tuple[str, str]] = Counter()
    replayed: Counter[tuple[str, str]] = Counter()
    for kept in _kept(directory, socket_path):
        counts[kept["source"], kept["reason"]] += kept["records"]
        replayed[kept["source"], kept["reason"]] += kept["records"] * kept["replayed"]
    for key, count in sorted(counts.items()):
        facts = {"source": key[0], "reason": key[1], "records": count, "replayed": replayed[key]}
        click.echo(json.dumps(facts))


@quarantine.command("show", epilog=f"Example: penstock collector quarantine show {_QUARANTINE}")
@_DIRECTORY
@_SOCKET
def quarantine_show(directory: Path, socket_path: Path | None) -> None:
    """Print every record in quarantine with its reason, one JSON object a line."""
    for kept in _kept(directory, socket_path):
        click.echo(json.dumps(kept))


@quarantine.command(
    "replay", epilog=f"Example: penstock collector quarantine replay {_QUARANTINE} --source app"
)
@_DIRECTORY
@click.option("--source", default="", help="Only what this source received.")
@click.option("--reason", default="", help="Only what has a reason that begins so.")
@click.option("--offset", "offsets", type=int, multiple=True, help="Only this one; repeatable.")
@_SOCKET
def quarantine_replay(
    directory: Path,
    source: str,
    reason: str,
    offsets: tuple[int, ...],
    socket_path: Path | None,
) -> None:
    """Put records back into the spool as they were received, each once, and mark them.

    A running collector is asked to, through its admin socket; a stopped one's are delivered when it
    starts. What is refused again is in quarantine again.
    """
    data_dir = directory.resolve().parent
    if is_running(directory):
        request = {
            "do": "replay",
            "source": source,
            "reason": reason,
            "offsets": list(offsets),
        }
        answer = ask_once(socket_path or socket_of(data_dir), request)
        answer.pop("ok")
        workers = answer.pop("workers", None)
        outcome = Outcome(**answer)
    else:
        workers = None
        outcome = asyncio.run(_replay(data_dir, Wanted(source, reason, frozenset(offsets))))
    more = {} if workers is None else {"workers": workers}
    click.echo(json.dumps({**asdict(outcome), **more}))
    if outcome.stopped:
        raise ReplayStoppedError(
            f"not everything was put back: {outcome.stopped}",
            fix="let the collector deliver what waits, and replay again",
        )


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


def _kept(directory: Path, socket_path: Path | None) -> Iterator[dict[str, Any]]:
    """Everything in a quarantine; of a running collector through its admin socket."""
    if not is_running(directory):
        with opened(directory) as log:
            for kept, replayed in kept_in(log):
                yield facts_of(kept, replayed=replayed)
        return
    socket_path = socket_path or socket_of(directory.resolve().parent)
    for answer in ask(socket_path, {"do": "quarantine", "follow": True}):
        if "kept" in answer:
            yield answer["kept"]
        elif answer.get("ok"):
            return
        else:
            raise UnavailableError(str(answer.get("error")), fix="look at the collector's log")
    raise UnavailableError("the collector ended the connection", fix="look at its log")
