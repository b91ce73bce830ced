"""`penstock lake`: what is in a lake of Parquet files, and its compaction."""

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.base.clock import SystemClock
from penstock.base.errors import DamagedDataError, UnavailableError
from penstock.base.pluralize import pluralize
from penstock.router.lake.plan import DEFAULTS, Policy
from penstock.service.cli import FloatRange, IntRange, PenstockGroup

if TYPE_CHECKING:
    from penstock.router.lake.inspect import Checked, PartitionTotal, StreamKey, Verified
    from penstock.router.lake.store import LakeStore

_PLACE: Final = click.argument("place", metavar="LAKE")
_ENDPOINT: Final = click.option(
    "--endpoint", metavar="URL", help="The address of an S3 that is not Amazon's."
)
_REGION: Final = click.option("--region", metavar="NAME", help="The region of the bucket.")
_JSON: Final = click.option("--json", "as_json", is_flag=True, help="JSON, and nothing else.")


def lake_argument(command: Callable[..., None]) -> Any:
    """Give a command the argument LAKE and what an S3 needs, as the open `store`."""

    @wraps(command)
    def with_lake(place: str, *, endpoint: str | None, region: str | None, **options: Any) -> None:
        from penstock.router.lake.store import open_lake

        command(open_lake(place, endpoint=endpoint, region=region), **options)

    return _PLACE(_ENDPOINT(_REGION(with_lake)))


@click.group(cls=PenstockGroup, epilog="Example: penstock lake stats /var/lib/penstock/lake")
def cli() -> None:
    """Look at a lake that a sink `parquet` or `s3` has written, and tidy it.

    LAKE is a directory, hdfs://NAMENODE:PORT/PATH or s3://BUCKET/PATH. Credentials of S3 are those
    that AWS's tools find.
    """


@cli.command("ls", epilog="Example: penstock lake ls /var/lib/penstock/lake --files")
@lake_argument
@click.option("--files", "shows_files", is_flag=True, help="The path of each live file instead.")
@_JSON
def list_partitions(store: "LakeStore", *, shows_files: bool, as_json: bool) -> None:
    """List the partitions of a lake, or the files that hold each record once.

    A reader may take as long as the lake's `compaction.keep_s` to open the files listed.
    """
    from penstock.router.lake.index import LakeIndex
    from penstock.router.lake.inspect import partitions

    if shows_files:
        paths = [store.locate(path) for path in LakeIndex(store).live()]
        _note_nothing(store, paths)
        click.echo(json.dumps(paths) if as_json else "\n".join(paths))
        return
    found = partitions(store)
    _note_nothing(store, found)
    if as_json:
        click.echo(json.dumps([{"partition": key, **asdict(it)} for key, it in found.items()]))
        return
    rows = [(it.files, it.compacted, it.rows, it.bytes, key) for key, it in found.items()]
    click.echo(_table(("files", "compacted", "rows", "bytes", "partition"), rows))


@cli.command(epilog="Example: penstock lake stats s3://telemetry/lake --region eu-west-1")
@lake_argument
@_JSON
def stats(store: "LakeStore", *, as_json: bool) -> None:
    """Count rows by stream and offset range, and files and bytes in all."""
    from penstock.router.lake.inspect import partitions, streams

    whole = _whole(partitions(store).values())
    found = streams(store)
    _note_nothing(store, found)
    if as_json:
        told = [{**asdict(key), **asdict(it)} for key, it in found.items()]
        click.echo(json.dumps({**asdict(whole), "streams": told}))
        return
    click.echo(
        f"{pluralize(whole.files, 'file')} ({whole.compacted} compacted),"
        f" {pluralize(whole.rows, 'row')}, {whole.bytes:,} bytes"
    )
    rows = [(it.rows, it.first, it.last, it.files, _name(key)) for key, it in found.items()]
    click.echo(_table(("rows", "first", "last", "files", "stream"), rows))


@cli.command(epilog="Example: penstock lake verify /var/lib/penstock/lake")
@lake_argument
@_JSON
def verify(store: "LakeStore", *, as_json: bool) -> None:
    """Read every row's position: gaps, doubles, files that cannot be read.

    Exit 65 when a row is there twice or a file is damaged. Gaps are shown and change nothing:
    routes and transforms leave records out.
    """
    from penstock.router.lake.inspect import verify as look

    found = look(store)
    _note_nothing(store, (*found.streams, *found.damaged))
    click.echo(json.dumps(_verified_json(found)) if as_json else _verified_text(found))
    if not found.is_sound:
        doubles = sum(it.double_rows for it in found.streams.values())
        raise DamagedDataError(
            f"{store.url}: {pluralize(doubles, 'row')} too many,"
            f" {pluralize(len(found.damaged), 'damaged file')}",
            fix="remove damaged files and replay their offsets: penstock router replay; rows that"
            " are there twice came from two sinks in one directory, or files that were copied",
        )


@cli.command(epilog="Example: penstock lake compact /var/lib/penstock/lake")
@lake_argument
@click.option(
    "--target-bytes", type=IntRange(1024 * 1024), default=DEFAULTS.target_bytes,
    show_default=True, help="About the size of merged files.",
)  # fmt: skip
@click.option(
    "--after-s", type=FloatRange(0), default=DEFAULTS.after_s, show_default=True,
    help="Merge partitions whose time ended so long ago.",
)  # fmt: skip
@click.option(
    "--keep-s", type=FloatRange(0), default=DEFAULTS.keep_s, show_default=True,
    help="Keep what is replaced so long for readers. 0: no reader and no job works now.",
)  # fmt: skip
@click.option(
    "--max-age-days", type=FloatRange(0, min_open=True),
    help="Remove partitions whose time ended so long ago.",
)  # fmt: skip
@click.option(
    "--compression", type=click.Choice(["zstd", "snappy", "none"]), default="zstd",
    show_default=True, help="Of merged files.",
)  # fmt: skip
@_JSON
def compact(  # noqa: PLR0913 - each is its own option
    store: "LakeStore", *, as_json: bool, compression: str,
    target_bytes: int, after_s: float, keep_s: float, max_age_days: float | None,
) -> None:  # fmt: skip
    """Merge small files of partitions that have ended; do once what a sink's `compaction` does.

    Plans wait `--keep-s` between two steps, so run the command again after that until no plan
    waits. Exit 69 when another process is compacting.
    """
    from penstock.router.lake.compactor import compact as run

    max_age_s = None if max_age_days is None else max_age_days * 86_400
    policy = Policy(target_bytes, after_s, keep_s, max_age_s)
    result = run(store, policy, SystemClock(), compression)
    if result is None:
        raise UnavailableError(
            f"{store.url}: another process is compacting", fix="wait until it is done"
        )
    told = {
        name: result.counts[name]
        for name in ("merged_files", "merged_into", "removed_files", "skipped_plans")
    }
    if as_json:
        click.echo(json.dumps({**told, "waiting_plans": result.waiting}))
        return
    click.echo(
        f"merged {pluralize(told['merged_files'], 'file')} into {told['merged_into']}, removed"
        f" {told['removed_files']}; {pluralize(result.waiting, 'plan')} waiting"
    )


def _note_nothing(store: "LakeStore", found: "Collection[object]") -> None:
    if not found:
        click.echo(f"{store.url} has no file of a lake; is it the path of the sink?", err=True)


def _whole(found: "Iterable[PartitionTotal]") -> "PartitionTotal":
    from penstock.router.lake.inspect import PartitionTotal

    whole = PartitionTotal()
    for it in found:
        whole.files += it.files
        whole.compacted += it.compacted
        whole.rows += it.rows
        whole.bytes += it.bytes
    return whole


def _name(key: "StreamKey") -> str:
    owner = f"{key.owner}: " if key.owner else ""
    return f"{owner}{key.stream}/{key.partition} ({key.stream_id})"


def _verified_json(found: "Verified") -> dict[str, Any]:
    return {
        "sound": found.is_sound,
        "streams": [{**asdict(key), **asdict(it)} for key, it in found.streams.items()],
        "damaged": [{"path": path, "reason": reason} for path, reason in found.damaged],
        "foreign": found.foreign,
    }


def _verified_text(found: "Verified") -> str:
    from penstock.router.lake.inspect import EXAMPLES_MAX

    rows = [
        (it.rows, it.first, it.last, it.gap_offsets, it.double_rows, _name(key))
        for key, it in found.streams.items()
    ]
    lines = [_table(("rows", "first", "last", "missing", "too many", "stream"), rows)]
    for key, it in found.streams.items():
        lines += _examples(key, it)
    lines += [f"damaged: {path}: {reason}" for path, reason in found.damaged[:EXAMPLES_MAX]]
    lines += [f"not a sink's file: {path}" for path in found.foreign[:EXAMPLES_MAX]]
    return "\n".join(lines)


def _examples(key: "StreamKey", it: "Checked") -> list[str]:
    gaps = [f"{_name(key)}: offsets {first} to {last} are not there" for first, last in it.gaps]
    doubles = [f"{_name(key)}: offsets {first} to {last} are double" for first, last in it.doubles]
    return gaps + doubles


def _table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Numbers to the right, and one name at the end."""
    cells = [list(heads), *([str(it) for it in row] for row in rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(heads) - 1)]
    return "\n".join(
        "  ".join([*(row[at].rjust(width) for at, width in enumerate(widths)), row[-1]])
        for row in cells
    )
