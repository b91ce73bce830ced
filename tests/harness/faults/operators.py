"""What operators do to a cluster meanwhile: the same commands as ever, whatever else happens."""

from collections.abc import Callable
from typing import Final

from penstock.logd.client import LogClient
from penstock.logd.errors import LogdError
from tests.harness.systems.cluster import ClusterUnderLoad

_PATIENCE_S: Final = 3.0
"""Seconds a command may take: one that cannot be done now has been tried."""

_EXTRA: Final = "extra"
"""A stream that is made and deleted again; nobody publishes to it."""

Command = tuple[str, Callable[[LogClient], object]]


def operate(it: ClusterUnderLoad) -> str:
    """Give any command; what it is, and whether it was done."""
    words, command = it.run.rng.choice(_COMMANDS)(it)
    try:
        with it.cluster.cluster.client(timeout_s=_PATIENCE_S) as log:
            command(log)
    except LogdError as error:
        return f"{words} ({getattr(error, 'code', 'not done')})"
    it.run.report.counts["commands of operators done"] += 1
    return words


def _move(it: ClusterUnderLoad) -> Command:
    chosen = it.run.rng.sample(it.cluster.names, it.cluster.replicas_wanted)
    words = f"move {it.stream} to {', '.join(chosen)}"
    return words, lambda log: log.move_partition(it.stream, 0, chosen)


def _give_up(it: ClusterUnderLoad) -> Command:
    return f"give the move of {it.stream} up", lambda log: log.move_partition(it.stream, 0, None)


def _drain(it: ClusterUnderLoad) -> Command:
    """Drain a node, or end that; a node counts as drained until the end of it is surely done."""
    if it.draining:
        drained = min(it.draining)
        return f"drain {drained} no more", lambda log: _undrain(it, log, drained)
    node = it.run.rng.choice(it.cluster.names)
    it.draining.add(node)
    return f"drain {node}", lambda log: log.drain_node(node)


def _undrain(it: ClusterUnderLoad, log: LogClient, node: str) -> None:
    log.drain_node(node, undo=True)
    it.draining.discard(node)


def _alter_min_isr(it: ClusterUnderLoad) -> Command:
    least = it.run.rng.choice((1, 2))
    words = f"alter {it.stream}: min_isr {least}"
    return words, lambda log: log.alter_stream(it.stream, min_isr=least)


def _alter_dedup(it: ClusterUnderLoad) -> Command:
    entries = it.run.rng.randrange(100_000, 1_000_000)
    words = f"alter {it.stream}: max_dedup_entries {entries}"
    return words, lambda log: log.alter_stream(it.stream, max_dedup_entries=entries)


def _rebalance(_: ClusterUnderLoad) -> Command:
    return "rebalance", lambda log: log.rebalance()


def _create(_: ClusterUnderLoad) -> Command:
    return f"create {_EXTRA}", lambda log: log.create_stream(_EXTRA, f"{_EXTRA}.>")


def _delete(_: ClusterUnderLoad) -> Command:
    return f"delete {_EXTRA}", lambda log: log.delete_stream(_EXTRA)


_COMMANDS: Final = (
    *(_move, _move, _move, _give_up, _drain, _drain),
    *(_alter_min_isr, _alter_dedup, _rebalance, _create, _delete),
)
