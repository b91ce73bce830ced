"""How many bytes may be unanswered: a window that follows what acks say of the way to the log.

After TCP Vegas (Brakmo, O'Malley, Peterson: TCP Vegas, SIGCOMM 1994): the shortest time an ack took
lately is what the way takes when nothing waits in it; what a longer time adds, times the rate, is
what waits. The window grows while less than `_FEW` batches wait, shrinks above `_MANY`, and is
halved when an answer does not come. It only grows where it was what held batches back, so a quiet
collector keeps its window.
"""

from typing import Final

_FEW: Final = 2
_MANY: Final = 6
_MEMORY_NS: Final = 30_000_000_000
"""For so long at least, and twice that at most, the shortest time is believed."""


class Window:
    """The window of one way to the log; sizes in bytes, times in nanoseconds.

    Args:
        step: A batch: what the window grows by in the time of an ack, and its least size.
        size_max: Its greatest size.
    """

    def __init__(self, *, step: int, size_max: int) -> None:
        self._step = min(step, size_max)
        self._size_max = size_max
        self.size = min(size_max, 4 * self._step)
        self._starting = True
        self._base_ns = 0
        self._recent_ns = 0
        self._since_ns = 0
        self._calm_until_ns = 0

    @property
    def base_ns(self) -> int:
        """The shortest time an ack took lately; 0 when none came."""
        return min((known for known in (self._base_ns, self._recent_ns) if known), default=0)

    def resize(self, *, step: int, size_max: int) -> None:
        """Other limits hold from now on."""
        self._step = min(step, size_max)
        self._size_max = size_max
        self._set(self.size)

    def acked(self, size: int, took_ns: int, now_ns: int, *, held_back: bool) -> None:
        """A batch of `size` bytes was acked; `held_back`: others waited for the window."""
        took_ns = max(took_ns, 1)
        self._remember(took_ns, now_ns)
        waiting = self.size * (took_ns - self.base_ns) // took_ns
        if waiting > _MANY * self._step:
            self._starting = False
            self._set(self.size - self._share(size))
        elif held_back and waiting < _FEW * self._step:
            self._set(self.size + (size if self._starting else self._share(size)))

    def failed(self, now_ns: int) -> None:
        """No answer came in time, or one that says that there is too much."""
        self._starting = False
        if now_ns >= self._calm_until_ns:  # batches sent together fail together
            self._calm_until_ns = now_ns + max(self.base_ns, 1_000_000)
            self._set(self.size // 2)

    def _share(self, size: int) -> int:
        """A step for each window's worth of acked bytes."""
        return max(1, self._step * size // self.size)

    def _set(self, size: int) -> None:
        self.size = max(self._step, min(size, self._size_max))

    def _remember(self, took_ns: int, now_ns: int) -> None:
        if now_ns - self._since_ns > _MEMORY_NS:
            self._base_ns, self._recent_ns = self._recent_ns, 0
            self._since_ns = now_ns
        self._recent_ns = min(self._recent_ns, took_ns) if self._recent_ns else took_ns
