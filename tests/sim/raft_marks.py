"""Coverage marks: how often rare branches of the core ran, counted from outside."""

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from penstock.logd.raft.log import RaftLog
from penstock.logd.raft.membership import MembershipHistory
from penstock.logd.raft.progress import Progress
from penstock.logd.raft.raft import Applier, Follower, Leader, Raft, Reads, Replicator
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
