"""`penstock collector spool`: what waits in the spools of a collector."""

import asyncio
import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from penstock.base.errors import DamagedDataError, DrainCutShortError
from penstock.collector.agent.worker_plan import Share, config_of, left_behind
from penstock.collector.cli.directories import journal_argument, locked, of_workers, opened
from penstock.collector.config import load_collector_config
from penstock.collector.decode.units import decode_records
from penstock.collector.errors import UndecodableError
from penstock.collector.spool.journal import undamaged
from penstock.collector.spool.spool import Unit, decode_unit
from penstock.logd.format.frame import FrameHeader
from penstock.logd.offline.fsck import Inspection, PartitionReport, apply, plan
from penstock.service import configure_logs, run_until_stopped
from penstock.service.cli import FloatRange, IntRange, PenstockGroup

_DIRECTORY = journal_argument("spool", "spool-urgent", "quarantine")
_NOTHING = "no unit is there"
_SPOOL = "/var/lib/penstock/collector"


@click.group(cls=PenstockGroup, epilog="Example: penstock collector spool ls DIR")
def spool() -> None:
    """Look into a spool, mend it, deliver it; the collector that owns it must not run.

    DIR is the collector's data directory, or `spool-urgent` or `quarantine` in it. Each of several
    workers has its own, in DIR/workers/N.
    """


@spool.command("ls", epilog=f"Example: penstock collector spool ls {_SPOOL}")
@_DIRECTORY
def spool_ls(directory: Path) -> None:
    """List the units of a spool, one JSON object a line."""
    header = None
    for header, body in _frames(directory):
        facts: dict[str, Any] = {"offset": header.base_offset, "time": _time(header)}
        try:
            unit = decode_unit(header, body)
            facts |= {
                "source": unit.source,
                "format": unit.format,
                "kind": unit.kind,
                "records": unit.count,
                "bytes": len(unit.payload),
            }
        except UndecodableError as error:
            facts["error"] = str(error)
        click.echo(json.dumps(facts))
    if header is None:
        click.echo(_NOTHING, err=True)


@spool.command(
    "cat", epilog=f"\b\nExample:\n  penstock collector spool cat {_SPOOL} --from 17 --to 18"
)
@_DIRECTORY
@click.option("--from", "start", type=IntRange(min=0), help="First unit's offset.")
@click.option("--to", "end", type=IntRange(min=0), help="Offset after the last unit.")
@click.option("--source", help="Only what this source received.")
@click.option("--raw", is_flag=True, help="The bytes as they were received.")
def spool_cat(
    directory: Path, start: int | None, end: int | None, source: str | None, *, raw: bool
) -> None:
    """Print the records of a spool, one a line, as they are before they are checked.

    What cannot be read is named on standard error.
    """
    is_empty = True
    for header, body in _frames(directory, start, end):
        try:
            unit = decode_unit(header, body)
        except UndecodableError as error:
            is_empty = False
            click.echo(f"unit {header.base_offset}: {error}", err=True)
            continue
        if source is not None and unit.source != source:
            continue
        is_empty = False
        if raw:
            sys.stdout.buffer.write(unit.payload)
        else:
            _print(header.base_offset, unit)
    sys.stdout.flush()
    if is_empty:
        click.echo(_NOTHING, err=True)


def _print(offset: int, unit: Unit) -> None:
    decoded = decode_records(unit, {})
    for part in decoded.undecodable:
        click.echo(f"unit {offset}: record {part.index}: {part.reason}", err=True)
    for line in decoded.lines:
        sys.stdout.buffer.write(line + b"\n")


@spool.command("check", epilog=f"Example: penstock collector spool check {_SPOOL}")
@_DIRECTORY
def spool_check(directory: Path) -> None:
    """Read every frame and its checksum, changing nothing; exit with 65 when one is damaged."""
    _name_others(directory)
    with locked(directory):
        report = Inspection(directory).run()
    _show(report)


@spool.command(
    "repair", epilog=f"\b\nExample:\n  penstock collector spool repair {_SPOOL} --dry-run"
)
@_DIRECTORY
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
def spool_repair(directory: Path, *, dry_run: bool) -> None:
    """Put right what is safe to: torn tails, indexes, temporary files.

    What is cut off is copied beside its segment first. Damaged units stay as they are; the
    collector skips and counts them.
    """
    _name_others(directory)
    with locked(directory):
        inspection = Inspection(directory)
        inspection.run()
        actions = plan(inspection)
        for action in actions:
            click.echo(f"{'would do: ' if dry_run else ''}{action}")
        if not actions:
            click.echo("nothing to repair")
        if dry_run:
            return
        apply(actions)
        report = Inspection(directory).run()
    _show(report)


@spool.command("drain", epilog="Example: penstock collector spool drain --config collector.yaml")
@click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    required=True,
    help="Of the stopped collector.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=FloatRange(min=0, min_open=True),
    help="Seconds for each worker; without it, until all is delivered or it is interrupted.",
)
def spool_drain(config_path: Path, timeout_s: float | None) -> None:
    """Deliver what waits in a stopped collector's spools, its workers' too, and receive nothing.

    Exit code 75: not everything could be delivered; what is left stays, and may be tried again.
    """
    config = load_collector_config([config_path])
    from penstock.collector.agent.agent import Agent

    configure_logs("collector", level=config.log_level)
    shares = [Share(index, 1) for index in left_behind(config.data_dir, 1)]
    configs = [config, *(config_of(config, share) for share in shares)]

    async def main(stop: asyncio.Event) -> None:
        cut_short = None
        for index, one in enumerate(configs):
            if index and stop.is_set():
                left = ", ".join(str(other.data_dir) for other in configs[index:])
                raise DrainCutShortError(
                    f"interrupted: what {left} may hold was not delivered",
                    fix="nothing is lost: drain again, or start the collector",
                )
            try:
                await Agent(one, config_path, receives=False).run(stop, within_s=timeout_s)
            except DrainCutShortError as error:
                cut_short = error
        if cut_short is not None:
            raise cut_short

    run_until_stopped(main)


def _name_others(directory: Path) -> None:
    """Say which spools are not looked at."""
    for other in of_workers(directory).values():
        click.echo(f"{other}: another worker's spool, to be named by itself", err=True)


def _frames(
    directory: Path, start: int | None = None, end: int | None = None
) -> Iterator[tuple[FrameHeader, bytes]]:
    _name_others(directory)
    with opened(directory) as log:
        begin = max(start or 0, log.start_offset)
        for header, body in undamaged(log.frames, begin, salvage=True):
            if end is not None and header.base_offset >= end:
                return
            yield header, body


def _show(report: PartitionReport) -> None:
    """One JSON object.

    Raises:
        DamagedDataError: Something in it is damaged.
    """
    damaged = report.verdict == "damaged"
    click.echo(
        json.dumps(
            {
                "units": report.frames,
                "bytes": report.bytes,
                "damaged": damaged,
                "problems": [
                    {"file": p.file, "position": p.position, "reason": p.reason}
                    for p in report.problems
                ],
            }
        )
    )
    if damaged:
        raise DamagedDataError(
            f"{report.directory} is damaged",
            fix="start the collector: it skips and counts what is damaged",
        )


def _time(header: FrameHeader) -> str:
    return datetime.fromtimestamp(header.first_timestamp_ns / 1e9, UTC).isoformat()
