"""The window of message ids: a message whose `Nats-Msg-Id` was stored within it is a duplicate."""

from collections import OrderedDict
from collections.abc import Iterable


class MessageIds:
    """Offset by message id, bounded by age and by number; the oldest go first.

    Args:
        window_ns: How long an id is remembered; 0 turns deduplication off.
        ids_max: How many are remembered whatever their age.

    Attributes:
        evicted: Ids forgotten within the window, for there were too many.
    """

    def __init__(self, *, window_ns: int, ids_max: int) -> None:
        self._window_ns = window_ns
        self.ids_max = ids_max
        self.evicted = 0
        self._ids: OrderedDict[bytes, tuple[int, int]] = OrderedDict()

    def __len__(self) -> int:
        """Ids remembered."""
        return len(self._ids)

    def offset(self, message_id: bytes, now_ns: int) -> int | None:
        """Where a message of this id was stored within the window; None when it was not."""
        self.expire(now_ns)
        found = self._ids.get(message_id)
        if found is None or found[1] < now_ns - self._window_ns:  # the clock may have gone back
            return None
        return found[0]

    def record(self, message_id: bytes, offset: int, now_ns: int) -> None:
        """Remember that a message of this id was stored."""
        if self._window_ns == 0:
            return
        self._ids[message_id] = (offset, now_ns)
        self._ids.move_to_end(message_id)
        if len(self._ids) > self.ids_max:
            _, (_, oldest_ns) = self._ids.popitem(last=False)
            self.evicted += oldest_ns >= now_ns - self._window_ns

    def snapshot(self) -> tuple[list[bytes], list[tuple[int, int]]]:
        """Every id, and of each (offset, seen_ns); by rising offset they are in order.

        Taken from the plain dict inside, and without a tuple more: there may be a million, and to
        walk through them in order holds up the event loop twenty times as long.
        """
        return list(dict.keys(self._ids)), list(dict.values(self._ids))

    def restore(self, rows: Iterable[tuple[bytes, int, int]]) -> None:
        """Replace the window by ids as (id, offset, seen_ns), the oldest first."""
        self._ids.clear()
        for message_id, offset, seen_ns in rows:
            self.record(message_id, offset, seen_ns)

    def expire(self, now_ns: int, count_max: int | None = None) -> None:
        """Forget ids that are out of the window, the oldest first, no more than so many."""
        limit = now_ns - self._window_ns
        left = len(self._ids) if count_max is None else count_max
        while self._ids and left > 0:
            oldest = next(iter(self._ids))
            if self._ids[oldest][1] >= limit:
                return
            del self._ids[oldest]
            left -= 1
