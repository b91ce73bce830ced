"""`penstock logd check`, `repair` and `dump`: a data directory without its daemon."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, Final

import click
from typing_extensions import override

from penstock.base.clock import SystemClock
from penstock.base.errors import DamagedDataError
from penstock.base.files import atomic_writer
from penstock.base.pluralize import pluralize
from penstock.logd.cli.output import (
    check_form,
    echo_json,
    json_option,
    record_json,
    record_text,
    safe,
    table,
    time_text,
)
from penstock.logd.cli.server import AskRefusedError
from penstock.logd.encryption.master_keys import KeySource, MasterKeys
from penstock.logd.errors import CorruptError, RefusedError
from penstock.logd.format.frame import NO_PRODUCER, FrameHeader
from penstock.logd.format.rows import batch_records
from penstock.logd.offline import fsck
from penstock.logd.offline.dump import Dump
from penstock.logd.offline.fsck import CheckReport, Problem
from penstock.service import UnavailableError
from penstock.service.cli import IntRange

Keys = dict[str, KeySource]

_PROGRESS_BYTES_MIN: Final = 64 * 1024 * 1024
"""Below it a check is over before a bar can be read."""

_PROGRESS_STEP_BYTES: Final = 16 * 1024 * 1024

_FIXES: Final = {
    "UNKNOWN_STREAM": "name one of those",
    "AMBIGUOUS_STREAM": "name the partition's directory instead of the data directory",
    "NOT_A_DATA_DIR": "name the data_dir of logd's configuration, or a directory with .log files",
    "OUT_OF_RANGE": "ask for offsets in that range, or earliest or latest",
    "KEY_UNAVAILABLE": "name the file with that master key: --key NAME=FILE",
    "WRONG_KEY": "name the file with the key that the log was encrypted with: --key NAME=FILE",
    "UNKNOWN_FORMAT": "use the version of Penstock that wrote it",
}

_TITLES: Final = (
    "STREAM", "PARTITION", "SEGMENTS", "FRAMES", "RECORDS", "BYTES", "OFFSETS", "VERDICT",
)  # fmt: skip


class _OffsetType(click.ParamType[Any]):
    """An offset, or a word for one."""

    name = "offset"

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value not in ("earliest", "latest") and not str(value).isdigit():
            self.fail(f"{value!r} is not an offset, `earliest` or `latest`", param, ctx)
        return value


_OFFSET: Final = _OffsetType()

_directory = click.argument(
    "directory", metavar="DIR", type=click.Path(path_type=Path, exists=True, file_okay=False)
)
_live_option = click.option(
    "--live", is_flag=True, help="Also while a logd runs there: the ends are being written."
)


def _keys(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> Keys:
    """Parse NAME=FILE options to master keys by name."""
    found = {}
    for value in values:
        name, equals, file = value.partition("=")
        if not (name and equals and file):
            raise click.BadParameter(f"{value!r} is not NAME=FILE")
        found[name] = KeySource(file=Path(file))
    return found


_key_option = click.option(
    "--key",
    "keys",
    multiple=True,
    metavar="NAME=FILE",
    callback=_keys,
    help="A master key, for streams that are encrypted; repeatable.",
)
_json_option = json_option()


@click.command(epilog="Example: penstock logd check /var/lib/penstock/logd --json")
@_directory
@_live_option
@_key_option
@_json_option
def check(directory: Path, live: bool, keys: Keys, as_json: bool) -> None:
    """Verify every byte of a stopped logd's data directory DIR, or of one partition's.

    Changes nothing. Exit code 0: nothing is damaged; 65: something is; 69: a logd runs there.
    """
    with _offline():
        found = fsck.look(directory)
        with fsck.locked(found, live=live) as holder, _progress(found.size_bytes) as progress:
            masters = MasterKeys(keys) if keys else None
            report = fsck.check(found, live=bool(holder), progress=progress, masters=masters)
    _show(directory, report, holder, as_json=as_json, actions=False)


@click.command(epilog="Example: penstock logd repair /var/lib/penstock/logd --dry-run")
@_directory
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@_json_option
def repair(directory: Path, dry_run: bool, as_json: bool) -> None:
    """Put right in DIR what is safe to: torn tails, indexes, temporary files.

    Damaged records stay as they are. What is cut off is copied beside its segment first.
    """
    with _offline():
        found = fsck.look(directory)
        with fsck.locked(found, make=not dry_run), _progress(found.size_bytes) as progress:
            report = fsck.repair(found, dry_run=dry_run, progress=progress)
    if not as_json:
        for action in report.actions:
            click.echo(f"{'would do: ' if dry_run else ''}{action}")
        if not report.actions:
            click.echo("nothing to repair")
    _show(directory, report, "", as_json=as_json, actions=True)


@click.command(
    epilog="\b\nExample:\n"
    "  penstock logd dump /var/lib/penstock/logd logs --format parquet -o logs.pq"
)
@_directory
@click.argument("stream", required=False)
@click.option(
    "--partition", type=IntRange(min=0), default=0, show_default=True,
    help="The partition's number.",
)  # fmt: skip
@click.option(
    "--from", "start", type=_OFFSET, default="earliest", show_default=True,
    help="The first offset.",
)  # fmt: skip
@click.option("--to", "end", type=_OFFSET, default="latest", show_default=True, help="Exclusive.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "ndjson", "arrow", "parquet"]),
    help="Lines for people, JSON lines, an Arrow IPC stream, or Parquet. Default: text.",
)
@json_option("JSON lines: the same as --format ndjson.")
@click.option("--records", is_flag=True, help="With text: every record below its frame.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Instead of stdout."
)
@_live_option
@_key_option
def dump(
    *,
    directory: Path,
    stream: str | None,
    partition: int,
    live: bool,
    keys: Keys,
    as_json: bool,
    **options: Any,
) -> None:
    """Write what DIR holds of STREAM; STREAM is left out for one partition's directory.

    Changes nothing. Damaged frames are named on standard error and skipped; exit code 65 then.
    """
    damaged: list[str] = []

    def on_damage(text: str) -> None:
        damaged.append(text)
        click.echo(f"damaged: {safe(text)}", err=True)

    check_form(options["form"], as_json=as_json)
    form = options["form"] = "ndjson" if as_json else options["form"] or "text"
    terminal = sys.stdout.isatty()
    if options["output"] is None and (form == "parquet" or (form == "arrow" and terminal)):
        raise click.UsageError(f"--format {form} needs --output FILE")
    with _offline():
        found = fsck.look(directory)
        if stream is None and len(found.places) != 1:
            raise click.UsageError("name a STREAM of the data directory")
        place = found.find(stream, partition) if stream is not None else found.places[0]
        with fsck.locked(found, live=live):
            log = Dump(place.directory, on_damage=on_damage, masters=MasterKeys(keys))
            _dump(log, **options)
    if damaged:
        raise DamagedDataError(
            f"passed over: {pluralize(len(damaged), 'damaged place')}",
            fix=f"penstock logd check {directory}",
        )


def _dump(
    log: Dump, *, start: str, end: str, form: str, records: bool, output: Path | None
) -> None:
    """Write a range."""
    words = {"earliest": log.start_offset, "latest": log.end_offset}
    first, stop = (words[at] if at in words else int(at) for at in (start, end))
    with _sink(output) as sink:
        match form:
            case "arrow":
                log.write_arrow(sink, first, stop)
            case "parquet":
                log.write_parquet(sink, first, stop)
            case "ndjson":
                sink.writelines(_ndjson(log, first, stop))
            case _:
                sink.writelines(_text(log, first, stop, records=records))


def _text(log: Dump, start: int, end: int, *, records: bool) -> Iterator[bytes]:
    if not records:
        for header, _ in log.frames(start, end):
            yield _frame_text(header)
        return
    for header, batch in log.batches(start, end):
        yield _frame_text(header)
        for offset, record in batch_records(header, batch):
            yield f"    {record_text(offset, record)}\n".encode()


def _frame_text(header: FrameHeader) -> bytes:
    words = [
        f"{header.base_offset}-{header.last_offset}",
        pluralize(header.record_count, "record"),
        f"{header.frame_length} bytes",
        f"epoch {header.leader_epoch}",
        f"{time_text(header.first_timestamp_ns)} to {time_text(header.max_timestamp_ns)}",
        f"schema {header.schema_version}",
        f"body CRC {header.body_crc:08x}",
    ]
    if header.compacted:
        words.append("compacted")
    if header.producer_id != NO_PRODUCER:
        words.append(f"producer {header.producer_id.hex()} sequence {header.producer_sequence}")
    return ("  ".join(words) + "\n").encode()


def _ndjson(log: Dump, start: int, end: int) -> Iterator[bytes]:
    for header, batch in log.batches(start, end):
        for offset, record in batch_records(header, batch):
            yield f"{record_json(offset, record)}\n".encode()


@contextmanager
def _sink(output: Path | None) -> Iterator[IO[bytes]]:
    """Standard output, or a file that appears when it is whole."""
    if output is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    partial = output.with_name(output.name + ".partial")
    partial.unlink(missing_ok=True)
    with atomic_writer(output, temporary=partial, durable=False) as file:
        yield file


@contextmanager
def _offline() -> Iterator[None]:
    """Errors become messages with a fix, and exit codes."""
    try:
        yield
    except RefusedError as error:
        if error.code == "LOCKED":
            fix = f"stop process {error.detail['pid']} first; check and dump also take --live"
            raise UnavailableError(str(error), fix=fix) from None
        fix = _FIXES.get(error.code, "correct the request")
        raise AskRefusedError(f"{error} ({error.code})", fix=fix) from None
    except CorruptError as error:
        raise DamagedDataError(str(error), fix="penstock logd check says more") from None
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UnavailableError(str(error), fix="see to the disk and its permissions") from None


@contextmanager
def _progress(size_bytes: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, for what takes a while."""
    clock = SystemClock()
    begun_ns, done = clock.monotonic_ns(), 0
    hidden = size_bytes < _PROGRESS_BYTES_MIN or not sys.stderr.isatty()
    with click.progressbar(
        length=size_bytes,
        label="reading",
        file=sys.stderr,
        hidden=hidden,
        item_show_func=lambda rate: rate or "",
        update_min_steps=_PROGRESS_STEP_BYTES,
    ) as bar:

        def advance(length: int) -> None:
            nonlocal done
            done += length
            seconds = (clock.monotonic_ns() - begun_ns) / 1e9
            bar.update(length, f"{done / max(seconds, 1e-9) / 1e6:.0f} MB/s")

        yield (lambda _: None) if hidden else advance


def _show(
    directory: Path, report: CheckReport, holder: str, *, as_json: bool, actions: bool
) -> None:
    """Print a report; raises `DamagedDataError` when it says so."""
    if as_json:
        echo_json(_document(directory, report, holder, actions=actions))
    else:
        _show_text(report, holder)
    if report.verdict == "damaged":
        raise DamagedDataError(
            f"{directory} is damaged",
            fix="keep a copy of it, and restore what is lost from a backup or a replica",
        )


def _show_text(report: CheckReport, holder: str) -> None:
    rows = [
        (
            place.stream,
            place.partition,
            found.segments,
            found.frames,
            found.records,
            found.bytes,
            f"{found.start_offset} to {found.end_offset}",
            found.verdict,
        )
        for place, found in report.partitions
    ]
    click.echo(table(_TITLES, rows))
    if holder:
        click.echo(f"{holder}: the end of a log may be a write under way")
    for problem in report.all_problems:
        click.echo(_problem_text(problem))


def _problem_text(problem: Problem) -> str:
    row = f" {problem.row}" if problem.row else ""
    place = problem.file
    if problem.offset != problem.next_offset or problem.position:
        place += f" at {problem.position}, offset {problem.offset}"
    return f"{problem.severity}{row}: {place}: {problem.reason}\n    {problem.meaning}"


def _document(
    directory: Path, report: CheckReport, holder: str, *, actions: bool
) -> dict[str, Any]:
    document: dict[str, Any] = {
        "directory": str(directory),
        "verdict": report.verdict,
        "live": holder or None,
        "problems": [asdict(problem) for problem in report.problems],
        "partitions": [
            {
                "stream": place.stream,
                "partition": place.partition,
                **asdict(found),
                "directory": str(found.directory),
                "verdict": found.verdict,
            }
            for place, found in report.partitions
        ],
    }
    if actions:
        document["actions"] = [str(action) for action in report.actions]
    return document
