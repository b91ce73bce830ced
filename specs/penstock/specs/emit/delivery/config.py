"""The limits of an emitter, and its counters."""

from dataclasses import asdict, dataclass, field
from typing import Any, Final

from penstock.specs import limits

MS: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EmitterLimits:
    """The limits of an emitter.

    Attributes:
        max_block_ms: Maximum milliseconds that a record waits for room in a full queue before one
            is dropped: for programs whose only task is to emit, such as an import. The calling
            thread waits, so not for servers and event loops. Once that time has passed, the next
            records do not wait until the collector has answered again. 0 never waits.
        max_repeats: Equal log records within a second that go out one by one; more are folded into
            one with a count. 0 folds nothing.
        max_spill_bytes: Bytes of the file that audit records wait in.
        audit_sync_ms: Audit records that the collector has not acknowledged for so long are synced
            to the disk.
        audit_wait_ms: Maximum milliseconds that emitting an audit record waits for that sync, which
            then begins at once; 0 does not wait.
    """

    max_queue_records: int = limits.QUEUE_RECORDS_MAX
    max_queue_bytes: int = limits.QUEUE_BYTES_MAX
    max_batch_records: int = limits.BATCH_RECORDS_MAX
    max_batch_bytes: int = limits.BATCH_BYTES_MAX
    max_batch_age_ms: int = limits.BATCH_AGE_MS
    ack_timeout_ms: int = limits.ACK_TIMEOUT_MS
    initial_backoff_ms: int = limits.BACKOFF_MIN_MS
    max_backoff_ms: int = limits.BACKOFF_MAX_MS
    max_block_ms: int = 0
    max_repeats: int = limits.REPEATS_MAX
    max_spill_bytes: int = limits.SPILL_BYTES_MAX
    audit_sync_ms: int = limits.AUDIT_SYNC_MS
    audit_wait_ms: int = 0


@dataclass(frozen=True, slots=True)
class Counters:
    """The counts of one process's records.

    Attributes:
        emitted: Offered to the emitter, by kind.
        acked: Durable at the collector (or written, to a stream), by kind.
        dropped: Given up, by kind and reason.
        queued: Waiting, all kinds.
        in_flight: Sent and not answered yet, all kinds.
        folded: Values of metrics' dimensions beyond their caps, by attribute.
        keyless: Pseudonyms that were redacted because there is no hash key, by attribute.
    """

    emitted: dict[str, int]
    acked: dict[str, int]
    dropped: dict[str, dict[str, int]]
    queued: int
    in_flight: int
    folded: dict[str, int] = field(default_factory=dict)
    keyless: dict[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
