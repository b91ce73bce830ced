"""`penstock logd cluster ...`: the nodes, the controller, and replicas on their way.

Replicas and leaderships on their way: what is left to do, as the nodes of a cluster say.

The controller does the work, watched or not. What is copied is measured where it is copied to:
each node that a replica is new on is asked how much of it there is.

Stays with work that a cluster does in the background until it is done, and shows how far it is.

On a terminal one line on standard error is written over: partitions, bytes, how long it may take.
Elsewhere each step is a line there. With `--json` only the result is written. Ctrl-C ends the
watching, not the work.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

import click
from msgspec import to_builtins
from typing_extensions import override

from penstock.base.clock import Clock, SystemClock
from penstock.base.pluralize import pluralize
from penstock.logd.cli.output import (
    bar,
    echo_json,
    human_bytes,
    json_option,
    on_terminal,
    safe,
    show_at,
    table,
    tell,
)
from penstock.logd.cli.server import asking, server_option
from penstock.logd.client import ClusterInfo, LogClient, PartitionInfo, StreamInfo, calls
from penstock.logd.errors import REJOIN, HaltCause, RefusedError, UnavailableError
from penstock.service import ExitCode, ServiceError
from penstock.service import UnavailableError as ServiceUnavailableError
from penstock.service.cli import FloatRange, PenstockGroup


class Place(NamedTuple):
    """A partition of a stream."""

    stream: str
    partition: int

    @override
    def __str__(self) -> str:
        return f"{self.stream}/{self.partition}"


Parts = dict[Place, PartitionInfo]
IsLeft = Callable[[Place, PartitionInfo], bool]
Standing = Callable[[str], Parts]


def parts_of(streams: Sequence[StreamInfo]) -> Parts:
    """The partitions of streams."""
    return {
        Place(stream.name, part.partition): part for stream in streams for part in stream.partitions
    }


def left_of_move(place: Place, replicas: Sequence[str]) -> IsLeft:
    """A partition is to be on these nodes, and nothing else is asked."""

    def is_left(one: Place, part: PartitionInfo) -> bool:
        there = part.replicas == tuple(replicas) and part.target is None
        return one == place and not (there and set(part.replicas) <= set(part.isr))

    return is_left


def left_of_drain(node: str) -> IsLeft:
    """Nothing is to be on a node."""

    def is_left(_: Place, part: PartitionInfo) -> bool:
        return node in (*part.replicas, *part.observers, part.leader)

    return is_left


def left_of_rebalance(_: Place, part: PartitionInfo) -> bool:
    """Nothing is to be under way. Who leads is spread evenly, to whichever of the replicas."""
    return part.target is not None or part.leader is None


@dataclass(frozen=True, slots=True)
class ReassignmentProgress:
    """Progress of reassignments.

    Attributes:
        done: Partitions that are finished.
        total: Partitions that needed work, as far as was seen.
        copied_bytes: Bytes on the nodes that are new replicas.
        total_bytes: Bytes that those need.
        steps: Changes since the last poll, a line each.
    """

    done: int
    total: int
    copied_bytes: int
    total_bytes: int
    steps: tuple[str, ...] = ()

    @property
    def is_done(self) -> bool:
        return self.done == self.total


class ProgressPoller:
    """Looks at a cluster again and again, and says how far work is. Pure but for what it is given.

    Args:
        is_left: Whether something is left to do of a partition.
    """

    def __init__(self, is_left: IsLeft) -> None:
        self._is_left = is_left
        self._first: Parts = {}
        self._last: Parts = {}
        self._need: dict[Place, int] = {}
        self._copied: dict[Place, int] = {}

    def look(self, parts: Parts, standing: Standing) -> ReassignmentProgress:
        """Take in how it is now.

        Args:
            parts: Each as its leader says.
            standing: Returns the partitions of a node.
        """
        left = {place for place, part in parts.items() if self._is_left(place, part)}
        for place in left - self._first.keys():
            self._first[place] = parts[place]
        nodes: dict[str, Parts] = {}
        for place in sorted(left):
            self._measure(place, parts[place], nodes, standing)
        for place in self._need.keys() - left:
            self._copied[place] = self._need[place]
        steps = tuple(self._steps(parts, left))
        self._last = {place: parts[place] for place in self._first if place in parts}
        gone = self._first.keys() - left
        return ReassignmentProgress(
            done=len(gone),
            total=len(self._first),
            copied_bytes=sum(self._copied.values()),
            total_bytes=sum(self._need.values()),
            steps=steps,
        )

    def _measure(
        self, place: Place, part: PartitionInfo, nodes: dict[str, Parts], standing: Standing
    ) -> None:
        """Note what is copied of a partition, and what is to be."""
        before = self._first[place].replicas
        new = [node for node in (part.target or part.replicas) if node not in before]
        size = max(part.size_bytes, 0)
        self._need[place] = max(self._need.get(place, 0), size * len(new))
        copied = 0
        for node in new:
            if node not in part.replicas:
                continue
            if node not in nodes:
                nodes[node] = standing(node)
            found = nodes[node].get(place)
            copied += 0 if found is None else min(max(found.size_bytes, 0), size)
        self._copied[place] = max(copied, self._copied.get(place, 0))

    def _steps(self, parts: Parts, left: set[Place]) -> Iterator[str]:
        for place, before in sorted(self._last.items()):
            part = parts.get(place)
            if part is None:
                yield f"{place}: is gone"
                continue
            if (part.replicas, part.leader) != (before.replicas, before.leader):
                behind = sorted(set(part.replicas) - set(part.isr))
                words = f"{place}: on {', '.join(part.replicas)}, led by {part.leader or 'nobody'}"
                yield f"{words}; copying to {', '.join(behind)}" if behind else words
            if place not in left and self._is_left(place, before):
                yield f"{place}: done"


def whole(log: LogClient) -> Parts:
    """The partitions of a cluster, logd's own too, each as its leader says."""
    return parts_of(log.streams(internal=True))


def standing_at(log: LogClient, node: str) -> Parts:
    """Return the partitions of a node; empty if it does not answer."""
    try:
        return parts_of(log.ask(calls.describe(internal=True, node=node)).streams)
    except (UnavailableError, RefusedError):
        return {}


QUIET_S: Final = 3.0
"""Seconds without anything under way, after which a rebalance is over: its steps come one by one,
and the controller plans the next within a second."""

STUCK_S: Final = 60.0
"""Seconds without any change, after which it is said what work waits for."""


Function = TypeVar("Function", bound=Callable[..., object])

_LOOK_S: Final = 0.5
_AWAY_S: Final = 60.0
"""Seconds in which no node may answer, as while another node becomes the controller."""

wait_option = click.option(
    "--wait/--no-wait",
    default=True,
    show_default=True,
    help="Stay until it is done and show how far it is, or only begin it.",
)


class StillUnderWayError(ServiceError):
    """Nobody watches any more; the work goes on (exit code 75)."""

    exit_code = ExitCode.TEMPORARY


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The work whose progress is polled.

    Attributes:
        label: Name of the work, in a word or two.
        is_left: Whether a partition is unfinished.
        hint: Fix when nothing moves.
        lasting: Whether more may come when nothing is left; then it ends after a quiet while.
        looked: Called on each poll with the partitions.
    """

    label: str
    is_left: IsLeft
    hint: str
    lasting: bool = False
    looked: Callable[[Parts], None] | None = None


def watch(
    log: LogClient,
    work: Work,
    *,
    as_json: bool,
    clock: Clock | None = None,
    pause: Callable[[float], object] | None = None,
) -> ReassignmentProgress:
    """Stay with work until it is done.

    Args:
        log: Client of a logd.
        work: The work to watch.
        as_json: Whether nothing is to be shown.
        clock: Clock for durations.
        pause: Waits between two looks.

    Raises:
        StillUnderWayError: Ctrl-C, or nothing has changed for long.
        UnavailableError: No node has answered for long.
    """
    shown = _Shown(work, quiet=as_json, clock=clock or SystemClock())
    wait = pause or threading.Event().wait
    survey = ProgressPoller(work.is_left)
    try:
        while True:
            course = _look(log, survey, work, shown)
            if course is not None and shown.is_over(course):
                return course
            wait(_LOOK_S)
    except KeyboardInterrupt:
        raise StillUnderWayError(
            f"{work.label}: no longer watched; the work goes on", fix="penstock logd cluster info"
        ) from None
    finally:
        shown.hide()


def _look(
    log: LogClient, survey: ProgressPoller, work: Work, shown: "_Shown"
) -> ReassignmentProgress | None:
    try:
        parts = whole(log)
    except UnavailableError as error:
        shown.away(error)
        return None
    if work.looked is not None:
        work.looked(parts)
    course = survey.look(parts, lambda node: standing_at(log, node))
    shown.course(course)
    return course


class _Shown:
    """Display of the progress, and the time of the last change."""

    def __init__(self, work: Work, *, quiet: bool, clock: Clock) -> None:
        self._work = work
        self._clock = clock
        self._live = not quiet and on_terminal()
        self._lines = not quiet and not self._live
        self._begun_ns = self._changed_ns = self._answered_ns = clock.monotonic_ns()
        self._last: ReassignmentProgress | None = None
        self._first_bytes = 0
        self._bar: Any = None

    def course(self, course: ReassignmentProgress) -> None:
        now_ns = self._clock.monotonic_ns()
        self._answered_ns = now_ns
        if self._last is None:
            self._first_bytes = course.copied_bytes
        if self._last is None or course.steps or _moved(self._last, course):
            self._changed_ns = now_ns
        self._last = course
        if self._lines:
            for step in course.steps:
                click.echo(f"{safe(step)}; {self.line(course)}", err=True)
        elif self._live:
            self._bar = self._bar or bar(self._work.label, course.total)
            self._bar.length = course.total
            show_at(self._bar, course.done, self.line(course))

    def line(self, course: ReassignmentProgress) -> str:
        """Return the line with the progress and the time left."""
        words = [f"{course.done} of {course.total} partitions"]
        if course.total_bytes:
            copied, total = human_bytes(course.copied_bytes), human_bytes(course.total_bytes)
            words.append(f"{copied} of {total}")
        seconds = (self._clock.monotonic_ns() - self._begun_ns) / 1e9
        came, left = course.copied_bytes - self._first_bytes, course.total_bytes
        if came > 0 and seconds > 0 and not course.is_done:
            words.append(f"some {_span((left - course.copied_bytes) * seconds / came)} left")
        return ", ".join(words)

    def is_over(self, course: ReassignmentProgress) -> bool:
        """Return whether the work is done.

        Raises:
            StillUnderWayError: Nothing has changed for `STUCK_S`.
        """
        quiet_s = (self._clock.monotonic_ns() - self._changed_ns) / 1e9
        if course.is_done:
            return not self._work.lasting or quiet_s >= QUIET_S
        if quiet_s >= STUCK_S:
            message = f"{self._work.label}: nothing has changed for {STUCK_S:.0f} s; "
            message += f"{course.total - course.done} of {course.total} partitions are left"
            raise StillUnderWayError(message, fix=self._work.hint)
        return False

    def away(self, error: UnavailableError) -> None:
        """No node answers.

        Raises:
            UnavailableError: For too long.
        """
        if (self._clock.monotonic_ns() - self._answered_ns) / 1e9 >= _AWAY_S:
            raise error

    def hide(self) -> None:
        """End the bar's line."""
        if self._bar is not None:
            self._bar.render_finish()


def _moved(before: ReassignmentProgress, now: ReassignmentProgress) -> bool:
    return (before.done, before.total, before.copied_bytes) != (
        now.done,
        now.total,
        now.copied_bytes,
    )


def _span(seconds: float) -> str:
    """A time for people: 95 s, 12 min, 3 h."""
    if seconds < 120:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


_TITLES: Final = ("NODE", "STATE", "LIVE", "LEADS", "REPLICAS", "ROLE", "RACK", "FETCH")


_UNHEALTHY: Final = ("failed", "leaderless", "damaged")

_SAID_MAX: Final = 5


@click.group(cls=PenstockGroup, epilog="Example: penstock logd cluster info")
def cluster() -> None:
    """See the nodes of a cluster, and change them."""


@cluster.command(epilog="Example: penstock logd cluster info --json")
@server_option
@json_option()
def info(server: str, as_json: bool) -> None:
    """Show the nodes: which are alive, what each leads and holds, which is the controller.

    LEADS and REPLICAS count partitions, those of logd's own streams too.
    """
    with asking(server) as log:
        found, streams = log.cluster(), log.streams(internal=True)
    rows = _rows(found, streams)
    if as_json:
        echo_json({"cluster": found.cluster, "controller": found.controller, "nodes": rows})
        return
    click.echo(_summary(found, streams))
    click.echo(table(_TITLES, [_cells(row) for row in rows]))
    for node in found.nodes:
        if node.problem and node.is_member:
            click.echo(f"node {node.node} is {node.standing}: {node.problem}", err=True)
    if any(node.cause is HaltCause.DATA_LOST for node in found.nodes):
        click.echo(REJOIN, err=True)
    if found.controller is None:
        click.echo("no node is the controller at present: nothing can be changed", err=True)


@cluster.command(epilog="Example: penstock logd cluster drain logd-2")
@click.argument("node")
@wait_option
@json_option("One JSON object, when it is done.")
@server_option
def drain(node: str, wait: bool, server: str, as_json: bool) -> None:
    """Move every replica and leadership off NODE.

    It is shown how far that is, until the node has nothing. Ctrl-C leaves the work going.
    """
    with asking(server) as log:
        log.drain_node(node)
        if not as_json:
            click.echo(f"node {node} is draining")
        if wait:
            label, hint = (
                f"drain of {node}",
                "start nodes to move to; see: penstock logd streams ls",
            )
            work = Work(label=label, is_left=left_of_drain(node), hint=hint)
            done = watch(log, work, as_json=as_json)
            if not as_json:
                click.echo(
                    f"node {node} has nothing: moved off it: {pluralize(done.total, 'partition')}"
                )
    if as_json:
        echo_json({"node": node, "done": wait})


@cluster.command(epilog="Example: penstock logd cluster undrain logd-2")
@click.argument("node")
@json_option()
@server_option
def undrain(node: str, as_json: bool, server: str) -> None:
    """Give NODE replicas again; `rebalance` moves some back."""
    with asking(server) as log:
        log.drain_node(node, undo=True)
    tell(f"node {node} is active", {"node": node, "active": True}, as_json=as_json)


@cluster.command(epilog="Example: penstock logd cluster remove logd-2 --yes")
@click.argument("node")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option()
@server_option
def remove(node: str, yes: bool, as_json: bool, server: str) -> None:
    """End the membership of NODE for ever; drain it first."""
    with asking(server) as log:
        if not yes:
            known = [one.node for one in log.cluster().nodes if one.is_member]
            if node not in known:
                message = f"there is no node {node!r}; the cluster has {', '.join(known)}"
                raise RefusedError("UNKNOWN_NODE", message, node=node)
            click.confirm(f"Remove node {node} from the cluster?", abort=True, err=True)
        log.remove_node(node)
    tell(f"node {node} is removed", {"node": node, "removed": True}, as_json=as_json)


@cluster.command(epilog="Example: penstock logd cluster rebalance --json")
@wait_option
@server_option
@json_option("One JSON object, when it is done.")
def rebalance(wait: bool, server: str, as_json: bool) -> None:
    """Spread replicas and leaderships evenly over the nodes; data moves in the background.

    It is shown how far that is, until nothing is under way. Ctrl-C leaves the work going.
    """
    with asking(server) as log:
        moves = log.rebalance()
        if not as_json:
            click.echo(f"begun: {pluralize(moves, 'move')}")
        if wait:
            hint = "see which nodes are live: penstock logd cluster info"
            work = Work(label="rebalance", is_left=left_of_rebalance, hint=hint, lasting=True)
            watch(log, work, as_json=as_json)
            if not as_json:
                click.echo("nothing is under way any more")
    if as_json:
        echo_json({"moves": moves, "done": wait})


@cluster.command(epilog="Example: penstock logd cluster wait --seconds 300")
@click.option(
    "--seconds", type=FloatRange(min=0), default=300.0, show_default=True,
    help="Give up after so long.",
)  # fmt: skip
@json_option("One JSON object, when it is so.")
@server_option
def wait(seconds: float, as_json: bool, server: str) -> None:
    """Wait until every node lives and every replica is in sync: then the next may be stopped.

    For rolling restarts: stop one node with SIGTERM, which hands on what it leads; start it; wait.
    Exit code 69: it is not so in time; what is missing is said.
    """
    clock = SystemClock()
    deadline_ns = clock.monotonic_ns() + round(seconds * 1e9)
    while missing := _missing(server):
        if clock.monotonic_ns() > deadline_ns:
            what, fix = missing
            raise ServiceUnavailableError(f"after {seconds:g} s: {what}", fix=fix)
        time.sleep(_LOOK_S)
    words = "every node lives, every replica is in sync: one node may be stopped"
    tell(words, {"in_sync": True}, as_json=as_json)


def _missing(server: str) -> tuple[str, str] | None:
    """Why no node should be stopped now, and what to do about it; None: nothing."""
    try:
        with asking(server) as log:
            found, streams = log.cluster(), log.streams(internal=True)
    except ServiceUnavailableError as error:
        return error.reason, error.fix or ""
    if found.cluster is None:
        raise click.UsageError("this is a single node: there are no others to wait for")
    away = [node.node for node in found.nodes if node.is_member and not node.live]
    states = {
        (stream.name, state)
        for stream in streams
        for part in stream.partitions
        if (state := stream.state_of(part)) in _UNHEALTHY or len(part.isr) < len(part.replicas)
    }
    reasons = [f"node {name} is away" for name in away]
    reasons += [] if found.controller else ["no node is the controller"]
    reasons += sorted(f"{name} is {state}" for name, state in states)
    reasons += [f"{stream.name} is failed" for stream in streams if stream.problem]
    said = ", ".join(list(dict.fromkeys(reasons))[:_SAID_MAX])
    return (said, "stop no other node; see the logs of that one") if said else None


@cluster.command("step-down", epilog="Example: penstock logd cluster step-down --to logd-2")
@click.option("--to", "target", metavar="NODE", help="The new controller. Default: any other node.")
@server_option
@json_option()
def step_down(target: str | None, server: str, as_json: bool) -> None:
    """Have another node be the controller, which decides who leads what.

    Before that node is taken away, or because it is slow. Leaders of partitions stay who they are:
    a node that is stopped hands those over itself, `drain` moves them off, `rebalance` evens out.
    """
    with asking(server) as log:
        controller = log.step_down(target)
    tell(f"node {controller} is the controller", {"controller": controller}, as_json=as_json)


def _summary(info: ClusterInfo, streams: list[StreamInfo]) -> str:
    """Return the cluster's problems in one line, or that there is none."""
    members = [node for node in info.nodes if node.is_member]
    live = sum(node.live for node in members)
    partitions = [part for stream in streams for part in stream.partitions]
    leaderless = sum(part.leader is None for part in partitions)
    behind = sum(len(part.isr) < len(part.replicas) for part in partitions)
    name = "a single node" if info.cluster is None else f"cluster {info.cluster}"
    return (
        f"{name}; {live} of {len(members)} nodes live; {pluralize(len(partitions), 'partition')}, "
        f"{leaderless} without a leader, {behind} not fully in sync"
    )


def _cells(row: dict[str, Any]) -> tuple[object, ...]:
    return (
        row["node"],
        row["standing"],
        "yes" if row["live"] else "no",
        row["leads"],
        row["replicas"],
        "controller" if row["controller"] else "-",
        row["rack"] or "-",
        row["fetch"] or "-",
    )


def _rows(info: ClusterInfo, streams: list[StreamInfo]) -> list[dict[str, Any]]:
    """The nodes with what they have."""
    partitions = [part for stream in streams for part in stream.partitions]
    leads = Counter(part.leader for part in partitions)
    replicas = Counter(node for part in partitions for node in (*part.replicas, *part.observers))
    return [
        to_builtins(node)
        | {
            "standing": node.standing,
            "leads": leads[node.node],
            "replicas": replicas[node.node],
            "controller": node.node == info.controller,
        }
        for node in info.nodes
    ]
