"""One call's way to whoever answers it. No I/O.

The client does what `step` says and tells what came of it with `answered`, `refused` or `failed`.
The last two raise when there is nothing more to be done, or no time. A call is not made again when
it is not known whether it was done, unless that does no harm.
"""

from collections import deque
from typing import Any, Final

from penstock.logd.client import calls
from penstock.logd.client.answers import ClusterInfo, Described
from penstock.logd.client.calls import Call, ToNode, ToPartition
from penstock.logd.client.following import Patience
from penstock.logd.client.routing import Router, Step
from penstock.logd.errors import LogdError, RefusedError, UnavailableError, UnsettledError

PAUSE_MAX_S: Final = 0.5
"""Seconds between two tries at most: an election takes about two."""

_ELSEWHERE: Final = frozenset({"NOT_HERE", "NOT_LEADER"})
_NOT_THERE: Final = frozenset({"OUT_OF_RANGE", "RECORDS_LOST", "CORRUPT"})


class Course:
    """From a call's beginning to its answer.

    Args:
        router: Of the client.
        call: What is asked.
        now_ns: When it begins; monotonic.
    """

    def __init__(self, router: Router, call: Call[Any], now_ns: int) -> None:
        self._router = router
        self._call = call
        self._questions: deque[Call[Any]] = deque()
        self._patience = Patience(
            router.timeout_s + call.wait_s, router.rng, pause_max_s=PAUSE_MAX_S
        )
        self._patience.failed(now_ns)
        self._pause_s = 0.0
        self._replica = router.may_use_replica(call)
        self._troubles = self._failures = 0
        self._reconnects = 1
        self._rounds = 2  # of questions before the call: who there is, and who has the partition

    def step(self, now_ns: int) -> Step:
        """What to do next.

        Raises:
            RefusedError: `UNKNOWN_NODE`: the call is for one whose address nobody knows.
        """
        pause_s, self._pause_s = self._pause_s, 0.0
        if not self._questions and self._rounds:
            more = self._router.questions(self._call, replica=self._replica, now_ns=now_ns)
            self._rounds -= 1
            self._questions.extend(more)
        if self._questions:
            return self._router.step(self._questions[0], replica=False, pause_s=pause_s)
        return self._router.step(self._call, replica=self._replica, pause_s=pause_s)

    def answered(self, step: Step, answer: object, now_ns: int) -> bool:
        """Take an answer; whether it is the call's."""
        if step.call is self._call:
            self._router.answered(step)
            return True
        self._questions.popleft()
        if isinstance(answer, ClusterInfo):
            self._router.take_cluster(answer, step.address)
        elif isinstance(answer, Described):
            self._router.take_streams(answer, now_ns)
        return False

    def refused(self, step: Step, error: RefusedError, now_ns: int) -> None:
        """Go on after a refusal.

        Raises:
            RefusedError: There is no other way.
            UnsettledError: No node was found in time that has the partition.
        """
        if step.call is not self._call:
            self._questions.clear()  # what is refused there, the call itself is told better
            self._rounds = 0
            return
        to = self._call.to
        if error.code == "NOT_READY":  # nothing was done; another node may know more
            if not isinstance(to, ToNode):
                self._router.lost(step.address)
            self._replica = False
            self._trouble(UnsettledError(str(error)), now_ns, ask=False)
            return
        if not isinstance(to, ToPartition):
            raise error
        if error.code in _ELSEWHERE:
            leader = str(error.detail.get("leader", ""))
            self._replica = False
            moved = self._router.redirect(to, leader, step.address)
            self._trouble(UnsettledError(str(error)), now_ns, ask=not (moved and self._first))
        elif error.code in _NOT_THERE and step.replica:
            self._replica = False  # the leader may have more, and has the last word
        elif self._router.is_clustered and self._is_ahead(error):
            self._trouble(UnsettledError(str(error)), now_ns, ask=False)
        elif self._router.is_clustered and self._call.repeatable and error.code == "UNAVAILABLE":
            self._trouble(error, now_ns, ask=True)
        else:
            raise error

    def failed(self, step: Step, error: OSError, *, sent: bool, reused: bool, now_ns: int) -> None:
        """Go on after a connection failed, or could not be made.

        Args:
            step: What was done.
            error: What failed; a TimeoutError: there was silence.
            sent: Whether the request may have arrived.
            reused: Whether the connection had been there before.
            now_ns: Monotonic.

        Raises:
            UnavailableError: There is no other way, or no time.
        """
        away = self._describe(step, error)
        own, silent = step.call is self._call, isinstance(error, TimeoutError)
        if reused and not silent and self._reconnects and (step.call.repeatable or not sent):
            self._reconnects -= 1
            return
        self._router.lost(step.address)
        self._failures += 1
        if own and (isinstance(self._call.to, ToNode) or (sent and not self._call.repeatable)):
            raise away
        if self._router.is_clustered:
            self._trouble(away, now_ns, ask=True)
        elif not own:
            self._questions.clear()
            self._rounds = 0
            self._router.not_learned()
        elif silent or self._failures >= self._router.count():
            raise away

    def abandoned(self) -> None:
        """The call is made no more; what it was to learn, another one must."""
        if self._questions:
            self._router.not_learned()

    @property
    def _first(self) -> bool:
        return self._troubles == 0

    def _trouble(self, error: LogdError, now_ns: int, *, ask: bool) -> None:
        """Try again, the first time at once; `ask` who there is and who leads before."""
        if not self._first:
            self._pause_s = self._patience.pause(error, now_ns)
        self._troubles += 1
        if ask:
            self._questions.clear()
            self._questions.append(calls.cluster())
            if isinstance(self._call.to, ToPartition):
                self._questions.append(calls.describe(self._call.to.stream))

    def _is_ahead(self, error: RefusedError) -> bool:
        """Whether an offset is one that a new leader has and does not know to be committed yet."""
        if error.code != "OUT_OF_RANGE":
            return False
        offset = self._call.request.get("offset", 0)
        return int(error.detail["latest"]) < int(offset) <= int(error.detail.get("end_offset", -1))

    def _describe(self, step: Step, error: OSError) -> UnavailableError:
        if isinstance(error, TimeoutError):
            return calls.silent(step.address, self._router.timeout_s + step.call.wait_s)
        return calls.unreachable(step.address, error)
