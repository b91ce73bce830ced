"""`penstock logd streams verify`, `move`, `observers` and `elect`: the replicas of a stream."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Final

import click
from msgspec import to_builtins

from penstock.base.errors import DamagedDataError
from penstock.base.pluralize import pluralize
from penstock.logd.cli.cluster import Parts, Place, Work, left_of_move, wait_option, watch
from penstock.logd.cli.output import (
    Progress,
    echo_json,
    human_bytes,
    json_option,
    safe,
    tell,
)
from penstock.logd.cli.server import (
    PARTITIONS,
    access,
    asking,
    partitions_of,
    server_option,
    stream_argument,
)
from penstock.logd.client import AsyncLogClient, LogClient, PartitionInfo, StreamInfo
from penstock.logd.client.verify import Kind, PartitionVerdict, PartitionVerifier
from penstock.service import ServiceError
from penstock.service import UnavailableError as ServiceUnavailableError
from penstock.service.cli import IntRange


@click.command(epilog="Example: penstock logd streams verify logs --max-bytes-per-s 20000000")
@stream_argument("name")
@PARTITIONS
@click.option(
    "--max-bytes-per-s",
    type=IntRange(min=1),
    help="Bytes that each node reads a second. Default: as many as it can.",
)
@json_option("One JSON object, when all is compared.")
@server_option
def verify(
    *,
    name: str,
    partitions: tuple[int, ...],
    max_bytes_per_s: int | None,
    as_json: bool,
    server: str,
) -> None:
    """Compare what the replicas of the stream NAME hold, record by record, while it is written to.

    Every node reads its frames from the disk, checks them and sends checksums. Of a single node
    every frame is checked. Exit code 0: all is equal; 65: something differs, is damaged or is
    missing, and it is said where; 69: a node could not be asked.
    """
    with asking(server) as log:
        info = log.stream(name)
        numbers = partitions_of(log, name, partitions)
        alone = log.cluster().cluster is None
        chosen = [part for part in info.partitions if part.partition in numbers]
        total = sum(part.high_watermark + 1 - part.start_offset for part in chosen if part.is_known)
        with Progress(f"verifying {name}", total) as progress:
            verdicts = asyncio.run(
                _verify(server, info, chosen, progress, alone=alone, bytes_per_s=max_bytes_per_s)
            )
    if as_json:
        echo_json({"stream": name, "partitions": [asdict(verdict) for verdict in verdicts]})
    else:
        for line in _lines(name, verdicts):
            click.echo(safe(line))
    _check_equal(name, verdicts)


async def _verify(
    server: str,
    info: StreamInfo,
    parts: Sequence[PartitionInfo],
    progress: Progress,
    *,
    alone: bool,
    bytes_per_s: int | None,
) -> list[PartitionVerdict]:
    """Compare partitions, one after the other."""
    async with AsyncLogClient(server, access=access()) as client:
        found = []
        for part in parts:
            nodes = dict.fromkeys([part.leader, *part.replicas, *part.observers])
            verifier = PartitionVerifier(
                client,
                info.name,
                part.partition,
                [node for node in nodes if node],
                incarnation=info.incarnation,
                alone=alone,
                bytes_per_s=bytes_per_s,
                advanced=progress.advance,
            )
            found.append(await verifier.run())
        return found


def _lines(name: str, verdicts: Sequence[PartitionVerdict]) -> Iterator[str]:
    """Yield the lines of a verification's result for people."""
    for verdict in verdicts:
        place = f"{name}/{verdict.partition}"
        for one in verdict.differences:
            verb = "differ" if one.kind is Kind.DIFFERS else f"are {one.kind}"
            yield f"{place}: offsets {one.first} to {one.upto - 1} {verb} on {', '.join(one.nodes)}"
        for node, problem in verdict.unasked.items():
            yield f"{place}: node {node} could not be asked: {problem}"
        if not verdict.nodes:
            continue
        records = pluralize(verdict.records, "record", form=",")
        held = f"offsets {verdict.first} to {verdict.upto - 1}" if verdict.records else "nothing"
        text = f"{place}: compared on {', '.join(verdict.nodes)}: {held}, {records}"
        end = "" if verdict.complete else "; ended there: there are too many differences"
        yield f"{text}, {human_bytes(verdict.size_bytes)}{end}"


def _check_equal(name: str, verdicts: Sequence[PartitionVerdict]) -> None:
    """Raise what the exit code says.

    Raises:
        DamagedDataError: Replicas differ, or are damaged.
        ServiceUnavailableError: A node could not be asked.
    """
    if count := sum(len(verdict.differences) for verdict in verdicts):
        raise DamagedDataError(
            f"replicas of {safe(name)} are not equal: {pluralize(count, 'range')} of offsets",
            fix="damaged ranges are fetched from other nodes by logd itself: verify again in a"
            " minute; if it lasts, move the partition off that node: penstock logd streams move",
        )
    if nodes := sorted({node for verdict in verdicts for node in verdict.unasked}):
        raise ServiceUnavailableError(
            f"could not be asked: {safe(', '.join(nodes))}",
            fix="start these nodes, see: penstock logd cluster info; then verify again",
        )


@click.command(epilog="Example: penstock logd streams move logs --to logd-1,logd-2,logd-4")
@stream_argument("name")
@click.option(
    "--partition", type=IntRange(min=0), default=0, show_default=True,
    help="The partition's number.",
)  # fmt: skip
@click.option("--to", "nodes", metavar="NODE,...", help="Its replicas from now on, leader first.")
@click.option("--cancel", is_flag=True, help="Give up a move that is under way.")
@wait_option
@json_option("One JSON object, when it is done.")
@server_option
def move(  # noqa: PLR0913 - what is to go where, and how it is told
    *,
    name: str,
    partition: int,
    nodes: str | None,
    cancel: bool,
    wait: bool,
    as_json: bool,
    server: str,
) -> None:
    """Move a partition of the stream NAME to other nodes; data is copied in the background.

    It is shown how far that is, until it is done. Ctrl-C leaves the move going.
    """
    if cancel == (nodes is not None):
        raise click.UsageError("give either --to or --cancel")
    replicas = None if nodes is None else [node.strip() for node in nodes.split(",")]
    with asking(server) as log:
        log.move_partition(name, partition, replicas)
        if not as_json:
            where = f"moves to {', '.join(replicas)}" if replicas else "stays where it is"
            click.echo(f"{name}/{partition} {where}")
        if wait and replicas:
            _stay(log, Place(name, partition), replicas, as_json=as_json)
    if as_json:
        done = wait or not replicas
        echo_json({"stream": name, "partition": partition, "replicas": replicas, "done": done})


_LOOKS_WITHOUT: Final = 4
"""Looks that show nothing of a move before it is taken for given up: nodes learn of it one by one,
and another one may answer than before."""


def _stay(log: LogClient, place: Place, replicas: list[str], *, as_json: bool) -> None:
    """Watch a move until it is done.

    Raises:
        MovedElsewhereError: Another operator gave it up, or moves the partition to other nodes.
    """
    seen, without = False, 0

    def looked(parts: Parts) -> None:
        nonlocal seen, without
        part = parts.get(place)
        target = None if part is None else part.target
        there = part is not None and part.replicas == tuple(replicas)
        seen = seen or target == tuple(replicas)
        without = 0 if there or target == tuple(replicas) else without + 1
        if seen and without >= _LOOKS_WITHOUT:
            raise MovedElsewhereError(
                f"{place} is not moved to {', '.join(replicas)} any more",
                fix="somebody gave the move up, or wants another; see: penstock logd streams info",
            )

    hint = "see which nodes are live: penstock logd cluster info; give it up with --cancel"
    is_left = left_of_move(place, replicas)
    watch(log, Work(label=str(place), is_left=is_left, hint=hint, looked=looked), as_json=as_json)
    if not as_json:
        click.echo(f"{place} is on {', '.join(replicas)}")


class MovedElsewhereError(ServiceError):
    """A move that was watched is not wanted any more (exit code 1)."""


@click.command(epilog="Example: penstock logd streams observers logs --on logd-4,logd-5")
@stream_argument("name")
@click.option(
    "--partition", type=IntRange(min=0), default=0, show_default=True,
    help="The partition's number.",
)  # fmt: skip
@click.option("--on", "nodes", metavar="NODE,...", help="Its observers from now on.")
@click.option("--none", is_flag=True, help="It has none from now on.")
@json_option()
@server_option
def observers(
    *, name: str, partition: int, nodes: str | None, none: bool, as_json: bool, server: str
) -> None:
    """Have other nodes hold a copy of a partition of the stream NAME, for readers.

    An observer is fed like a replica, but nothing waits for it and it never leads.
    """
    if none == (nodes is not None):
        raise click.UsageError("give either --on or --none")
    wanted = [] if nodes is None else [node.strip() for node in nodes.split(",")]
    with asking(server) as log:
        log.set_observers(name, partition, wanted)
    words = f"{name}/{partition} is observed by {', '.join(wanted) or 'nobody'}"
    done = {"stream": name, "partition": partition, "observers": wanted}
    tell(words, done, as_json=as_json)


@click.command(epilog="Example: penstock logd streams elect logs --partition 2 --lose-records")
@stream_argument("name")
@click.option(
    "--partition", type=IntRange(min=0), default=0, show_default=True,
    help="The partition's number.",
)  # fmt: skip
@click.option("--lose-records", is_flag=True, help="Do not ask.")
@json_option()
@server_option
def elect(name: str, partition: int, lose_records: bool, as_json: bool, server: str) -> None:
    """Have a replica of the stream NAME lead that lacks acked records.

    For a partition that has no leader, because every replica that was in sync is lost. Whatever
    only those have is lost for ever, also if they come back. It is refused while one of them is
    there.
    """
    where = f"{name}/{partition}"
    with asking(server) as log:
        if not lose_records:
            (number,) = partitions_of(log, name, [partition])
            in_sync = ", ".join(log.stream(name).partitions[number].isr) or "nobody"
            click.echo(f"Every acked record of {where} is on: {in_sync}.", err=True)
            click.confirm("Lose what is only there, for ever?", abort=True, err=True)
        found = log.elect_and_lose_records(name, partition)
    if found.lost_max is None:
        lost = "how many records are lost is not known here"
    elif found.lost_max:
        most = pluralize(found.lost_max, "record")
        lost = f"lost: at most {most}, from offset {found.end_offset} on"
    else:
        lost = "no record is lost that is known of"
    done = {"stream": name, "partition": partition, "lost_max": found.lost_max}
    done |= to_builtins(found)
    tell(f"{where} is led by {found.leader}; {lost}", done, as_json=as_json)
