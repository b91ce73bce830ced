"""What a command about a consumer group does to the tables."""

from penstock.logd.core.cluster.commands import NewShare, PutGroup
from penstock.logd.core.cluster.records import Group, GroupPartition, Share
from penstock.logd.core.cluster.tables import Done, Tables
from penstock.logd.core.cursors import check_consumer
from penstock.logd.errors import RefusedError
from penstock.logd.limits import GROUP_MEMBERS_MAX, GROUP_PARTITIONS_MAX, GROUPS_MAX


def put_group(tables: Tables, index: int, command: PutGroup) -> Done:
    """Give a group its members and shares, in a new epoch.

    A partition passes from one member to another only when the first has let go of it, or is no
    member any more.
    """
    before = tables.groups.get(command.group)
    epoch = 0 if before is None else before.epoch
    if epoch != command.based_on:
        message = f"group {command.group[:80]} is in epoch {epoch}, not {command.based_on}"
        raise RefusedError("STALE_EPOCH", message, epoch=epoch)
    _check_form(tables, command, new=before is None)
    held = {} if before is None else {share.partition: share for share in before.shares}
    _check_handovers(command, held)
    if not command.members:
        tables.groups.pop(command.group, None)
        return Done(changed=before is not None)
    tables.groups[command.group] = Group(
        name=command.group,
        epoch=index,
        members=tuple(sorted(command.members, key=lambda member: member.id)),
        shares=tuple(
            _granted(share, held.get(share.partition), index)
            for share in sorted(command.shares, key=lambda share: share.partition)
        ),
    )
    return Done()


def _check_form(tables: Tables, command: PutGroup, *, new: bool) -> None:
    check_consumer(command.group)
    members = [member.id for member in command.members]
    partitions = [share.partition for share in command.shares]
    if new and len(tables.groups) >= GROUPS_MAX:
        raise RefusedError("TOO_MANY_GROUPS", f"there are {GROUPS_MAX} groups already")
    if len(members) > GROUP_MEMBERS_MAX:
        message = f"group {command.group}: at most {GROUP_MEMBERS_MAX} members"
        raise RefusedError("TOO_MANY_MEMBERS", message)
    if len(partitions) > GROUP_PARTITIONS_MAX:
        message = f"group {command.group}: at most {GROUP_PARTITIONS_MAX} partitions"
        raise RefusedError("TOO_MANY_PARTITIONS", message)
    if len(set(members)) != len(members) or len(set(partitions)) != len(partitions):
        raise RefusedError("BAD_GROUP", f"group {command.group}: something is named twice")
    for member in members:
        check_consumer(member)
    for share in command.shares:
        if {share.wanted, share.owner} - {*members, None, ""} or share.owner == "":
            message = f"group {command.group}: {share.partition} goes to one who is no member"
            raise RefusedError("BAD_GROUP", message)


def _check_handovers(command: PutGroup, held: dict[GroupPartition, Share]) -> None:
    members = {member.id for member in command.members}
    released = {(item.partition, item.member, item.epoch) for item in command.released}
    owners = {share.partition: share.owner for share in command.shares}
    for partition, before in held.items():
        if before.owner not in members or owners.get(partition) == before.owner:
            continue
        if (partition, before.owner, before.epoch) not in released:
            message = f"group {command.group}: {before.owner} has not let go of {partition}"
            raise RefusedError("NOT_RELEASED", message)


def _granted(share: NewShare, before: Share | None, index: int) -> Share:
    kept = before is not None and before.owner == share.owner
    return Share(
        partition=share.partition,
        wanted=share.wanted,
        owner=share.owner,
        epoch=before.epoch if before is not None and kept else index,
    )
