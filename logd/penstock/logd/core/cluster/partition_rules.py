"""What commands about partitions do to the tables.

A proposal is checked again when it is applied, against the state of that moment: of two that were
based on the same state, only the first is applied.
"""

from collections.abc import Collection
from dataclasses import replace

from penstock.logd.core.cluster.commands import (
    Basis,
    ChangeObservers,
    ChangeReplicas,
    Election,
    IsrChange,
    PurgePartition,
    SetTarget,
)
from penstock.logd.core.cluster.records import (
    Joined,
    NodeId,
    NodeState,
    Partition,
    PartitionKey,
    StreamRecord,
)
from penstock.logd.core.cluster.tables import Done, Tables
from penstock.logd.errors import RefusedError


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
    tables.put(key, replace(partition, isr=isr, version=partition.version + 1))
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


def _deposition(partition: Partition, election: Election) -> dict[str, object]:
    if partition.leader is None:
        raise RefusedError("NO_LEADER", f"{_name(election.basis)} has no leader")
    if tuple(sorted(election.isr)) != partition.isr:
        raise RefusedError("BAD_ISR", "who deposes a leader leaves the ISR as it is")
    if election.successor is not None:
        _check_among([election.successor], partition.isr, "ISR", election.basis)
    return {"successor": election.successor}


def _election(
    tables: Tables, stream: StreamRecord, partition: Partition, election: Election
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


def _check_unclean(stream: StreamRecord, partition: Partition, election: Election) -> None:
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
    tables.put(key, replace(partition, purged=command.before, purge_epoch=epoch, version=version))
    return Done(partitions=(key,))


def _joined(
    partition: Partition, added: Collection[NodeId], removed: Collection[NodeId]
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
    tables: Tables, stream: StreamRecord, partition: Partition, node: NodeId
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


def _put(tables: Tables, basis: Basis, partition: Partition, **changes: object) -> Done:
    key = PartitionKey(basis.stream, basis.partition)
    now = replace(partition, **changes)  # type: ignore[arg-type]  # fields by name
    if now == partition:
        return Done(changed=False)
    tables.put(key, replace(now, version=partition.version + 1))
    return Done(partitions=(key,))
