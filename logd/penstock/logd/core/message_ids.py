"""The window of message ids: a message whose `Nats-Msg-Id` was stored within it is a duplicate."""

import operator
from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice


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

    @property
    def off(self) -> bool:
        """Whether the stream does not deduplicate by ids."""
        return self._window_ns == 0

    def since(self, offset: int) -> list[tuple[bytes, tuple[int, int]]]:
        """Ids of records at or above an offset, and of each (offset, seen_ns), in order."""
        found = []
        for name in reversed(self._ids):
            at = self._ids[name]
            if at[0] < offset:
                break
            found.append((name, at))
        return found[::-1]

    def offset(self, message_id: bytes, now_ns: int) -> int | None:
        """Where a message of this id was stored within the window; None when it was not."""
        self.expire(now_ns)
        found = self._ids.get(message_id)
        if found is None or found[1] < now_ns - self._window_ns:  # the clock may have gone back
            return None
        return found[0]

    def record(self, message_id: bytes, offset: int, now_ns: int) -> None:
        """Remember that a message of this id was stored."""
        self.record_all((message_id,), ((offset, now_ns),))

    def snapshot(self) -> tuple[list[bytes], list[tuple[int, int]]]:
        """Every id, and of each (offset, seen_ns); by rising offset they are in order.

        Taken from the plain dict inside, and without a tuple more: there may be a million, and to
        walk through them in order holds up the event loop twenty times as long.
        """
        return list(dict.keys(self._ids)), list(dict.values(self._ids))

    def record_all(self, names: Iterable[bytes], seen: Iterable[tuple[int, int]]) -> None:
        """`record` ids, and of each (offset, now_ns)."""
        if self._window_ns == 0:
            return
        ids = self._ids
        count = len(ids)
        for name, at in zip(names, seen, strict=True):
            ids[name] = at
            if len(ids) == count:  # it was there
                ids.move_to_end(name)
            elif count == self.ids_max:
                _, (_, oldest_ns) = ids.popitem(last=False)
                self.evicted += oldest_ns >= at[1] - self._window_ns
            else:
                count += 1

    def restore(self, names: list[bytes], seen: list[tuple[int, int]]) -> None:
        """Replace the window by a snapshot's ids, and of each (offset, seen_ns)."""
        self._ids.clear()
        if self._window_ns == 0:
            return
        if any(map(operator.gt, seen, islice(seen, 1, None))):
            order = sorted(range(len(seen)), key=seen.__getitem__)
            names, seen = [names[at] for at in order], [seen[at] for at in order]
        surplus = max(0, len(names) - self.ids_max)
        for (_, oldest_ns), (_, now_ns) in zip(seen[:surplus], seen[self.ids_max :], strict=True):
            self.evicted += oldest_ns >= now_ns - self._window_ns
        self._ids.update(zip(names[surplus:], seen[surplus:], strict=True))

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
