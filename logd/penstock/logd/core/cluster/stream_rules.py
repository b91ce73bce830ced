"""What commands about streams do to the tables.

A deleted stream is marked first. Nodes that hold data of it remove that and say so; when the last
one has, the stream is forgotten and its name is free. So no command, and no missing command, makes
a node remove data of a stream that was not deleted.
"""

import re
from dataclasses import replace
from typing import Final

from penstock.logd.core.cluster.commands import (
    AdoptStream,
    AlterStream,
    CreateStream,
    DataGone,
    DeleteStream,
    Placement,
    SetStreamMode,
    WakeStream,
)
from penstock.logd.core.cluster.records import (
    NodeId,
    NodeState,
    Partition,
    PartitionKey,
    ReplicationOptions,
    StreamRecord,
)
from penstock.logd.core.cluster.tables import Done, Tables
from penstock.logd.core.metadata import Stream, StreamConfig, StreamState
from penstock.logd.core.subjects import check_filter
from penstock.logd.errors import RefusedError
from penstock.logd.limits import PARTITIONS_PER_STREAM_MAX, REPLICAS_MAX

_NODES_SHOWN: Final = 10
_HEXADECIMAL: Final = re.compile(r"[0-9a-f]{1,32}")


def create_stream(tables: Tables, index: int, command: CreateStream) -> Done:
    """Create a stream with its partitions, or find it."""
    if not _HEXADECIMAL.fullmatch(command.nonce):
        raise RefusedError("BAD_INCARNATION", "a nonce has 1 to 32 hexadecimal digits")
    check_options(command.options)
    _check_forgotten(tables, command.config.name)
    found = _find(tables, command)
    if found is not None:
        return Done(changed=False, incarnation=found.incarnation)
    _check_placements(tables, command.options, command.placements)
    _check_quota(tables, command.creator)
    incarnation = _new_incarnation(index, command.nonce)
    partitions = tuple(_new_partition(placement) for placement in command.placements)
    done = _add(tables, command.config, command.options, incarnation, partitions)
    name = command.config.name
    tables.streams[name] = replace(tables.streams[name], creator=command.creator)
    return done


def adopt_stream(tables: Tables, index: int, command: AdoptStream) -> Done:
    """Take a stream over that one node has from before."""
    del index
    check_options(command.options)
    tables.member(command.node)
    found = tables.streams.get(command.config.name)
    if found is not None and found.incarnation == command.incarnation and found.is_open:
        return Done(changed=False, incarnation=found.incarnation)
    if found is not None:
        message = f"stream {command.config.name!r} exists with another incarnation"
        raise RefusedError("STREAM_DIFFERS", message, stream=command.config.name)
    partition = replace(
        _new_partition(Placement(replicas=(command.node,), isr=(command.node,))),
        leader_epoch=command.leader_epoch,
        purged=command.purged,
        purge_epoch=command.purge_epoch,
    )
    return _add(tables, command.config, command.options, command.incarnation, (partition,))


def alter_stream(tables: Tables, index: int, command: AlterStream) -> Done:
    """Change a stream's options."""
    del index
    name = command.config.name
    stream = tables.stream(name, command.incarnation)
    check_options(command.options)
    changed = tables.catalog.alter(command.config) or stream.options != command.options
    config = tables.catalog.get(name).config  # with what an alteration leaves as it is
    stream = replace(stream, config=config, options=command.options)
    return _replace_options(tables, stream, changed=changed)


def set_stream_mode(tables: Tables, index: int, command: SetStreamMode) -> Done:
    """Pause, resume, make read-only or writable."""
    del index
    stream = tables.stream(command.stream, command.incarnation)
    options = stream.options
    if command.paused is not None:
        options = replace(options, paused=command.paused, held=command.held or False)
    if command.read_only is not None:
        options = replace(options, read_only=command.read_only)
    changed = options != stream.options
    return _replace_options(tables, replace(stream, options=options), changed=changed)


def wake_stream(tables: Tables, index: int, command: WakeStream) -> Done:
    """End a pause that a message may end."""
    del index
    stream = tables.stream(command.stream, command.incarnation)
    wakes = stream.options.paused and stream.options.listens
    options = replace(stream.options, paused=stream.options.paused and not wakes)
    return _replace_options(tables, replace(stream, options=options), changed=wakes)


def _replace_options(tables: Tables, stream: StreamRecord, *, changed: bool) -> Done:
    """Put a stream with other options in its place; its partitions' replicas are to see them."""
    name = stream.config.name
    if changed:
        partitions = tuple(
            replace(partition, version=partition.version + 1) for partition in stream.partitions
        )
        tables.streams[name] = replace(stream, partitions=partitions)
    keys = _keys(stream) if changed else ()
    return Done(changed=changed, incarnation=stream.incarnation, partitions=keys)


def delete_stream(tables: Tables, index: int, command: DeleteStream) -> Done:
    """Mark a stream as deleted; nobody leads it any more."""
    found = tables.streams.get(command.stream)
    if found is not None and found.incarnation == command.incarnation and not found.is_open:
        return Done(changed=False, incarnation=command.incarnation)
    stream = tables.stream(command.stream, command.incarnation)
    tables.catalog.mark_deleted(command.stream)
    for partition in stream.partitions:
        tables.depose(index, partition)
    partitions = tuple(
        replace(
            partition,
            leader=None,
            leader_epoch=partition.leader_epoch + 1,
            version=partition.version + 1,
            isr=(),
            successor=None,
            target=None,
        )
        for partition in stream.partitions
    )
    tables.streams[command.stream] = replace(
        stream, state=StreamState.DELETING, partitions=partitions
    )
    _forget_if_gone(tables, command.stream)
    return Done(incarnation=stream.incarnation, partitions=_keys(stream))


def data_gone(tables: Tables, index: int, command: DataGone) -> Done:
    """Take in that a node has removed what it was to remove."""
    del index
    stream = tables.streams.get(command.stream)
    if stream is None or stream.incarnation != command.incarnation:
        return Done(changed=False)
    for number in command.partitions:
        if not 0 <= number < len(stream.partitions):
            raise RefusedError("UNKNOWN_PARTITION", f"{command.stream} has no partition {number}")
        partition = stream.partitions[number]
        if stream.is_open and command.node in (*partition.replicas, *partition.observers):
            message = f"{command.node} has partition {number} of {command.stream} and must keep it"
            raise RefusedError("IS_REPLICA", message)
    changed = _drop(tables, command.stream, command.node, set(command.partitions))
    _forget_if_gone(tables, command.stream)
    return Done(changed=bool(changed), partitions=changed)


def drop_data(tables: Tables, node: NodeId) -> None:
    """Take in that everything is gone that a node was to remove."""
    for name, stream in list(tables.streams.items()):
        _drop(tables, name, node, set(range(len(stream.partitions))))
        _forget_if_gone(tables, name)


def check_options(options: ReplicationOptions) -> None:
    """Check how a stream is to be replicated.

    Raises:
        RefusedError: `BAD_OPTIONS`, `BAD_SUBJECT`.
    """
    factor, least = options.replication_factor, options.min_isr
    if not 0 <= factor <= REPLICAS_MAX:
        message = f"replication_factor {factor}: 1 to {REPLICAS_MAX}, or 0 for every node"
        raise RefusedError("BAD_OPTIONS", message)
    if least is not None and not 1 <= least <= (factor or REPLICAS_MAX):
        message = f"min_isr {least}: 1 to replication_factor {factor}"
        raise RefusedError("BAD_OPTIONS", message)
    if options.held and not options.paused:
        raise RefusedError("BAD_OPTIONS", "held is for a stream that is paused")
    if options.queue_group is not None:
        check_filter(options.queue_group)
        if options.warm_standby:
            message = "warm_standby goes with no queue_group: replicas would take others' share"
            raise RefusedError("BAD_OPTIONS", message)


def _new_incarnation(index: int, nonce: str) -> str:
    """Unique in this cluster by the index, and among clusters by the nonce."""
    return f"{index:x}-{nonce}"


def _find(tables: Tables, command: CreateStream) -> StreamRecord | None:
    """The stream that a repeated command finds; another one of that name is refused below."""
    found = tables.streams.get(command.config.name)
    if found is None or not found.is_open or found.config != command.config:
        return None
    same = found.options == command.options
    if not same or len(found.partitions) != len(command.placements):
        message = f"stream {command.config.name!r} exists with other replication or partitions"
        raise RefusedError("STREAM_DIFFERS", message, stream=command.config.name)
    return found


def _check_forgotten(tables: Tables, name: str) -> None:
    """Refuse the name of a stream that was deleted while nodes hold data of it."""
    found = tables.streams.get(name)
    if found is None or found.is_open:
        return
    holders = sorted({node for partition in found.partitions for node in partition.holders})
    nodes = ", ".join(holders[:_NODES_SHOWN])
    raise RefusedError(
        "STREAM_DELETING",
        f"stream {name!r} was deleted, and its data is not yet gone from: {nodes}",
        stream=name,
        nodes=nodes,
    )


def _check_placements(
    tables: Tables, options: ReplicationOptions, placements: tuple[Placement, ...]
) -> None:
    if not 1 <= len(placements) <= PARTITIONS_PER_STREAM_MAX:
        message = f"{len(placements)} partitions: 1 to {PARTITIONS_PER_STREAM_MAX}"
        raise RefusedError("BAD_OPTIONS", message)
    for placement in placements:
        replicas, isr = set(placement.replicas), set(placement.isr)
        count = len(placement.replicas)
        if len(replicas) != count or not count or count > REPLICAS_MAX:
            raise RefusedError("BAD_REPLICAS", f"1 to {REPLICAS_MAX} nodes, each once")
        if not isr or not isr <= replicas or len(isr) != len(placement.isr):
            raise RefusedError("BAD_ISR", "the ISR of a new partition are one or more replicas")
        if options.replication_factor not in (0, count):
            message = f"{count} replicas, and replication_factor {options.replication_factor}"
            raise RefusedError("BAD_REPLICAS", message)
        for node in placement.replicas:
            state = tables.member(node).state
            if state is not NodeState.ACTIVE:
                message = f"node {node} is {state} and gets no replicas"
                raise RefusedError("NOT_ACTIVE", message, node=node)


def _new_partition(placement: Placement) -> Partition:
    leader = next(node for node in placement.replicas if node in placement.isr)
    return Partition(
        replicas=placement.replicas,
        isr=tuple(sorted(placement.isr)),
        leader=leader,
        last_leader=leader,
    )


def _add(
    tables: Tables,
    config: StreamConfig,
    options: ReplicationOptions,
    incarnation: str,
    partitions: tuple[Partition, ...],
) -> Done:
    stream, created = tables.catalog.create(config, incarnation)
    assert created, stream
    record = StreamRecord(
        config=config,
        incarnation=incarnation,
        state=StreamState.OPEN,
        options=options,
        partitions=partitions,
    )
    tables.streams[config.name] = record
    return Done(incarnation=incarnation, partitions=_keys(record))


def _check_quota(tables: Tables, creator: str) -> None:
    present = sum(one.creator == creator and one.is_open for one in tables.streams.values())
    tables.access.check_streams(creator, present)


def _drop(tables: Tables, name: str, node: NodeId, numbers: set[int]) -> tuple[PartitionKey, ...]:
    """A node has no data of these partitions, except where it is to have some."""
    stream = tables.streams[name]
    changed = []
    for number in sorted(numbers):
        partition = stream.partitions[number]
        now = replace(partition, former=_without(partition.former, node))
        if not stream.is_open:
            now = replace(
                now,
                replicas=_without(now.replicas, node),
                observers=_without(now.observers, node),
            )
        if now != partition:
            key = PartitionKey(name, number)
            tables.put(key, replace(now, version=partition.version + 1))
            changed.append(key)
    return tuple(changed)


def _without(nodes: tuple[NodeId, ...], node: NodeId) -> tuple[NodeId, ...]:
    return tuple(member for member in nodes if member != node)


def _forget_if_gone(tables: Tables, name: str) -> None:
    stream = tables.streams[name]
    if not stream.is_open and not any(partition.holders for partition in stream.partitions):
        tables.catalog.forget(name)
        del tables.streams[name]


def _keys(stream: StreamRecord) -> tuple[PartitionKey, ...]:
    name = stream.config.name
    return tuple(PartitionKey(name, number) for number in range(len(stream.partitions)))


def as_catalog_entry(stream: StreamRecord) -> Stream:
    """What the catalog knows of a stream."""
    return Stream(config=stream.config, incarnation=stream.incarnation, state=stream.state)
