"""Commands that deliver again: replay a range of the log, look at dead letters and replay them."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import click

from penstock.logd.client import LogClient
from penstock.router.cli_job import job_argument, load_job
from penstock.router.clock import SystemClock
from penstock.router.config import JobConfig
from penstock.router.core.offsets import StreamPartition
from penstock.router.letters import find_letters
from penstock.router.replay_notes import typed
from penstock.service import ConfigError
from penstock.service.command import PenstockGroup
from penstock.service.positions import POSITION

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NS_PER_US: Final = 1000
_WHERE: Final = "An offset, earliest, latest, a time, or 15m ago."


@click.command(
    epilog="Example: penstock router replay job.yaml --sink lake --from 2026-01-31T03:00:00Z"
)
@job_argument
@click.option("--sink", required=True, help="The one sink that gets the records again.")
@click.option("--from", "begin", type=POSITION, required=True, help=_WHERE)
@click.option("--to", "end", type=POSITION, help=f"{_WHERE} Default: as far as the sink has come.")
@click.option("--stream", help="Only this stream; needed for offsets where the job has several.")
def replay(path: Path, sink: str, begin: Any, end: Any, stream: str | None) -> None:
    """Deliver a range of the log to one sink again, in its earlier batches; the job must not run.

    Batches come whole, as they were, so a sink that knows them replaces them.
    """
    from penstock.router.bounded import backfill, bounded_run

    job = load_job(path)
    _require_sink(job, sink)
    if stream is not None and stream not in job.streams:
        raise click.UsageError(f"the job does not read {stream!r}, only {', '.join(job.streams)}")
    if len(job.streams) > 1 and stream is None and any(isinstance(it, int) for it in (begin, end)):
        raise click.UsageError("name the stream that the offsets are of with --stream")
    with bounded_run(job, needs_lock=True) as run:
        first = {at: span.start for at, span in run.state.readable.items()}
        last: dict[StreamPartition, int | None] = dict.fromkeys(first)
        with LogClient(job.logd, access=job.source.access()) as log:
            for at, earliest in list(first.items()):
                if stream in (None, at.stream):
                    first[at] = _offset(log, at, begin)
                    last[at] = None if end is None else _offset(log, at, end)
                else:
                    last[at] = earliest
        asked = {"sink": sink, "from": _ends(first), "until": _ends(last)}
        with typed(job.dead_letters, SystemClock(), "range ", **asked) as replay:
            rows = replay.records = backfill(run, sink, first, last, click.echo)
    click.echo(f"{rows} records went to {sink} again")


def _ends(offsets: Mapping[StreamPartition, int | None]) -> dict[str, int | None]:
    return {f"{at.stream}-{at.partition}": offset for at, offset in offsets.items()}


def _offset(log: LogClient, at: StreamPartition, position: Any) -> int:
    if isinstance(position, int):
        return position
    if isinstance(position, datetime):
        time_ns = (position - _EPOCH) // timedelta(microseconds=1) * _NS_PER_US
        return log.offset_for_timestamp(at.stream, time_ns, at.partition)
    readable = log.offsets(at.stream, at.partition)
    return readable[0] if position == "earliest" else readable[1]


@click.group(cls=PenstockGroup, epilog="Example: penstock router dlq ls job.yaml")
def dlq() -> None:
    """Dead letters: list them, show them, deliver them again."""


_SINK = click.option("--sink", help="Only this sink's.")


@dlq.command("ls", epilog="Example: penstock router dlq ls job.yaml --sink search")
@job_argument
@_SINK
@click.option("--done", is_flag=True, help="Also those that were delivered again.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def dlq_ls(path: Path, *, sink: str | None, done: bool, as_json: bool) -> None:
    """List a job's files of dead letters, with their reasons."""
    for file in find_letters(load_job(path).dead_letters, sink=sink, done=done):
        it = file.summary()
        if as_json:
            click.echo(json.dumps(it))
            continue
        codes = ", ".join(f"{code} x {count}" for code, count in it["codes"].items())
        click.echo(f"{it['name']}  {it['state']}  {it['time']}  {codes}  {it['reason']}")


@dlq.command("show", epilog="Example: penstock router dlq show job.yaml search/logs.5f2c19aa-0-7-9")
@job_argument
@click.argument("names", nargs=-1, required=True)
def dlq_show(path: Path, names: tuple[str, ...]) -> None:
    """Show letters, a JSON object a line: record, sink, code, reason, attempt, time."""
    for file in find_letters(load_job(path).dead_letters, names=names, done=True):
        for letter in file.letters():
            click.echo(json.dumps(letter, ensure_ascii=False))


@dlq.command(
    "replay", epilog="Example: penstock router dlq replay job.yaml --sink search --to lake"
)
@job_argument
@click.argument("names", nargs=-1)
@_SINK
@click.option("--to", "target", help="The sink to deliver to. Default: the one that refused.")
def dlq_replay(path: Path, names: tuple[str, ...], sink: str | None, target: str | None) -> None:
    """Deliver dead letters again, through the target's routes; the job must not run.

    A file is marked as done once a sink has its records; what is refused again is a letter anew.
    """
    from penstock.router.bounded import bounded_run, replay_letters

    job = load_job(path)
    if target is not None:
        _require_sink(job, target)
    files = find_letters(job.dead_letters, sink=sink, names=names)
    if not files:
        click.echo("there are no dead letters")
        return
    with bounded_run(job, needs_lock=True, needs_log=False) as run:
        asked: dict[str, Any] = {"sink": sink, "to": target, "files": len(files)}
        with typed(job.dead_letters, SystemClock(), **asked) as replay:
            rows = replay.records = replay_letters(run, files, target, click.echo)
    click.echo(f"{rows} records were delivered again")


def _require_sink(job: JobConfig, name: str) -> None:
    if name not in job.sinks:
        raise ConfigError(
            f"the job has no sink {name!r}", fix=f"name one of {', '.join(job.sinks)}"
        )
