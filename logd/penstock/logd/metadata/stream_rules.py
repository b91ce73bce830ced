"""Commands about streams and partitions.

A deleted stream is marked first. Nodes that hold data of it remove that and say so; when the last
one has, the stream is forgotten and its name is free. So no command, and no missing command, makes
a node remove data of a stream that was not deleted.

What commands about partitions do to the tables.

A proposal is checked again when it is applied, against the state of that moment: of two that were
based on the same state, only the first is applied.
"""

import re
from collections.abc import Collection
from dataclasses import replace
from typing import Final

from msgspec import structs

from penstock.logd.errors import RefusedError
from penstock.logd.format.subjects import check_filter
from penstock.logd.limits import PARTITIONS_PER_STREAM_MAX, REPLICAS_MAX
from penstock.logd.metadata.commands import (
    AdoptStream,
    AlterStream,
    Basis,
    ChangeObservers,
    ChangeReplicas,
    CreateStream,
    DataGone,
    DeleteStream,
    Election,
    IsrChange,
    Placement,
    PurgePartition,
    SetStreamMode,
    SetTarget,
    WakeStream,
)
from penstock.logd.metadata.records import (
    Joined,
    NodeId,
    NodeState,
    PartitionKey,
    PartitionRecord,
    ReplicationOptions,
    StreamRecord,
)
from penstock.logd.metadata.streams import Stream, StreamConfig, StreamState
from penstock.logd.metadata.tables import Done, Tables

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
    tables.streams[name] = structs.replace(tables.streams[name], creator=command.creator)
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
    partition = structs.replace(
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
    stream = structs.replace(stream, config=config, options=command.options)
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
    return _replace_options(tables, structs.replace(stream, options=options), changed=changed)


def wake_stream(tables: Tables, index: int, command: WakeStream) -> Done:
    """End a pause that a message may end."""
    del index
    stream = tables.stream(command.stream, command.incarnation)
    wakes = stream.options.paused and stream.options.listens
    options = replace(stream.options, paused=stream.options.paused and not wakes)
    return _replace_options(tables, structs.replace(stream, options=options), changed=wakes)


def _replace_options(tables: Tables, stream: StreamRecord, *, changed: bool) -> Done:
    """Put a stream with other options in its place; its partitions' replicas are to see them."""
    name = stream.config.name
    if changed:
        partitions = tuple(
            structs.replace(partition, version=partition.version + 1)
            for partition in stream.partitions
        )
        tables.streams[name] = structs.replace(stream, partitions=partitions)
    keys = _keys(stream) if changed else ()
    return Done(changed=changed, incarnation=stream.incarnation, partitions=keys)


def delete_stream(tables: Tables, index: int, command: DeleteStream) -> Done:
    """Mark a stream as deleted; no node leads it any more."""
    found = tables.streams.get(command.stream)
    if found is not None and found.incarnation == command.incarnation and not found.is_open:
        return Done(changed=False, incarnation=command.incarnation)
    stream = tables.stream(command.stream, command.incarnation)
    tables.catalog.mark_deleted(command.stream)
    for partition in stream.partitions:
        tables.depose(index, partition)
    partitions = tuple(
        structs.replace(
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
    tables.streams[command.stream] = structs.replace(
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


def _new_partition(placement: Placement) -> PartitionRecord:
    leader = next(node for node in placement.replicas if node in placement.isr)
    return PartitionRecord(
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
    partitions: tuple[PartitionRecord, ...],
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
    most = tables.access.max_streams(creator)
    if most is None:  # nearly always; to count them with each stream would take a square of them
        return
    present = sum(one.creator == creator and one.is_open for one in tables.streams.values())
    if present >= most:
        message = f"{creator!r} has created {present} streams, of at most {most}"
        raise RefusedError("QUOTA_EXCEEDED", message, limit=most)


def _drop(tables: Tables, name: str, node: NodeId, numbers: set[int]) -> tuple[PartitionKey, ...]:
    """A node has no data of these partitions, except where it is to have some."""
    stream = tables.streams[name]
    changed = []
    for number in sorted(numbers):
        partition = stream.partitions[number]
        now = structs.replace(partition, former=_without(partition.former, node))
        if not stream.is_open:
            now = structs.replace(
                now,
                replicas=_without(now.replicas, node),
                observers=_without(now.observers, node),
            )
        if now != partition:
            key = PartitionKey(name, number)
            tables.put(key, structs.replace(now, version=partition.version + 1))
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
    """Return the catalog's form of a stream."""
    return Stream(config=stream.config, incarnation=stream.incarnation, state=stream.state)


def change_isr(tables: Tables, index: int, change: IsrChange) -> Done:
    """Shrink or expand an ISR; its leader stays in it.

    One that is as it was raises the version, too: so a leader takes back what it proposed before.
    """
    del index
    _, partition = tables.based_on(change.basis)
    isr = tuple(sorted(change.isr))
    _check_distinct(isr)
    if partition.leader is None:
        raise RefusedError("NO_LEADER", f"{_name(change.basis)} has no leader")
    if partition.leader not in isr:
        message = f"{_name(change.basis)}: its leader {partition.leader} must be in the ISR"
        raise RefusedError("LEADER_NOT_IN_ISR", message)
    _check_among(isr, partition.replicas, "replicas", change.basis)
    key = PartitionKey(change.basis.stream, change.basis.partition)
    tables.put(key, structs.replace(partition, isr=isr, version=partition.version + 1))
    return Done(partitions=(key,))


def elect(tables: Tables, index: int, election: Election) -> Done:
    """Make a node the leader in a new epoch, or depose the one there is."""
    stream, partition = tables.based_on(election.basis)
    if election.leader is None:
        changes = _deposition(partition, election)
    else:
        changes = _election(tables, stream, partition, election)
    tables.depose(index, partition)
    return _put(
        tables,
        election.basis,
        partition,
        leader=election.leader,
        leader_epoch=partition.leader_epoch + 1,
        **changes,
    )


def _deposition(partition: PartitionRecord, election: Election) -> dict[str, object]:
    if partition.leader is None:
        raise RefusedError("NO_LEADER", f"{_name(election.basis)} has no leader")
    if tuple(sorted(election.isr)) != partition.isr:
        raise RefusedError("BAD_ISR", "who deposes a leader leaves the ISR as it is")
    if election.successor is not None:
        _check_among([election.successor], partition.isr, "ISR", election.basis)
    return {"successor": election.successor}


def _election(
    tables: Tables, stream: StreamRecord, partition: PartitionRecord, election: Election
) -> dict[str, object]:
    leader, isr = election.leader, tuple(sorted(election.isr))
    assert leader is not None
    tables.member(leader)
    _check_distinct(isr)
    if leader not in isr:
        raise RefusedError("LEADER_NOT_IN_ISR", f"{leader} must be in the ISR it is to lead")
    unclean = leader not in partition.isr or election.unclean != "no"
    if unclean:
        _check_unclean(stream, partition, election)
    else:
        _check_among(isr, partition.isr, "ISR", election.basis)
    return {
        "isr": isr,
        "last_leader": leader,
        "successor": None,
        "unclean_elections": partition.unclean_elections + unclean,
        "unclean_epoch": partition.leader_epoch + 1 if unclean else partition.unclean_epoch,
    }


def _check_unclean(stream: StreamRecord, partition: PartitionRecord, election: Election) -> None:
    name = _name(election.basis)
    if election.unclean == "no":
        message = f"{name}: {election.leader} is not in the ISR {', '.join(partition.isr)}"
        raise RefusedError("LEADER_NOT_IN_ISR", message)
    if election.unclean == "option" and not stream.options.unclean_election:
        raise RefusedError("UNCLEAN_NOT_ALLOWED", f"{name}: unclean_election is false")
    if election.isr != (election.leader,):
        raise RefusedError("BAD_ISR", f"{name}: a leader that lacks records is alone in the ISR")
    _check_among(election.isr, partition.replicas, "replicas", election.basis)


def set_target(tables: Tables, index: int, command: SetTarget) -> Done:
    """Begin or give up a move."""
    del index
    stream, partition = tables.based_on(command.basis)
    if command.target == partition.target:
        return Done(changed=False)
    if command.target is not None:
        _check_distinct(command.target)
        wanted = stream.options.replication_factor or len(tables.active())
        if len(command.target) != wanted:
            message = f"{_name(command.basis)} has {wanted} replicas, not {len(command.target)}"
            raise RefusedError("BAD_REPLICAS", message)
        for node in command.target:
            _check_takes_replicas(tables, node)
    return _put(tables, command.basis, partition, target=command.target)


def change_replicas(tables: Tables, index: int, command: ChangeReplicas) -> Done:
    """One step of a move. With the last one the target is reached and cleared."""
    del index
    stream, partition = tables.based_on(command.basis)
    _check_distinct(command.replicas)
    added = set(command.replicas) - set(partition.replicas)
    removed = set(partition.replicas) - set(command.replicas)
    if len(added) + len(removed) > 1:
        raise RefusedError("BAD_REPLICAS", "one replica is added or removed at a time")
    for node in added:
        _check_takes_replicas(tables, node)
        if node in partition.former:
            message = f"{node} still has old data of {_name(command.basis)}; try again"
            raise RefusedError("DATA_NOT_GONE", message)
    for node in removed:
        _check_removable(tables, stream, partition, node)
    return _put(
        tables,
        command.basis,
        partition,
        replicas=command.replicas,
        observers=tuple(node for node in partition.observers if node not in added),
        isr=tuple(node for node in partition.isr if node not in removed),
        former=tuple(sorted({*partition.former, *removed})),
        joined=_joined(partition, added - {*partition.observers}, removed),
        successor=None if partition.successor in removed else partition.successor,
        target=None if command.replicas == partition.target else partition.target,
    )


def change_observers(tables: Tables, index: int, command: ChangeObservers) -> Done:
    """Change who holds a copy that never counts."""
    del index
    _, partition = tables.based_on(command.basis)
    observers = tuple(sorted(command.observers))
    _check_each_once(observers)
    for node in set(observers) - set(partition.observers):
        _check_takes_replicas(tables, node)
        if node in partition.replicas:
            raise RefusedError("BAD_REPLICAS", f"{node} is a replica of {_name(command.basis)}")
        if node in partition.former:
            message = f"{node} still has old data of {_name(command.basis)}; try again"
            raise RefusedError("DATA_NOT_GONE", message)
    removed = set(partition.observers) - set(observers)
    former = tuple(sorted({*partition.former, *removed}))
    joined = _joined(partition, set(observers) - set(partition.observers), removed)
    changes = {"observers": observers, "former": former, "joined": joined}
    return _put(tables, command.basis, partition, **changes)


def purge_partition(tables: Tables, index: int, command: PurgePartition) -> Done:
    """Note how far a partition was purged, as its leader has said it in its epoch."""
    del index
    stream = tables.stream(command.stream, command.incarnation)
    where = f"partition {command.partition} of {command.stream}"
    if not 0 <= command.partition < len(stream.partitions):
        raise RefusedError("UNKNOWN_PARTITION", f"there is no {where}")
    partition, epoch = stream.partitions[command.partition], command.leader_epoch
    if partition.leader_epoch != epoch:
        message = f"{where} is in epoch {partition.leader_epoch}, not {epoch}"
        raise RefusedError("STALE_EPOCH", message, leader_epoch=partition.leader_epoch)
    if (partition.purge_epoch, partition.purged) >= (epoch, command.before):
        return Done(changed=False)
    key = PartitionKey(command.stream, command.partition)
    version = partition.version + 1
    tables.put(
        key, structs.replace(partition, purged=command.before, purge_epoch=epoch, version=version)
    )
    return Done(partitions=(key,))


def _joined(
    partition: PartitionRecord, added: Collection[NodeId], removed: Collection[NodeId]
) -> tuple[Joined, ...]:
    """Since when nodes hold it, once these are added and removed."""
    kept = [one for one in partition.joined if one.node not in removed]
    new = [Joined(node=node, version=partition.version + 1) for node in sorted(added)]
    return (*kept, *new)


def _check_takes_replicas(tables: Tables, node: NodeId) -> None:
    state = tables.member(node).state
    if state is not NodeState.ACTIVE:
        raise RefusedError("NOT_ACTIVE", f"node {node} is {state} and gets no replicas", node=node)


def _check_removable(
    tables: Tables, stream: StreamRecord, partition: PartitionRecord, node: NodeId
) -> None:
    left = [member for member in partition.isr if member != node]
    if partition.leader == node:
        raise RefusedError("IS_LEADER", f"{node} leads; another must lead before it is removed")
    if not left:
        raise RefusedError("LAST_IN_ISR", f"only {node} has every acked record", node=node)
    if node in partition.isr and len(left) < stream.min_isr:
        message = f"without {node} there are {len(left)} replicas in sync, of {stream.min_isr}"
        raise RefusedError("BELOW_MIN_ISR", message, node=node)
    wanted = stream.options.replication_factor or len(tables.active())
    if len(partition.replicas) - 1 < wanted:
        message = f"without {node} there are fewer than {wanted} replicas; add one first"
        raise RefusedError("TOO_FEW_REPLICAS", message, node=node)


def _check_distinct(nodes: Collection[NodeId]) -> None:
    if not nodes:
        raise RefusedError("BAD_REPLICAS", "no node is named")
    _check_each_once(nodes)


def _check_each_once(nodes: Collection[NodeId]) -> None:
    if len(set(nodes)) != len(nodes):
        raise RefusedError("BAD_REPLICAS", f"{', '.join(nodes)[:200]}: a node is named twice")


def _check_among(
    nodes: Collection[NodeId], allowed: Collection[NodeId], what: str, basis: Basis
) -> None:
    if more := sorted(set(nodes) - set(allowed)):
        message = f"{_name(basis)}: {', '.join(more)[:200]} not in its {what} {', '.join(allowed)}"
        raise RefusedError("NOT_IN_" + what.upper(), message)


def _name(basis: Basis) -> str:
    return f"partition {basis.partition} of {basis.stream}"


def _put(tables: Tables, basis: Basis, partition: PartitionRecord, **changes: object) -> Done:
    key = PartitionKey(basis.stream, basis.partition)
    if all(getattr(partition, name) == value for name, value in changes.items()):
        return Done(changed=False)
    version = partition.version + 1
    tables.put(key, structs.replace(partition, version=version, **changes))
    return Done(partitions=(key,))
