"""How fast replicas outside the ISR are fed: a returning one must not starve live traffic.

A bucket of bytes that fills with time. A frame is sent whole, so that it may be overdrawn; then
nothing is sent until the debt is paid.
"""

from typing import Final

_NS_PER_S: Final = 1_000_000_000
_BURST_NS: Final = 100_000_000
"""What has gathered while nobody was fed: a tenth of a second's worth, or a byte."""


class CatchUpPace:
    """Of one leader's node, for all that it feeds.

    Args:
        bytes_per_s_max: None: there is no limit.
    """

    def __init__(self, bytes_per_s_max: int | None) -> None:
        self._rate = bytes_per_s_max
        self._free_ns = 0
        self._burst_ns = max(_BURST_NS, -(-_NS_PER_S // bytes_per_s_max) if bytes_per_s_max else 0)

    def room(self, now_ns: int) -> int | None:
        """Bytes that may be sent now; 0: none; None: there is no limit."""
        if self._rate is None:
            return None
        saved_ns = min(now_ns - self._free_ns, self._burst_ns)
        return max(saved_ns * self._rate // _NS_PER_S, 0)

    def spend(self, size_bytes: int, now_ns: int) -> None:
        """So much was sent."""
        if self._rate is not None:
            begun_ns = max(self._free_ns, now_ns - self._burst_ns)
            self._free_ns = begun_ns + -(-size_bytes * _NS_PER_S // self._rate)

    def free_ns(self, now_ns: int) -> int:
        """When there is room for a millisecond's worth, at the latest; `now_ns` if there is."""
        if self._rate is None or self.room(now_ns):
            return now_ns
        return max(self._free_ns, now_ns) + max(_NS_PER_S // 1000, -(-_NS_PER_S // self._rate))
