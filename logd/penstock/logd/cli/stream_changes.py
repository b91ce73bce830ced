"""What `penstock logd streams` changes: options, modes, replicas, observers, leaders."""

from dataclasses import asdict
from typing import Any, Final

import click

from penstock.base.pluralize import pluralize
from penstock.logd.cli.moving import Parts, Place, left_of_move
from penstock.logd.cli.outcome import json_option, tell
from penstock.logd.cli.server import asking, server_option, stream_argument
from penstock.logd.cli.stream_options import chosen_options, stream_options, unset_options
from penstock.logd.cli.text import echo_json
from penstock.logd.cli.watching import Work, wait_option, watch
from penstock.logd.client import LogClient
from penstock.service import ServiceError


@click.command(
    epilog="Example: penstock logd streams alter logs --retention-age-s 86400 --min-isr 2"
)
@stream_argument("name")
@stream_options
@click.option(
    "--unset", multiple=True, metavar="OPTION", help="Set this option to none; repeatable."
)
@click.option(
    "--end-restore",
    is_flag=True,
    help="Let publishers in though part of its backup is missing, for good.",
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
    """Change options of the stream NAME in a cluster; the others stay as they are.

    More replicas, or fewer, are made in the background. The options of a lone logd are those of its
    configuration file.
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
    """Refuse what is published to the stream NAME; publishers that ask for acks are told."""
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
        MovedElsewhereError: Somebody gave it up, or moves the partition to other nodes.
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
    done = {"stream": name, "partition": partition, "lost_max": found.lost_max} | asdict(found)
    tell(f"{where} is led by {found.leader}; {lost}", done, as_json=as_json)
