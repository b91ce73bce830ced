"""A stream whose log cannot be opened: it refuses what is published to it, and says why."""

from penstock.logd.core.intake import Arrived, Intake, StorageFailed
from penstock.logd.core.metadata import Stream, is_internal
from penstock.logd.core.turn import Message, Refuse
from penstock.logd.errors import CorruptError, RefusedError
from penstock.logd.store.errors import NO_SPACE
from penstock.logd.surroundings import Surroundings


class Unopened:
    """Stands in for a stream's partition until its log can be opened. Used on the event loop.

    Publishers must not take silence for a stream that is slow: whoever left a reply subject is
    told `STORAGE_FAILED`, and what has none is counted and reported as an ingest gap.

    Args:
        stream: Whose log it is.
        error: Why it cannot be opened.
        around: What partitions share.

    Attributes:
        reason: Why it cannot be opened, and what to do.
        cause: Code of why, as of a `NotOpenError`.
        out_of_space: Space is all that it wants.
        intake: For its counters; it takes nothing.
        budget: Holds nothing.
        passed_over: As of a partition.
        stands_by: False.
    """

    stands_by = False

    def __init__(self, stream: Stream, error: Exception, around: Surroundings) -> None:
        self.stream = stream
        self.out_of_space = isinstance(error, OSError) and error.errno in NO_SPACE
        self.cause = cause_of(error)
        again = f"`penstock logd streams open {self.name}`"
        if is_internal(self.name):
            again = "start logd again"
        self.reason = f"not opened: {error}; see to that, then {again}"
        self.intake = Intake(
            stream.config,
            next_offset=0,
            epoch=0,
            streams_for=around.streams_for,
            knows_stream=around.knows_stream,
        )
        self.intake.handle(StorageFailed(str(error)), around.clock.unix_ns())
        self.budget = around.budget.share(stream.config.intake_bytes_max)
        self.passed_over = 0
        self._around = around

    @property
    def name(self) -> str:
        """Of the stream."""
        return self.stream.config.name

    @property
    def label(self) -> str:
        """As of a leadership."""
        return self.name

    @property
    def subject(self) -> str:
        """As of a leadership."""
        return self.stream.config.subject

    def on_subject(self, *, here: bool) -> None:
        """As of a leadership."""

    def take(self, messages: list[Message]) -> None:
        """Refuse what arrived in one turn."""
        arrived = Arrived(messages, self.budget.room)
        for effect in self.intake.handle(arrived, self._around.clock.unix_ns()):
            assert isinstance(effect, Refuse), effect
            self._around.acks.send_refusal(effect)


def cause_of(error: Exception) -> str:
    """The code of why a log cannot be opened."""
    if isinstance(error, CorruptError):
        return "CORRUPT"
    return error.code if isinstance(error, RefusedError) else "UNAVAILABLE"
