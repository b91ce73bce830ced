"""What became of the records that arrived."""

from collections import Counter
from dataclasses import dataclass, field

from penstock.logd.acks import Nack


@dataclass(slots=True)
class IntakeCounts:
    """Records since the start: received = stored + duplicates + the sum of refused.

    `untold` are those of `refused` whose publishers left no subject for an answer.
    """

    received: int = 0
    received_bytes: int = 0
    stored: int = 0
    duplicates: int = 0
    malformed_envelopes: int = 0
    refused: Counter[Nack] = field(default_factory=Counter)
    untold: Counter[Nack] = field(default_factory=Counter)
