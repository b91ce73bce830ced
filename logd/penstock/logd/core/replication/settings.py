"""Times that replication is tuned with."""

from dataclasses import dataclass
from typing import Final

_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationSettings:
    """Of one cluster.

    Attributes:
        replica_lag_ns: A member of the ISR that has not had everything for so long is to leave it.
        retry_ns: Before an ISR is proposed again, or a leader that refused is asked again.
        patch_retry_ns: Before a damaged range is asked for again that should have been filled: the
            log does not report that it could not.
        dedup_retry_ns: Before the leader is asked again for what it remembers.
    """

    replica_lag_ns: int = 1500 * _MS
    retry_ns: int = 50 * _MS
    patch_retry_ns: int = 10_000 * _MS
    dedup_retry_ns: int = 1000 * _MS
