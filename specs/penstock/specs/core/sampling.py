"""Which traces are kept: the same ones in every process that asks for the same share.

A trace's id decides, by its last 56 bits, as in OpenTelemetry's consistent probability sampling
(OTEP 235): it is kept when they are not below the rejection threshold. So all records of a trace
stay or go together, and whoever keeps a larger share keeps every trace that others keep.
"""

from typing import Final

_RANDOM_BITS: Final = 56
_RANDOM_DIGITS: Final = _RANDOM_BITS // 4


class Sampler:
    """Keeps a share of the traces.

    Args:
        probability: Above 0, up to 1.

    Raises:
        ValueError: It is not in that range.
    """

    def __init__(self, probability: float) -> None:
        if not 0 < probability <= 1:
            raise ValueError("a sampling probability is above 0 and at most 1")
        self._threshold = round((1 - probability) * (1 << _RANDOM_BITS))
        self.weight: Final = 1 / probability
        """How many records each kept one stands for."""

    def keeps(self, trace_id: str) -> bool:
        """Whether records of the trace, given as 32 hex digits, are kept."""
        return int(trace_id[-_RANDOM_DIGITS:], 16) >= self._threshold
