"""`penstock collector`: run the agent, look into its spool and its quarantine."""

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from penstock.collector.cli_sources import describe_sources
from penstock.collector.config import CollectorConfig
from penstock.collector.errors import UndecodableError
from penstock.collector.quarantine import read_quarantine
from penstock.collector.spool import decode_unit
from penstock.logd.errors import CorruptError, LogdError
from penstock.logd.frame import FrameHeader
from penstock.logd.store import CommitLog, DirectoryLock, LogConfig
from penstock.service import (
    ExitCode,
    UnavailableError,
    check_only,
    configure_logs,
    load_config,
    run_until_stopped,
)
from penstock.service.command import PenstockGroup, check_option, config_option
from penstock.service.errors import ServiceError

ENV_PREFIX = "PENSTOCK_COLLECTOR"
_DIRECTORY = click.argument(
    "directory", type=click.Path(path_type=Path, exists=True, file_okay=False)
)


class DamagedError(ServiceError):
    """What was looked at is damaged."""

    exit_code = ExitCode.DATA


@click.group(
    cls=PenstockGroup,
    invoke_without_command=True,
    epilog="Example: penstock collector --config collector.yaml",
)
@config_option
@check_option
@click.pass_context
def cli(context: click.Context, config_path: Path | None, *, check: bool) -> None:
    """Collect telemetry on this host and bring it to the log."""
    if context.invoked_subcommand is not None:
        return
    if config_path is None:
        raise click.UsageError("--config FILE is needed to run the collector", context)
    config = load_config(CollectorConfig, config_path, env_prefix=ENV_PREFIX)
    if check:
        click.echo(check_only(config, config_path))
        return
    from penstock.collector.agent import Agent

    configure_logs("collector", level=config.log_level)

    async def main(stop: Any) -> None:
        await Agent(config, config_path).run(stop)

    run_until_stopped(main)


@cli.command(epilog="Example: penstock collector sources")
def sources() -> None:
    """List the types of sources and their options."""
    for line in describe_sources():
        click.echo(line)


@cli.group(cls=PenstockGroup, epilog="Example: penstock collector spool ls DIR")
def spool() -> None:
    """Look into a spool; the collector that owns it must not run."""


@spool.command(
    "ls", epilog="Example: penstock collector spool ls /var/lib/penstock/collector/spool"
)
@_DIRECTORY
def spool_ls(directory: Path) -> None:
    """List the units of a spool, one JSON object a line."""
    for header, body in _frames(directory):
        facts: dict[str, Any] = {"offset": header.base_offset, "time": _time(header)}
        try:
            unit = decode_unit(header, body)
            facts |= {
                "source": unit.source,
                "format": unit.format,
                "records": unit.count,
                "bytes": len(unit.payload),
            }
        except UndecodableError as error:
            facts["error"] = str(error)
        click.echo(json.dumps(facts))


@spool.command(
    "check", epilog="Example: penstock collector spool check /var/lib/penstock/collector/spool"
)
@_DIRECTORY
def spool_check(directory: Path) -> None:
    """Read every frame and its checksum; exit with 65 when one is damaged."""
    count = size = 0
    for header, _ in _frames(directory):
        count += 1
        size += header.frame_length
    click.echo(json.dumps({"units": count, "bytes": size, "damaged": False}))


@cli.group(cls=PenstockGroup, epilog="Example: penstock collector quarantine ls DIR")
def quarantine() -> None:
    """Look at records that can never be delivered."""


@quarantine.command(
    "ls", epilog="Example: penstock collector quarantine ls /var/lib/penstock/collector/quarantine"
)
@_DIRECTORY
def quarantine_ls(directory: Path) -> None:
    """Count what is in quarantine, by source and reason."""
    counts: dict[tuple[str, str], int] = {}
    with _opened(directory) as log:
        for kept in read_quarantine(log):
            key = (kept.source, kept.reason)
            counts[key] = counts.get(key, 0) + kept.count
    for (source, reason), count in sorted(counts.items()):
        click.echo(json.dumps({"source": source, "reason": reason, "records": count}))


@quarantine.command(
    "show",
    epilog="Example: penstock collector quarantine show /var/lib/penstock/collector/quarantine",
)
@_DIRECTORY
def quarantine_show(directory: Path) -> None:
    """Print every record in quarantine with its reason, one JSON object a line."""
    with _opened(directory) as log:
        for kept in read_quarantine(log):
            click.echo(
                json.dumps(
                    {
                        "offset": kept.offset,
                        "time_unix_nano": kept.time_ns,
                        "source": kept.source,
                        "reason": kept.reason,
                        "subject": kept.subject,
                        "records": kept.count,
                        "raw": kept.raw.decode("utf-8", "backslashreplace"),
                    }
                )
            )


class _opened:  # noqa: N801 - used as a function
    """A log opened for reading, with the collector that owns it locked out."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def __enter__(self) -> CommitLog:
        try:
            self._lock = DirectoryLock(self._directory.resolve().parent)
            self._log = CommitLog.open(self._directory, LogConfig())
        except LogdError as error:
            raise UnavailableError(str(error), fix="stop the collector first") from None
        return self._log

    def __exit__(self, *_: object) -> None:
        self._log.close()
        self._lock.release()


def _frames(directory: Path) -> Iterator[tuple[FrameHeader, bytes]]:
    try:
        with _opened(directory) as log:
            yield from log.frames(log.start_offset)
    except CorruptError as error:
        raise DamagedError(
            str(error), fix="start the collector: it skips and counts what is damaged"
        ) from None


def _time(header: FrameHeader) -> str:
    return datetime.fromtimestamp(header.first_timestamp_ns / 1e9, UTC).isoformat()


def main() -> None:
    """Run the command with the process's own arguments."""
    cli(sys.argv[1:])
