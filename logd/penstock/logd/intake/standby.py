"""A partition's standby: hears what is published while another node leads, to go on from there.

It belongs to a replica in sync of a stream with `warm_standby`, leader or not. What it holds counts
against a budget of the node's own, so that it takes no room from the streams that are led here.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.base.clock import Clock
from penstock.logd.format.batch import decode_body
from penstock.logd.intake.admission import ByteBudget
from penstock.logd.intake.gaps import Instant
from penstock.logd.intake.intake import Intake
from penstock.logd.intake.standby_buffer import (
    Released,
    Window,
    identify,
    identities,
    is_exact,
    stored_offset,
)
from penstock.logd.intake.turn import Append, Message, MessageRun
from penstock.logd.limits import STANDBY_DEBT_NS
from penstock.logd.partition.log_writer import Frame


@dataclass(frozen=True, slots=True)
class StandbySettings:
    """Of a node.

    Attributes:
        bytes_max: What all streams may hold; each up to half of it.
        age_ns: How long a message is held.
    """

    bytes_max: int = 64 * 1024 * 1024
    age_ns: int = 10_000_000_000


class Standby:
    """Of one partition on this node. Used on the event loop.

    Args:
        intake: Of the partition: what it remembers tells whether an exact message is stored.
        budget: Of the node's standbys.
        age_ns: How long a message is held.
        clock: Monotonic and Unix time.
        led_ns: When a leader, another one or this node, was known to lead last, by that clock.

    Attributes:
        window: What is held; for its counts.
    """

    def __init__(
        self,
        intake: Intake,
        budget: ByteBudget,
        *,
        age_ns: int,
        clock: Clock,
        led_ns: Callable[[], int],
    ) -> None:
        self.window = Window(age_ns, STANDBY_DEBT_NS)
        self._intake = intake
        self._budget = budget.share(None)
        self._clock = clock
        self._led_ns = led_ns
        self._taken: deque[Append] = deque()

    @property
    def covered_ns(self) -> int | None:
        """Since when everything published comes here; None: it does not."""
        covered = self.window.covered
        return None if covered is None else covered.monotonic_ns

    def present(self, *, here: bool) -> None:
        """Everything published comes here from now on, or does no more."""
        now = Instant(self._clock.monotonic_ns(), self._clock.unix_ns())
        self.window.present(now if here else None)

    def arrived(self, messages: Sequence[Message]) -> None:
        """Messages have come while this node does not lead, in this order."""
        window, dedup = self._begin(), self._intake.dedup
        now_ns, unix_ns = self._clock.monotonic_ns(), self._clock.unix_ns()
        window.expire(now_ns, self._led_ns())
        for message in messages:
            identity = identify(message, self._intake.config)
            if identity is not None:
                exact = is_exact(identity)
                known = stored_offset(identity, dedup, unix_ns) if exact else None
                window.arrive(message, identity, now_ns, known=known)
        self._charge()

    def screened(self, messages: list[Message]) -> list[Message]:
        """What of the messages that come to the leader here is not known to be in its log."""
        if not self.window.owing:
            return messages
        now_ns = self._clock.monotonic_ns()
        self.window.expire(now_ns, self._led_ns())
        taken = [message for message in messages if not self._is_paid(message, now_ns)]
        self._charge()
        return taken

    def appended(self, frames: Sequence[Frame]) -> None:
        """The log gets these frames from the leader."""
        window, config = self._begin(), self._intake.config
        now_ns = self._clock.monotonic_ns()
        for header, body in frames:
            recorded_ns = header.max_timestamp_ns
            for offset, identity in identities(header, decode_body(body), config):
                window.append(offset, identity, now_ns, recorded_ns=recorded_ns)
        window.expire(now_ns, self._led_ns())
        self._charge()

    def took(self, append: Append) -> None:
        """The intake here has taken this."""
        self._taken.append(append)

    def committed(self, high_watermark: int) -> None:
        """Everything up to there is committed."""
        self.window.committed(high_watermark)
        taken = self._taken
        while taken and taken[0].items[-1].next_offset <= high_watermark + 1:
            taken.popleft()
        self._charge()

    def stopped(self) -> None:
        """This node leads no more: what it has taken, and is not committed, may be cut off.

        A producer's batch is not kept as it came; the other replicas heard it, too.
        """
        window, config = self._begin(), self._intake.config
        now_ns = self._clock.monotonic_ns()
        for append in self._taken:
            for run in append.items:
                if isinstance(run, MessageRun):
                    for offset, message in enumerate(run.messages, run.base_offset):
                        identity = identify(message, config)
                        if identity is not None:
                            window.counts.arrived += 1
                            window.took(offset, message, identity, now_ns)
        self._taken.clear()
        self._charge()

    def cut(self, end_offset: int) -> None:
        """The log was cut, and ends there."""
        self.window.cut(end_offset, self._clock.monotonic_ns())
        self._charge()

    def release(self) -> Released:
        """This node leads: what the log does not have."""
        released = self.window.release(self._clock.monotonic_ns(), self._led_ns())
        self._charge()
        return released

    def close(self) -> None:
        """Hold nothing any more."""
        self._budget.release(self._budget.held)

    def _begin(self) -> Window:
        """The window, with the room that there is now."""
        window = self.window
        most = min(self._budget.bytes_max, self._intake.size_max)
        window.held_bytes_max = min(most, window.held_bytes + self._budget.room)
        return window

    def _charge(self) -> None:
        more = self.window.held_bytes - self._budget.held
        if more > 0:
            self._budget.take(more)
        else:
            self._budget.release(-more)

    def _is_paid(self, message: Message, now_ns: int) -> bool:
        identity = identify(message, self._intake.config)
        exact = identity is None or is_exact(identity)
        return not exact and identity is not None and self.window.pay(message, identity, now_ns)
