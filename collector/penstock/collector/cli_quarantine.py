"""`penstock collector quarantine`: records that can never be delivered; another try."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click

from penstock.collector.cli_spool import DIRECTORY
from penstock.collector.control import ask_once
from penstock.collector.core.ledger import Ledger
from penstock.collector.directories import is_running, opened, socket_of
from penstock.collector.opening import Sizes, open_data_directory
from penstock.collector.quarantine import Kept, Mark, read_quarantine
from penstock.collector.replay import Outcome, Replayer, Wanted
from penstock.collector.spool import Spool
from penstock.service import ExitCode, ServiceError
from penstock.service.clock import SystemClock
from penstock.service.command import PenstockGroup

_QUARANTINE = "/var/lib/penstock/collector/quarantine"
_SIZES = Sizes(spool=1 << 30, urgent=1 << 30, quarantine=1 << 30)
"""Of a stopped collector's journals: replaying stops when the spool holds so many bytes."""


class ReplayStoppedError(ServiceError):
    """Not everything could be put back."""

    exit_code = ExitCode.TEMPORARY


@click.group(cls=PenstockGroup, epilog="Example: penstock collector quarantine ls DIR")
def quarantine() -> None:
    """Look at records that can never be delivered, and try them again.

    DIR is `quarantine` in the collector's data directory.
    """


@quarantine.command("ls", epilog=f"Example: penstock collector quarantine ls {_QUARANTINE}")
@DIRECTORY
def quarantine_ls(directory: Path) -> None:
    """Count what is in quarantine, by source and reason."""
    counts: Counter[tuple[str, str]] = Counter()
    replayed: Counter[tuple[str, str]] = Counter()
    for kept, was_replayed in _entries(directory):
        counts[kept.source, kept.reason] += kept.count
        replayed[kept.source, kept.reason] += kept.count * was_replayed
    for key, count in sorted(counts.items()):
        facts = {"source": key[0], "reason": key[1], "records": count, "replayed": replayed[key]}
        click.echo(json.dumps(facts))


@quarantine.command("show", epilog=f"Example: penstock collector quarantine show {_QUARANTINE}")
@DIRECTORY
def quarantine_show(directory: Path) -> None:
    """Print every record in quarantine with its reason, one JSON object a line."""
    for kept, was_replayed in _entries(directory):
        click.echo(
            json.dumps(
                {
                    "offset": kept.offset,
                    "time_unix_nano": kept.time_ns,
                    "source": kept.source,
                    "reason": kept.reason,
                    "subject": kept.subject,
                    "records": kept.count,
                    "replayed": was_replayed,
                    "raw": kept.raw.decode("utf-8", "backslashreplace"),
                }
            )
        )


@quarantine.command(
    "replay", epilog=f"Example: penstock collector quarantine replay {_QUARANTINE} --source app"
)
@DIRECTORY
@click.option("--source", default="", help="Only what this source received.")
@click.option("--reason", default="", help="Only what has a reason that begins so.")
@click.option("--offset", "offsets", type=int, multiple=True, help="Only this one; repeatable.")
@click.option(
    "--socket",
    "socket_path",
    type=click.Path(path_type=Path),
    help="The running collector's admin socket, where it is not in the data directory.",
)
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
        outcome = Outcome(**answer)
    else:
        outcome = asyncio.run(_replay(data_dir, Wanted(source, reason, frozenset(offsets))))
    click.echo(json.dumps(asdict(outcome)))
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


def _entries(directory: Path) -> Iterator[tuple[Kept, bool]]:
    """Everything in a quarantine, and whether it was replayed."""
    with opened(directory) as log:
        marked = {entry.replays for entry in read_quarantine(log) if isinstance(entry, Mark)}
        for entry in read_quarantine(log):
            if isinstance(entry, Kept):
                yield entry, entry.offset in marked
