"""Whether a micro-batch begins now: not with too few records, but not too late either."""

from dataclasses import dataclass


@dataclass(slots=True)
class Admission:
    """The options `minOffsetsPerTrigger` and `maxTriggerDelay`, as Spark's Kafka source has them.

    Attributes:
        rows_min: Records that are waited for; None: any number will do.
        delay_ns: They are waited for no longer than this, counted from the batch before.
    """

    rows_min: int | None
    delay_ns: int
    _last_ns: int | None = None

    def admits(self, waiting: int, now_ns: int) -> bool:
        """Whether a batch of what waits may begin.

        Args:
            waiting: Records that the log has and the query has not.
            now_ns: Monotonic.
        """
        if self.rows_min is None:
            return True
        late = self._last_ns is None or now_ns - self._last_ns >= self.delay_ns
        return late or waiting >= self.rows_min

    def begun(self, now_ns: int) -> None:
        """A batch began."""
        self._last_ns = now_ns
