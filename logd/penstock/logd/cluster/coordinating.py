"""The coordinator of consumer groups on one node: gives the pure core its clock and its log.

It runs beside the controller, where the metadata group is led, and is told of the same terms and
commands.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, assert_never

import structlog

from penstock.base.clock import Clock
from penstock.logd.cluster.group import MetadataGroup
from penstock.logd.consensus.member import LostError
from penstock.logd.core.cluster.commands import Command, PutGroup, encode_command
from penstock.logd.core.cluster.group_events import (
    AnswerMember,
    BeatReceived,
    BecameCoordinator,
    CommandApplied,
    GroupEvent,
    LostCoordinator,
    MemberLeft,
    ProposalDropped,
    Propose,
    Tick,
)
from penstock.logd.core.cluster.group_messages import MemberAnswer, MemberBeat
from penstock.logd.core.cluster.groups import GroupCoordinator
from penstock.logd.core.cluster.state import Result
from penstock.logd.core.raft import BusyError, NotLeaderError
from penstock.logd.errors import RefusedError, UnavailableError

_AGAIN_S: Final = 0.05
"""Seconds until a change may be proposed again that the metadata group did not take."""

_log = structlog.get_logger()


class Coordinating:
    """Used on the event loop.

    Args:
        group: The state, and the way into its log.
        drift_percent: By how much a member's monotonic clock may run slower.
        clock: Its monotonic time goes on while the machine sleeps.

    Attributes:
        coordinator: Decides; idle where the metadata group is not led.
    """

    def __init__(self, group: MetadataGroup, drift_percent: int, clock: Clock) -> None:
        self.coordinator = GroupCoordinator(drift_percent=drift_percent)
        self._group = group
        self._clock = clock
        self._proposed: dict[int, PutGroup] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    async def close(self) -> None:
        """Decide nothing any more."""
        self._closed = True
        self._arm()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def begin(self, elected_ns: int) -> None:
        """This node decides from now on; everything from before its election is applied."""
        self._decide(BecameCoordinator(self._group.state, elected_ns))

    def end(self) -> None:
        """A term is over; told before the next one begins, too."""
        self._proposed.clear()
        self._decide(LostCoordinator())

    def on_applied(self, command: Command, result: Result) -> None:
        """A command was applied to the state."""
        number = next((n for n, found in self._proposed.items() if found == command), None)
        if number is not None:
            del self._proposed[number]
        self._decide(CommandApplied(command, result, number))

    def hear(self, beat: MemberBeat) -> MemberAnswer:
        """Answer a member's heartbeat.

        Raises:
            UnavailableError: It gets no answer now.
        """
        answer = self._decide(BeatReceived(beat, self._group.member.lease_end_ns))
        if answer is None:
            raise UnavailableError("the coordinator gives no answer now")
        return answer

    def leave(self, group: str, member: str) -> None:
        """A member has stopped reading and wants to be none."""
        self._decide(MemberLeft(group, member))

    def _decide(self, event: GroupEvent) -> MemberAnswer | None:
        """Hand an event to the coordinator; the answer, if it was a heartbeat."""
        answer = None
        for effect in self.coordinator.handle(event, self._clock.monotonic_ns()):
            match effect:
                case Propose(number, command):
                    self._proposed[number] = command
                    self._spawn(self._propose(number, command))
                case AnswerMember(given):
                    answer = given
                case _:
                    assert_never(effect)
        self._arm()
        return answer

    async def _propose(self, number: int, command: PutGroup) -> None:
        try:
            await self._group.member.propose(encode_command(command))
        except (NotLeaderError, LostError, BusyError, RefusedError) as error:
            _log.warning("group not changed", group=command.group, reason=str(error))
            await asyncio.sleep(_AGAIN_S)
            if self._proposed.pop(number, None) is not None:
                self._decide(ProposalDropped(number))
        except UnavailableError as error:  # nobody knows: a new coordinator will see
            _log.warning("change of a group lost", group=command.group, reason=str(error))

    def _arm(self) -> None:
        """Wake when the coordinator is due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_ns = self.coordinator.next_deadline_ns()
        if not self._closed and due_ns is not None:
            delay_s = max(0, due_ns - self._clock.monotonic_ns()) / 1e9
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._decide, Tick())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
