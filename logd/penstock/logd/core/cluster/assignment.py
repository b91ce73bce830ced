"""Who of a consumer group reads what: everyone about as much, and little changes hands."""

from collections.abc import Iterable, Mapping

from penstock.logd.core.cluster.records import GroupMember, GroupPartition


def assign(
    members: Iterable[GroupMember],
    partitions: Iterable[GroupPartition],
    previous: Mapping[GroupPartition, str],
) -> dict[GroupPartition, str]:
    """A member for every partition of whose stream somebody wants to read.

    What `previous` says is kept where it can be. Between two members that want the same streams the
    counts differ by one at most; only what that takes changes hands.

    Args:
        members: Of the group.
        partitions: Of the streams that any of them wants.
        previous: Who was to read them before.
    """
    wants = {member.id: frozenset(member.streams) for member in members}
    loads: dict[str, list[GroupPartition]] = {member: [] for member in sorted(wants)}
    left = []
    for partition in sorted(partitions):
        member = previous.get(partition, "")
        if partition.stream in wants.get(member, ()):
            loads[member].append(partition)
        else:
            left.append(partition)
    for partition in left:
        able = [member for member in loads if partition.stream in wants[member]]
        if able:
            loads[min(able, key=lambda member: len(loads[member]))].append(partition)
    while _even_out(loads, wants):
        continue
    return {partition: member for member, load in loads.items() for partition in load}


def _even_out(loads: dict[str, list[GroupPartition]], wants: Mapping[str, frozenset[str]]) -> bool:
    """Move a partition from a member to one that has at least two fewer; whether there was one."""
    by_load = sorted(loads, key=lambda member: len(loads[member]))
    for giver in reversed(by_load):
        for taker in by_load:
            if len(loads[giver]) - len(loads[taker]) < 2:
                break
            for partition in reversed(loads[giver]):
                if partition.stream in wants[taker]:
                    loads[giver].remove(partition)
                    loads[taker].append(partition)
                    return True
    return False
