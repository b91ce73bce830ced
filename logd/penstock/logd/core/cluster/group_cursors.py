"""Whether a member's commit of a position is taken, and what the position is then.

Positions carry the epoch in which the partition was granted to who commits. They never go back: a
member that was granted a partition later may commit less than one before it did, because that one
got further than its successor knew; then the position stays and takes on the epoch.
"""

from dataclasses import dataclass

from penstock.logd.core.cluster.records import Group, GroupPartition
from penstock.logd.errors import RefusedError, UnavailableError


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPosition:
    """What a group has done of a partition.

    Attributes:
        offset: Of the next record to be read.
        epoch: In which it was granted to who committed this.
    """

    offset: int
    epoch: int


def admit_commit(
    group: Group | None,
    stored: GroupPosition | None,
    *,
    member: str,
    partition: GroupPartition,
    commit: GroupPosition,
) -> GroupPosition:
    """The position after a commit.

    Args:
        group: As it is in the state of the node that stores positions; it may be behind.
        stored: The position there is.
        member: Who commits.
        partition: Of what.
        commit: The offset, with the epoch of the grant.

    Raises:
        RefusedError: `FENCED`: the partition was granted to another since; `CURSOR_BEHIND`.
        UnavailableError: This node does not know the grant yet.
    """
    if stored is not None and commit.epoch < stored.epoch:
        raise _fenced(member, partition)
    if group is None or commit.epoch > group.epoch:
        if group is None and stored is not None and commit.epoch <= stored.epoch:
            raise _fenced(member, partition)
        raise UnavailableError(f"epoch {commit.epoch} of the group is not known here yet")
    held = any(
        share.partition == partition and (share.owner, share.epoch) == (member, commit.epoch)
        for share in group.shares
    )
    if not held:
        raise _fenced(member, partition)
    if stored is None or commit.offset >= stored.offset:
        return commit
    if commit.epoch == stored.epoch:
        raise RefusedError(
            "CURSOR_BEHIND",
            f"{partition} is at {stored.offset} and does not go back to {commit.offset}",
            offset=stored.offset,
        )
    return GroupPosition(offset=stored.offset, epoch=commit.epoch)


def _fenced(member: str, partition: GroupPartition) -> RefusedError:
    return RefusedError("FENCED", f"{partition} is not {member[:80]}'s any more")
