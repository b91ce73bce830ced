"""`penstock logd streams ...` and `penstock logd match`: what is stored, and under which name."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final, TypeVar

import click
from msgspec import to_builtins
from typing_extensions import override

from penstock.base.errors import DamagedDataError
from penstock.base.pluralize import pluralize
from penstock.logd.cli.cluster import Parts, Place, Work, left_of_move, wait_option, watch
from penstock.logd.cli.output import (
    Progress,
    echo_json,
    facts,
    human_bytes,
    json_option,
    safe,
    table,
    tell,
)
from penstock.logd.cli.records import partitions_of
from penstock.logd.cli.server import (
    PARTITIONS,
    POSITION,
    AskRefusedError,
    Position,
    access,
    asking,
    resolve,
    server_option,
    stream_argument,
)
from penstock.logd.client import AsyncLogClient, LogClient, PartitionInfo, StreamInfo
from penstock.logd.client.verify import Kind, PartitionVerdict, PartitionVerifier
from penstock.logd.errors import UnavailableError
from penstock.logd.metadata.option import Change
from penstock.logd.stream_options import StreamOption, stream_options
from penstock.service import ServiceError
from penstock.service import UnavailableError as ServiceUnavailableError
from penstock.service.cli import PenstockGroup


@click.command(epilog="Example: penstock logd streams purge logs --before 2026-01-31 --yes")
@stream_argument("name")
@click.option(
    "--before",
    type=POSITION,
    help="Delete records below this offset, or before the first at this time, or so long ago.",
)
@click.option("--all", "everything", is_flag=True, help="Delete every record there is now.")
@click.option("--partition", type=click.IntRange(min=0), help="Only this one. Default: all.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option("One JSON object for each partition.")
@server_option
def purge(  # noqa: PLR0913 - what is to go, and how
    *,
    name: str,
    before: Position | None,
    everything: bool,
    partition: int | None,
    yes: bool,
    as_json: bool,
    server: str,
) -> None:
    """Delete the beginning of the stream NAME, on every replica; publishers do not notice.

    Only committed records are deleted. Readers below get OUT_OF_RANGE at once; cursors stay.
    Whole segment files are deleted at once; what the file that holds the offset has below it can no
    longer be read, and goes with that file.
    """
    if everything == (before is not None):
        raise click.UsageError("give either --before or --all")
    with asking(server) as log:
        wanted = () if partition is None else (partition,)
        numbers = partitions_of(log, name, wanted)
        if isinstance(before, int) and len(numbers) > 1:
            raise click.UsageError(f"{name} has {len(numbers)} partitions: name one, or a time")
        ends = {number: _end(log, name, number, before) for number in numbers}
        count = sum(max(upto - start, 0) for start, upto in ends.values())
        if not yes:
            click.confirm(
                f"Delete {pluralize(count, 'record', form=',')} of {name}, for ever?",
                abort=True,
                err=True,
            )
        for number, (start, upto) in ends.items():
            left = log.purge(name, upto, number)
            if as_json:
                echo_json({"stream": name, "partition": number, "start_offset": left})
            else:
                gone = pluralize(max(left - start, 0), "record", form=",")
                click.echo(f"{name}/{number} begins at offset {left}; deleted: {gone}")


def _end(log: LogClient, name: str, partition: int, before: Position | None) -> tuple[int, int]:
    """Return a partition's start, and the offset before which records are purged."""
    start, end = log.offsets(name, partition)
    return start, end if before is None else resolve(log, name, partition, before)


Function = TypeVar("Function", bound=Callable[..., Any])


class _FactorType(click.ParamType[Any]):
    """A number of replicas, or all nodes."""

    name = "integer or all"

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "all":
            return value
        return click.IntRange(min=1).convert(value, param, ctx)


def _click_option(option: StreamOption) -> Callable[[Function], Function]:
    """A stream's option as one of a command; without it the daemon decides."""
    name, kind = option.parameter, option.kind
    text = option.option.meaning.replace("`", "")
    if kind is bool:
        return click.option(f"--{name}/--no-{name}", default=None, help=text)
    if kind is int:
        number = _FactorType() if option.choices else click.INT
        return click.option(f"--{name}", type=number, help=text)
    return click.option(
        f"--{name}", type=click.Choice(option.choices) if option.choices else str, help=text
    )


_NAMES: Final = {option.name: option for option in stream_options()}


def _options_of(*changes: Change) -> Callable[[Function], Function]:
    """Add the options that are set so; a stream's name and subject are arguments of a command."""
    chosen = [
        option
        for name, option in _NAMES.items()
        if option.option.change in changes and name not in ("name", "subject")
    ]

    def decorate(function: Function) -> Function:
        for option in reversed(chosen):
            function = _click_option(option)(function)
        return function

    return decorate


def _nested(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options by the names of their parameters, as the api takes them: `retention` is one key."""
    found: dict[str, Any] = {}
    for option in _NAMES.values():
        parameter = option.parameter.replace("-", "_")
        if parameter in options:
            outer, _, inner = option.name.partition(".")
            if inner:
                found.setdefault(outer, {})[inner] = options[parameter]
            else:
                found[outer] = options[parameter]
    return found


def chosen_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were given."""
    return _nested({name: value for name, value in options.items() if value is not None})


def unset_options(names: tuple[str, ...]) -> dict[str, Any]:
    """Options that are to be none, by the names they have on the command line.

    Raises:
        click.UsageError: There is no such option.
    """
    wanted = {name.removeprefix("--").replace("-", "_"): None for name in names}
    known = {option.parameter.replace("-", "_") for option in _NAMES.values()}
    if unknown := sorted(wanted.keys() - known):
        raise click.UsageError(f"--unset {unknown[0].replace('_', '-')}: there is no such option")
    return _nested(wanted)


@click.command(
    epilog="Example: penstock logd streams alter logs --retention-age-s 86400 --min-isr 2"
)
@stream_argument("name")
@_options_of(Change.ALTER)
@click.option(
    "--unset", multiple=True, metavar="OPTION", help="Set this option to none; repeatable."
)
@click.option(
    "--end-restore",
    is_flag=True,
    help="Accept publishers for good, though a part of its backup is missing.",
)
@json_option()
@server_option
def alter(
    *,
    name: str,
    unset: tuple[str, ...],
    end_restore: bool,
    as_json: bool,
    server: str,
    **options: Any,
) -> None:
    """Change options of the stream NAME; the others stay as they are.

    More replicas, or fewer, are made in the background. A node without the section `cluster` takes
    the options of its configuration's file again when it is started.
    """
    changes, none = chosen_options(options), unset_options(unset)
    retention = changes.get("retention", {}) | none.get("retention", {})
    changes |= none | ({"retention": retention} if retention else {})
    changes |= {"restore_upto": None} if end_restore else {}
    if not changes:
        raise click.UsageError("name an option to change")
    with asking(server) as log:
        log.alter_stream(name, **changes)
    words = f"stream {name} is changed: {', '.join(sorted(changes))}"
    tell(words, {"stream": name, "changed": changes}, as_json=as_json)


@click.command(epilog="Example: penstock logd streams pause logs")
@stream_argument("name")
@click.option("--hold", is_flag=True, help="Off its subject, until it is resumed.")
@json_option()
@server_option
def pause(name: str, hold: bool, as_json: bool, server: str) -> None:
    """Let the stream NAME rest until a message comes for it; it can be read.

    The message is stored, and ends the pause. With --hold nothing is stored until it is resumed.
    """
    with asking(server) as log:
        log.set_stream_mode(name, paused=True, held=hold)
    words = f"stream {name} is {'held' if hold else 'paused'}"
    tell(words, {"stream": name, "paused": True, "held": hold}, as_json=as_json)


@click.command(epilog="Example: penstock logd streams resume logs")
@stream_argument("name")
@json_option()
@server_option
def resume(name: str, as_json: bool, server: str) -> None:
    """Let the stream NAME take messages again, after a pause."""
    with asking(server) as log:
        log.set_stream_mode(name, paused=False)
    done = {"stream": name, "paused": False, "held": False}
    tell(f"stream {name} is resumed", done, as_json=as_json)


@click.command(epilog="Example: penstock logd streams readonly logs")
@stream_argument("name")
@json_option()
@server_option
def readonly(name: str, as_json: bool, server: str) -> None:
    """Make the stream NAME read-only: publishers that ask for an ack get a refusal."""
    with asking(server) as log:
        log.set_stream_mode(name, read_only=True)
    tell(f"stream {name} is read-only", {"stream": name, "read_only": True}, as_json=as_json)


@click.command(epilog="Example: penstock logd streams writable logs")
@stream_argument("name")
@json_option()
@server_option
def writable(name: str, as_json: bool, server: str) -> None:
    """Store what is published to the stream NAME again."""
    with asking(server) as log:
        log.set_stream_mode(name, read_only=False)
    tell(f"stream {name} is writable", {"stream": name, "read_only": False}, as_json=as_json)


@click.command(epilog="Example: penstock logd streams verify logs --max-bytes-per-s 20000000")
@stream_argument("name")
@PARTITIONS
@click.option(
    "--max-bytes-per-s",
    type=click.IntRange(min=1),
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
@click.option("--partition", type=click.IntRange(min=0), default=0, show_default=True)
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
@click.option("--partition", type=click.IntRange(min=0), default=0, show_default=True)
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
@click.option("--partition", type=click.IntRange(min=0), default=0, show_default=True)
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
            part = log.stream(name).partitions[partition : partition + 1]
            in_sync = ", ".join(part[0].isr) if part else "nobody"
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


_TITLES: Final = ("STREAM", "STATE", "RECORDS", "END", "SIZE", "LEADER", "ISR", "SUBJECT")


@click.group(cls=PenstockGroup, epilog="Example: penstock logd streams ls")
def streams() -> None:
    """List, show, create, change, verify, move, purge and delete streams."""


for _command in (
    alter, purge, pause, resume, readonly, writable, verify, move, observers, elect,
):  # fmt: skip
    streams.add_command(_command)


@streams.command("ls", epilog="Example: penstock logd streams ls --json")
@click.option("--internal", is_flag=True, help="Also logd's own.")
@server_option
@json_option("One JSON object a line.")
def list_streams(internal: bool, server: str, as_json: bool) -> None:
    """List the streams, with a line for each partition.

    STATE is ok; degraded: not every replica is in sync; damaged: some offsets cannot be read, see
    `gaps`; leaderless: nothing is stored, and nothing can be read, until one leads; failed: see
    what is said below; paused, held or read-only. RECORDS counts offsets, END is the next one. ISR
    says how many replicas are in sync, and which are not.
    """
    with asking(server) as log:
        found = log.streams(internal=internal)
    if as_json:
        for stream in found:
            echo_json(to_builtins(stream))
        return
    click.echo(table(_TITLES, [row for stream in found for row in _rows(stream)]))
    for stream in found:
        if stream.problem:
            click.echo(safe(f"{stream.name}: {stream.problem}"), err=True)


@streams.command(epilog="Example: penstock logd streams create logs --subject 'telemetry.logs.>'")
@click.argument("name")
@click.option("--subject", required=True, help="Subject or filter, with * and >, to store.")
@_options_of(Change.ALTER, Change.CREATE)
@json_option()
@server_option
def create(name: str, subject: str, as_json: bool, server: str, **options: Any) -> None:
    """Create a stream NAME; the same again changes nothing.

    Partition 0 stores the subject itself, partition n what is published on the subject with .n
    behind it.
    """
    with asking(server) as log:
        stream = log.create_stream(name, subject, **chosen_options(options))
    done: dict[str, Any] = {"stream": stream.name, "subject": stream.subject}
    done |= {"incarnation": stream.incarnation, "partitions": len(stream.partitions)}
    tell(f"stream {stream.name} stores {stream.subject}", done, as_json=as_json)


@streams.command(epilog="Example: penstock logd streams info logs")
@stream_argument("name")
@server_option
@json_option()
def info(name: str, server: str, as_json: bool) -> None:
    """Show everything about the stream NAME."""
    with asking(server) as log:
        stream = log.stream(name)
    if as_json:
        echo_json(to_builtins(stream), indent=True)
        return
    known: dict[str, Any] = {
        "name": stream.name,
        "subject": stream.subject,
        "incarnation": stream.incarnation,
        "problem": stream.problem or None,
    }
    for key, value in stream.options.items():
        inner = value.items() if isinstance(value, dict) else ()
        known |= {f"{key}.{name}": limit for name, limit in inner} or {key: value}
    for partition in stream.partitions:
        place = f"{partition.partition}." if len(stream.partitions) > 1 else ""
        for key, value in to_builtins(partition).items():
            known[place + key] = ", ".join(value) or None if isinstance(value, tuple) else value
    click.echo(facts(known))


@streams.command("open", epilog="Example: penstock logd streams open logs")
@stream_argument("name")
@click.option("--node", help="Of a cluster; default: the one at --server.")
@json_option()
@server_option
def open_stream(name: str, node: str | None, as_json: bool, server: str) -> None:
    """Open the stream NAME again, after what made it fail was seen to."""
    with asking(server) as log:
        log.open_stream(name, node=node)
    done = {"stream": name, "node": node, "open": True}
    tell(f"stream {name} is open", done, as_json=as_json)


@streams.command(epilog="Example: penstock logd streams delete scratch --yes")
@stream_argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option()
@server_option
def delete(name: str, yes: bool, as_json: bool, server: str) -> None:
    """Delete the stream NAME and everything in it."""
    with asking(server) as log:
        stream = log.stream(name)
        if not yes:
            known = [part for part in stream.partitions if part.is_known]
            records = sum(part.high_watermark + 1 - part.start_offset for part in known)
            click.confirm(
                f"Delete stream {name} with {pluralize(records, 'record')}?", abort=True, err=True
            )
        log.delete_stream(name)
    tell(f"stream {name} is deleted", {"stream": name, "deleted": True}, as_json=as_json)


@click.command(epilog="Example: penstock logd match telemetry.logs.checkout")
@click.argument("subject")
@json_option()
@server_option
def match(subject: str, as_json: bool, server: str) -> None:
    """Say which streams store what is published on SUBJECT; exit code 1: none does."""
    with asking(server) as log:
        found = log.match(subject)
    if as_json:
        echo_json({"subject": subject, "streams": found})
    else:
        for name in found:
            click.echo(name)
    if not found:
        raise AskRefusedError(
            f"no stream stores {safe(subject)}",
            fix="see their subjects, penstock logd streams ls, or create one",
        )


def _rows(stream: StreamInfo) -> list[tuple[object, ...]]:
    """A line for each partition."""
    if not stream.partitions:
        return [(stream.name, "failed", *["-"] * 5, stream.subject)]
    rows: list[tuple[object, ...]] = []
    for part in stream.partitions:
        number = part.partition
        standing: tuple[object, ...] = ("-", "-", "-")
        if part.is_known:
            end = part.high_watermark + 1
            standing = (end - part.start_offset, end, human_bytes(part.size_bytes))
        name = f"{stream.name}/{number}" if len(stream.partitions) > 1 else stream.name
        subject = f"{stream.subject}.{number}" if number else stream.subject
        roles = (part.leader or "-", _in_sync(part), subject)
        rows.append((name, stream.state_of(part), *standing, *roles))
    return rows


def _in_sync(part: PartitionInfo) -> str:
    """Return the number of replicas in sync, and the names of the others."""
    missing = ",".join(node for node in part.replicas if node not in part.isr)
    counted = f"{len(part.isr)}/{len(part.replicas)}"
    return f"{counted} not {missing}" if missing else counted


_Rows = list[dict[str, Any]]


@click.command(epilog="Example: penstock logd gaps --stream logs")
@click.option("--stream", help="Only this stream's.")
@click.option("--node", help="Only of this node. Default: all nodes of the cluster.")
@json_option("One JSON object a line.")
@server_option
def gaps(stream: str | None, node: str | None, as_json: bool, server: str) -> None:
    """Say when streams missed messages, and why; and which offsets are damaged.

    A gap is a time in which a stream was off its subject, or dropped messages without an answer.
    Nodes keep those since they were started, the last 64 that ended; all are in their logs and
    in the stream __activity.
    """
    with asking(server) as log:
        ingest, damaged, silent = _found(log, node)
    ingest = [gap for gap in ingest if stream is None or _concerns(gap["streams"], stream)]
    damaged = [part for part in damaged if stream in (None, part["stream"])]
    if as_json:
        for row in (*ingest, *damaged):
            echo_json(row)
    else:
        _show(ingest, damaged)
    if silent:
        raise ServiceUnavailableError(
            "; ".join(silent), fix="see to those nodes: penstock logd cluster info"
        )


def _found(log: LogClient, wanted: str | None) -> tuple[_Rows, _Rows, list[str]]:
    """Gaps and damage by node, and the nodes that gave no answer."""
    info = log.cluster()
    nodes: Sequence[str | None] = [node.node for node in info.nodes if node.is_member]
    if wanted is not None:
        nodes = [wanted]
    elif info.cluster is None:
        nodes = [None]
    ingest: _Rows = []
    damaged: _Rows = []
    silent = []
    for node in nodes:
        try:
            answer = log.gaps(node)
        except UnavailableError as error:
            silent.append(safe(f"node {node} was not asked: {error}"))
            continue
        of = {"node": answer.node}
        ingest += [
            of | {"kind": "ingest"} | to_builtins(it) for it in answer.ended + answer.lasting
        ]
        damaged += [of | {"kind": "damage"} | to_builtins(part) for part in answer.damaged]
    return sorted(ingest, key=lambda gap: str(gap["start"])), damaged, silent


def _concerns(streams: Sequence[str], wanted: str) -> bool:
    """Return whether the stream, or a partition of it, is named."""
    return any(name == wanted or name.startswith(f"{wanted}/") for name in streams)


def _show(ingest: _Rows, damaged: _Rows) -> None:
    if ingest:
        titles = ("START", "END", "SECONDS", "MISSED", "REASON", "STREAMS", "NODE", "DETAIL")
        click.echo(table(titles, [_gap(gap) for gap in ingest]))
    else:
        click.echo("no stream has missed messages since logd was started")
    if damaged:
        click.echo("\ndamaged offsets, that cannot be read:")
        rows = [(p["stream"], p["partition"], p["first"], p["upto"], p["node"]) for p in damaged]
        click.echo(table(("STREAM", "PARTITION", "FROM", "TO (EXCL.)", "NODE"), rows))


def _gap(gap: dict[str, Any]) -> tuple[object, ...]:
    streams = ",".join(gap["streams"])
    more = gap["stream_count"] - len(gap["streams"])
    return (
        _time(gap["start"]),
        "lasts" if gap["end"] is None else _time(gap["end"]),
        round(gap["seconds"]),
        "?" if gap["messages"] is None else str(gap["messages"]),
        gap["reason"],
        f"{streams} and {more} more" if more else streams,
        gap["node"],
        gap["detail"] or "-",
    )


def _time(date: str) -> str:
    """Return the date to the second."""
    return date.partition(".")[0] + "Z"
