"""The gate's verdicts on units that are on their way through a spool, so none is judged twice.

A source that answers for each record (OTLP) has them judged before they are spooled. What is read
back is byte for byte what was judged, so its verdicts hold. They are an advantage and no promise:
what waits long, or over a restart, is judged again.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

from penstock.specs import Accepted

RECORDS_MAX: Final = 20_000
"""Their verdicts take some 5 MiB. Beyond it none is kept: what is next to be read stays."""

Known = Sequence[Accepted | None]
"""Of each line of a unit; None where it was refused, or is none."""


class Verdicts:
    """Verdicts by a unit's offset, in the order in which units become durable and are read."""

    def __init__(self) -> None:
        self._units: deque[tuple[int, Known]] = deque()
        self._records = 0

    def keep(self, offset: int, verdicts: Known) -> None:
        """Have a unit's verdicts at hand for its reader, if there is room."""
        if self._records + len(verdicts) <= RECORDS_MAX:
            self._units.append((offset, verdicts))
            self._records += len(verdicts)

    def take(self, offset: int) -> Known:
        """Those of the unit that is read now, or none; those before it are let go."""
        while self._units and self._units[0][0] <= offset:
            found, verdicts = self._units.popleft()
            self._records -= len(verdicts)
            if found == offset:
                return verdicts
        return ()
