"""Linearizable reads without writing to the log: ReadIndex (dissertation 6.4).

The leader notes its commit index, but at least the first entry of its term, and waits until a
majority has answered a heartbeat that left after the read came: then it was still the leader when
the read came, and nothing committed before is behind that index. The read is done on a state that
has the index applied. A follower asks the leader for the index and reads its own state.
"""

from collections import deque
from dataclasses import dataclass

from penstock.logd.core.node import NodeId


@dataclass(frozen=True, slots=True)
class ReadOrigin:
    """Who waits for a read index.

    Attributes:
        node: The member; the read may be the leader's own.
        number: The tag of an own read, else the request's number.
    """

    node: NodeId
    number: int


class LeaderReads:
    """Reads that wait for a round of heartbeats, in the order they came."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, int, ReadOrigin]] = deque()

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    @property
    def last_round(self) -> int:
        """The last round that one waits for; 0 when none does."""
        return self._waiting[-1][1] if self._waiting else 0

    def add(self, index: int, round_number: int, origin: ReadOrigin) -> None:
        """A read came; `round_number` is the first round that leaves after it."""
        assert round_number >= self.last_round
        self._waiting.append((index, round_number, origin))

    def confirmed(self, round_number: int) -> list[tuple[int, ReadOrigin]]:
        """Take out the reads, with their index, that a majority's answers to a round confirm."""
        taken = []
        while self._waiting and self._waiting[0][1] <= round_number:
            index, _, origin = self._waiting.popleft()
            taken.append((index, origin))
        return taken

    def clear(self) -> list[ReadOrigin]:
        """Take out all; the leadership ends."""
        origins = [origin for _, _, origin in self._waiting]
        self._waiting.clear()
        return origins


@dataclass(frozen=True, slots=True)
class _Waiting:
    tag: int
    deadline_ns: int


class Reads:
    """A member's own reads: asked of the leader, or waiting until their index is applied.

    Args:
        number: Where to begin numbering requests. It must differ from life to life (a random one
            does), or a delayed answer to an earlier life would be taken for one to this.
        reads_max: How many may wait.
        timeout_ns: How long one may.
    """

    def __init__(self, *, number: int, reads_max: int, timeout_ns: int) -> None:
        self._number = number
        self._reads_max = reads_max
        self._timeout_ns = timeout_ns
        self._asked: dict[int, _Waiting] = {}
        self._applying: list[tuple[int, _Waiting]] = []

    @property
    def is_full(self) -> bool:
        """Whether another one must be refused."""
        return len(self._asked) + len(self._applying) >= self._reads_max

    def ask(self, tag: int, now_ns: int) -> int:
        """Note a read that the leader is asked about; the request's number."""
        self._number += 1
        self._asked[self._number] = _Waiting(tag, now_ns + self._timeout_ns)
        return self._number

    def answer(self, number: int, index: int) -> bool:
        """The leader gave the index of a request; whether anybody still waited for it."""
        waiting = self._asked.pop(number, None)
        if waiting is not None:
            self._applying.append((index, waiting))
        return waiting is not None

    def confirm(self, tag: int, index: int, now_ns: int) -> None:
        """The leader's own read is confirmed."""
        self._applying.append((index, _Waiting(tag, now_ns + self._timeout_ns)))

    def ready(self, applied: int) -> list[int]:
        """Take out the tags of reads that the state may answer now."""
        if not self._applying:
            return []
        tags = [waiting.tag for index, waiting in self._applying if index <= applied]
        self._applying = [entry for entry in self._applying if entry[0] > applied]
        return tags

    def expired(self, now_ns: int) -> list[int]:
        """Take out the tags of reads that have waited too long."""
        if not self._asked and not self._applying:
            return []
        asked = {n: w for n, w in self._asked.items() if w.deadline_ns <= now_ns}
        applying = [waiting for _, waiting in self._applying if waiting.deadline_ns <= now_ns]
        if asked:
            self._asked = {n: w for n, w in self._asked.items() if n not in asked}
        if applying:
            self._applying = [e for e in self._applying if e[1].deadline_ns > now_ns]
        return [waiting.tag for waiting in (*asked.values(), *applying)]

    def give_up_asked(self) -> list[int]:
        """Take out the tags of reads whose leader will not answer any more."""
        tags = [waiting.tag for waiting in self._asked.values()]
        self._asked.clear()
        return tags

    def deadline_ns(self) -> int | None:
        """When the first one has waited too long."""
        if not self._asked and not self._applying:
            return None
        waiting = [*self._asked.values(), *(waiting for _, waiting in self._applying)]
        return min((w.deadline_ns for w in waiting), default=None)
