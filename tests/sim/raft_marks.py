"""Coverage marks: how often rare branches of the core ran, counted from outside."""

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from penstock.logd.core.raft.applying import Applier
from penstock.logd.core.raft.following import Follower
from penstock.logd.core.raft.leading import Leader
from penstock.logd.core.raft.log import RaftLog
from penstock.logd.core.raft.member import Raft
from penstock.logd.core.raft.membership import MembershipHistory
from penstock.logd.core.raft.progress import Progress
from penstock.logd.core.raft.reads import Reads
from penstock.logd.core.raft.replicating import Replicator
from tests.sim.twins import Mutation

Result = Callable[[Any], object]


def _always(_: Any) -> bool:
    return True


BRANCHES: Final[dict[str, tuple[type[Any], str, Result]]] = {
    "entries truncated": (RaftLog, "truncate", _always),
    "membership truncated": (MembershipHistory, "truncate", bool),
    "append rejected": (Progress, "reject", bool),
    "snapshot begun": (Progress, "begin_snapshot", _always),
    "chunk sent": (Replicator, "_send_chunk", _always),
    "snapshot installed": (Applier, "install", _always),
    "snapshot kept": (Applier, "take", _always),
    "chunk came": (Follower, "_take_chunk", _always),
    "leader removed": (Leader, "_leave", _always),
    "handover given up": (Leader, "_give_transfer_up", _always),
    "leader told to be old": (Raft, "_answer_old_term", _always),
    "read asked of the leader": (Reads, "ask", _always),
    "read answered by the leader": (Reads, "answer", bool),
    "reads expired": (Reads, "expired", bool),
    "vote granted": (Raft, "grant_vote", _always),
    "vote held back by a lease": (Raft, "_in_lease", bool),
}


def count_branches(code: Mutation, marks: Counter[str]) -> None:
    """Count the branches from now on."""
    for mark, (owner, name, matters) in BRANCHES.items():
        code.wrap(owner, name, _counting(mark, matters, marks))


def _counting(mark: str, matters: Result, marks: Counter[str]) -> Callable[..., Any]:
    def counted(really: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        result = really(*arguments, **named)
        if matters(result):
            marks[mark] += 1
        return result

    return counted
